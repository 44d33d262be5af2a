// Gives up the GIL for as long as it lives.
#pragma once
#include <Python.h>
#include <unistd.h>

namespace fovea_python {

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      // Before 3.14 Python ends a daemon thread that asks for the GIL of an interpreter that is being finalised, by unwinding its stack, which
      // would abort the process at the first function that may not throw. It stops here, where 3.14 would stop it, until the process has ended.
      for (;;) pause();
    }
  }
  WithoutGil(const WithoutGil &) = delete;
  WithoutGil &operator=(const WithoutGil &) = delete;

 private:
  PyThreadState *state_;
};

}  // namespace fovea_python
