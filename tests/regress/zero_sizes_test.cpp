// Sizes of 0 are valid and defined: no row, nothing written; no key, empty rows; no dim_k, all scores 0; no dim_v, LSE all the same.
#include <gtest/gtest.h>

#include <cmath>

#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

class ZeroSizesTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(ZeroSizesTest);

TEST_P(ZeroSizesTest, NoRowsNothingWritten) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const bool causal : {false, true}) {
      for (const Sizes n : {Sizes{0, 4, 2, 5, 6, 7, 8}, Sizes{2, 0, 2, 5, 6, 7, 8}, Sizes{2, 4, 2, 0, 6, 7, 8},
                            Sizes{2, 0, 0, 5, 6, 7, 8}, Sizes{7, 9, 1, 0, 7, 7, 7}, Sizes{0, 0, 0, 0, 0, 0, 0}}) {
        Call call(n);
        if (causal) call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
        float canaries[3] = {Call::canary, Call::canary, Call::canary};
        call.params.out.data = canaries;
        call.params.lse = canaries + 1;
        call.params.weights.data = canaries + 2;
        EXPECT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        for (const float canary : canaries) EXPECT_EQ(canary, Call::canary);
      }
    }
  }
}

TEST_P(ZeroSizesTest, NoValuesStillLse) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t keys : {3, 300, 3000}) {
      Call call({2, 4, 2, 3, keys, 5, 0});
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (const float lse : call.lse) EXPECT_NEAR(lse, std::log(double(keys)), 1e-6);
      for (const float weight : call.weights) ASSERT_EQ(weight, float(1 / double(keys)));
      call.params.out.data = nullptr;
      EXPECT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      call.params.lse = nullptr;
      call.params.weights.data = nullptr;
      EXPECT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    }
  }
}

TEST_P(ZeroSizesTest, NoDimOfKeysIsTheMean) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t keys : {4, 256, 1024}) {
      Call call({1, 2, 1, 5, keys, 0, 3});
      for (int64_t j = 0; j < keys; ++j) call.v_at(0, 0, j, 1) = float(j);
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t i = 0; i < 5; ++i) {
          EXPECT_EQ(call.out_at(0, h, i, 0), 1.0f);
          EXPECT_EQ(call.out_at(0, h, i, 1), float(keys - 1) / 2);  // a power of two of small whole numbers: exact
        }
    }
  }
}

// The same with everything that shapes the score: nothing of it is looked up where there is nothing.
TEST_P(ZeroSizesTest, WithEveryFeature) {
  const float numbers[] = {0.5f, 1, 2, 0.25f};
  const int32_t zeros[] = {0, 0, 0};
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const Sizes &n :
         {Sizes{0, 4, 2, 5, 6, 7, 8}, Sizes{2, 0, 2, 5, 6, 7, 8}, Sizes{2, 4, 2, 0, 6, 7, 8}, Sizes{2, 4, 2, 5, 0, 7, 8},
          Sizes{2, 4, 2, 5, 6, 0, 8}, Sizes{2, 4, 2, 5, 6, 7, 0}, Sizes{0, 0, 0, 0, 0, 0, 0}}) {
      for (const fovea_dtype dtype : kMaskDtypes) {
        for (const bool packed : {false, true}) {
          Call call(n);
          Mask mask(dtype, n);
          call.params.mask = mask.tensor();
          call.params.alibi_slopes = call.params.sinks = numbers;
          call.params.softcap = 2;
          call.params.window_left = 3;
          call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
          call.params.score = [](void *, const fovea_score_tile *) {};
          call.params.score_mode = FOVEA_SCORE_MODIFY;
          if (packed) {  // segments without a token, of an axis that has some
            call.params.weights.data = nullptr;
            call.params.cu_seqlens_q = call.params.cu_seqlens_kv = zeros;
          }
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          if (packed) {
            for (const float lse : call.lse) ASSERT_EQ(lse, Call::canary);
            continue;
          }
          for (int64_t b = 0; b < n.batch; ++b)
            for (int64_t h = 0; h < n.heads_q; ++h)
              for (int64_t i = 0; i < n.seq_q; ++i) {
                if (n.seq_kv == 0) {
                  ASSERT_NEAR(call.lse_at(b, h, i), numbers[h], 1e-6);
                  for (int64_t c = 0; c < n.dim_v; ++c) ASSERT_EQ(call.out_at(b, h, i, c), 0.0f);
                } else {
                  ASSERT_TRUE(std::isfinite(call.lse_at(b, h, i)));
                }
              }
        }
      }
    }
  }
}

// Strides of a tensor without elements may be anything: nothing is computed with them.
TEST_P(ZeroSizesTest, StridesOfEmptyTensorsAreNotUsed) {
  const auto huge = [](fovea_tensor &t) {
    t.data = nullptr;
    for (int64_t &stride : t.stride) stride = INT64_MAX / 2;
  };
  const std::vector<float> zeros(64);
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 4, 70}) {
      for (const int64_t batch : {1, 3}) {
        Call no_dim_k({batch, 4, 2, queries, 300, 0, 2});
        huge(no_dim_k.params.q);
        huge(no_dim_k.params.k);
        ASSERT_EQ(no_dim_k.run(context.get()), FOVEA_OK) << fovea_last_error();
        for (const float out : no_dim_k.out) ASSERT_EQ(out, 1.0f);

        Call no_dim_v({batch, 4, 2, queries, 300, 3, 0});
        huge(no_dim_v.params.v);
        huge(no_dim_v.params.out);
        ASSERT_EQ(no_dim_v.run(context.get()), FOVEA_OK) << fovea_last_error();
        for (const float lse : no_dim_v.lse) ASSERT_NEAR(lse, std::log(300.0), 1e-6);

        for (const fovea_dtype dtype : kMaskDtypes) {
          Call no_keys({batch, 4, 2, queries, 0, 3, 2});
          huge(no_keys.params.k);
          huge(no_keys.params.v);
          huge(no_keys.params.weights);
          huge(no_keys.params.mask);
          no_keys.params.mask.data = const_cast<float *>(zeros.data());
          no_keys.params.mask.dtype = dtype;
          ASSERT_EQ(no_keys.run(context.get()), FOVEA_OK) << fovea_last_error();
          for (const float out : no_keys.out) ASSERT_EQ(out, 0.0f);
          for (const float lse : no_keys.lse) ASSERT_EQ(lse, -INFINITY);
        }
      }
    }
    Call no_batch({0, 4, 2, 5, 6, 7, 8});
    for (fovea_tensor *t : {&no_batch.params.q, &no_batch.params.k, &no_batch.params.v, &no_batch.params.out}) huge(*t);
    EXPECT_EQ(no_batch.run(context.get()), FOVEA_OK) << fovea_last_error();
  }
}

TEST_P(ZeroSizesTest, NoKeyValueHeadsForQueryHeadsIsAnError) {
  const auto context = this->context();
  Call call({1, 2, 1, 3, 4, 5, 6});
  call.params.heads_kv = 0;
  EXPECT_EQ(call.run(context.get()), FOVEA_ERR_INVALID_SIZE);
  for (const float value : call.out) EXPECT_EQ(value, Call::canary);
}

}  // namespace
}  // namespace fovea::testing
