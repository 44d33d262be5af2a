// The plain structs that plan, run and kernels read. A Problem is a checked call: whoever holds one may trust it.
// Only PODs here, and no functions: this header is also compiled into objects of every instruction set.
#pragma once
#include <cstdint>

namespace fovea {

// A checked tensor. Strides count elements; the stride of an axis of size 1 is 0.
struct Tensor {
  void *data;
  int64_t stride[4];  // batch, head, seq, dim
  int32_t dtype;      // fovea_dtype
};

struct Problem {
  int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v;
  int64_t group;  // query heads that share one key-value head: heads_q / heads_kv
  Tensor q, k, v, out;
  Tensor weights;  // data null: not wanted
  float *lse;      // null: not wanted
  int64_t lse_stride[3];
  float scale;
  bool causal;
  int64_t causal_offset;  // causal: query i sees keys j <= i + causal_offset
};

}  // namespace fovea
