#include "error.h"

#include <nanobind/nanobind.h>

#include <cstdarg>
#include <cstdio>

namespace nb = nanobind;

namespace fovea_python {
namespace {

[[noreturn]] void raise(fovea_status status, const char *text) {
  nb::object cause;
  if (PyErr_Occurred()) {
    nb::python_error pending;
    cause = nb::borrow(pending.value());
  }
  nb::object exception = nb::module_::import_("fovea.errors").attr("for_status")(status, text);
  if (cause) PyException_SetCause(exception.ptr(), cause.release().ptr());
  PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

}  // namespace

void fail(fovea_status status, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  raise(status, text);
}

void check(fovea_status status) {
  if (status) raise(status, fovea_last_error());
}

}  // namespace fovea_python
