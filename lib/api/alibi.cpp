#include <inttypes.h>
#include <math.h>

#include "api/error.h"
#include "fovea/fovea.h"
#include "run/float_environment.h"

fovea_status fovea_alibi_slopes(int64_t heads, float *slopes) {
  if (heads < 0) return fovea::fail(FOVEA_ERR_INVALID_SIZE, "heads: %" PRId64 " is negative", heads);
  if (heads > 0 && !slopes) return fovea::fail(FOVEA_ERR_NULL_POINTER, "slopes: must not be NULL");
  int64_t power = 1;
  while (power <= heads / 2) power *= 2;
  const fovea::FloatEnvironment saved = fovea::enter_float_environment();  // the same bits whatever the caller's rounding
  for (int64_t h = 0; h < heads; ++h) {
    // The slopes of 2 * power heads are 2^(-4 (i + 1) / power): the odd i are those of power heads, the even ones lie between.
    const int64_t i = h < power ? 2 * h + 1 : 2 * (h - power);
    slopes[h] = float(exp2(-4 * double(i + 1) / double(power)));
  }
  fovea::leave_float_environment(saved);
  return FOVEA_OK;
}
