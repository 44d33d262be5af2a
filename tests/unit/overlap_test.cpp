// The search for shared elements against counting them.
#include "api/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace fovea {
namespace {

constexpr uintptr_t kBase = 1 << 20;

// Of every byte.
std::multiset<uintptr_t> addresses(const Elements &e) {
  std::multiset<uintptr_t> all;
  for (int64_t b = 0; b < e.size[0]; ++b)
    for (int64_t h = 0; h < e.size[1]; ++h)
      for (int64_t s = 0; s < e.size[2]; ++s)
        for (int64_t d = 0; d < e.size[3]; ++d)
          for (int64_t byte = 0; byte < e.bytes; ++byte)
            all.insert(e.address + uintptr_t(byte) +
                       uintptr_t(e.bytes * (b * e.stride[0] + h * e.stride[1] + s * e.stride[2] + d * e.stride[3])));
  return all;
}

bool counted_overlaps_itself(const Elements &e) {
  const auto all = addresses(e);
  return std::set<uintptr_t>(all.begin(), all.end()).size() < all.size();
}

bool counted_overlap(const Elements &a, const Elements &b) {
  const auto of_b = addresses(b);
  for (uintptr_t address : addresses(a))
    if (of_b.count(address)) return true;
  return false;
}

// Their spans in memory do not depend on how large an element is.
Elements random_elements(std::mt19937 &random, int64_t max_stride, int64_t max_offset) {
  Elements e;
  e.bytes = int64_t{1} << std::uniform_int_distribution<int>(0, 2)(random);
  for (int a = 0; a < 4; ++a) {
    e.size[a] = std::uniform_int_distribution<int64_t>(1, 4)(random);
    e.stride[a] = std::uniform_int_distribution<int64_t>(0, max_stride * 4 / e.bytes)(random);
  }
  e.address = kBase + uintptr_t(e.bytes * std::uniform_int_distribution<int64_t>(0, max_offset * 4 / e.bytes)(random));
  return e;
}

TEST(Overlap, OfATensorWithItselfIsExact) {
  std::mt19937 random(1);
  int overlapping = 0, apart = 0;
  for (int i = 0; i < 20000; ++i) {
    const Elements e = random_elements(random, i % 2 ? 20 : 200, 0);
    const bool expected = counted_overlaps_itself(e);
    ++(expected ? overlapping : apart);
    ASSERT_EQ(overlaps_itself(e), expected) << "sizes " << e.size[0] << ' ' << e.size[1] << ' ' << e.size[2] << ' ' << e.size[3]
                                            << " strides " << e.stride[0] << ' ' << e.stride[1] << ' ' << e.stride[2] << ' '
                                            << e.stride[3];
  }
  EXPECT_GT(overlapping, 1000);
  EXPECT_GT(apart, 1000);
}

TEST(Overlap, OfTwoTensorsIsExact) {
  std::mt19937 random(2);
  int overlapping = 0, apart_within_range = 0;
  for (int i = 0; i < 20000; ++i) {
    const Elements a = random_elements(random, i % 2 ? 30 : 300, 300), b = random_elements(random, i % 2 ? 30 : 300, 300);
    const bool expected = counted_overlap(a, b);
    if (expected) ++overlapping;
    const auto of_a = addresses(a), of_b = addresses(b);
    if (!expected && *of_a.begin() <= *of_b.rbegin() && *of_b.begin() <= *of_a.rbegin()) ++apart_within_range;
    ASSERT_EQ(overlap(a, b), expected) << i;
    ASSERT_EQ(overlap(b, a), expected) << i;
  }
  EXPECT_GT(overlapping, 1000);
  EXPECT_GT(apart_within_range, 1000);
}

TEST(Overlap, PartsOfAPackedBufferLieApart) {
  const int64_t batch = 8, heads = 32, seq = 4096, dim = 128, token = 4 * heads * dim;  // q, k, v and out beside each other
  Elements parts[4];
  for (int i = 0; i < 4; ++i)
    parts[i] = {kBase + 4 * uintptr_t(i * heads * dim), 4, {batch, heads, seq, dim}, {seq * token, dim, token, 1}};
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(overlaps_itself(parts[i]));
    for (int j = 0; j < 4; ++j) EXPECT_EQ(overlap(parts[i], parts[j]), i == j);
    Elements shifted = parts[i];
    shifted.address += 4;  // its last dim is the next part's first
    EXPECT_TRUE(overlap(shifted, parts[(i + 1) % 4]));
  }
}

TEST(Overlap, ElementsOfOneTensorMayAlternateWithAnothers) {
  const Elements even = {kBase, 4, {1, 2, 100, 32}, {0, 6400, 64, 2}};
  Elements odd = even;
  odd.address += 4;
  EXPECT_FALSE(overlap(even, odd));
  odd.address += 4;
  EXPECT_TRUE(overlap(even, odd));
}

// Strides without any common structure: the search may give up, and then must not call them apart.
TEST(Overlap, IrregularLayoutsEndSoonAndOnTheSafeSide) {
  const Elements sharing = {kBase, 4, {1, 1, 1000003, 1000002}, {0, 0, 1000003, 1000002}};
  Elements beyond = sharing;  // index (1000002, 0) of the one is index (0, 1000003) of the other, which it has not
  beyond.size[3] = 1000004;
  EXPECT_TRUE(overlaps_itself(beyond));
  const uintptr_t of_index_123_77 = 4 * (123 * uintptr_t{1000003} + 77 * uintptr_t{1000002});
  const Elements other = {kBase + of_index_123_77, 4, {1, 1, 999983, 999979}, {0, 0, 999983, 999979}};
  EXPECT_TRUE(overlap(sharing, other));
}

TEST(Overlap, HugeStridesDoNotOverflow) {
  const int64_t huge = int64_t{1} << 59;
  const Elements a = {kBase, 4, {2, 2, 1, 4}, {huge, huge / 2, 0, 1}};
  EXPECT_FALSE(overlaps_itself(a));
  EXPECT_TRUE(overlap(a, a));
  Elements b = a;
  b.address += 16;
  EXPECT_FALSE(overlap(a, b));
  const Elements bytes = {kBase, 1, {2, 2, 1, 4}, {2 * huge, huge, 0, 1}};
  EXPECT_TRUE(overlap(a, bytes));
  EXPECT_TRUE(overlap(bytes, a));
  b.address = ~uintptr_t{15};  // the other end of memory
  EXPECT_FALSE(overlap(b, bytes));
  EXPECT_FALSE(overlap(bytes, b));
}

TEST(Overlap, NarrowElementsMayLieBetweenWideOnes) {
  const Elements floats = {kBase, 4, {1, 1, 50, 7}, {0, 0, 8, 1}};
  Elements masks = {kBase + 28, 1, {1, 1, 50, 4}, {0, 0, 32, 1}};  // in the gap that each row leaves
  EXPECT_FALSE(overlap(floats, masks));
  EXPECT_FALSE(overlap(masks, floats));
  --masks.address;  // the last byte of a row's last float
  EXPECT_TRUE(overlap(floats, masks));
  EXPECT_TRUE(overlap(masks, floats));
}

}  // namespace
}  // namespace fovea
