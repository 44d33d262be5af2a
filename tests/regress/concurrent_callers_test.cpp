// Callers in many threads at once, each with its own shapes, share nothing: every result is that of a lone call, bit for bit.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

class ConcurrentCallersRace : public LevelTest {
 protected:
  static constexpr int kCallers = 8;

  static void expect_same_as_alone(const std::vector<const fovea_context *> &contexts, int calls) {
    std::atomic<int> wrong{0};
    const auto caller = [&](int t) {
      // Prefill and decode, grouped heads, few and many keys.
      const Sizes shapes[] = {
          {1, 2, 2, 33, 40, 16, 16}, {1, 4, 1, 1, 600, 24, 8}, {2, 3, 3, 5, 7, 3, 65}, {1, 1, 1, 2, 1500, 8, 33}};
      Call call(shapes[t % 4]);
      call.fill_random(uint32_t(t));
      call.causal(t % 2 ? FOVEA_ALIGN_BOTTOM_RIGHT : FOVEA_ALIGN_TOP_LEFT);
      Mask mask(kMaskDtypes[t % 4], call.n, "qk");
      mask.permit_where([&](int64_t, int64_t, int64_t i, int64_t j) { return (i + j + t) % 5 != 0; });
      if (t >= kCallers / 2) call.params.mask = mask.tensor();
      const fovea_context *context = contexts[size_t(t) % contexts.size()];
      if (call.run(contexts[0]) != FOVEA_OK) ++wrong;
      const std::vector<float> out = call.out, lse = call.lse, weights = call.weights;
      for (int i = 0; i < calls; ++i)
        if (call.run(context) != FOVEA_OK || !same_bits(call.out, out) || !same_bits(call.lse, lse) ||
            !same_bits(call.weights, weights))
          ++wrong;
    };
    std::vector<std::thread> callers;
    for (int t = 0; t < kCallers; ++t) callers.emplace_back(caller, t);
    for (std::thread &t : callers) t.join();
    EXPECT_EQ(wrong, 0);
  }
};
FOVEA_TEST_EVERY_LEVEL(ConcurrentCallersRace);

TEST_P(ConcurrentCallersRace, OneSerialContext) {
  const auto context = this->context(1, "serial");
  expect_same_as_alone({context.get()}, 1000);
}

TEST_P(ConcurrentCallersRace, OnePoolForAll) {
  const auto serial = this->context(1, "serial"), pool = this->context(3, "pool");
  expect_same_as_alone({serial.get(), pool.get()}, 200);
}

TEST_P(ConcurrentCallersRace, ContextsComeAndGo) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < kCallers; ++t)
    callers.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        fovea_options options;
        fovea_options_init(&options, sizeof options);
        options.isa = GetParam();
        options.num_threads = 1;
        fovea_context *context = nullptr;
        if (fovea_context_create(&options, &context) != FOVEA_OK) {
          ++wrong;
          continue;
        }
        Call call({1, 1, 1, 3, 20, 4, 4});
        if (call.run(context) != FOVEA_OK || call.out[0] != 1.0f) ++wrong;
        call.params.scale = __builtin_nanf("");  // errors are each thread's own
        if (call.run(context) != FOVEA_ERR_INVALID_ARGUMENT) ++wrong;
        const std::string text = fovea_last_error();
        options.isa = -1 - t;
        fovea_context *none = nullptr;
        if (fovea_context_create(&options, &none) == FOVEA_OK || none) ++wrong;
        if (text.find("scale") == std::string::npos) ++wrong;
        fovea_context_destroy(context);
      }
    });
  for (std::thread &t : callers) t.join();
  EXPECT_EQ(wrong, 0);
}

// One call whose tasks share rows and blocks between workers: what the sanitizer has to look at inside the library.
TEST_P(ConcurrentCallersRace, WorkersOfOneCall) {
  const auto serial = this->context(1, "serial"), pool = this->context(7, "pool");
  for (const Sizes &n : {Sizes{1, 1, 1, 1, 9000, 16, 16}, Sizes{1, 4, 1, 3, 2000, 8, 24}, Sizes{2, 2, 2, 200, 300, 16, 8}}) {
    Call call(n);
    call.fill_random(19);
    call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
    ASSERT_EQ(call.run(serial.get()), FOVEA_OK);
    const std::vector<float> out = call.out, weights = call.weights;
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(call.run(pool.get()), FOVEA_OK);
      EXPECT_TRUE(same_bits(call.out, out) && same_bits(call.weights, weights));
    }
  }
}

// The same where workers first sum up the mask for one another, share lengths and offsets, and call the caller's function.
TEST_P(ConcurrentCallersRace, WorkersOfOneCallThatShapesItsScores) {
  const auto serial = this->context(1, "serial"), pool = this->context(7, "pool");
  const int32_t lengths[] = {300, 31}, offsets[] = {0, 170, 300};
  const float sinks[] = {0.5f, -1};
  for (const bool packed : {false, true}) {
    for (const fovea_dtype dtype : kMaskDtypes) {
      Call call({packed ? 1 : 2, 2, 1, 300, 300, 8, 8});
      call.fill_random(20);
      call.params.batch = 2;
      call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
      Mask mask(dtype, {2, 2, 1, 300, 300, 8, 8});
      mask.permit_where([](int64_t b, int64_t h, int64_t i, int64_t j) { return (b + h + i + j) % 3 && (i / 64 + j / 256) % 2; });
      call.params.mask = mask.tensor();
      call.params.sinks = sinks;
      call.params.score = [](void *, const fovea_score_tile *t) {
        for (int64_t r = 0; r < t->rows; ++r)
          for (int64_t c = 0; c < t->cols; ++c) t->score[r * t->row_stride + c * t->col_stride] += float((r + t->row0) % 3);
      };
      call.params.score_mode = FOVEA_SCORE_MODIFY;
      if (packed) {
        call.params.cu_seqlens_q = call.params.cu_seqlens_kv = offsets;
        call.params.weights.data = nullptr;
      } else {
        call.params.seqlens_q = call.params.seqlens_kv = lengths;
      }
      ASSERT_EQ(call.run(serial.get()), FOVEA_OK) << fovea_last_error();
      const std::vector<float> out = call.out, lse = call.lse, weights = call.weights;
      for (int i = 0; i < 10; ++i) {
        ASSERT_EQ(call.run(pool.get()), FOVEA_OK);
        EXPECT_TRUE(same_bits(call.out, out) && same_bits(call.lse, lse) && same_bits(call.weights, weights));
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
