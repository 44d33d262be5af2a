#include "run/forward.h"

#include <inttypes.h>
#include <stdlib.h>

#include "api/call.h"
#include "api/check.h"
#include "api/context.h"
#include "api/error.h"

namespace fovea {
namespace {

bool has_no_rows(const Problem &p) { return p.batch == 0 || p.heads_q == 0 || p.seq_q == 0; }

}  // namespace

fovea_status prepare(const fovea_context *c, const fovea_params *p, Call *call) {
  *call = {};
  if (!c) return fail(FOVEA_ERR_NULL_POINTER, "context: must not be NULL");
  const fovea_status status = check_params(p, &call->problem);
  if (status || has_no_rows(call->problem)) return status;
  const int32_t kernel = select_kernel(c->level, cpu_features(), call->problem);
  if (kernel < 0) return fail(FOVEA_ERR_UNSUPPORTED, "context: level %s has no kernel for this call", level_name(c->level));
  call->kernel = &c->kernels[kernel];
  call->plan = make_plan(call->problem, *call->kernel, c->executor.workers);
  return FOVEA_OK;
}

}  // namespace fovea

fovea_status fovea_workspace_size(const fovea_context *c, const fovea_params *p, size_t *bytes) {
  if (!bytes) return fovea::fail(FOVEA_ERR_NULL_POINTER, "bytes: must not be NULL");
  fovea::Call call;
  const fovea_status status = fovea::prepare(c, p, &call);
  if (!status) *bytes = size_t(call.plan.workspace_bytes);
  return status;
}

fovea_status fovea_forward(const fovea_context *c, const fovea_params *p, void *workspace, size_t bytes) {
  using namespace fovea;
  Call call;
  fovea_status status = prepare(c, p, &call);
  if (status) return status;
  const size_t needed = size_t(call.plan.workspace_bytes);
  if (workspace && bytes < needed) return fail(FOVEA_ERR_WORKSPACE, "workspace: %zu bytes given, %zu needed", bytes, needed);
  status = check_data(call.problem, workspace, call.plan.workspace_bytes);
  if (status || !call.kernel) return status;

  if (workspace) {
    run_forward(call.problem, *call.kernel, call.plan, c->executor, workspace);
    return FOVEA_OK;
  }
  void *own = malloc(needed ? needed : 1);
  if (!own) return fail(FOVEA_ERR_OUT_OF_MEMORY, "workspace: %zu bytes could not be allocated", needed);
  run_forward(call.problem, *call.kernel, call.plan, c->executor, own);
  free(own);
  return FOVEA_OK;
}
