// A caller's own thread pool, as a program that embeds the library would bring it: plain threads behind a fovea_executor. The
// thread sanitizer understands it, which it does not libgomp.
#pragma once
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "fovea/fovea.h"

namespace fovea::reference {

class ThreadPool {
 public:
  // The calling thread is worker 0; workers - 1 threads are started. stack_bytes: of each thread, 0 for the default.
  explicit ThreadPool(int32_t workers, size_t stack_bytes = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  const fovea_executor &executor() const { return executor_; }

 private:
  struct Worker {
    ThreadPool *pool;
    int32_t index;
    pthread_t thread;
  };
  void parallel_for(fovea_task_fn task, void *arg, int64_t n);
  void take_tasks(int32_t worker);
  void serve(int32_t worker);

  fovea_executor executor_;
  std::vector<Worker> workers_;
  std::mutex calls_;  // one call at a time
  std::mutex mutex_;
  std::condition_variable start_, done_;
  uint64_t generation_ = 0;
  size_t busy_ = 0;
  bool stop_ = false;
  fovea_task_fn task_ = nullptr;
  void *arg_ = nullptr;
  int64_t n_ = 0;
  std::atomic<int64_t> next_{0};
};

}  // namespace fovea::reference
