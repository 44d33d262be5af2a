// Query head h uses key-value head floor(h * heads_kv / heads_q). Head probe: with values that are the number of their head, the output
// names the head that was used.
#include <gtest/gtest.h>

#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

class GroupedHeadsTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(GroupedHeadsTest);

TEST_P(GroupedHeadsTest, HeadProbe) {
  const int64_t heads[][2] = {{4, 2}, {6, 2}, {9, 3}, {12, 1}, {40, 8}, {32, 4}, {7, 7}, {64, 8}, {71, 1}, {142, 2}};
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const auto &[heads_q, heads_kv] : heads) {
      for (const int64_t queries : {1, 5, 50}) {
        for (const int64_t keys : {1, 16, 600}) {
          Call call({2, heads_q, heads_kv, queries, keys, 3, 5});
          call.params.weights.data = nullptr;
          for (int64_t b = 0; b < 2; ++b)
            for (int64_t h = 0; h < heads_kv; ++h)
              for (int64_t j = 0; j < keys; ++j)
                for (int64_t c = 0; c < 5; ++c) call.v_at(b, h, j, c) = float(100 * b + h);
          ASSERT_EQ(call.run(context.get()), FOVEA_OK);
          for (int64_t b = 0; b < 2; ++b)
            for (int64_t h = 0; h < heads_q; ++h)
              for (int64_t i = 0; i < queries; ++i)
                for (int64_t c = 0; c < 5; ++c)
                  ASSERT_EQ(call.out_at(b, h, i, c), float(100 * b + h * heads_kv / heads_q))
                      << heads_q << "/" << heads_kv << " head " << h;
        }
      }
    }
  }
}

// New queries behind a prefix of keys see what they would have seen in one call over everything.
TEST_P(GroupedHeadsTest, PrefixAndExtensionEqualOneCall) {
  constexpr int64_t kPrefix = 70, kNew = 37, kAll = kPrefix + kNew;
  const auto context = this->context(2);
  Call all({1, 16, 4, kAll, kAll, 64, 64});
  all.fill_random(8);
  all.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
  ASSERT_EQ(all.run(context.get()), FOVEA_OK);
  Call extension({1, 16, 4, kNew, kAll, 64, 64});
  extension.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
  extension.k = all.k;
  extension.v = all.v;
  for (int64_t h = 0; h < 16; ++h)
    for (int64_t i = 0; i < kNew; ++i)
      for (int64_t c = 0; c < 64; ++c) extension.q_at(0, h, i, c) = all.q_at(0, h, kPrefix + i, c);
  ASSERT_EQ(extension.run(context.get()), FOVEA_OK);
  for (int64_t h = 0; h < 16; ++h)
    for (int64_t i = 0; i < kNew; ++i)
      for (int64_t c = 0; c < 64; ++c)
        ASSERT_NEAR(extension.out_at(0, h, i, c), all.out_at(0, h, kPrefix + i, c), 1e-6) << h << " " << i;
}

}  // namespace
}  // namespace fovea::testing
