// A row that a mask, a window, lengths or a score function leave without a key is 0 with an LSE of -infinity, and every other row is as it
// is without it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kThreads[] = {1, 2, 3, 7};

class MaskedRowsTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(MaskedRowsTest);

TEST_P(MaskedRowsTest, OnlyTheFirstQuarterOfASquare) {
  const auto context = this->context();
  for (const fovea_dtype dtype : kMaskDtypes) {
    Call call({1, 1, 1, 8, 8, 8, 8}), open({1, 1, 1, 8, 8, 8, 8});  // open: the same without the masked rows
    Mask mask(dtype, call.n), open_mask(dtype, call.n);
    mask.permit_where([](int64_t, int64_t, int64_t i, int64_t j) { return i < 4 && j < 4; });
    open_mask.permit_where([](int64_t, int64_t, int64_t, int64_t j) { return j < 4; });
    call.params.mask = mask.tensor();
    open.params.mask = open_mask.tensor();
    call.fill_random(31);
    open.fill_random(31);
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    ASSERT_EQ(open.run(context.get()), FOVEA_OK) << fovea_last_error();
    for (int64_t i = 0; i < 4; ++i) EXPECT_TRUE(same_row(call, open, {0, 0, i})) << "dtype " << dtype << " row " << i;
    for (int64_t i = 4; i < 8; ++i) expect_empty(call, {0, 0, i});
    expect_within_bound(call, "dtype " + std::to_string(dtype));
  }
}

// Some rows masked, at every place in a panel and among too few rows for a panel.
TEST_P(MaskedRowsTest, LeaveTheOthersAsTheyAre) {
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 3, 6, 60}) {
      for (const int64_t keys : {7, 8, 10, 257, 1300}) {
        for (const fovea_dtype dtype : kMaskDtypes) {
          const std::string where = std::to_string(queries) + "x" + std::to_string(keys) + " dtype " + std::to_string(dtype);
          Call call({1, 2, 1, queries, keys, 8, 9}), clean({1, 2, 1, queries, keys, 8, 9});
          call.fill_random(32);
          clean.fill_random(32);
          Mask mask(dtype, call.n, "hqk");
          const auto masked = [&](int64_t h, int64_t i) { return i == queries - 1 ? h == 0 : (i * 2 + h) % 3 == 0; };
          mask.permit_where([&](int64_t, int64_t h, int64_t i, int64_t) { return !masked(h, i); });
          call.params.mask = mask.tensor();
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          ASSERT_EQ(clean.run(context.get()), FOVEA_OK);
          for (int64_t h = 0; h < 2; ++h)
            for (int64_t i = 0; i < queries; ++i) {
              if (masked(h, i)) {
                expect_empty(call, {0, h, i});
                continue;
              }
              ASSERT_TRUE(same_row(call, clean, {0, h, i})) << where << " head " << h << " row " << i;
              ASSERT_EQ(std::memcmp(&call.weight_at(0, h, i, 0), &clean.weight_at(0, h, i, 0), size_t(keys) * sizeof(float)), 0)
                  << where << " head " << h << " row " << i;
            }
        }
      }
    }
  }
}

TEST_P(MaskedRowsTest, OneHeadOfThree) {
  const auto context = this->context(2);
  for (const int64_t queries : {1, 50}) {
    for (const fovea_dtype dtype : kMaskDtypes) {
      Call call({2, 3, 3, queries, 300, 16, 16}), clean({2, 3, 3, queries, 300, 16, 16});
      call.fill_random(33);
      clean.fill_random(33);
      Mask mask(dtype, call.n, "h");
      mask.permit_where([](int64_t, int64_t h, int64_t, int64_t) { return h != 1; });
      call.params.mask = mask.tensor();
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      ASSERT_EQ(clean.run(context.get()), FOVEA_OK);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t i = 0; i < queries; ++i) {
          expect_empty(call, {b, 1, i});
          for (const int64_t h : {0, 2}) EXPECT_TRUE(same_row(call, clean, {b, h, i})) << "head " << h << " row " << i;
        }
    }
  }
}

// The last row of a call of six queries and ten keys; the rows that are left count their keys.
TEST_P(MaskedRowsTest, LastRowOfSix) {
  const auto context = this->context();
  for (const fovea_dtype dtype : kMaskDtypes) {
    Call call({1, 1, 1, 6, 10, 4, 3});
    Mask mask(dtype, call.n, "qk");
    mask.permit_where([](int64_t, int64_t, int64_t i, int64_t j) { return i < 5 && j <= i; });
    call.params.mask = mask.tensor();
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    expect_empty(call, {0, 0, 5});
    for (int64_t i = 0; i < 5; ++i) {
      for (int64_t c = 0; c < 3; ++c) EXPECT_EQ(call.out_at(0, 0, i, c), 1.0f);
      EXPECT_NEAR(call.lse_at(0, 0, i), std::log(double(i + 1)), 1e-6);
    }
  }
}

// A query whose window lies before the first key or behind the last one.
TEST_P(MaskedRowsTest, WindowsBesideTheKeys) {
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const auto &[keys, more] : {std::pair<int64_t, int64_t>(1, 3), {5, 50}, {40, 50}, {300, 50}}) {
      Call call({1, 2, 2, keys + more, keys, 8, 9});
      call.fill_random(34);
      call.params.window_left = 3;
      call.params.window_right = 2;
      for (const int32_t align : {FOVEA_ALIGN_TOP_LEFT, FOVEA_ALIGN_BOTTOM_RIGHT}) {
        call.params.align = align;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t i = 0; i < call.n.seq_q; ++i) {
            const int64_t position = align == FOVEA_ALIGN_BOTTOM_RIGHT ? i - more : i;
            if (position < -2 || position > keys + 2)
              expect_empty(call, {0, h, i});
            else
              EXPECT_TRUE(std::isfinite(call.lse_at(0, h, i))) << "align " << align << " row " << i << " of " << keys << " keys";
          }
        expect_within_bound(call, std::to_string(keys) + " keys, align " + std::to_string(align));
      }
    }
  }
}

TEST_P(MaskedRowsTest, EntriesOfABatchWithoutKeys) {
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 5, 60}) {
      Call call({3, 2, 1, queries, 40, 8, 9}), clean({3, 2, 1, queries, 40, 8, 9});
      call.fill_random(35);
      clean.fill_random(35);
      const int32_t lengths[] = {40, 0, 40};
      call.params.seqlens_kv = lengths;
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      ASSERT_EQ(clean.run(context.get()), FOVEA_OK);
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t i = 0; i < queries; ++i) {
          expect_empty(call, {1, h, i});
          for (const int64_t b : {0, 2}) EXPECT_TRUE(same_row(call, clean, {b, h, i})) << "entry " << b << " row " << i;
        }
    }
  }
}

// Bottom-right of an entry with more queries than keys: the first queries stand before the first key.
TEST_P(MaskedRowsTest, QueriesBeforeTheFirstKeyOfAShortEntry) {
  const auto context = this->context(3);
  for (const int32_t queries : {4, 16, 70}) {
    Call call({2, 1, 1, queries, 70, 4, 5});
    call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
    const int32_t lengths_q[] = {queries, queries - 1}, lengths_kv[] = {queries / 2, 70}, empty = queries - queries / 2;
    call.params.seqlens_q = lengths_q;
    call.params.seqlens_kv = lengths_kv;
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    for (int64_t i = 0; i < empty; ++i) expect_empty(call, {0, 0, i});
    for (int64_t i = empty; i < queries; ++i) EXPECT_NEAR(call.lse_at(0, 0, i), std::log(double(i - empty + 1)), 1e-6) << i;
    for (int64_t i = 0; i < queries - 1; ++i)
      EXPECT_NEAR(call.lse_at(1, 0, i), std::log(double(i + 70 - (queries - 1) + 1)), 1e-6) << i;
  }
}

// Neither the mask nor the corner excludes everything, both together do.
TEST_P(MaskedRowsTest, MaskAndCausalTogether) {
  const auto context = this->context(2);
  struct Case {
    int64_t queries, keys, first;
  };
  for (const auto &[queries, keys, first] : {Case{4, 300, 2}, {9, 9, 4}, {300, 300, 150}, {600, 600, 300}}) {
    for (const fovea_dtype dtype : kMaskDtypes) {
      Call call({1, 1, 1, queries, keys, 4, 5});
      call.fill_random(36);
      call.causal(FOVEA_ALIGN_TOP_LEFT);
      Mask mask(dtype, call.n, "k");
      mask.permit_where([first = first](int64_t, int64_t, int64_t, int64_t j) { return j >= first; });
      call.params.mask = mask.tensor();
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (int64_t i = 0; i < queries; ++i) {
        if (i < first)
          expect_empty(call, {0, 0, i});
        else
          ASSERT_TRUE(std::isfinite(call.lse_at(0, 0, i))) << i;
      }
      // The first row with a key has that one only.
      for (int64_t c = 0; c < 5; ++c) EXPECT_EQ(call.out_at(0, 0, first, c), call.v_at(0, 0, first, c));
      expect_within_bound(call, std::to_string(keys) + " keys, dtype " + std::to_string(dtype));
    }
  }
}

// A score function that leaves -infinity everywhere in a row.
TEST_P(MaskedRowsTest, ScoreFunctionOfMinusInfinity) {
  const auto exclude_every_third_row = [](void *, const fovea_score_tile *tile) {
    for (int64_t r = 0; r < tile->rows; ++r)
      for (int64_t c = 0; c < tile->cols; ++c) {
        float &score = tile->score[r * tile->row_stride + c * tile->col_stride];
        if ((tile->row0 + r + tile->head) % 3 == 0)
          score = -kInfinity;
        else if (tile->q)
          score = 0;  // a replacing function writes every score
      }
  };
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const int32_t mode : {FOVEA_SCORE_MODIFY, FOVEA_SCORE_REPLACE}) {
      for (const int64_t queries : {1, 4, 60}) {
        for (const int64_t keys : {8, 9, 600}) {
          Call call({1, 2, 1, queries, keys, 4, 5});  // q 0 and v 1: every score is 0
          call.params.score = exclude_every_third_row;
          call.params.score_mode = mode;
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          for (int64_t h = 0; h < 2; ++h)
            for (int64_t i = 0; i < queries; ++i) {
              if ((i + h) % 3 == 0) {
                expect_empty(call, {0, h, i});
                continue;
              }
              for (int64_t c = 0; c < 5; ++c) ASSERT_EQ(call.out_at(0, h, i, c), 1.0f) << "mode " << mode << " row " << i;
              ASSERT_NEAR(call.lse_at(0, h, i), std::log(double(keys)), 1e-6) << "mode " << mode << " row " << i;
            }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
