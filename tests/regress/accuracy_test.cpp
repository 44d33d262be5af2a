// Errors against the float64 oracle, for scores from flat to extremely peaked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/call.h"
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
        expect_right(std::string("skv=9 dv=3 dist=ones lse=1 gain=") + gain + " sq=" + queries + " dk=" + dims, level());
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

}  // namespace
}  // namespace fovea::testing
