#include "run/executor.h"

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>

#include "run/cpu_quota.h"
#endif

namespace fovea {
namespace {

void run_serial(void *, TaskFunction task, void *arg, int64_t n) {
  for (int64_t i = 0; i < n; ++i) task(arg, i, 0);
}

#ifdef _OPENMP
// The threads of libgomp do not survive a fork, and the child would wait for them for ever, whoever started them. A process that had
// but one thread when it forked had none of them: its child may use OpenMP.
int forked, threads_at_fork;

void count_threads() {
  struct stat tasks;
  threads_at_fork = stat("/proc/self/task", &tasks) == 0 ? int(tasks.st_nlink) - 2 : 2;  // unknown: as if there were more
}
void note_fork() {
  if (threads_at_fork > 1) __atomic_store_n(&forked, 1, __ATOMIC_RELAXED);
}

// When the library is loaded, since the host may use OpenMP and fork before it creates a context.
__attribute__((constructor)) void watch_forks() { pthread_atfork(count_threads, nullptr, note_fork); }

// Some 10 microseconds of one core. To wake a thread and wait for it takes one or two where it spins on an idle core, and thousands where
// it has to share the core with another.
constexpr int64_t kWorthWakingFor = 1 << 19;

// user is the number of threads itself: nothing to keep alive.
void run_openmp(void *user, TaskFunction task, void *arg, int64_t n) {
  const int64_t most = int64_t(intptr_t(user));
  const int threads = int(n < most ? n : most);
  if (threads <= 1 || __atomic_load_n(&forked, __ATOMIC_RELAXED)) return run_serial(nullptr, task, arg, n);
  int64_t next = 0;
#pragma omp parallel num_threads(threads) default(none) shared(next, task, arg, n)
  {
    const int32_t worker = omp_get_thread_num();
    for (int64_t i; (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < n;) task(arg, i, worker);
  }
}

// INT32_MAX where the OS does not say.
int32_t affinity_cpus() {
#ifdef __linux__
  cpu_set_t set[8];  // of 1024 CPUs each: as many as Linux can be built for, whatever the width of its masks
  if (sched_getaffinity(0, sizeof set, set) == 0) return CPU_COUNT_S(sizeof set, set);
#endif
  return INT32_MAX;
}
#endif

}  // namespace

Executor serial_executor() { return {1, 0, nullptr, run_serial}; }

#ifdef _OPENMP
Executor openmp_executor(int32_t threads) {
  if (threads <= 1) return serial_executor();
  return {threads, kWorthWakingFor, reinterpret_cast<void *>(intptr_t(threads)), run_openmp};
}

int32_t default_threads() {
  int32_t threads = omp_get_max_threads();
  const int32_t affinity = affinity_cpus(), quota = cpu_quota("");
  if (affinity < threads) threads = affinity;
  if (quota < threads) threads = quota;
  return threads > 1 ? threads : 1;
}
#else
Executor openmp_executor(int32_t) { return serial_executor(); }

int32_t default_threads() { return 1; }
#endif

}  // namespace fovea
