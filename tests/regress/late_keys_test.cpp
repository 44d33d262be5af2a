// Rows whose first permitted keys come late: whole blocks of keys without one lie before, behind or between them.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "kernels/kernel.h"
#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

constexpr int32_t kThreads[] = {1, 2, 3, 7};

class LateKeysTest : public LevelTest {
 protected:
  // All inputs 1: every row that has a key gives the value, and an LSE of its score plus the logarithm of its number of keys.
  static void expect_counts(const fovea_context *context, Call &call, const std::function<bool(int64_t, int64_t)> &permitted,
                            const std::string &what) {
    std::fill(call.q.begin(), call.q.end(), 1.0f);
    std::fill(call.k.begin(), call.k.end(), 1.0f);
    ASSERT_EQ(call.run(context), FOVEA_OK) << fovea_last_error();
    const double score = std::sqrt(double(call.n.dim_k));
    for (int64_t i = 0; i < call.n.seq_q; ++i) {
      int64_t count = 0;
      for (int64_t j = 0; j < call.n.seq_kv; ++j) count += permitted(i, j);
      const std::string where = what + " row " + std::to_string(i);
      if (count == 0) {
        expect_empty(call, {0, 0, i});
        continue;
      }
      for (int64_t c = 0; c < call.n.dim_v; ++c) ASSERT_EQ(call.out_at(0, 0, i, c), 1.0f) << where;
      ASSERT_NEAR(call.lse_at(0, 0, i), score + std::log(double(count)), 2e-6) << where;
      for (int64_t j = 0; j < call.n.seq_kv; ++j)
        ASSERT_EQ(call.weight_at(0, 0, i, j), permitted(i, j) ? float(1 / double(count)) : 0.0f) << where << " key " << j;
    }
  }
};
FOVEA_TEST_EVERY_LEVEL(LateKeysTest);

TEST_P(LateKeysTest, BandOfTenKeys) {
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const int64_t length : {600, 640}) {
      for (const auto &[queries, dim] : {std::pair<int64_t, int64_t>(1, 4), {4, 4}, {16, 2}, {length, 2}, {length, 4}}) {
        const std::string what = std::to_string(queries) + "x" + std::to_string(length) + ", dim " + std::to_string(dim);
        const int64_t shift = length - queries;
        const auto band = [shift](int64_t i, int64_t j) { return j > i + shift - 10 && j <= i + shift; };
        for (const fovea_dtype dtype : kMaskDtypes) {
          Call call({1, 1, 1, queries, length, dim, dim});
          Mask mask(dtype, call.n, "qk");
          mask.permit_where([&](int64_t, int64_t, int64_t i, int64_t j) { return band(i, j); });
          call.params.mask = mask.tensor();
          expect_counts(context.get(), call, band, what + ", dtype " + std::to_string(dtype));
        }
        Call call({1, 1, 1, queries, length, dim, dim});
        call.params.window_left = 9;
        call.params.window_right = 0;
        call.params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
        expect_counts(context.get(), call, band, what + ", window");
      }
    }
  }
}

TEST_P(LateKeysTest, FirstMiddleOrLastBlocksMasked) {
  const std::function<bool(int64_t, int64_t)> patterns[] = {
      [](int64_t, int64_t j) { return j >= 2 * kBlockKeys; },                       // the first two blocks
      [](int64_t, int64_t j) { return j < 2 * kBlockKeys; },                        // the last ones
      [](int64_t, int64_t j) { return j < kBlockKeys || j >= 2 * kBlockKeys; },     // one between
      [](int64_t i, int64_t j) { return (j / kBlockKeys + i) % 3 == 0; },           // another one for each row
      [](int64_t i, int64_t j) { return j >= 2 * kBlockKeys + 5 + i % kKeyTile; },  // and the first tiles of the next
      [](int64_t i, int64_t j) {
        return j == 3 * kBlockKeys - 1 || (i % 2 && !j);
      }  // a single key, for some rows the first as well
  };
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 3, 50}) {
      for (const int64_t keys : {3 * kBlockKeys, 3 * kBlockKeys + 13}) {
        for (const fovea_dtype dtype : kMaskDtypes) {
          for (size_t p = 0; p < std::size(patterns); ++p) {
            Call call({1, 1, 1, queries, keys, 3, 4});
            Mask mask(dtype, call.n, "qk");
            mask.permit_where([&](int64_t, int64_t, int64_t i, int64_t j) { return patterns[p](i, j); });
            call.params.mask = mask.tensor();
            expect_counts(context.get(), call, patterns[p],
                          std::to_string(queries) + "x" + std::to_string(keys) + ", pattern " + std::to_string(p) + ", dtype " +
                              std::to_string(dtype));
          }
        }
      }
    }
  }
}

// One query, and many: only the last three of 4096 keys. What the others hold says nothing about the scores of these.
TEST_P(LateKeysTest, OnlyTheLastThree) {
  constexpr int64_t kKeys = 4096;
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 30}) {
      for (const fovea_dtype dtype : kMaskDtypes) {
        Call call({1, 1, 1, queries, kKeys, 8, 9});
        call.fill_random(41);
        for (int64_t j = kKeys - 3; j < kKeys; ++j)
          for (int64_t c = 0; c < 8; ++c) call.k_at(0, 0, j, c) *= 40;
        Mask mask(dtype, call.n, "k");
        mask.permit_where([](int64_t, int64_t, int64_t, int64_t j) { return j >= kKeys - 3; });
        call.params.mask = mask.tensor();
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        expect_within_bound(call, std::to_string(queries) + " queries, dtype " + std::to_string(dtype));
        for (int64_t i = 0; i < queries; ++i)
          for (int64_t j = 0; j < kKeys - 3; ++j) ASSERT_EQ(call.weight_at(0, 0, i, j), 0.0f) << "row " << i << " key " << j;
      }
    }
  }
}

// A reference that comes late must be the one that the later scores are held against.
TEST_P(LateKeysTest, ScoresThatRiseAfterTheFirstPermittedKey) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 50}) {
      for (const float rise : {13.0f, 30.0f, 89.0f, 1e4f}) {
        for (const int64_t first : {9, 250, 300, 600}) {
          Call call({1, 1, 1, queries, 900, 1, 6});
          call.fill_random(42);
          for (float &q : call.q) q = 1;
          for (int64_t j = 0; j < 900; ++j) call.k_at(0, 0, j, 0) = j < first ? 500 : rise * float(j - first) / 100;
          Mask mask(FOVEA_BOOL, call.n, "qk");
          mask.permit_where([&](int64_t, int64_t, int64_t i, int64_t j) { return j >= first + i % 20; });
          call.params.mask = mask.tensor();
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          expect_within_bound(
              call, std::to_string(queries) + " queries, rise " + std::to_string(rise) + " from " + std::to_string(first));
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
