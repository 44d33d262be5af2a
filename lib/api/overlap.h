// Whether strided tensors share elements. Exact, but for layouts so irregular that the search gives up: those count as sharing.
#pragma once
#include <cstdint>

namespace fovea {

// The elements address + 4 * sum of index[a] * stride[a], 0 <= index[a] < size[a]. Sizes are at least 1, strides not negative,
// the address a multiple of 4, and the span of addresses less than 2^63 bytes.
struct Elements {
  uintptr_t address;
  int64_t size[4], stride[4];
};

// Two indices of one tensor name the same element.
bool overlaps_itself(const Elements &elements);

// The tensors have an element in common. Those that only lie in each other's gaps have none.
bool overlap(const Elements &a, const Elements &b);

}  // namespace fovea
