#include "run/forward.h"

#include "run/float_environment.h"

namespace fovea {
namespace {

struct Run {
  const Problem *problem;
  const ForwardKernel *kernel;
  const Plan *plan;
  char *scratch;     // plan->scratch_bytes a worker
  float *partials;   // [block][chunk]: values, then maxima, then sums of rows_per_block rows
  int64_t *missing;  // [block]: splits not yet done
};

RowRange rows_of_block(const Run &run, int64_t block) {
  const Problem &problem = *run.problem;
  const int64_t head = block / run.plan->row_blocks, index = block % run.plan->row_blocks;
  const int64_t rows = problem.seq_q * problem.group;
  RowRange range;
  range.batch = head / problem.heads_kv;
  range.head_kv = head % problem.heads_kv;
  range.row_begin = index * run.plan->rows_per_block;
  range.row_end = range.row_begin + run.plan->rows_per_block < rows ? range.row_begin + run.plan->rows_per_block : rows;
  range.kv_len = problem.seq_kv;
  return range;
}

// The blocks of a head follow each other, so that its keys stay in cache. Causal rows grow in length: the longest go first, so that no
// long one is left for the end.
int64_t longest_first(const Run &run, int64_t i) {
  if (!run.problem->causal) return i;
  const int64_t index = i % run.plan->row_blocks;
  return i - index + run.plan->row_blocks - 1 - index;
}

void find_partials(const Run &run, int64_t block, Partial *partials) {
  const int64_t rows = run.plan->rows_per_block, dim_v = run.problem->dim_v;
  float *at = run.partials + block * run.plan->chunks * rows * (dim_v + 2);
  for (int64_t c = 0; c < run.plan->chunks; ++c) {
    partials[c] = {at + rows * dim_v, at + rows * (dim_v + 1), at};
    at += rows * (dim_v + 2);
  }
}

void run_task(void *arg, int64_t i, int32_t worker) {
  const Run &run = *static_cast<const Run *>(arg);
  const Plan &plan = *run.plan;
  const FloatEnvironment saved = enter_float_environment();

  ForwardTask task;
  task.problem = run.problem;
  task.scratch = run.scratch + worker * plan.scratch_bytes;
  task.chunk_keys = plan.chunk_keys;
  if (plan.splits == 1) {
    task.rows = rows_of_block(run, longest_first(run, i));
    const RowRange next = rows_of_block(run, longest_first(run, i + 1));
    task.keys_are_cold = plan.fetch_ahead && i % plan.row_blocks == 0;
    task.next = plan.fetch_ahead && i + 1 < plan.tasks ? &next : nullptr;
    task.chunk_begin = 0;
    task.chunk_end = plan.chunks;
    task.partials = nullptr;
    run.kernel->forward(&task);
  } else {
    const int64_t block = i / plan.splits, split = i % plan.splits;
    Partial partials[kMaxChunks];
    find_partials(run, block, partials);
    task.rows = rows_of_block(run, block);
    task.keys_are_cold = false;
    task.next = nullptr;
    task.chunk_begin = plan.chunks * split / plan.splits;
    task.chunk_end = plan.chunks * (split + 1) / plan.splits;
    task.partials = partials + task.chunk_begin;
    run.kernel->forward(&task);
    // Whoever ends last merges: all other splits' partials are visible to it.
    if (__atomic_sub_fetch(&run.missing[block], 1, __ATOMIC_ACQ_REL) == 0) {
      MergeTask merge = {run.problem, task.rows, plan.chunks, plan.chunk_keys, partials, task.scratch};
      run.kernel->merge(&merge);
    }
  }
  leave_float_environment(saved);
}

}  // namespace

void run_forward(const Problem &problem, const ForwardKernel &kernel, const Plan &plan, const Executor &executor,
                 void *workspace) {
  if (plan.tasks == 0) return;
  char *at = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(workspace) + 63) & ~uintptr_t{63});
  Run run = {&problem, &kernel, &plan, at, nullptr, nullptr};
  at += plan.scratch_bytes * executor.workers;
  run.partials = reinterpret_cast<float *>(at);
  run.missing = reinterpret_cast<int64_t *>(at + plan.partial_bytes);
  if (plan.splits > 1) {
    for (int64_t b = 0; b < plan.blocks; ++b) run.missing[b] = plan.splits;
  }
  executor.parallel_for(executor.user, run_task, &run, plan.tasks);
}

}  // namespace fovea
