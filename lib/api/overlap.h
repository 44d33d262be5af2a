// Whether strided tensors share memory. Exact, but for layouts so irregular that the search gives up: those count as sharing.
#pragma once
#include <cstdint>

namespace fovea {

// All of a tensor's bytes lie within so many from its address: sums over two tensors then fit 64 bits.
constexpr int64_t kMaxTensorBytes = int64_t{1} << 62;

// Elements of so many bytes at address + bytes * sum of index[a] * stride[a], 0 <= index[a] < size[a]. Sizes are at least 1,
// strides not negative, bytes a power of two that divides the address.
struct Elements {
  uintptr_t address;
  int64_t bytes;
  int64_t size[4], stride[4];
};

// Two indices of one tensor name the same element.
bool overlaps_itself(const Elements &elements);

// The tensors have a byte in common. Those that only lie in each other's gaps have none.
bool overlap(const Elements &a, const Elements &b);

}  // namespace fovea
