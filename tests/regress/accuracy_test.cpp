// Errors against the float64 oracle, for scores from flat to extremely peaked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/call.h"
#include "support/elements.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

class AccuracyTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(AccuracyTest);

TEST_P(AccuracyTest, FlatAndPeakedScores) {
  for (const char *gain : {"1", "3", "5", "10"}) {
    for (const char *sizes : {"sq=256 skv=256 dk=64 dv=64", "sq=64 skv=1024 dk=128 dv=128", "sq=24 skv=4096 dk=64 dv=64"})
      expect_right(std::string(sizes) + " hq=2 hkv=2 lse=1 weights=1 gain=" + gain, level());
  }
  expect_right("hq=16 hkv=16 sq=240 skv=240 dk=128 dv=128 gain=10 lse=1", level());
}

// Values that are all alike round alike: errors of a long sum add up instead of cancelling.
TEST_P(AccuracyTest, SumsOfEqualTerms) {
  for (const char *gain : {"1.1", "0.1", "0.7", "3e+30"})
    for (const char *keys : {"64", "256", "1000", "4096", "33000"})
      expect_right(std::string("sq=9 dv=17 scale=0 dist=ones lse=1 weights=1 gain=") + gain + " skv=" + keys, level());
}

// Like exponentials round alike too: the first key of every chunk scores 0, the others a little less.
TEST_P(AccuracyTest, SumsOfLikeExponentials) {
  const auto context = this->context(2);
  for (const int64_t queries : {1, 5}) {
    for (const int64_t keys : {256, 16384, 70000}) {
      for (const float score : {-0.00817198027f, -0.0280717388f, -0.0374436192f, -0.088601023f}) {
        Call call({1, 1, 1, queries, keys, 1, 1});
        for (float &q : call.q) q = 1;
        for (int64_t j = 0; j < keys; ++j) call.k_at(0, 0, j, 0) = j % 256 ? score : 0;
        for (float &v : call.v) v = 0.925637841f;
        call.params.weights.data = nullptr;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK);
        const reference::Verdict verdict = reference::compare(call.params, reference::attention(call.params));
        EXPECT_TRUE(verdict.ok()) << queries << " queries, " << keys << " keys, score " << score << ": lse " << verdict.lse_ratio
                                  << ", out " << verdict.out_ratio << " of the bound";
      }
    }
  }
}

// So do the products of a score, with few rows and with many.
TEST_P(AccuracyTest, ScoresOfLikeProducts) {
  for (const char *gain : {"0.7", "0.83", "0.96"})
    for (const char *queries : {"1", "4", "5", "60"})
      for (const char *dims : {"64", "256", "512", "576"})
        for (const char *types : {"", " type=bf16 tout=f32"})
          expect_right(std::string("skv=9 dv=3 dist=ones lse=1 gain=") + gain + " sq=" + queries + " dk=" + dims + types,
                       level());
}

// Ordinary inputs: a few 1e-6 of the largest value, and the mean of all errors next to nothing.
TEST_P(AccuracyTest, OrdinaryInputsInPlainNumbers) {
  for (const char *sizes : {"hq=2 hkv=2 sq=256 skv=256 dk=64 dv=64", "hq=2 hkv=2 sq=64 skv=4096 dk=128 dv=128"}) {
    reference::ProblemLine line;
    ASSERT_EQ(reference::parse(std::string(sizes) + " isa=" + level(), &line), "");
    const auto context = this->context();
    const reference::ProblemData data(line);
    ASSERT_EQ(reference::run_guarded(context.get(), data.params), "");
    const reference::Expected expected = reference::attention(data.params);
    const std::vector<float> out = data.dense_out();
    double worst = 0, sum = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      const double error = double(out[i]) - expected.out[i];
      worst = std::max(worst, std::fabs(error));
      sum += error;
    }
    EXPECT_LT(worst, 2e-6) << sizes;
    EXPECT_LT(std::fabs(sum / double(out.size())), 5e-9) << sizes;
  }
}

// What anybody would write: everything in float, in order, the result rounded to the type of out. One head, dense.
std::vector<double> naive_attention(const fovea_params &p) {
  const auto read = [](const fovea_tensor &t, int64_t row, int64_t d) {
    return float(reference::read_element(t.data, t.dtype, row * t.stride[2] + d));
  };
  const auto floats = [&](const fovea_tensor &t, int64_t rows, int64_t dim) {
    std::vector<float> values;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t d = 0; d < dim; ++d) values.push_back(read(t, row, d));
    return values;
  };
  const std::vector<float> q = floats(p.q, p.seq_q, p.dim_k), k = floats(p.k, p.seq_kv, p.dim_k),
                           v = floats(p.v, p.seq_kv, p.dim_v);
  Elements out(p.out.dtype, size_t(p.seq_q * p.dim_v));
  std::vector<float> score(size_t(p.seq_kv)), sums(size_t(p.dim_v));
  for (int64_t i = 0; i < p.seq_q; ++i) {
    for (int64_t j = 0; j < p.seq_kv; ++j) {
      float dot = 0;
      for (int64_t d = 0; d < p.dim_k; ++d) dot += q[size_t(i * p.dim_k + d)] * k[size_t(j * p.dim_k + d)];
      score[size_t(j)] = p.scale * dot;
    }
    const float maximum = *std::max_element(score.begin(), score.end());
    float sum = 0;
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t j = 0; j < p.seq_kv; ++j) {
      const float weight = std::exp(score[size_t(j)] - maximum);
      sum += weight;
      for (int64_t d = 0; d < p.dim_v; ++d) sums[size_t(d)] += weight * v[size_t(j * p.dim_v + d)];
    }
    for (int64_t d = 0; d < p.dim_v; ++d) out.set(size_t(i * p.dim_v + d), double{sums[size_t(d)] / sum});
  }
  std::vector<double> result;
  for (size_t i = 0; i < out.size(); ++i) result.push_back(out[i]);
  return result;
}

struct Errors {
  double largest = 0, mean = 0, mean_square = 0;
  Errors(const std::vector<double> &exact, const std::vector<double> &actual) {
    for (size_t i = 0; i < exact.size(); ++i) {
      const double error = actual[i] - exact[i];
      largest = std::max(largest, std::fabs(error));
      mean += error / double(exact.size());
      mean_square += error * error / double(exact.size());
    }
  }
};

// Nothing is lost to the types of 16 bits but what anybody loses, and rounding leans to neither side.
TEST_P(AccuracyTest, Of16BitsLikeFloatArithmetic) {
  const auto context = this->context();
  for (const char *types : {"type=f16", "type=bf16", "type=f16 tout=f32", "type=bf16 tout=f32", "tk=bf16 tv=f16",
                            "tk=f16 tv=bf16 tout=f16", "tq=bf16 tk=f16 tv=f32 tout=bf16"}) {
    for (const char *sizes : {"sq=64 skv=256 dk=64 dv=64", "sq=40 skv=1024 dk=128 dv=128", "sq=2 skv=1024 dk=128 dv=128",
                              "sq=16 skv=4096 dk=64 dv=64", "sq=60 skv=240 dk=128 dv=128"}) {
      for (const char *gain : {"1", "3", "10"}) {
        // Where a few keys have nearly all weight, the largest error of one problem is luck: of three it is less so.
        double ours_largest = 0, naive_largest = 0;
        std::string problem;
        for (const char *seed : {"1", "2", "3"}) {
          reference::ProblemLine line;
          ASSERT_EQ(reference::parse(std::string(sizes) + " gain=" + gain + " seed=" + seed + " " + types, &line), "");
          const reference::ProblemData data(line);
          ASSERT_EQ(reference::run_guarded(context.get(), data.params), "");
          const std::vector<float> out = data.dense_out();
          const std::vector<double> exact = reference::attention(data.params).out;
          const Errors ours(exact, {out.begin(), out.end()}), naive(exact, naive_attention(data.params));
          ours_largest = std::max(ours_largest, ours.largest);
          naive_largest = std::max(naive_largest, naive.largest);
          problem = reference::format(line);
          if (line.type_out != "f32") {  // errors of one rounding each, so that their mean is that of independent numbers
            EXPECT_LT(std::fabs(ours.mean), 5 * std::sqrt(ours.mean_square / double(exact.size()))) << reference::format(line);
          }
        }
        EXPECT_LE(ours_largest, 2 * naive_largest) << problem;
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
