// fovea.kv_append(): new tokens into a key-value cache.
#include <algorithm>

#include "call.h"
#include "error.h"
#include "without_gil.h"

namespace fovea_python {
namespace {

// One of keys and values: the cache, its scales, the new tokens.
struct Side {
  Array cache_array = {}, scale_array = {}, added_array = {};
  Tensor cache = {}, added = {};
  fovea_tensor scale = {};
};

struct SideNames {
  const char *cache, *added, *scale, *type;
};

Side read_side(const SideNames &names, nb::handle cache, nb::handle added, nb::handle scale, nb::handle type, Layout layout) {
  Side side;
  if (cache.is_none() != added.is_none())
    fail(FOVEA_ERR_NULL_POINTER, "%s: must be given where %s is", cache.is_none() ? names.cache : names.added,
         cache.is_none() ? names.added : names.cache);
  if (cache.is_none()) return side;
  side.cache_array = view(names.cache, cache);
  require_writable(names.cache, side.cache_array);
  side.cache = cache_tensor(names.cache, side.cache_array, layout, names.type, type);
  side.added_array = view(names.added, added);
  side.added = activation_tensor(names.added, side.added_array, layout);
  if (!scale.is_none()) {
    side.scale_array = view(names.scale, scale);
    require_writable(names.scale, side.scale_array);
    const Tensor scales = scale_tensor(names.scale, side.scale_array, layout, side.cache);
    for (int a = 0; a < 3; ++a) require_size(names.scale, "shape", scales.size[a], "that of its cache", side.cache.size[a]);
    side.scale = scales.t;
  } else if (side.cache.t.dtype == FOVEA_I8) {
    fail(FOVEA_ERR_NULL_POINTER, "%s: must be given where the cache is of int8", names.scale);
  }
  return side;
}

}  // namespace

void kv_append(const AppendArguments &a) {
  const Context &context = context_or_standard(a.context);
  const Layout layout = layout_named(a.layout);
  const SideNames k_names = {"k", "k_new", "k_scale", "k_type"}, v_names = {"v", "v_new", "v_scale", "v_type"};
  const Side k = read_side(k_names, a.k, a.k_new, a.k_scale, a.k_type, layout),
             v = read_side(v_names, a.v, a.v_new, a.v_scale, a.v_type, layout);
  const bool has_k = !a.k.is_none(), has_v = !a.v.is_none(), paged = !a.block_table.is_none();
  if (!has_k && !has_v) fail(FOVEA_ERR_NULL_POINTER, "k: must be given where v is not");
  const Side &one = has_k ? k : v;
  const char *one_cache = has_k ? "k" : "v", *one_added = has_k ? "k_new" : "v_new";
  if (has_k && has_v) {
    constexpr const char *kAxes[] = {"batch size", "number of heads", "number of tokens"};
    for (int axis = 0; axis < 3; ++axis) {
      require_size("v_new", kAxes[axis], v.added.size[axis], "that of k_new", k.added.size[axis]);
      require_size("v",
                   axis == 0 && paged ? "number of pages"
                   : axis == 2        ? "capacity"
                                      : kAxes[axis],
                   v.cache.size[axis], "that of k", k.cache.size[axis]);
    }
  }
  const int64_t batch = one.added.size[0], heads = one.cache.size[1], tokens = one.added.size[2];
  require_size(one_added, "number of heads", one.added.size[1], "that of the cache", heads);
  if (has_k) require_size("k_new", "dim", k.added.size[3], "that of k", k.cache.size[3]);
  if (has_v) require_size("v_new", "dim", v.added.size[3], "that of v", v.cache.size[3]);

  int64_t capacity = one.cache.size[2];
  Numbers<int32_t> block_table;
  if (paged) {
    if (one.cache.ndim != 4)
      fail(FOVEA_ERR_INVALID_SIZE, "%s: has %d axes, but pages are [page, head, slot, dim]", one_cache, one.cache.ndim);
    if (capacity < 1 || capacity > INT32_MAX)
      fail(FOVEA_ERR_INVALID_SIZE, "%s: pages of %lld slots", one_cache, static_cast<long long>(capacity));
    block_table = integers("block_table", a.block_table, 2);
    require_size("block_table", "number of rows", block_table.shape[0], "the batch size", batch);
    if (__builtin_mul_overflow(one.cache.size[2], block_table.shape[1], &capacity))
      fail(FOVEA_ERR_INVALID_SIZE, "block_table: its pages hold too many tokens");
  } else {
    require_size(one_cache, "batch size", one.cache.size[0], "that of the new tokens", batch);
  }

  Numbers<int32_t> start = integers("start", a.start, 1), count;
  require_size("start", "length", start.shape[0], "the batch size", batch);
  if (a.count.is_none()) {
    if (tokens > INT32_MAX) fail(FOVEA_ERR_INVALID_SIZE, "%s: too many tokens", one_added);
    count.copy.assign(size_t(std::max<int64_t>(batch, 1)), int32_t(tokens));
    count.data = count.copy.data();
  } else {
    count = integers("count", a.count, 1);
    require_size("count", "length", count.shape[0], "the batch size", batch);
    for (int64_t b = 0; b < batch; ++b)
      if (count.data[b] > tokens)
        fail(FOVEA_ERR_INVALID_ARGUMENT, "count[%lld]: %d is more than the new tokens, %lld", static_cast<long long>(b),
             count.data[b], static_cast<long long>(tokens));
  }

  fovea_params cache;
  check(fovea_params_init(&cache, sizeof cache, batch, heads, heads, 0, capacity, k.cache.size[3], v.cache.size[3]));
  if (has_k) cache.k = k.cache.t, cache.k_scale = k.scale;
  if (has_v) cache.v = v.cache.t, cache.v_scale = v.scale;
  if (paged) {
    cache.page_size = int32_t(one.cache.size[2]);
    cache.block_table = block_table.data;
    cache.block_table_stride = block_table.shape[0] > 1 ? block_table.row_stride : block_table.shape[1];
    cache.num_pages = one.cache.size[0];
  }
  const fovea_tensor absent = {nullptr, {0, 0, 0, 0}, FOVEA_F32, 0};
  // What an element takes, in multiply-adds of attention: as many as the library counts for its own threads.
  constexpr double kMultiplyAddsPerElement = 50;
  const double elements = double(batch) * double(heads) * double(tokens) * double(cache.dim_k + cache.dim_v);
  fovea_status status;
  {
    const WithoutGil without_gil;
    status = fovea_kv_append(context.for_work(elements * kMultiplyAddsPerElement), &cache, has_k ? &k.added.t : &absent,
                             has_v ? &v.added.t : &absent, start.data, count.data);
  }
  check(status);
}

}  // namespace fovea_python
