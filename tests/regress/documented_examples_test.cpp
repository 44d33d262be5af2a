// The worked examples of docs/semantics.md.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

class DocumentedExamplesTest : public LevelTest {};
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
  call.k_at(0, 0, 1, 0) = -std::numeric_limits<float>::infinity();
  call.v_at(0, 0, 1, 0) = 5;
  ASSERT_EQ(call.run(context().get()), FOVEA_OK);
  EXPECT_EQ(call.out[0], 1.0f);
  EXPECT_EQ(call.lse[0], 0.0f);
  EXPECT_EQ(call.weights[1], 0.0f);
}

}  // namespace
}  // namespace fovea::testing
