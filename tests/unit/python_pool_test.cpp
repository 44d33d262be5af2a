// The thread pool of the Python package, which has nothing of Python in it. The suite's name is for the thread sanitizer; forks are tested from
// Python, since emulators do not survive those of processes with threads.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "pool.h"

namespace {

using fovea_python::Pool;

constexpr int32_t kWorkers = 4;

// What one parallel_for() did: how often each task ran, whether a worker had two of them at a time, and who took part.
struct Call {
  std::vector<int> runs;
  std::atomic<bool> helped{false};
  std::atomic<bool> busy[kWorkers] = {};
  std::atomic<bool> worker_shared{false};

  bool run(const fovea_executor &executor, int64_t n) {
    runs.assign(size_t(n), 0);
    executor.parallel_for(
        executor.user,
        [](void *arg, int64_t i, int32_t worker) {
          Call &call = *static_cast<Call *>(arg);
          if (worker < 0 || worker >= kWorkers || call.busy[worker].exchange(true)) call.worker_shared = true;
          if (worker > 0) call.helped = true;
          for (volatile int turns = 0; turns < 100; turns = turns + 1) {
          }
          ++call.runs[size_t(i)];
          call.busy[worker] = false;
        },
        this, n);
    for (const int count : runs)
      if (count != 1) return false;
    return !worker_shared;
  }
};

bool many_calls(const fovea_executor &executor, int calls) {
  for (int i = 0; i < calls; ++i) {
    Call call;
    if (!call.run(executor, 1 + i * 7 % 60)) return false;
  }
  return true;
}

TEST(PythonPoolRace, EveryTaskRunsOnceAndOtherThreadsHelp) {
  Pool pool(kWorkers);
  bool helped = false;
  for (int i = 0; i < 2000; ++i) {
    Call call;
    EXPECT_TRUE(call.run(pool.executor(), 200));
    helped |= call.helped;
  }
  EXPECT_TRUE(helped);
}

TEST(PythonPoolRace, SeveralCallersAtATime) {
  Pool pool(kWorkers);
  std::atomic<int> right{0};
  std::thread callers[4];
  for (std::thread &caller : callers) caller = std::thread([&] { right += many_calls(pool.executor(), 5000); });
  for (std::thread &caller : callers) caller.join();
  EXPECT_EQ(right, 4);
}

TEST(PythonPoolRace, PoolsComeAndGo) {
  for (int i = 0; i < 200; ++i) {
    Pool pool(kWorkers), unused(kWorkers);
    EXPECT_TRUE(many_calls(pool.executor(), 3));
  }
}

}  // namespace
