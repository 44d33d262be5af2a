// A call that passed its checks, with the kernel and the plan chosen for it.
#pragma once
#include "core/problem.h"
#include "fovea/fovea.h"
#include "plan/plan.h"

namespace fovea {

struct Call {
  Problem problem;
  const ForwardKernel *kernel;  // null: the outputs have no elements, there is nothing to run
  Plan plan;                    // all 0 then
};

// Checks everything but the data pointers.
fovea_status prepare(const fovea_context *c, const fovea_params *p, Call *call);

}  // namespace fovea
