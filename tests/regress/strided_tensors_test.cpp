// Any strides on any tensor give the bits of the dense call, and nothing is written between the elements of an output.
#include <gtest/gtest.h>

#include "reference/guarded_buffer.h"
#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

using reference::ProblemData;
using reference::ProblemLine;

class StridedTensorsTest : public LevelTest {
 protected:
  std::vector<float> run(const ProblemLine &line) const {
    const auto context = this->context(line.threads);
    const ProblemData data(line);
    EXPECT_EQ(reference::run_guarded(context.get(), data.params), "") << reference::format(line);
    EXPECT_TRUE(data.output_gaps_intact()) << reference::format(line);
    std::vector<float> all = data.dense_out();
    for (const std::vector<float> &more : {data.dense_lse(), data.dense_weights()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};
FOVEA_TEST_EVERY_LEVEL(StridedTensorsTest);

TEST_P(StridedTensorsTest, EachInputAloneAndAllTogether) {
  ProblemLine line;
  line.isa = level();
  line.batch = 2;
  line.heads_q = 4;
  line.heads_kv = 2;
  line.seq_q = 19;
  line.seq_kv = 62;
  line.dim_k = 128;
  line.dim_v = 128;
  line.lse = true;
  for (const std::string type : {"f32", "f16", "bf16"}) {
    if (type == "f16" && flushes_halves(level())) continue;
    line.type_q = line.type_k = line.type_v = line.type_out = type;
    line.layout_q = line.layout_k = line.layout_v = "bhsd";
    const std::vector<float> dense = run(line);
    for (const char *layout : {"bshd", "bhds", "padded", "strided"}) {
      for (int which = 1; which < 8; ++which) {  // every combination of q, k and v
        line.layout_q = which & 1 ? layout : "bhsd";
        line.layout_k = which & 2 ? layout : "bhsd";
        line.layout_v = which & 4 ? layout : "bhsd";
        EXPECT_TRUE(same_bits(run(line), dense)) << reference::format(line);
      }
    }
  }
}

TEST_P(StridedTensorsTest, StridesOfAxesOfSizeOneAreIgnored) {
  const auto context = this->context();
  Call call({1, 1, 1, 1, 1, 1, 1});
  call.fill_random(1);
  ASSERT_EQ(call.run(context.get()), FOVEA_OK);
  const std::vector<float> out = call.out;
  for (fovea_tensor *t : {&call.params.q, &call.params.k, &call.params.v, &call.params.out, &call.params.weights})
    for (int64_t &stride : t->stride) stride = INT64_MAX;
  for (int64_t &stride : call.params.lse_stride) stride = -5;
  ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
  EXPECT_TRUE(same_bits(out, call.out));
}

// One head of keys and values for many query heads, by strides of 0 instead of grouping.
TEST_P(StridedTensorsTest, RepeatedHeadsEqualGroupedHeads) {
  const auto context = this->context();
  Call grouped({2, 12, 1, 5, 33, 24, 20});
  grouped.fill_random(2);
  ASSERT_EQ(grouped.run(context.get()), FOVEA_OK);
  Call repeated({2, 12, 12, 5, 33, 24, 20});
  repeated.q = grouped.q;
  repeated.params.k = grouped.params.k;
  repeated.params.v = grouped.params.v;
  repeated.params.k.stride[1] = repeated.params.v.stride[1] = 0;
  ASSERT_EQ(repeated.run(context.get()), FOVEA_OK) << fovea_last_error();
  // The group may decide which kernel runs, and so the last bits.
  for (size_t i = 0; i < grouped.out.size(); ++i) ASSERT_NEAR(grouped.out[i], repeated.out[i], 1e-6) << i;
}

// Few queries and many keys: the keys of a row are shared by tasks and their results combined.
TEST_P(StridedTensorsTest, OutputsOfCallsThatSplitTheirKeys) {
  for (const auto &[queries, type] : {std::pair(1, "f32"), {2, "f32"}, {3, "f32"}, {4, "f32"}, {1, "f16"}, {4, "bf16"}}) {
    ProblemLine line;
    line.isa = level();
    line.heads_q = line.heads_kv = 8;
    line.seq_q = queries;
    line.seq_kv = 4096;
    line.dim_k = line.dim_v = 64;
    line.lse = true;
    line.threads = 3;
    line.type_out = type;
    const std::vector<float> dense = run(line);
    for (const char *layout : {"bshd", "bhds", "padded", "strided"}) {
      line.layout_out = layout;
      EXPECT_TRUE(same_bits(run(line), dense)) << reference::format(line);
    }
  }
}

TEST_P(StridedTensorsTest, LseRightBehindOut) {
  const auto context = this->context(3);
  for (int64_t queries = 1; queries <= 4; ++queries) {
    Call call({1, 8, 8, queries, 4096, 64, 64});
    call.fill_random(4);
    call.params.weights.data = nullptr;
    ASSERT_EQ(call.run(context.get()), FOVEA_OK);
    const size_t out_size = call.out.size(), lse_size = call.lse.size();
    for (const bool bshd : {false, true}) {
      // Nothing lies between the two, or behind the second.
      const reference::GuardedBuffer both((out_size + lse_size) * sizeof(float));
      call.params.out.data = both.as<float>();
      call.params.lse = both.as<float>() + out_size;
      if (bshd) {
        call.params.out.stride[1] = 64;
        call.params.out.stride[2] = 8 * 64;
      }
      ASSERT_EQ(fovea_forward(context.get(), &call.params, nullptr, 0), FOVEA_OK) << fovea_last_error();
      for (int64_t h = 0; h < 8; ++h)
        for (int64_t i = 0; i < queries; ++i) {
          const float *row = both.as<float>() + h * call.params.out.stride[1] + i * call.params.out.stride[2];
          EXPECT_EQ(std::memcmp(row, &call.out_at(0, h, i, 0), 64 * sizeof(float)), 0);
          EXPECT_EQ(call.params.lse[h * queries + i], call.lse_at(0, h, i));
        }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
