// fovea_kernel_bench: every registered kernel that can run here, on one thread, below the C API. A new line in kernels.inc is
// measured without being named here. The counters are GFLOP/s and its share of the level's multiply-add peak, measured just before.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "cpu/cpu.h"
#include "dispatch/dispatch.h"
#include "machine.h"
#include "peaks.h"
#include "plan/plan.h"
#include "run/executor.h"
#include "run/forward.h"
#include "shapes.h"

namespace fovea::bench {
namespace {

constexpr const char *kShapes[] = {"1,1,1,512,512,64", "1,1,1,197,197,64", "1,1,1,512,512,128 causal",
                                   "1,1,1,64,64,64",   "1,4,1,300,77,80",  "1,4,1,1,2048,128"};

Tensor dense(Buffer &buffer, int64_t heads, int64_t seq, int64_t dim) {
  return {buffer.data(), {heads * seq * dim, seq * dim, dim, 1}, FOVEA_F32};
}

// The same numbers in the memory of the floats, without their lower halves.
void become_bf16(Tensor *tensor, Buffer &buffer) {
  for (size_t i = 0; i < buffer.size(); i++)
    std::memcpy(reinterpret_cast<char *>(buffer.data()) + 2 * i, reinterpret_cast<const char *>(buffer.data() + i) + 2, 2);
  tensor->dtype = FOVEA_BF16;
}

void run(benchmark::State &state, const KernelEntry &entry, const Shape &s) {
  const auto buffer = [&](int64_t heads, int64_t seq, int64_t dim) {
    return Buffer(static_cast<size_t>(s.batch * heads * seq * dim));
  };
  Buffer q = buffer(s.heads_q, s.seq_q, s.dim_k), k = buffer(s.heads_kv, s.seq_kv, s.dim_k),
         v = buffer(s.heads_kv, s.seq_kv, s.dim_v), out = buffer(s.heads_q, s.seq_q, s.dim_v);
  q.fill_normal(1);
  k.fill_normal(2);
  v.fill_normal(3);
  Problem problem = {};
  problem.batch = s.batch;
  problem.heads_q = s.heads_q;
  problem.heads_kv = s.heads_kv;
  problem.seq_q = s.seq_q;
  problem.seq_kv = s.seq_kv;
  problem.dim_k = s.dim_k;
  problem.dim_v = s.dim_v;
  problem.group = s.heads_q / s.heads_kv;
  problem.q = dense(q, s.heads_q, s.seq_q, s.dim_k);
  problem.k = dense(k, s.heads_kv, s.seq_kv, s.dim_k);
  problem.v = dense(v, s.heads_kv, s.seq_kv, s.dim_v);
  problem.out = dense(out, s.heads_q, s.seq_q, s.dim_v);
  if (!serves(entry, problem)) {
    become_bf16(&problem.q, q);
    become_bf16(&problem.k, k);
  }
  problem.scale = 1 / std::sqrt(static_cast<float>(s.dim_k));
  problem.bottom_right = true;
  problem.window_left = kUnbounded;
  problem.window_right = s.causal ? 0 : kUnbounded;

  const Executor executor = serial_executor();
  const Plan plan = make_plan(problem, *entry.kernel, executor.workers);
  Buffer workspace(static_cast<size_t>(plan.workspace_bytes) / sizeof(float) + 1);
  double peak = 0;
  if (const PeakLoops *loops = peak_loops(entry.level)) {
    const Peaks peaks(*loops, 1);
    for (int i = 0; i < 5; i++) peak = std::max(peak, peaks.fma());
  }
  const double start = processor_seconds();
  for (auto _ : state) {
    run_forward(problem, *entry.kernel, plan, executor, workspace.data());
    benchmark::ClobberMemory();
  }
  const double rate = flops(s) * static_cast<double>(state.iterations()) / (processor_seconds() - start);
  state.counters["GFLOP/s"] = rate / 1e9;
  if (peak > 0) state.counters["share"] = rate / peak;
}

void register_all() {
  const KernelEntry *entries = nullptr;
  const int32_t count = kernel_entries(&entries);
  for (int32_t i = 0; i < count; i++) {
    const KernelEntry &entry = entries[i];
    const std::string refusal = level_refusal(entry.level, cpu_features());
    if (!refusal.empty()) {
      std::fprintf(stderr, "%s: not run, %s\n", entry.kernel->name, refusal.c_str());
      continue;
    }
    for (const char *text : kShapes) {
      const Shape shape = parse_shape(text);
      benchmark::RegisterBenchmark((std::string(entry.kernel->name) + "/" + text).c_str(),
                                   [&entry, shape](benchmark::State &state) { run(state, entry, shape); });
    }
  }
}

}  // namespace
}  // namespace fovea::bench

int main(int argc, char **argv) {
  fovea::bench::pin(1);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  fovea::bench::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
