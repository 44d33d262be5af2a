// What kind of number a float is, from its bits: a comparison would depend on the caller's floating-point environment, and raise its
// flags.
#pragma once
#include <cstdint>
#include <cstring>

namespace fovea {

inline uint32_t float_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline uint32_t magnitude_bits(float x) { return float_bits(x) & 0x7fffffff; }
inline bool is_negative(float x) { return float_bits(x) >> 31 && magnitude_bits(x) != 0; }
inline bool is_finite(float x) { return magnitude_bits(x) < 0x7f800000; }
inline bool is_minus_infinity(float x) { return float_bits(x) == 0xff800000; }
inline bool counts_as_zero(float x) { return magnitude_bits(x) < 0x00800000; }  // 0 and subnormals

}  // namespace fovea
