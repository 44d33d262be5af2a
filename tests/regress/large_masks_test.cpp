// Large finite numbers in an additive mask, and those that are not finite: a large negative number makes a key weigh nothing beside others
// but leaves it in the set; -infinity excludes it; NaN and +infinity at a permitted key show in their row and in no other.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>

#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::nanf("");
constexpr float kLargestHalf = 65504, kLargestBfloat16 = 0x1.fep127f;

float lowest(fovea_dtype dtype) {
  return dtype == FOVEA_F16 ? -kLargestHalf : dtype == FOVEA_BF16 ? -kLargestBfloat16 : -FLT_MAX;
}

class LargeMasksTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(LargeMasksTest);

// The boolean form of the same mask gives the same to rounding; the masked keys weigh exactly 0.
void expect_like_boolean(const fovea_context *context, const Sizes &n, fovea_dtype dtype, int64_t masked, float gain) {
  Call added(n), boolean(n);
  added.fill_random(51);
  boolean.fill_random(51);
  for (Call *call : {&added, &boolean})
    for (float &q : call->q) q *= gain;
  Mask numbers(dtype, n, "bk"), truths(FOVEA_BOOL, n, "bk");
  numbers.set_all([&](int64_t, int64_t, int64_t, int64_t j) { return j < masked ? lowest(dtype) : 0.0f; });
  truths.permit_where([&](int64_t, int64_t, int64_t, int64_t j) { return j >= masked; });
  added.params.mask = numbers.tensor();
  boolean.params.mask = truths.tensor();
  ASSERT_EQ(added.run(context), FOVEA_OK) << fovea_last_error();
  ASSERT_EQ(boolean.run(context), FOVEA_OK) << fovea_last_error();
  for (size_t i = 0; i < added.out.size(); ++i) ASSERT_NEAR(added.out[i], boolean.out[i], 2e-6) << "dtype " << dtype << " " << i;
  for (size_t i = 0; i < added.lse.size(); ++i)
    ASSERT_NEAR(added.lse[i], boolean.lse[i], 2e-6 * (1 + std::fabs(boolean.lse[i]))) << "dtype " << dtype << " " << i;
  for (size_t i = 0; i < added.weights.size(); ++i) {
    if (int64_t(i) % n.seq_kv >= masked) continue;
    ASSERT_EQ(added.weights[i], 0.0f) << "dtype " << dtype << " " << i;
  }
}

TEST_P(LargeMasksTest, LowestNumberOnLeadingKeys) {
  const auto context = this->context(2);
  const Sizes n = long_tier() ? Sizes{32, 12, 12, 441, 441, 64, 64} : Sizes{2, 2, 2, 441, 441, 64, 64};
  for (const fovea_dtype dtype : kAddedDtypes) expect_like_boolean(context.get(), n, dtype, 128, 1);
}

TEST_P(LargeMasksTest, LowestNumberBeforeScoresOfAnySize) {
  for (const int32_t threads : {1, 2, 3, 7}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 3, 50}) {
      for (const fovea_dtype dtype : kAddedDtypes) {
        expect_like_boolean(context.get(), {1, 2, 1, queries, 200, 16, 9}, dtype, 100, 40);  // scores within 40
        expect_like_boolean(context.get(), {1, 2, 1, queries, 1300, 16, 9}, dtype, 1290, 40);
      }
    }
  }
}

// Rows of nothing but the lowest number are not empty: every key weighs the same, since what a score adds is lost.
TEST_P(LargeMasksTest, RowsOfTheLowestNumberAreTheMean) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 50}) {
      for (const int64_t keys : {1, 8, 64, 512}) {
        for (const fovea_dtype dtype : {FOVEA_F32, FOVEA_BF16}) {
          Call call({1, 1, 1, queries, keys, 8, 9});
          call.fill_random(52);
          Mask mask(dtype, call.n, "q");
          mask.set_all([&](int64_t, int64_t, int64_t i, int64_t) { return i % 2 ? 0.0f : lowest(dtype); });
          for (int64_t j = 0; j < keys; ++j) call.v_at(0, 0, j, 0) = 1, call.v_at(0, 0, j, 1) = float(j);
          call.params.mask = mask.tensor();
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          for (int64_t i = 0; i < queries; i += 2) {
            ASSERT_EQ(call.out_at(0, 0, i, 0), 1.0f) << keys << " keys, dtype " << dtype << " row " << i;
            ASSERT_EQ(call.out_at(0, 0, i, 1), float(keys - 1) / 2) << keys << " keys, dtype " << dtype << " row " << i;
            for (int64_t j = 0; j < keys; ++j) ASSERT_EQ(call.weight_at(0, 0, i, j), 1 / float(keys));
            ASSERT_TRUE(std::isfinite(call.lse_at(0, 0, i)) && call.lse_at(0, 0, i) < -1e38f) << call.lse_at(0, 0, i);
          }
        }
      }
    }
  }
}

// A score that is negative itself, and ALiBi, must not carry the lowest number over to -infinity.
TEST_P(LargeMasksTest, LowestNumberAndLargeNegativeScores) {
  const auto context = this->context(2);
  for (const int64_t queries : {1, 50}) {
    for (const bool softcap : {false, true}) {
      Call call({1, 1, 1, queries, 64, 1, 3});
      for (float &q : call.q) q = -1e15f;
      for (float &k : call.k) k = 1e18f;
      const float slope = 1e34f;
      call.params.alibi_slopes = &slope;
      call.params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
      call.params.softcap = softcap ? 1e33f : 0.0f;
      Mask mask(FOVEA_F32, call.n, "k");
      mask.set_all([](int64_t, int64_t, int64_t, int64_t) { return -FLT_MAX; });
      call.params.mask = mask.tensor();
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (const float out : call.out) EXPECT_EQ(out, 1.0f) << "softcap " << softcap;
      for (const float lse : call.lse) EXPECT_TRUE(std::isfinite(lse)) << "softcap " << softcap;
    }
  }
}

// Nor large negative scores and steep slopes of a size that the lowest number has no room for: what is permitted stays permitted.
TEST_P(LargeMasksTest, LowestNumberBesideScoresAndSlopesNearIt) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 3, 20}) {
      for (const int64_t keys : {3, 300}) {
        Call scores({1, 1, 1, queries, keys, 1, 1});
        for (float &q : scores.q) q = 1e19f;
        for (float &k : scores.k) k = -2e18f;
        scores.params.scale = 1;
        for (int64_t j = 0; j < keys; ++j) scores.v_at(0, 0, j, 0) = j % 2 ? 3 : 1;
        if (keys % 2) scores.v_at(0, 0, keys - 1, 0) = 2;
        Mask lowest(FOVEA_F32, scores.n, "k");
        lowest.set_all([](int64_t, int64_t, int64_t, int64_t) { return -FLT_MAX; });
        scores.params.mask = lowest.tensor();
        ASSERT_EQ(scores.run(context.get()), FOVEA_OK) << fovea_last_error();
        for (const float out : scores.out) ASSERT_EQ(out, 2.0f) << queries << "x" << keys;
        for (const float lse : scores.lse) ASSERT_TRUE(std::isfinite(lse)) << queries << "x" << keys << " " << lse;

        Call sloped({1, 1, 1, queries, keys, 1, 1});
        const float slope = 3e37f;
        sloped.params.alibi_slopes = &slope;
        sloped.params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
        for (int64_t j = 0; j < keys; ++j) sloped.v_at(0, 0, j, 0) = j == keys - 1 ? 7 : 5;
        Mask low(FOVEA_F32, sloped.n, "k");
        low.set_all([&](int64_t, int64_t, int64_t, int64_t j) { return j == keys - 1 ? -kInfinity : -3e38f; });
        sloped.params.mask = low.tensor();
        ASSERT_EQ(sloped.run(context.get()), FOVEA_OK) << fovea_last_error();
        for (const float out : sloped.out) ASSERT_EQ(out, 5.0f) << queries << "x" << keys;
        for (const float lse : sloped.lse) ASSERT_TRUE(std::isfinite(lse)) << queries << "x" << keys << " " << lse;
      }
    }
  }
}

// From nothing to the lowest number, and from there further than the largest: the rise is no number, the row is one all the same.
TEST_P(LargeMasksTest, RisesBeyondTheLargestNumber) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 8, 20}) {
      for (const int64_t run : {8, 256}) {  // a tile of keys, a block of them
        Call call({1, 1, 1, queries, 3 * run, 4, 4});
        Mask mask(FOVEA_F32, call.n, "k");
        mask.set_all([&](int64_t, int64_t, int64_t, int64_t j) { return j < run ? -kInfinity : j < 2 * run ? -FLT_MAX : 3e37f; });
        call.params.mask = mask.tensor();
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        for (const float out : call.out) ASSERT_EQ(out, 1.0f) << queries << " queries, runs of " << run;
        for (const float lse : call.lse) ASSERT_NEAR(lse / 3e37f, 1, 1e-6) << queries << " queries, runs of " << run;
        for (int64_t i = 0; i < queries; ++i)
          for (int64_t j = 0; j < 3 * run; ++j)
            ASSERT_EQ(call.weight_at(0, 0, i, j), j < 2 * run ? 0 : 1 / float(run)) << queries << " queries, key " << j;
        expect_within_bound(call, std::to_string(queries) + " queries, runs of " + std::to_string(run));
      }
    }
  }
}

// Two planes of large numbers whose sum, made by the caller in 16 bits, is -infinity: that excludes.
TEST_P(LargeMasksTest, SumOfTwoPlanesThatIsMinusInfinity) {
  const auto context = this->context(2);
  for (const int64_t queries : {1, 50}) {
    Call call({1, 1, 1, queries, 300, 8, 9}), boolean({1, 1, 1, queries, 300, 8, 9});
    call.fill_random(53);
    boolean.fill_random(53);
    const auto masked = [](int64_t i, int64_t j) { return i == 0 || j % 2 == 0; };
    Mask numbers(FOVEA_BF16, call.n, "qk"), truths(FOVEA_BOOL, call.n, "qk");
    numbers.set_all([&](int64_t, int64_t, int64_t i, int64_t j) {
      const float plane = masked(i, j) ? -3.39e38f : 0.0f;
      return plane + plane;
    });
    truths.permit_where([&](int64_t, int64_t, int64_t i, int64_t j) { return !masked(i, j); });
    call.params.mask = numbers.tensor();
    boolean.params.mask = truths.tensor();
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    ASSERT_EQ(boolean.run(context.get()), FOVEA_OK) << fovea_last_error();
    expect_empty(call, {0, 0, 0});
    for (int64_t i = 0; i < queries; ++i) EXPECT_TRUE(same_row(call, boolean, {0, 0, i})) << i;
  }
}

// Where the exponential leaves the normal range, and far below it.
TEST_P(LargeMasksTest, NumbersAroundTheExponentsFloor) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 3, 50}) {
      for (const fovea_dtype dtype : kAddedDtypes) {
        Call call({1, 2, 1, queries, 700, 16, 9});
        call.fill_random(54);
        Mask mask(dtype, call.n, "hqk");
        const float numbers[] = {-1e4f, -200, -95, -88, -104, -87.25f, 0};
        mask.set_all([&](int64_t, int64_t h, int64_t i, int64_t j) { return numbers[(j * 5 + i * 3 + h) % 7]; });
        call.params.mask = mask.tensor();
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        expect_within_bound(call, std::to_string(queries) + " queries, dtype " + std::to_string(dtype));
        // Rows of one of these numbers alone are the row without a mask, shifted.
        for (const float number : {-1e4f, -200.0f, -95.0f, -88.0f}) {
          mask.set_all([&](int64_t, int64_t, int64_t, int64_t) { return number; });
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          expect_within_bound(call, std::to_string(number) + " everywhere, dtype " + std::to_string(dtype));
        }
      }
    }
  }
}

TEST_P(LargeMasksTest, NaNAndInfinityShowInTheirRowOnly) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {2, 50}) {
      for (const int64_t keys : {9, 300, 1000}) {
        for (const fovea_dtype dtype : kAddedDtypes) {
          for (const float bad : {kNaN, kInfinity}) {
            Call call({1, 2, 1, queries, keys, 8, 9}), clean({1, 2, 1, queries, keys, 8, 9});
            call.fill_random(55);
            clean.fill_random(55);
            Mask mask(dtype, call.n, "hqk"), zeros(dtype, call.n, "hqk");
            for (int64_t i = 1; i < queries; i += 3) mask.set(0, 1, i, i * 7 % keys, bad);
            call.params.mask = mask.tensor();
            clean.params.mask = zeros.tensor();
            ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
            ASSERT_EQ(clean.run(context.get()), FOVEA_OK) << fovea_last_error();
            for (int64_t h = 0; h < 2; ++h)
              for (int64_t i = 0; i < queries; ++i) {
                if (h == 1 && i % 3 == 1) {
                  for (int64_t c = 0; c < 9; ++c) ASSERT_TRUE(std::isnan(call.out_at(0, h, i, c))) << bad << " row " << i;
                  ASSERT_TRUE(std::isnan(call.lse_at(0, h, i))) << bad << " row " << i;
                  for (int64_t j = 0; j < keys; ++j) ASSERT_TRUE(std::isnan(call.weight_at(0, h, i, j))) << bad << " row " << i;
                } else {
                  ASSERT_TRUE(same_row(call, clean, {0, h, i})) << bad << " head " << h << " row " << i << " dtype " << dtype;
                }
              }
          }
        }
      }
    }
  }
}

// At a key that something else excludes, what the mask holds does not matter.
TEST_P(LargeMasksTest, NaNAndInfinityAtExcludedKeysDoNotShow) {
  const auto context = this->context(2);
  const int32_t kv_length = 290;
  for (const int64_t queries : {1, 3, 50}) {
    for (const fovea_dtype dtype : kAddedDtypes) {
      for (const int way : {0, 1, 2}) {
        Call call({1, 1, 1, queries, 300, 8, 9}), clean({1, 1, 1, queries, 300, 8, 9});
        for (Call *c : {&call, &clean}) {
          c->fill_random(56);
          c->params.align = FOVEA_ALIGN_TOP_LEFT;
          if (way == 0) c->params.causal = 1;
          if (way == 1) c->params.window_left = 4, c->params.window_right = 7;
          if (way == 2) c->params.seqlens_kv = &kv_length;
        }
        Mask mask(dtype, call.n, "qk"), zeros(dtype, call.n, "qk");
        const auto excluded = [&](int64_t i, int64_t j) {
          return way == 2 ? j >= kv_length : way ? j < i - 4 || j > i + 7 : j > i;
        };
        mask.set_all([&](int64_t, int64_t, int64_t i, int64_t j) {
          return !excluded(i, j) ? 0 : (i + j) % 2 ? kNaN : kInfinity;
        });
        call.params.mask = mask.tensor();
        clean.params.mask = zeros.tensor();
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        ASSERT_EQ(clean.run(context.get()), FOVEA_OK) << fovea_last_error();
        EXPECT_TRUE(same_bits(call.out, clean.out)) << "way " << way << " dtype " << dtype << " queries " << queries;
        EXPECT_TRUE(same_bits(call.lse, clean.lse)) << "way " << way << " dtype " << dtype << " queries " << queries;
        EXPECT_TRUE(same_bits(call.weights, clean.weights)) << "way " << way << " dtype " << dtype << " queries " << queries;
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
