// Tables of tuning, as `fovea tune` writes them: docs/tuning.md describes the format.
#pragma once
#include "fovea/fovea.h"
#include "kernels/kernel.h"

namespace fovea {

constexpr int64_t kTuningFormat = 1;  // of a file

struct TuningParameter {
  const char *name;
  int64_t Tuning::*value;
  int64_t least, most;
  bool counts_rows;  // of a panel: then a kernel has limits of its own
};
constexpr int32_t kTuningParameterCount = 7;
extern const TuningParameter kTuningParameters[kTuningParameterCount];

// What a kernel takes: multiples of unit in least..most.
struct TuningRange {
  int64_t least, most, unit;
};
TuningRange tuning_range(const TuningParameter &parameter, const KernelShape &shape);

// Reads the table in a file into kernels that are in the order of kernel_entries(). On an error, whose text begins with asked_by, they hold
// anything.
fovea_status load_tuning(const char *asked_by, const char *path, ForwardKernel *kernels);

}  // namespace fovea
