// Living with the caller's OpenMP: calls from inside parallel regions, and no setting of the process changed.
#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

struct Settings {
  int threads = omp_get_max_threads(), levels = omp_get_max_active_levels(), dynamic = omp_get_dynamic(),
      limit = omp_get_thread_limit();
  bool operator==(const Settings &o) const {
    return threads == o.threads && levels == o.levels && dynamic == o.dynamic && limit == o.limit;
  }
};

class OpenMPTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(OpenMPTest);

TEST_P(OpenMPTest, SettingsOfTheProcessAreLeftAlone) {
  const int threads = omp_get_max_threads();
  for (const int set : {1, 2, 5}) {
    omp_set_num_threads(set);
    const Settings before;
    for (const int32_t own : {1, 2, 3}) {
      const auto context = this->context(own);
      EXPECT_EQ(fovea_context_threads(context.get()), own);
      Call call({1, 4, 4, 60, 300, 8, 8});
      ASSERT_EQ(call.run(context.get()), FOVEA_OK);
      EXPECT_TRUE(Settings() == before);
    }
  }
  omp_set_num_threads(threads);
}

TEST_P(OpenMPTest, CallsInsideAParallelRegion) {
  const auto serial = this->context(1, "serial");
  Call expected({1, 4, 2, 40, 700, 16, 16});
  expected.fill_random(23);
  ASSERT_EQ(expected.run(serial.get()), FOVEA_OK);
  const int levels = omp_get_max_active_levels();
  for (const int nesting : {1, 3}) {
    omp_set_max_active_levels(nesting);
    for (const int32_t own : {1, 2, 4}) {
      const auto context = this->context(own);
      std::atomic<int> right{0};
#pragma omp parallel num_threads(2)
      {
        Call call({1, 4, 2, 40, 700, 16, 16});
        call.fill_random(23);
        for (int i = 0; i < 5; ++i)
          if (call.run(context.get()) == FOVEA_OK && same_bits(call.out, expected.out)) ++right;
      }
      EXPECT_EQ(right, 10) << "nesting " << nesting << ", threads " << own;
    }
  }
  omp_set_max_active_levels(levels);
}

TEST(OpenMPDefaultsTest, ThreadsRespectAffinityAndTheOpenMPDefault) {
  const auto default_threads = [] {
    fovea_context *context = nullptr;
    EXPECT_EQ(fovea_context_create(nullptr, &context), FOVEA_OK);
    const int32_t threads = fovea_context_threads(context);
    fovea_context_destroy(context);
    return threads;
  };
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_LE(default_threads(), CPU_COUNT(&before));
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(default_threads(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  EXPECT_EQ(default_threads(), 1);
  omp_set_num_threads(threads);
}

// The threads of OpenMP do not live on in a forked child: it must neither wait for them nor crash.
TEST_P(OpenMPTest, AForkedChildWorks) {
  const auto context = this->context(3);
  Call call({1, 4, 4, 60, 300, 8, 8});
  call.fill_random(24);
  ASSERT_EQ(call.run(context.get()), FOVEA_OK);
  const std::vector<float> out = call.out;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a hang ends here
    const bool right = call.run(context.get()) == FOVEA_OK && same_bits(call.out, out);
    const auto fresh = this->context(2);
    _exit(right && call.run(fresh.get()) == FOVEA_OK && same_bits(call.out, out) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  ASSERT_EQ(call.run(context.get()), FOVEA_OK);
  EXPECT_TRUE(same_bits(call.out, out));
}

// The same where only the host ran OpenMP before the fork: the child makes the first context.
TEST_P(OpenMPTest, AForkedChildOfAHostWithThreads) {
  int threads = 0;
#pragma omp parallel num_threads(2) reduction(+ : threads)
  ++threads;
  ASSERT_GE(threads, 1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a hang ends here
    Call call({1, 4, 4, 60, 300, 8, 8});
    const auto fresh = this->context(2);
    _exit(call.run(fresh.get()) == FOVEA_OK && call.out[0] == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

// Several callers with more threads than CPUs between them end in about the time of the right number of threads.
TEST_P(OpenMPTest, MoreThreadsThanCpus) {
  if (!long_tier()) GTEST_SKIP() << "long tier: a time, which a busy machine may spoil";
  const auto right = this->context(2), many = this->context(16);
  Call call({1, 8, 8, 128, 512, 64, 64});
  call.params.weights.data = nullptr;
  const auto seconds = [&](const fovea_context *context) {
    double best = 1e9;
    for (int i = 0; i < 7; ++i) {
      const auto start = std::chrono::steady_clock::now();
      EXPECT_EQ(call.run(context), FOVEA_OK);
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  };
  const double few_seconds = seconds(right.get());
  // Without affinity to the CPUs there are, reports had factors of 20 to 90; a busy machine alone may cost a factor of some.
  EXPECT_LT(seconds(many.get()), 10 * few_seconds + 0.02);
}

}  // namespace
}  // namespace fovea::testing
