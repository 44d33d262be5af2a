// The judge judged: the oracle against closed forms, its bound against errors on either side of it, and problem lines against their own
// promises.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <set>

#include "reference/guarded_buffer.h"
#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

using reference::ProblemData;
using reference::ProblemLine;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(OracleTest, TwoKeysAreALogisticFunction) {
  for (const double x : {0.0, 0.5, -3.0, 40.0, -700.0}) {
    Call call({1, 1, 1, 1, 2, 1, 2});
    call.q_at(0, 0, 0, 0) = float(x);
    call.k_at(0, 0, 0, 0) = 1;
    call.v_at(0, 0, 0, 0) = 1;
    call.v_at(0, 0, 1, 0) = 0;
    call.v_at(0, 0, 0, 1) = -2;
    call.v_at(0, 0, 1, 1) = 2;
    const reference::Expected e = reference::attention(call.params, true);
    const double p = 1 / (1 + std::exp(-x));
    EXPECT_NEAR(e.weights[0], p, 1e-15);
    EXPECT_NEAR(e.out[0], p, 1e-15);
    EXPECT_NEAR(e.out[1], 2 - 4 * p, 1e-14);
    EXPECT_NEAR(e.magnitude[1], 2, 1e-14);
    EXPECT_NEAR(e.lse[0], x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)), 1e-13);
    EXPECT_EQ(e.score_magnitude[0], std::fabs(x));
    EXPECT_EQ(e.kept[0], 2);
  }
}

TEST(OracleTest, ScaleDimsGroupsAndCorners) {
  Call call({2, 4, 2, 3, 5, 4, 1});
  call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
  call.params.scale = -0.25f;
  for (float &q : call.q) q = 2;
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j < 5; ++j) {
        for (int64_t c = 0; c < 4; ++c) call.k_at(b, h, j, c) = j == 0 ? -1 : 1;
        call.v_at(b, h, j, 0) = float(100 * b + 10 * h + (j == 0));
      }
  const reference::Expected e = reference::attention(call.params);
  for (int64_t row = 0; row < 2 * 4 * 3; ++row) {
    const int64_t i = row % 3, h = row / 3 % 4, b = row / 12, seen = i + 3;  // scores are 2 for key 0, -2 for the others
    const double p = std::exp(4.0) / (std::exp(4.0) + double(seen - 1));
    EXPECT_NEAR(e.out[size_t(row)], double(100 * b + 10 * (h / 2)) + p, 1e-12);
    EXPECT_NEAR(e.lse[size_t(row)], 2 - std::log(p), 1e-12);
    EXPECT_EQ(e.score_magnitude[size_t(row)], 2);
    EXPECT_EQ(e.kept[size_t(row)], seen);
  }
}

TEST(OracleTest, WhatIsNotFinite) {
  Call call({1, 1, 1, 4, 3, 1, 2});
  call.causal(FOVEA_ALIGN_TOP_LEFT);
  for (float &q : call.q) q = 1;
  call.k_at(0, 0, 1, 0) = -kInfinity;
  call.v_at(0, 0, 1, 0) = 5;
  call.v_at(0, 0, 1, 1) = std::nanf("");
  call.k_at(0, 0, 2, 0) = kInfinity;
  call.q_at(0, 0, 3, 0) = std::nanf("");
  const reference::Expected e = reference::attention(call.params, true);
  EXPECT_EQ(e.out[0], 1);
  EXPECT_EQ(e.out[1], 1);  // key 1 is excluded there, whatever it holds
  EXPECT_EQ(e.out[2], 1);  // key 1 weighs 0
  EXPECT_TRUE(std::isnan(e.out[3]));
  EXPECT_EQ(e.lse[1], 0);
  EXPECT_EQ(e.kept[1], 1);
  EXPECT_EQ(e.weights[1 * 3 + 1], 0);
  EXPECT_TRUE(std::isnan(e.out[4]));  // +infinity
  EXPECT_TRUE(std::isnan(e.lse[2]));
  EXPECT_TRUE(std::isnan(e.out[6]));  // a NaN in the query
  call.k_at(0, 0, 0, 0) = -kInfinity;
  const reference::Expected empty = reference::attention(call.params, true);
  EXPECT_EQ(empty.out[0], 0);
  EXPECT_EQ(empty.lse[0], -kInfinity);
  EXPECT_EQ(empty.kept[0], 0);
}

TEST(OracleTest, ASampleOfRowsIsTheSame) {
  ProblemLine line;
  ASSERT_EQ(reference::parse("b=2 hq=6 hkv=3 sq=11 skv=40 dk=5 dv=3 causal=br layout=strided", &line), "");
  const ProblemData data(line);
  const reference::Expected all = reference::attention(data.params);
  const std::vector<int64_t> rows = {0, 131, 17, 64};
  const reference::Expected some = reference::attention(data.params, false, rows);
  const std::set<int64_t> chosen(rows.begin(), rows.end());
  for (int64_t row = 0; row < 132; ++row)
    for (int64_t c = 0; c < 3; ++c)
      EXPECT_EQ(some.out[size_t(row * 3 + c)], chosen.count(row) ? all.out[size_t(row * 3 + c)] : 0) << row;
}

class BoundTest : public ::testing::Test {
 protected:
  BoundTest() : call({1, 1, 1, 2, 3, 4, 5}) {
    call.fill_random(25);
    expected = reference::attention(call.params, true);
    for (size_t i = 0; i < call.out.size(); ++i) call.out[i] = float(expected.out[i]);
    for (size_t i = 0; i < call.lse.size(); ++i) call.lse[i] = float(expected.lse[i]);
    for (size_t i = 0; i < call.weights.size(); ++i) call.weights[i] = float(expected.weights[i]);
  }
  reference::Verdict verdict() const { return reference::compare(call.params, expected); }
  Call call;
  reference::Expected expected;
};

TEST_F(BoundTest, RoundedResultsAreWellWithin) {
  EXPECT_TRUE(verdict().ok());
  EXPECT_LT(verdict().out_ratio, 0.1);
  EXPECT_LT(verdict().lse_ratio, 0.1);
  EXPECT_LT(verdict().weights_ratio, 0.1);
}

TEST_F(BoundTest, ErrorsOnEitherSideOfTheBound) {
  const double u = 0x1p-24;
  const double score_error = u * (1 + 2 * expected.score_magnitude[1]);
  const double g = expected.magnitude[7], o = expected.out[7];
  const double bound = 8 * (score_error * g + 0x1p-22 * g) + u * std::fabs(o) + 4 * double(FLT_MIN);
  const double lse_bound = 8 * score_error + u * std::fabs(expected.lse[1]);
  const double w = expected.weights[4];
  const double weight_bound = 8 * (score_error + 0x1p-22) * w + u * w + 4 * double(FLT_MIN);
  // float is too coarse to land on the bound: the oracle is moved instead.
  const auto ratio_after = [&](double &value, double by) {
    const double before = value;
    value += by;
    const reference::Verdict v = verdict();
    value = before;
    return v;
  };
  call.out[7] = float(o);
  expected.out[7] = double(call.out[7]);
  expected.lse[1] = double(call.lse[1]);
  expected.weights[4] = double(call.weights[4]);
  for (const double side : {-1.0, 1.0}) {
    EXPECT_NEAR(ratio_after(expected.out[7], side * 0.99 * bound).out_ratio, 0.99, 1e-3);
    EXPECT_FALSE(ratio_after(expected.out[7], side * 1.01 * bound).ok());
    EXPECT_EQ(ratio_after(expected.out[7], side * 1.01 * bound).worst_row, 1);
    EXPECT_EQ(ratio_after(expected.out[7], side * 1.01 * bound).worst_dim, 2);
    EXPECT_NEAR(ratio_after(expected.lse[1], side * 0.99 * lse_bound).lse_ratio, 0.99, 1e-3);
    EXPECT_FALSE(ratio_after(expected.lse[1], side * 1.01 * lse_bound).ok());
    EXPECT_NEAR(ratio_after(expected.weights[4], side * 0.99 * weight_bound).weights_ratio, 0.99, 1e-3);
    EXPECT_FALSE(ratio_after(expected.weights[4], side * 1.01 * weight_bound).ok());
  }
}

TEST_F(BoundTest, NaNAndInfinityAreNeverClose) {
  for (std::vector<float> *values : {&call.out, &call.lse, &call.weights}) {
    const float before = (*values)[1];
    for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
      (*values)[1] = bad;
      EXPECT_FALSE(verdict().ok()) << bad;
    }
    (*values)[1] = before;
  }
  expected.out[1] = std::nan("");
  EXPECT_FALSE(verdict().ok()) << "a NaN was hidden";
}

TEST_F(BoundTest, ExcludedKeysWeighNothingAtAll) {
  call.causal(FOVEA_ALIGN_TOP_LEFT);
  expected = reference::attention(call.params, true);
  for (size_t i = 0; i < call.out.size(); ++i) call.out[i] = float(expected.out[i]);
  for (size_t i = 0; i < call.lse.size(); ++i) call.lse[i] = float(expected.lse[i]);
  for (size_t i = 0; i < call.weights.size(); ++i) call.weights[i] = float(expected.weights[i]);
  EXPECT_TRUE(verdict().ok());
  call.weights[1] = FLT_MIN;  // of row 0, which sees key 0 only
  EXPECT_FALSE(verdict().ok());
}

TEST(ProblemLineTest, FormatsWhatItParses) {
  for (const char *text : {"",
                           "b=2 hq=8 hkv=2 sq=128 skv=129 dk=64 dv=80 scale=0.1 causal=tl layout=padded lse=1 weights=1 "
                           "dist=outlier gain=2.5 seed=7 isa=scalar "
                           "threads=3 exec=pool",
                           "hq=4 hkv=4 layout=broadcast", "layout=packed out=bshd", "q=bhds k=strided out=padded",
                           "layout=strided out=padded", "sq=0 skv=0", "exec=serial", "scale=-0"}) {
    ProblemLine line, again;
    ASSERT_EQ(reference::parse(text, &line), "");
    EXPECT_EQ(reference::format(line), text);
    ASSERT_EQ(reference::parse(reference::format(line), &again), "");
    EXPECT_EQ(reference::format(again), text);
  }
}

TEST(ProblemLineTest, SaysWhatIsWrong) {
  for (const char *text :
       {"b", "b=", "b=x", "b=-1", "b=1.5", "sq=99999999999", "hq=3 hkv=2", "hq=3 hkv=0", "layout=foo", "out=broadcast",
        "causal=yes", "lse=2", "scale=x", "threads=0", "exec=serial threads=2", "colour=red"}) {
    ProblemLine line;
    EXPECT_NE(reference::parse(text, &line), "") << text;
  }
}

TEST(ProblemLineTest, GapsAndOutputsAreWatched) {
  for (const char *layout : {"padded", "strided", "bhds", "bhsd"}) {
    ProblemLine line;
    ASSERT_EQ(reference::parse(std::string("hq=2 hkv=2 sq=3 skv=4 dk=5 dv=5 lse=1 weights=1 layout=") + layout, &line), "");
    ProblemData data(line);
    EXPECT_TRUE(data.output_gaps_intact());
    EXPECT_TRUE(data.outputs_untouched());
    float *out = static_cast<float *>(data.params.out.data);
    *out = 1;  // an element
    EXPECT_TRUE(data.output_gaps_intact());
    EXPECT_FALSE(data.outputs_untouched());
    out[-1] = 1;  // the slack before it: its end is at the page's end
    EXPECT_FALSE(data.output_gaps_intact());
    data.reset_outputs();
    EXPECT_TRUE(data.outputs_untouched());
    if (std::string(layout) == "padded") {
      out[5] = 1;
      EXPECT_FALSE(data.output_gaps_intact());
    }
  }
}

TEST(ProblemLineTest, ElementsDependOnTheirCoordinatesAlone) {
  for (const char *dist : {"normal", "uniform", "outlier"}) {
    ProblemLine small, large;
    ASSERT_EQ(reference::parse(std::string("hq=2 hkv=1 sq=3 skv=4 dk=5 dv=3 dist=") + dist, &small), "");
    ASSERT_EQ(reference::parse(std::string("b=2 hq=6 hkv=3 sq=9 skv=7 dk=8 dv=4 layout=strided dist=") + dist, &large), "");
    const ProblemData a(small), b(large);
    const auto at = [](const fovea_tensor &t, int64_t h, int64_t s, int64_t d) {
      return static_cast<const float *>(t.data)[h * t.stride[1] + s * t.stride[2] + d * t.stride[3]];
    };
    for (int64_t s = 0; s < 3; ++s)
      for (int64_t d = 0; d < 3; ++d) {
        EXPECT_EQ(at(a.params.q, 1, s, d), at(b.params.q, 1, s, d));
        EXPECT_EQ(at(a.params.k, 0, s, d), at(b.params.k, 0, s, d));
        EXPECT_EQ(at(a.params.v, 0, s, d), at(b.params.v, 0, s, d));
      }
  }
}

TEST(GuardedBufferDeathTest, OneByteOutsideFaults) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  using reference::Flush;
  using reference::GuardedBuffer;
  const GuardedBuffer back(1000, Flush::kBack), front(1000, Flush::kFront);
  volatile unsigned char *behind = back.as<unsigned char>() + 1000, *before = front.as<unsigned char>() - 1;
  EXPECT_DEATH(static_cast<void>(*behind), "");
  EXPECT_DEATH(static_cast<void>(*before), "");
  ProblemLine line;
  const ProblemData data(line);
  EXPECT_DEATH(*static_cast<volatile float *>(data.params.q.data) = 0, "") << "inputs are read-only";
}

}  // namespace
}  // namespace fovea::testing
