// A call that is measured: its memory, the oracle's word on its result, and Fovea computing it.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "feature_list.h"
#include "fovea/fovea.h"
#include "machine.h"
#include "peaks.h"
#include "reference/oracle.h"
#include "shapes.h"

namespace fovea::bench {

class Call {
 public:
  explicit Call(const Shape &shape);
  Call with(const Feature &feature) const;  // on the same tensors

  // Runs what writes the call's output, and compares a sample of the rows.
  reference::Verdict judge(const std::function<void()> &run);

  double bytes() const;  // of queries, keys, values and outputs, each once
  double bytes_of_keys_and_values() const;
  std::vector<ReadSpan> keys_and_values() const;  // without scales of their own
  std::vector<char> result() const;

  fovea_params params;

 private:
  struct Tensors {
    Buffer q, k, v, out;
    std::unique_ptr<Buffer> quantised_k, quantised_v, k_scale, v_scale;  // where keys and values are no floats
  };
  void quantise_keys_and_values(const Shape &shape);

  std::shared_ptr<Tensors> tensors_;
  std::vector<ReadSpan> keys_and_values_;
  FeatureMemory converted_, feature_memory_;
  std::vector<int64_t> rows_;  // those compared
  reference::Expected expected_;
};

struct ContextDeleter {
  void operator()(fovea_context *c) const { fovea_context_destroy(c); }
};

// Fovea with the workspace given. The call must outlive it.
class Forward {
 public:
  Forward(const Call &call, fovea_isa level, int threads);
  void operator()() const;

 private:
  const fovea_params &params_;
  std::unique_ptr<fovea_context, ContextDeleter> context_;
  size_t bytes_ = 0;
  std::unique_ptr<Buffer> workspace_;
};

}  // namespace fovea::bench
