// seqlens_q and seqlens_kv: each batch entry is the call of its own lengths, bit for bit; what lies beyond them is neither read nor written.
#include <gtest/gtest.h>

#include <cmath>

#include "reference/guarded_buffer.h"
#include "support/call.h"
#include "support/features.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

constexpr int32_t kThreads[] = {1, 2, 3, 7};
const float kNaN = std::nanf("");

class LengthsTest : public LevelTest {
 protected:
  // Runs the call and each of its entries alone.
  static void expect_entries(const fovea_context *context, const Sizes &n, const std::vector<int32_t> &queries,
                             const std::vector<int32_t> &keys, const Feature &feature, bool give_q, bool give_kv) {
    const std::string where = feature.name + ", " + std::to_string(n.seq_q) + "x" + std::to_string(n.seq_kv);
    std::vector<int64_t> q_lens, kv_lens;
    for (int64_t b = 0; b < n.batch; ++b) {
      q_lens.push_back(give_q ? queries[size_t(b)] : n.seq_q);
      kv_lens.push_back(give_kv ? keys[size_t(b)] : n.seq_kv);
    }
    const Mask mask = mask_of_entries(n, q_lens, kv_lens);
    Call call(n);
    call.fill_random(121);
    const std::vector<float> q = call.q, k = call.k, v = call.v;
    for (int64_t b = 0; b < n.batch; ++b) {  // poison behind the lengths
      const int64_t q_len = q_lens[size_t(b)], kv_len = kv_lens[size_t(b)];
      for (int64_t h = 0; h < n.heads_q; ++h)
        for (int64_t i = q_len; i < n.seq_q; ++i)
          for (int64_t c = 0; c < n.dim_k; ++c) call.q_at(b, h, i, c) = kNaN;
      for (int64_t h = 0; h < n.heads_kv; ++h)
        for (int64_t j = kv_len; j < n.seq_kv; ++j) {
          for (int64_t c = 0; c < n.dim_k; ++c) call.k_at(b, h, j, c) = kNaN;
          for (int64_t c = 0; c < n.dim_v; ++c) call.v_at(b, h, j, c) = kNaN;
        }
    }
    feature.apply(call.params, mask);
    if (give_q) call.params.seqlens_q = queries.data();
    if (give_kv) call.params.seqlens_kv = keys.data();
    ASSERT_EQ(call.run(context), FOVEA_OK) << fovea_last_error();
    for (int64_t b = 0; b < n.batch; ++b) {
      const int64_t q_len = q_lens[size_t(b)], kv_len = kv_lens[size_t(b)];
      Call alone({1, n.heads_q, n.heads_kv, q_len, kv_len, n.dim_k, n.dim_v});
      const auto copy = [](std::vector<float> &to, const std::vector<float> &from, int64_t first, int64_t heads, int64_t seq,
                           int64_t length, int64_t dim) {
        for (int64_t h = 0; h < heads; ++h)
          std::copy_n(from.begin() + (first + h) * seq * dim, length * dim, to.begin() + h * length * dim);
      };
      copy(alone.q, q, b * n.heads_q, n.heads_q, n.seq_q, q_len, n.dim_k);
      copy(alone.k, k, b * n.heads_kv, n.heads_kv, n.seq_kv, kv_len, n.dim_k);
      copy(alone.v, v, b * n.heads_kv, n.heads_kv, n.seq_kv, kv_len, n.dim_v);
      feature.apply(alone.params, mask);
      if (alone.params.mask.data) {
        alone.params.mask.data = static_cast<float *>(alone.params.mask.data) + b * alone.params.mask.stride[0];
      }
      ASSERT_EQ(alone.run(context), FOVEA_OK) << fovea_last_error();
      for (int64_t h = 0; h < n.heads_q; ++h)
        for (int64_t i = 0; i < n.seq_q; ++i) {
          const std::string row = where + " entry " + std::to_string(b) + " (" + std::to_string(q_len) + "x" +
                                  std::to_string(kv_len) + ") head " + std::to_string(h) + " row " + std::to_string(i);
          if (i >= q_len) {
            for (int64_t c = 0; c < n.dim_v; ++c) ASSERT_EQ(call.out_at(b, h, i, c), Call::canary) << row << ": written";
            ASSERT_EQ(call.lse_at(b, h, i), Call::canary) << row << ": written";
            for (int64_t j = 0; j < n.seq_kv; ++j) ASSERT_EQ(call.weight_at(b, h, i, j), Call::canary) << row << ": written";
            continue;
          }
          ASSERT_TRUE(same_row(call, {b, h, i}, alone, {0, h, i})) << row;
          if (kv_len) {
            ASSERT_EQ(std::memcmp(&call.weight_at(b, h, i, 0), &alone.weight_at(0, h, i, 0), size_t(kv_len) * sizeof(float)), 0)
                << row;
          }
          for (int64_t j = kv_len; j < n.seq_kv; ++j) ASSERT_EQ(call.weight_at(b, h, i, j), 0.0f) << row << " key " << j;
        }
    }
  }
};
FOVEA_TEST_EVERY_LEVEL(LengthsTest);

TEST_P(LengthsTest, EachEntryIsTheCallOfItsOwnLengths) {
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const Feature &feature : features()) {
      expect_entries(context.get(), {5, 4, 2, 70, 300, 8, 9}, {70, 50, 1, 0, 33}, {300, 257, 255, 40, 0}, feature, true, true);
      expect_entries(context.get(), {4, 4, 1, 7, 40, 8, 9}, {7, 1, 3, 2}, {40, 8, 9, 1}, feature, true, true);
      expect_entries(context.get(), {3, 4, 4, 50, 90, 8, 9}, {50, 7, 1}, {}, feature, true, false);
      expect_entries(context.get(), {3, 4, 4, 50, 90, 8, 9}, {}, {90, 7, 0}, feature, false, true);
      expect_entries(context.get(), {3, 4, 2, 1, 1300, 8, 9}, {1, 1, 0}, {1300, 1023, 1300}, feature, true, true);
      if (HasFatalFailure()) return;
    }
  }
}

// Where the number of keys of a chunk changes with a row's keys, an entry's own keys decide.
TEST_P(LengthsTest, ChunksAreThoseOfTheEntry) {
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    expect_entries(context.get(), {2, 4, 2, 1, 17000, 4, 5}, {}, {17000, 16000}, features().front(), false, true);
    expect_entries(context.get(), {3, 4, 4, 2, 33500, 4, 5}, {2, 1, 2}, {33500, 900, 16500}, features().front(), true, true);
  }
}

TEST_P(LengthsTest, LargerTensorsChangeNothing) {
  const auto context = this->context(3);
  const int32_t queries[] = {9, 60}, keys[] = {100, 31};
  std::vector<float> out, lse;
  for (const int64_t more : {0, 1, 7, 200}) {
    Call call({2, 2, 1, 60 + more, 100 + more, 8, 9}), small({2, 2, 1, 60, 100, 8, 9});
    small.fill_random(122);
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t i = 0; i < 60; ++i)
          for (int64_t c = 0; c < 8; ++c) call.q_at(b, h, i, c) = small.q_at(b, h, i, c);
      for (int64_t j = 0; j < 100; ++j) {
        for (int64_t c = 0; c < 8; ++c) call.k_at(b, 0, j, c) = small.k_at(b, 0, j, c);
        for (int64_t c = 0; c < 9; ++c) call.v_at(b, 0, j, c) = small.v_at(b, 0, j, c);
      }
    }
    for (Call *c : {&call, &small}) {
      c->causal(FOVEA_ALIGN_BOTTOM_RIGHT);
      c->params.seqlens_q = queries;
      c->params.seqlens_kv = keys;
      ASSERT_EQ(c->run(context.get()), FOVEA_OK) << fovea_last_error();
    }
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t i = 0; i < queries[b]; ++i) EXPECT_TRUE(same_row(call, small, {b, h, i})) << more << " more, row " << i;
  }
}

// Queries, keys and values behind the lengths are not even read: the pages are not there.
TEST_P(LengthsTest, WhatLiesBehindMayBeMissing) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int32_t q_len : {1, 3, 50}) {
      for (const int32_t kv_len : {1, 8, 9, 250, 257}) {
        reference::ProblemLine line;
        line.seq_q = q_len;
        line.seq_kv = kv_len;
        line.dim_k = 9;
        line.dim_v = 17;
        line.lse = true;
        const reference::ProblemData data(line);
        fovea_params params = data.params;
        params.seq_q = q_len + 40;  // the tensors end at an inaccessible page all the same, outputs included
        params.seq_kv = kv_len + 40;
        params.seqlens_q = &q_len;
        params.seqlens_kv = &kv_len;
        ASSERT_EQ(reference::run_guarded(context.get(), params), "");
        EXPECT_TRUE(data.output_gaps_intact());
        const reference::Verdict verdict = reference::compare(data.params, reference::attention(data.params));
        EXPECT_TRUE(verdict.ok()) << q_len << "x" << kv_len;
      }
    }
  }
}

// The size of the workspace is enough for any lengths, and asking for it reads none: they may be missing still.
TEST_P(LengthsTest, WorkspaceSizeReadsNoLengths) {
  const reference::GuardedBuffer nothing(0);
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 300}) {
      Call call({3, 4, 2, queries, 5000, 8, 9});
      call.fill_random(123);
      const std::vector<int32_t> lengths[] = {{0, 0, 0}, {1, 1, 1}, {5000, 0, 4097}, {256, 5000, 16}};
      size_t bytes = 0, more = 0;
      call.params.seqlens_kv = reinterpret_cast<const int32_t *>(nothing.pages() + nothing.page_bytes());  // inaccessible
      ASSERT_EQ(fovea_workspace_size(context.get(), &call.params, &bytes), FOVEA_OK) << fovea_last_error();
      for (const std::vector<int32_t> &keys : lengths) {
        call.params.seqlens_kv = keys.data();
        ASSERT_EQ(fovea_workspace_size(context.get(), &call.params, &more), FOVEA_OK) << fovea_last_error();
        EXPECT_EQ(bytes, more);
        ASSERT_EQ(reference::run_guarded(context.get(), call.params), "");
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
