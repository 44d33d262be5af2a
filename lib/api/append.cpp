// fovea_kv_append(): new tokens go into a key-value cache, in the types of the cache.
#include <inttypes.h>

#include "api/check.h"
#include "api/context.h"
#include "api/elements.h"
#include "api/error.h"
#include "api/operands.h"
#include "api/quantise.h"
#include "core/dtype.h"
#include "fovea/fovea.h"
#include "run/float_environment.h"

namespace fovea {
namespace {

// K or V: the cache, its scales, and the new tokens.
struct Side {
  const char *name, *stride_name, *scale_name, *scale_stride_name, *new_name, *new_stride_name, *dim_name;
  const fovea_tensor *cache, *scale, *added;
  int64_t dim;
};

struct Append {
  Side sides[2];
  const fovea_params *cache;
  const int32_t *start, *count;
  int64_t most;  // tokens that some entry gets
};

constexpr int64_t kTokensPerTask = 16;

int64_t tasks_of_head(const Append &a) { return (a.most + kTokensPerTask - 1) / kTokensPerTask; }

fovea_status check_sizes_of(const fovea_params *p) {
  if (!p) return fail(FOVEA_ERR_NULL_POINTER, "cache: must not be NULL");
  fovea_status status = check_struct_size("cache.", *p);
  if (status) return status;
  if (p->flags != 0) return fail(FOVEA_ERR_UNSUPPORTED, "cache.flags: %#" PRIx32 " has bits unknown to this version", p->flags);
  status = check_sizes(p->batch, 0, p->heads_kv, 0, p->seq_kv, p->dim_k, p->dim_v);
  if (status) return status;
  if (p->cu_seqlens_kv) return fail(FOVEA_ERR_INVALID_ARGUMENT, "cu_seqlens_kv: must be NULL: segments have no room to grow");
  return check_pages(*p);
}

fovea_status check_dtypes(const Side &s) {
  const fovea_status status = check_cache(s.name, *s.cache, s.dim_name, s.dim, s.scale_name, *s.scale);
  if (status) return status;
  if (s.cache->dtype == FOVEA_I8 && !s.scale->data)
    return fail(FOVEA_ERR_NULL_POINTER, "%s: must not be NULL where %s.dtype is FOVEA_I8", s.scale_name, s.name);
  if (!is_float_type(s.added->dtype))
    return fail(FOVEA_ERR_INVALID_DTYPE, "%s.dtype: %" PRId32 " is not a dtype of this tensor", s.new_name, s.added->dtype);
  if (s.added->reserved != 0) return fail(FOVEA_ERR_UNSUPPORTED, "%s.reserved: must be 0", s.new_name);
  return FOVEA_OK;
}

// Every entry's tokens fit its capacity, and the pages that they go to exist.
fovea_status check_tokens(const fovea_params &p, const int32_t *start, const int32_t *count, int64_t *most) {
  *most = 0;
  fovea_status status = check_address(array_operand("start", start, p.batch));
  if (!status) status = check_address(array_operand("count", count, p.batch));
  if (!status && p.page_size) status = check_address(array_operand("block_table", p.block_table, p.batch * p.block_table_stride));
  if (status) return status;
  const BlockTable table = {p.block_table, p.block_table_stride, p.page_size, p.num_pages};
  for (int64_t b = 0; b < p.batch; ++b) {
    if (count[b] < 0) return fail(FOVEA_ERR_INVALID_ARGUMENT, "count[%" PRId64 "]: %" PRId32 " is negative", b, count[b]);
    if (count[b] == 0) continue;
    if (start[b] < 0) return fail(FOVEA_ERR_INVALID_ARGUMENT, "start[%" PRId64 "]: %" PRId32 " is negative", b, start[b]);
    const int64_t end = int64_t{start[b]} + count[b];
    if (end > p.seq_kv)
      return fail(FOVEA_ERR_INVALID_ARGUMENT,
                  "count[%" PRId64 "]: %" PRId32 " tokens behind %" PRId32 " are more than the capacity, seq_kv = %" PRId64, b,
                  count[b], start[b], p.seq_kv);
    if (count[b] > *most) *most = count[b];
    if (p.page_size) status = check_pages_of_keys(table, b, end, start[b], end);
    if (status) return status;
  }
  return FOVEA_OK;
}

// What is read or written, outputs first.
class Memory {
 public:
  fovea_status add(const Operand &t) {
    fovea_status status = check_countable(t);
    if (!status) status = check_layout(t);
    if (!status) status = check_address(t);
    list_[count_++] = t;
    return status;
  }

  const Operand *begin() const { return list_; }
  const Operand *end() const { return list_ + count_; }

 private:
  Operand list_[9];  // k, v and their scales; new tokens of both, start, count, block_table
  int count_ = 0;
};

fovea_status check_memory(const Append &a) {
  const fovea_params &p = *a.cache;
  const int64_t entries = p.page_size ? p.num_pages : p.batch, tokens = p.page_size ? p.page_size : p.seq_kv;
  const int64_t rows[4] = {p.batch, p.heads_kv, a.most, 1};
  if (!is_countable(rows, sizeof(float)))
    return fail(FOVEA_ERR_INVALID_SIZE, "batch, heads_kv, count: their product is too large");
  Memory memory;
  fovea_status status = FOVEA_OK;
  const auto add = [&](const char *name, const char *stride_name, const fovea_tensor &t, int64_t size0, int64_t size2,
                       int64_t size3, bool is_output) {
    if (!status) status = memory.add(tensor_operand(name, stride_name, to_tensor(t), size0, p.heads_kv, size2, size3, is_output));
  };
  for (const Side &s : a.sides) {
    add(s.name, s.stride_name, *s.cache, entries, tokens, s.dim, true);
    if (s.cache->dtype == FOVEA_I8) add(s.scale_name, s.scale_stride_name, *s.scale, entries, tokens, 1, true);
  }
  for (const Side &s : a.sides) add(s.new_name, s.new_stride_name, *s.added, p.batch, a.most, s.dim, false);
  if (!status) status = memory.add(array_operand("start", a.start, p.batch));
  if (!status) status = memory.add(array_operand("count", a.count, p.batch));
  if (!status && p.page_size) status = memory.add(array_operand("block_table", p.block_table, p.batch * p.block_table_stride));
  return status ? status : check_apart(memory.begin(), memory.end());
}

int64_t index_of(const fovea_tensor &t, int64_t entry, int64_t head, int64_t token) {
  return entry * t.stride[0] + head * t.stride[1] + token * t.stride[2];
}

// Elements of a row that are floats at a time, on the stack: 1 KiB. Whole blocks.
constexpr int64_t kDims = 256;

// Calls use(floats, first dim, count) for a row of new elements, part by part.
template <class Use>
void for_each_part(const Side &s, const char *row, Use use) {
  float x[kDims];
  for (int64_t dim = 0; dim < s.dim; dim += kDims) {
    const int64_t n = s.dim - dim < kDims ? s.dim - dim : kDims;
    load_floats(row + dim * s.added->stride[3] * format_of(s.added->dtype).bytes, s.added->dtype, s.added->stride[3], n, x);
    use(x, dim, n);
  }
}

// Token t of the new ones of entry b becomes token `slot` of a batch entry or page of the cache.
void write_row(const Side &s, int64_t b, int64_t head, int64_t t, int64_t entry, int64_t slot) {
  const char *from = static_cast<const char *>(s.added->data) + index_of(*s.added, b, head, t) * format_of(s.added->dtype).bytes;
  const Format format = format_of(s.cache->dtype);
  char *to = static_cast<char *>(s.cache->data) + index_of(*s.cache, entry, head, slot) * format.bytes;
  const int64_t stride = s.cache->stride[3];
  switch (s.cache->dtype) {
    case FOVEA_I8: {
      uint32_t largest = 0;
      for_each_part(s, from, [&](const float *x, int64_t, int64_t n) { largest = largest_magnitude(x, n, largest); });
      const float scale = scale_i8(largest);
      static_cast<float *>(s.scale->data)[index_of(*s.scale, entry, head, slot)] = scale;
      for_each_part(s, from,
                    [&](const float *x, int64_t dim, int64_t n) { quantise_i8(x, n, scale, to + dim * stride, stride); });
      break;
    }
    case FOVEA_Q8_0:
    case FOVEA_Q4_0: {
      const auto quantise = s.cache->dtype == FOVEA_Q8_0 ? quantise_q8_0 : quantise_q4_0;
      for_each_part(s, from, [&](const float *x, int64_t dim, int64_t n) {
        for (int64_t i = 0; i < n; i += kBlockElements) quantise(x + i, to + (dim + i) / kBlockElements * format.bytes);
      });
      break;
    }
    default: convert_elements(from, s.added->dtype, s.added->stride[3], s.dim, to, s.cache->dtype, stride);
  }
}

void append_task(void *arg, int64_t i, int32_t) {
  const Append &a = *static_cast<const Append *>(arg);
  const fovea_params &p = *a.cache;
  const FloatEnvironment saved = enter_float_environment();
  const int64_t parts = tasks_of_head(a), head = i / parts % p.heads_kv, b = i / parts / p.heads_kv;
  const int64_t begin = i % parts * kTokensPerTask,
                end = begin + kTokensPerTask < a.count[b] ? begin + kTokensPerTask : a.count[b];
  for (int64_t t = begin; t < end; ++t) {
    int64_t entry = b, slot = a.start[b] + t;
    if (p.page_size) {
      entry = p.block_table[b * p.block_table_stride + slot / p.page_size];
      slot %= p.page_size;
    }
    for (const Side &s : a.sides)
      if (s.dim) write_row(s, b, head, t, entry, slot);
  }
  leave_float_environment(saved);
}

// What an element takes in the multiply-adds of a kernel that worth_waking_for counts: 1 ns beside 50 a ns.
constexpr int64_t kMultiplyAddsPerElement = 50;

void run_append(Append *a, const Executor &given) {
  const fovea_params &p = *a->cache;
  const int64_t tasks = p.batch * p.heads_kv * tasks_of_head(*a);
  if (tasks == 0) return;
  int64_t tokens = 0;
  for (int64_t b = 0; b < p.batch; ++b) tokens += a->count[b];
  const bool is_small = tokens * p.heads_kv * (p.dim_k + p.dim_v) < given.worth_waking_for / kMultiplyAddsPerElement;
  const Executor executor = is_small ? serial_executor() : given;
  executor.parallel_for(executor.user, append_task, a, tasks);
}

}  // namespace
}  // namespace fovea

fovea_status fovea_kv_append(const fovea_context *c, const fovea_params *cache, const fovea_tensor *k_new,
                             const fovea_tensor *v_new, const int32_t *start, const int32_t *count) {
  using namespace fovea;
  if (!c) return fail(FOVEA_ERR_NULL_POINTER, "context: must not be NULL");
  fovea_status status = check_sizes_of(cache);
  if (status) return status;
  if (!k_new) return fail(FOVEA_ERR_NULL_POINTER, "k_new: must not be NULL");
  if (!v_new) return fail(FOVEA_ERR_NULL_POINTER, "v_new: must not be NULL");
  Append append = {{{"k", "k.stride", "k_scale", "k_scale.stride", "k_new", "k_new.stride", "dim_k", &cache->k, &cache->k_scale,
                     k_new, cache->dim_k},
                    {"v", "v.stride", "v_scale", "v_scale.stride", "v_new", "v_new.stride", "dim_v", &cache->v, &cache->v_scale,
                     v_new, cache->dim_v}},
                   cache,
                   start,
                   count,
                   0};
  for (const Side &s : append.sides)
    if (!status) status = check_dtypes(s);
  if (!status) status = check_tokens(*cache, start, count, &append.most);
  if (!status) status = check_memory(append);
  if (!status) run_append(&append, c->executor);
  return status;
}
