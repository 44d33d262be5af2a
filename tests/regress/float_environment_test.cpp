// The caller's floating-point environment: the bits of a result do not depend on it, and every thread finds its own as it was.
#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <cmath>
#include <mutex>
#include <utility>

#include "reference/thread_pool.h"
#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace fovea::testing {
namespace {

uint64_t control() {
#if defined(__x86_64__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  uint64_t fpcr, fpsr;
  __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(fpcr), "=r"(fpsr));
  return fpcr | fpsr << 32;
#else
  return static_cast<uint64_t>(std::fegetround());
#endif
}

void set_control(uint64_t value) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<unsigned>(value));
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(value & 0xffffffff), "r"(value >> 32));
#else
  std::fesetround(static_cast<int>(value));
#endif
}

// Every rounding mode, with and without flushing of subnormals, and with sticky flags raised.
std::vector<uint64_t> environments() {
#if defined(__x86_64__)
  const uint64_t usual = 0x1f80, flush = 0x8040, sticky = 0x3f, rounding = uint64_t{1} << 13;
  std::vector<uint64_t> all;
  for (uint64_t mode = 0; mode < 4; ++mode)
    for (const uint64_t more : {uint64_t{0}, flush, sticky, flush | sticky}) all.push_back(usual | mode * rounding | more);
#elif defined(__aarch64__)
  const uint64_t flush = uint64_t{1} << 24, sticky = uint64_t{0x1f} << 32, rounding = uint64_t{1} << 22;
  std::vector<uint64_t> all;
  for (uint64_t mode = 0; mode < 4; ++mode)
    for (const uint64_t more : {uint64_t{0}, flush, sticky, flush | sticky}) all.push_back(mode * rounding | more);
#else
  std::vector<uint64_t> all = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
#endif
  return all;
}

class FloatEnvironmentTest : public LevelTest {
 protected:
  // Weights and values in the subnormal range, and results that round.
  static void fill(Call &call) {
    call.fill_random(21);
    for (int64_t j = 0; j < call.n.seq_kv; j += 7) call.k_at(0, 0, j, 0) = -90.0f;
    for (int64_t j = 0; j < call.n.seq_kv; j += 5) call.v_at(0, 0, j, 1) = 1e-39f;
  }

  // Everything that shapes the score: biases around the exponent's floor, halves in the subnormal range among them.
  static Mask shape(Call &call) {
    static const float slopes[] = {0.3f, 0.7f}, sinks[] = {-0.1f, -95};
    Mask mask(FOVEA_F16, call.n, "hqk");
    const float numbers[] = {-1e4f, -200, -95, -88, 0, 0x1.8p-16f, 0.1f};
    mask.set_all([&](int64_t, int64_t h, int64_t i, int64_t j) { return numbers[(j * 5 + i * 3 + h) % 7]; });
    call.params.mask = mask.tensor();
    call.params.alibi_slopes = slopes;
    call.params.sinks = sinks;
    call.params.softcap = 3;
    call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
    call.params.score = [](void *, const fovea_score_tile *t) {
      for (int64_t r = 0; r < t->rows; ++r)
        for (int64_t c = 0; c < t->cols; ++c) t->score[r * t->row_stride + c * t->col_stride] *= 0.9f;
    };
    call.params.score_mode = FOVEA_SCORE_MODIFY;
    return mask;  // whose bytes the call points to
  }

  // Subnormals in a mask of floats, and NaN at keys that causal excludes: comparing either is something that flags and traps notice.
  static Mask special_mask(Call &call) {
    fill(call);
    call.causal(FOVEA_ALIGN_TOP_LEFT);
    Mask mask(FOVEA_F32, call.n, "hqk");
    mask.set_all([](int64_t, int64_t, int64_t i, int64_t j) { return j > i && (i + j) % 3 == 0 ? std::nanf("") : 1e-40f; });
    call.params.mask = mask.tensor();
    return mask;
  }
};
FOVEA_TEST_EVERY_LEVEL(FloatEnvironmentTest);

TEST_P(FloatEnvironmentTest, CallerOfEveryEnvironment) {
  const uint64_t before = control();
  for (const int32_t threads : {1, 3}) {
    for (const char *exec : {"omp", "pool"}) {
      const auto context = this->context(threads, exec);
      for (const int64_t queries : {1, 2, 70}) {
        Call plain({1, 2, 1, queries, 1300, 8, 9}), shaped({1, 2, 1, queries, 1300, 8, 9});
        fill(plain);
        fill(shaped);
        const Mask mask = shape(shaped);
        for (Call *each : {&plain, &shaped}) {
          Call &call = *each;
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          const std::vector<float> out = call.out, lse = call.lse, weights = call.weights;
          for (const uint64_t environment : environments()) {
            set_control(environment);
            const fovea_status status = call.run(context.get());
            const uint64_t after = control();
            set_control(before);
            ASSERT_EQ(status, FOVEA_OK);
            EXPECT_EQ(after, environment) << "left changed";
            EXPECT_TRUE(same_bits(call.out, out)) << std::hex << environment;
            EXPECT_TRUE(same_bits(call.lse, lse)) << std::hex << environment;
            EXPECT_TRUE(same_bits(call.weights, weights)) << std::hex << environment;
          }
        }
      }
    }
  }
}

// A mask of many queries is looked through before anything else.
TEST_P(FloatEnvironmentTest, OfACallWithASpecialMask) {
  const uint64_t before = control();
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 8, 16, 70}) {
      Call call({1, 1, 1, queries, 300, 8, 9});
      const Mask mask = special_mask(call);
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      const std::vector<float> out = call.out;
      std::vector<uint64_t> all = environments();
#if defined(__x86_64__)
      for (const uint64_t traps : {0x1f00, 0x1e80, 0}) all.push_back(traps);  // of invalid operations, of subnormals, all of them
#endif
      for (const uint64_t environment : all) {
        set_control(environment);
        const fovea_status status = fovea_forward(context.get(), &call.params, nullptr, 0);
        const uint64_t after = control();
        set_control(before);
        ASSERT_EQ(status, FOVEA_OK);
        EXPECT_EQ(after, environment) << "left changed, " << queries << " queries";
        EXPECT_TRUE(same_bits(call.out, out)) << std::hex << environment;
      }
    }
  }
}

// Around every single task, in whatever thread it runs.
struct Watched {
  fovea_executor inner;
  std::mutex mutex;
  int changed = 0, tasks = 0;
  uint64_t environment;
};

struct WatchedTask {
  Watched *watched;
  fovea_task_fn task;
  void *arg;
};

void run_watched(void *arg, int64_t i, int32_t worker) {
  const WatchedTask &w = *static_cast<const WatchedTask *>(arg);
  const uint64_t own = control();
  set_control(w.watched->environment);
  w.task(w.arg, i, worker);
  const bool same = control() == w.watched->environment;
  set_control(own);
  const std::lock_guard<std::mutex> lock(w.watched->mutex);
  ++w.watched->tasks;
  w.watched->changed += !same;
}

TEST_P(FloatEnvironmentTest, WorkersOfEveryEnvironment) {
  const auto serial = this->context(1, "serial");
  for (const uint64_t environment : environments()) {
    Watched watched;
    watched.environment = environment;
    reference::ThreadPool pool(3);
    watched.inner = pool.executor();
    const fovea_executor executor = {sizeof executor, 3, &watched, [](void *user, fovea_task_fn task, void *arg, int64_t n) {
                                       Watched &w = *static_cast<Watched *>(user);
                                       WatchedTask wrapped = {&w, task, arg};
                                       w.inner.parallel_for(w.inner.user, run_watched, &wrapped, n);
                                     }};
    fovea_options options;
    ASSERT_EQ(fovea_options_init(&options, sizeof options), FOVEA_OK);
    options.isa = GetParam();
    options.executor = &executor;
    fovea_context *context = nullptr;
    ASSERT_EQ(fovea_context_create(&options, &context), FOVEA_OK);
    Call plain({1, 2, 1, 3, 1300, 8, 9}), shaped({1, 2, 1, 3, 1300, 8, 9});
    fill(plain);
    fill(shaped);
    const Mask mask = shape(shaped);
    Call mapped({1, 2, 1, 70, 300, 8, 9});
    const Mask special = special_mask(mapped);
    for (Call *call : {&plain, &shaped, &mapped}) {
      EXPECT_EQ(call->run(serial.get()), FOVEA_OK) << fovea_last_error();
      const std::vector<float> out = call->out;
      EXPECT_EQ(call->run(context), FOVEA_OK) << fovea_last_error();
      EXPECT_TRUE(same_bits(call->out, out)) << std::hex << environment;
    }
    fovea_context_destroy(context);
    EXPECT_GT(watched.tasks, 2);
    EXPECT_EQ(watched.changed, 0) << std::hex << environment;
  }
}

// A score function finds round-to-nearest and subnormals flushed, whatever the caller and the workers have.
TEST_P(FloatEnvironmentTest, OfTheScoreFunction) {
  const uint64_t before = control();
  for (const char *exec : {"omp", "pool"}) {
    const auto context = this->context(3, exec);
    for (const int64_t queries : {1, 2, 70}) {
      for (const uint64_t environment : environments()) {
        std::atomic<int> calls{0}, wrong{0};
        std::pair<std::atomic<int> *, std::atomic<int> *> counts{&calls, &wrong};
        Call call({1, 2, 1, queries, 600, 8, 9});
        call.params.score_user = &counts;
        call.params.score_mode = FOVEA_SCORE_MODIFY;
        call.params.score = [](void *user, const fovea_score_tile *) {
          const auto &[called, bad] = *static_cast<std::pair<std::atomic<int> *, std::atomic<int> *> *>(user);
          volatile float one = 1, little = 0x1.8p-24f, small = 0x1p-126f, half = 0.5f;
          const volatile float up = one + little, down = -one - little, subnormal = small * half;
          ++*called;
          *bad += up != 1 + 0x1p-23f || down != -1 - 0x1p-23f || subnormal != 0;
        };
        set_control(environment);
        const fovea_status status = call.run(context.get());
        set_control(before);
        ASSERT_EQ(status, FOVEA_OK) << fovea_last_error();
        EXPECT_GT(calls, 0);
        EXPECT_EQ(wrong, 0) << std::hex << environment;
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
