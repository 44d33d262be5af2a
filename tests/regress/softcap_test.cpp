// softcap c > 0 makes a score c * tanh(score / c), before anything is added to it and before keys are excluded; 0 is off.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <functional>
#include <limits>

#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SoftcapTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(SoftcapTest);

// Two keys with scores of 0 and values 1 and 1000; the second is excluded. A cap after the exclusion would let it in as -cap: 269.67.
TEST_P(SoftcapTest, LetsNoExcludedKeyIn) {
  for (const int64_t queries : {1, 3, 50}) {
    const auto context = this->context(2);
    const auto expect_first = [&](const char *how, const std::function<void(Call &)> &exclude) {
      Call call({1, 1, 1, queries, 2, 1, 1});
      call.v_at(0, 0, 1, 0) = 1000;
      call.params.softcap = 1;
      exclude(call);
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      EXPECT_EQ(call.out_at(0, 0, 0, 0), 1.0f) << how;
      EXPECT_EQ(call.lse_at(0, 0, 0), 0.0f) << how;
      EXPECT_EQ(call.weight_at(0, 0, 0, 1), 0.0f) << how;
    };
    for (const fovea_dtype dtype : kMaskDtypes) {
      Mask mask(dtype, {1, 1, 1, queries, 2, 1, 1}, "k");
      mask.permit(0, 0, 0, 1, false);
      expect_first("mask", [&](Call &call) { call.params.mask = mask.tensor(); });
    }
    expect_first("causal", [](Call &call) { call.causal(FOVEA_ALIGN_TOP_LEFT); });
    expect_first("window", [](Call &call) {
      call.params.window_right = 0;
      call.params.align = FOVEA_ALIGN_TOP_LEFT;
    });
    const int32_t one = 1;
    expect_first("lengths", [&](Call &call) { call.params.seqlens_kv = &one; });
  }
}

// Scores of 0, biases of 0 and 5, values 0 and 1: a bias that were capped would give 0.731.
TEST_P(SoftcapTest, CapsNoBias) {
  const auto context = this->context();
  const double sigmoid5 = 1 / (1 + std::exp(-5.0));
  for (const int64_t queries : {1, 3, 50}) {
    for (const fovea_dtype dtype : kAddedDtypes) {
      Call call({1, 1, 1, queries, 2, 1, 1});
      call.v_at(0, 0, 0, 0) = 0;
      call.params.softcap = 1;
      Mask mask(dtype, call.n, "k");
      mask.set(0, 0, 0, 1, 5);
      call.params.mask = mask.tensor();
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (const float out : call.out) EXPECT_NEAR(out, sigmoid5, 2e-6) << "dtype " << dtype;
    }
    Call call({1, 1, 1, queries, 2, 1, 1});
    call.v_at(0, 0, 0, 0) = 0;
    call.params.softcap = 1;
    const float slope = 5;  // at top-left, query 0 is 0 and 1 keys away from the two
    call.params.alibi_slopes = &slope;
    call.params.align = FOVEA_ALIGN_TOP_LEFT;
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    EXPECT_NEAR(call.out_at(0, 0, 0, 0), 1 - sigmoid5, 2e-6);
  }
}

// The scale is applied before the cap: scores of 3 and -1 after a scale of 0.5, cap 2.
TEST_P(SoftcapTest, OfScaledScores) {
  const auto context = this->context();
  const double high = 2 * std::tanh(1.5), low = 2 * std::tanh(-0.5);
  for (const int64_t queries : {1, 50}) {
    Call call({1, 1, 1, queries, 2, 1, 1});
    for (float &q : call.q) q = 2;
    call.k = {3, -1};
    call.v = {1, 0};
    call.params.scale = 0.5f;
    call.params.softcap = 2;
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    for (const float out : call.out) EXPECT_NEAR(out, 1 / (1 + std::exp(low - high)), 2e-6);
    for (const float lse : call.lse) EXPECT_NEAR(lse, high + std::log1p(std::exp(low - high)), 4e-6);
  }
}

TEST_P(SoftcapTest, OfDifferentSizes) {
  for (const int32_t threads : {1, 2, 3, 7}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 3, 50}) {
      for (const int64_t keys : {7, 8, 9, 255, 257, 1300}) {
        std::vector<float> outs[4];
        const float caps[] = {0, 5, 50, 1e4f};
        for (size_t c = 0; c < 4; ++c) {
          Call call({1, 2, 1, queries, keys, 16, 9});
          call.fill_random(81);
          for (float &q : call.q) q *= 20;
          call.params.softcap = caps[c];
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          expect_within_bound(call, std::to_string(queries) + "x" + std::to_string(keys) + " cap " + std::to_string(caps[c]));
          outs[c] = call.out;
        }
        double apart = 0, near = 0;
        for (size_t i = 0; i < outs[0].size(); ++i) {
          apart = std::max(apart, std::fabs(double(outs[1][i]) - double(outs[2][i])));
          near = std::max(near, std::fabs(double(outs[0][i]) - double(outs[3][i])));
        }
        EXPECT_GT(apart, 0.01) << "a cap of 5 and one of 50";
        EXPECT_LT(near, 1e-2) << "no cap and one far beyond the scores";
      }
    }
  }
}

TEST_P(SoftcapTest, OfHugeScores) {
  for (const int64_t queries : {1, 50}) {
    const auto context = this->context();
    for (const float size : {1e4f, 1e30f}) {
      for (const float cap : {1.0f, 50.0f}) {
        Call call({1, 1, 1, queries, 3, 1, 1});
        for (float &q : call.q) q = 1;
        call.k = {size, -size, 0};
        call.v = {1, 0, 0};
        call.params.softcap = cap;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        const double sum = 1 + std::exp(-double(cap)) + std::exp(-2 * double(cap));
        for (const float out : call.out) EXPECT_NEAR(out, 1 / sum, 2e-6 * (1 + double(cap))) << size << " cap " << cap;
        for (const float lse : call.lse) EXPECT_NEAR(lse, double(cap) + std::log(sum), 2e-6 * (1 + double(cap)));
        for (int64_t i = 0; i < queries; ++i)
          EXPECT_NEAR(call.weight_at(0, 0, i, 2) / call.weight_at(0, 0, i, 0), std::exp(-double(cap)),
                      1e-4 * std::exp(-double(cap)));
      }
    }
  }
}

// tanh of an infinite score is 1 or -1; of NaN it is NaN, in that row only.
TEST_P(SoftcapTest, OfScoresThatAreNotFinite) {
  const auto context = this->context();
  for (const int64_t queries : {1, 2, 50}) {
    for (const float infinity : {kInfinity, -kInfinity}) {
      Call call({1, 1, 1, queries, 2, 1, 1});
      for (float &q : call.q) q = 1;
      call.k = {infinity, 0};
      call.v = {1, 0};
      call.params.softcap = 3;
      if (queries > 1) call.q[1] = std::nanf("");
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (int64_t i = 0; i < queries; ++i) {
        if (i == 1)
          EXPECT_TRUE(std::isnan(call.out[1]) && std::isnan(call.lse[1])) << infinity;
        else
          EXPECT_NEAR(call.out_at(0, 0, i, 0), 1 / (1 + std::exp(infinity > 0 ? -3.0 : 3.0)), 4e-6) << infinity << " row " << i;
      }
    }
  }
}

// Any cap leaves a score of 0 alone, also where its reciprocal or its multiple leave the range of float.
TEST_P(SoftcapTest, OfZeroIsZero) {
  const auto context = this->context();
  for (const float cap : {FLT_MIN, 1e-37f, 1e-3f, 1.0f, 1e3f, 1e30f, FLT_MAX}) {
    for (const int64_t queries : {1, 50}) {
      Call call({1, 1, 1, queries, 300, 2, 3});
      call.params.softcap = cap;
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (const float out : call.out) ASSERT_EQ(out, 1.0f) << "cap " << cap;
      for (const float lse : call.lse) ASSERT_NEAR(lse, std::log(300.0), 1e-6) << "cap " << cap;
    }
  }
}

// A cap so large that no score comes near it changes nothing but roundings.
TEST_P(SoftcapTest, FarBeyondTheScoresIsNone) {
  const auto context = this->context();
  for (const int64_t queries : {1, 50}) {
    Call none({1, 1, 1, queries, 300, 8, 9});
    none.fill_random(82);
    ASSERT_EQ(none.run(context.get()), FOVEA_OK);
    for (const float cap : {300.0f, 1e3f, 1e5f, 1e30f}) {
      Call call({1, 1, 1, queries, 300, 8, 9});
      call.fill_random(82);
      call.params.softcap = cap;
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      // What tanh(x) leaves out is x^3 / 3; scores are below 3. A tanh exact to a few units of the cap would be lost at 1e30.
      const double tolerance = 3 * 9 / (3 * double(cap) * double(cap)) + 4e-6;
      for (size_t i = 0; i < call.out.size(); ++i) ASSERT_NEAR(call.out[i], none.out[i], 4 * tolerance) << "cap " << cap;
    }
  }
}

}  // namespace
}  // namespace fovea::testing
