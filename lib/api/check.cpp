#include "api/check.h"

#include <inttypes.h>

#include "api/error.h"
#include "api/overlap.h"

namespace fovea {
namespace {

constexpr int64_t kElementBytes = sizeof(float);

// Far beyond any head that exists; the workspace for rows of this length and the most workers still has a size that fits 64 bits.
constexpr int64_t kMaxDim = 1 << 24;

bool multiply(int64_t a, int64_t b, int64_t *product) { return !__builtin_mul_overflow(a, b, product); }

bool has_zero(const int64_t size[4]) { return size[0] == 0 || size[1] == 0 || size[2] == 0 || size[3] == 0; }

// So many elements have a size in bytes that fits 64 bits.
bool is_countable(const int64_t size[4]) {
  if (has_zero(size)) return true;
  int64_t bytes = kElementBytes;
  for (int a = 0; a < 4; ++a)
    if (!multiply(bytes, size[a], &bytes)) return false;
  return true;
}

// A tensor of the call by its name in fovea_params.
struct Operand {
  const char *name;
  const char *stride_name;
  const void *data;
  const int64_t *stride;
  int64_t size[4];
  bool is_output;

  bool is_empty() const { return has_zero(size); }
  Elements elements() const {
    return {
        reinterpret_cast<uintptr_t>(data), {size[0], size[1], size[2], size[3]}, {stride[0], stride[1], stride[2], stride[3]}};
  }
};

constexpr int kMaxOperands = 6;

// The operands of a problem, outputs first. The LSE has no dim axis: its fourth stride is this 0.
struct Operands {
  Operand list[kMaxOperands];
  int count = 0;
  int64_t lse_stride[4];

  explicit Operands(const Problem &p) : lse_stride{p.lse_stride[0], p.lse_stride[1], p.lse_stride[2], 0} {
    add({"out", "out.stride", p.out.data, p.out.stride, {p.batch, p.heads_q, p.seq_q, p.dim_v}, true});
    if (p.weights.data)
      add({"weights", "weights.stride", p.weights.data, p.weights.stride, {p.batch, p.heads_q, p.seq_q, p.seq_kv}, true});
    if (p.lse) add({"lse", "lse_stride", p.lse, lse_stride, {p.batch, p.heads_q, p.seq_q, 1}, true});
    add({"q", "q.stride", p.q.data, p.q.stride, {p.batch, p.heads_q, p.seq_q, p.dim_k}, false});
    add({"k", "k.stride", p.k.data, p.k.stride, {p.batch, p.heads_kv, p.seq_kv, p.dim_k}, false});
    add({"v", "v.stride", p.v.data, p.v.stride, {p.batch, p.heads_kv, p.seq_kv, p.dim_v}, false});
  }
  void add(const Operand &operand) { list[count++] = operand; }
  const Operand *begin() const { return list; }
  const Operand *end() const { return list + count; }
};

fovea_status check_struct(const fovea_params *p) {
  if (!p) return fail(FOVEA_ERR_NULL_POINTER, "params: must not be NULL");
  if (p->struct_size != sizeof *p)
    return fail(FOVEA_ERR_STRUCT_SIZE, "params.struct_size: %" PRIu32 " is not that of a version known here (%zu)",
                p->struct_size, sizeof *p);
  return FOVEA_OK;
}

fovea_status check_scores(const fovea_params &p) {
  if (!__builtin_isfinite(p.scale)) return fail(FOVEA_ERR_INVALID_ARGUMENT, "scale: %g is not finite", double(p.scale));
  if (p.causal != 0 && p.causal != 1) return fail(FOVEA_ERR_INVALID_ARGUMENT, "causal: %" PRId32 " is neither 0 nor 1", p.causal);
  if (p.align < FOVEA_ALIGN_NONE || p.align > FOVEA_ALIGN_BOTTOM_RIGHT)
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "align: %" PRId32 " is not one of FOVEA_ALIGN_*", p.align);
  if (p.causal && p.align == FOVEA_ALIGN_NONE)
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "align: must name a corner where causal is 1");
  return FOVEA_OK;
}

bool is_zero(const fovea_tensor &t) {
  return !t.data && !t.stride[0] && !t.stride[1] && !t.stride[2] && !t.stride[3] && !t.dtype && !t.reserved;
}

// The first field of a feature that this version does not have which is not as fovea_params_init() leaves it; null: none.
const char *changed_later_field(const fovea_params &p) {
  if (p.flags != 0) return "flags";
  if (!(p.softcap == 0)) return "softcap";
  if (p.window_left != -1) return "window_left";
  if (p.window_right != -1) return "window_right";
  if (!is_zero(p.mask)) return "mask";
  if (p.alibi_slopes) return "alibi_slopes";
  if (p.sinks) return "sinks";
  if (p.seqlens_q) return "seqlens_q";
  if (p.seqlens_kv) return "seqlens_kv";
  if (p.cu_seqlens_q) return "cu_seqlens_q";
  if (p.cu_seqlens_kv) return "cu_seqlens_kv";
  if (p.score) return "score";
  if (p.score_user) return "score_user";
  if (p.score_mode != FOVEA_SCORE_NONE) return "score_mode";
  if (p.page_size != 0) return "page_size";
  if (p.block_table) return "block_table";
  if (p.block_table_stride != 0) return "block_table_stride";
  if (p.num_pages != 0) return "num_pages";
  if (!is_zero(p.k_scale)) return "k_scale";
  if (!is_zero(p.v_scale)) return "v_scale";
  return nullptr;
}

fovea_status check_later_fields(const fovea_params &p) {
  const char *name = changed_later_field(p);
  if (!name) return FOVEA_OK;
  return fail(FOVEA_ERR_UNSUPPORTED, "%s: this version supports only the value that fovea_params_init() sets", name);
}

enum class Role { kActivation, kCache };  // K and V may come quantised, in later versions

fovea_status check_dtype(const char *name, const fovea_tensor &t, Role role) {
  switch (t.dtype) {
    case FOVEA_F32: break;
    case FOVEA_I8:
    case FOVEA_Q8_0:
    case FOVEA_Q4_0:
      if (role != Role::kCache) return fail(FOVEA_ERR_INVALID_DTYPE, "%s.dtype: %" PRId32 " is only for k and v", name, t.dtype);
      [[fallthrough]];
    case FOVEA_F16:
    case FOVEA_BF16: return fail(FOVEA_ERR_UNSUPPORTED, "%s.dtype: this version supports only FOVEA_F32", name);
    default: return fail(FOVEA_ERR_INVALID_DTYPE, "%s.dtype: %" PRId32 " is not a dtype of this tensor", name, t.dtype);
  }
  if (t.reserved != 0) return fail(FOVEA_ERR_UNSUPPORTED, "%s.reserved: must be 0", name);
  return FOVEA_OK;
}

fovea_status check_dtypes(const fovea_params &p) {
  fovea_status status = check_dtype("q", p.q, Role::kActivation);
  if (!status) status = check_dtype("k", p.k, Role::kCache);
  if (!status) status = check_dtype("v", p.v, Role::kCache);
  if (!status) status = check_dtype("out", p.out, Role::kActivation);
  if (!status && p.weights.data) status = check_dtype("weights", p.weights, Role::kActivation);
  return status;
}

fovea_status check_layout(const Operand &t) {
  for (int a = 0; a < 4; ++a)
    if (t.size[a] != 1 && t.stride[a] < 0)
      return fail(FOVEA_ERR_INVALID_STRIDE, "%s[%d]: %" PRId64 " is negative", t.stride_name, a, t.stride[a]);
  if (t.is_empty()) return FOVEA_OK;
  int64_t last = 0;
  for (int a = 0; a < 4; ++a) {
    int64_t step, bytes;
    if (t.size[a] == 1) continue;
    if (!multiply(t.size[a] - 1, t.stride[a], &step) || __builtin_add_overflow(last, step, &last) ||
        !multiply(last, kElementBytes, &bytes) || bytes > INT64_MAX - kElementBytes)
      return fail(FOVEA_ERR_INVALID_STRIDE, "%s[%d]: %" PRId64 " takes the tensor beyond 2^63 bytes", t.stride_name, a,
                  t.stride[a]);
  }
  if (t.is_output && overlaps_itself(t.elements()))
    return fail(FOVEA_ERR_INVALID_STRIDE, "%s: elements of this output overlap one another", t.stride_name);
  return FOVEA_OK;
}

Tensor to_tensor(const fovea_tensor &t) { return {t.data, {t.stride[0], t.stride[1], t.stride[2], t.stride[3]}, t.dtype}; }

void drop_ignored_strides(int64_t *stride, int64_t size0, int64_t size1, int64_t size2, int64_t size3) {
  if (size0 == 1) stride[0] = 0;
  if (size1 == 1) stride[1] = 0;
  if (size2 == 1) stride[2] = 0;
  if (size3 == 1) stride[3] = 0;
}

Problem to_problem(const fovea_params &p) {
  Problem r = {};
  r.batch = p.batch, r.heads_q = p.heads_q, r.heads_kv = p.heads_kv;
  r.seq_q = p.seq_q, r.seq_kv = p.seq_kv, r.dim_k = p.dim_k, r.dim_v = p.dim_v;
  r.group = p.heads_kv ? p.heads_q / p.heads_kv : 0;
  r.q = to_tensor(p.q), r.k = to_tensor(p.k), r.v = to_tensor(p.v), r.out = to_tensor(p.out);
  if (p.weights.data) r.weights = to_tensor(p.weights);
  int64_t lse_stride[4] = {p.lse_stride[0], p.lse_stride[1], p.lse_stride[2], 0};
  drop_ignored_strides(r.q.stride, p.batch, p.heads_q, p.seq_q, p.dim_k);
  drop_ignored_strides(r.k.stride, p.batch, p.heads_kv, p.seq_kv, p.dim_k);
  drop_ignored_strides(r.v.stride, p.batch, p.heads_kv, p.seq_kv, p.dim_v);
  drop_ignored_strides(r.out.stride, p.batch, p.heads_q, p.seq_q, p.dim_v);
  drop_ignored_strides(r.weights.stride, p.batch, p.heads_q, p.seq_q, p.seq_kv);
  drop_ignored_strides(lse_stride, p.batch, p.heads_q, p.seq_q, 1);
  r.lse = p.lse;
  for (int a = 0; a < 3; ++a) r.lse_stride[a] = lse_stride[a];
  r.scale = p.scale;
  r.causal = p.causal != 0;
  r.causal_offset = r.causal && p.align == FOVEA_ALIGN_BOTTOM_RIGHT ? p.seq_kv - p.seq_q : 0;
  return r;
}

}  // namespace

fovea_status check_sizes(int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t seq_q, int64_t seq_kv, int64_t dim_k,
                         int64_t dim_v) {
  const struct {
    const char *name;
    int64_t size, most;
  } sizes[] = {{"batch", batch, INT64_MAX}, {"heads_q", heads_q, INT64_MAX}, {"heads_kv", heads_kv, INT64_MAX},
               {"seq_q", seq_q, INT64_MAX}, {"seq_kv", seq_kv, INT64_MAX},   {"dim_k", dim_k, kMaxDim},
               {"dim_v", dim_v, kMaxDim}};
  for (const auto &s : sizes) {
    if (s.size < 0) return fail(FOVEA_ERR_INVALID_SIZE, "%s: %" PRId64 " is negative", s.name, s.size);
    if (s.size > s.most) return fail(FOVEA_ERR_INVALID_SIZE, "%s: %" PRId64 " is above %" PRId64, s.name, s.size, s.most);
  }
  if (heads_kv == 0 ? heads_q != 0 : heads_q % heads_kv != 0)
    return fail(FOVEA_ERR_INVALID_SIZE, "heads_q: %" PRId64 " is not a multiple of heads_kv (%" PRId64 ")", heads_q, heads_kv);
  const int64_t scores[4] = {batch, heads_q, seq_q, seq_kv};
  if (!is_countable(scores)) return fail(FOVEA_ERR_INVALID_SIZE, "batch, heads_q, seq_q, seq_kv: their product is too large");
  return FOVEA_OK;
}

fovea_status check_params(const fovea_params *p, Problem *problem) {
  fovea_status status = check_struct(p);
  if (!status) status = check_sizes(p->batch, p->heads_q, p->heads_kv, p->seq_q, p->seq_kv, p->dim_k, p->dim_v);
  if (!status) status = check_scores(*p);
  if (!status) status = check_later_fields(*p);
  if (!status) status = check_dtypes(*p);
  if (status) return status;
  *problem = to_problem(*p);
  const Operands operands(*problem);
  for (const Operand &t : operands)
    if (!is_countable(t.size)) return fail(FOVEA_ERR_INVALID_SIZE, "%s: its number of elements is too large", t.name);
  for (const Operand &t : operands)
    if ((status = check_layout(t))) return status;
  return FOVEA_OK;
}

fovea_status check_data(const Problem &problem) {
  const Operands operands(problem);
  for (const Operand &t : operands) {
    if (t.is_empty()) continue;
    if (!t.data) return fail(FOVEA_ERR_NULL_POINTER, "%s: must not be NULL", t.name);
    const Elements e = t.elements();
    if (e.address % kElementBytes)
      return fail(FOVEA_ERR_INVALID_ARGUMENT, "%s: its address is not a multiple of the element size", t.name);
    uintptr_t end = e.address + kElementBytes - 1;
    for (int a = 0; a < 4; ++a)
      if (__builtin_add_overflow(end, uintptr_t((e.size[a] - 1) * e.stride[a] * kElementBytes), &end))
        return fail(FOVEA_ERR_INVALID_STRIDE, "%s: reaches beyond the end of memory", t.stride_name);
  }
  for (const Operand *a = operands.begin(); a != operands.end() && a->is_output; ++a)
    for (const Operand *b = a + 1; b != operands.end(); ++b)
      if (!a->is_empty() && !b->is_empty() && overlap(a->elements(), b->elements()))
        return fail(FOVEA_ERR_OVERLAP, "%s: overlaps %s", a->name, b->name);
  return FOVEA_OK;
}

fovea_status check_workspace(const Problem &problem, const void *workspace, int64_t bytes) {
  if (bytes == 0) return FOVEA_OK;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(workspace), first = begin / kElementBytes;
  const uintptr_t last = (begin + uintptr_t(bytes) - 1) / kElementBytes;
  const Elements used = {first * kElementBytes, {1, 1, 1, int64_t(last - first + 1)}, {0, 0, 0, 1}};
  for (const Operand &t : Operands(problem))
    if (!t.is_empty() && overlap(used, t.elements())) return fail(FOVEA_ERR_OVERLAP, "workspace: overlaps %s", t.name);
  return FOVEA_OK;
}

}  // namespace fovea
