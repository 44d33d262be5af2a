#include "reference/thread_pool.h"

#include <system_error>

namespace fovea::reference {

ThreadPool::ThreadPool(int32_t workers, size_t stack_bytes) : workers_(static_cast<size_t>(workers - 1)) {
  executor_ = {sizeof(fovea_executor), workers, this, [](void *user, fovea_task_fn task, void *arg, int64_t n) {
                 static_cast<ThreadPool *>(user)->parallel_for(task, arg, n);
               }};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  if (stack_bytes) pthread_attr_setstacksize(&attributes, stack_bytes);
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker &worker = workers_[i];
    worker.pool = this;
    worker.index = static_cast<int32_t>(i + 1);
    const auto run = [](void *arg) -> void * {
      const Worker &self = *static_cast<Worker *>(arg);
      self.pool->serve(self.index);
      return nullptr;
    };
    if (const int code = pthread_create(&worker.thread, &attributes, run, &worker))
      throw std::system_error(code, std::generic_category(), "pthread_create");
  }
  pthread_attr_destroy(&attributes);
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (Worker &worker : workers_) pthread_join(worker.thread, nullptr);
}

void ThreadPool::parallel_for(fovea_task_fn task, void *arg, int64_t n) {
  const std::lock_guard<std::mutex> call(calls_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    task_ = task;
    arg_ = arg;
    n_ = n;
    next_ = 0;
    busy_ = workers_.size();
    ++generation_;
  }
  start_.notify_all();
  take_tasks(0);
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

void ThreadPool::take_tasks(int32_t worker) {
  for (int64_t i = next_++; i < n_; i = next_++) task_(arg_, i, worker);
}

void ThreadPool::serve(int32_t worker) {
  for (uint64_t seen = 0;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      start_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
    }
    take_tasks(worker);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace fovea::reference
