#include <inttypes.h>
#include <stdio.h>

#include "api/check.h"
#include "api/error.h"
#include "api/operands.h"
#include "core/float_bits.h"
#include "core/lengths.h"

namespace fovea {

fovea_status check_address(const Operand &t) {
  if (t.is_empty()) return FOVEA_OK;
  if (!t.data) return fail(FOVEA_ERR_NULL_POINTER, "%s: must not be NULL", t.name);
  const uintptr_t address = reinterpret_cast<uintptr_t>(t.data), bytes = uintptr_t(t.element_bytes);
  if (address % uintptr_t(t.alignment()))
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "%s: its address is not a multiple of %" PRId64, t.name, t.alignment());
  uintptr_t end = address + bytes - 1;
  for (int a = 0; a < 4; ++a)
    if (__builtin_add_overflow(end, uintptr_t((t.size[a] - 1) * t.stride[a]) * bytes, &end))
      return fail(FOVEA_ERR_INVALID_STRIDE, "%s: reaches beyond the end of memory", t.stride_name);
  return FOVEA_OK;
}

fovea_status check_apart(const Operand *begin, const Operand *end) {
  for (const Operand *a = begin; a != end && a->is_output; ++a)
    for (const Operand *b = a + 1; b != end; ++b)
      if (overlap(*a, *b)) return fail(FOVEA_ERR_OVERLAP, "%s: overlaps %s", a->name, b->name);
  return FOVEA_OK;
}

fovea_status check_lengths(const char *name, const int32_t *lengths, int64_t batch, int64_t most) {
  if (!lengths) return FOVEA_OK;
  for (int64_t b = 0; b < batch; ++b)
    if (lengths[b] < 0 || lengths[b] > most)
      return fail(FOVEA_ERR_INVALID_ARGUMENT, "%s[%" PRId64 "]: %" PRId32 " is not in 0..%" PRId64, name, b, lengths[b], most);
  return FOVEA_OK;
}

fovea_status check_offsets(const char *name, const int32_t *offsets, int64_t batch, int64_t tokens) {
  if (!offsets) return FOVEA_OK;
  int64_t least = 0;
  for (int64_t b = 0; b <= batch; ++b) {
    if (offsets[b] < least || offsets[b] > tokens)
      return fail(FOVEA_ERR_INVALID_ARGUMENT, "%s[%" PRId64 "]: %" PRId32 " is not in %" PRId64 "..%" PRId64, name, b, offsets[b],
                  least, tokens);
    least = offsets[b];
  }
  return FOVEA_OK;
}

fovea_status check_pages_of_keys(const BlockTable &t, int64_t batch, int64_t length, int64_t begin, int64_t end) {
  if (length > 0 && (length - 1) / t.page_size >= t.columns)
    return fail(FOVEA_ERR_INVALID_ARGUMENT,
                "block_table_stride: %" PRId64 " pages of %" PRId64 " keys do not hold the %" PRId64 " of batch entry %" PRId64,
                t.columns, t.page_size, length, batch);
  for (int64_t column = begin / t.page_size; begin < end && column <= (end - 1) / t.page_size; ++column) {
    const int32_t page = t.pages[batch * t.columns + column];
    if (page < 0 || page >= t.num_pages)
      return fail(FOVEA_ERR_INVALID_ARGUMENT,
                  "block_table: %" PRId32 " at batch entry %" PRId64 ", column %" PRId64 " is not one of %" PRId64 " pages", page,
                  batch, column, t.num_pages);
  }
  return FOVEA_OK;
}

namespace {

int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

// What of the table will be followed: the pages of all keys that some query of their batch entry may see by its window.
fovea_status check_block_table(const Problem &p) {
  const BlockTable table = {p.block_table, p.block_table_stride, p.page_size, p.num_pages};
  for (int64_t b = 0; p.page_size && b < p.batch; ++b) {
    const int64_t kv_len = keys_of(p, b), q_len = p.heads_q ? queries_of(p, b) : 0;
    const int64_t first = p.bottom_right ? kv_len - q_len : 0, last = first + q_len - 1;  // positions of queries
    const int64_t begin = clamp(first - p.window_left, 0, kv_len), end = clamp(last + p.window_right + 1, 0, kv_len);
    const fovea_status status = check_pages_of_keys(table, b, kv_len, q_len ? begin : end, end);
    if (status) return status;
  }
  return FOVEA_OK;
}

fovea_status fail_head(const char *name, int64_t head, float value, const char *fault) {
  char element[64];
  snprintf(element, sizeof element, "%s[%" PRId64 "]", name, head);
  return fail_number(element, value, fault);
}

fovea_status check_slopes(const float *slopes, int64_t heads) {
  if (!slopes) return FOVEA_OK;
  for (int64_t h = 0; h < heads; ++h)
    if (!is_finite(slopes[h])) return fail_head("alibi_slopes", h, slopes[h], "is not finite");
  return FOVEA_OK;
}

fovea_status check_sinks(const float *sinks, int64_t heads) {
  if (!sinks) return FOVEA_OK;
  for (int64_t h = 0; h < heads; ++h)
    if (!is_finite(sinks[h]) && !is_minus_infinity(sinks[h]))
      return fail_head("sinks", h, sinks[h], "is neither finite nor -infinity");
  return FOVEA_OK;
}

int64_t longest_segment(const int32_t *offsets, int64_t batch) {
  int64_t longest = 0;
  for (int64_t b = 0; b < batch; ++b)
    if (offsets[b + 1] - offsets[b] > longest) longest = offsets[b + 1] - offsets[b];
  return longest;
}

// What of the mask may be read.
Operand used_mask(const Problem &p) {
  return mask_operand(p, p.cu_seqlens_q ? longest_segment(p.cu_seqlens_q, p.batch) : p.seq_q,
                      p.cu_seqlens_kv ? longest_segment(p.cu_seqlens_kv, p.batch) : p.seq_kv);
}

}  // namespace

fovea_status check_data(const Problem &problem, const void *workspace, int64_t workspace_bytes) {
  Operands operands(problem);
  fovea_status status = FOVEA_OK;
  for (const Operand &t : operands)
    if ((status = check_address(t))) return status;
  status = check_lengths("seqlens_q", problem.seqlens_q, problem.batch, problem.seq_q);
  if (!status) status = check_lengths("seqlens_kv", problem.seqlens_kv, problem.batch, problem.seq_kv);
  if (!status) status = check_offsets("cu_seqlens_q", problem.cu_seqlens_q, problem.batch, problem.seq_q);
  if (!status) status = check_offsets("cu_seqlens_kv", problem.cu_seqlens_kv, problem.batch, problem.seq_kv);
  if (!status) status = check_block_table(problem);
  if (!status) status = check_slopes(problem.alibi_slopes, problem.heads_q);
  if (!status) status = check_sinks(problem.sinks, problem.heads_q);
  if (status) return status;
  if (problem.mask.data) {
    const Operand mask = used_mask(problem);
    if ((status = check_address(mask))) return status;
    operands.add(mask);
  }
  if ((status = check_apart(operands.begin(), operands.end()))) return status;
  const Operand scratch = {"workspace",  "workspace", workspace, 1, {workspace ? workspace_bytes : 0, 1, 1, 1},
                           {1, 0, 0, 0}, true};
  for (const Operand &t : operands)
    if (overlap(scratch, t)) return fail(FOVEA_ERR_OVERLAP, "workspace: overlaps %s", t.name);
  return FOVEA_OK;
}

}  // namespace fovea
