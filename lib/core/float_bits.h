// Floats by their bits: what kind of number one is, and 16-bit elements as floats and back. A comparison would depend on the
// caller's floating-point environment, and raise its flags. Static functions only: this header is also compiled into objects of
// every instruction set.
#pragma once
#include <cstdint>

namespace fovea {

#define FOVEA_BITS static inline __attribute__((always_inline))

FOVEA_BITS uint32_t float_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
FOVEA_BITS float float_of_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

FOVEA_BITS uint32_t magnitude_bits(float x) { return float_bits(x) & 0x7fffffff; }
FOVEA_BITS bool is_negative(float x) { return float_bits(x) >> 31 && magnitude_bits(x) != 0; }
FOVEA_BITS bool is_finite(float x) { return magnitude_bits(x) < 0x7f800000; }
FOVEA_BITS bool is_minus_infinity(float x) { return float_bits(x) == 0xff800000; }
FOVEA_BITS bool counts_as_zero(float x) { return magnitude_bits(x) < 0x00800000; }  // 0 and subnormals

// To nearest even, if that is how the thread rounds; NaN stays NaN, of halves signalling ones too. A subnormal half is a whole
// number of 2^-24: floats made of its shifted bits would be flushed to 0 on the way.
FOVEA_BITS float float_of_f16(uint16_t h) {
  const uint32_t exponent = h >> 10 & 31, fraction = h & 1023, sign = (h & 0x8000u) << 16;
  const uint32_t bits = (exponent + (exponent == 31 ? 224 : 112)) << 23 | fraction << 13;  // biases 127 - 15; 255 - 31
  const uint32_t magnitude = exponent == 0 ? float_bits(float(fraction) * 0x1p-24f) : bits;
  return float_of_bits(magnitude | sign);
}
FOVEA_BITS uint16_t f16_of_float(float x) {
  const uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // 65520: half way to 2^16
  // Below 2^-14 the last bit is worth 2^-24, as it is of floats from 1/2 up.
  if (magnitude < 0x38800000) return uint16_t(sign | (float_bits(float_of_bits(magnitude) + 0.5f) - 0x3f000000));
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return uint16_t(sign | ((rounded >> 13) - (112 << 10)));
}
FOVEA_BITS float float_of_bf16(uint16_t h) { return float_of_bits(uint32_t{h} << 16); }
FOVEA_BITS uint16_t bf16_of_float(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#undef FOVEA_BITS

}  // namespace fovea
