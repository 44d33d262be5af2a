#include "api/operands.h"

#include "core/dtype.h"

namespace fovea {
Format format_of(int32_t dtype) {
  switch (dtype) {
    case FOVEA_BOOL:
    case FOVEA_I8: return {1, 1};
    case FOVEA_F16:
    case FOVEA_BF16: return {1, 2};
    case FOVEA_Q8_0: return {kBlockElements, kBytesQ8_0};
    case FOVEA_Q4_0: return {kBlockElements, kBytesQ4_0};
    default: return {1, 4};
  }
}

bool has_zero(const int64_t size[4]) { return size[0] == 0 || size[1] == 0 || size[2] == 0 || size[3] == 0; }

bool is_countable(const int64_t size[4], int64_t element_bytes) {
  if (has_zero(size)) return true;
  for (int a = 0; a < 4; ++a)
    if (__builtin_mul_overflow(element_bytes, size[a], &element_bytes)) return false;
  return true;
}

// The bytes of a block are no power of two: a row of blocks, which lie side by side, counts as a row of what they are aligned to.
Elements Operand::elements() const {
  const int64_t units = element_bytes / alignment();
  return {reinterpret_cast<uintptr_t>(data),
          alignment(),
          {size[0], size[1], size[2], size[3] * units},
          {stride[0] * units, stride[1] * units, stride[2] * units, units > 1 ? 1 : stride[3]}};
}

bool overlap(const Operand &a, const Operand &b) { return !a.is_empty() && !b.is_empty() && overlap(a.elements(), b.elements()); }

Operand tensor_operand(const char *name, const char *stride_name, const Tensor &t, int64_t entries, int64_t heads, int64_t seq,
                       int64_t dim, bool is_output) {
  const Format format = format_of(t.dtype);
  Operand r = {name, stride_name, t.data, format.bytes, {entries, heads, seq, dim / format.elements}, {}, is_output};
  for (int a = 0; a < 4; ++a) r.stride[a] = r.size[a] == 1 ? 0 : t.stride[a];
  return r;
}

Tensor to_tensor(const fovea_tensor &t) { return {t.data, {t.stride[0], t.stride[1], t.stride[2], t.stride[3]}, t.dtype}; }

Operand mask_operand(const Problem &p, int64_t q_len, int64_t kv_len) {
  return tensor_operand("mask", "mask.stride", p.mask, p.batch, p.heads_q, q_len, kv_len, false);
}

KeyAxes key_axes(const Problem &p) {
  if (p.page_size) return {p.num_pages, p.page_size};
  return {p.cu_seqlens_kv && p.batch ? 1 : p.batch, p.seq_kv};
}

Operands::Operands(const Problem &p) {
  const int64_t batch_q = p.cu_seqlens_q && p.batch ? 1 : p.batch;
  const KeyAxes keys = key_axes(p);
  add(tensor_operand("out", "out.stride", p.out, batch_q, p.heads_q, p.seq_q, p.dim_v, true));
  if (p.weights.data) add(tensor_operand("weights", "weights.stride", p.weights, p.batch, p.heads_q, p.seq_q, p.seq_kv, true));
  if (p.lse) {
    const Tensor lse = {p.lse, {p.lse_stride[0], p.lse_stride[1], p.lse_stride[2], 0}, FOVEA_F32};
    add(tensor_operand("lse", "lse_stride", lse, batch_q, p.heads_q, p.seq_q, 1, true));
  }
  add(tensor_operand("q", "q.stride", p.q, batch_q, p.heads_q, p.seq_q, p.dim_k, false));
  add(tensor_operand("k", "k.stride", p.k, keys.entries, p.heads_kv, keys.length, p.dim_k, false));
  add(tensor_operand("v", "v.stride", p.v, keys.entries, p.heads_kv, keys.length, p.dim_v, false));
  if (p.k.dtype == FOVEA_I8)
    add(tensor_operand("k_scale", "k_scale.stride", p.k_scale, keys.entries, p.heads_kv, keys.length, 1, false));
  if (p.v.dtype == FOVEA_I8)
    add(tensor_operand("v_scale", "v_scale.stride", p.v_scale, keys.entries, p.heads_kv, keys.length, 1, false));
  if (p.seqlens_q) add(array_operand("seqlens_q", p.seqlens_q, p.batch));
  if (p.seqlens_kv) add(array_operand("seqlens_kv", p.seqlens_kv, p.batch));
  if (p.cu_seqlens_q) add(array_operand("cu_seqlens_q", p.cu_seqlens_q, p.batch + 1));
  if (p.cu_seqlens_kv) add(array_operand("cu_seqlens_kv", p.cu_seqlens_kv, p.batch + 1));
  if (p.page_size) add(array_operand("block_table", p.block_table, p.batch * p.block_table_stride));
  if (p.alibi_slopes) add(array_operand("alibi_slopes", p.alibi_slopes, p.heads_q));
  if (p.sinks) add(array_operand("sinks", p.sinks, p.heads_q));
}

}  // namespace fovea
