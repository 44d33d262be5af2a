#include "api/operands.h"

namespace fovea {
namespace {

Operand tensor(const char *name, const char *stride_name, const Tensor &t, int64_t batch, int64_t heads, int64_t seq, int64_t dim,
               bool is_output) {
  return {name,
          stride_name,
          t.data,
          element_bytes(t.dtype),
          {batch, heads, seq, dim},
          {t.stride[0], t.stride[1], t.stride[2], t.stride[3]},
          is_output};
}

template <class T>
Operand array(const char *name, const T *data, int64_t size) {
  return {name, name, data, sizeof(T), {size, 1, 1, 1}, {1, 0, 0, 0}, false};
}

}  // namespace

int64_t element_bytes(int32_t dtype) {
  switch (dtype) {
    case FOVEA_BOOL: return 1;
    case FOVEA_F16:
    case FOVEA_BF16: return 2;
    default: return 4;
  }
}

bool has_zero(const int64_t size[4]) { return size[0] == 0 || size[1] == 0 || size[2] == 0 || size[3] == 0; }

bool is_countable(const int64_t size[4], int64_t element_bytes) {
  if (has_zero(size)) return true;
  for (int a = 0; a < 4; ++a)
    if (__builtin_mul_overflow(element_bytes, size[a], &element_bytes)) return false;
  return true;
}

Elements Operand::elements() const {
  return {reinterpret_cast<uintptr_t>(data),
          element_bytes,
          {size[0], size[1], size[2], size[3]},
          {stride[0], stride[1], stride[2], stride[3]}};
}

bool overlap(const Operand &a, const Operand &b) { return !a.is_empty() && !b.is_empty() && overlap(a.elements(), b.elements()); }

Operand mask_operand(const Problem &p, int64_t q_len, int64_t kv_len) {
  return tensor("mask", "mask.stride", p.mask, p.batch, p.heads_q, q_len, kv_len, false);
}

Operands::Operands(const Problem &p) {
  const int64_t one = p.batch ? 1 : 0;  // the batch axis of a side whose entries share a token axis
  const int64_t batch_q = p.cu_seqlens_q ? one : p.batch, batch_kv = p.cu_seqlens_kv ? one : p.batch;
  add(tensor("out", "out.stride", p.out, batch_q, p.heads_q, p.seq_q, p.dim_v, true));
  if (p.weights.data) add(tensor("weights", "weights.stride", p.weights, p.batch, p.heads_q, p.seq_q, p.seq_kv, true));
  if (p.lse) {
    const Tensor lse = {p.lse, {p.lse_stride[0], p.lse_stride[1], p.lse_stride[2], 0}, FOVEA_F32};
    add(tensor("lse", "lse_stride", lse, batch_q, p.heads_q, p.seq_q, 1, true));
  }
  add(tensor("q", "q.stride", p.q, batch_q, p.heads_q, p.seq_q, p.dim_k, false));
  add(tensor("k", "k.stride", p.k, batch_kv, p.heads_kv, p.seq_kv, p.dim_k, false));
  add(tensor("v", "v.stride", p.v, batch_kv, p.heads_kv, p.seq_kv, p.dim_v, false));
  if (p.seqlens_q) add(array("seqlens_q", p.seqlens_q, p.batch));
  if (p.seqlens_kv) add(array("seqlens_kv", p.seqlens_kv, p.batch));
  if (p.cu_seqlens_q) add(array("cu_seqlens_q", p.cu_seqlens_q, p.batch + 1));
  if (p.cu_seqlens_kv) add(array("cu_seqlens_kv", p.cu_seqlens_kv, p.batch + 1));
  if (p.alibi_slopes) add(array("alibi_slopes", p.alibi_slopes, p.heads_q));
  if (p.sinks) add(array("sinks", p.sinks, p.heads_q));
}

}  // namespace fovea
