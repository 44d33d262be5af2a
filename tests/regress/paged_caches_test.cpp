// Keys and values in pages: a row has the bits that a contiguous cache gives it, whatever the size, the order and the sharing of pages. What
// the table holds where nothing is to be seen is not followed, and slots of no key never show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/guarded_buffer.h"
#include "support/call.h"
#include "support/levels.h"
#include "support/pages.h"

namespace fovea::testing {
namespace {

using reference::ProblemData;
using reference::ProblemLine;

constexpr int32_t kPageSizes[] = {1, 7, 16, 256, 300};
const float kNaN = std::nanf(""), kInfinity = std::numeric_limits<float>::infinity();

// What a call with these params writes into the outputs of `call`.
struct Bits {
  std::vector<float> out, lse;
  bool operator==(const Bits &other) const { return same_bits(out, other.out) && same_bits(lse, other.lse); }
};
Bits run(const fovea_context *context, Call &call, const fovea_params &params) {
  for (std::vector<float> *values : {&call.out, &call.lse}) values->assign(values->size(), Call::canary);
  EXPECT_EQ(fovea_forward(context, &params, nullptr, 0), FOVEA_OK) << fovea_last_error();
  return {call.out, call.lse};
}

class PagedCachesTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(PagedCachesTest);

TEST_P(PagedCachesTest, BitsAreThoseOfAContiguousCache) {
  const char *const calls[] = {
      "b=2 hq=4 hkv=2 sq=100 skv=700 dk=33 dv=40 causal=br",
      "b=3 hq=8 hkv=1 sq=1 skv=1500 dk=64 dv=64 lens=ragged sinks=1 dist=outlier",
      "b=4 hq=6 hkv=2 sq=50 skv=600 dk=16 dv=65 packed=1 causal=br left=70 softcap=3 alibi=1",
      "b=2 hq=4 hkv=2 sq=3 skv=2100 dk=16 dv=24 packed=kv left=300 right=2 align=tl mask=f16 maskaxes=bhqk layout=bshd",
      "b=3 hq=2 hkv=2 sq=20 skv=300 dk=16 dv=24 lens=ragged mask=bool maskfill=late layout=strided score=modify",
      "b=2 hq=4 hkv=1 sq=1 skv=4097 dk=64 dv=64 causal=br left=900 type=bf16",
      "hq=3 hkv=3 sq=30 skv=520 dk=16 dv=8 type=f16 tk=f32 score=replace left=100 causal=tl",
  };
  for (const char *call : calls) {
    ProblemLine line;
    ASSERT_EQ(reference::parse(call + std::string(" lse=1 seed=5 isa=") + level(), &line), "");
    const auto bits_of = [](const ProblemLine &line) {
      std::string error;
      const reference::ContextPtr context = reference::make_context(line, &error);
      EXPECT_TRUE(context) << error;
      const ProblemData data(line);
      EXPECT_EQ(reference::run_guarded(context.get(), data.params), "") << reference::format(line);
      return Bits{data.dense_out(), data.dense_lse()};
    };
    if (line.type_q == "f16" && flushes_halves(line.isa)) continue;
    const Bits contiguous = bits_of(line);
    for (const int32_t page_size : kPageSizes)
      for (const int32_t threads : {1, 3}) {
        line.page_size = page_size;
        line.threads = threads;
        EXPECT_TRUE(bits_of(line) == contiguous) << reference::format(line);
      }
  }
}

// Keys of 0, so that the output is the mean of the values that a row sees: of slot s of page p, 10 p + s.
TEST_P(PagedCachesTest, DocumentedExample) {
  Call call({1, 1, 1, 1, 9, 1, 1});
  std::vector<float> k(8 * 4, 0.0f), v;
  for (int page = 0; page < 8; ++page)
    for (int slot = 0; slot < 4; ++slot) v.push_back(float(10 * page + slot));
  for (const size_t slot : {1, 2, 3}) v[5 * 4 + slot] = kNaN;
  int32_t table[] = {7, 2, 5};
  fovea_params p = call.params;
  p.weights.data = nullptr;
  p.k = {k.data(), {4, 4, 1, 1}, FOVEA_F32, 0};
  p.v = {v.data(), {4, 4, 1, 1}, FOVEA_F32, 0};
  p.page_size = 4, p.num_pages = 8, p.block_table = table, p.block_table_stride = 3;
  run(context().get(), call, p);
  EXPECT_NEAR(call.out_at(0, 0, 0, 0), (70 + 71 + 72 + 73 + 20 + 21 + 22 + 23 + 50) / 9.0, 1e-4);
  p.window_left = 3, p.window_right = 0, p.align = FOVEA_ALIGN_BOTTOM_RIGHT;
  run(context().get(), call, p);
  EXPECT_NEAR(call.out_at(0, 0, 0, 0), (21 + 22 + 23 + 50) / 4.0, 1e-4);
  table[0] = -1;
  run(context().get(), call, p);
  EXPECT_NEAR(call.out_at(0, 0, 0, 0), (21 + 22 + 23 + 50) / 4.0, 1e-4);
}

// Entries that have a prefix in common, one that is another from its beginning on, and one that has a page twice.
TEST_P(PagedCachesTest, EntriesShareMemory) {
  constexpr int32_t kSize = 16;
  const std::vector<std::vector<int32_t>> tables = {{3, 0, 5, 2}, {3, 0, 1, -1}, {3, 0, 5, -1}, {4, 4, 4, 4}};
  const std::vector<int32_t> lengths = {64, 40, 48, 55};
  Call pool({6, 4, 2, 2, kSize, 24, 17}), call({4, 4, 2, 2, 64, 24, 17});  // a batch entry of the first is a page
  pool.fill_random(3);
  call.fill_random(4);
  for (int64_t b = 0; b < 4; ++b)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j < lengths[size_t(b)]; ++j) {
        const int64_t page = tables[size_t(b)][size_t(j / kSize)];
        for (int64_t d = 0; d < 24; ++d) call.k_at(b, h, j, d) = pool.k_at(page, h, j % kSize, d);
        for (int64_t d = 0; d < 17; ++d) call.v_at(b, h, j, d) = pool.v_at(page, h, j % kSize, d);
      }
  call.params.seqlens_kv = lengths.data();
  call.params.weights.data = nullptr;
  call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
  fovea_params paged = call.params;
  paged.k = pool.params.k, paged.v = pool.params.v;
  std::vector<int32_t> table;
  for (const auto &row : tables) table.insert(table.end(), row.begin(), row.end());
  paged.page_size = kSize, paged.num_pages = 6, paged.block_table = table.data(), paged.block_table_stride = 4;
  const auto context = this->context(2);
  const Bits contiguous = run(context.get(), call, call.params);
  EXPECT_TRUE(run(context.get(), call, paged) == contiguous);
}

// K and V of a page beside each other: one allocation with [page][K, V][head][slot][dim].
TEST_P(PagedCachesTest, KeysAndValuesInOnePool) {
  Call call({2, 4, 2, 3, 90, 32, 32});
  call.fill_random(8);
  Pages pages(call, {90, 77}, 16, FOVEA_F32);
  const Bits apart = run(context().get(), call, pages.params);
  const int64_t page_elements = 2 * 16 * 32;
  std::vector<float> pool(size_t(2 * pages.count * page_elements));
  for (int64_t page = 0; page < pages.count; ++page)
    for (int64_t i = 0; i < page_elements; ++i) {
      pool[size_t(2 * page * page_elements + i)] = float(pages.k[size_t(page * page_elements + i)]);
      pool[size_t((2 * page + 1) * page_elements + i)] = float(pages.v[size_t(page * page_elements + i)]);
    }
  pages.params.k.data = pool.data();
  pages.params.v.data = pool.data() + page_elements;
  pages.params.k.stride[0] = pages.params.v.stride[0] = 2 * page_elements;
  EXPECT_TRUE(run(context().get(), call, pages.params) == apart);
}

TEST_P(PagedCachesTest, SlotsOfNoKeyNeverShow) {
  struct Cache {
    int32_t page_size;
    std::vector<int32_t> lengths;
  };
  std::vector<Cache> caches = {{4, {13}}, {16, {32, 64, 96, 48}}, {64, {32, 64, 96, 48}}};
  for (const int32_t size : {16, 32, 64})
    for (const int32_t length : {1, size - 1, size, size + 1}) caches.push_back({size, {length}});
  for (const Cache &cache : caches)
    for (const int64_t queries : {1, 40})
      for (const fovea_dtype dtype : kDtypes) {
        if (dtype == FOVEA_F16 && flushes_halves(level())) continue;
        Call call({int64_t(cache.lengths.size()), 4, 2, queries, 128, 64, 64});
        call.fill_random(21);
        const auto bits_with = [&](float filler) {
          Pages pages(call, cache.lengths, cache.page_size, dtype, filler);
          return run(context(2).get(), call, pages.params);
        };
        const Bits zeros = bits_with(0);
        EXPECT_TRUE(std::all_of(zeros.out.begin(), zeros.out.end(), [](float x) { return std::isfinite(x); }));
        EXPECT_TRUE(bits_with(kNaN) == zeros) << cache.page_size << " " << queries;
        EXPECT_TRUE(bits_with(kInfinity) == zeros) << cache.page_size << " " << queries;
      }
}

// Packed queries of very unlike lengths over a paged cache, with windows that begin anywhere in a page.
class RaggedPagedBatch {
 public:
  explicit RaggedPagedBatch(const Sizes &sizes) : call(sizes) { call.fill_random(77); }

  void pack_queries(fovea_params *p) const {
    p->batch = int64_t(kKeys.size());
    p->cu_seqlens_q = kOffsets.data();
    p->seqlens_kv = kKeys.data();
    p->weights.data = nullptr;
    p->causal = 1;
    p->align = FOVEA_ALIGN_BOTTOM_RIGHT;
  }

  static inline const std::vector<int32_t> kOffsets = {0, 2345, 2350, 2353, 2487}, kKeys = {2345, 5, 16, 5131};
  static constexpr int64_t kTokens = 2487, kCapacity = 5131;
  Call call;
};

TEST_P(PagedCachesTest, RaggedBatches) {
  constexpr int64_t kHeads = 9, kHeadsKv = 3, kDim = 96;
  using Batch = RaggedPagedBatch;
  Batch batch({4, kHeads, kHeadsKv, 1, Batch::kCapacity, kDim, kDim});
  std::vector<float> out(size_t(Batch::kTokens * kHeads * kDim)), lse(size_t(Batch::kTokens * kHeads));
  Call queries({1, kHeads, kHeadsKv, Batch::kTokens, 1, kDim, 1});
  queries.fill_random(78);
  Elements q(FOVEA_BF16, queries.q), k(FOVEA_BF16, batch.call.k), v(FOVEA_BF16, batch.call.v);
  fovea_params dense;
  ASSERT_EQ(fovea_params_init(&dense, sizeof dense, 4, kHeads, kHeadsKv, Batch::kTokens, Batch::kCapacity, kDim, kDim), FOVEA_OK);
  q.become(&dense.q), k.become(&dense.k), v.become(&dense.v);
  dense.out.data = out.data(), dense.lse = lse.data();
  batch.pack_queries(&dense);
  const auto context = this->context(2);
  for (const int64_t window : {1, 15, 16, 17, 1000}) {
    dense.window_left = window;
    ASSERT_EQ(fovea_forward(context.get(), &dense, nullptr, 0), FOVEA_OK) << fovea_last_error();
    const Bits contiguous = {out, lse};
    for (const int32_t page_size : {16, 96}) {
      Pages pages(batch.call, Batch::kKeys, page_size, FOVEA_BF16);
      fovea_params paged = dense;
      paged.k = pages.params.k, paged.v = pages.params.v, paged.page_size = page_size, paged.num_pages = pages.count;
      paged.block_table = pages.table.data(), paged.block_table_stride = pages.columns;
      std::fill(out.begin(), out.end(), Call::canary);
      std::fill(lse.begin(), lse.end(), Call::canary);
      ASSERT_EQ(fovea_forward(context.get(), &paged, nullptr, 0), FOVEA_OK) << fovea_last_error();
      EXPECT_TRUE(Bits({out, lse}) == contiguous) << "window " << window << ", pages of " << page_size;
    }
  }
}

// Queries of 0: exp(lse) is the number of keys that a row sees.
TEST_P(PagedCachesTest, WindowsAreExactInAnyPage) {
  using Batch = RaggedPagedBatch;
  Batch batch({4, 1, 1, 1, Batch::kCapacity, 1, 1});
  std::vector<float> q(size_t(Batch::kTokens), 0.0f), out(q.size()), lse(q.size());
  for (const int32_t page_size : {16, 96})
    for (const int64_t window : {1, 15, 16, 17, 1000}) {
      Pages pages(batch.call, Batch::kKeys, page_size, FOVEA_F32);
      fovea_params p = pages.params;
      p.seq_q = Batch::kTokens;
      p.q.data = q.data(), p.q.stride[2] = 1;
      p.out.data = out.data(), p.out.stride[2] = 1;
      p.lse = lse.data(), p.lse_stride[2] = 1;
      p.window_left = window;
      batch.pack_queries(&p);
      ASSERT_EQ(fovea_forward(context().get(), &p, nullptr, 0), FOVEA_OK) << fovea_last_error();
      for (size_t b = 0; b < Batch::kKeys.size(); ++b)
        for (int64_t token = Batch::kOffsets[b]; token < Batch::kOffsets[b + 1]; ++token) {
          const int64_t position = token - Batch::kOffsets[b + 1] + Batch::kKeys[b];
          ASSERT_EQ(std::lround(std::exp(double{lse[size_t(token)]})), std::min(window + 1, position + 1))
              << "entry " << b << ", token " << token << ", window " << window << ", pages of " << page_size;
        }
    }
}

// Pages that fell out of every window are gone from the table; the first that is still needed must be there.
TEST_P(PagedCachesTest, EvictedPagesAreNotFollowed) {
  constexpr int64_t kWindow = 100, kLength = 1000;
  for (const int32_t page_size : kPageSizes)
    for (const auto &[threads, queries] : {std::pair<int32_t, int64_t>(1, 1), {3, 1}, {1, 3}, {3, 3}, {1, 64}, {3, 64}}) {
      const auto context = this->context(threads);
      Call call({2, 8, 2, queries, 1100, 64, 32});
      call.fill_random(40);
      Pages pages(call, {int32_t(kLength), 333}, page_size, FOVEA_F32);
      pages.params.causal = 1;
      pages.params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
      pages.params.window_left = kWindow;
      const Bits whole = run(context.get(), call, pages.params);
      const int64_t first_seen = kLength - queries - kWindow, needed = first_seen / page_size;
      const int64_t last_needed = (kLength - 1) / page_size;
      for (int64_t c = 0; c < pages.columns; ++c)
        if (c < needed || c > last_needed) pages.table[size_t(c)] = c % 2 ? -1 : std::numeric_limits<int32_t>::max();
      EXPECT_TRUE(run(context.get(), call, pages.params) == whole) << page_size;
      for (const int64_t column : {needed, last_needed}) {
        const int32_t page = pages.table[size_t(column)];
        for (const int32_t wrong : {-1, int32_t(pages.count)}) {
          pages.table[size_t(column)] = wrong;
          call.out.assign(call.out.size(), Call::canary);
          EXPECT_EQ(fovea_forward(context.get(), &pages.params, nullptr, 0), FOVEA_ERR_INVALID_ARGUMENT);
          EXPECT_EQ(std::string(fovea_last_error()), "block_table: " + std::to_string(wrong) + " at batch entry 0, column " +
                                                         std::to_string(column) + " is not one of " +
                                                         std::to_string(pages.count) + " pages");
          EXPECT_EQ(call.out, std::vector<float>(call.out.size(), Call::canary));
        }
        pages.table[size_t(column)] = page;
      }
    }
}

// Entries without keys or without queries need no page.
TEST_P(PagedCachesTest, EntriesThatReadNothing) {
  Call call({3, 2, 1, 2, 20, 8, 8});
  call.fill_random(1);
  const std::vector<int32_t> queries = {2, 0, 1};
  Pages pages(call, {0, 20, 9}, 7, FOVEA_F32);
  pages.params.seqlens_q = queries.data();
  for (int64_t c = 0; c < 2 * pages.columns; ++c) pages.table[size_t(c)] = -1;
  run(context().get(), call, pages.params);
  EXPECT_EQ(call.lse_at(0, 1, 1), -kInfinity);
  EXPECT_EQ(call.out_at(0, 1, 1, 7), 0);
  EXPECT_EQ(call.lse_at(1, 0, 0), Call::canary);
  EXPECT_TRUE(std::isfinite(call.lse_at(2, 0, 0)));
  pages.params.num_pages = 0;  // and nothing at all, no memory
  pages.lengths = {0, 0, 0};
  pages.params.k.data = pages.params.v.data = nullptr;
  pages.params.block_table = nullptr;
  pages.params.block_table_stride = 0;
  run(context().get(), call, pages.params);
  EXPECT_EQ(call.lse_at(2, 0, 0), -kInfinity);
}

TEST_P(PagedCachesTest, TheWorkspaceIsKnownWithoutTheTable) {
  Call call({2, 4, 2, 3, 900, 16, 16});
  call.fill_random(6);
  Pages pages(call, {900, 41}, 16, FOVEA_F32);
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    reference::GuardedBuffer table(size_t(2 * pages.columns) * sizeof(int32_t));
    fovea_params unread = pages.params;
    unread.block_table = reinterpret_cast<const int32_t *>(static_cast<char *>(table.data()) + table.bytes());  // a guard page
    size_t bytes = 0;
    ASSERT_EQ(fovea_workspace_size(context.get(), &unread, &bytes), FOVEA_OK) << fovea_last_error();
    EXPECT_EQ(reference::run_guarded(context.get(), pages.params), "");
  }
}

}  // namespace
}  // namespace fovea::testing
