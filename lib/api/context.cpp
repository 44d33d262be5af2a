#include "api/context.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "api/error.h"
#include "api/tuning.h"

namespace fovea {
namespace {

fovea_status check_options(const fovea_options &o) {
  if (o.struct_size != sizeof o)
    return fail(FOVEA_ERR_STRUCT_SIZE, "options.struct_size: %" PRIu32 " is not that of a version known here (%zu)",
                o.struct_size, sizeof o);
  if (o.flags & ~(FOVEA_NO_AMX | FOVEA_IGNORE_ENV | FOVEA_FAST_MATH16))
    return fail(FOVEA_ERR_UNSUPPORTED, "options.flags: %#" PRIx32 " has bits unknown to this version", o.flags);
  if (o.num_threads < 0 || o.num_threads > FOVEA_MAX_THREADS)
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "options.num_threads: %" PRId32 " is not in 0..%d", o.num_threads, FOVEA_MAX_THREADS);
  const fovea_executor *e = o.executor;
  if (!e) return FOVEA_OK;
  if (e->struct_size != sizeof *e)
    return fail(FOVEA_ERR_STRUCT_SIZE, "executor.struct_size: %" PRIu32 " is not that of a version known here (%zu)",
                e->struct_size, sizeof *e);
  if (e->num_workers < 1 || e->num_workers > FOVEA_MAX_THREADS)
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "executor.num_workers: %" PRId32 " is not in 1..%d", e->num_workers,
                FOVEA_MAX_THREADS);
  if (!e->parallel_for) return fail(FOVEA_ERR_NULL_POINTER, "executor.parallel_for: must not be NULL");
  return FOVEA_OK;
}

fovea_status require_level(int32_t level, const char *asked_by) {
  const char *refusal = level_refusal(level, cpu_features());
  if (*refusal) return fail(FOVEA_ERR_ISA_UNAVAILABLE, "%s: %s: %s", asked_by, level_name(level), refusal);
  return FOVEA_OK;
}

fovea_status choose_level(const fovea_options &o, int32_t *level) {
  *level = o.isa;
  if (*level != FOVEA_ISA_AUTO) {
    if (*level < 0 || level_from_name(level_name(*level)) != *level)
      return fail(FOVEA_ERR_INVALID_ARGUMENT, "options.isa: %" PRId32 " is not a level", *level);
    return require_level(*level, "options.isa");
  }
  const char *name = o.flags & FOVEA_IGNORE_ENV ? nullptr : getenv("FOVEA_ISA");
  if (name && *name) {
    *level = level_from_name(name);
    if (*level < 0) return fail(FOVEA_ERR_INVALID_ARGUMENT, "FOVEA_ISA: \"%.100s\" is not the name of a level", name);
    if (*level != FOVEA_ISA_AUTO) return require_level(*level, "FOVEA_ISA");
  }
  *level = best_level(cpu_features());
  return FOVEA_OK;
}

// Gives the context the kernels of the registry, tuned by the file that options or environment name.
fovea_status tune(const fovea_options &o, fovea_context *context) {
  const KernelEntry *entries;
  const int32_t count = kernel_entries(&entries);
  for (int32_t i = 0; i < count; ++i) context->kernels[i] = *entries[i].kernel;
  return *context->tuning ? load_tuning(o.tuning ? "options.tuning" : "FOVEA_TUNING", context->tuning, context->kernels)
                          : FOVEA_OK;
}

const char *choose_tuning(const fovea_options &o) {
  const char *file = o.tuning || (o.flags & FOVEA_IGNORE_ENV) ? o.tuning : getenv("FOVEA_TUNING");
  return file ? file : "";
}

Executor choose_executor(const fovea_options &o) {
  if (o.executor) return {o.executor->num_workers, 0, o.executor->user, o.executor->parallel_for};
  return openmp_executor(o.num_threads ? o.num_threads : default_threads());
}

}  // namespace
}  // namespace fovea

fovea_status fovea_options_init(fovea_options *o, size_t struct_size) {
  if (!o) return fovea::fail(FOVEA_ERR_NULL_POINTER, "o: must not be NULL");
  if (struct_size != sizeof *o)
    return fovea::fail(FOVEA_ERR_STRUCT_SIZE, "struct_size: %zu is not that of a version known here (%zu)", struct_size,
                       sizeof *o);
  *o = {};
  o->struct_size = sizeof *o;
  return FOVEA_OK;
}

fovea_status fovea_context_create(const fovea_options *o, fovea_context **out) {
  if (!out) return fovea::fail(FOVEA_ERR_NULL_POINTER, "out: must not be NULL");
  fovea_options defaults;
  if (!o) {
    fovea_options_init(&defaults, sizeof defaults);
    o = &defaults;
  }
  fovea_status status = fovea::check_options(*o);
  int32_t level;
  if (!status) status = fovea::choose_level(*o, &level);
  if (status) return status;
  const char *tuning = fovea::choose_tuning(*o);
  const size_t tuning_bytes = strlen(tuning) + 1;
  fovea_context *context = static_cast<fovea_context *>(malloc(sizeof *context + tuning_bytes));
  if (!context) return fovea::fail(FOVEA_ERR_OUT_OF_MEMORY, "context: out of memory");
  context->level = level;
  context->tuning = static_cast<char *>(memcpy(context + 1, tuning, tuning_bytes));
  status = fovea::tune(*o, context);
  if (status) {
    free(context);
    return status;
  }
  context->executor = fovea::choose_executor(*o);
  *out = context;
  return FOVEA_OK;
}

void fovea_context_destroy(fovea_context *c) { free(c); }

fovea_isa fovea_context_isa(const fovea_context *c) { return c ? c->level : FOVEA_ISA_AUTO; }

const char *fovea_context_tuning(const fovea_context *c) { return c ? c->tuning : ""; }

int32_t fovea_context_threads(const fovea_context *c) { return c ? c->executor.workers : 0; }
