#include "conformance/covering_array.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace fovea::testing {
namespace {

constexpr size_t kUnset = SIZE_MAX;

struct Combinations {
  FactorSet factors;
  std::vector<char> covered;
  size_t missing;
};

std::vector<Combinations> nothing_covered(const std::vector<size_t> &levels, const std::vector<FactorSet> &sets) {
  std::vector<Combinations> all;
  for (const FactorSet &set : sets) {
    size_t count = 1;
    for (const size_t f : set) count *= levels[f];
    all.push_back({set, std::vector<char>(count, 0), count});
  }
  return all;
}

// The combination's place in `covered`, or kUnset while some factor of the set has no value.
size_t combination(const FactorSet &set, const std::vector<size_t> &levels, const Row &row) {
  size_t index = 0;
  for (const size_t f : set) {
    if (row[f] == kUnset) return kUnset;
    index = index * levels[f] + row[f];
  }
  return index;
}

void cover(std::vector<Combinations> &all, const std::vector<size_t> &levels, const Row &row) {
  for (Combinations &c : all) {
    char &covered = c.covered[combination(c.factors, levels, row)];
    c.missing -= !covered;
    covered = 1;
  }
}

template <class Visit>
void subsets(const FactorSet &factors, size_t size, size_t from, FactorSet &chosen, Visit visit) {
  if (chosen.size() == size) return visit(chosen);
  for (size_t i = from; i < factors.size(); ++i) {
    chosen.push_back(factors[i]);
    subsets(factors, size, i + 1, chosen, visit);
    chosen.pop_back();
  }
}

std::vector<FactorSet> all_subsets(const FactorSet &factors, size_t size) {
  std::vector<FactorSet> sets;
  FactorSet chosen;
  subsets(factors, size, 0, chosen, [&](const FactorSet &set) { sets.push_back(set); });
  return sets;
}

}  // namespace

std::vector<FactorSet> all_pairs(const FactorSet &factors) { return all_subsets(factors, 2); }
std::vector<FactorSet> all_triples(const FactorSet &factors) { return all_subsets(factors, 3); }

std::vector<Row> covering_array(const std::vector<size_t> &levels, const std::vector<FactorSet> &sets, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return size_t(random() % n); };  // std distributions differ between libraries
  std::vector<Combinations> all = nothing_covered(levels, sets);
  std::vector<std::vector<size_t>> sets_of(levels.size());
  for (size_t s = 0; s < all.size(); ++s)
    for (const size_t f : all[s].factors) sets_of[f].push_back(s);

  std::vector<Row> rows;
  for (;;) {
    // Start from a missing combination of the set that lacks most, then give each factor the value that covers most.
    Combinations &start =
        *std::max_element(all.begin(), all.end(), [](const auto &a, const auto &b) { return a.missing < b.missing; });
    if (start.missing == 0) return rows;
    size_t index = below(start.covered.size());
    while (start.covered[index]) index = (index + 1) % start.covered.size();
    Row row(levels.size(), kUnset);
    for (size_t i = start.factors.size(); i-- > 0;) {
      const size_t f = start.factors[i];
      row[f] = index % levels[f];
      index /= levels[f];
    }
    std::vector<size_t> order(levels.size());
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(i)]);
    for (const size_t f : order) {
      if (row[f] != kUnset) continue;
      size_t best_value = 0, best_gain = 0;
      const size_t first = below(levels[f]);  // ties go to a different value each time
      for (size_t i = 0; i < levels[f]; ++i) {
        row[f] = (first + i) % levels[f];
        size_t gain = 1;
        for (const size_t s : sets_of[f]) {
          const size_t place = combination(all[s].factors, levels, row);
          gain += place != kUnset && !all[s].covered[place];
        }
        if (gain > best_gain) best_gain = gain, best_value = row[f];
      }
      row[f] = best_value;
    }
    cover(all, levels, row);
    rows.push_back(row);
  }
}

size_t uncovered(const std::vector<size_t> &levels, const std::vector<FactorSet> &sets, const std::vector<Row> &rows) {
  std::vector<Combinations> all = nothing_covered(levels, sets);
  for (const Row &row : rows) cover(all, levels, row);
  size_t missing = 0;
  for (const Combinations &c : all) missing += c.missing;
  return missing;
}

}  // namespace fovea::testing
