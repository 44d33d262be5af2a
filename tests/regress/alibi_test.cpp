// ALiBi adds -slope * |p - j|, p being the query's position; fovea_alibi_slopes() gives the usual slopes for any number of heads.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

std::vector<float> standard_slopes(int64_t heads) {
  std::vector<float> slopes(size_t(heads), Call::canary);
  EXPECT_EQ(fovea_alibi_slopes(heads, slopes.data()), FOVEA_OK) << fovea_last_error();
  return slopes;
}

void expect_slopes(int64_t heads, const std::vector<double> &expected) {
  const std::vector<float> slopes = standard_slopes(heads);
  ASSERT_EQ(slopes.size(), expected.size());
  for (size_t h = 0; h < expected.size(); ++h)
    EXPECT_NEAR(slopes[h], expected[h], 1e-7 * expected[h]) << heads << " heads, " << h;
}

TEST(AlibiSlopesTest, PowersOfTwo) {
  expect_slopes(1, {0x1p-8});
  expect_slopes(2, {0x1p-4, 0x1p-8});
  expect_slopes(4, {0x1p-2, 0x1p-4, 0x1p-6, 0x1p-8});
  expect_slopes(8, {0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625});
  std::vector<double> sixteen;
  for (int i = 1; i <= 16; ++i) sixteen.push_back(std::exp2(-i / 2.0));
  expect_slopes(16, sixteen);
}

// The next lower power of two's, then every other one of the next higher's.
TEST(AlibiSlopesTest, OtherNumbersOfHeads) {
  expect_slopes(3, {0x1p-4, 0x1p-8, 0x1p-2});
  expect_slopes(6, {0x1p-2, 0x1p-4, 0x1p-6, 0x1p-8, 0x1p-1, 0x1p-3});
  expect_slopes(7, {0x1p-2, 0x1p-4, 0x1p-6, 0x1p-8, 0x1p-1, 0x1p-3, 0x1p-5});
  expect_slopes(12, {0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625, std::exp2(-0.5), std::exp2(-1.5),
                     std::exp2(-2.5), std::exp2(-3.5)});
  for (const int64_t heads : {5, 9, 24, 40, 71, 112, 1000}) {
    const std::vector<float> slopes = standard_slopes(heads);
    int64_t lower = 1;
    while (2 * lower <= heads) lower *= 2;
    for (int64_t h = 0; h < heads; ++h) {
      const double exponent =
          h < lower ? -8.0 * double(h + 1) / double(lower) : -4.0 * double(2 * (h - lower) + 1) / double(lower);
      EXPECT_NEAR(slopes[size_t(h)], std::exp2(exponent), 1e-7 * std::exp2(exponent)) << heads << " heads, " << h;
    }
  }
}

TEST(AlibiSlopesTest, NoHeads) {
  float slope = Call::canary;
  EXPECT_EQ(fovea_alibi_slopes(0, &slope), FOVEA_OK);
  EXPECT_EQ(slope, Call::canary);
}

class AlibiTest : public LevelTest {
 protected:
  // Equal scores: the weights are those of the distances.
  static void expect_distances(const fovea_context *context, const Sizes &n, const std::vector<float> &slopes, int32_t align,
                               bool causal) {
    Call call(n);
    call.params.alibi_slopes = slopes.data();
    call.params.align = align;
    call.params.causal = causal;
    ASSERT_EQ(call.run(context), FOVEA_OK) << fovea_last_error();
    for (int64_t h = 0; h < n.heads_q; ++h) {
      for (int64_t i = 0; i < n.seq_q; ++i) {
        const int64_t position = align == FOVEA_ALIGN_BOTTOM_RIGHT ? i + n.seq_kv - n.seq_q : i;
        const int64_t keys = causal ? std::min(position + 1, n.seq_kv) : n.seq_kv;
        std::vector<double> bias;
        double largest = -INFINITY, magnitude = 0, sum = 0;
        for (int64_t j = 0; j < keys; ++j) {
          bias.push_back(-double(slopes[size_t(h)]) * std::fabs(double(position - j)));
          largest = std::max(largest, bias.back());
          magnitude = std::max(magnitude, std::fabs(bias.back()));
        }
        for (const double b : bias) sum += std::exp(b - largest);
        const std::string where = std::to_string(n.seq_q) + "x" + std::to_string(n.seq_kv) + " align " + std::to_string(align) +
                                  " causal " + std::to_string(causal) + " head " + std::to_string(h) + " row " +
                                  std::to_string(i);
        ASSERT_NEAR(call.lse_at(0, h, i), largest + std::log(sum), 1e-6 * (1 + magnitude)) << where;
        for (int64_t j = 0; j < n.seq_kv; ++j) {
          const double weight = j < keys ? std::exp(bias[size_t(j)] - largest) / sum : 0;
          ASSERT_NEAR(call.weight_at(0, h, i, j), weight, 1e-6 * (1 + magnitude) * weight + double(keys + 1) * FLT_MIN)
              << where << " key " << j;
        }
      }
    }
  }
};
FOVEA_TEST_EVERY_LEVEL(AlibiTest);

TEST_P(AlibiTest, DistancesFromTheQuerysPosition) {
  for (const int32_t threads : {1, 2, 3, 7}) {
    const auto context = this->context(threads);
    for (const int32_t align : {FOVEA_ALIGN_TOP_LEFT, FOVEA_ALIGN_BOTTOM_RIGHT}) {
      for (const bool causal : {false, true}) {
        for (const int64_t lengths : {0, 1, 2, 3, 4, 5, 6}) {
          const int64_t sizes[][2] = {{1, 1}, {2, 7}, {7, 7}, {1, 1300}, {50, 50}, {60, 300}, {4, 257}};
          const auto &[queries, keys] = sizes[lengths];
          expect_distances(context.get(), {1, 6, 2, queries, keys, 4, 2}, standard_slopes(6), align, causal);
        }
        if (!causal)
          expect_distances(context.get(), {1, 6, 6, 60, 9, 4, 2}, standard_slopes(6), align, causal);  // before the first key
      }
    }
  }
}

// Any finite slope is one: 0 leaves the scores alone, a negative one prefers what is far.
TEST_P(AlibiTest, SlopesOfAnySign) {
  const auto context = this->context(2);
  for (const int32_t align : {FOVEA_ALIGN_TOP_LEFT, FOVEA_ALIGN_BOTTOM_RIGHT}) {
    expect_distances(context.get(), {1, 3, 1, 50, 300, 4, 2}, {0, -0.25f, 8}, align, false);
    expect_distances(context.get(), {1, 3, 3, 1, 300, 4, 2}, {0, -0.25f, 8}, align, false);
  }
}

// The bias is neither scaled nor multiplied by what a query holds.
TEST_P(AlibiTest, IsNotScaled) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    const std::vector<float> slopes = standard_slopes(12);
    for (const int64_t queries : {1, 3, 50}) {
      for (const float scale : {0.0f, 0.05f, -1.0f}) {
        Call call({1, 12, 4, queries, 300, 16, 9});
        call.fill_random(101);
        call.params.scale = scale;
        call.params.alibi_slopes = slopes.data();
        call.params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        expect_within_bound(call, std::to_string(queries) + " queries, scale " + std::to_string(scale));
      }
    }
  }
}

// Far positions: the distance is exact, not the difference of two rounded products.
TEST_P(AlibiTest, FarPositions) {
  const auto context = this->context(3);
  constexpr int64_t kKeys = 40000;
  const float slope = 1;
  Call call({1, 1, 1, 2, kKeys, 1, 1});
  call.params.alibi_slopes = &slope;
  call.params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
  call.params.causal = 1;
  ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t position = kKeys - 2 + i;
    for (int64_t distance = 0; distance < 20; ++distance) {
      const double weight = std::exp(-double(distance)) * (1 - std::exp(-1.0));
      EXPECT_NEAR(call.weight_at(0, 0, i, position - distance), weight, weight * 1e-4) << "row " << i << " distance " << distance;
    }
  }
}

// A slope that leaves the range of float in other units, and distances that make any slope leave it. The query's own key has distance 0.
TEST_P(AlibiTest, SteepSlopesLeaveTheNearestKey) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const float slope : {3e38f, FLT_MAX, 2e37f, 1e36f}) {
      for (const int64_t length : {1, 8, 32, 64, 300}) {
        for (const auto &[queries, window_left] :
             {std::pair<int64_t, int64_t>(length, -1), {length, 20}, {length, 0}, {1, -1}, {1, 20}}) {
          Call call({1, 1, 1, queries, length, 1, 1});
          for (int64_t j = 0; j < length; ++j) call.v_at(0, 0, j, 0) = float(j + 1);
          call.params.alibi_slopes = &slope;
          call.params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
          call.params.window_left = window_left;
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          for (int64_t i = 0; i < queries; ++i) {
            const int64_t position = i + length - queries;
            const std::string where = "slope " + std::to_string(slope) + " length " + std::to_string(length) + " window_left " +
                                      std::to_string(window_left) + " row " + std::to_string(i);
            ASSERT_EQ(call.out_at(0, 0, i, 0), float(position + 1)) << where;
            ASSERT_EQ(call.lse_at(0, 0, i), 0.0f) << where;
            for (int64_t j = 0; j < length; ++j)
              ASSERT_EQ(call.weight_at(0, 0, i, j), float(position == j)) << where << " key " << j;
          }
        }
      }
    }
    // Keys that prefer what is far, of which only the near one is in the window.
    const float slope = -3e38f;
    Call call({1, 1, 1, 50, 50, 1, 1});
    call.params.alibi_slopes = &slope;
    call.params.align = FOVEA_ALIGN_TOP_LEFT;
    call.params.window_left = call.params.window_right = 0;
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    for (const float out : call.out) ASSERT_EQ(out, 1.0f);
    for (const float lse : call.lse) ASSERT_EQ(lse, 0.0f);
  }
}

// However far it is, no slope takes a key out of the row's set: its value takes part with a weight of 0.
TEST_P(AlibiTest, SteepSlopesExcludeNoKey) {
  const auto context = this->context(2);
  for (const int64_t queries : {1, 20}) {
    for (const float slope : {3e38f, 2.3e38f, 1e38f, 1e35f, 1e3f}) {
      Call call({1, 1, 1, queries, 30, 1, 1});
      call.params.alibi_slopes = &slope;
      call.params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
      call.v_at(0, 0, 0, 0) = std::nanf("");
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (const float out : call.out) ASSERT_TRUE(std::isnan(out)) << "slope " << slope;
      for (int64_t i = 0; i < queries; ++i) ASSERT_EQ(call.weight_at(0, 0, i, 0), 0.0f) << "slope " << slope;

      Call alone({1, 1, 1, queries, 30, 1, 1});  // the farthest key is the only one
      Mask mask(FOVEA_BOOL, alone.n, "k");
      mask.permit_where([](int64_t, int64_t, int64_t, int64_t j) { return j == 0; });
      alone.params.alibi_slopes = &slope;
      alone.params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
      alone.params.mask = mask.tensor();
      ASSERT_EQ(alone.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (const float out : alone.out) ASSERT_EQ(out, 1.0f) << "slope " << slope;
      for (const float lse : alone.lse) ASSERT_TRUE(std::isfinite(lse)) << "slope " << slope;
    }
  }
}

}  // namespace
}  // namespace fovea::testing
