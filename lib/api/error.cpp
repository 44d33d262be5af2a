#include "api/error.h"

#include <fenv.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

namespace {
__thread char last_error[256];
}

namespace fovea {

fovea_status fail(fovea_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return status;
}

fovea_status fail_within(fovea_status status, const char *format, ...) {
  char text[sizeof last_error];
  memcpy(text, last_error, sizeof text);
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  const int most = int(sizeof last_error) - 1;
  if (length > most) length = most;
  snprintf(last_error + length, sizeof last_error - size_t(length), "%.*s", most - length, text);
  return status;
}

fovea_status fail_number(const char *name, float value, const char *fault) {
  fenv_t saved;
  feholdexcept(&saved);
  fail(FOVEA_ERR_INVALID_ARGUMENT, "%s: %g %s", name, double(value), fault);
  fesetenv(&saved);
  return FOVEA_ERR_INVALID_ARGUMENT;
}

}  // namespace fovea

const char *fovea_last_error(void) { return last_error; }

const char *fovea_status_string(fovea_status status) {
  switch (status) {
    case FOVEA_OK: return "success";
    case FOVEA_ERR_NULL_POINTER: return "a pointer that must not be NULL is";
    case FOVEA_ERR_STRUCT_SIZE: return "struct_size is not that of a known version";
    case FOVEA_ERR_INVALID_ARGUMENT: return "an argument is outside its range";
    case FOVEA_ERR_INVALID_SIZE: return "a size is invalid";
    case FOVEA_ERR_INVALID_STRIDE: return "a stride is invalid";
    case FOVEA_ERR_INVALID_DTYPE: return "not a dtype that this tensor may have";
    case FOVEA_ERR_OVERLAP: return "an output overlaps another tensor";
    case FOVEA_ERR_WORKSPACE: return "the workspace is too small";
    case FOVEA_ERR_OUT_OF_MEMORY: return "out of memory";
    case FOVEA_ERR_UNSUPPORTED: return "not supported by this version";
    case FOVEA_ERR_ISA_UNAVAILABLE: return "the instruction set level is not available";
    default: return "unknown status";
  }
}
