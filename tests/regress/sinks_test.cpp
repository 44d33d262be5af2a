// A head's sink is one more score that has no value: it enters the sum of exponentials once, in natural units after scale and softcap, and
// nothing else. With n equal scores of 0 and values of 1 the output is n / (n + exp(sink)).
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>

#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kThreads[] = {1, 2, 3, 7};

class SinksTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(SinksTest);

void expect_counts(Call &call, const std::vector<float> &sinks, int64_t n, const std::string &what) {
  for (int64_t h = 0; h < call.n.heads_q; ++h) {
    const double sink = double(sinks[size_t(h)]), sum = double(n) + std::exp(sink);
    const double relative = 4e-6 * (1 + (std::isinf(sink) ? 0 : std::fabs(sink)));
    const double lse = sink > 700 ? sink : std::log(sum);
    for (int64_t i = 0; i < call.n.seq_q; ++i) {
      const std::string where = what + " sink " + std::to_string(sink) + " row " + std::to_string(i);
      const double share = double(n) / sum;
      for (int64_t c = 0; c < call.n.dim_v; ++c) ASSERT_NEAR(call.out_at(0, h, i, c), share, relative * share) << where;
      ASSERT_NEAR(call.lse_at(0, h, i), lse, 1e-6 * (1 + std::fabs(lse))) << where;
      for (int64_t j = 0; j < call.n.seq_kv && call.params.weights.data; ++j) {
        if (call.weight_at(0, h, i, j) == 0) continue;  // excluded
        ASSERT_NEAR(call.weight_at(0, h, i, j), 1 / sum, relative / sum) << where;
      }
    }
  }
}

TEST_P(SinksTest, CountProbe) {
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 3, 50}) {
      for (const int64_t keys : {1, 3, 8, 100, 257, 5000}) {
        if (queries == 50 && keys == 5000) continue;
        // As many heads as sinks, each its own.
        const std::vector<float> sinks = {std::log(float(keys)), 0, -kInfinity, 80, -80, 5, -3, 1e4f};
        for (const int64_t heads_kv : {8, 2, 1}) {
          Call call({1, 8, heads_kv, queries, keys, 4, 3});
          call.params.sinks = sinks.data();
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          expect_counts(call, sinks, keys, std::to_string(queries) + "x" + std::to_string(keys));
          for (int64_t i = 0; i < queries; ++i) EXPECT_NEAR(call.out_at(0, 0, i, 0), 0.5, 2e-6);
        }
      }
    }
  }
}

TEST_P(SinksTest, OfPermittedKeysOnly) {
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    const std::vector<float> sinks = {2, -1};
    for (const int64_t queries : {1, 50}) {
      for (const fovea_dtype dtype : kMaskDtypes) {
        Call call({1, 2, 1, queries, 900, 4, 3});
        Mask mask(dtype, call.n, "k");
        mask.permit_where([](int64_t, int64_t, int64_t, int64_t j) { return j >= 600 && j < 607; });
        call.params.mask = mask.tensor();
        call.params.sinks = sinks.data();
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        expect_counts(call, sinks, 7, "dtype " + std::to_string(dtype));
        double sum = 0;
        for (int64_t j = 0; j < 900; ++j) sum += double(call.weight_at(0, 0, 0, j));
        EXPECT_NEAR(sum, 7 / (7 + std::exp(2.0)), 4e-6) << "a row of weights sums to less with a sink";
      }
    }
  }
}

// Neither the scale nor softcap touches it, and it caps nothing.
TEST_P(SinksTest, AfterScaleAndSoftcap) {
  const auto context = this->context(2);
  const std::vector<float> sinks = {5, -3};
  for (const int64_t queries : {1, 3, 50}) {
    for (const float scale : {0.0f, 0.01f, 3.0f}) {
      Call call({1, 2, 2, queries, 40, 4, 3});
      call.params.scale = scale;
      call.params.softcap = 1;
      call.params.sinks = sinks.data();
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      expect_counts(call, sinks, 40, "scale " + std::to_string(scale));
    }
    // Scores of 2, softcap 1, a sink of 1: the cap makes them tanh(2).
    Call call({1, 1, 1, queries, 3, 1, 1});
    for (float &q : call.q) q = 4;
    for (float &k : call.k) k = 1;
    const float sink = 1;
    call.params.scale = 0.5f;
    call.params.softcap = 1;
    call.params.sinks = &sink;
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    const double capped = 3 * std::exp(std::tanh(2.0));
    for (const float out : call.out) EXPECT_NEAR(out, capped / (capped + std::exp(1.0)), 2e-6);
    for (const float lse : call.lse) EXPECT_NEAR(lse, std::log(capped + std::exp(1.0)), 2e-6);
  }
}

TEST_P(SinksTest, OfMinusInfinityIsNone) {
  const float none[] = {-kInfinity, -kInfinity, -kInfinity, -kInfinity}, mixed[] = {1, -kInfinity, 2, -kInfinity};
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 3, 50}) {
      for (const int64_t keys : {1, 9, 300, 3000}) {
        Call clean({1, 4, 2, queries, keys, 8, 9}), call({1, 4, 2, queries, keys, 8, 9});
        clean.fill_random(91);
        call.fill_random(91);
        ASSERT_EQ(clean.run(context.get()), FOVEA_OK);
        call.params.sinks = none;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        EXPECT_TRUE(same_bits(call.out, clean.out)) << queries << "x" << keys;
        EXPECT_TRUE(same_bits(call.lse, clean.lse)) << queries << "x" << keys;
        EXPECT_TRUE(same_bits(call.weights, clean.weights)) << queries << "x" << keys;
        call.params.sinks = mixed;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        for (int64_t i = 0; i < queries; ++i)
          for (int64_t h = 0; h < 4; ++h)
            EXPECT_EQ(same_row(call, clean, {0, h, i}), h % 2 == 1) << queries << "x" << keys << " head " << h << " row " << i;
      }
    }
  }
}

// Without a key the sink is all there is: out 0, weights 0, LSE the sink.
TEST_P(SinksTest, OfEmptyRows) {
  const std::vector<float> sinks = {1.5f, -kInfinity, -200, 80};
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 3, 50}) {
      for (const int64_t keys : {0, 9, 300}) {
        for (const fovea_dtype dtype : kMaskDtypes) {
          Call call({1, 4, 1, queries, keys, 8, 9});
          call.fill_random(92);
          Mask mask(dtype, call.n, "q");
          mask.permit_where([](int64_t, int64_t, int64_t i, int64_t) { return i % 2 == 1; });
          call.params.mask = mask.tensor();
          call.params.sinks = sinks.data();
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          for (int64_t h = 0; h < 4; ++h)
            for (int64_t i = 0; i < queries; ++i) {
              if (i % 2 == 1 && keys) continue;
              const float sink = sinks[size_t(h)];
              for (int64_t c = 0; c < 9; ++c) ASSERT_EQ(call.out_at(0, h, i, c), 0.0f) << "sink " << sink;
              for (int64_t j = 0; j < keys; ++j) ASSERT_EQ(call.weight_at(0, h, i, j), 0.0f) << "sink " << sink;
              if (std::isinf(sink))
                ASSERT_EQ(call.lse_at(0, h, i), sink);
              else
                ASSERT_NEAR(call.lse_at(0, h, i), sink, 1e-6 * (1 + std::fabs(sink)));
            }
          expect_within_bound(call, std::to_string(queries) + "x" + std::to_string(keys) + " dtype " + std::to_string(dtype));
        }
      }
    }
  }
}

// Beside scores of any size, before and after them; a sink that drowns them leaves 0 and no NaN.
TEST_P(SinksTest, BesideScoresOfAnySize) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 3, 50}) {
      for (const int64_t keys : {5, 300, 3000}) {
        for (const float gain : {1.0f, 30.0f, 1000.0f}) {
          Call call({1, 4, 2, queries, keys, 8, 9});
          call.fill_random(93);
          for (float &q : call.q) q *= gain;
          const float sinks[] = {gain, -gain, 0.5f, 3 * gain};
          call.params.sinks = sinks;
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          expect_within_bound(call, std::to_string(queries) + "x" + std::to_string(keys) + " gain " + std::to_string(gain));
        }
        const float huge[] = {FLT_MAX, 1e38f, -1e38f, -FLT_MAX};
        Call call({1, 4, 2, queries, keys, 8, 9});
        call.params.sinks = huge;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        for (int64_t h = 0; h < 4; ++h)
          for (int64_t i = 0; i < queries; ++i) {
            ASSERT_EQ(call.out_at(0, h, i, 0), h < 2 ? 0.0f : 1.0f) << "sink " << huge[h];
            ASSERT_FALSE(std::isnan(call.lse_at(0, h, i))) << "sink " << huge[h];
          }
      }
    }
  }
}

// A sink so far above the first keys that its exponential beside theirs leaves the range of float, and not so far above those that follow:
// their weights are small but normal numbers, and their values large.
TEST_P(SinksTest, FarAboveTheFirstKeys) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 3, 50}) {
      for (const int64_t keys : {9, 600}) {
        for (const float rise : {3.0f, 6.0f, 12.0f}) {
          for (const float above : {70.0f, 80.0f, 86.0f}) {
            Call call({1, 1, 1, queries, keys, 1, 5});
            call.fill_random(95);
            for (float &q : call.q) q = 1;
            for (float &v : call.v) v = 1000 + v;
            for (int64_t j = 0; j < keys; ++j) call.k_at(0, 0, j, 0) = j == keys - 2 ? rise : 0.0f;
            const float sink = rise + above;
            call.params.sinks = &sink;
            ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
            expect_within_bound(call, std::to_string(queries) + "x" + std::to_string(keys) + " rise " + std::to_string(rise) +
                                          " sink " + std::to_string(sink));
          }
        }
      }
    }
  }
}

// A sink so far above the scores that weights are counted in another unit: a chunk's part of the output is the same number wherever it was
// added up.
class FarSink {
 public:
  Call call;
  // The sink far above all scores. The first 256 keys score lower and have large values, the others 0; or all values are small.
  FarSink(int64_t queries, int64_t keys, bool large) : call({1, 1, 1, queries, keys, 1, 1}), sink_(large ? 110.0f : 60.0f) {
    call.fill_random(96);
    for (float &q : call.q) q = 1;
    call.params.scale = 1;
    call.params.sinks = &sink_;
    call.params.weights.data = nullptr;
    for (int64_t j = 0; j < keys; ++j) {
      const bool first = j < 256;
      call.k_at(0, 0, j, 0) = large ? first ? 0.0f : 48.0f : 1 + call.k_at(0, 0, j, 0);
      call.v_at(0, 0, j, 0) = large ? first ? 1e30f : 0.0f : call.v_at(0, 0, j, 0) * (first ? 1e-15f : 1e-21f);
    }
  }

 private:
  float sink_;
};

TEST_P(SinksTest, BitsDependOnNoWorkers) {
  for (const bool large : {true, false}) {
    for (const int64_t queries : {1, 3, 20}) {
      for (const int64_t keys : {512, 768, 3000}) {
        FarSink far(queries, keys, large);
        ASSERT_EQ(far.call.run(context(1).get()), FOVEA_OK) << fovea_last_error();
        const std::vector<float> out = far.call.out, lse = far.call.lse;
        expect_within_bound(far.call, std::to_string(queries) + "x" + std::to_string(keys) + " large " + std::to_string(large));
        for (const int32_t threads : {2, 3, 8}) {
          ASSERT_EQ(far.call.run(context(threads).get()), FOVEA_OK) << fovea_last_error();
          EXPECT_TRUE(same_bits(far.call.out, out)) << threads << " threads, " << queries << "x" << keys << " large " << large;
          EXPECT_TRUE(same_bits(far.call.lse, lse)) << threads << " threads, " << queries << "x" << keys << " large " << large;
        }
      }
    }
  }
}

// The row beside it may end before it, or see one chunk more.
TEST_P(SinksTest, BitsDependOnNoNeighbour) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const bool large : {true, false}) {
      for (const int64_t queries : {2, 8, 32}) {
        FarSink alone(queries, 768, large), beside(queries, 768, large);
        Mask one(FOVEA_BOOL, alone.call.n, "qk"), two(FOVEA_BOOL, alone.call.n, "qk");
        one.permit_where([](int64_t, int64_t, int64_t i, int64_t j) { return i == 0 && j < 512; });
        two.permit_where([](int64_t, int64_t, int64_t i, int64_t j) { return i == 0 ? j < 512 : i == 1 && j >= 512; });
        alone.call.params.mask = one.tensor();
        beside.call.params.mask = two.tensor();
        ASSERT_EQ(alone.call.run(context.get()), FOVEA_OK) << fovea_last_error();
        ASSERT_EQ(beside.call.run(context.get()), FOVEA_OK) << fovea_last_error();
        EXPECT_TRUE(same_row(alone.call, beside.call, {0, 0, 0})) << queries << " queries, large " << large;
      }
    }
  }
}

// A NaN in a row stays one, whatever the sink.
TEST_P(SinksTest, HideNoNaN) {
  const auto context = this->context();
  for (const float sink : {0.0f, 80.0f, 1e4f}) {
    for (const int64_t queries : {1, 50}) {
      Call call({1, 1, 1, queries, 300, 8, 9});
      call.fill_random(94);
      call.k_at(0, 0, 200, 3) = std::nanf("");
      call.params.sinks = &sink;
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (const float out : call.out) ASSERT_TRUE(std::isnan(out)) << sink;
      for (const float lse : call.lse) ASSERT_TRUE(std::isnan(lse)) << sink;
    }
  }
}

}  // namespace
}  // namespace fovea::testing
