// What a checked call looks like to everything behind the API.
#include <gtest/gtest.h>

#include <limits>

#include "api/check.h"
#include "core/problem.h"
#include "fovea/fovea.h"

namespace fovea {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

fovea_params params() {
  fovea_params p;
  EXPECT_EQ(fovea_params_init(&p, sizeof p, 2, 4, 2, 3, 5, 6, 7), FOVEA_OK);
  return p;
}

Problem problem_of(const fovea_params &p) {
  Problem problem;
  EXPECT_EQ(check_params(&p, &problem), FOVEA_OK) << fovea_last_error();
  return problem;
}

TEST(Problem, HasNoOptionThatIsOff) {
  const Problem problem = problem_of(params());
  EXPECT_EQ(problem.window_left, kUnbounded);
  EXPECT_EQ(problem.window_right, kUnbounded);
  EXPECT_FALSE(problem.bottom_right);
  EXPECT_EQ(problem.softcap, 0);
  EXPECT_EQ(problem.mask.data, nullptr);
  EXPECT_EQ(problem.weights.data, nullptr);
  EXPECT_EQ(problem.score, nullptr);
  EXPECT_FALSE(problem.score_replaces);
  for (const void *array : {static_cast<const void *>(problem.seqlens_q), static_cast<const void *>(problem.seqlens_kv),
                            static_cast<const void *>(problem.cu_seqlens_q), static_cast<const void *>(problem.cu_seqlens_kv),
                            static_cast<const void *>(problem.alibi_slopes), static_cast<const void *>(problem.sinks)})
    EXPECT_EQ(array, nullptr);
}

TEST(Problem, CausalBoundsTheWindowOnTheRight) {
  fovea_params p = params();
  p.align = FOVEA_ALIGN_BOTTOM_RIGHT;
  p.causal = 1;
  for (int64_t right : {int64_t{-1}, int64_t{0}, int64_t{3}, kMax}) {
    p.window_right = right;
    EXPECT_EQ(problem_of(p).window_right, 0);
  }
  p.causal = 0;
  for (int64_t bound : {int64_t{0}, int64_t{3}}) {
    p.window_right = p.window_left = bound;
    EXPECT_EQ(problem_of(p).window_right, bound);
    EXPECT_EQ(problem_of(p).window_left, bound);
  }
  p.window_right = p.window_left = kMax;  // any position plus the bound must fit 64 bits
  EXPECT_EQ(problem_of(p).window_right, kUnbounded);
  EXPECT_EQ(problem_of(p).window_left, kUnbounded);
  EXPECT_TRUE(problem_of(p).bottom_right);
  p.align = FOVEA_ALIGN_TOP_LEFT;
  EXPECT_FALSE(problem_of(p).bottom_right);
}

TEST(Problem, PackedSidesHaveNoBatchStride) {
  static const int32_t offsets[3] = {};
  for (int sides = 0; sides < 4; ++sides) {
    fovea_params p = params();
    float lse;
    p.lse = &lse;
    const bool packed_q = sides & 1, packed_kv = sides & 2;
    if (packed_q) p.cu_seqlens_q = offsets, p.q.stride[0] = p.out.stride[0] = p.lse_stride[0] = -kMax;
    if (packed_kv) p.cu_seqlens_kv = offsets, p.k.stride[0] = p.v.stride[0] = -1;
    const Problem problem = problem_of(p);
    EXPECT_EQ(problem.batch, 2);
    EXPECT_EQ(problem.cu_seqlens_q, p.cu_seqlens_q);
    EXPECT_EQ(problem.cu_seqlens_kv, p.cu_seqlens_kv);
    EXPECT_EQ(problem.q.stride[0], packed_q ? 0 : 4 * 3 * 6);
    EXPECT_EQ(problem.out.stride[0], packed_q ? 0 : 4 * 3 * 7);
    EXPECT_EQ(problem.lse_stride[0], packed_q ? 0 : 4 * 3);
    EXPECT_EQ(problem.k.stride[0], packed_kv ? 0 : 2 * 5 * 6);
    EXPECT_EQ(problem.v.stride[0], packed_kv ? 0 : 2 * 5 * 7);
  }
}

TEST(Problem, MaskStridesOfAxesOfSizeOneAreDropped) {
  fovea_params p;
  ASSERT_EQ(fovea_params_init(&p, sizeof p, 1, 4, 4, 1, 5, 6, 7), FOVEA_OK);
  float mask;
  p.mask = {&mask, {-kMax, 8, kMax, 1}, FOVEA_F32, 0};
  const Problem problem = problem_of(p);
  EXPECT_EQ(problem.mask.data, &mask);
  EXPECT_EQ(problem.mask.dtype, FOVEA_F32);
  const int64_t expected[4] = {0, 8, 0, 1};
  for (int a = 0; a < 4; ++a) EXPECT_EQ(problem.mask.stride[a], expected[a]) << a;
}

// An absent tensor is not looked at.
TEST(Problem, IgnoresTheFieldsOfAnAbsentMask) {
  fovea_params p = params();
  p.mask = {nullptr, {-1, -1, -1, -1}, 77, 1};
  EXPECT_EQ(problem_of(p).mask.data, nullptr);
}

TEST(Problem, ASubnormalSoftcapCountsAsZero) {
  fovea_params p = params();
  for (float off : {0.f, -0.f, 1e-40f}) {
    p.softcap = off;
    EXPECT_EQ(problem_of(p).softcap, 0);
  }
  for (float on : {std::numeric_limits<float>::min(), 50.f, std::numeric_limits<float>::max()}) {
    p.softcap = on;
    EXPECT_EQ(problem_of(p).softcap, on);
  }
}

TEST(Problem, KnowsWhatTheScoreFunctionDoes) {
  fovea_params p = params();
  int user;
  p.score = [](void *, const fovea_score_tile *) {};
  p.score_user = &user;
  for (int32_t mode : {FOVEA_SCORE_MODIFY, FOVEA_SCORE_REPLACE}) {
    p.score_mode = mode;
    const Problem problem = problem_of(p);
    EXPECT_EQ(problem.score, p.score);
    EXPECT_EQ(problem.score_user, &user);
    EXPECT_EQ(problem.score_replaces, mode == FOVEA_SCORE_REPLACE);
  }
}

}  // namespace
}  // namespace fovea
