#include "api/quantise.h"

#include <string.h>

#include "core/dtype.h"
#include "core/float_bits.h"

namespace fovea {
namespace {

constexpr uint32_t kInfinityBits = 0x7f800000, kNaNBits = 0x7fc00000;
constexpr uint16_t kNaNOfF16 = 0x7e00;

// Subnormal scales count as 0 when they are read.
float without_subnormals(float x) { return counts_as_zero(x) ? float_of_bits(float_bits(x) & 0x80000000) : x; }

// Floats at 1.5 * 2^23 are whole numbers: adding it rounds a number of magnitude below 2^22 to nearest even.
inline int8_t nearest_even(float x) {
  constexpr float kWhole = 0x1.8p23f;
  return int8_t(float_bits(x + kWhole) - float_bits(kWhole));
}

// C's roundf(): ties away from zero.
inline int8_t nearest_away(float x) {
  const float magnitude = float_of_bits(magnitude_bits(x));
  const int32_t whole = int32_t(magnitude), rounded = whole + (magnitude - float(whole) >= 0.5f);
  return int8_t(float_bits(x) >> 31 ? -rounded : rounded);
}

// A block is the scale, then the numbers.
void write_scale(uint16_t scale, void *block) { memcpy(block, &scale, sizeof scale); }

}  // namespace

uint32_t largest_magnitude(const float *x, int64_t n, uint32_t largest) {
  int32_t most = int32_t(largest);  // of signed numbers there is a vector instruction
  for (int64_t i = 0; i < n; ++i) {
    const int32_t magnitude = int32_t(magnitude_bits(x[i]));
    most = magnitude > most ? magnitude : most;
  }
  return uint32_t(most);
}

float scale_i8(uint32_t largest) {
  if (largest >= kInfinityBits) return float_of_bits(kNaNBits);
  return without_subnormals(float_of_bits(largest) / 127);
}

void quantise_i8(const float *x, int64_t n, float scale, void *to, int64_t stride) {
  auto *q = static_cast<int8_t *>(to);
  if (counts_as_zero(scale) || !is_finite(scale)) {
    for (int64_t i = 0; i < n; ++i) q[i * stride] = 0;
  } else if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) q[i] = nearest_even(x[i] / scale);
  } else {
    for (int64_t i = 0; i < n; ++i) q[i * stride] = nearest_even(x[i] / scale);
  }
}

void quantise_q8_0(const float *x, void *block) {
  auto *q = static_cast<int8_t *>(block) + sizeof(uint16_t);
  const uint32_t largest = largest_magnitude(x, kBlockElements, 0);
  if (largest >= kInfinityBits) {
    write_scale(kNaNOfF16, block);
    memset(q, 0, size_t(kBlockElements));
    return;
  }
  const float scale = without_subnormals(float_of_bits(largest) / 127);
  const float inverse = scale != 0 ? 1 / scale : 0;
  write_scale(f16_of_float(scale), block);
  for (int64_t i = 0; i < kBlockElements; ++i) q[i] = nearest_away(x[i] * inverse);
}

void quantise_q4_0(const float *x, void *block) {
  constexpr int64_t kHalf = kBlockElements / 2;
  auto *q = static_cast<uint8_t *>(block) + sizeof(uint16_t);
  const uint32_t largest = largest_magnitude(x, kBlockElements, 0);
  if (largest >= kInfinityBits) {
    write_scale(kNaNOfF16, block);
    memset(q, 0x88, size_t(kHalf));  // 8 stands for 0
    return;
  }
  int64_t at = 0;
  while (magnitude_bits(x[at]) != largest) ++at;  // of two that are as large the first
  const float scale = without_subnormals((largest ? x[at] : 0) / -8);
  const float inverse = scale != 0 ? 1 / scale : 0;
  write_scale(f16_of_float(scale), block);
  for (int64_t i = 0; i < kHalf; ++i) {
    const int32_t low = int32_t(x[i] * inverse + 8.5f), high = int32_t(x[i + kHalf] * inverse + 8.5f);
    q[i] = uint8_t((low < 15 ? low : 15) | (high < 15 ? high : 15) << 4);
  }
}

}  // namespace fovea
