// Head dims of every remainder, and different ones for keys and values.
#include <gtest/gtest.h>

#include <cmath>

#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

class HeadDimsTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(HeadDimsTest);

std::string dims(int64_t dim_k, int64_t dim_v) { return " dk=" + std::to_string(dim_k) + " dv=" + std::to_string(dim_v); }

TEST_P(HeadDimsTest, EveryRemainder) {
  for (const int64_t dim :
       {1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 33, 40, 63, 64, 65, 72, 80, 96, 112, 127, 128, 129, 192, 256, 512})
    for (const char *type : {"f32", "f16", "bf16"})
      for (const char *sizes : {" sq=7 skv=11", " sq=1 skv=11", " sq=1 skv=1"})
        expect_right("hq=3 hkv=3 lse=1 weights=1 seed=12 type=" + std::string(type) + sizes + dims(dim, dim), level());
  expect_right("hq=13 hkv=13 sq=7 skv=7 lse=1 dk=37 dv=37", level());
}

TEST_P(HeadDimsTest, DifferentDimsOfKeysAndValues) {
  const int64_t pairs[][2] = {{192, 128}, {64, 96}, {24, 40}, {576, 512}, {1, 64}, {64, 1}};
  for (const auto &pair : pairs)
    for (const char *sizes : {"hq=4 hkv=2 sq=50 skv=60 lse=1", "hq=4 hkv=2 sq=1 skv=700 lse=1",
                              "hq=4 hkv=2 sq=50 skv=61 lse=1 type=f16", "hq=4 hkv=2 sq=1 skv=701 lse=1 type=bf16"})
      expect_right(sizes + dims(pair[0], pair[1]), level());
}

TEST_P(HeadDimsTest, OneByOneByOne) {
  const auto context = this->context();
  Call call({1, 1, 1, 1, 1, 1, 1});
  call.q_at(0, 0, 0, 0) = 3;
  call.k_at(0, 0, 0, 0) = 4;
  call.v_at(0, 0, 0, 0) = 0x1.234566p5f;
  ASSERT_EQ(call.run(context.get()), FOVEA_OK);
  EXPECT_EQ(call.out[0], 0x1.234566p5f);
  EXPECT_EQ(call.weights[0], 1.0f);
  EXPECT_NEAR(call.lse[0], 12.0f, 1e-6);
}

// A query of length 2 made by transposing a [1, 2] tensor: both strides look dense, and only one is.
TEST_P(HeadDimsTest, TransposedRow) {
  const auto context = this->context();
  Call call({1, 1, 1, 2, 3, 1, 1});
  call.fill_random(5);
  ASSERT_EQ(call.run(context.get()), FOVEA_OK);
  const std::vector<float> out = call.out;
  call.params.q.stride[2] = 1;
  call.params.q.stride[3] = 2;
  ASSERT_EQ(call.run(context.get()), FOVEA_OK);
  EXPECT_TRUE(same_bits(out, call.out));
}

TEST_P(HeadDimsTest, DefaultScaleIsThatOfTheKeys) {
  for (const int64_t dim_k : {1, 2, 64, 96, 576}) {
    Call call({1, 1, 1, 1, 2, dim_k, 3});
    EXPECT_EQ(call.params.scale, float(1 / std::sqrt(double(dim_k))));
  }
  Call none({1, 1, 1, 1, 2, 0, 3});
  EXPECT_EQ(none.params.scale, 1.0f);
}

}  // namespace
}  // namespace fovea::testing
