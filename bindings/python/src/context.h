// fovea.Context: a level of instructions and a number of threads, and how a call is run with them.
#pragma once
#include <fovea/fovea.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "pool.h"

namespace fovea_python {

class Context {
 public:
  // No name: the best level, or what FOVEA_ISA in the environment says. No threads: what this process may use. No file: what FOVEA_TUNING
  // names.
  Context(const std::optional<std::string> &isa, std::optional<int64_t> threads, const std::optional<std::string> &tuning);

  // That of calls which name none. Never destroyed: threads of the host may still be in a call when the process ends.
  static const Context &standard();

  const fovea_context *get() const { return parallel_.get(); }
  // One that wakes other threads only if that takes less time than it saves.
  const fovea_context *for_work(double multiply_adds) const;

  const char *isa() const { return fovea_isa_name(fovea_context_isa(get())); }
  int32_t threads() const { return fovea_context_threads(get()); }
  const char *tuning() const { return fovea_context_tuning(get()); }

  // fovea_forward() without the GIL, on memory that each thread of the host keeps.
  void forward(const fovea_params &p) const;
  // Seconds of one such call: the least of several runs of so many calls. For the benchmark of what a call from Python adds.
  double seconds_per_forward(const fovea_params &p, int64_t calls) const;

 private:
  struct Destroy {
    void operator()(fovea_context *c) const { fovea_context_destroy(c); }
  };
  using Owned = std::unique_ptr<fovea_context, Destroy>;
  static Owned create(fovea_isa isa, Pool *pool, const char *tuning);

  std::unique_ptr<Pool> pool_;
  Owned parallel_, serial_;
};

}  // namespace fovea_python
