// The LSE is a natural logarithm, exact to rounding, and the same whichever way the output took.
#include <gtest/gtest.h>

#include <cmath>

#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

class LogSumExpTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(LogSumExpTest);

TEST_P(LogSumExpTest, OfEqualScoresIsTheLogOfTheirNumber) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t keys : {1, 2, 3, 65, 1000, 40000}) {
      Call call({1, 2, 2, 3, keys, 4, 2});
      ASSERT_EQ(call.run(context.get()), FOVEA_OK);
      const float expected = float(std::log(double(keys)));
      for (const float lse : call.lse) {
        EXPECT_GE(lse, std::nextafter(expected, -INFINITY)) << keys;
        EXPECT_LE(lse, std::nextafter(expected, INFINITY)) << keys;
      }
      for (const float out : call.out) EXPECT_EQ(out, 1.0f) << keys;
    }
  }
}

TEST_P(LogSumExpTest, OfOneKeyIsItsScore) {
  const auto context = this->context();
  for (const float score : {0.0f, 1.0f, -1.0f, 88.0f, -88.0f, 1e4f, -1e4f, 3e30f, -3e30f}) {
    Call call({1, 1, 1, 1, 1, 1, 1});
    call.q[0] = score;
    call.k[0] = 1;
    ASSERT_EQ(call.run(context.get()), FOVEA_OK);
    EXPECT_NEAR(call.lse[0], score, std::fabs(score) * 0x1p-22);
    EXPECT_EQ(call.out[0], 1.0f);
    EXPECT_EQ(call.weights[0], 1.0f);
  }
}

TEST_P(LogSumExpTest, DependsNeitherOnTheOtherOutputsNorOnTheValues) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    Call call({1, 2, 1, 2, 3000, 16, 9});
    call.fill_random(9);
    ASSERT_EQ(call.run(context.get()), FOVEA_OK);
    const std::vector<float> lse = call.lse;
    call.params.weights.data = nullptr;
    for (float &v : call.v) v = 1e30f;
    ASSERT_EQ(call.run(context.get()), FOVEA_OK);
    EXPECT_TRUE(same_bits(lse, call.lse));
    Call none({1, 2, 1, 2, 3000, 16, 0});
    none.q = call.q;
    none.k = call.k;
    ASSERT_EQ(none.run(context.get()), FOVEA_OK);
    EXPECT_TRUE(same_bits(lse, none.lse));
  }
}

// Two calls over the halves of the keys, merged by their LSE, are the call over all of them.
TEST_P(LogSumExpTest, MergesHalvesOfTheKeys) {
  const auto context = this->context(2);
  for (const int64_t queries : {1, 7, 16}) {
    Call all({1, 1, 1, queries, 600, 32, 5});
    all.fill_random(10);
    ASSERT_EQ(all.run(context.get()), FOVEA_OK);
    const auto half = [&](int64_t first, Call &call) {
      call.q = all.q;
      std::copy_n(&all.k_at(0, 0, first, 0), call.k.size(), call.k.begin());
      std::copy_n(&all.v_at(0, 0, first, 0), call.v.size(), call.v.begin());
      ASSERT_EQ(call.run(context.get()), FOVEA_OK);
    };
    Call a({1, 1, 1, queries, 250, 32, 5}), b({1, 1, 1, queries, 350, 32, 5});
    half(0, a);
    half(250, b);
    for (int64_t i = 0; i < queries; ++i) {
      const double wa = std::exp(double(a.lse[size_t(i)]) - double(all.lse[size_t(i)]));
      const double wb = std::exp(double(b.lse[size_t(i)]) - double(all.lse[size_t(i)]));
      EXPECT_NEAR(wa + wb, 1, 2e-6);
      for (int64_t c = 0; c < 5; ++c)
        EXPECT_NEAR(wa * a.out_at(0, 0, i, c) + wb * b.out_at(0, 0, i, c), all.out_at(0, 0, i, c), 2e-6);
    }
  }
}

}  // namespace
}  // namespace fovea::testing
