#include "api/check.h"

#include <inttypes.h>

#include "api/error.h"
#include "api/operands.h"
#include "api/overlap.h"
#include "core/float_bits.h"

namespace fovea {
namespace {

// Far beyond any head that exists; the workspace for rows of this length and the most workers still has a size that fits 64 bits.
constexpr int64_t kMaxDim = 1 << 24;

fovea_status check_struct(const fovea_params *p) {
  if (!p) return fail(FOVEA_ERR_NULL_POINTER, "params: must not be NULL");
  return check_struct_size("params.", *p);
}

fovea_status check_numbers(const fovea_params &p) {
  if (!is_finite(p.scale)) return fail_number("scale", p.scale, "is not finite");
  if (!is_finite(p.softcap)) return fail_number("softcap", p.softcap, "is not finite");
  if (is_negative(p.softcap)) return fail_number("softcap", p.softcap, "is negative");
  return FOVEA_OK;
}

fovea_status check_positions(const fovea_params &p) {
  if (p.causal != 0 && p.causal != 1) return fail(FOVEA_ERR_INVALID_ARGUMENT, "causal: %" PRId32 " is neither 0 nor 1", p.causal);
  if (p.window_left < -1) return fail(FOVEA_ERR_INVALID_ARGUMENT, "window_left: %" PRId64 " is below -1", p.window_left);
  if (p.window_right < -1) return fail(FOVEA_ERR_INVALID_ARGUMENT, "window_right: %" PRId64 " is below -1", p.window_right);
  if (p.align < FOVEA_ALIGN_NONE || p.align > FOVEA_ALIGN_BOTTOM_RIGHT)
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "align: %" PRId32 " is not one of FOVEA_ALIGN_*", p.align);
  const char *asks_for_positions = p.causal               ? "causal"
                                   : p.window_left != -1  ? "window_left"
                                   : p.window_right != -1 ? "window_right"
                                   : p.alibi_slopes       ? "alibi_slopes"
                                                          : nullptr;
  if (asks_for_positions && p.align == FOVEA_ALIGN_NONE)
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "align: must name a corner where %s is on", asks_for_positions);
  return FOVEA_OK;
}

fovea_status check_score_function(const fovea_params &p) {
  if (p.score_mode < FOVEA_SCORE_NONE || p.score_mode > FOVEA_SCORE_REPLACE)
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "score_mode: %" PRId32 " is not one of FOVEA_SCORE_*", p.score_mode);
  if (p.score && p.score_mode == FOVEA_SCORE_NONE)
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "score_mode: must say what the score function does");
  if (!p.score && p.score_mode != FOVEA_SCORE_NONE)
    return fail(FOVEA_ERR_NULL_POINTER, "score: must not be NULL where score_mode is %" PRId32, p.score_mode);
  return FOVEA_OK;
}

bool is_packed(const fovea_params &p) { return p.cu_seqlens_q || p.cu_seqlens_kv; }

fovea_status check_batching(const fovea_params &p) {
  if (p.seqlens_q && p.cu_seqlens_q)
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "seqlens_q: must be NULL where cu_seqlens_q gives the lengths");
  if (p.seqlens_kv && p.cu_seqlens_kv)
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "seqlens_kv: must be NULL where cu_seqlens_kv gives the lengths");
  if (p.weights.data && is_packed(p))
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "weights: must be NULL in packed batches (%s is given)",
                p.cu_seqlens_q ? "cu_seqlens_q" : "cu_seqlens_kv");
  if (p.page_size && p.cu_seqlens_kv)
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "cu_seqlens_kv: must be NULL where keys lie in pages");
  if (p.page_size && p.weights.data) return fail(FOVEA_ERR_INVALID_ARGUMENT, "weights: must be NULL where keys lie in pages");
  return FOVEA_OK;
}

fovea_status check_flags(const fovea_params &p) {
  if (p.flags == 0) return FOVEA_OK;
  return fail(FOVEA_ERR_UNSUPPORTED, "flags: this version supports only the value that fovea_params_init() sets");
}

enum class Role { kActivation, kCache, kMask, kFloat };

fovea_status check_dtype(const char *name, const fovea_tensor &t, Role role) {
  const bool is_mask = role == Role::kMask;
  switch (t.dtype) {
    case FOVEA_F32: break;
    case FOVEA_F16:
    case FOVEA_BF16:
      if (role != Role::kFloat) break;
      return fail(FOVEA_ERR_UNSUPPORTED, "%s.dtype: this version supports only FOVEA_F32 here", name);
    case FOVEA_I8:
    case FOVEA_Q8_0:
    case FOVEA_Q4_0:
      if (role == Role::kCache) break;
      return fail(FOVEA_ERR_INVALID_DTYPE, "%s.dtype: %" PRId32 " is only for k and v", name, t.dtype);
    case FOVEA_BOOL:
      if (is_mask) break;
      [[fallthrough]];
    default: return fail(FOVEA_ERR_INVALID_DTYPE, "%s.dtype: %" PRId32 " is not a dtype of this tensor", name, t.dtype);
  }
  if (t.reserved != 0) return fail(FOVEA_ERR_UNSUPPORTED, "%s.reserved: must be 0", name);
  return FOVEA_OK;
}

fovea_status check_dtypes(const fovea_params &p) {
  fovea_status status = check_dtype("q", p.q, Role::kActivation);
  if (!status) status = check_cache("k", p.k, "dim_k", p.dim_k, "k_scale", p.k_scale);
  if (!status) status = check_cache("v", p.v, "dim_v", p.dim_v, "v_scale", p.v_scale);
  if (!status) status = check_dtype("out", p.out, Role::kActivation);
  if (!status && p.weights.data) status = check_dtype("weights", p.weights, Role::kFloat);
  if (!status && p.mask.data) status = check_dtype("mask", p.mask, Role::kMask);
  return status;
}

}  // namespace

fovea_status check_cache(const char *name, const fovea_tensor &t, const char *dim_name, int64_t dim, const char *scale_name,
                         const fovea_tensor &scale) {
  const fovea_status status = check_dtype(name, t, Role::kCache);
  if (status) return status;
  const int64_t block = format_of(t.dtype).elements;
  if (dim % block)
    return fail(FOVEA_ERR_INVALID_SIZE, "%s.dtype: its blocks of %" PRId64 " elements do not divide %s, %" PRId64, name, block,
                dim_name, dim);
  if (block > 1 && dim > block && t.stride[3] != 1)
    return fail(FOVEA_ERR_INVALID_STRIDE, "%s.stride[3]: %" PRId64 " is not 1: the blocks of a row lie side by side", name,
                t.stride[3]);
  if (!scale.data) return FOVEA_OK;
  if (t.dtype != FOVEA_I8)
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "%s: must be NULL where %s.dtype is not FOVEA_I8", scale_name, name);
  return check_dtype(scale_name, scale, Role::kFloat);
}

fovea_status check_pages(const fovea_params &p) {
  if (p.page_size < 0) return fail(FOVEA_ERR_INVALID_SIZE, "page_size: %" PRId32 " is negative", p.page_size);
  if (p.page_size == 0) {
    const char *field = p.block_table          ? "block_table"
                        : p.block_table_stride ? "block_table_stride"
                        : p.num_pages          ? "num_pages"
                                               : nullptr;
    return field ? fail(FOVEA_ERR_INVALID_ARGUMENT, "%s: must be 0 where page_size is", field) : FOVEA_OK;
  }
  if (p.num_pages < 0) return fail(FOVEA_ERR_INVALID_SIZE, "num_pages: %" PRId64 " is negative", p.num_pages);
  if (p.block_table_stride < 0)
    return fail(FOVEA_ERR_INVALID_STRIDE, "block_table_stride: %" PRId64 " is negative", p.block_table_stride);
  const int64_t table[4] = {p.batch, p.block_table_stride, 1, 1};
  if (!is_countable(table, sizeof(int32_t)))
    return fail(FOVEA_ERR_INVALID_STRIDE, "block_table_stride: %" PRId64 " makes too large a table", p.block_table_stride);
  return FOVEA_OK;
}

fovea_status check_struct_size(const char *prefix, const fovea_params &p) {
  if (p.struct_size == sizeof p) return FOVEA_OK;
  return fail(FOVEA_ERR_STRUCT_SIZE, "%sstruct_size: %" PRIu32 " is not that of a version known here (%zu)", prefix,
              p.struct_size, sizeof p);
}

fovea_status check_countable(const Operand &t) {
  if (is_countable(t.size, t.element_bytes)) return FOVEA_OK;
  return fail(FOVEA_ERR_INVALID_SIZE, "%s: its number of elements is too large", t.name);
}

fovea_status check_layout(const Operand &t) {
  for (int a = 0; a < 4; ++a)
    if (t.size[a] != 1 && t.stride[a] < 0)
      return fail(FOVEA_ERR_INVALID_STRIDE, "%s[%d]: %" PRId64 " is negative", t.stride_name, a, t.stride[a]);
  if (t.is_empty()) return FOVEA_OK;
  int64_t bytes = t.element_bytes;
  for (int a = 0; a < 4; ++a) {
    int64_t step;
    if (__builtin_mul_overflow(t.size[a] - 1, t.stride[a], &step) || __builtin_mul_overflow(step, t.element_bytes, &step) ||
        __builtin_add_overflow(bytes, step, &bytes) || bytes > kMaxTensorBytes)
      return fail(FOVEA_ERR_INVALID_STRIDE, "%s[%d]: %" PRId64 " takes the tensor beyond 2^62 bytes", t.stride_name, a,
                  t.stride[a]);
  }
  if (t.is_output && overlaps_itself(t.elements()))
    return fail(FOVEA_ERR_INVALID_STRIDE, "%s: elements of this output overlap one another", t.stride_name);
  return FOVEA_OK;
}

namespace {

void drop_ignored_strides(int64_t *stride, int64_t size0, int64_t size1, int64_t size2, int64_t size3) {
  if (size0 == 1) stride[0] = 0;
  if (size1 == 1) stride[1] = 0;
  if (size2 == 1) stride[2] = 0;
  if (size3 == 1) stride[3] = 0;
}

// Nothing bounds the strides of a tensor without elements, and nobody shall compute with them.
void forget_empty_strides(Problem *p) {
  const bool no_queries = p->batch == 0 || p->heads_q == 0 || p->seq_q == 0,
             no_scores = no_queries || p->heads_kv == 0 || p->seq_kv == 0;
  const KeyAxes keys = key_axes(*p);
  const bool no_keys = keys.entries == 0 || p->heads_kv == 0 || keys.length == 0;
  const struct {
    Tensor *tensor;
    bool empty;
  } tensors[] = {{&p->q, no_queries || p->dim_k == 0},
                 {&p->k, no_keys || p->dim_k == 0},
                 {&p->v, no_keys || p->dim_v == 0},
                 {&p->k_scale, no_keys},
                 {&p->v_scale, no_keys},
                 {&p->out, no_queries || p->dim_v == 0},
                 {&p->weights, no_scores},
                 {&p->mask, no_scores}};
  for (const auto &t : tensors)
    for (int a = 0; a < 4 && t.empty; ++a) t.tensor->stride[a] = 0;
}

int64_t window_bound(int64_t keys) { return keys == -1 || keys > kUnbounded ? kUnbounded : keys; }

Problem to_problem(const fovea_params &p) {
  Problem r = {};
  r.batch = p.batch, r.heads_q = p.heads_q, r.heads_kv = p.heads_kv;
  r.seq_q = p.seq_q, r.seq_kv = p.seq_kv, r.dim_k = p.dim_k, r.dim_v = p.dim_v;
  r.group = p.heads_kv ? p.heads_q / p.heads_kv : 0;
  r.q = to_tensor(p.q), r.k = to_tensor(p.k), r.v = to_tensor(p.v), r.out = to_tensor(p.out);
  if (p.weights.data) r.weights = to_tensor(p.weights);
  if (p.mask.data) r.mask = to_tensor(p.mask);
  if (p.k.dtype == FOVEA_I8) r.k_scale = to_tensor(p.k_scale);
  if (p.v.dtype == FOVEA_I8) r.v_scale = to_tensor(p.v_scale);
  r.cu_seqlens_q = p.cu_seqlens_q, r.cu_seqlens_kv = p.cu_seqlens_kv;
  r.page_size = p.page_size, r.num_pages = p.num_pages;
  r.block_table = p.block_table, r.block_table_stride = p.block_table_stride;
  int64_t lse_stride[4] = {p.lse_stride[0], p.lse_stride[1], p.lse_stride[2], 0};
  const int64_t batch_q = p.cu_seqlens_q ? 1 : p.batch;
  const KeyAxes keys = key_axes(r);
  drop_ignored_strides(r.q.stride, batch_q, p.heads_q, p.seq_q, p.dim_k);
  drop_ignored_strides(r.k.stride, keys.entries, p.heads_kv, keys.length, p.dim_k / format_of(p.k.dtype).elements);
  drop_ignored_strides(r.v.stride, keys.entries, p.heads_kv, keys.length, p.dim_v / format_of(p.v.dtype).elements);
  drop_ignored_strides(r.k_scale.stride, keys.entries, p.heads_kv, keys.length, 1);
  drop_ignored_strides(r.v_scale.stride, keys.entries, p.heads_kv, keys.length, 1);
  drop_ignored_strides(r.out.stride, batch_q, p.heads_q, p.seq_q, p.dim_v);
  drop_ignored_strides(r.weights.stride, p.batch, p.heads_q, p.seq_q, p.seq_kv);
  drop_ignored_strides(r.mask.stride, p.batch, p.heads_q, p.seq_q, p.seq_kv);
  drop_ignored_strides(lse_stride, batch_q, p.heads_q, p.seq_q, 1);
  r.lse = p.lse;
  for (int a = 0; a < 3; ++a) r.lse_stride[a] = lse_stride[a];
  r.seqlens_q = p.seqlens_q, r.seqlens_kv = p.seqlens_kv;
  r.bottom_right = p.align == FOVEA_ALIGN_BOTTOM_RIGHT;
  r.window_left = window_bound(p.window_left);
  r.window_right = p.causal ? 0 : window_bound(p.window_right);
  r.scale = p.scale;
  r.softcap = counts_as_zero(p.softcap) ? 0 : p.softcap;
  r.alibi_slopes = p.alibi_slopes, r.sinks = p.sinks;
  r.score = p.score, r.score_user = p.score_user;
  r.score_replaces = p.score_mode == FOVEA_SCORE_REPLACE;
  return r;
}

}  // namespace

fovea_status check_sizes(int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t seq_q, int64_t seq_kv, int64_t dim_k,
                         int64_t dim_v) {
  const struct {
    const char *name;
    int64_t size, most;
  } sizes[] = {{"batch", batch, INT64_MAX / 16},  // batch + 1 offsets have a size in bytes
               {"heads_q", heads_q, INT64_MAX},  {"heads_kv", heads_kv, INT64_MAX}, {"seq_q", seq_q, INT64_MAX},
               {"seq_kv", seq_kv, INT64_MAX},    {"dim_k", dim_k, kMaxDim},         {"dim_v", dim_v, kMaxDim}};
  for (const auto &s : sizes) {
    if (s.size < 0) return fail(FOVEA_ERR_INVALID_SIZE, "%s: %" PRId64 " is negative", s.name, s.size);
    if (s.size > s.most) return fail(FOVEA_ERR_INVALID_SIZE, "%s: %" PRId64 " is above %" PRId64, s.name, s.size, s.most);
  }
  if (heads_kv == 0 ? heads_q != 0 : heads_q % heads_kv != 0)
    return fail(FOVEA_ERR_INVALID_SIZE, "heads_q: %" PRId64 " is not a multiple of heads_kv (%" PRId64 ")", heads_q, heads_kv);
  // Of one entry only: in a packed batch the entries share the tokens.
  const int64_t rows[4] = {batch, heads_q, seq_q, 1}, scores[4] = {batch ? 1 : 0, heads_q, seq_q, seq_kv};
  if (!is_countable(rows, sizeof(float)))
    return fail(FOVEA_ERR_INVALID_SIZE, "batch, heads_q, seq_q: their product is too large");
  if (!is_countable(scores, sizeof(float)))
    return fail(FOVEA_ERR_INVALID_SIZE, "heads_q, seq_q, seq_kv: their product is too large");
  return FOVEA_OK;
}

fovea_status check_params(const fovea_params *p, Problem *problem) {
  fovea_status status = check_struct(p);
  if (!status) status = check_sizes(p->batch, p->heads_q, p->heads_kv, p->seq_q, p->seq_kv, p->dim_k, p->dim_v);
  if (!status) status = check_numbers(*p);
  if (!status) status = check_positions(*p);
  if (!status) status = check_score_function(*p);
  if (!status) status = check_pages(*p);
  if (!status) status = check_batching(*p);
  if (!status) status = check_flags(*p);
  if (!status) status = check_dtypes(*p);
  if (status) return status;
  const bool shares_tokens = is_packed(*p) && !p->mask.data;  // a mask has scores of its own for every entry
  const int64_t scores[4] = {p->batch, p->heads_q, p->seq_q, p->seq_kv};
  if (!shares_tokens && !is_countable(scores, sizeof(float)))
    return fail(FOVEA_ERR_INVALID_SIZE, "batch, heads_q, seq_q, seq_kv: their product is too large");
  *problem = to_problem(*p);
  Operands operands(*problem);
  for (const Operand &t : operands)
    if ((status = check_countable(t))) return status;
  if (problem->mask.data) operands.add(mask_operand(*problem, p->seq_q, p->seq_kv));
  for (const Operand &t : operands)
    if ((status = check_layout(t))) return status;
  forget_empty_strides(problem);
  return FOVEA_OK;
}

}  // namespace fovea
