// The plan: every row and chunk is in exactly one task, and the workspace keeps its promise.
#include "plan/plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "api/tuning.h"
#include "dispatch/dispatch.h"
#include "fovea/fovea.h"

namespace fovea {
namespace {

Problem problem(int64_t batch, int64_t heads_kv, int64_t group, int64_t seq_q, int64_t seq_kv, int64_t dim_k, int64_t dim_v,
                int64_t inner) {
  Problem p = {};
  p.window_left = p.window_right = kUnbounded;
  p.batch = batch;
  p.heads_q = heads_kv * group;
  p.heads_kv = heads_kv;
  p.group = group;
  p.seq_q = seq_q;
  p.seq_kv = seq_kv;
  p.dim_k = dim_k;
  p.dim_v = dim_v;
  for (Tensor *t : {&p.q, &p.k, &p.v, &p.out}) t->stride[3] = inner;
  return p;
}

TEST(PlanTest, ChunksAreAFunctionOfTheKeyCountAndAtMost64) {
  for (const int64_t keys : {1, 255, 256, 257, 16384, 16385, 70000, 131072, 1 << 24}) {
    const int64_t chunk = chunk_keys(keys);
    EXPECT_EQ(chunk % kBlockKeys, 0);
    EXPECT_LE((keys + chunk - 1) / chunk, kMaxChunks) << keys;
  }
  EXPECT_EQ(chunk_keys(16384), kBlockKeys);
  EXPECT_EQ(chunk_keys(16385), 2 * kBlockKeys);
}

TEST(PlanTest, EveryRowIsInOneBlock) {
  const KernelEntry *entries;
  const int32_t count = kernel_entries(&entries);
  for (int32_t e = 0; e < count; ++e) {
    for (const int64_t group : {1, 3, 71}) {
      for (const int64_t seq_q : {1, 5, 48, 197, 4096}) {
        for (const int32_t workers : {1, 2, 7, 64}) {
          const Problem p = problem(2, 3, group, seq_q, 1000, 64, 64, 1);
          const Plan plan = make_plan(p, *entries[e].kernel, workers);
          EXPECT_GE(plan.row_blocks * plan.rows_per_block, group * seq_q);
          EXPECT_LT((plan.row_blocks - 1) * plan.rows_per_block, group * seq_q);
          EXPECT_EQ(plan.tasks, 2 * 3 * plan.row_blocks * plan.splits);
          EXPECT_LE(plan.splits, plan.chunks);
        }
      }
    }
  }
}

TEST(PlanTest, FewRowsAndManyKeysKeepEveryWorkerBusy) {
  const KernelEntry *entries;
  kernel_entries(&entries);
  const Problem p = problem(1, 1, 1, 1, 32768, 128, 128, 1);
  for (const int32_t workers : {2, 3, 7, 16}) EXPECT_GE(make_plan(p, *entries[0].kernel, workers).tasks, workers);
  EXPECT_EQ(make_plan(p, *entries[0].kernel, 1).splits, 1);
}

TEST(PlanTest, WorkspaceIsAtMostEightMebibytesAWorker) {
  const KernelEntry *entries;
  const int32_t count = kernel_entries(&entries);
  int64_t largest = 0;
  std::vector<ForwardKernel> kernels;
  for (int32_t e = 0; e < count; ++e) {
    const ForwardKernel &usual = *entries[e].kernel;
    kernels.push_back(usual);
    // And whatever a table may say: all at its most, and the most tasks of the largest and the smallest kind.
    for (const bool rows_too : {true, false}) {
      for (const bool task_bytes_too : {true, false}) {
        ForwardKernel kernel = usual;
        for (const TuningParameter &parameter : kTuningParameters) {
          const TuningRange range = tuning_range(parameter, usual.shape);
          const bool most = parameter.counts_rows ? rows_too : parameter.value != &Tuning::task_bytes || task_bytes_too;
          kernel.tuning.*parameter.value = most ? range.most : range.least;
        }
        kernels.push_back(kernel);
      }
    }
  }
  for (const ForwardKernel &kernel : kernels) {
    for (const int32_t workers : {1, 2, 3, 7, 64, 256}) {
      for (const int64_t rows : {1, 3, 16, 47, 64, 95, 96, 191, 193, 500, 5000, 100000}) {
        for (const int64_t keys : {1, 257, 16384, 16385, 1 << 20, 1 << 28}) {
          for (const int64_t inner : {1, 2}) {
            for (const int64_t dim_k : {1, 256}) {
              for (const int64_t dim_v : {1, 256}) {
                const Plan plan = make_plan(problem(1, 1, 1, rows, keys, dim_k, dim_v, inner), kernel, workers);
                ASSERT_LE(plan.workspace_bytes, int64_t{8 << 20} * workers)
                    << kernel.name << ", " << rows << " rows, " << keys << " keys, " << dim_k << "/" << dim_v << " dims, "
                    << workers << " workers";
                if (plan.workspace_bytes / workers > largest) largest = plan.workspace_bytes / workers;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(largest, 1 << 20);  // the search met the cases that matter
}

TEST(PlanTest, EmptyProblemsHaveNoTasks) {
  const KernelEntry *entries;
  kernel_entries(&entries);
  EXPECT_EQ(make_plan(problem(0, 1, 1, 8, 8, 8, 8, 1), *entries[0].kernel, 2).tasks, 0);
  EXPECT_EQ(make_plan(problem(1, 1, 1, 0, 8, 8, 8, 1), *entries[0].kernel, 2).tasks, 0);
  EXPECT_EQ(make_plan(problem(1, 1, 1, 8, 0, 8, 8, 1), *entries[0].kernel, 2).tasks, 1);  // its rows are empty, not absent
}

}  // namespace
}  // namespace fovea
