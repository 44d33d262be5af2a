// The report of fovea_bench as text.
#pragma once
#include <nlohmann/json_fwd.hpp>

namespace fovea::bench {

void print_level(const nlohmann::ordered_json &level, bool goals);

}  // namespace fovea::bench
