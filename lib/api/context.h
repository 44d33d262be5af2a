// What a context holds.
#pragma once
#include "dispatch/dispatch.h"
#include "fovea/fovea.h"
#include "run/executor.h"

struct fovea_context {
  int32_t level;  // fovea_isa
  fovea::Executor executor;
  const char *tuning;                                 // the file, behind the struct; "": none
  fovea::ForwardKernel kernels[fovea::kKernelCount];  // those of the registry, as they are tuned
};
