// The text of a thread's latest failure.
#pragma once
#include "fovea/fovea.h"

namespace fovea {

// Keeps the formatted text for fovea_last_error() and returns status. The text starts with the argument: "k.stride[2]: -5 is
// negative".
__attribute__((cold, format(printf, 2, 3))) fovea_status fail(fovea_status status, const char *format, ...);

// Puts the formatted text in front of the one that fail() has just kept, and returns status: "parts[2]." makes it "parts[2].out:
// ...".
__attribute__((cold, format(printf, 2, 3))) fovea_status fail_within(fovea_status status, const char *format, ...);

// "name: value fault", FOVEA_ERR_INVALID_ARGUMENT. The caller's floating-point environment stays as it is, whatever the value.
__attribute__((cold)) fovea_status fail_number(const char *name, float value, const char *fault);

}  // namespace fovea
