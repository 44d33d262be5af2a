// Callers in many threads at once, each with its own shapes, share nothing: every result is that of a lone call, bit for bit.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/call.h"
#include "support/levels.h"

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

}  // namespace
}  // namespace fovea::testing
