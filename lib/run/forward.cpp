#include "run/forward.h"

#include "core/lengths.h"
#include "run/float_environment.h"

namespace fovea {
namespace {

struct Run {
  const Problem *problem;
  const ForwardKernel *kernel;
  const Plan *plan;
  char *scratch;         // plan->scratch_bytes a worker
  float *partials;       // [block][chunk]: values, then maxima, then sums of rows_per_block rows
  int64_t *missing;      // [block]: splits not yet done
  int64_t *first_block;  // ragged queries: [batch + 1], where the blocks of an entry begin; else null
  uint8_t *mask_map;
  int64_t blocks;  // that there are
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks of rows that a key-value head of an entry has.
int64_t row_blocks_of(const Run &run, int64_t batch) {
  return ceil_div(queries_of(*run.problem, batch) * run.problem->group, run.plan->rows_per_block);
}

void count_blocks(Run *run) {
  run->blocks = run->plan->blocks;
  if (run->first_block == nullptr) return;
  run->blocks = 0;
  for (int64_t b = 0; b < run->problem->batch; ++b) {
    run->first_block[b] = run->blocks;
    run->blocks += run->problem->heads_kv * row_blocks_of(*run, b);
  }
  run->first_block[run->problem->batch] = run->blocks;
}

// The last of so many entries that begins at or before an index, entries being in order.
template <class Begin>
int64_t entry_at(int64_t index, int64_t entries, Begin begin) {
  int64_t low = 0, high = entries - 1;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (begin(middle) <= index)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

struct BlockOfRows {
  RowRange rows;
  bool first_of_head;  // in the order of tasks
};

// The blocks of a head follow each other, so that its keys stay in cache; where heads share a mask that is larger, the heads of a block
// do, for the mask's sake. Causal rows grow in length: the longest go first, so that no long one is left for the end.
BlockOfRows find_block(const Run &run, int64_t block) {
  const Problem &problem = *run.problem;
  int64_t batch, row_blocks = run.plan->row_blocks;
  if (run.first_block) {
    batch = entry_at(block, problem.batch, [&](int64_t b) { return run.first_block[b]; });
    block -= run.first_block[batch];
    row_blocks = row_blocks_of(run, batch);
  } else {
    batch = block / (row_blocks * problem.heads_kv);
    block %= row_blocks * problem.heads_kv;
  }
  const bool heads_share_mask = problem.mask.data && problem.mask.stride[1] == 0 && problem.mask.stride[2] != 0;
  const int64_t head = heads_share_mask ? block % problem.heads_kv : block / row_blocks;
  int64_t index = heads_share_mask ? block / problem.heads_kv : block % row_blocks;
  BlockOfRows found;
  found.first_of_head = index == 0;
  if (problem.window_right != kUnbounded) index = row_blocks - 1 - index;
  RowRange &range = found.rows;
  range.batch = batch;
  range.head_kv = head;
  range.q_len = queries_of(problem, batch);
  range.kv_len = keys_of(problem, batch);
  range.first_query = problem.cu_seqlens_q ? problem.cu_seqlens_q[batch] : 0;
  range.first_key = problem.cu_seqlens_kv ? problem.cu_seqlens_kv[batch] : 0;
  const int64_t rows = range.q_len * problem.group;
  range.row_begin = index * run.plan->rows_per_block;
  range.row_end = range.row_begin + run.plan->rows_per_block < rows ? range.row_begin + run.plan->rows_per_block : rows;
  return found;
}

void find_partials(const Run &run, int64_t block, Partial *partials) {
  const int64_t rows = run.plan->rows_per_block, dim_v = run.problem->dim_v;
  float *at = run.partials + block * run.plan->chunks * rows * (dim_v + 2);
  for (int64_t c = 0; c < run.plan->chunks; ++c) {
    partials[c] = {at + rows * dim_v, at + rows * (dim_v + 1), at};
    at += rows * (dim_v + 2);
  }
}

// Where the map's rows of an entry begin, of those of a head.
int64_t first_map_row(const Run &run, int64_t batch) {
  const MaskMapLayout &map = run.plan->mask_map;
  if (map.entries == 1) return 0;
  if (map.rows == map.entries * map.rows_per_entry) return batch * map.rows_per_entry;
  return run.problem->cu_seqlens_q[batch] / kMapQueries + batch;
}

MaskMap map_of_entry(const Run &run, int64_t batch) {
  const MaskMapLayout &map = run.plan->mask_map;
  if (map.bytes == 0) return {};
  return {run.mask_map + first_map_row(run, batch) * map.row_bytes, map.heads == 1 ? 0 : map.rows * map.row_bytes,
          map.rows_per_entry == 1 ? 0 : map.row_bytes};
}

void run_task(void *arg, int64_t i, int32_t worker) {
  const Run &run = *static_cast<const Run *>(arg);
  const Plan &plan = *run.plan;
  const FloatEnvironment saved = enter_float_environment();

  ForwardTask task;
  const BlockOfRows block = find_block(run, i / plan.splits);
  task.problem = run.problem;
  task.tuning = &run.kernel->tuning;
  task.rows = block.rows;
  task.mask_map = map_of_entry(run, block.rows.batch);
  task.scratch = run.scratch + worker * plan.scratch_bytes;
  task.chunk_keys = chunk_keys(block.rows.kv_len);
  const int64_t chunks = ceil_div(block.rows.kv_len, task.chunk_keys);
  if (plan.splits == 1) {
    const bool fetch_next = plan.fetch_ahead && i + 1 < run.blocks;
    const RowRange next = fetch_next ? find_block(run, i + 1).rows : block.rows;
    task.keys_are_cold = plan.fetch_ahead && block.first_of_head;
    task.next = fetch_next ? &next : nullptr;
    task.chunk_begin = 0;
    task.chunk_end = chunks;
    task.partials = nullptr;
    run.kernel->forward(&task);
  } else {
    const int64_t index = i / plan.splits, split = i % plan.splits;
    Partial partials[kMaxChunks];
    find_partials(run, index, partials);
    task.keys_are_cold = plan.fetch_ahead && block.first_of_head;
    task.next = nullptr;
    task.chunk_begin = chunks * split / plan.splits;
    task.chunk_end = chunks * (split + 1) / plan.splits;
    task.partials = partials + task.chunk_begin;
    run.kernel->forward(&task);
    // Whoever ends last merges: all other splits' partials are visible to it.
    if (__atomic_sub_fetch(&run.missing[index], 1, __ATOMIC_ACQ_REL) == 0) {
      MergeTask merge = {run.problem, task.rows, task.tuning, chunks, task.chunk_keys, task.mask_map, partials, task.scratch};
      run.kernel->merge(&merge);
    }
  }
  leave_float_environment(saved);
}

// The map's row of queries [begin, end) of one head and one entry: blocks of keys that some of them may see, by their windows.
void map_rectangle(const Run &run, int64_t batch, int64_t head, int64_t begin, int64_t end, uint8_t *bits) {
  const Problem &problem = *run.problem;
  const int64_t kv_len = keys_of(problem, batch), shift = problem.bottom_right ? kv_len - queries_of(problem, batch) : 0;
  MaskMapTask task = {&problem, batch, head, begin, end, begin + shift - problem.window_left, end + shift + problem.window_right,
                      bits};
  task.key_begin = task.key_begin > 0 ? task.key_begin / kBlockKeys * kBlockKeys : 0;
  if (task.key_end > kv_len) task.key_end = kv_len;
  if (problem.mask.stride[2] == 0) task.query_end = begin + 1;
  run.kernel->map_mask(&task);
}

// One row of the map. Where entries share a mask, what each of them reads of it and no more.
void map_task(void *arg, int64_t i, int32_t) {
  const Run &run = *static_cast<const Run *>(arg);
  const Problem &problem = *run.problem;
  const MaskMapLayout &map = run.plan->mask_map;
  const int64_t row = i % map.rows, head = i / map.rows;
  const int64_t first = entry_at(row, map.entries, [&](int64_t b) { return first_map_row(run, b); });
  const int64_t begin = (row - first_map_row(run, first)) * kMapQueries;
  uint8_t *bits = run.mask_map + i * map.row_bytes;
  const FloatEnvironment saved = enter_float_environment();
  for (int64_t b = 0; b < map.row_bytes; ++b) bits[b] = 0;
  for (int64_t batch = first; batch < (map.entries == 1 ? problem.batch : first + 1); ++batch) {
    const int64_t queries = queries_of(problem, batch);
    const int64_t end = problem.mask.stride[2] == 0 || begin + kMapQueries > queries ? queries : begin + kMapQueries;
    if (begin < end) map_rectangle(run, batch, head, begin, end, bits);
  }
  leave_float_environment(saved);
}

}  // namespace

void run_forward(const Problem &problem, const ForwardKernel &kernel, const Plan &plan, const Executor &given, void *workspace) {
  if (plan.tasks == 0) return;
  const Executor executor = plan.multiply_adds < given.worth_waking_for ? serial_executor() : given;
  char *at = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(workspace) + 63) & ~uintptr_t{63});
  Run run = {&problem, &kernel, &plan, at, nullptr, nullptr, nullptr, nullptr, 0};
  at += plan.scratch_bytes * given.workers;
  run.partials = reinterpret_cast<float *>(at);
  at += plan.partial_bytes;
  run.missing = reinterpret_cast<int64_t *>(at);
  at += plan.counter_bytes;
  if (plan.ragged_queries) run.first_block = reinterpret_cast<int64_t *>(at);
  at += plan.index_bytes;
  count_blocks(&run);
  if (plan.splits > 1) {
    for (int64_t b = 0; b < run.blocks; ++b) run.missing[b] = plan.splits;
  }
  const MaskMapLayout &map = plan.mask_map;
  if (map.bytes) {
    run.mask_map = reinterpret_cast<uint8_t *>(at);
    executor.parallel_for(executor.user, map_task, &run, map.heads * map.rows);
  }
  executor.parallel_for(executor.user, run_task, &run, run.blocks * plan.splits);
}

}  // namespace fovea
