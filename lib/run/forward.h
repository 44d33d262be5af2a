// Runs a plan.
#pragma once
#include "plan/plan.h"
#include "run/executor.h"

namespace fovea {

// workspace: plan.workspace_bytes, any alignment.
void run_forward(const Problem &problem, const ForwardKernel &kernel, const Plan &plan, const Executor &executor,
                 void *workspace);

}  // namespace fovea
