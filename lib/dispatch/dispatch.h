// The choice of a level and of a kernel, from the registry in kernels.inc.
#pragma once
#include <cstdint>

#include "core/problem.h"
#include "cpu/cpu.h"
#include "kernels/kernel.h"

namespace fovea {

// Levels known on this architecture, those that a CPU with these features is fastest with last. The table has static storage.
struct LevelList {
  const int32_t *levels;  // fovea_isa
  int32_t count;
};
LevelList known_levels(const CpuFeatures &features);

const char *level_name(int32_t level);      // "unknown" for other numbers
int32_t level_from_name(const char *name);  // 0 (FOVEA_ISA_AUTO) for "auto", -1 for other texts
bool level_compiled(int32_t level);

// Why a level may not be used with these features: "" where it may. Constant text.
const char *level_refusal(int32_t level, const CpuFeatures &features);

// The best level that may be used.
int32_t best_level(const CpuFeatures &features);

// The kernel of a level for a problem, or of its base where the level has kernels for other types alone, as its place among kernel_entries();
// depends on its types and its score function, never on batch or threads. -1 where the level has none for such a CPU.
int32_t select_kernel(int32_t level, const CpuFeatures &features, const Problem &problem);

// Every registered kernel of this build, for tests, benches and docs.
struct KernelEntry {
  int32_t level;
  const char *operation;  // "prefill", ...
  const char *types;      // "f32", "bf16": what it multiplies
  const ForwardKernel *kernel;
};
int32_t kernel_entries(const KernelEntry **entries);

// How many there are.
constexpr int32_t kKernelCount = 0
#define FOVEA_KERNEL(level, operation, types, rows, keys) +1
#include "dispatch/kernels.inc"
#undef FOVEA_KERNEL
    ;

// Whether a kernel can compute a problem.
bool serves(const KernelEntry &entry, const Problem &problem);

// Whether a kernel is made for vectors as long as this CPU's. Only SVE has vectors of several lengths.
bool fits_vectors(const KernelEntry &entry, const CpuFeatures &features);

}  // namespace fovea
