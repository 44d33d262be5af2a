// The score functions of docs/score-functions.md, which are those of the programs in examples/, on calls of many tiles and on every
// level: what they compute is what their formulas say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/call.h"
#include "support/levels.h"

extern "C" {  // examples/relative_bias.c and examples/additive_attention.c
struct RelativeBias {
  const float *table;
  int64_t furthest;
};
void add_relative_bias(void *user, const fovea_score_tile *tile);
void additive_attention(void *user, const fovea_score_tile *tile);
}

namespace fovea::testing {
namespace {

class ScoreFunctionExamplesTest : public LevelTest {
 protected:
  // A causal call of several tiles each way, with f(h, i, j) for natural scores.
  template <class Score>
  static void expect_scores(Call &call, Score f) {
    const Sizes &n = call.n;
    for (int64_t h = 0; h < n.heads_q; ++h) {
      for (int64_t i = 0; i < n.seq_q; ++i) {
        const int64_t keys = i + n.seq_kv - n.seq_q + 1;
        double sum = 0;
        std::vector<double> weighted(size_t(n.dim_v), 0.0);
        for (int64_t j = 0; j < keys; ++j) {
          const double e = std::exp(f(h, i, j));
          sum += e;
          for (int64_t c = 0; c < n.dim_v; ++c) weighted[size_t(c)] += e * call.v_at(0, h * n.heads_kv / n.heads_q, j, c);
        }
        ASSERT_NEAR(call.lse_at(0, h, i), std::log(sum), 1e-5) << "head " << h << ", query " << i;
        for (int64_t c = 0; c < n.dim_v; ++c)
          ASSERT_NEAR(call.out_at(0, h, i, c), weighted[size_t(c)] / sum, 1e-5) << "head " << h << ", query " << i;
      }
    }
  }
};
FOVEA_TEST_EVERY_LEVEL(ScoreFunctionExamplesTest);

TEST_P(ScoreFunctionExamplesTest, RelativeBias) {
  for (const int64_t queries : {1, 270}) {
    Call call({1, 4, 2, queries, 600, 8, 5});
    call.fill_random(11);
    call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
    constexpr int64_t kFurthest = 100;
    std::vector<float> table;
    for (int64_t n = 0; n < 4 * (2 * kFurthest + 1); ++n) table.push_back(float(std::sin(0.7 * double(n))));
    RelativeBias bias = {table.data(), kFurthest};
    call.params.score_mode = FOVEA_SCORE_MODIFY;
    call.params.score = add_relative_bias;
    call.params.score_user = &bias;
    ASSERT_EQ(fovea_forward(context(2).get(), &call.params, nullptr, 0), FOVEA_OK) << fovea_last_error();
    expect_scores(call, [&](int64_t h, int64_t i, int64_t j) {
      double s = 0;
      for (int64_t c = 0; c < 8; ++c) s += double(call.q_at(0, h, i, c)) * double(call.k_at(0, h / 2, j, c));
      const int64_t distance = std::min(std::max(j - i, -kFurthest), kFurthest);
      return s / std::sqrt(8.0) + std::sin(0.7 * double(h * (2 * kFurthest + 1) + kFurthest + distance));
    });
  }
}

TEST_P(ScoreFunctionExamplesTest, AdditiveAttention) {
  for (const int64_t queries : {1, 270}) {
    Call call({1, 4, 2, queries, 600, 6, 5});
    call.fill_random(12);
    call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
    std::vector<float> w = {1, -2, 0.5f, 3, -1, 0.25f};
    call.params.score_mode = FOVEA_SCORE_REPLACE;
    call.params.score = additive_attention;
    call.params.score_user = w.data();
    ASSERT_EQ(fovea_forward(context(2).get(), &call.params, nullptr, 0), FOVEA_OK) << fovea_last_error();
    expect_scores(call, [&](int64_t h, int64_t i, int64_t j) {
      double s = 0;
      for (int64_t c = 0; c < 6; ++c)
        s += double(w[size_t(c)]) * std::tanh(double(call.q_at(0, h, i, c)) + double(call.k_at(0, h / 2, j, c)));
      return s;
    });
  }
}

}  // namespace
}  // namespace fovea::testing
