#include "plan/plan.h"

namespace fovea {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kAlignment = 64;  // a cache line: no two workers write to the same one

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
int64_t saturated_sum(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }
int64_t saturated_product(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}
int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

bool has_window(const Problem &problem) { return problem.window_left != kUnbounded || problem.window_right != kUnbounded; }

// Rows of a task: as many panels as share a block of keys well, fewer where that would leave workers without tasks.
int64_t choose_rows_per_block(const Problem &problem, const ForwardKernel &kernel, int64_t heads, int32_t workers) {
  const Tuning &tuning = kernel.tuning;
  const int64_t rows = problem.seq_q * problem.group;
  const int64_t panel_rows = has_window(problem) ? tuning.window_panel_rows : tuning.panel_rows;
  const int64_t row_bytes = (problem.dim_k + problem.dim_v) * kFloatBytes;
  const int64_t in_cache = clamp(tuning.task_bytes / (panel_rows * (row_bytes + 1)), 1, tuning.group_panels);
  const int64_t wanted_blocks = workers == 1 ? 1 : ceil_div(tuning.tasks_per_worker * workers, heads);
  const int64_t panels = clamp(ceil_div(rows, panel_rows) / wanted_blocks, 1, in_cache);
  const int64_t blocks = ceil_div(rows, panels * panel_rows);
  return round_up(ceil_div(rows, blocks), kernel.shape.row_unit);
}

// What a worker may use for dims up to 256, as fovea.h promises. Where stored partials do not fit into it beside scratch, there are rows
// enough to keep the workers busy without splitting keys.
int64_t most_bytes_per_worker(const Problem &problem) {
  const int64_t dim = problem.dim_k > problem.dim_v ? problem.dim_k : problem.dim_v;
  return (int64_t{8} << 20) * clamp(ceil_div(dim, 256), 1, INT64_MAX);
}

// A map costs one more pass over the mask, and a barrier. Fewer queries than this read so little of it that it would save nothing.
constexpr int64_t kFewestMappedQueries = 16;

MaskMapLayout lay_out_mask_map(const Problem &problem) {
  MaskMapLayout map = {};
  const int64_t *stride = problem.mask.stride;
  if (problem.mask.data == nullptr || problem.seq_q < kFewestMappedQueries) return map;
  map.heads = stride[1] == 0 ? 1 : problem.heads_q;
  map.entries = stride[0] == 0 ? 1 : problem.batch;
  map.rows_per_entry = stride[2] == 0 ? 1 : ceil_div(problem.seq_q, kMapQueries);
  map.rows = map.entries * map.rows_per_entry;
  // Packed entries share seq_q queries, and each may leave one row unfilled.
  if (problem.cu_seqlens_q && stride[2] != 0) map.rows = map.rows_per_entry + map.entries;
  map.row_bytes = ceil_div(ceil_div(problem.seq_kv, kBlockKeys), 4);
  map.bytes = map.heads * map.rows * map.row_bytes;
  return map;
}

}  // namespace

int64_t chunk_keys(int64_t kv_len) { return kBlockKeys * clamp(ceil_div(kv_len, kBlockKeys * kMaxChunks), 1, INT64_MAX); }

Plan make_plan(const Problem &problem, const ForwardKernel &kernel, int32_t workers) {
  Plan plan = {};
  const bool packed = problem.cu_seqlens_q != nullptr;
  const int64_t heads = (packed ? 1 : problem.batch) * problem.heads_kv, rows = problem.seq_q * problem.group;
  if (problem.batch == 0 || heads == 0 || rows == 0) return plan;

  plan.ragged_queries = packed || problem.seqlens_q;
  plan.rows_per_block = choose_rows_per_block(problem, kernel, heads, workers);
  plan.row_blocks = ceil_div(rows, plan.rows_per_block);
  plan.blocks = heads * plan.row_blocks;
  if (packed) plan.blocks += (problem.batch - 1) * problem.heads_kv;  // each further segment may leave one block unfilled
  // Fewer keys may make more chunks: kMaxChunks of them from the shortest chunk on.
  const bool ragged_keys = problem.seqlens_kv || problem.cu_seqlens_kv;
  plan.chunks = ceil_div(problem.seq_kv, ragged_keys ? kBlockKeys : chunk_keys(problem.seq_kv));
  if (plan.chunks > kMaxChunks) plan.chunks = kMaxChunks;
  plan.scratch_bytes = round_up(kernel.scratch_bytes(&problem, &kernel.tuning, plan.rows_per_block), kAlignment);
  plan.splits = 1;
  const int64_t wanted_tasks = kernel.tuning.tasks_per_worker * workers;
  if (workers > 1 && plan.chunks > 1 && plan.blocks < wanted_tasks) {
    const int64_t partial_floats = plan.blocks * plan.chunks * plan.rows_per_block * (problem.dim_v + 2);
    const int64_t partial_bytes = round_up(partial_floats * kFloatBytes, kAlignment);
    const int64_t counter_bytes = round_up(plan.blocks * static_cast<int64_t>(sizeof(int64_t)), kAlignment);
    if (partial_bytes + counter_bytes + kAlignment <= (most_bytes_per_worker(problem) - plan.scratch_bytes) * workers) {
      plan.splits = clamp(ceil_div(wanted_tasks, plan.blocks), 1, plan.chunks);
      plan.partial_bytes = partial_bytes;
      plan.counter_bytes = counter_bytes;
    }
  }
  plan.tasks = plan.blocks * plan.splits;
  plan.mask_map = lay_out_mask_map(problem);
  if (plan.ragged_queries) plan.index_bytes = round_up((problem.batch + 1) * static_cast<int64_t>(sizeof(int64_t)), kAlignment);

  const int64_t elements =
      saturated_sum(saturated_product(problem.seq_kv, problem.dim_k + problem.dim_v), saturated_product(rows, problem.dim_k));
  plan.multiply_adds =
      saturated_product(saturated_product(heads, rows), saturated_product(problem.seq_kv, problem.dim_k + problem.dim_v));
  plan.fetch_ahead = saturated_product(heads, elements) > kernel.tuning.cached_bytes / kFloatBytes;

  plan.workspace_bytes = plan.scratch_bytes * workers + plan.partial_bytes + plan.counter_bytes + plan.index_bytes +
                         plan.mask_map.bytes + kAlignment - 1;
  return plan;
}

}  // namespace fovea
