// The code of docs/score-functions.md, word for word, and what it computes against the formulas it is written for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

struct RelativeBias {
  const float *table;  // [heads][2 * furthest + 1], from the key furthest behind the query to the one furthest ahead
  int64_t furthest;
};

void add_relative_bias(void *user, const fovea_score_tile *tile) {
  const RelativeBias &bias = *static_cast<const RelativeBias *>(user);
  const float *table = bias.table + tile->head * (2 * bias.furthest + 1) + bias.furthest;
  for (int64_t i = 0; i < tile->rows; ++i) {
    for (int64_t j = 0; j < tile->cols; ++j) {
      const int64_t distance = (tile->col0 + j) - (tile->row0 + i);
      const int64_t clipped = std::min(std::max(distance, -bias.furthest), bias.furthest);
      tile->score[i * tile->row_stride + j * tile->col_stride] += table[clipped];
    }
  }
}

fovea_status attend_with_relative_bias(const fovea_context *context, fovea_params *p, RelativeBias *bias) {
  p->score_mode = FOVEA_SCORE_MODIFY;
  p->score = add_relative_bias;
  p->score_user = bias;
  return fovea_forward(context, p, nullptr, 0);
}

void additive_attention(void *user, const fovea_score_tile *tile) {
  const float *w = static_cast<const float *>(user);
  for (int64_t i = 0; i < tile->rows; ++i) {
    for (int64_t j = 0; j < tile->cols; ++j) {
      const float *q = tile->q + i * tile->ldq, *k = tile->k + j * tile->ldk;
      float score = 0;
      for (int64_t d = 0; d < tile->dim_k; ++d) score += w[d] * std::tanh(q[d] + k[d]);
      tile->score[i * tile->row_stride + j * tile->col_stride] = score;
    }
  }
}

fovea_status attend_additively(const fovea_context *context, fovea_params *p, float *w) {
  p->score_mode = FOVEA_SCORE_REPLACE;
  p->score = additive_attention;
  p->score_user = w;
  return fovea_forward(context, p, nullptr, 0);
}

std::string text_of(const std::string &path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(ScoreFunctionDocumentTest, ShowsTheCodeOfThisFile) {
  const std::string file = __FILE__, folder = file.substr(0, file.rfind("tests/regress/"));
  const std::string code = text_of(file), page = text_of(folder + "docs/score-functions.md"), fence = "```cpp\n";
  ASSERT_NE(code, "") << file;
  int blocks = 0;
  for (size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at + 1), ++blocks) {
    const size_t begin = at + fence.size();
    const std::string block = page.substr(begin, page.find("```", begin) - begin);
    EXPECT_NE(code.find("\n" + block), std::string::npos) << block;
  }
  EXPECT_EQ(blocks, 4);
}

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
    ASSERT_EQ(attend_with_relative_bias(context(2).get(), &call.params, &bias), FOVEA_OK) << fovea_last_error();
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
    ASSERT_EQ(attend_additively(context(2).get(), &call.params, w.data()), FOVEA_OK) << fovea_last_error();
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
