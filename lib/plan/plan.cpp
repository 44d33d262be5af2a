#include "plan/plan.h"

namespace fovea {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kAlignment = 64;  // a cache line: no two workers write to the same one

// Queries and outputs of a task are used again for every block of keys, and shall stay in a second-level cache of 1 MiB or more beside
// the block: 256 keys of K and V.
constexpr int64_t kTaskBytes = 768 << 10;

// Enough tasks that the last one to end leaves the others idle for little, and that work of unequal length evens out.
constexpr int64_t kTasksPerWorker = 4;

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
int64_t choose_rows_per_block(const Problem &problem, const KernelShape &shape, int64_t heads, int32_t workers) {
  const int64_t rows = problem.seq_q * problem.group;
  const int64_t panel_rows = has_window(problem) ? shape.window_panel_rows : shape.panel_rows;
  const int64_t row_bytes = (problem.dim_k + problem.dim_v) * kFloatBytes;
  const int64_t in_cache = clamp(kTaskBytes / (panel_rows * (row_bytes + 1)), 1, shape.group_panels);
  const int64_t wanted_blocks = workers == 1 ? 1 : ceil_div(kTasksPerWorker * workers, heads);
  const int64_t panels = clamp(ceil_div(rows, panel_rows) / wanted_blocks, 1, in_cache);
  const int64_t blocks = ceil_div(rows, panels * panel_rows);
  return round_up(ceil_div(rows, blocks), shape.row_unit);
}

// Stored partials together with scratch shall stay within 8 MiB a worker for dims up to 256, scratch being under 2 MiB. Where they do
// not fit, there are rows enough to keep the workers busy without splitting keys.
int64_t partial_budget(const Problem &problem, int32_t workers) {
  return (int64_t{6} << 20) * workers * clamp(ceil_div(problem.dim_v, 256), 1, INT64_MAX);
}

// Inputs beyond a core's share of a last-level cache come from memory, a head at a time.
constexpr int64_t kCachedBytes = 8 << 20;

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
  plan.rows_per_block = choose_rows_per_block(problem, kernel.shape, heads, workers);
  plan.row_blocks = ceil_div(rows, plan.rows_per_block);
  plan.blocks = heads * plan.row_blocks;
  if (packed) plan.blocks += (problem.batch - 1) * problem.heads_kv;  // each further segment may leave one block unfilled
  // Fewer keys may make more chunks: kMaxChunks of them from the shortest chunk on.
  const bool ragged_keys = problem.seqlens_kv || problem.cu_seqlens_kv;
  plan.chunks = ceil_div(problem.seq_kv, ragged_keys ? kBlockKeys : chunk_keys(problem.seq_kv));
  if (plan.chunks > kMaxChunks) plan.chunks = kMaxChunks;
  plan.splits = 1;
  if (workers > 1 && plan.chunks > 1 && plan.blocks < kTasksPerWorker * workers) {
    const int64_t partial_bytes = plan.blocks * plan.chunks * plan.rows_per_block * (problem.dim_v + 2) * kFloatBytes;
    if (partial_bytes <= partial_budget(problem, workers)) {
      plan.splits = clamp(ceil_div(kTasksPerWorker * workers, plan.blocks), 1, plan.chunks);
      plan.partial_bytes = round_up(partial_bytes, kAlignment);
      plan.counter_bytes = round_up(plan.blocks * static_cast<int64_t>(sizeof(int64_t)), kAlignment);
    }
  }
  plan.tasks = plan.blocks * plan.splits;
  plan.mask_map = lay_out_mask_map(problem);
  if (plan.ragged_queries) plan.index_bytes = round_up((problem.batch + 1) * static_cast<int64_t>(sizeof(int64_t)), kAlignment);

  const int64_t elements =
      saturated_sum(saturated_product(problem.seq_kv, problem.dim_k + problem.dim_v), saturated_product(rows, problem.dim_k));
  plan.multiply_adds =
      saturated_product(saturated_product(heads, rows), saturated_product(problem.seq_kv, problem.dim_k + problem.dim_v));
  plan.fetch_ahead = saturated_product(heads, elements) > kCachedBytes / kFloatBytes;

  plan.scratch_bytes = round_up(kernel.scratch_bytes(&problem, plan.rows_per_block), kAlignment);
  plan.workspace_bytes = plan.scratch_bytes * workers + plan.partial_bytes + plan.counter_bytes + plan.index_bytes +
                         plan.mask_map.bytes + kAlignment - 1;
  return plan;
}

}  // namespace fovea
