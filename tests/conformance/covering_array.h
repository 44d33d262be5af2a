// Covering arrays: few rows in which every combination of values of every listed set of factors occurs at least once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fovea::testing {

using FactorSet = std::vector<size_t>;
using Row = std::vector<size_t>;  // a value index for each factor

// All pairs (or triples) of distinct members of a set.
std::vector<FactorSet> all_pairs(const FactorSet &factors);
std::vector<FactorSet> all_triples(const FactorSet &factors);

// levels[f]: how many values factor f has. Greedy, and the same rows for the same arguments on every machine.
std::vector<Row> covering_array(const std::vector<size_t> &levels, const std::vector<FactorSet> &sets, uint64_t seed);

// How many combinations the rows leave out: 0 for what covering_array() returns.
size_t uncovered(const std::vector<size_t> &levels, const std::vector<FactorSet> &sets, const std::vector<Row> &rows);

}  // namespace fovea::testing
