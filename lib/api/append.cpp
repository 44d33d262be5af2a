// fovea_kv_append(): new tokens go into a key-value cache, in the types of the cache.
#include <inttypes.h>

#include "api/check.h"
#include "api/context.h"
#include "api/elements.h"
#include "api/error.h"
#include "api/operands.h"
#include "api/quantise.h"
#include "fovea/fovea.h"
#include "run/float_environment.h"

namespace fovea {
namespace {

// What elements of a cache lie in: blocks of one or more, of so many bytes, made of units that are aligned.
struct Format {
  int64_t elements, bytes, unit;
};

Format format_of(int32_t dtype) {
  switch (dtype) {
    case FOVEA_F16:
    case FOVEA_BF16: return {1, 2, 2};
    case FOVEA_I8: return {1, 1, 1};
    case FOVEA_Q8_0: return {kBlockElements, kBytesQ8_0, sizeof(uint16_t)};
    case FOVEA_Q4_0: return {kBlockElements, kBytesQ4_0, sizeof(uint16_t)};
    default: return {1, 4, 4};
  }
}

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

fovea_status check_cache(const fovea_params *p) {
  if (!p) return fail(FOVEA_ERR_NULL_POINTER, "cache: must not be NULL");
  if (p->struct_size != sizeof *p)
    return fail(FOVEA_ERR_STRUCT_SIZE, "cache.struct_size: %" PRIu32 " is not that of a version known here (%zu)", p->struct_size,
                sizeof *p);
  if (p->flags != 0) return fail(FOVEA_ERR_UNSUPPORTED, "cache.flags: %#" PRIx32 " has bits unknown to this version", p->flags);
  const fovea_status status = check_sizes(p->batch, 0, p->heads_kv, 0, p->seq_kv, p->dim_k, p->dim_v);
  if (status) return status;
  if (p->cu_seqlens_kv) return fail(FOVEA_ERR_INVALID_ARGUMENT, "cu_seqlens_kv: must be NULL: segments have no room to grow");
  return check_pages(*p);
}

fovea_status check_dtypes(const Side &s) {
  switch (s.cache->dtype) {
    case FOVEA_F32:
    case FOVEA_F16:
    case FOVEA_BF16:
    case FOVEA_I8: break;
    case FOVEA_Q8_0:
    case FOVEA_Q4_0:
      if (s.dim % kBlockElements == 0) break;
      return fail(FOVEA_ERR_INVALID_SIZE, "%s: %" PRId64 " is not a multiple of the %" PRId64 " elements of a block of %s",
                  s.dim_name, s.dim, kBlockElements, s.name);
    default: return fail(FOVEA_ERR_INVALID_DTYPE, "%s.dtype: %" PRId32 " is not a dtype of this tensor", s.name, s.cache->dtype);
  }
  if (!is_float_type(s.added->dtype))
    return fail(FOVEA_ERR_INVALID_DTYPE, "%s.dtype: %" PRId32 " is not a dtype of this tensor", s.new_name, s.added->dtype);
  if (s.cache->reserved != 0) return fail(FOVEA_ERR_UNSUPPORTED, "%s.reserved: must be 0", s.name);
  if (s.added->reserved != 0) return fail(FOVEA_ERR_UNSUPPORTED, "%s.reserved: must be 0", s.new_name);
  if (s.cache->dtype != FOVEA_I8)
    return s.scale->data ? fail(FOVEA_ERR_INVALID_ARGUMENT, "%s: must be NULL, %s is not FOVEA_I8", s.scale_name, s.name)
                         : FOVEA_OK;
  if (!s.scale->data) return fail(FOVEA_ERR_NULL_POINTER, "%s: must not be NULL where %s is FOVEA_I8", s.scale_name, s.name);
  if (s.scale->dtype != FOVEA_F32)
    return fail(FOVEA_ERR_INVALID_DTYPE, "%s.dtype: %" PRId32 " is not FOVEA_F32", s.scale_name, s.scale->dtype);
  if (s.scale->reserved != 0) return fail(FOVEA_ERR_UNSUPPORTED, "%s.reserved: must be 0", s.scale_name);
  return FOVEA_OK;
}

Operand array(const char *name, const int32_t *data, int64_t size) {
  return {name, name, data, sizeof(int32_t), {size, 1, 1, 1}, {1, 0, 0, 0}, false};
}

// Every entry's tokens fit its capacity, and the pages that they go to exist.
fovea_status check_tokens(const fovea_params &p, const int32_t *start, const int32_t *count, int64_t *most) {
  *most = 0;
  fovea_status status = check_address(array("start", start, p.batch));
  if (!status) status = check_address(array("count", count, p.batch));
  if (!status && p.page_size) status = check_address(array("block_table", p.block_table, p.batch * p.block_table_stride));
  if (status) return status;
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
    if (!p.page_size) continue;
    if ((end - 1) / p.page_size >= p.block_table_stride)
      return fail(FOVEA_ERR_INVALID_ARGUMENT,
                  "block_table_stride: %" PRId64 " pages of %" PRId32 " keys do not hold the %" PRId64 " of batch entry %" PRId64,
                  p.block_table_stride, p.page_size, end, b);
    for (int64_t column = start[b] / p.page_size; column <= (end - 1) / p.page_size; ++column) {
      const int32_t page = p.block_table[b * p.block_table_stride + column];
      if (page < 0 || page >= p.num_pages)
        return fail(FOVEA_ERR_INVALID_ARGUMENT,
                    "block_table: %" PRId32 " at batch entry %" PRId64 ", column %" PRId64 " is not one of %" PRId64 " pages",
                    page, b, column, p.num_pages);
    }
  }
  return FOVEA_OK;
}

// What is read or written, outputs first.
class Memory {
 public:
  fovea_status add(const Operand &t) {
    if (!is_countable(t.size, t.element_bytes))
      return fail(FOVEA_ERR_INVALID_SIZE, "%s: its number of elements is too large", t.name);
    fovea_status status = check_layout(t);
    if (!status) status = check_address(t);
    list_[count_++] = t;
    return status;
  }

  fovea_status check_apart() const {
    for (int i = 0; i < count_ && list_[i].is_output; ++i)
      for (int j = i + 1; j < count_; ++j)
        if (overlap(list_[i], list_[j])) return fail(FOVEA_ERR_OVERLAP, "%s: overlaps %s", list_[i].name, list_[j].name);
    return FOVEA_OK;
  }

 private:
  Operand list_[9];  // k, v and their scales; new tokens of both, start, count, block_table
  int count_ = 0;
};

Operand tensor(const char *name, const char *stride_name, const fovea_tensor &t, int64_t bytes, int64_t entries, int64_t heads,
               int64_t tokens, int64_t dim, bool is_output) {
  Operand r = {name, stride_name, t.data, bytes, {entries, heads, tokens, dim}, {}, is_output};
  for (int a = 0; a < 4; ++a) r.stride[a] = r.size[a] == 1 ? 0 : t.stride[a];
  return r;
}

// In blocks of several units the strides count blocks; the innermost is 1, so that all units of a row are one axis.
fovea_status add_cache(Memory *memory, const Side &s, int64_t entries, int64_t heads, int64_t tokens) {
  const Format format = format_of(s.cache->dtype);
  const int64_t units = format.bytes / format.unit, blocks = s.dim / format.elements;
  Operand t = tensor(s.name, s.stride_name, *s.cache, format.bytes, entries, heads, tokens, blocks, units == 1);
  if (units > 1 && !t.is_empty()) {
    if (blocks > 1 && t.stride[3] != 1)
      return fail(FOVEA_ERR_INVALID_STRIDE, "%s[3]: %" PRId64 " is not 1, blocks of a row must lie side by side", s.stride_name,
                  t.stride[3]);
    const fovea_status status = check_layout(t);
    if (status) return status;
    for (int a = 0; a < 3; ++a) t.stride[a] *= units;
    t.size[3] *= units;
    t.stride[3] = 1;
    t.element_bytes = format.unit;
    t.is_output = true;
  }
  return memory->add(t);
}

fovea_status check_memory(const Append &a) {
  const fovea_params &p = *a.cache;
  const int64_t entries = p.page_size ? p.num_pages : p.batch, tokens = p.page_size ? p.page_size : p.seq_kv, heads = p.heads_kv;
  const int64_t rows[4] = {p.batch, heads, a.most, 1};
  if (!is_countable(rows, sizeof(float)))
    return fail(FOVEA_ERR_INVALID_SIZE, "batch, heads_kv, count: their product is too large");
  Memory memory;
  fovea_status status = FOVEA_OK;
  for (const Side &s : a.sides) {
    if (!status) status = add_cache(&memory, s, entries, heads, tokens);
    if (!status && s.cache->dtype == FOVEA_I8)
      status = memory.add(tensor(s.scale_name, s.scale_stride_name, *s.scale, sizeof(float), entries, heads, tokens, 1, true));
  }
  for (const Side &s : a.sides)
    if (!status)
      status = memory.add(
          tensor(s.new_name, s.new_stride_name, *s.added, element_bytes(s.added->dtype), p.batch, heads, a.most, s.dim, false));
  if (!status) status = memory.add(array("start", a.start, p.batch));
  if (!status) status = memory.add(array("count", a.count, p.batch));
  if (!status && p.page_size) status = memory.add(array("block_table", p.block_table, p.batch * p.block_table_stride));
  return status ? status : memory.check_apart();
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
    load_floats(row + dim * s.added->stride[3] * element_bytes(s.added->dtype), s.added->dtype, s.added->stride[3], n, x);
    use(x, dim, n);
  }
}

// Token t of the new ones of entry b becomes token `slot` of a batch entry or page of the cache.
void write_row(const Side &s, int64_t b, int64_t head, int64_t t, int64_t entry, int64_t slot) {
  const char *from = static_cast<const char *>(s.added->data) + index_of(*s.added, b, head, t) * element_bytes(s.added->dtype);
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
  fovea_status status = check_cache(cache);
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
