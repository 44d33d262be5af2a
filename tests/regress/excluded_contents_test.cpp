// What an excluded key holds in K and V never reaches an output, bit for bit, whichever way it is excluded and whatever stands beside it.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>

#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"
#include "support/pages.h"

namespace fovea::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::nanf("");
const float kPoisons[] = {kNaN, kInfinity, -kInfinity, 1e30f, 1e10f};

using Permitted = std::function<bool(int64_t h, int64_t i, int64_t j)>;

// A way of excluding keys, applied to calls of some lengths.
struct Way {
  std::string name;
  Permitted permitted;
  std::function<void(Call &)> apply;
  std::shared_ptr<void> owned;  // what apply() makes calls point to
};

// Every third key, another one for each row and head; and runs of 300 keys by runs of 20 queries.
bool scattered(int64_t h, int64_t i, int64_t j) { return (h + i + j) % 3 != 0; }
bool in_runs(int64_t h, int64_t i, int64_t j) { return (j / 300 + i / 20 + h) % 2 == 0; }

struct Pattern {
  const char *name;
  bool (*permitted)(int64_t h, int64_t i, int64_t j);
};
constexpr Pattern kPatterns[] = {{"scattered", scattered}, {"in runs", in_runs}};

// -infinity where the pattern excludes; a replacing function also writes the scaled dot product elsewhere.
struct Writer {
  const Pattern *pattern;
  float scale;
  static void write(void *user, const fovea_score_tile *t) {
    const Writer &writer = *static_cast<const Writer *>(user);
    for (int64_t r = 0; r < t->rows; ++r)
      for (int64_t c = 0; c < t->cols; ++c) {
        float &score = t->score[r * t->row_stride + c * t->col_stride];
        if (t->q) {
          score = 0;
          for (int64_t d = 0; d < t->dim_k; ++d) score += t->q[r * t->ldq + d] * t->k[c * t->ldk + d];
          score *= writer.scale;
        }
        if (!writer.pattern->permitted(t->head, t->row0 + r, t->col0 + c)) score = -kInfinity;
      }
  }
};

std::vector<Way> ways(const Sizes &n) {
  std::vector<Way> all;
  for (const Pattern &pattern : kPatterns) {
    for (const fovea_dtype dtype : kMaskDtypes) {
      const auto mask = std::make_shared<Mask>(dtype, n, "hqk");
      mask->permit_where([&](int64_t, int64_t h, int64_t i, int64_t j) { return pattern.permitted(h, i, j); });
      all.push_back({std::string("mask ") + pattern.name + " dtype " + std::to_string(dtype), pattern.permitted,
                     [mask](Call &call) { call.params.mask = mask->tensor(); }, mask});
    }
    for (const int32_t mode : {FOVEA_SCORE_MODIFY, FOVEA_SCORE_REPLACE}) {
      const auto writer = std::make_shared<Writer>(Writer{&pattern, 1 / std::sqrt(float(n.dim_k))});
      all.push_back({std::string("score function ") + pattern.name + " mode " + std::to_string(mode), pattern.permitted,
                     [writer, mode](Call &call) {
                       call.params.score = Writer::write;
                       call.params.score_user = writer.get();
                       call.params.score_mode = mode;
                     },
                     writer});
    }
  }
  for (const int32_t align : {FOVEA_ALIGN_TOP_LEFT, FOVEA_ALIGN_BOTTOM_RIGHT}) {
    const int64_t shift = align == FOVEA_ALIGN_BOTTOM_RIGHT ? n.seq_kv - n.seq_q : 0;
    all.push_back({"causal align " + std::to_string(align), [=](int64_t, int64_t i, int64_t j) { return j <= i + shift; },
                   [=](Call &call) { call.causal(align); }, nullptr});
    all.push_back({"window align " + std::to_string(align),
                   [=](int64_t, int64_t i, int64_t j) { return j >= i + shift - 5 && j <= i + shift + 3; },
                   [=](Call &call) {
                     call.params.window_left = 5;
                     call.params.window_right = 3;
                     call.params.align = align;
                   },
                   nullptr});
  }
  const auto lengths = std::make_shared<std::vector<int32_t>>(1, int32_t(n.seq_kv - n.seq_kv / 3));
  all.push_back({"lengths", [=](int64_t, int64_t, int64_t j) { return j < lengths->front(); },
                 [=](Call &call) { call.params.seqlens_kv = lengths->data(); }, lengths});
  return all;
}

struct Poisoning {
  const char *name;
  bool (*hits)(int64_t j, int64_t keys);
};
constexpr Poisoning kPoisonings[] = {{"every third", [](int64_t j, int64_t) { return j % 3 == 1; }},
                                     {"the first", [](int64_t j, int64_t) { return j == 0; }},
                                     {"the last third", [](int64_t j, int64_t keys) { return j >= keys - keys / 3; }},
                                     {"a run", [](int64_t j, int64_t) { return j / 300 % 2 == 1; }}};

// page_size 0: keys and values as they lie in the call, else in pages, without weights.
fovea_status run(const fovea_context *context, Call &call, int32_t page_size) {
  if (page_size == 0) return call.run(context);
  const fovea_params dense = call.params;
  const Pages pages(call, {dense.seqlens_kv ? dense.seqlens_kv[0] : int32_t(call.n.seq_kv)}, page_size, FOVEA_F32);
  call.params = pages.params;
  const fovea_status status = call.run(context);
  call.params = dense;
  return status;
}

class ExcludedContentsTest : public LevelTest {
 protected:
  // Rows that permit no poisoned key keep their bits; in the others a NaN shows.
  static void expect_unseen(const fovea_context *context, const Sizes &n, const Way &way, bool in_keys, bool in_values,
                            int64_t *rows_compared, int32_t page_size = 0) {
    Call clean(n);
    clean.fill_random(61);
    way.apply(clean);
    ASSERT_EQ(run(context, clean, page_size), FOVEA_OK) << fovea_last_error();
    for (const Poisoning &poisoning : kPoisonings) {
      for (const float poison : kPoisons) {
        Call call(n);
        call.fill_random(61);
        way.apply(call);
        std::vector<char> poisoned(size_t(n.seq_kv), 0);
        for (int64_t j = 0; j < n.seq_kv; ++j) {
          if (!poisoning.hits(j, n.seq_kv)) continue;
          poisoned[size_t(j)] = 1;
          for (int64_t c = 0; c < n.dim_k && in_keys; ++c) call.k_at(0, 0, j, c) = poison;
          for (int64_t c = 0; c < n.dim_v && in_values; ++c) call.v_at(0, 0, j, c) = poison;
        }
        ASSERT_EQ(run(context, call, page_size), FOVEA_OK) << fovea_last_error();
        for (int64_t h = 0; h < n.heads_q; ++h)
          for (int64_t i = 0; i < n.seq_q; ++i) {
            bool seen = false;
            for (int64_t j = 0; j < n.seq_kv && !seen; ++j) seen = poisoned[size_t(j)] && way.permitted(h, i, j);
            const std::string where = std::to_string(n.seq_q) + "x" + std::to_string(n.seq_kv) + " " + way.name + ", " +
                                      std::to_string(poison) + " in " + poisoning.name + " head " + std::to_string(h) + " row " +
                                      std::to_string(i) + ", pages of " + std::to_string(page_size);
            if (seen) {
              if (std::isnan(poison)) {
                for (int64_t c = 0; c < n.dim_v; ++c) ASSERT_TRUE(std::isnan(call.out_at(0, h, i, c))) << where << ": hidden";
                ASSERT_EQ(bool(std::isnan(call.lse_at(0, h, i))), in_keys) << where;
              }
              continue;
            }
            ++*rows_compared;
            ASSERT_TRUE(same_row(call, clean, {0, h, i})) << where;
            ASSERT_EQ(std::memcmp(&call.weight_at(0, h, i, 0), &clean.weight_at(0, h, i, 0), size_t(n.seq_kv) * sizeof(float)), 0)
                << where;
          }
      }
    }
  }
};
FOVEA_TEST_EVERY_LEVEL(ExcludedContentsTest);

TEST_P(ExcludedContentsTest, OfKeysAndValuesByEveryWay) {
  const Sizes sizes[] = {{1, 2, 1, 2, 2, 4, 4},     {1, 2, 1, 9, 12, 5, 7},    {1, 2, 1, 12, 9, 8, 16},
                         {1, 2, 1, 1, 700, 20, 19}, {1, 3, 1, 50, 601, 9, 17}, {1, 1, 1, 3, 1300, 16, 33}};
  for (const int32_t threads : {1, 3}) {
    std::map<std::string, int64_t> rows_compared;
    const auto context = this->context(threads);
    for (const Sizes &n : sizes) {
      for (const Way &way : ways(n)) {
        expect_unseen(context.get(), n, way, true, true, &rows_compared[way.name]);
        expect_unseen(context.get(), n, way, false, true, &rows_compared[way.name]);
      }
    }
    for (const auto &[way, rows] : rows_compared) EXPECT_GT(rows, 0) << way << " has shown nothing";
  }
}

TEST_P(ExcludedContentsTest, OfKeysAloneByEveryWay) {
  const auto context = this->context(2);
  std::map<std::string, int64_t> rows_compared;
  for (const Sizes &n : {Sizes{1, 2, 1, 2, 2, 4, 4}, Sizes{1, 2, 1, 1, 700, 9, 17}, Sizes{1, 2, 1, 50, 601, 9, 17}}) {
    for (const Way &way : ways(n)) {
      expect_unseen(context.get(), n, way, true, false, &rows_compared[way.name]);
    }
  }
  for (const auto &[way, rows] : rows_compared) EXPECT_GT(rows, 0) << way << " has shown nothing";
}

TEST_P(ExcludedContentsTest, OfKeysAndValuesInPagesByEveryWay) {
  const auto context = this->context(2);
  std::map<std::string, int64_t> rows_compared;
  for (const Sizes &n :
       {Sizes{1, 2, 1, 2, 9, 4, 4}, Sizes{1, 2, 1, 1, 700, 20, 19}, Sizes{1, 2, 1, 5, 300, 8, 9}, Sizes{1, 2, 1, 50, 601, 9, 17}})
    for (const Way &way : ways(n))
      for (const int32_t page_size : {7, 256})
        expect_unseen(context.get(), n, way, true, true, &rows_compared[way.name], page_size);
  for (const auto &[way, rows] : rows_compared) EXPECT_GT(rows, 0) << way << " has shown nothing";
}

// More queries than one task holds, an odd number of keys; the keys are excluded for all queries alike.
TEST_P(ExcludedContentsTest, OfOddLengths) {
  const auto context = this->context(3);
  const Sizes n = {1, 1, 1, 1001, 503, 8, 9};
  for (const fovea_dtype dtype : kMaskDtypes) {
    std::vector<float> out, lse;
    for (const float poison : {0.0f, kNaN, kInfinity, 1e10f}) {
      Call call(n);
      call.fill_random(62);
      Mask mask(dtype, n, "k");
      mask.permit_where([](int64_t, int64_t, int64_t, int64_t j) { return j % 7 != 3 && j < 500; });
      call.params.mask = mask.tensor();
      call.params.weights.data = nullptr;
      for (int64_t j = 0; j < n.seq_kv; ++j) {
        if (j % 7 != 3 && j < 500) continue;
        for (int64_t c = 0; c < n.dim_k; ++c) call.k_at(0, 0, j, c) = poison;
        for (int64_t c = 0; c < n.dim_v; ++c) call.v_at(0, 0, j, c) = poison;
      }
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      if (out.empty()) out = call.out, lse = call.lse;
      EXPECT_TRUE(same_bits(call.out, out)) << "dtype " << dtype << " poison " << poison;
      EXPECT_TRUE(same_bits(call.lse, lse)) << "dtype " << dtype << " poison " << poison;
    }
    for (const float value : out) ASSERT_TRUE(std::isfinite(value));
  }
}

// A score function cannot bring back what is excluded already: whatever it writes there is ignored.
TEST_P(ExcludedContentsTest, StayExcludedWhateverTheScoreFunctionWrites) {
  struct Revive {
    const Way *way;
    float value, scale;
    static void write(void *user, const fovea_score_tile *t) {
      const Revive &revive = *static_cast<const Revive *>(user);
      for (int64_t r = 0; r < t->rows; ++r)
        for (int64_t c = 0; c < t->cols; ++c) {
          float &score = t->score[r * t->row_stride + c * t->col_stride];
          if (!revive.way->permitted(t->head, t->row0 + r, t->col0 + c))
            score = revive.value;
          else if (t->q)
            score = revive.scale * float((t->row0 + r + t->col0 + c) % 5);
        }
    }
  };
  const auto context = this->context(3);
  for (const Sizes &n : {Sizes{1, 2, 1, 2, 2, 4, 4}, Sizes{1, 2, 1, 1, 300, 8, 9}, Sizes{1, 2, 1, 50, 601, 9, 17}}) {
    for (const Way &way : ways(n)) {
      if (way.name.find("score function") == 0) continue;
      for (const int32_t mode : {FOVEA_SCORE_MODIFY, FOVEA_SCORE_REPLACE}) {
        std::vector<float> out, lse, weights;
        for (const float value : {0.0f, kNaN, kInfinity, 1e30f, 20.0f}) {
          Revive revive{&way, value, 0.5f};
          Call call(n);
          call.fill_random(63);
          way.apply(call);
          call.params.score = Revive::write;
          call.params.score_user = &revive;
          call.params.score_mode = mode;
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          if (out.empty()) out = call.out, lse = call.lse, weights = call.weights;
          EXPECT_TRUE(same_bits(call.out, out)) << way.name << " mode " << mode << " value " << value;
          EXPECT_TRUE(same_bits(call.lse, lse)) << way.name << " mode " << mode << " value " << value;
          EXPECT_TRUE(same_bits(call.weights, weights)) << way.name << " mode " << mode << " value " << value;
        }
        for (int64_t h = 0; h < n.heads_q; ++h)
          for (int64_t i = 0; i < n.seq_q; ++i)
            for (int64_t j = 0; j < n.seq_kv; ++j)
              ASSERT_EQ(weights[size_t((h * n.seq_q + i) * n.seq_kv + j)] > 0, way.permitted(h, i, j))
                  << way.name << " " << i << " " << j;
      }
    }
  }
}

// Every way of excluding the same keys gives the same bits.
TEST_P(ExcludedContentsTest, TheWayDoesNotMatter) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const Sizes &n : {Sizes{1, 2, 1, 1, 700, 8, 9}, Sizes{1, 2, 1, 2, 20, 4, 5}, Sizes{1, 2, 1, 9, 300, 8, 9},
                           Sizes{1, 1, 1, 60, 700, 8, 17}}) {
      for (const Way &way : ways(n)) {
        if (way.name.find("score function") == 0) continue;  // its scores are rounded once more
        if (way.name == "lengths") continue;                 // the length decides how a row is summed
        Call call(n);
        call.fill_random(64);
        way.apply(call);
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        for (const fovea_dtype dtype : kMaskDtypes) {
          Call masked(n);
          masked.fill_random(64);
          Mask mask(dtype, n);
          mask.permit_where([&](int64_t, int64_t h, int64_t i, int64_t j) { return way.permitted(h, i, j); });
          masked.params.mask = mask.tensor();
          ASSERT_EQ(masked.run(context.get()), FOVEA_OK) << fovea_last_error();
          const std::string where =
              std::to_string(n.seq_q) + "x" + std::to_string(n.seq_kv) + " " + way.name + " dtype " + std::to_string(dtype);
          EXPECT_TRUE(same_bits(call.lse, masked.lse)) << where;
          EXPECT_TRUE(same_bits(call.weights, masked.weights)) << where;
          EXPECT_TRUE(same_bits(call.out, masked.out)) << where;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
