// Which keys a query sees under causal, for both corners and any pair of lengths. Set probe: with q = 0 and v[j] one-hot at j, row i
// of the output is 1 / |set| on exactly the permitted keys. Count probe: with v = 1 the output is 1 and exp(LSE) the number of keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "dispatch/dispatch.h"
#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

struct Lengths {
  int64_t queries, keys;
};

class CausalAlignmentTest : public LevelTest {
 protected:
  // Lengths one below, at and one above every tile of this level, against each other.
  std::vector<Lengths> tile_edges() const {
    const KernelEntry *entries = nullptr;
    const int32_t count = kernel_entries(&entries);
    std::vector<Lengths> lengths;
    for (int32_t e = 0; e < count; ++e) {
      if (entries[e].level != GetParam() || !fits_vectors(entries[e], cpu_features())) continue;
      for (const int64_t queries : {entries[e].kernel->tuning.panel_rows, kKeyTile})
        for (const int64_t keys : {entries[e].kernel->tuning.panel_rows, kKeyTile, kBlockKeys})
          for (int64_t dq = -1; dq <= 1; ++dq)
            for (int64_t dk = -1; dk <= 1; ++dk) lengths.push_back({queries + dq, keys + dk});
    }
    return lengths;
  }
};
FOVEA_TEST_EVERY_LEVEL(CausalAlignmentTest);

int64_t keys_seen(Lengths n, int32_t align, int64_t i) {
  const int64_t position = align == FOVEA_ALIGN_BOTTOM_RIGHT ? i + n.keys - n.queries : i;
  return std::clamp(position + 1, int64_t{0}, n.keys);
}

TEST_P(CausalAlignmentTest, SetProbe) {
  std::vector<Lengths> lengths = {{2, 5},    {5, 2},    {1, 7},   {7, 1},    {3, 128}, {5, 6},
                                  {70, 300}, {300, 70}, {1, 300}, {4, 1300}, {16, 300}};
  const std::vector<Lengths> edges = tile_edges();
  lengths.insert(lengths.end(), edges.begin(), edges.end());
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const Lengths n : lengths) {
      for (const int32_t align : {FOVEA_ALIGN_TOP_LEFT, FOVEA_ALIGN_BOTTOM_RIGHT}) {
        Call call({1, 1, 1, n.queries, n.keys, 3, n.keys});
        call.causal(align);
        for (int64_t j = 0; j < n.keys; ++j)
          for (int64_t c = 0; c < n.keys; ++c) call.v_at(0, 0, j, c) = j == c;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK);
        for (int64_t i = 0; i < n.queries; ++i) {
          const int64_t seen = keys_seen(n, align, i);
          for (int64_t j = 0; j < n.keys; ++j) {
            const float expected = j < seen ? 1.0f / float(seen) : 0.0f;
            ASSERT_EQ(call.out_at(0, 0, i, j), expected)
                << n.queries << "x" << n.keys << " align " << align << " row " << i << " key " << j;
            ASSERT_EQ(call.weight_at(0, 0, i, j), expected) << n.queries << "x" << n.keys << " align " << align << " row " << i;
          }
        }
      }
    }
  }
}

// The examples that the documentation gives, written out.
TEST_P(CausalAlignmentTest, DocumentedExamples) {
  const auto context = this->context();
  const auto counts = [&](int64_t queries, int64_t keys, int32_t align) {
    Call call({1, 1, 1, queries, keys, 1, 1});
    call.causal(align);
    EXPECT_EQ(call.run(context.get()), FOVEA_OK);
    std::vector<int64_t> seen;
    for (int64_t i = 0; i < queries; ++i) {
      seen.push_back(0);
      for (int64_t j = 0; j < keys; ++j) seen.back() += call.weight_at(0, 0, i, j) > 0;
    }
    return seen;
  };
  EXPECT_EQ(counts(2, 5, FOVEA_ALIGN_BOTTOM_RIGHT), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(counts(5, 2, FOVEA_ALIGN_BOTTOM_RIGHT), (std::vector<int64_t>{0, 0, 0, 1, 2}));
  EXPECT_EQ(counts(1, 7, FOVEA_ALIGN_BOTTOM_RIGHT), (std::vector<int64_t>{7}));
  EXPECT_EQ(counts(2, 5, FOVEA_ALIGN_TOP_LEFT), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(counts(5, 2, FOVEA_ALIGN_TOP_LEFT), (std::vector<int64_t>{1, 2, 2, 2, 2}));
  EXPECT_EQ(counts(1, 7, FOVEA_ALIGN_TOP_LEFT), (std::vector<int64_t>{1}));
}

TEST_P(CausalAlignmentTest, CountProbe) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const Lengths n : {Lengths{2048, 1024}, Lengths{1024, 2048}, Lengths{1, 5000}, Lengths{4, 5000}, Lengths{700, 700}}) {
      for (const int32_t align : {FOVEA_ALIGN_TOP_LEFT, FOVEA_ALIGN_BOTTOM_RIGHT}) {
        Call call({1, 1, 1, n.queries, n.keys, 1, 2});
        call.causal(align);
        call.params.weights.data = nullptr;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK);
        for (int64_t i = 0; i < n.queries; ++i) {
          const int64_t seen = keys_seen(n, align, i);
          ASSERT_EQ(call.out_at(0, 0, i, 0), seen ? 1.0f : 0.0f)
              << n.queries << "x" << n.keys << " align " << align << " row " << i;
          ASSERT_EQ(std::llround(std::exp(double(call.lse_at(0, 0, i)))), seen)
              << n.queries << "x" << n.keys << " align " << align << " row " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
