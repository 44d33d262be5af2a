// What a call may be asked for beside plain f32 attention, and how much of the plain call's time it may cost.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fovea/fovea.h"
#include "machine.h"
#include "shapes.h"

namespace fovea::bench {

using FeatureMemory = std::vector<std::shared_ptr<Buffer>>;  // what a feature's parameters point to

struct Feature {
  std::string name;
  double most;  // time as a multiple of the plain call's, on one thread of a vector level; 0: no goal
  std::function<FeatureMemory(fovea_params *)> apply;
  double most_by_bf16_dot = 0;  // in its place on levels that multiply bfloat16 as such; 0: none
};

// Calls that are measured beside the plain call of a shape.
struct Comparison {
  std::string set;
  Shape shape;
  std::vector<Feature> features;
};

// Queries, keys, values and outputs in a float type, the same numbers rounded to it.
FeatureMemory convert(fovea_params *params, fovea_dtype dtype);

// "features" or "types"; others have none.
std::vector<Comparison> comparisons(const std::string &set);

}  // namespace fovea::bench
