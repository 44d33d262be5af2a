// Gives up the GIL for as long as it lives.
#pragma once
#include <Python.h>
#include <dlfcn.h>
#include <unistd.h>

namespace fovea_python {

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    // Before 3.14 Python ends a daemon thread that asks for the GIL of an interpreter that is being finalised, by unwinding its stack, which
    // aborts the process at the first function that may not throw. Such a thread stops here, as it does from 3.14 on.
    while (is_finalizing()) pause();
    PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil &) = delete;
  WithoutGil &operator=(const WithoutGil &) = delete;

 private:
  static bool is_finalizing() {
    // Public since 3.13.
    static const auto function =
        reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsFinalizing") ? dlsym(RTLD_DEFAULT, "Py_IsFinalizing")
                                                                           : dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"));
    return function && function();
  }
  PyThreadState *state_;
};

}  // namespace fovea_python
