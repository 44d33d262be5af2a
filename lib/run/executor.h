// Who runs the tasks of a call: the calling thread, OpenMP, or the caller's own parallel_for.
#pragma once
#include <cstdint>

namespace fovea {

using TaskFunction = void (*)(void *arg, int64_t i, int32_t worker);

struct Executor {
  int32_t workers;           // >= 1
  int64_t worth_waking_for;  // multiply-adds: a call with fewer runs on the calling thread
  void *user;
  void (*parallel_for)(void *user, TaskFunction task, void *arg, int64_t n);
};

// Runs the tasks in order on the calling thread.
Executor serial_executor();

// OpenMP with so many threads. Serial in a child forked from a process of several threads, where libgomp could hang, and for one thread. Where
// OpenMP is not built in, the serial executor.
Executor openmp_executor(int32_t threads);

// min(the OpenMP default, CPU affinity, CPU quota of the control group); 1 where OpenMP is not built in.
int32_t default_threads();

}  // namespace fovea
