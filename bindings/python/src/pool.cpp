#include "pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace fovea_python {
namespace {

// Looks at what is waited for before a thread goes to sleep: some microseconds, less than it takes to be woken up.
constexpr int kLooks = 256;

void pause_between_looks() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

template <class Condition>
void wait_a_moment(Condition condition) {
  for (int i = 0; i < kLooks && !condition(); ++i) pause_between_looks();
}

}  // namespace

struct Pool::Threads {
  std::atomic_flag in_use = ATOMIC_FLAG_INIT;

  std::mutex mutex;
  std::condition_variable start, done;
  // Written under the mutex; read without it only to decide whether to sleep.
  std::atomic<int64_t> wanted{0};   // threads that may still join the call
  std::atomic<int32_t> working{0};  // threads that have joined it
  std::atomic<bool> stop{false};
  fovea_task_fn task = nullptr;
  void *arg = nullptr;
  int64_t n = 0;

  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;

  void take_tasks(int32_t worker) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) task(arg, i, worker);
  }

  void serve(int32_t worker) {
    for (;;) {
      const auto is_needed = [this] { return stop || wanted > 0; };
      wait_a_moment(is_needed);
      {
        std::unique_lock<std::mutex> lock(mutex);
        start.wait(lock, is_needed);
        if (stop) return;
        wanted = wanted - 1;
        working = working + 1;
      }
      take_tasks(worker);
      const std::lock_guard<std::mutex> lock(mutex);
      working = working - 1;
      if (working == 0) done.notify_one();
    }
  }

  // Signals are for the threads of the host. Where a thread cannot be had, there are fewer.
  void start_threads(size_t count) {
    if (threads.size() >= count) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      threads.reserve(count);
      while (threads.size() < count) threads.emplace_back([this, worker = int32_t(threads.size()) + 1] { serve(worker); });
    } catch (const std::exception &) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
};

// All pools. The mutex is held over a fork, and neither it nor the list is ever destroyed: threads of the host may end after main() has.
struct Pools {
  std::mutex mutex;
  Pool *first = nullptr;

  static Pools &all() {
    static Pools &pools = *new Pools;
    return pools;
  }

  Pools() {
    pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
                   [] {
                     // What the threads have left behind, a locked mutex perhaps, is left where it is.
                     for (Pool *pool = all().first; pool; pool = pool->next_) pool->threads_ = new Pool::Threads;
                     all().mutex.unlock();
                   });
  }
};

Pool::Pool(int32_t workers) : workers_(workers), threads_(new Threads) {
  Pools &pools = Pools::all();
  const std::lock_guard<std::mutex> lock(pools.mutex);
  next_ = pools.first;
  pools.first = this;
}

Pool::~Pool() {
  {
    Pools &pools = Pools::all();
    const std::lock_guard<std::mutex> lock(pools.mutex);
    Pool **link = &pools.first;
    while (*link != this) link = &(*link)->next_;
    *link = next_;
  }
  {
    const std::lock_guard<std::mutex> lock(threads_->mutex);
    threads_->stop = true;
  }
  threads_->start.notify_all();
  for (std::thread &thread : threads_->threads) thread.join();
  delete threads_;
}

fovea_executor Pool::executor() {
  return {sizeof(fovea_executor), workers_, this,
          [](void *pool, fovea_task_fn task, void *arg, int64_t n) { static_cast<Pool *>(pool)->run(task, arg, n); }};
}

void Pool::run(fovea_task_fn task, void *arg, int64_t n) {
  Threads &t = *threads_;
  const int64_t helpers = std::min<int64_t>(n, workers_) - 1;
  if (helpers <= 0 || t.in_use.test_and_set(std::memory_order_acquire)) {
    for (int64_t i = 0; i < n; ++i) task(arg, i, 0);
    return;
  }
  t.start_threads(size_t(workers_) - 1);
  {
    const std::lock_guard<std::mutex> lock(t.mutex);
    t.task = task, t.arg = arg, t.n = n;
    t.next = 0;
    t.wanted = helpers;
  }
  if (helpers == workers_ - 1)
    t.start.notify_all();
  else
    for (int64_t i = 0; i < helpers; ++i) t.start.notify_one();
  t.take_tasks(0);
  {
    const std::lock_guard<std::mutex> lock(t.mutex);
    t.wanted = 0;
  }
  const auto is_done = [&t] { return t.working == 0; };
  wait_a_moment(is_done);
  {
    std::unique_lock<std::mutex> lock(t.mutex);
    t.done.wait(lock, is_done);
  }
  t.in_use.clear(std::memory_order_release);
}

}  // namespace fovea_python
