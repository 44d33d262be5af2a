// The judge judged: the oracle against closed forms, its bound against errors on either side of it, and problem lines against their own
// promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "reference/element.h"
#include "reference/guarded_buffer.h"
#include "support/call.h"
#include "support/elements.h"
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
    EXPECT_EQ(e.score_magnitude[0], x > -80 ? std::fabs(x) : 0) << "a key of weight e^-700 adds nothing to A";
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

TEST(OracleTest, RowsOfNaNAreNaNAtEveryPermittedKey) {
  Call call({1, 1, 1, 4, 4, 1, 1});
  call.causal(FOVEA_ALIGN_TOP_LEFT);
  for (float &q : call.q) q = 1;
  call.k = {0, -kInfinity, std::nanf(""), 0};
  call.params.k.data = call.k.data();
  for (const float bad : {std::nanf(""), kInfinity}) {
    call.k_at(0, 0, 2, 0) = bad;
    const reference::Expected e = reference::attention(call.params, true);
    EXPECT_EQ(e.weights[1 * 4 + 0], 1);
    EXPECT_EQ(e.weights[1 * 4 + 1], 0) << "a score of -infinity in a row without NaN";
    for (size_t j = 0; j < 3; ++j) EXPECT_TRUE(std::isnan(e.weights[2 * 4 + j])) << j;
    EXPECT_EQ(e.weights[2 * 4 + 3], 0) << "an excluded key in a row of NaN";
    EXPECT_TRUE(std::isnan(e.out[2]));
    for (size_t j = 0; j < 4; ++j) EXPECT_TRUE(std::isnan(e.weights[3 * 4 + j])) << j;
  }
  for (float &k : call.k) k = -kInfinity;
  const reference::Expected empty = reference::attention(call.params, true);
  for (const double weight : empty.weights) EXPECT_EQ(weight, 0) << "no score above -infinity is no NaN";
  for (const double out : empty.out) EXPECT_EQ(out, 0);
  const float sink = 2;
  call.params.sinks = &sink;
  for (const double weight : reference::attention(call.params, true).weights) EXPECT_EQ(weight, 0);
}

TEST(OracleTest, SubnormalInputsAreZero) {
  Call call({1, 1, 1, 1, 2, 1, 1});
  call.q_at(0, 0, 0, 0) = 1e-40f;
  call.k_at(0, 0, 0, 0) = -kInfinity;
  EXPECT_TRUE(std::isnan(reference::attention(call.params).out[0])) << "0 * infinity";
  call.q_at(0, 0, 0, 0) = -kInfinity;
  call.k_at(0, 0, 0, 0) = -1e-40f;
  call.k_at(0, 0, 1, 0) = 1;
  EXPECT_TRUE(std::isnan(reference::attention(call.params).out[0])) << "0 * infinity";
  call.q_at(0, 0, 0, 0) = FLT_MIN;
  call.k_at(0, 0, 0, 0) = -kInfinity;
  EXPECT_EQ(reference::attention(call.params).out[0], 1) << "the least number that is one";
  call.q_at(0, 0, 0, 0) = 0;
  call.k_at(0, 0, 0, 0) = 0;
  for (float &v : call.v) v = 1e-40f;
  EXPECT_EQ(reference::attention(call.params).out[0], 0);
}

// With q = 0 and a one-hot v, each output element of a key of the row's set is 1 / the size of the set.
using Sets = std::vector<std::vector<int64_t>>;
Sets sets_of(Call &call) {
  for (int64_t b = 0; b < call.n.batch; ++b)
    for (int64_t h = 0; h < call.n.heads_kv; ++h)
      for (int64_t j = 0; j < call.n.seq_kv; ++j)
        for (int64_t c = 0; c < call.n.dim_v; ++c) call.v_at(b, h, j, c) = j == c;
  const reference::Expected e = reference::attention(call.params, true);
  Sets sets;
  for (size_t row = 0; row < size_t(e.rows); ++row) {
    std::vector<int64_t> set;
    const auto size = double(e.kept[row]);
    for (int64_t j = 0; j < call.n.seq_kv; ++j) {
      const double out = e.out[row * size_t(e.dim_v) + size_t(j)];
      if (out != 0) {
        EXPECT_EQ(out, 1 / size);
        set.push_back(j);
      }
      EXPECT_EQ(out, e.weights[row * size_t(e.seq_kv) + size_t(j)]);
      EXPECT_EQ(out != 0, e.in_set[row * size_t(e.seq_kv) + size_t(j)] != 0);
    }
    EXPECT_EQ(double(set.size()), size);
    EXPECT_NEAR(std::exp(e.lse[row]), size, 1e-12);
    sets.push_back(set);
  }
  return sets;
}

Call probe(int64_t seq_q, int64_t seq_kv) { return Call({1, 1, 1, seq_q, seq_kv, 1, seq_kv}); }

TEST(OracleTest, CausalCorners) {
  const auto causal = [](int64_t seq_q, int64_t seq_kv, int32_t align) {
    Call call = probe(seq_q, seq_kv);
    call.causal(align);
    return sets_of(call);
  };
  EXPECT_EQ(causal(2, 5, FOVEA_ALIGN_BOTTOM_RIGHT), (Sets{{0, 1, 2, 3}, {0, 1, 2, 3, 4}}));
  EXPECT_EQ(causal(5, 2, FOVEA_ALIGN_BOTTOM_RIGHT), (Sets{{}, {}, {}, {0}, {0, 1}}));
  EXPECT_EQ(causal(1, 7, FOVEA_ALIGN_BOTTOM_RIGHT), (Sets{{0, 1, 2, 3, 4, 5, 6}}));
  EXPECT_EQ(causal(2, 5, FOVEA_ALIGN_TOP_LEFT), (Sets{{0}, {0, 1}}));
  EXPECT_EQ(causal(5, 2, FOVEA_ALIGN_TOP_LEFT), (Sets{{0}, {0, 1}, {0, 1}, {0, 1}, {0, 1}}));
}

TEST(OracleTest, WindowsAreInclusive) {
  const auto window = [](int64_t left, int64_t right, int32_t align, bool causal = false) {
    Call call = probe(3, 5);
    call.params.window_left = left;
    call.params.window_right = right;
    call.params.align = align;
    call.params.causal = causal;
    return sets_of(call);
  };
  EXPECT_EQ(window(0, 0, FOVEA_ALIGN_BOTTOM_RIGHT), (Sets{{2}, {3}, {4}}));
  EXPECT_EQ(window(0, 0, FOVEA_ALIGN_TOP_LEFT), (Sets{{0}, {1}, {2}}));
  EXPECT_EQ(window(1, -1, FOVEA_ALIGN_TOP_LEFT), (Sets{{0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}, {1, 2, 3, 4}}));
  EXPECT_EQ(window(0, -1, FOVEA_ALIGN_BOTTOM_RIGHT), (Sets{{2, 3, 4}, {3, 4}, {4}}));
  EXPECT_EQ(window(1, 2, FOVEA_ALIGN_TOP_LEFT), (Sets{{0, 1, 2}, {0, 1, 2, 3}, {1, 2, 3, 4}}));
  EXPECT_EQ(window(1, 2, FOVEA_ALIGN_TOP_LEFT, true), (Sets{{0}, {0, 1}, {1, 2}})) << "causal is a right bound of 0";
  const Sets causal = {{0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}};
  for (const int64_t left : {int64_t{-1}, int64_t{4}, int64_t{5}, INT64_MAX})
    EXPECT_EQ(window(left, 0, FOVEA_ALIGN_BOTTOM_RIGHT), causal) << left;
  EXPECT_EQ(window(-1, -1, FOVEA_ALIGN_NONE), (Sets{{0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}}));
  EXPECT_EQ(window(INT64_MAX, INT64_MAX, FOVEA_ALIGN_BOTTOM_RIGHT), window(-1, -1, FOVEA_ALIGN_NONE));
}

TEST(OracleTest, MasksOfEveryTypeExclude) {
  const std::vector<std::vector<bool>> attend = {{true, false, true}, {false, false, false}, {false, false, true}};
  for (const fovea_dtype dtype : {FOVEA_BOOL, FOVEA_F32, FOVEA_F16, FOVEA_BF16}) {
    Call call = probe(3, 3);
    std::vector<unsigned char> mask(9 * reference::element_bytes(dtype));
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t j = 0; j < 3; ++j) {
        const bool yes = attend[size_t(i)][size_t(j)];
        reference::write_element(mask.data(), dtype, 3 * i + j, dtype == FOVEA_BOOL ? yes : yes ? 0.0 : -double{kInfinity});
      }
    call.params.mask = {mask.data(), {0, 0, 3, 1}, dtype, 0};
    EXPECT_EQ(sets_of(call), (Sets{{0, 2}, {}, {2}})) << dtype;
  }
}

TEST(OracleTest, MasksRepeatAlongAnyAxis) {
  for (int axes = 0; axes < 16; ++axes) {
    Call call({2, 3, 1, 2, 4, 1, 1});
    std::vector<float> mask;
    int64_t stride[4] = {0, 0, 0, 0}, elements = 1;
    const int64_t extent[4] = {2, 3, 2, 4};
    for (int axis = 3; axis >= 0; --axis)
      if (axes >> axis & 1) stride[axis] = elements, elements *= extent[axis];
    for (int64_t n = 0; n < elements; ++n) mask.push_back(float(std::log(1 + n)));
    call.params.mask = {mask.data(), {stride[0], stride[1], stride[2], stride[3]}, FOVEA_F32, 0};
    const reference::Expected e = reference::attention(call.params);
    for (int64_t row = 0; row < 12; ++row) {
      double sum = 0;
      for (int64_t j = 0; j < 4; ++j)
        sum += 1 + double(row / 6 * stride[0] + row / 2 % 3 * stride[1] + row % 2 * stride[2] + j * stride[3]);
      EXPECT_NEAR(std::exp(e.lse[size_t(row)]), sum, 1e-5 * sum) << "axes " << axes << ", row " << row;
    }
  }
}

TEST(OracleTest, MasksThatAreNotFinite) {
  Call call({1, 1, 1, 5, 3, 1, 1});
  call.params.align = FOVEA_ALIGN_TOP_LEFT;
  call.v_at(0, 0, 1, 0) = 5;
  std::vector<float> mask = {0,        std::nanf(""), 0,        0,        kInfinity, 0, 0, -kInfinity,
                             -FLT_MAX, -FLT_MAX,      -FLT_MAX, -FLT_MAX, 0,         0, 0};
  call.params.mask = {mask.data(), {0, 0, 3, 1}, FOVEA_F32, 0};
  call.k_at(0, 0, 2, 0) = -1;
  call.q_at(0, 0, 3, 0) = FLT_MAX / 1024;
  const reference::Expected e = reference::attention(call.params, true);
  EXPECT_TRUE(std::isnan(e.out[0]));
  EXPECT_TRUE(std::isnan(e.out[1]));
  EXPECT_EQ(e.out[2], 1);
  EXPECT_EQ(e.weights[6], 1);
  EXPECT_EQ(e.in_set[7], 0);
  EXPECT_EQ(e.in_set[8], 1) << "-FLT_MAX is a finite bias";
  EXPECT_EQ(e.weights[8], 0);
  EXPECT_NEAR(e.out[3], 7 / 3.0, 1e-15) << "score + mask is below -FLT_MAX at the last key, and counts as -FLT_MAX";
  EXPECT_EQ(e.kept[3], 3);
  EXPECT_EQ(e.lse[3], -double{FLT_MAX});
  call.params.window_left = call.params.window_right = 0;
  const reference::Expected diagonal = reference::attention(call.params);
  EXPECT_EQ(diagonal.out[0], 1) << "a NaN at an excluded key";
  EXPECT_TRUE(std::isnan(diagonal.out[1]));
}

TEST(OracleTest, SoftcapComesBeforeTheMask) {
  Call call({1, 1, 1, 1, 2, 1, 1});
  std::vector<float> mask = {0, -kInfinity};
  call.params.mask = {mask.data(), {0, 0, 0, 1}, FOVEA_F32, 0};
  call.params.softcap = 1;
  call.v_at(0, 0, 1, 0) = 1000;
  EXPECT_EQ(reference::attention(call.params).out[0], 1);
  mask[1] = 5;
  call.v_at(0, 0, 0, 0) = 0;
  call.v_at(0, 0, 1, 0) = 1;
  EXPECT_NEAR(reference::attention(call.params).out[0], 0.993307, 5e-7);
  mask[1] = 0;
  call.params.softcap = 50;
  call.q_at(0, 0, 0, 0) = 1e4f;
  call.k_at(0, 0, 0, 0) = 1;
  call.k_at(0, 0, 1, 0) = -1;
  const reference::Expected capped = reference::attention(call.params);
  EXPECT_NEAR(capped.lse[0], 50, 1e-12);
  EXPECT_NEAR(capped.out[0], std::exp(-100), 1e-50);
  EXPECT_EQ(capped.score_magnitude[0], 1e4 + 50);
  call.q_at(0, 0, 0, 0) = 20;
  call.params.softcap = 10;
  EXPECT_NEAR(reference::attention(call.params).lse[0], 10 * std::tanh(2.0), 1e-8);
  call.q_at(0, 0, 0, 0) = kInfinity;
  EXPECT_NEAR(reference::attention(call.params).lse[0], 10, 1e-8) << "a cap makes infinite scores finite";
}

TEST(OracleTest, SinksEnterTheSumOnly) {
  Call call({1, 8, 1, 2, 6, 1, 1});
  const std::vector<float> sinks = {std::log(6.0f), 0, -kInfinity, 80, -80, 1, 1000, -1000};
  call.params.sinks = sinks.data();
  call.params.scale = 100;  // no matter
  call.params.softcap = 0.5f;
  for (const int64_t keys : {6, 0}) {
    call.params.seq_kv = keys;
    const reference::Expected e = reference::attention(call.params, true);
    for (size_t h = 0; h < 8; ++h) {
      const double s = sinks[h], n = double(keys), share = keys ? n / (n + std::exp(s)) : 0;
      EXPECT_NEAR(e.out[2 * h], share, 1e-15) << h;
      if (keys) {
        EXPECT_NEAR(e.weights[12 * h], share / n, 1e-15 * share) << h;
        EXPECT_NEAR(e.lse[2 * h], s > 700 ? s : std::log(n + std::exp(s)), 1e-12) << h;
      } else {
        EXPECT_EQ(e.lse[2 * h], s) << "an empty row's sum is its sink";
      }
    }
  }
  call.params.seq_kv = 6;
  call.params.softcap = 0;
  EXPECT_NEAR(reference::attention(call.params).out[0], 0.5, 1e-7);
  EXPECT_NEAR(reference::attention(call.params).out[6] / std::exp(-80.0), 6, 1e-12);
}

TEST(OracleTest, AlibiIsADistanceTimesASlope) {
  Call call({1, 2, 1, 2, 7, 1, 1});
  const std::vector<float> slopes = {0.5f, -0.25f};
  call.params.alibi_slopes = slopes.data();
  for (const int32_t align : {FOVEA_ALIGN_TOP_LEFT, FOVEA_ALIGN_BOTTOM_RIGHT}) {
    call.params.align = align;
    const reference::Expected e = reference::attention(call.params);
    for (int64_t row = 0; row < 4; ++row) {
      double sum = 0, farthest = 0;
      const int64_t p = row % 2 + (align == FOVEA_ALIGN_BOTTOM_RIGHT ? 5 : 0);
      for (int64_t j = 0; j < 7; ++j) {
        const double bias = -slopes[size_t(row / 2)] * std::fabs(double(p - j));
        sum += std::exp(bias);
        farthest = std::max(farthest, std::fabs(bias));
      }
      EXPECT_NEAR(e.lse[size_t(row)], std::log(sum), 1e-14);
      EXPECT_EQ(e.score_magnitude[size_t(row)], farthest);
    }
  }
}

TEST(OracleTest, AIsAboutKeysThatCanWeigh) {
  Call call({1, 1, 1, 1, 3, 2, 1});
  call.q_at(0, 0, 0, 0) = call.q_at(0, 0, 0, 1) = 1;
  call.params.scale = 1;
  std::vector<float> mask = {1, 0, -1e4f};
  call.params.mask = {mask.data(), {0, 0, 0, 1}, FOVEA_F32, 0};
  call.k_at(0, 0, 0, 0) = 2;
  EXPECT_EQ(reference::attention(call.params).score_magnitude[0], 3) << "a bias of -1e4 cannot matter";
  call.k_at(0, 0, 1, 0) = 1e8f;
  call.k_at(0, 0, 1, 1) = -1e8f - 200;
  EXPECT_EQ(reference::attention(call.params).score_magnitude[0], 2e8 + 200) << "a score of -200 whose error may be 1e2";
}

// Lengths and packed segments against calls of just those sizes.
TEST(OracleTest, EntriesOfTheirOwnLengthsAreSeparateCalls) {
  for (const char *shape : {"lens=ragged", "lens=ragged weights=1", "packed=1", "packed=q lens=ragged", "lens=ragged packed=kv",
                            "packed=1 layout=strided"}) {
    for (const char *features : {"", " causal=br sinks=1", " causal=tl left=3", " right=4 alibi=1 align=br",
                                 " mask=f32 maskaxes=bhqk", " mask=bool maskaxes=hq score=modify", " score=replace softcap=3"}) {
      ProblemLine line;
      ASSERT_EQ(reference::parse(std::string("b=4 hq=4 hkv=2 sq=9 skv=13 dk=3 dv=2 seed=5 ") + shape + features, &line), "");
      const ProblemData data(line);
      const fovea_params &p = data.params;
      const reference::Expected all = reference::attention(p, line.weights);
      size_t rows = 0;
      for (int64_t b = 0; b < 4; ++b) {
        fovea_params one = p;
        one.seqlens_q = one.seqlens_kv = one.cu_seqlens_q = one.cu_seqlens_kv = nullptr;
        one.q.stride[0] = one.k.stride[0] = one.v.stride[0] = one.mask.stride[0] = 0;
        const auto advance = [](fovea_tensor *t, int64_t elements) {
          t->data = static_cast<char *>(t->data) + elements * int64_t(reference::element_bytes(t->dtype));
        };
        const auto side = [&](const int32_t *cu, const int32_t *lens, int64_t *length, std::vector<fovea_tensor *> tensors,
                              const std::vector<int64_t> &stride_b) {
          if (cu) *length = cu[b + 1] - cu[b];
          if (lens) *length = lens[b];
          for (size_t t = 0; t < tensors.size(); ++t) advance(tensors[t], cu ? cu[b] * tensors[t]->stride[2] : b * stride_b[t]);
        };
        side(p.cu_seqlens_q, p.seqlens_q, &one.seq_q, {&one.q}, {p.q.stride[0]});
        side(p.cu_seqlens_kv, p.seqlens_kv, &one.seq_kv, {&one.k, &one.v}, {p.k.stride[0], p.v.stride[0]});
        if (p.mask.data) advance(&one.mask, b * p.mask.stride[0]);
        one.batch = 1;
        // Score functions know which entry they are in.
        struct Shifted {
          const fovea_params *p;
          int64_t batch;
        } shifted = {&p, b};
        if (p.score) {
          one.score_user = &shifted;
          one.score = [](void *user, const fovea_score_tile *tile) {
            const auto *s = static_cast<const Shifted *>(user);
            fovea_score_tile moved = *tile;
            moved.batch += s->batch;
            s->p->score(s->p->score_user, &moved);
          };
        }
        const reference::Expected e = reference::attention(one, line.weights);
        for (int64_t h = 0; h < 4; ++h)
          for (int64_t i = 0; i < one.seq_q; ++i, ++rows) {
            const int64_t in = h * one.seq_q + i;
            const int64_t at = p.cu_seqlens_q ? h * p.seq_q + p.cu_seqlens_q[b] + i : (b * 4 + h) * p.seq_q + i;
            const reference::Row place = reference::row_at(p, at);
            EXPECT_TRUE(place.exists && place.batch == b && place.head == h && place.query == i);
            EXPECT_EQ(all.lse[size_t(at)], e.lse[size_t(in)]) << reference::format(line);
            for (int64_t c = 0; c < 2; ++c)
              EXPECT_EQ(all.out[size_t(at * 2 + c)], e.out[size_t(in * 2 + c)]) << reference::format(line);
            for (int64_t j = 0; line.weights && j < p.seq_kv; ++j)
              EXPECT_EQ(all.weights[size_t(at * p.seq_kv + j)], j < one.seq_kv ? e.weights[size_t(in * one.seq_kv + j)] : 0);
          }
      }
      size_t existing = 0;
      for (int64_t row = 0; row < reference::row_count(p); ++row) existing += reference::row_at(p, row).exists;
      EXPECT_EQ(rows, existing);
      EXPECT_LT(existing, size_t(reference::row_count(p)));
      EXPECT_GT(existing, 4u);
    }
  }
}

TEST(OracleTest, AModifyingFunctionGetsFinishedScores) {
  Call call({2, 2, 1, 3, 4, 1, 1});
  for (float &q : call.q) q = 3;
  for (float &k : call.k) k = 2;
  const std::vector<float> slopes = {0.5f, 1}, mask = {0.25f, 0.5f, 0.75f, std::nanf("")};
  call.params.alibi_slopes = slopes.data();
  call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
  call.params.mask = {const_cast<float *>(mask.data()), {0, 0, 0, 1}, FOVEA_F32, 0};
  call.params.scale = 2;
  call.params.softcap = 10;
  call.params.score_mode = FOVEA_SCORE_MODIFY;
  struct Seen {
    int calls = 0, wrong = 0;
  } seen;
  call.params.score_user = &seen;
  call.params.score = [](void *user, const fovea_score_tile *t) {
    auto *s = static_cast<Seen *>(user);
    for (int64_t r = 0; r < t->rows; ++r)
      for (int64_t c = 0; c < t->cols; ++c) {
        const int64_t i = t->row0 + r, j = t->col0 + c;
        float &score = t->score[r * t->row_stride + c * t->col_stride];
        const double slope = t->head ? 1 : 0.5;
        const double expected = 10 * std::tanh(1.2) - slope * double(i + 1 - j) + 0.25 * double(j + 1);
        ++s->calls;
        if (j < 3 && std::fabs(score - expected) > 1e-5) ++s->wrong;
        score = j == 1 ? -kInfinity : float(t->batch);
      }
  };
  const reference::Expected e = reference::attention(call.params, true);
  EXPECT_EQ(seen.wrong, 0);
  EXPECT_EQ(seen.calls, 2 * 2 * (2 + 3 + 4)) << "for permitted keys";
  for (size_t row = 0; row < 12; ++row) {
    const size_t i = row % 3, keys = i + 1;  // without key 1
    EXPECT_EQ(e.kept[row], int64_t(keys));
    EXPECT_EQ(e.weights[row * 4 + 1], 0);
    EXPECT_EQ(e.in_set[row * 4 + 1], 0);
    EXPECT_NEAR(e.lse[row], double(row / 6) + std::log(double(keys)), 1e-14);
  }
}

TEST(OracleTest, AReplacingFunctionTakesThePlaceOfTheProduct) {
  Call call({1, 2, 1, 2, 3, 2, 1});
  for (size_t i = 0; i < call.q.size(); ++i) call.q[i] = float(i);
  for (size_t i = 0; i < call.k.size(); ++i) call.k[i] = float(i) / 8;
  const std::vector<unsigned char> mask = {1, 0, 1};
  call.params.mask = {const_cast<unsigned char *>(mask.data()), {0, 0, 0, 1}, FOVEA_BOOL, 0};
  call.k_at(0, 0, 1, 0) = std::nanf("");
  call.params.scale = 1000;  // not applied
  call.params.score_mode = FOVEA_SCORE_REPLACE;
  call.params.score = [](void *, const fovea_score_tile *t) {
    for (int64_t r = 0; r < t->rows; ++r)
      for (int64_t c = 0; c < t->cols; ++c) {
        float sum = 0;
        for (int64_t d = 0; d < t->dim_k; ++d) sum += t->q[r * t->ldq + d] - t->k[c * t->ldk + d];
        t->score[r * t->row_stride + c * t->col_stride] = t->col0 + c == 2 && t->row0 + r == 1 ? -kInfinity : sum;
      }
  };
  const auto expected = [&](int64_t row, int64_t j) {  // sums of two elements
    return 4 * double(row) + 1 - (4 * double(j) + 1) / 8;
  };
  for (const float cap : {0.0f, 5.0f}) {
    call.params.softcap = cap;
    const auto capped = [&](double s) { return cap > 0 ? cap * std::tanh(s / cap) : s; };
    const reference::Expected e = reference::attention(call.params, true);
    for (int64_t row = 0; row < 4; ++row) {
      double sum = std::exp(capped(expected(row, 0)));
      if (row % 2 == 0) sum += std::exp(capped(expected(row, 2)));
      EXPECT_NEAR(e.lse[size_t(row)], std::log(sum), 1e-6) << row;
      EXPECT_EQ(e.in_set[size_t(row * 3 + 2)], row % 2 == 0) << "-infinity excludes, whatever the cap";
      EXPECT_EQ(e.weights[size_t(row * 3 + 1)], 0);
      EXPECT_NEAR(e.score_magnitude[size_t(row)], std::fabs(expected(row, 0)) + cap, 1e-6);
    }
  }
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

// Outputs of 16 bits are as far off as one rounding to them more.
TEST_F(BoundTest, ErrorsOfOutputsOf16Bits) {
  for (const fovea_dtype dtype : k16BitDtypes) {
    for (const double o : {0.3, -1.5, 3e-7, 0.0}) {
      Elements out(dtype, call.out);
      out.become(&call.params.out);
      expected.out[7] = o;
      expected.magnitude[7] = std::fabs(o);
      out.set(7, o);
      ASSERT_TRUE(verdict().ok());
      const double u = 0x1p-24, score_error = u * (1 + 2 * expected.score_magnitude[1]), sum = std::fabs(o) * 8;
      const double bound = sum * (score_error + 0x1p-22) + (dtype == FOVEA_F16 ? 0x1p-11 : 0x1p-8) * std::fabs(o) +
                           (dtype == FOVEA_F16 ? 0x1p-25 : 0) + 4 * double(FLT_MIN);
      for (const double side : {-1.0, 1.0}) {  // the oracle is moved: the outputs are too coarse
        expected.out[7] = out[7] + side * 0.9 * bound;
        EXPECT_TRUE(verdict().ok()) << dtype << " " << o;
        expected.out[7] = out[7] + side * 1.1 * bound;
        EXPECT_FALSE(verdict().ok()) << dtype << " " << o;
      }
    }
  }
}

TEST_F(BoundTest, OutputsThatRoundToInfinity) {
  Elements out(FOVEA_F16, call.out);
  out.become(&call.params.out);
  struct {
    double expected, actual;
    bool right;
  } const cases[] = {{65520, kInfinity, true},    {1e9, kInfinity, true},  {-65520, -kInfinity, true},
                     {65519.99, kInfinity, true}, {65519.99, 65504, true}, {65520.01, 65504, true},
                     {65510, kInfinity, false},   {1e9, 65504, false},     {65520, -kInfinity, false},
                     {-1e9, kInfinity, false},    {0, kInfinity, false},   {std::nan(""), kInfinity, false}};
  for (const auto &c : cases) {
    expected.out[7] = c.expected;
    expected.magnitude[7] = std::fabs(c.expected);
    out.set(7, c.actual);
    EXPECT_EQ(verdict().ok(), c.right) << c.actual << " for " << c.expected;
  }
}

TEST(OracleTest, InputsAreWhatTheirElementsSay) {
  Call call({1, 1, 1, 1, 2, 1, 1});
  for (const fovea_dtype dtype : k16BitDtypes) {
    Elements q(dtype, std::vector<float>{1.001f}), k(dtype, std::vector<float>{0, 3.003f}),
        v(dtype, std::vector<float>{0, 7.007f});
    q.become(&call.params.q);
    k.become(&call.params.k);
    v.become(&call.params.v);
    const double score = q[0] * k[1], p = 1 / (1 + std::exp(-score));
    EXPECT_NE(score, 1.001 * 3.003);
    const reference::Expected e = reference::attention(call.params);
    EXPECT_NEAR(e.out[0], p * v[1], 1e-15);
    EXPECT_NEAR(e.lse[0], std::log1p(std::exp(score)), 1e-14);
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

TEST_F(BoundTest, KeysThatTheScoreFunctionExcludesWeighNothingAtAll) {
  call.params.score_mode = FOVEA_SCORE_MODIFY;
  call.params.score = [](void *, const fovea_score_tile *t) {
    if (t->col0 == 1) *t->score = -kInfinity;
    if (t->col0 == 2 && t->row0 == 1) *t->score = std::nanf("");
  };
  expected = reference::attention(call.params, true);
  for (size_t i = 0; i < call.out.size(); ++i) call.out[i] = float(expected.out[i]);
  for (size_t i = 0; i < call.lse.size(); ++i) call.lse[i] = float(expected.lse[i]);
  for (size_t i = 0; i < call.weights.size(); ++i) call.weights[i] = float(expected.weights[i]);
  EXPECT_TRUE(std::isnan(call.out[5]) && std::isnan(call.weights[3]) && std::isnan(call.weights[5]));
  EXPECT_EQ(call.weights[4], 0);
  EXPECT_TRUE(verdict().ok());
  for (const size_t key : {size_t{1}, size_t{4}}) {
    call.weights[key] = FLT_MIN;
    EXPECT_FALSE(verdict().ok());
    call.weights[key] = 0;
  }
}

// A weight below 2^-106, which is e^-73.5, may count as 0: what it adds to the output is allowed for, and no more.
TEST(TinyWeightsTest, MayBeLost) {
  Call call({1, 1, 1, 1, 2, 1, 2});
  std::vector<float> mask = {0, -75};
  call.params.mask = {mask.data(), {0, 0, 0, 1}, FOVEA_F32, 0};
  call.v_at(0, 0, 0, 0) = call.v_at(0, 0, 0, 1) = 0;
  call.v_at(0, 0, 1, 0) = 1e20f;
  const reference::Expected e = reference::attention(call.params, true);
  EXPECT_NEAR(e.lost[0] / (std::exp(-75.0) * 1e20), 1, 1e-6);
  EXPECT_EQ(e.lost[0], e.out[0]);
  call.lse[0] = 0;
  call.weights = {1, float(std::exp(-75.0))};
  call.out = {0, 0};
  EXPECT_TRUE(reference::compare(call.params, e).ok());
  call.out = {float(2.1 * e.out[0]), 0};
  EXPECT_FALSE(reference::compare(call.params, e).ok());
  mask[1] = -72;
  EXPECT_EQ(reference::attention(call.params).lost[0], 0);
}

TEST(RangeOfFloatTest, RowsThatCanLeaveItAreOutsideTheBound) {
  Call call({1, 1, 1, 1, 2, 1, 1});
  std::vector<float> mask = {0, 0};
  call.params.mask = {mask.data(), {0, 0, 0, 1}, FOVEA_F32, 0};
  const auto a = [&] { return reference::attention(call.params).score_magnitude[0]; };
  EXPECT_EQ(a(), 0);
  mask = {0, -FLT_MAX};
  EXPECT_EQ(a(), 0);
  mask = {-FLT_MAX, -FLT_MAX};
  EXPECT_EQ(a(), kInfinity);
  mask = {0, 1.5e38f};
  EXPECT_EQ(a(), kInfinity);
  mask = {0, -1};
  call.q_at(0, 0, 0, 0) = FLT_MAX;
  EXPECT_EQ(a(), kInfinity);
  call.q_at(0, 0, 0, 0) = 1e20f;
  call.k_at(0, 0, 0, 0) = 1e17f;
  EXPECT_NEAR(a() / 1e37, 1, 1e-6);
  call.k_at(0, 0, 0, 0) = 3e18f;
  EXPECT_EQ(a(), kInfinity);
}

TEST_F(BoundTest, RowsThatNoEntryHasAreNotCompared) {
  const int32_t q_len = 1;
  call.params.seqlens_q = &q_len;
  for (int64_t c = 0; c < 5; ++c) call.out_at(0, 0, 1, c) = std::nanf("");
  call.lse_at(0, 0, 1) = 77;
  EXPECT_TRUE(verdict().ok());
  call.lse_at(0, 0, 0) = 77;
  EXPECT_FALSE(verdict().ok());
}

TEST(ElementTest, BlocksByHand) {
  const std::vector<uint8_t> half = {0x00, 0x38};  // 0.5
  std::vector<uint8_t> q8_0(34, 0), q4_0(18, 0);
  for (std::vector<uint8_t> *bytes : {&q8_0, &q4_0}) bytes->insert(bytes->end(), half.begin(), half.end());  // the second block's
  for (int i = 0; i < 32; ++i) q8_0.push_back(uint8_t(i == 31 ? -128 : 3 * i));
  for (int i = 0; i < 16; ++i) q4_0.push_back(uint8_t(i == 2 ? 0xF1 : 0x80));
  EXPECT_EQ(reference::read_block_element(q8_0.data(), FOVEA_Q8_0, 1, 5), 7.5);
  EXPECT_EQ(reference::read_block_element(q8_0.data(), FOVEA_Q8_0, 1, 31), -64);
  EXPECT_EQ(reference::read_block_element(q4_0.data(), FOVEA_Q4_0, 1, 2), -3.5);
  EXPECT_EQ(reference::read_block_element(q4_0.data(), FOVEA_Q4_0, 1, 18), 3.5);
  EXPECT_EQ(reference::read_block_element(q4_0.data(), FOVEA_Q4_0, 1, 3), -4);
  EXPECT_EQ(reference::read_block_element(q4_0.data(), FOVEA_Q4_0, 1, 19), 0);
}

TEST(ElementTest, BlocksComeBackAsNearAsTheyCan) {
  std::vector<float> values(32);
  for (int i = 0; i < 32; ++i) values[size_t(i)] = float(std::sin(i * 1.7 + 0.3));
  values[9] = -1.25f;  // the largest magnitude
  for (const auto &[dtype, step] : {std::pair(FOVEA_Q8_0, 1.25 / 127), {FOVEA_Q4_0, 1.25 / 8}}) {
    std::vector<uint8_t> block(reference::element_bytes(dtype));
    reference::write_block(block.data(), dtype, 0, values.data());
    for (int i = 0; i < 32; ++i)
      EXPECT_NEAR(reference::read_block_element(block.data(), dtype, 0, i), double{values[size_t(i)]},
                  0.51 * step)  // the scale is rounded too
          << dtype << " " << i;
  }
}

TEST(ElementTest, EveryPatternOf16Bits) {
  for (const fovea_dtype dtype : {FOVEA_F16, FOVEA_BF16}) {
    for (int pattern = 0; pattern < 0x10000; ++pattern) {
      const auto bits = uint16_t(pattern);
      uint16_t again = 0;
      const double value = reference::read_element(&bits, dtype, 0);
      reference::write_element(&again, dtype, 0, value);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(reference::read_element(&again, dtype, 0)));
      } else {
        EXPECT_EQ(again, bits);
      }
      if (dtype == FOVEA_BF16) {
        const uint32_t wide = uint32_t{bits} << 16;
        float expected = 0;
        std::memcpy(&expected, &wide, sizeof expected);
        EXPECT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected)));
      }
    }
  }
  const uint16_t halves[] = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x7C00, 0x3555};
  const double values[] = {1, -2, 0x1p-24, 65504, kInfinity, 0.333251953125};
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(reference::read_element(halves, FOVEA_F16, i), values[i]);
  for (const auto &[value, rounded] : {std::pair{1 + 0x1p-11, 1.0},    // ties go to even
                                       {1 + 3 * 0x1p-11, 1 + 0x1p-9},  //
                                       {65519.0, 65504.0},             //
                                       {65520.0, double{kInfinity}},   //
                                       {0x1p-25, 0.0},                 //
                                       {0x1.8p-25, 0x1p-24},           //
                                       {-1e30, -double{kInfinity}}}) {
    uint16_t bits = 0;
    reference::write_element(&bits, FOVEA_F16, 0, value);
    EXPECT_EQ(reference::read_element(&bits, FOVEA_F16, 0), rounded) << value;
  }
  for (const fovea_dtype dtype : {FOVEA_F16, FOVEA_BF16}) {
    uint16_t bits = 0;
    reference::write_element(&bits, dtype, 0, reference::lowest_element(dtype));
    EXPECT_EQ(reference::read_element(&bits, dtype, 0), reference::lowest_element(dtype));
    ++bits;  // the next lower
    EXPECT_EQ(reference::read_element(&bits, dtype, 0), -double{kInfinity});
  }
}

TEST(ProblemLineTest, FormatsWhatItParses) {
  for (const char *text :
       {"",
        "b=2 hq=8 hkv=2 sq=128 skv=129 dk=64 dv=80 scale=0.1 causal=tl layout=padded lse=1 weights=1 "
        "dist=outlier gain=2.5 seed=7 isa=scalar "
        "threads=3 exec=pool",
        "causal=br left=100 softcap=2.5 alibi=1 sinks=1 lens=ragged score=modify mask=bf16 maskaxes=bk "
        "maskfill=blocks",
        "left=0 right=3 align=tl packed=1 score=replace mask=bool maskaxes= maskfill=low", "lens=ragged packed=kv",
        "hq=4 hkv=4 layout=broadcast", "layout=packed out=bshd", "q=bhds k=strided out=padded", "type=bf16", "type=f16 tout=f32",
        "tq=f16 tk=bf16", "tk=f16 tv=bf16 tout=f16", "layout=packed tv=f16", "layout=strided out=padded", "sq=0 skv=0",
        "exec=serial", "scale=-0"}) {
    ProblemLine line, again;
    ASSERT_EQ(reference::parse(text, &line), "");
    EXPECT_EQ(reference::format(line), text);
    ASSERT_EQ(reference::parse(reference::format(line), &again), "");
    EXPECT_EQ(reference::format(again), text);
  }
}

TEST(ProblemLineTest, SaysWhatIsWrong) {
  for (const char *text : {"b",
                           "b=",
                           "b=x",
                           "b=-1",
                           "b=1.5",
                           "sq=99999999999",
                           "hq=3 hkv=2",
                           "hq=3 hkv=0",
                           "layout=foo",
                           "type=f64",
                           "tout=bool",
                           "out=broadcast",
                           "causal=yes",
                           "left=-2",
                           "align=none",
                           "mask=int8",
                           "maskaxes=qh",
                           "maskaxes=x",
                           "maskaxes=qq",
                           "maskfill=some",
                           "packed=2",
                           "lens=0",
                           "score=add",
                           "softcap=",
                           "packed=q weights=1",
                           "lse=2",
                           "scale=x",
                           "threads=0",
                           "exec=serial threads=2",
                           "colour=red"}) {
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

// Everything that no entry has is NaN, so that the oracle, and any kernel, shows whether it reads it; and is watched in outputs.
TEST(ProblemLineTest, WhatNoEntryHasIsPoison) {
  for (const char *text : {"lens=ragged", "packed=1", "packed=q lens=ragged", "packed=kv", "packed=1 layout=bhds out=padded",
                           "lens=ragged layout=packed", "lens=ragged layout=broadcast", "packed=1 layout=broadcast"}) {
    for (const bool front : {false, true}) {
      ProblemLine line;
      ASSERT_EQ(reference::parse(std::string("b=5 hq=4 hkv=4 sq=10 skv=10 dk=3 dv=3 lse=1 seed=3 ") + text, &line), "");
      ProblemData data(line, front);
      const fovea_params &p = data.params;
      const bool broadcast = line.layout_q == "broadcast";
      int64_t queries = 0, rows_without = 0;
      for (int64_t row = 0; row < reference::row_count(p); ++row) {
        const reference::Row place = reference::row_at(p, row);
        const int64_t token = row % p.seq_q, h = row / p.seq_q % 4, b = row / p.seq_q / 4;  // as the tensors lie
        const float q = static_cast<const float *>(
            p.q.data)[(p.cu_seqlens_q ? 0 : b * p.q.stride[0]) + h * p.q.stride[1] + token * p.q.stride[2]];
        if (place.exists) {
          EXPECT_FALSE(std::isnan(q)) << text;
        } else if (!broadcast || p.cu_seqlens_q) {
          EXPECT_TRUE(std::isnan(q)) << text;
        }
        (place.exists ? queries : rows_without) += 1;
        float *lse = p.lse + (p.cu_seqlens_q ? 0 : b * p.lse_stride[0]) + h * p.lse_stride[1] + token * p.lse_stride[2];
        *lse = 0;
        EXPECT_EQ(data.output_gaps_intact(), place.exists) << text;
        std::memset(lse, 0xFF, sizeof *lse);
      }
      EXPECT_GT(queries, 0);
      if (line.packed != "kv") {
        EXPECT_GT(rows_without, 0);
      }
      const reference::Expected e = reference::attention(p);
      for (const double out : e.out) EXPECT_FALSE(std::isnan(out)) << text;
    }
  }
}

TEST(ProblemLineTest, LengthsAreOfEveryKind) {
  int empty_q = 0, empty_kv = 0, full_q = 0, full_kv = 0, shorter_q = 0, shorter_kv = 0;
  for (uint64_t seed = 1; seed < 30; ++seed)
    for (int64_t batch = 1; batch < 5; ++batch) {
      ProblemLine line;
      line.seed = seed;
      line.batch = batch;
      line.seq_q = 40;
      line.seq_kv = 70;
      line.lens = "ragged";
      const ProblemData ragged(line);
      int empty = 0;
      for (int64_t b = 0; b < batch; ++b) {
        const int32_t q = ragged.params.seqlens_q[b], kv = ragged.params.seqlens_kv[b];
        ASSERT_TRUE(q >= 0 && q <= 40 && kv >= 0 && kv <= 70);
        empty_q += q == 0, full_q += q == 40, shorter_q += q > 0 && q < 40;
        empty_kv += kv == 0, full_kv += kv == 70, shorter_kv += kv > 0 && kv < 70;
        empty += q == 0 || kv == 0;
      }
      EXPECT_EQ(empty, batch == 1 ? 0 : batch == 2 ? 1 : 2);
      line.packed = "1";
      const ProblemData packed(line);
      const fovea_params &p = packed.params;
      int64_t longest_q = 0, longest_kv = 0;
      empty = 0;
      for (int64_t b = 0; b < batch; ++b) {
        const int64_t q = p.cu_seqlens_q[b + 1] - p.cu_seqlens_q[b], kv = p.cu_seqlens_kv[b + 1] - p.cu_seqlens_kv[b];
        longest_q = std::max(longest_q, q);
        longest_kv = std::max(longest_kv, kv);
        empty += q == 0 || kv == 0;
      }
      EXPECT_EQ(longest_q, 40);
      EXPECT_EQ(longest_kv, 70);
      EXPECT_EQ(empty, batch > 2 ? 2 : 0);
      EXPECT_LT(p.cu_seqlens_q[batch], p.seq_q) << "slack behind the last";
      EXPECT_FALSE(p.seqlens_q || p.seqlens_kv);
      EXPECT_EQ(p.batch, batch);
    }
  for (const int count : {empty_q, empty_kv, full_q, full_kv, shorter_q, shorter_kv}) EXPECT_GT(count, 20);
}

TEST(ProblemLineTest, MasksAreWhatTheirFillSays) {
  const auto mask_of = [](const std::string &text, auto visit) {  // visit(h, i, j, value, type)
    for (const char *type : {"bool", "f32", "f16", "bf16"}) {
      ProblemLine line;
      EXPECT_EQ(reference::parse("b=2 hq=3 hkv=3 sq=64 skv=800 maskaxes=hqk mask=" + std::string(type) + " " + text, &line), "");
      const ProblemData data(line);
      const fovea_tensor &m = data.params.mask;
      EXPECT_EQ(m.stride[0], 0);
      for (int64_t h = 0; h < 3; ++h)
        for (int64_t i = 0; i < 64; ++i)
          for (int64_t j = 0; j < 800; ++j) {
            const int64_t at = h * m.stride[1] + i * m.stride[2] + j * m.stride[3];
            const double value = reference::read_element(m.data, m.dtype, at);
            visit(h, i, j, m.dtype == FOVEA_BOOL ? (value != 0 ? 0.0 : -double{kInfinity}) : value, m.dtype);
          }
    }
  };
  mask_of("maskfill=true", [](int64_t, int64_t, int64_t, double value, fovea_dtype) { ASSERT_EQ(value, 0); });
  mask_of("maskfill=late q=strided",
          [](int64_t, int64_t, int64_t j, double value, fovea_dtype) { ASSERT_EQ(std::isfinite(value), j >= 797); });
  mask_of("maskfill=blocks q=padded", [](int64_t, int64_t i, int64_t j, double value, fovea_dtype) {
    ASSERT_EQ(std::isfinite(value), i / 8 == j / 100) << i << " " << j;
  });
  std::set<double> low;
  mask_of("maskfill=low q=bhds", [&](int64_t, int64_t, int64_t, double value, fovea_dtype dtype) {
    ASSERT_TRUE(std::isfinite(value));
    if (dtype == FOVEA_F32) low.insert(value);
  });
  EXPECT_EQ(low, (std::set<double>{0, -88, -95, -200, -1e4, -FLT_MAX}));
  std::vector<int> of_row(4 * 64), of_block(4 * 3 * 3);
  int excluded = 0, biased = 0;
  mask_of("seed=2 maskfill=random", [&](int64_t h, int64_t i, int64_t j, double value, fovea_dtype dtype) {
    const bool yes = std::isfinite(value);
    if (dtype != FOVEA_F32) return;
    excluded += !yes;
    biased += yes && value != 0;
    ASSERT_LE(yes ? std::fabs(value) : 0, 4);
    if (h == 0) of_row[size_t(i)] += yes;
    of_block[size_t(h * 3 + j / 300)] += yes;
  });
  const auto empty = [](const std::vector<int> &counts, size_t n) {
    return std::count(counts.begin(), counts.begin() + int64_t(n), 0);
  };
  EXPECT_GT(empty(of_row, 64), 0);
  EXPECT_LT(empty(of_row, 64), 16);
  EXPECT_GT(empty(of_block, 9), 0);
  EXPECT_LT(empty(of_block, 9), 6);
  EXPECT_GT(biased, 3 * 64 * 800 / 4);
  EXPECT_GT(excluded, 3 * 64 * 800 / 2);
}

TEST(ProblemLineTest, SlopesAndSinks) {
  const std::vector<std::vector<float>> standard = {
      {0x1p-8f},
      {0x1p-4f, 0x1p-8f},
      {0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f},
      {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f},
      {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f, 0.707107f, 0.353553f, 0.176777f, 0.088388f}};
  for (const std::vector<float> &slopes : standard) {
    ProblemLine line;
    line.alibi = line.sinks = true;
    line.heads_q = line.heads_kv = int64_t(slopes.size());
    const ProblemData data(line);
    EXPECT_EQ(data.params.align, FOVEA_ALIGN_BOTTOM_RIGHT);
    for (size_t h = 0; h < slopes.size(); ++h) {
      EXPECT_NEAR(data.params.alibi_slopes[h], slopes[h], 5e-7);
      EXPECT_EQ(data.params.sinks[h] == -kInfinity, h % 4 == 1);
      EXPECT_LT(data.params.sinks[h], 21);
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

// All elements of a dense or strided input, tokens that no entry has included.
std::vector<double> elements_of(const fovea_tensor &t, int64_t batch, int64_t heads, int64_t seq, int64_t dim) {
  std::vector<double> values;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t s = 0; s < seq; ++s)
        for (int64_t d = 0; d < dim; ++d) {
          const int64_t at = (b ? b * t.stride[0] : 0) + h * t.stride[1] + s * t.stride[2] + d * t.stride[3];
          values.push_back(reference::read_element(t.data, t.dtype, at));
        }
  return values;
}

TEST(ProblemLineTest, ElementsAreRoundedToTheirType) {
  for (const char *layout : {"bhsd", "padded", "strided", "broadcast", "packed", "packed packed=1", "bhds lens=ragged"}) {
    const std::string text = "b=3 hq=2 hkv=2 sq=5 skv=5 dk=6 dv=6 lse=1 layout=" + std::string(layout);
    ProblemLine line;
    ASSERT_EQ(reference::parse(text, &line), "");
    const ProblemData floats(line);
    for (const char *types : {"type=f16", "type=bf16", "tq=f16 tk=bf16 tout=bf16"}) {
      ASSERT_EQ(reference::parse(text + " " + types, &line), "");
      for (const bool front : {false, true}) {
        const ProblemData data(line, front);
        const fovea_params &p = data.params, &wide = floats.params;
        for (const auto &[tensor, wide_tensor, seq] :
             {std::tuple(&p.q, &wide.q, p.seq_q), {&p.k, &wide.k, p.seq_kv}, {&p.v, &wide.v, p.seq_kv}}) {
          const int64_t batch = line.packed == "1" ? 1 : line.batch;
          const std::vector<double> values = elements_of(*tensor, batch, 2, seq, 6);
          const std::vector<double> unrounded = elements_of(*wide_tensor, batch, 2, seq, 6);
          Elements rounded(tensor->dtype, values.size());
          for (size_t i = 0; i < values.size(); ++i) {
            rounded.set(i, unrounded[i]);
            ASSERT_TRUE(values[i] == rounded[i] || (std::isnan(values[i]) && std::isnan(rounded[i]))) << reference::format(line);
          }
        }
      }
    }
  }
}

TEST(ProblemLineTest, GapsBetweenElementsOf16BitsAreWatched) {
  for (const char *type : {"f16", "bf16"}) {
    ProblemLine line;
    ASSERT_EQ(reference::parse("sq=3 dv=5 layout=padded type=" + std::string(type), &line), "");
    ProblemData data(line);
    auto *out = static_cast<unsigned char *>(data.params.out.data);
    std::memset(out, 0, 5 * sizeof(uint16_t));  // a row
    EXPECT_TRUE(data.output_gaps_intact());
    EXPECT_EQ(data.dense_out()[4], 0);
    EXPECT_TRUE(std::isnan(data.dense_out()[5]));
    for (const int64_t byte : {-1, 10, 15}) {  // before the first row, and between it and the second
      out[byte] = 0;
      EXPECT_FALSE(data.output_gaps_intact()) << byte;
      out[byte] = 0xFF;
    }
    EXPECT_TRUE(data.output_gaps_intact());
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
