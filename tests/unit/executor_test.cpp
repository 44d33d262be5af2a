// Each executor runs each task once, and lives with the OpenMP of its host, forks, CPU affinity and quotas.
#include "run/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "run/cpu_quota.h"

namespace fovea {
namespace {

// Counts the runs of each task and notes what must not be.
struct Tally {
  explicit Tally(int64_t n, int32_t workers) : runs(size_t(n)), busy(size_t(workers)) {
    for (auto &r : runs) r = 0;
    for (auto &b : busy) b = false;
  }
  std::vector<std::atomic<int>> runs;
  std::vector<std::atomic<bool>> busy;
  std::atomic<int> wrong_workers{0}, shared_workers{0}, other_threads{0};
  std::thread::id caller = std::this_thread::get_id();

  static void task(void *arg, int64_t i, int32_t worker) {
    Tally &t = *static_cast<Tally *>(arg);
    if (std::this_thread::get_id() != t.caller) ++t.other_threads;
    if (worker < 0 || size_t(worker) >= t.busy.size()) {
      ++t.wrong_workers;
      return;
    }
    if (t.busy[size_t(worker)].exchange(true)) ++t.shared_workers;
    ++t.runs[size_t(i)];
    std::this_thread::yield();
    t.busy[size_t(worker)] = false;
  }

  void run(const Executor &e) { e.parallel_for(e.user, task, this, int64_t(runs.size())); }

  bool each_once() const {
    for (const auto &r : runs)
      if (r != 1) return false;
    return wrong_workers == 0 && shared_workers == 0;
  }
};

TEST(Executor, SerialRunsInOrderOnTheCallingThread) {
  std::vector<int64_t> order;
  const Executor e = serial_executor();
  EXPECT_EQ(e.workers, 1);
  e.parallel_for(
      e.user,
      [](void *arg, int64_t i, int32_t worker) {
        EXPECT_EQ(worker, 0);
        static_cast<std::vector<int64_t> *>(arg)->push_back(i);
      },
      &order, 5);
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

TEST(Executor, OpenMpRunsEachTaskOnceOnWorkersOfItsOwn) {
  for (int32_t threads : {1, 2, 3, 7})
    for (int64_t n : {0, 1, 2, 3, 7, 500}) {
      const Executor e = openmp_executor(threads);
      Tally tally(n, e.workers);
      tally.run(e);
      EXPECT_TRUE(tally.each_once()) << threads << " threads, " << n << " tasks";
    }
}

TEST(Executor, OneThreadOrOneTaskStaysOnTheCallingThread) {
  Tally one_thread(100, 1), one_task(1, 7);
  one_thread.run(openmp_executor(1));
  one_task.run(openmp_executor(7));
  EXPECT_EQ(one_thread.other_threads, 0);
  EXPECT_EQ(one_task.other_threads, 0);
}

#ifdef _OPENMP
TEST(Executor, OpenMpUsesThreads) {
  const Executor e = openmp_executor(2);
  EXPECT_EQ(e.workers, 2);
  // The first task waits for the second: only another thread can run that.
  std::atomic<bool> second_ran{false};
  e.parallel_for(
      e.user,
      [](void *arg, int64_t i, int32_t) {
        auto &ran = *static_cast<std::atomic<bool> *>(arg);
        if (i == 1) ran = true;
        while (i == 0 && !ran) std::this_thread::yield();
      },
      &second_ran, 2);
  EXPECT_TRUE(second_ran);
}

TEST(Executor, OpenMpTakesNoMoreThreadsThanTasks) {
  const Executor e = openmp_executor(7);
  std::atomic<int> team{0};
  e.parallel_for(
      e.user, [](void *arg, int64_t, int32_t) { *static_cast<std::atomic<int> *>(arg) = omp_get_num_threads(); }, &team, 3);
  EXPECT_LE(team, 3);
  EXPECT_GE(team, 2);
}

TEST(Executor, OpenMpWorksInsideTheCallersParallelRegion) {
  for (int levels : {1, 2}) {
    const int before = omp_get_max_active_levels();
    omp_set_max_active_levels(levels);
    std::atomic<int> wrong{0};
#pragma omp parallel num_threads(2)
    {
      const Executor e = openmp_executor(3);
      Tally tally(50, 3);
      tally.run(e);
      if (!tally.each_once()) ++wrong;
      if (levels == 1 && tally.other_threads != 0) ++wrong;
    }
    EXPECT_EQ(wrong, 0) << levels << " active levels";
    omp_set_max_active_levels(before);
  }
}

TEST(Executor, OpenMpSettingsOfTheHostStay) {
  const int threads = omp_get_max_threads(), levels = omp_get_max_active_levels(), dynamic = omp_get_dynamic();
  Tally tally(20, 3);
  tally.run(openmp_executor(3));
  EXPECT_EQ(omp_get_max_threads(), threads);
  EXPECT_EQ(omp_get_max_active_levels(), levels);
  EXPECT_EQ(omp_get_dynamic(), dynamic);
}

TEST(Executor, DefaultThreadsFollowTheOpenMpDefault) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  EXPECT_EQ(default_threads(), 1);
  omp_set_num_threads(before);
  EXPECT_LE(default_threads(), before);
}

TEST(Executor, DefaultThreadsRespectAffinity) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  CPU_SET(cpu, &one);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(4);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(default_threads(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(default_threads(), std::min({4, CPU_COUNT(&before), cpu_quota("")}));
  omp_set_num_threads(threads);
}
#endif

TEST(Executor, RunsInAForkedChildAfterUse) {
  const Executor e = openmp_executor(3);
  Tally warm_up(10, e.workers);
  warm_up.run(e);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);  // a hang ends as a signal
    Tally tally(10, e.workers), fresh(10, 3);
    tally.run(e);
    fresh.run(openmp_executor(3));
    const bool on_caller = tally.other_threads == 0 && fresh.other_threads == 0;
    _exit(tally.each_once() && fresh.each_once() && on_caller ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  Tally parent(10, e.workers);
  parent.run(e);
  EXPECT_TRUE(parent.each_once());
}

class CpuQuota : public testing::Test {
 protected:
  CpuQuota() {
    std::string pattern = (std::filesystem::temp_directory_path() / "fovea-quota-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~CpuQuota() override { std::filesystem::remove_all(root_); }

  void write(const std::string &path, const std::string &text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  int32_t quota() const { return cpu_quota(root_.c_str()); }

 private:
  std::string root_;
};

TEST_F(CpuQuota, IsUnlimitedWithoutControlGroups) { EXPECT_EQ(quota(), INT32_MAX); }

TEST_F(CpuQuota, Version2) {
  write("/proc/self/cgroup", "0::/a/b\n");
  write("/sys/fs/cgroup/a/b/cpu.max", "200000 100000\n");
  EXPECT_EQ(quota(), 2);
  write("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota(), 2);
  write("/sys/fs/cgroup/a/b/cpu.max", "5000 100000\n");
  EXPECT_EQ(quota(), 1);
  write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), INT32_MAX);
}

TEST_F(CpuQuota, TightestAncestorCounts) {
  write("/proc/self/cgroup", "0::/a/b\n");
  write("/sys/fs/cgroup/a/b/cpu.max", "800000 100000\n");
  write("/sys/fs/cgroup/a/cpu.max", "300000 100000\n");
  EXPECT_EQ(quota(), 3);
}

TEST_F(CpuQuota, OfAContainerThatSeesItsGroupAsTheMount) {
  write("/sys/fs/cgroup/cpu.max", "400000 100000\n");
  write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(quota(), 4);
  write("/proc/self/cgroup", "0::/docker/0123456789abcdef\n");
  EXPECT_EQ(quota(), 4);
}

TEST_F(CpuQuota, Version1) {
  write("/proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/a\n3:cpuset:/s\n0::/\n");
  write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "250000\n");
  write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 3);
  write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(quota(), INT32_MAX);
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 1);
}

TEST_F(CpuQuota, NonsenseIsNoQuota) {
  write("/proc/self/cgroup", "what\n0::\n:::\n0::/a\n");
  write("/sys/fs/cgroup/a/cpu.max", "100000 0\n");
  EXPECT_EQ(quota(), INT32_MAX);
}

}  // namespace
}  // namespace fovea
