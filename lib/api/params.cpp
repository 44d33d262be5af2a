#include <math.h>

#include "api/check.h"
#include "api/error.h"
#include "api/operands.h"
#include "fovea/fovea.h"
#include "run/float_environment.h"

namespace {

int64_t multiply(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

// Dense [batch, head, seq, dim]. A stride that does not fit 64 bits, of a tensor without elements, is INT64_MAX.
fovea_status init_dense(const char *name, fovea_tensor *t, int64_t batch, int64_t heads, int64_t seq, int64_t dim) {
  const int64_t size[4] = {batch, heads, seq, dim};
  if (!fovea::is_countable(size, sizeof(float)))
    return fovea::fail(FOVEA_ERR_INVALID_SIZE, "%s: its number of elements is too large", name);
  t->dtype = FOVEA_F32;
  t->stride[3] = 1;
  for (int a = 2; a >= 0; --a) t->stride[a] = multiply(t->stride[a + 1], size[a + 1]);
  return FOVEA_OK;
}

}  // namespace

fovea_status fovea_params_init(fovea_params *p, size_t struct_size, int64_t batch, int64_t heads_q, int64_t heads_kv,
                               int64_t seq_q, int64_t seq_kv, int64_t dim_k, int64_t dim_v) {
  using fovea::fail;
  if (!p) return fail(FOVEA_ERR_NULL_POINTER, "p: must not be NULL");
  if (struct_size != sizeof *p)
    return fail(FOVEA_ERR_STRUCT_SIZE, "struct_size: %zu is not that of a version known here (%zu)", struct_size, sizeof *p);
  fovea_params r = {};
  r.struct_size = sizeof r;
  r.batch = batch, r.heads_q = heads_q, r.heads_kv = heads_kv;
  r.seq_q = seq_q, r.seq_kv = seq_kv, r.dim_k = dim_k, r.dim_v = dim_v;
  fovea_status status = fovea::check_sizes(batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v);
  if (!status) status = init_dense("q", &r.q, batch, heads_q, seq_q, dim_k);
  if (!status) status = init_dense("k", &r.k, batch, heads_kv, seq_kv, dim_k);
  if (!status) status = init_dense("v", &r.v, batch, heads_kv, seq_kv, dim_v);
  if (!status) status = init_dense("out", &r.out, batch, heads_q, seq_q, dim_v);
  // Of one entry: weights of all are counted where they are wanted. Packed batches, whose entries share the tokens, have none.
  if (!status) status = init_dense("weights", &r.weights, batch ? 1 : 0, heads_q, seq_q, seq_kv);
  if (status) return status;
  for (int a = 0; a < 4; ++a) r.mask.stride[a] = r.weights.stride[a];
  r.lse_stride[0] = multiply(heads_q, seq_q);
  r.lse_stride[1] = seq_q;
  r.lse_stride[2] = 1;
  const fovea::FloatEnvironment saved = fovea::enter_float_environment();  // the same bits whatever the caller's rounding
  r.scale = dim_k ? float(1 / sqrt(double(dim_k))) : 1;
  fovea::leave_float_environment(saved);
  r.window_left = r.window_right = -1;
  *p = r;
  return FOVEA_OK;
}
