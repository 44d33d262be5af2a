// A row without a permitted key is 0 with an LSE of -infinity and weights of 0, and leaves every other row as it was.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class EmptyRowsTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(EmptyRowsTest);

TEST_P(EmptyRowsTest, QueriesBeforeTheFirstKey) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t keys : {1, 2, 30, 257}) {
      for (const int64_t empty : {1, 3, 60}) {  // bottom-right: query i stands at i - empty
        Call call({1, 4, 2, keys + empty, keys, 8, 9});
        call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
        call.fill_random(3);
        ASSERT_EQ(call.run(context.get()), FOVEA_OK);
        Call rest({1, 4, 2, keys, keys, 8, 9});  // the same queries without the empty ones
        rest.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
        rest.k = call.k;
        rest.v = call.v;
        for (int64_t h = 0; h < 4; ++h)
          for (int64_t i = 0; i < keys; ++i)
            for (int64_t c = 0; c < 8; ++c) rest.q_at(0, h, i, c) = call.q_at(0, h, i + empty, c);
        ASSERT_EQ(rest.run(context.get()), FOVEA_OK);
        for (int64_t h = 0; h < 4; ++h) {
          for (int64_t i = 0; i < empty; ++i) expect_empty(call, {0, h, i});
          for (int64_t i = 0; i < keys; ++i) {
            EXPECT_NEAR(rest.lse_at(0, h, i), call.lse_at(0, h, i + empty), 1e-6) << i;
            for (int64_t c = 0; c < 9; ++c) EXPECT_NEAR(rest.out_at(0, h, i, c), call.out_at(0, h, i + empty, c), 1e-6) << i;
            // Few queries may be computed by another kernel, whose bits differ.
            if (keys < 30) continue;
            EXPECT_EQ(std::memcmp(&rest.out_at(0, h, i, 0), &call.out_at(0, h, i + empty, 0), 9 * sizeof(float)), 0) << i;
            EXPECT_EQ(rest.lse_at(0, h, i), call.lse_at(0, h, i + empty)) << i;
          }
        }
      }
    }
  }
}

TEST_P(EmptyRowsTest, NoKeysAtAll) {
  const auto context = this->context(2);
  for (const int64_t queries : {1, 5, 16}) {
    for (const bool causal : {false, true}) {
      Call call({1, 6, 3, queries, 0, 4, 7});
      if (causal) call.causal(FOVEA_ALIGN_TOP_LEFT);
      ASSERT_EQ(call.run(context.get()), FOVEA_OK);
      for (int64_t h = 0; h < 6; ++h)
        for (int64_t i = 0; i < queries; ++i) expect_empty(call, {0, h, i});
    }
  }
}

// A row whose scores are all -infinity is empty; where some are, they weigh nothing.
TEST_P(EmptyRowsTest, EveryScoreMinusInfinity) {
  const auto context = this->context();
  for (const int64_t queries : {1, 3, 16}) {
    for (const int64_t keys : {1, 8, 9, 300, 1000}) {
      for (const bool first_is_empty : {false, true}) {
        Call call({1, 1, 1, queries, keys, 2, 5});
        const auto is_empty = [&](int64_t i) { return (i % 3 == 0) == first_is_empty; };
        for (int64_t i = 0; i < queries; ++i) call.q_at(0, 0, i, 0) = float(i % 2);
        for (int64_t i = 0; i < queries; ++i) call.q_at(0, 0, i, 1) = is_empty(i) ? 1 : -1;  // +infinity: NaN
        for (int64_t j = 0; j < keys; ++j) call.k_at(0, 0, j, 1) = -kInfinity;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK);
        for (int64_t i = 0; i < queries; ++i) {
          if (is_empty(i)) {
            expect_empty(call, {0, 0, i});
          } else {
            EXPECT_TRUE(std::isnan(call.out_at(0, 0, i, 0))) << queries << "x" << keys << " row " << i;
            EXPECT_TRUE(std::isnan(call.lse_at(0, 0, i))) << queries << "x" << keys << " row " << i;
          }
        }
      }
    }
  }
}

TEST_P(EmptyRowsTest, KeysWithScoreMinusInfinityWeighNothing) {
  const auto context = this->context();
  for (const auto &[queries, keys] :
       {std::pair<int64_t, int64_t>(1, 2), {1, 9}, {1, 300}, {1, 1000}, {16, 300}, {60, 2}, {60, 9}, {60, 300}, {60, 1000}}) {
    Call call({1, 1, 1, queries, keys, 1, 4});
    for (float &q : call.q) q = 1;
    int64_t kept = 0;
    for (int64_t j = 0; j < keys; ++j) {
      const bool excluded = j < keys / 2 || j % 3 == 0;  // the first tiles hold no key at all
      if (!excluded) {
        ++kept;
        continue;
      }
      call.k_at(0, 0, j, 0) = -kInfinity;
      for (int64_t c = 0; c < 4; ++c) call.v_at(0, 0, j, c) = 7;
    }
    ASSERT_EQ(call.run(context.get()), FOVEA_OK);
    for (int64_t i = 0; i < queries; ++i) {
      if (kept == 0) {
        expect_empty(call, {0, 0, i});
        continue;
      }
      for (int64_t c = 0; c < 4; ++c) ASSERT_EQ(call.out_at(0, 0, i, c), 1.0f) << keys << " keys";
      EXPECT_NEAR(call.lse_at(0, 0, i), std::log(double(kept)), 1e-6);
      for (int64_t j = 0; j < keys; ++j)
        ASSERT_EQ(call.weight_at(0, 0, i, j) == 0, call.k_at(0, 0, j, 0) == -kInfinity) << "key " << j << " of " << keys;
    }
  }
}

}  // namespace
}  // namespace fovea::testing
