// Scores and values at the ends of their range: the softmax stays exact and safe for any input.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

class SoftmaxRangeTest : public LevelTest {
 protected:
  // One dim, scale 1 and queries of 1: the score is the key. Compared with the oracle.
  void expect_scores(int64_t queries, int64_t keys, const std::function<float(int64_t)> &score, bool causal = false) const {
    for (const int32_t threads : {1, 3}) {
      const auto context = this->context(threads);
      Call call({1, 1, 1, queries, keys, 1, 6});
      call.fill_random(16);
      if (causal) call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
      for (float &q : call.q) q = 1;
      for (int64_t j = 0; j < keys; ++j) call.k_at(0, 0, j, 0) = score(j);
      ASSERT_EQ(call.run(context.get()), FOVEA_OK);
      const reference::Verdict verdict = reference::compare(call.params, reference::attention(call.params, true));
      EXPECT_TRUE(verdict.ok()) << queries << "x" << keys << " threads " << threads << ": out " << verdict.out_ratio << " (row "
                                << verdict.worst_row << ", dim " << verdict.worst_dim << "), lse " << verdict.lse_ratio
                                << ", weights " << verdict.weights_ratio;
    }
  }
};
FOVEA_TEST_EVERY_LEVEL(SoftmaxRangeTest);

// The first keys of a chunk say nothing about those that follow.
TEST_P(SoftmaxRangeTest, ScoresThatRiseAfterTheFirstKeys) {
  for (const bool causal : {false, true}) {
    for (const int64_t queries : {1, 60}) {
      for (const float rise : {13.0f, 14.0f, 15.0f, 30.0f, 88.0f, 89.0f, 200.0f, 1e4f}) {  // 14 is just above 20 log2 units
        for (const int64_t at : {8, 9, 255, 256, 300, 600}) {
          const auto step = [=](int64_t j) { return j < at ? 0.0f : rise; };
          expect_scores(queries, 700, step, causal);
          const auto peak = [=](int64_t j) { return j == at ? rise : 0.0f; };
          expect_scores(queries, 700, peak, causal);
          const auto climb = [=](int64_t j) { return rise * float(j) / float(at); };
          expect_scores(queries, 700, climb, causal);
        }
      }
    }
  }
}

// Beyond 64 blocks a chunk holds several of them: what the earlier ones have summed must follow the new reference.
TEST_P(SoftmaxRangeTest, ScoresThatRiseInALaterBlockOfAChunk) {
  for (const int64_t queries : {1, 60}) {
    for (const float rise : {14.0f, 30.0f, 89.0f}) {
      for (const int64_t at : {300, 5 * 512 + 300, 16900}) {
        expect_scores(queries, 17000, [=](int64_t j) { return j < at ? 0.0f : rise; });
        expect_scores(queries, 17000, [=](int64_t j) { return j == at ? rise : 0.0f; });
      }
    }
  }
}

TEST_P(SoftmaxRangeTest, ScoresFarApart) {
  for (const int64_t queries : {1, 7}) {
    for (const int64_t keys : {2, 9, 300, 3000}) {
      expect_scores(queries, keys, [](int64_t j) { return j % 2 ? 1e4f : -1e4f; });
      expect_scores(queries, keys, [](int64_t j) { return j % 2 ? -1e4f : 1e4f; });
      expect_scores(queries, keys, [](int64_t j) { return float(j % 17) * 1e3f; });
      expect_scores(queries, keys, [](int64_t j) { return -1e30f * float(j % 3); });
      expect_scores(queries, keys, [](int64_t) { return 1e30f; });
      expect_scores(queries, keys, [](int64_t) { return -1e37f; });
    }
  }
}

// Weights from 1 down through the subnormals to nothing.
TEST_P(SoftmaxRangeTest, WeightsInTheSubnormalRange) {
  for (const int64_t queries : {1, 5}) {
    for (const int64_t keys : {150, 700, 20000}) {
      expect_scores(queries, keys, [](int64_t j) { return -float(j % 120); });
      expect_scores(queries, keys, [](int64_t j) { return j == 0 ? 0.0f : -87.0f - float(j % 20); });
      expect_scores(queries, keys, [=](int64_t j) { return j == keys - 1 ? 0.0f : -87.0f - float(j % 20); });
    }
  }
}

// What weighs next to nothing beside a key of value 0 is all that there is of an output. In chunks of its own, from a reference far below.
TEST_P(SoftmaxRangeTest, FaintWeightsBesideAValueOfZero) {
  for (const int64_t queries : {1, 16, 60}) {
    for (const float faint : {60.0f, 90.0f, 104.0f, 107.0f, 115.0f, 125.0f}) {  // -log2 of the weight
      for (const float above_reference : {0.0f, 12.0f, 19.0f}) {
        Call call({1, 1, 1, queries, 700, 1, 6});
        call.fill_random(19);
        for (float &q : call.q) q = 1;
        for (int64_t j = 0; j < 700; ++j)
          call.k_at(0, 0, j, 0) = -std::log(2.0f) * (j == 3 ? 0 : j % 256 < 8 ? faint + above_reference : faint);
        for (int64_t c = 0; c < 6; ++c) call.v_at(0, 0, 3, c) = 0;
        ASSERT_EQ(call.run(context().get()), FOVEA_OK);
        expect_within_bound(call, std::to_string(queries) + " queries, weights of 2^-" + std::to_string(faint) + ", reference " +
                                      std::to_string(above_reference) + " below");
      }
    }
  }
}

// A peak of weight 1 to the last bit, in every place.
TEST_P(SoftmaxRangeTest, OneKeyTakesAll) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const auto &[queries, keys] :
         {std::pair<int64_t, int64_t>(1, 3), {1, 600}, {1, 3000}, {16, 600}, {50, 3}, {50, 40}, {50, 600}, {50, 3000}}) {
      for (int64_t peak = 0; peak < keys; peak += 1 + keys / 13) {
        Call call({1, 1, 1, queries, keys, 1, 3});
        call.fill_random(17);
        call.params.weights.data = nullptr;
        for (float &q : call.q) q = 1;
        for (int64_t j = 0; j < keys; ++j) call.k_at(0, 0, j, 0) = j == peak ? 500.0f : -500.0f;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK);
        for (int64_t i = 0; i < queries; ++i)
          for (int64_t c = 0; c < 3; ++c)
            ASSERT_EQ(call.out_at(0, 0, i, c), call.v_at(0, 0, peak, c)) << "peak " << peak << " of " << keys;
      }
    }
  }
}

// Sums of large values are divided at the end: values up to FLT_MAX / 2^26 stay in range.
TEST_P(SoftmaxRangeTest, HugeValues) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const bool causal : {false, true}) {
      for (const auto &[queries, keys] :
           {std::pair<int64_t, int64_t>(9, 1), {9, 30}, {9, 300}, {9, 1000}, {9, 20000}, {1, 300}, {1, 20000}}) {
        for (const float value : {1e30f, 5e30f, -5e30f}) {
          for (const float rise : {0.0f, 10.0f, 40.0f}) {
            Call call({1, 1, 1, queries, keys, 1, 5});
            if (causal) call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
            for (float &q : call.q) q = 1;
            for (int64_t j = 20; j < keys; ++j) call.k_at(0, 0, j, 0) = rise;
            for (float &v : call.v) v = value;
            ASSERT_EQ(call.run(context.get()), FOVEA_OK);
            const reference::Verdict verdict = reference::compare(call.params, reference::attention(call.params, true));
            EXPECT_TRUE(verdict.ok()) << queries << "x" << keys << ", value " << value << ", rise " << rise << ", causal "
                                      << causal << ", threads " << threads << ": out " << verdict.out_ratio << " first "
                                      << call.out[0];
          }
        }
      }
    }
  }
}

// Scale 0 is a value: all permitted keys weigh the same. So is a negative one.
TEST_P(SoftmaxRangeTest, ScaleOfZeroAndBelow) {
  const auto context = this->context();
  for (const int64_t queries : {1, 9}) {
    Call call({1, 1, 1, queries, 64, 8, 4});
    call.fill_random(18);
    call.params.scale = 0;
    ASSERT_EQ(call.run(context.get()), FOVEA_OK);
    for (const float weight : call.weights) ASSERT_EQ(weight, 1.0f / 64);
  }
  for (const char *queries : {"1", "5", "20"})
    expect_right(std::string("hq=2 hkv=1 skv=300 dk=16 dv=9 scale=-2 lse=1 weights=1 sq=") + queries, level());
}

TEST_P(SoftmaxRangeTest, RowsOfWeightsSumToOne) {
  for (const char *dist : {"normal", "outlier"}) {
    for (const int64_t queries : {1, 70}) {
      reference::ProblemLine line;
      ASSERT_EQ(reference::parse(std::string("hq=4 hkv=2 skv=900 dk=64 dv=1 causal=br weights=1 dist=") + dist, &line), "");
      line.seq_q = queries;
      const auto context = this->context();
      const reference::ProblemData data(line);
      ASSERT_EQ(reference::run_guarded(context.get(), data.params), "");
      const std::vector<float> weights = data.dense_weights();
      ASSERT_EQ(weights.size(), size_t(4 * queries * 900));
      for (size_t row = 0; row < weights.size() / 900; ++row) {
        double sum = 0;
        for (size_t j = 0; j < 900; ++j) sum += double(weights[row * 900 + j]);
        ASSERT_NEAR(sum, 1, 1e-6) << dist << " row " << row << " of " << queries;
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
