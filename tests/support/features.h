// What may shape the score, one at a time and all together, for tests that compare a call with another one that must give the same bits.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "fovea/fovea.h"
#include "support/mask.h"

namespace fovea::testing {

struct Feature {
  std::string name;
  std::function<void(fovea_params &, const Mask &)> apply;  // for at most 9 query heads
};
const std::vector<Feature> &features();

// Of every batch entry's own: excludes some keys and adds to the others. NaN where there is no such query or key.
Mask mask_of_entries(const Sizes &n, const std::vector<int64_t> &q_len, const std::vector<int64_t> &kv_len);

extern const float kSomeSinks[9];  // -infinity among them

}  // namespace fovea::testing
