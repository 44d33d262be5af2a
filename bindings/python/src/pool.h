// The threads that share the tasks of a call: an executor for the library in place of OpenMP, so that a process in which PyTorch or
// another library brings an OpenMP runtime does not get a second one.
//
// Threads start at the first call that has work for them and wait without using a core between calls. A call never waits for a thread that
// has not yet woken up: who comes late finds nothing to do. While one call has the pool, calls from other threads run on their own
// thread alone; no bit of a result depends on it. A forked child has no threads of its parent's and starts its own.
#pragma once
#include <fovea/fovea.h>

#include <cstdint>

namespace fovea_python {

class Pool {
 public:
  explicit Pool(int32_t workers);  // the calling thread is one of them
  ~Pool();                         // no call is using the pool
  Pool(const Pool &) = delete;
  Pool &operator=(const Pool &) = delete;

  fovea_executor executor();

 private:
  friend struct Pools;
  struct Threads;
  void run(fovea_task_fn task, void *arg, int64_t n);

  const int32_t workers_;
  Threads *threads_;
  Pool *next_ = nullptr;  // in the list of all pools, which a fork goes through
};

}  // namespace fovea_python
