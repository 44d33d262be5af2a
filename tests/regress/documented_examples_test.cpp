// The worked examples of docs/semantics.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class DocumentedExamplesTest : public LevelTest {
 protected:
  void run(Call &call) const { ASSERT_EQ(call.run(context().get()), FOVEA_OK) << fovea_last_error(); }
};
FOVEA_TEST_EVERY_LEVEL(DocumentedExamplesTest);

TEST_P(DocumentedExamplesTest, OneRow) {
  Call call({1, 1, 1, 1, 2, 1, 1});
  call.q_at(0, 0, 0, 0) = 2;
  call.k_at(0, 0, 1, 0) = 1;
  call.v_at(0, 0, 1, 0) = 5;
  EXPECT_EQ(call.params.scale, 1.0f);
  ASSERT_EQ(call.run(context().get()), FOVEA_OK);
  EXPECT_NEAR(call.weights[0], 0.119203, 5e-7);
  EXPECT_NEAR(call.weights[1], 0.880797, 5e-7);
  EXPECT_NEAR(call.out[0], 4.523188, 1e-6);
  EXPECT_NEAR(call.lse[0], 2.126928, 5e-7);
}

TEST_P(DocumentedExamplesTest, HeadsOfAGroup) {
  Call call({1, 6, 2, 1, 1, 1, 1});
  call.v_at(0, 1, 0, 0) = 2;
  ASSERT_EQ(call.run(context().get()), FOVEA_OK);
  EXPECT_EQ(call.out, (std::vector<float>{1, 1, 1, 2, 2, 2}));
}

TEST_P(DocumentedExamplesTest, AKeyOfMinusInfinity) {
  Call call({1, 1, 1, 1, 2, 1, 1});
  call.q_at(0, 0, 0, 0) = 1;
  call.k_at(0, 0, 1, 0) = -kInfinity;
  call.v_at(0, 0, 1, 0) = 5;
  ASSERT_EQ(call.run(context().get()), FOVEA_OK);
  EXPECT_EQ(call.out[0], 1.0f);
  EXPECT_EQ(call.lse[0], 0.0f);
  EXPECT_EQ(call.weights[1], 0.0f);
}

// Strides of masks of the usual shapes give what a mask with all repetitions written out gives.
TEST_P(DocumentedExamplesTest, MaskStridesOfTheUsualShapes) {
  const int64_t B = 2, H = 3, Q = 4, K = 5;
  Call call({B, H, 1, Q, K, 2, 2});
  call.fill_random(1);
  EXPECT_TRUE(
      std::equal(call.params.mask.stride, call.params.mask.stride + 4, std::vector<int64_t>{H * Q * K, Q * K, K, 1}.begin()));
  const int64_t strides[][4] = {{H * Q * K, Q * K, K, 1}, {K, 0, 0, 1}, {0, Q * K, K, 1}, {0, 0, K, 1}};
  std::vector<float> bias(size_t(B * H * Q * K)), expanded(bias.size());
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = float(i * 7 % 11) / 4;
  std::vector<std::vector<float>> results;
  for (const auto &s : strides) {
    for (int64_t i = 0; i < B * H * Q * K; ++i)
      expanded[size_t(i)] = bias[size_t(i / (H * Q * K) * s[0] + i / (Q * K) % H * s[1] + i / K % Q * s[2] + i % K * s[3])];
    call.params.mask = {expanded.data(), {H * Q * K, Q * K, K, 1}, FOVEA_F32, 0};
    run(call);
    const std::vector<float> wanted = call.out;
    call.params.mask = {bias.data(), {s[0], s[1], s[2], s[3]}, FOVEA_F32, 0};
    run(call);
    EXPECT_EQ(call.out, wanted) << s[0] << ' ' << s[1];
    results.push_back(call.out);
  }
  for (size_t i = 1; i < results.size(); ++i) EXPECT_NE(results[i], results[0]);
}

// Every step of a score at once.
TEST_P(DocumentedExamplesTest, OrderOfTheSteps) {
  Call call({1, 1, 1, 1, 2, 1, 1});
  const float slope = 0.5f;
  std::vector<float> mask = {-1, 0.25f};
  call.q_at(0, 0, 0, 0) = 2;
  call.k_at(0, 0, 0, 0) = 3;
  call.k_at(0, 0, 1, 0) = 1;
  call.params.softcap = 4;
  call.params.alibi_slopes = &slope;
  call.params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
  call.params.mask = {mask.data(), {0, 0, 0, 1}, FOVEA_F32, 0};
  run(call);
  EXPECT_NEAR(call.weights[0], 0.505531, 5e-7);
  EXPECT_NEAR(call.lse[0], 2.802739, 5e-6);
}

TEST_P(DocumentedExamplesTest, Window) {
  Call call({1, 1, 1, 3, 5, 1, 1});
  call.params.window_left = call.params.window_right = 1;
  call.params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
  run(call);
  const float third = 1 / 3.0f;
  EXPECT_EQ(call.weights, (std::vector<float>{0, third, third, third, 0,  //
                                              0, 0, third, third, third,  //
                                              0, 0, 0, 0.5f, 0.5f}));
}

TEST_P(DocumentedExamplesTest, Alibi) {
  Call call({1, 1, 1, 1, 3, 1, 1});
  const float slope = 1;
  call.params.alibi_slopes = &slope;
  call.params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
  run(call);
  EXPECT_NEAR(call.weights[0], 0.090031, 5e-7);
  EXPECT_NEAR(call.weights[1], 0.244728, 5e-7);
  EXPECT_NEAR(call.weights[2], 0.665241, 5e-7);
  EXPECT_NEAR(call.lse[0], 0.407606, 5e-7);
}

TEST_P(DocumentedExamplesTest, Masks) {
  Call call({1, 1, 1, 1, 2, 1, 1});
  call.v_at(0, 0, 1, 0) = 5;
  const auto out_with = [&](void *mask, fovea_dtype dtype) {
    call.params.mask = {mask, {0, 0, 0, 1}, dtype, 0};
    run(call);
    return call.out[0];
  };
  unsigned char first_only[] = {1, 0};
  float infinity[] = {0, -kInfinity}, bias[] = {0, std::log(3.0f)}, lowest[] = {-FLT_MAX, -FLT_MAX};
  EXPECT_EQ(out_with(first_only, FOVEA_BOOL), 1.0f);
  EXPECT_EQ(out_with(infinity, FOVEA_F32), 1.0f);
  EXPECT_NEAR(out_with(bias, FOVEA_F32), 4, 1e-6);
  EXPECT_NEAR(call.weights[1], 0.75, 5e-7);
  EXPECT_NEAR(call.lse[0], 1.386294, 5e-7);
  EXPECT_EQ(out_with(lowest, FOVEA_F32), 3.0f);
}

TEST_P(DocumentedExamplesTest, Softcap) {
  Call call({1, 1, 1, 1, 2, 1, 1});
  call.params.softcap = 1;
  float excluded[] = {0, -kInfinity}, bias[] = {0, 5};
  call.v_at(0, 0, 1, 0) = 1000;
  call.params.mask = {excluded, {0, 0, 0, 1}, FOVEA_F32, 0};
  run(call);
  EXPECT_EQ(call.out[0], 1.0f);
  call.v_at(0, 0, 0, 0) = 0;
  call.v_at(0, 0, 1, 0) = 1;
  call.params.mask.data = bias;
  run(call);
  EXPECT_NEAR(call.out[0], 0.993307, 5e-7);
  Call one({1, 1, 1, 1, 1, 1, 1});
  one.q_at(0, 0, 0, 0) = 20;
  one.k_at(0, 0, 0, 0) = 1;
  one.params.softcap = 10;
  run(one);
  EXPECT_NEAR(one.lse[0], 9.640276, 5e-6);
}

TEST_P(DocumentedExamplesTest, Sink) {
  Call call({1, 1, 1, 2, 4, 1, 1});
  const float sink = std::log(4.0f);
  call.params.sinks = &sink;
  unsigned char rows[] = {1, 0};  // the second row is empty
  call.params.mask = {rows, {0, 0, 1, 0}, FOVEA_BOOL, 0};
  run(call);
  EXPECT_NEAR(call.out[0], 0.5, 5e-7);
  EXPECT_NEAR(call.weights[0], 0.125, 5e-7);
  EXPECT_NEAR(call.lse[0], 2.079442, 5e-7);
  EXPECT_EQ(call.out[1], 0.0f);
  EXPECT_EQ(call.weights[4], 0.0f);
  EXPECT_EQ(call.lse[1], sink);
}

TEST_P(DocumentedExamplesTest, Lengths) {
  Call call({2, 1, 1, 2, 4, 1, 1});
  const int32_t queries[] = {2, 1}, keys[] = {4, 2};
  call.params.seqlens_q = queries;
  call.params.seqlens_kv = keys;
  call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
  run(call);
  EXPECT_NEAR(call.lse[0], std::log(3.0), 5e-7);
  EXPECT_NEAR(call.lse[1], std::log(4.0), 5e-7);
  EXPECT_NEAR(call.lse[2], std::log(2.0), 5e-7);
  EXPECT_EQ(call.lse[3], Call::canary);
  EXPECT_EQ(call.out[3], Call::canary);
  EXPECT_EQ(std::vector<float>(call.weights.begin() + 8, call.weights.end()),
            (std::vector<float>{0.5f, 0.5f, 0, 0, Call::canary, Call::canary, Call::canary, Call::canary}));
}

TEST_P(DocumentedExamplesTest, PackedBatch) {
  Call call({1, 1, 1, 4, 7, 1, 7});  // tokens
  for (int64_t j = 0; j < 7; ++j)
    for (int64_t c = 0; c < 7; ++c) call.v_at(0, 0, j, c) = j == c;
  const int32_t queries[] = {0, 2, 2, 3}, keys[] = {0, 3, 4, 6};
  call.params.batch = 3;
  call.params.cu_seqlens_q = queries;
  call.params.cu_seqlens_kv = keys;
  call.params.weights.data = nullptr;
  call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
  run(call);
  const float third = 1 / 3.0f;
  EXPECT_EQ(std::vector<float>(call.out.begin(), call.out.begin() + 21),
            (std::vector<float>{0.5f,  0.5f,  0,     0, 0,    0,    0,  //
                                third, third, third, 0, 0,    0,    0,  //
                                0,     0,     0,     0, 0.5f, 0.5f, 0}));
  for (size_t i = 21; i < 28; ++i) EXPECT_EQ(call.out[i], Call::canary) << "a token of no segment";
  EXPECT_EQ(call.lse[3], Call::canary);
}

TEST_P(DocumentedExamplesTest, AnAppendBeyondTheCapacity) {
  std::vector<float> cache(2 * 40, Call::canary), tokens(2 * 20, 1.0f);
  fovea_params p;
  ASSERT_EQ(fovea_params_init(&p, sizeof p, 2, 1, 1, 0, 40, 1, 0), FOVEA_OK);
  p.k.data = cache.data();
  const fovea_tensor k_new = {tokens.data(), {20, 20, 1, 1}, FOVEA_F32, 0}, none = {nullptr, {0, 0, 0, 0}, FOVEA_F32, 0};
  const int32_t start[] = {11, 37}, count[] = {20, 4};
  EXPECT_EQ(fovea_kv_append(context().get(), &p, &k_new, &none, start, count), FOVEA_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(fovea_last_error()).find("count[1]"), size_t{0});
  EXPECT_EQ(cache, std::vector<float>(cache.size(), Call::canary));
}

TEST_P(DocumentedExamplesTest, StepsOfGeneration) {
  for (const int32_t more : {1, 3}) {
    Call call({2, 1, 1, more, 8, 1, 1});
    call.v.assign(16, std::nanf(""));
    for (int64_t j = 0; j < 5; ++j) call.v_at(0, 0, j, 0) = float(j);
    for (int64_t j = 0; j < 2; ++j) call.v_at(1, 0, j, 0) = float(j);
    std::vector<float> keys(6, 0.0f), values = {5, 6, 7, 2, -1, -1};
    const fovea_tensor k_new = {keys.data(), {3, 3, 1, 1}, FOVEA_F32, 0}, v_new = {values.data(), {3, 3, 1, 1}, FOVEA_F32, 0};
    const int32_t start[] = {5, 2}, count[] = {more, 1}, lengths[] = {5 + more, 3};
    ASSERT_EQ(fovea_kv_append(context().get(), &call.params, &k_new, &v_new, start, count), FOVEA_OK) << fovea_last_error();
    call.params.seqlens_q = count;
    call.params.seqlens_kv = lengths;
    call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
    run(call);
    for (int64_t i = 0; i < more; ++i) EXPECT_NEAR(call.out_at(0, 0, i, 0), 2.5 + double(i) / 2, 5e-7);
    EXPECT_EQ(call.out_at(1, 0, 0, 0), 1.0f);
  }
}

TEST_P(DocumentedExamplesTest, InfiniteScoresUnderASoftcap) {
  Call call({1, 1, 1, 1, 2, 1, 1});
  call.q_at(0, 0, 0, 0) = 1;
  call.k_at(0, 0, 0, 0) = kInfinity;
  call.k_at(0, 0, 1, 0) = -kInfinity;
  call.params.softcap = 1;
  run(call);
  EXPECT_NEAR(call.weights[0], 0.880797, 5e-7);
  EXPECT_NEAR(call.lse[0], 1.126928, 5e-7);
}

TEST_P(DocumentedExamplesTest, AScoreOfMinusInfinityExcludesUnderAScoreFunction) {
  Call call({1, 1, 1, 1, 2, 1, 1});
  call.q_at(0, 0, 0, 0) = 1;
  call.k_at(0, 0, 1, 0) = -kInfinity;
  call.v_at(0, 0, 1, 0) = std::nanf("");
  run(call);
  EXPECT_TRUE(std::isnan(call.out[0]));
  call.params.score_mode = FOVEA_SCORE_MODIFY;
  call.params.score = [](void *, const fovea_score_tile *) {};
  run(call);
  EXPECT_EQ(call.out[0], 1.0f);
}

}  // namespace
}  // namespace fovea::testing
