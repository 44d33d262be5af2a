// cu_seqlens_q and cu_seqlens_kv: segments of one token axis. Each is the call of its own tokens, bit for bit; tokens outside of all segments
// are neither read nor written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/guarded_buffer.h"
#include "support/call.h"
#include "support/features.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

constexpr int32_t kThreads[] = {1, 2, 3, 7};
const float kNaN = std::nanf("");

struct Segments {
  std::vector<int32_t> q, kv;  // offsets
  int64_t tokens_q, tokens_kv;
  int64_t heads_q, heads_kv, dim_k, dim_v;

  int64_t count() const { return int64_t(q.size()) - 1; }
  int64_t q_len(int64_t b) const { return q[size_t(b + 1)] - q[size_t(b)]; }
  int64_t kv_len(int64_t b) const { return kv[size_t(b + 1)] - kv[size_t(b)]; }
};

// The call of one segment alone: its tokens of a packed call of one batch entry.
void copy_tokens(Call &to, Call &from, int64_t first_q, int64_t first_kv) {
  for (int64_t h = 0; h < to.n.heads_q; ++h)
    for (int64_t i = 0; i < to.n.seq_q; ++i)
      for (int64_t c = 0; c < to.n.dim_k; ++c) to.q_at(0, h, i, c) = from.q_at(0, h, first_q + i, c);
  for (int64_t h = 0; h < to.n.heads_kv; ++h)
    for (int64_t j = 0; j < to.n.seq_kv; ++j) {
      for (int64_t c = 0; c < to.n.dim_k; ++c) to.k_at(0, h, j, c) = from.k_at(0, h, first_kv + j, c);
      for (int64_t c = 0; c < to.n.dim_v; ++c) to.v_at(0, h, j, c) = from.v_at(0, h, first_kv + j, c);
    }
}

class PackedBatchesTest : public LevelTest {
 protected:
  static void expect_segments(const fovea_context *context, const Segments &s, const Feature &feature) {
    const Sizes n = {1, s.heads_q, s.heads_kv, s.tokens_q, s.tokens_kv, s.dim_k, s.dim_v};
    std::vector<int64_t> q_lens, kv_lens;
    for (int64_t b = 0; b < s.count(); ++b) q_lens.push_back(s.q_len(b)), kv_lens.push_back(s.kv_len(b));
    const Mask mask = mask_of_entries({s.count(), s.heads_q, s.heads_kv, *std::max_element(q_lens.begin(), q_lens.end()),
                                       *std::max_element(kv_lens.begin(), kv_lens.end()), 1, 1},
                                      q_lens, kv_lens);
    Call call(n);
    call.fill_random(131);
    std::vector<char> in_q(size_t(n.seq_q), 0), in_kv(size_t(n.seq_kv), 0);
    std::fill(in_q.begin() + s.q.front(), in_q.begin() + s.q.back(), char(1));
    std::fill(in_kv.begin() + s.kv.front(), in_kv.begin() + s.kv.back(), char(1));
    for (int64_t h = 0; h < n.heads_q; ++h)
      for (int64_t i = 0; i < n.seq_q; ++i)
        for (int64_t c = 0; c < n.dim_k && !in_q[size_t(i)]; ++c) call.q_at(0, h, i, c) = kNaN;
    for (int64_t h = 0; h < n.heads_kv; ++h)
      for (int64_t j = 0; j < n.seq_kv; ++j) {
        if (in_kv[size_t(j)]) continue;
        for (int64_t c = 0; c < n.dim_k; ++c) call.k_at(0, h, j, c) = kNaN;
        for (int64_t c = 0; c < n.dim_v; ++c) call.v_at(0, h, j, c) = kNaN;
      }
    feature.apply(call.params, mask);
    call.params.batch = s.count();
    for (fovea_tensor *t : {&call.params.q, &call.params.k, &call.params.v, &call.params.out})
      t->stride[0] = int64_t{1} << 40;  // not used
    call.params.lse_stride[0] = int64_t{1} << 40;
    call.params.cu_seqlens_q = s.q.data();
    call.params.cu_seqlens_kv = s.kv.data();
    call.params.weights.data = nullptr;
    ASSERT_EQ(call.run(context), FOVEA_OK) << fovea_last_error() << " " << feature.name;
    for (int64_t b = 0; b < s.count(); ++b) {
      Call alone({1, s.heads_q, s.heads_kv, s.q_len(b), s.kv_len(b), s.dim_k, s.dim_v});
      copy_tokens(alone, call, s.q[size_t(b)], s.kv[size_t(b)]);
      feature.apply(alone.params, mask);
      if (alone.params.mask.data)
        alone.params.mask.data = static_cast<float *>(alone.params.mask.data) + b * alone.params.mask.stride[0];
      alone.params.weights.data = nullptr;
      ASSERT_EQ(alone.run(context), FOVEA_OK) << fovea_last_error();
      for (int64_t h = 0; h < s.heads_q; ++h)
        for (int64_t i = 0; i < s.q_len(b); ++i)
          ASSERT_TRUE(same_row(call, {0, h, s.q[size_t(b)] + i}, alone, {0, h, i}))
              << feature.name << " segment " << b << " (" << s.q_len(b) << "x" << s.kv_len(b) << ") head " << h << " row " << i;
    }
    for (int64_t h = 0; h < s.heads_q; ++h)
      for (int64_t i = 0; i < s.tokens_q; ++i) {
        if (in_q[size_t(i)]) continue;
        for (int64_t c = 0; c < s.dim_v; ++c) ASSERT_EQ(call.out_at(0, h, i, c), Call::canary) << feature.name << " token " << i;
        ASSERT_EQ(call.lse_at(0, h, i), Call::canary) << feature.name << " token " << i;
      }
  }
};
FOVEA_TEST_EVERY_LEVEL(PackedBatchesTest);

TEST_P(PackedBatchesTest, EachSegmentIsTheCallOfItsOwnTokens) {
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const Feature &feature : features()) {
      expect_segments(context.get(), {{0, 0, 1, 1, 2}, {0, 0, 3, 3, 8}, 2, 8, 9, 3, 64, 64}, feature);
      expect_segments(context.get(), {{0, 50, 51, 120}, {0, 300, 309, 566}, 120, 566, 4, 2, 8, 9}, feature);
      expect_segments(context.get(), {{3, 10, 10, 12, 90}, {5, 12, 40, 40, 297}, 95, 300, 6, 1, 17, 8},
                      feature);  // slack on both ends
      expect_segments(context.get(), {{0, 1, 2, 3, 3, 4}, {0, 1300, 1301, 1301, 1400, 2424}, 4, 2424, 4, 4, 8, 16}, feature);
      if (HasFatalFailure()) return;
    }
  }
}

// Many queries beside none, and lengths of which none is a multiple of anything.
TEST_P(PackedBatchesTest, LongSegmentsBesideEmptyOnes) {
  const auto context = this->context(2);
  const Feature &causal = features()[2];
  expect_segments(context.get(), {{0, 0, 1208, 2048, 2048}, {0, 2538, 4280, 5120, 8192}, 2048, 8192, 1, 1, 256, 256}, causal);
}

// Queries without a key of their own: zero rows, whatever lies in the tokens beside them.
TEST_P(PackedBatchesTest, SegmentsWithoutKeys) {
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const bool sinks : {false, true}) {
      Call call({1, 9, 3, 70, 40, 8, 9});
      call.fill_random(132);
      const int32_t q[] = {0, 3, 60, 61, 70}, kv[] = {0, 0, 40, 40, 40};
      call.params.batch = 4;
      call.params.cu_seqlens_q = q;
      call.params.cu_seqlens_kv = kv;
      call.params.weights.data = nullptr;
      if (sinks) call.params.sinks = kSomeSinks;
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (int64_t h = 0; h < 9; ++h)
        for (int64_t i = 0; i < 70; ++i) {
          if (i >= 3 && i < 60) {
            ASSERT_TRUE(std::isfinite(call.lse_at(0, h, i))) << i;
            continue;
          }
          for (int64_t c = 0; c < 9; ++c) ASSERT_EQ(call.out_at(0, h, i, c), 0.0f) << i;
          const float lse = sinks ? kSomeSinks[h] : -INFINITY;
          ASSERT_TRUE(call.lse_at(0, h, i) == lse || std::fabs(call.lse_at(0, h, i) - lse) < 1e-6f) << i;
        }
    }
  }
}

// Tokens behind the last offset, queries and keys: neither read nor written, though the tensors say that they are there.
TEST_P(PackedBatchesTest, SlackMayBeMissing) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t last : {5, 48, 257}) {
      reference::ProblemLine line;
      line.seq_q = line.seq_kv = last;
      line.dim_k = 9;
      line.dim_v = 17;
      line.lse = true;
      const reference::ProblemData data(line);
      fovea_params params = data.params;
      params.batch = 3;
      params.seq_q = params.seq_kv = last + 2;  // as in a buffer of 946 tokens whose last offset is 944
      const int32_t offsets[] = {0, 2, 2, int32_t(last)};
      params.cu_seqlens_q = params.cu_seqlens_kv = offsets;
      ASSERT_EQ(reference::run_guarded(context.get(), params), "");
      EXPECT_TRUE(data.output_gaps_intact());
    }
  }
}

// Larger tensors than any segment needs change nothing.
TEST_P(PackedBatchesTest, LongerAxesChangeNothing) {
  const auto context = this->context(3);
  const int32_t q[] = {0, 9, 60}, kv[] = {0, 100, 131};
  Call exact({1, 2, 1, 60, 131, 8, 9});
  exact.fill_random(133);
  for (const int64_t more : {0, 2, 1000}) {
    Call call({1, 2, 1, 60 + more, 131 + more, 8, 9});
    std::fill(call.q.begin(), call.q.end(), kNaN);
    std::fill(call.k.begin(), call.k.end(), kNaN);
    std::fill(call.v.begin(), call.v.end(), kNaN);
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < 60; ++i)
        for (int64_t c = 0; c < 8; ++c) call.q_at(0, h, i, c) = exact.q_at(0, h, i, c);
    for (int64_t j = 0; j < 131; ++j) {
      for (int64_t c = 0; c < 8; ++c) call.k_at(0, 0, j, c) = exact.k_at(0, 0, j, c);
      for (int64_t c = 0; c < 9; ++c) call.v_at(0, 0, j, c) = exact.v_at(0, 0, j, c);
    }
    for (Call *c : {&exact, &call}) {
      c->causal(FOVEA_ALIGN_BOTTOM_RIGHT);
      c->params.batch = 2;
      c->params.cu_seqlens_q = q;
      c->params.cu_seqlens_kv = kv;
      c->params.weights.data = nullptr;
      ASSERT_EQ(c->run(context.get()), FOVEA_OK) << fovea_last_error();
    }
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < 60; ++i) EXPECT_TRUE(same_row(call, exact, {0, h, i})) << more << " more, row " << i;
  }
}

// Either side may be packed alone: packed queries with padded keys and values, and the other way round. Both are the padded call.
TEST_P(PackedBatchesTest, OneSideAlone) {
  const int32_t q_lengths[] = {7, 0, 50}, kv_lengths[] = {40, 300, 257};
  const int32_t q[] = {1, 8, 8, 58}, kv[] = {0, 40, 340, 597};
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const int32_t causal : {0, 1}) {
      Call padded({3, 4, 2, 50, 300, 8, 9});
      padded.fill_random(134);
      const auto prepare = [&](fovea_params &p) {
        p.weights.data = nullptr;
        p.causal = causal;
        p.align = causal ? FOVEA_ALIGN_BOTTOM_RIGHT : FOVEA_ALIGN_NONE;
        p.batch = 3;
      };
      prepare(padded.params);
      padded.params.seqlens_q = q_lengths;
      padded.params.seqlens_kv = kv_lengths;
      ASSERT_EQ(padded.run(context.get()), FOVEA_OK) << fovea_last_error();

      Call packed({1, 4, 2, 60, 600, 8, 9});
      for (int64_t b = 0; b < 3; ++b) {
        for (int64_t h = 0; h < 4; ++h)
          for (int64_t i = 0; i < q_lengths[b]; ++i)
            for (int64_t c = 0; c < 8; ++c) packed.q_at(0, h, q[b] + i, c) = padded.q_at(b, h, i, c);
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t j = 0; j < kv_lengths[b]; ++j) {
            for (int64_t c = 0; c < 8; ++c) packed.k_at(0, h, kv[b] + j, c) = padded.k_at(b, h, j, c);
            for (int64_t c = 0; c < 9; ++c) packed.v_at(0, h, kv[b] + j, c) = padded.v_at(b, h, j, c);
          }
      }
      prepare(packed.params);
      const fovea_params own = packed.params;
      for (const bool queries : {true, false}) {
        packed.params = own;
        if (queries) {
          packed.params.cu_seqlens_q = q;
          packed.params.seqlens_kv = kv_lengths;
          packed.params.k = padded.params.k;
          packed.params.v = padded.params.v;
          packed.params.seq_kv = 300;
        } else {
          packed.params.cu_seqlens_kv = kv;
          packed.params.seqlens_q = q_lengths;
          packed.params.q = padded.params.q;
          packed.params.out = padded.params.out;
          packed.params.lse = padded.params.lse;
          std::copy_n(padded.params.lse_stride, 3, packed.params.lse_stride);
          packed.params.seq_q = 50;
        }
        const std::vector<float> out = padded.out, lse = padded.lse;
        if (!queries) {
          padded.out.assign(out.size(), Call::canary);
          padded.lse.assign(lse.size(), Call::canary);
        }
        ASSERT_EQ(packed.run(context.get()), FOVEA_OK) << fovea_last_error();
        if (!queries) {
          EXPECT_TRUE(same_bits(padded.out, out)) << "keys packed, causal " << causal;
          EXPECT_TRUE(same_bits(padded.lse, lse)) << "keys packed, causal " << causal;
          continue;
        }
        for (int64_t b = 0; b < 3; ++b)
          for (int64_t h = 0; h < 4; ++h)
            for (int64_t i = 0; i < q_lengths[b]; ++i)
              ASSERT_TRUE(same_row(packed, {0, h, q[b] + i}, padded, {b, h, i}))
                  << "queries packed, causal " << causal << " entry " << b;
        for (int64_t h = 0; h < 4; ++h)
          for (const int64_t i : {0, 58, 59}) EXPECT_EQ(packed.lse_at(0, h, i), Call::canary) << "token " << i;
      }
    }
  }
}

// Tokens before heads, padded rows, values of strided dims: as everywhere, only strides.
TEST_P(PackedBatchesTest, AnyStridesOfTokens) {
  const auto context = this->context(3);
  const int32_t q[] = {0, 9, 60}, kv[] = {0, 100, 131};
  const Sizes n = {1, 4, 2, 60, 131, 8, 9};
  Call dense(n);
  dense.fill_random(135);
  dense.params.batch = 2;
  dense.params.cu_seqlens_q = q;
  dense.params.cu_seqlens_kv = kv;
  dense.params.weights.data = nullptr;
  ASSERT_EQ(dense.run(context.get()), FOVEA_OK) << fovea_last_error();
  for (const int64_t step : {1, 3}) {
    const auto spread = [&](const std::vector<float> &from, fovea_tensor &t, int64_t heads, int64_t seq, int64_t dim) {
      std::vector<float> to(size_t(seq * heads * dim * step), kNaN);  // [token][head][dim * step]
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t s = 0; s < seq; ++s)
          for (int64_t d = 0; d < dim; ++d)
            to[size_t(((s * heads + h) * dim + d) * step)] = from[size_t((h * seq + s) * dim + d)];
      t.stride[1] = dim * step;
      t.stride[2] = heads * dim * step;
      t.stride[3] = step;
      return to;
    };
    fovea_params p = dense.params;
    std::vector<float> sq = spread(dense.q, p.q, 4, 60, 8), sk = spread(dense.k, p.k, 2, 131, 8),
                       sv = spread(dense.v, p.v, 2, 131, 9), so = spread(dense.out, p.out, 4, 60, 9);
    const std::vector<float> expected = so;
    for (float &value : so)
      if (!std::isnan(value)) value = Call::canary;
    std::vector<float> lse(60 * 4 * 2, Call::canary);  // [token][head][2]
    p.q.data = sq.data(), p.k.data = sk.data(), p.v.data = sv.data(), p.out.data = so.data(), p.lse = lse.data();
    p.lse_stride[1] = 2;
    p.lse_stride[2] = 8;
    ASSERT_EQ(fovea_forward(context.get(), &p, nullptr, 0), FOVEA_OK) << fovea_last_error();
    EXPECT_TRUE(same_bits(so, expected)) << "step " << step;  // the gaps' NaN included
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t i = 0; i < 60; ++i) {
        EXPECT_EQ(lse[size_t(i * 8 + h * 2)], dense.lse_at(0, h, i));
        EXPECT_EQ(lse[size_t(i * 8 + h * 2 + 1)], Call::canary);
      }
  }
}

TEST_P(PackedBatchesTest, NoSegmentsNothingWritten) {
  const auto context = this->context(2);
  const int32_t none[] = {3}, empty[] = {3, 3, 3, 3};
  for (const int64_t batch : {0, 3}) {
    Call call({1, 4, 2, 9, 9, 8, 9});
    call.params.batch = batch;
    call.params.cu_seqlens_q = call.params.cu_seqlens_kv = batch ? empty : none;
    call.params.weights.data = nullptr;
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    for (const float out : call.out) ASSERT_EQ(out, Call::canary);
    for (const float lse : call.lse) ASSERT_EQ(lse, Call::canary);
  }
}

}  // namespace
}  // namespace fovea::testing
