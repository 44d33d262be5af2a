// Failures become exceptions of fovea.errors: subclasses of fovea.Error that carry the status of the C API.
#pragma once
#include <fovea/fovea.h>

namespace fovea_python {

// Throws nanobind::python_error with the class that belongs to a status. An exception that is set already becomes its cause.
[[noreturn]] void fail(fovea_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The text of a failed call of the library, unless status is FOVEA_OK.
void check(fovea_status status);

}  // namespace fovea_python
