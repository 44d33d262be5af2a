#include <math.h>

#include "api/check.h"
#include "api/error.h"
#include "fovea/fovea.h"
#include "run/float_environment.h"

namespace {

// Dense [batch, head, seq, dim]; false where a stride does not fit 64 bits.
bool init_dense(fovea_tensor *t, int64_t heads, int64_t seq, int64_t dim) {
  t->dtype = FOVEA_F32;
  t->stride[3] = 1;
  t->stride[2] = dim;
  return !__builtin_mul_overflow(seq, t->stride[2], &t->stride[1]) && !__builtin_mul_overflow(heads, t->stride[1], &t->stride[0]);
}

}  // namespace

fovea_status fovea_params_init(fovea_params *p, size_t struct_size, int64_t batch, int64_t heads_q, int64_t heads_kv,
                               int64_t seq_q, int64_t seq_kv, int64_t dim_k, int64_t dim_v) {
  using fovea::fail;
  if (!p) return fail(FOVEA_ERR_NULL_POINTER, "p: must not be NULL");
  if (struct_size != sizeof *p)
    return fail(FOVEA_ERR_STRUCT_SIZE, "struct_size: %zu is not that of a version known here (%zu)", struct_size, sizeof *p);
  const fovea_status status = fovea::check_sizes(batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v);
  if (status) return status;

  fovea_params r = {};
  r.struct_size = sizeof r;
  r.batch = batch, r.heads_q = heads_q, r.heads_kv = heads_kv;
  r.seq_q = seq_q, r.seq_kv = seq_kv, r.dim_k = dim_k, r.dim_v = dim_v;
  if (!init_dense(&r.q, heads_q, seq_q, dim_k) || !init_dense(&r.k, heads_kv, seq_kv, dim_k) ||
      !init_dense(&r.v, heads_kv, seq_kv, dim_v) || !init_dense(&r.out, heads_q, seq_q, dim_v) ||
      !init_dense(&r.weights, heads_q, seq_q, seq_kv) || __builtin_mul_overflow(heads_q, seq_q, &r.lse_stride[0]))
    return fail(FOVEA_ERR_INVALID_SIZE, "heads, seq, dim: the product is too large");
  r.lse_stride[1] = seq_q;
  r.lse_stride[2] = 1;
  const fovea::FloatEnvironment saved = fovea::enter_float_environment();  // the same bits whatever the caller's rounding
  r.scale = dim_k ? float(1 / sqrt(double(dim_k))) : 1;
  fovea::leave_float_environment(saved);
  r.window_left = r.window_right = -1;
  *p = r;
  return FOVEA_OK;
}
