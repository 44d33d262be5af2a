// What a context holds.
#pragma once
#include "fovea/fovea.h"
#include "run/executor.h"

struct fovea_context {
  int32_t level;  // fovea_isa
  fovea::Executor executor;
};
