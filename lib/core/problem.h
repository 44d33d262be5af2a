// The plain structs that plan, run and kernels read. A Problem is a checked call: whoever holds one may trust it.
// Only PODs here, and no functions: this header is also compiled into objects of every instruction set.
#pragma once
#include <cstdint>

#include "fovea/fovea.h"

namespace fovea {

// A window without a bound: far beyond any sequence, and a position plus it still fits 64 bits.
constexpr int64_t kUnbounded = INT64_MAX / 4;

// A checked tensor. Strides count elements, or blocks of them where the type has blocks (core/dtype.h); the stride of an axis of size 1 is 0.
struct Tensor {
  void *data;
  int64_t stride[4];  // batch, head, seq, dim
  int32_t dtype;      // fovea_dtype
};

// Batch entry b has q_len queries and kv_len keys: seq_q and seq_kv, or seqlens_*[b], or cu_seqlens_*[b + 1] - cu_seqlens_*[b]. Where
// cu_seqlens_* is given, entries lie one after the other on the token axis, seq_* is the length of that axis, and the batch strides of the
// tensors on it are 0. Where keys lie in pages, k and v are [page, head_kv, slot, dim].
struct Problem {
  int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v;
  int64_t group;  // query heads that share one key-value head: heads_q / heads_kv
  Tensor q, k, v, out;
  Tensor weights;  // data null: not wanted
  float *lse;      // null: not wanted
  int64_t lse_stride[3];
  const int32_t *seqlens_q, *seqlens_kv;        // [batch]; null: all seq_q, seq_kv
  const int32_t *cu_seqlens_q, *cu_seqlens_kv;  // [batch + 1]; null: not packed

  // Key j of entry b is slot j % page_size of page block_table[b * block_table_stride + j / page_size]. An entry of the table is in
  // 0..num_pages - 1 where some query of its batch entry may see a key of that page by its window; others hold anything.
  int64_t page_size;  // 0: keys do not lie in pages
  int64_t num_pages;
  const int32_t *block_table;
  int64_t block_table_stride;
  Tensor k_scale, v_scale;  // of each row of FOVEA_I8 keys and values; data null: of other types

  // Query i stands at position p = i, or i + kv_len - q_len where bottom_right, and sees the keys [p - window_left, p + window_right].
  // Causal is window_right 0.
  bool bottom_right;
  int64_t window_left, window_right;

  float scale;
  float softcap;              // 0: off
  const float *alibi_slopes;  // [heads_q]; null: none
  Tensor mask;                // [batch, heads_q, q_len, kv_len] of an entry; data null: none. FOVEA_BOOL, or added
  const float *sinks;         // [heads_q]; null: none
  fovea_score_fn score;       // null: none
  void *score_user;
  bool score_replaces;  // it takes the place of scale * q.k; else it changes finished scores
};

}  // namespace fovea
