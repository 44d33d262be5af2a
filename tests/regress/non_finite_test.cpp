// NaN and infinity: at a permitted key they show, in the rows that permit it and in no other; at an excluded key they never reach
// an output, whatever stands beside them in a tile.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/call.h"
#include "support/elements.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::nanf("");
const float kPoisons[] = {kNaN, kInfinity, -kInfinity, 1e30f, 1e10f};
constexpr int64_t kQueries[] = {1, 16, 60};

class NonFiniteTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(NonFiniteTest);

struct Lengths {
  int64_t queries, keys;
};

// Poison in K and V of every key from `first` on; rows that see none of them keep their bits.
void expect_unseen(const fovea_context *context, fovea_dtype type, Lengths n, int32_t align, int64_t first) {
  const auto run = [&](Call &call) {
    Elements q(type, call.q), k(type, call.k), v(type, call.v);
    q.become(&call.params.q);
    k.become(&call.params.k);
    v.become(&call.params.v);
    return call.run(context);
  };
  Call clean({1, 2, 1, n.queries, n.keys, 20, 19});
  clean.fill_random(13);
  clean.causal(align);
  ASSERT_EQ(run(clean), FOVEA_OK);
  for (const float poison : kPoisons) {
    Call call({1, 2, 1, n.queries, n.keys, 20, 19});
    call.fill_random(13);
    call.causal(align);
    for (int64_t j = first; j < n.keys; ++j) {
      for (int64_t c = 0; c < 20; ++c) call.k_at(0, 0, j, c) = poison;
      for (int64_t c = 0; c < 19; ++c) call.v_at(0, 0, j, c) = poison;
    }
    ASSERT_EQ(run(call), FOVEA_OK);
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < n.queries; ++i) {
        const int64_t position = align == FOVEA_ALIGN_BOTTOM_RIGHT ? i + n.keys - n.queries : i;
        if (position >= first) {
          if (std::isnan(poison)) {
            ASSERT_TRUE(std::isnan(call.out_at(0, h, i, 0))) << "row " << i << " hides a NaN";
            ASSERT_TRUE(std::isnan(call.lse_at(0, h, i))) << "row " << i << " hides a NaN";
          }
          continue;
        }
        const std::string where = std::to_string(n.queries) + "x" + std::to_string(n.keys) + " align " + std::to_string(align) +
                                  " row " + std::to_string(i) + " poison " + std::to_string(poison) + " from key " +
                                  std::to_string(first);
        ASSERT_EQ(std::memcmp(&call.out_at(0, h, i, 0), &clean.out_at(0, h, i, 0), 19 * sizeof(float)), 0) << where;
        ASSERT_EQ(std::memcmp(&call.lse_at(0, h, i), &clean.lse_at(0, h, i), sizeof(float)), 0) << where;
        ASSERT_EQ(std::memcmp(&call.weight_at(0, h, i, 0), &clean.weight_at(0, h, i, 0), size_t(n.keys) * sizeof(float)), 0)
            << where;
      }
    }
  }
}

TEST_P(NonFiniteTest, ExcludedKeysNeverShow) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const Lengths n : {Lengths{2, 2}, Lengths{12, 12}, Lengths{100, 100}, Lengths{300, 600}, Lengths{5, 9}, Lengths{60, 20},
                            Lengths{4, 1300}, Lengths{1, 700}, Lengths{16, 300}}) {
      for (const int32_t align : {FOVEA_ALIGN_TOP_LEFT, FOVEA_ALIGN_BOTTOM_RIGHT}) {
        for (const int64_t first : {int64_t{1}, n.keys / 2, n.keys - 3, n.keys - 1})
          for (const fovea_dtype type : kDtypes)
            if (first > 0) expect_unseen(context.get(), type, n, align, first);
      }
    }
  }
}

// Keys that no query sees are not even read: the page is not there.
TEST_P(NonFiniteTest, KeysThatNobodySeesMayBeMissing) {
  constexpr int64_t kMissing = 40, kDimK = 24, kDimV = 17;
  static_assert(kMissing * kDimK * sizeof(float) < 4096, "they lie on the guard page, which belongs to no other tensor");
  const auto context = this->context(2);
  for (const auto &[queries, type] : {std::pair<int64_t, const char *>(1, "f32"),
                                      {5, "f32"},
                                      {60, "f32"},
                                      {300, "f32"},
                                      {1, "f16"},
                                      {5, "bf16"},
                                      {60, "f16"},
                                      {300, "bf16"}}) {
    reference::ProblemLine line;
    line.type_q = line.type_k = line.type_v = line.type_out = type;
    line.causal = "tl";
    line.seq_q = line.seq_kv = queries;
    line.dim_k = kDimK;
    line.dim_v = kDimV;
    const reference::ProblemData data(line);
    fovea_params params = data.params;
    params.seq_kv = queries + kMissing;  // k and v end at an inaccessible page all the same
    std::vector<float> weights(size_t(queries * params.seq_kv), 1.0f);
    params.weights.data = weights.data();
    params.weights.stride[2] = params.seq_kv;
    ASSERT_EQ(reference::run_guarded(context.get(), params), "");
    EXPECT_TRUE(data.output_gaps_intact());
    for (int64_t i = 0; i < queries; ++i)
      for (int64_t j = i + 1; j < params.seq_kv; ++j) ASSERT_EQ(weights[size_t(i * params.seq_kv + j)], 0.0f) << i << " " << j;
  }
}

TEST_P(NonFiniteTest, NaNInAQueryShowsInThatRowOnly) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const Lengths n : {Lengths{100, 50}, Lengths{3, 2000}, Lengths{16, 300}}) {
      Call clean({1, 1, 1, n.queries, n.keys, 16, 8});
      clean.fill_random(14);
      ASSERT_EQ(clean.run(context.get()), FOVEA_OK);
      Call call({1, 1, 1, n.queries, n.keys, 16, 8});
      call.fill_random(14);
      call.q_at(0, 0, 1, 5) = kNaN;
      ASSERT_EQ(call.run(context.get()), FOVEA_OK);
      for (int64_t i = 0; i < n.queries; ++i) {
        if (i == 1) {
          for (int64_t c = 0; c < 8; ++c) EXPECT_TRUE(std::isnan(call.out_at(0, 0, i, c)));
          EXPECT_TRUE(std::isnan(call.lse_at(0, 0, i)));
          for (int64_t j = 0; j < n.keys; ++j) ASSERT_TRUE(std::isnan(call.weight_at(0, 0, i, j)));
        } else {
          ASSERT_EQ(std::memcmp(&call.out_at(0, 0, i, 0), &clean.out_at(0, 0, i, 0), 8 * sizeof(float)), 0) << i;
        }
      }
    }
  }
}

TEST_P(NonFiniteTest, NaNInAKeyMakesEveryRowThatSeesItNaN) {
  const auto context = this->context();
  for (const int64_t queries : kQueries) {
    for (const int64_t keys : {1, 7, 40, 300, 1000}) {
      for (const int64_t bad : {int64_t{0}, keys / 2, keys - 1}) {
        Call call({1, 1, 1, queries, keys, 16, 8});
        call.fill_random(15);
        call.k_at(0, 0, bad, 3) = kNaN;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK);
        for (const float out : call.out) ASSERT_TRUE(std::isnan(out)) << keys << " keys, NaN in " << bad;
        for (const float lse : call.lse) ASSERT_TRUE(std::isnan(lse)) << keys << " keys, NaN in " << bad;
      }
    }
  }
}

// A chunk whose scores are all -infinity still holds its values: the result is the same whether the chunk was a task of its own.
TEST_P(NonFiniteTest, ValuesBehindScoresOfMinusInfinityOnAnyThreads) {
  Call call({1, 1, 1, 1, 512, 1, 1});
  call.q_at(0, 0, 0, 0) = 1;
  for (int64_t j = 256; j < 512; ++j) call.k_at(0, 0, j, 0) = -kInfinity;
  for (const int32_t threads : {1, 2, 3, 7}) {
    ASSERT_EQ(call.run(context(threads).get()), FOVEA_OK);
    EXPECT_EQ(call.out[0], 1.0f) << threads << " threads";
  }
  call.v_at(0, 0, 300, 0) = kNaN;
  for (const int32_t threads : {1, 2, 3, 7}) {
    ASSERT_EQ(call.run(context(threads).get()), FOVEA_OK);
    EXPECT_TRUE(std::isnan(call.out[0])) << threads << " threads";
  }
}

TEST_P(NonFiniteTest, ScoreOfPlusInfinityMakesTheRowNaN) {
  const auto context = this->context();
  for (const int64_t queries : kQueries) {
    for (const int64_t keys : {1, 7, 40, 300, 1000}) {
      for (const int64_t bad : {int64_t{0}, keys / 2, keys - 1}) {
        Call call({1, 1, 1, queries, keys, 1, 8});
        for (int64_t i = 0; i < queries; ++i) call.q_at(0, 0, i, 0) = i % 2 ? -1.0f : 1.0f;
        call.k_at(0, 0, bad, 0) = kInfinity;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK);
        for (int64_t i = 0; i < queries; ++i) {
          for (int64_t c = 0; c < 8; ++c) {
            if (i % 2 == 0)
              ASSERT_TRUE(std::isnan(call.out_at(0, 0, i, c))) << keys << " keys, infinity in " << bad;
            else
              ASSERT_EQ(call.out_at(0, 0, i, c), keys > 1 ? 1.0f : 0.0f)
                  << keys << " keys, infinity in " << bad;  // excluded there
          }
        }
      }
    }
  }
}

TEST_P(NonFiniteTest, ValuesThatAreNotFiniteShowInTheirDim) {
  const auto context = this->context();
  for (const int64_t queries : kQueries) {
    for (const int64_t keys : {1, 40, 1000}) {
      for (const int64_t bad : {int64_t{0}, keys / 2, keys - 1}) {
        Call call({1, 1, 1, queries, keys, 4, 5});
        call.v_at(0, 0, bad, 1) = kNaN;
        call.v_at(0, 0, bad, 2) = kInfinity;
        call.v_at(0, 0, bad, 3) = -kInfinity;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK);
        for (int64_t i = 0; i < queries; ++i) {
          EXPECT_EQ(call.out_at(0, 0, i, 0), 1.0f);
          EXPECT_TRUE(std::isnan(call.out_at(0, 0, i, 1)));
          EXPECT_EQ(call.out_at(0, 0, i, 2), kInfinity);
          EXPECT_EQ(call.out_at(0, 0, i, 3), -kInfinity);
          EXPECT_EQ(call.out_at(0, 0, i, 4), 1.0f);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
