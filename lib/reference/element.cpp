#include "reference/element.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace fovea::reference {
namespace {

struct Format16 {
  int fraction_bits, least_exponent, greatest_exponent;  // of normal numbers
};
constexpr Format16 kBinary16 = {10, -14, 15}, kBFloat16 = {7, -126, 127};

double decode(const Format16 &f, uint16_t bits) {
  const int fraction = bits & ((1 << f.fraction_bits) - 1), biased = (bits & 0x7FFF) >> f.fraction_bits;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (biased > f.greatest_exponent - f.least_exponent + 1)
    return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  const int whole = biased ? 1 << f.fraction_bits : 0;
  return sign * std::ldexp(whole + fraction, std::max(biased, 1) - 1 + f.least_exponent - f.fraction_bits);
}

uint16_t encode(const Format16 &f, double value) {
  const int sign = std::signbit(value) ? 0x8000 : 0, infinity = (f.greatest_exponent - f.least_exponent + 2) << f.fraction_bits;
  if (std::isnan(value)) return uint16_t(sign | infinity | 1 << (f.fraction_bits - 1));
  const int exponent = std::max(f.least_exponent, std::ilogb(value));
  if (exponent > f.greatest_exponent) return uint16_t(sign | infinity);
  // A carry out of the fraction goes into the exponent, and from the greatest exponent to infinity.
  const int fraction = int(std::nearbyint(std::ldexp(std::fabs(value), f.fraction_bits - exponent)));
  return uint16_t(sign | (((exponent - f.least_exponent) << f.fraction_bits) + fraction));
}

}  // namespace

size_t element_bytes(fovea_dtype dtype) {
  switch (dtype) {
    case FOVEA_BOOL:
    case FOVEA_I8: return 1;
    case FOVEA_Q8_0: return 34;
    case FOVEA_Q4_0: return 18;
    case FOVEA_F16:
    case FOVEA_BF16: return 2;
    case FOVEA_F32: return 4;
    default: throw std::invalid_argument("a dtype without elements of its own");
  }
}

int64_t block_elements(fovea_dtype dtype) { return dtype == FOVEA_Q8_0 || dtype == FOVEA_Q4_0 ? 32 : 1; }

double read_block_element(const void *data, fovea_dtype dtype, int64_t block, int64_t i) {
  const unsigned char *bytes = static_cast<const unsigned char *>(data) + block * int64_t(element_bytes(dtype));
  if (dtype == FOVEA_I8) return static_cast<int8_t>(*bytes);
  if (block_elements(dtype) == 1) return read_element(data, dtype, block);
  const double scale = decode(kBinary16, uint16_t(bytes[0] | bytes[1] << 8));
  if (dtype == FOVEA_Q8_0) return scale * static_cast<int8_t>(bytes[2 + i]);
  const int nibble = i < 16 ? bytes[2 + i] & 15 : bytes[2 + i - 16] >> 4;
  return scale * (nibble - 8);
}

void write_block(void *data, fovea_dtype dtype, int64_t block, const float *values) {
  unsigned char *bytes = static_cast<unsigned char *>(data) + block * int64_t(element_bytes(dtype));
  float widest = 0;
  for (int i = 0; i < 32; ++i) widest = std::fabs(values[i]) > std::fabs(widest) ? values[i] : widest;
  const bool nibbles = dtype == FOVEA_Q4_0;
  const uint16_t half = encode(kBinary16, nibbles ? double{widest} / -8 : std::fabs(double{widest}) / 127);
  bytes[0] = uint8_t(half & 0xFF), bytes[1] = uint8_t(half >> 8);
  const double scale = decode(kBinary16, half);
  const auto whole = [&](int i, double low, double high) {
    return scale == 0 ? 0 : int(std::min(std::max(std::nearbyint(double{values[i]} / scale), low), high));
  };
  for (int i = 0; i < 32 && !nibbles; ++i) bytes[2 + i] = uint8_t(whole(i, -127, 127));
  for (int i = 0; i < 16 && nibbles; ++i) bytes[2 + i] = uint8_t((whole(i, -8, 7) + 8) | (whole(i + 16, -8, 7) + 8) << 4);
}

double read_element(const void *data, fovea_dtype dtype, int64_t index) {
  switch (dtype) {
    case FOVEA_BOOL: return static_cast<const unsigned char *>(data)[index] != 0;
    case FOVEA_F16: return decode(kBinary16, static_cast<const uint16_t *>(data)[index]);
    case FOVEA_BF16: return decode(kBFloat16, static_cast<const uint16_t *>(data)[index]);
    case FOVEA_F32: return static_cast<const float *>(data)[index];
    default: throw std::invalid_argument("a dtype without elements of its own");
  }
}

void write_element(void *data, fovea_dtype dtype, int64_t index, double value) {
  switch (dtype) {
    case FOVEA_BOOL: static_cast<unsigned char *>(data)[index] = value != 0; return;
    case FOVEA_F16: static_cast<uint16_t *>(data)[index] = encode(kBinary16, value); return;
    case FOVEA_BF16: static_cast<uint16_t *>(data)[index] = encode(kBFloat16, value); return;
    case FOVEA_F32: static_cast<float *>(data)[index] = float(value); return;
    default: throw std::invalid_argument("a dtype without elements of its own");
  }
}

double lowest_element(fovea_dtype dtype) {
  switch (dtype) {
    case FOVEA_F16: return -65504;
    case FOVEA_BF16: return -0x1.FEp127;
    case FOVEA_F32: return -FLT_MAX;
    default: throw std::invalid_argument("not a floating-point type");
  }
}

double unit_roundoff(fovea_dtype dtype) {
  switch (dtype) {
    case FOVEA_F16: return 0x1p-11;
    case FOVEA_BF16: return 0x1p-8;
    case FOVEA_F32: return 0x1p-24;
    default: throw std::invalid_argument("not a floating-point type");
  }
}

// Half a unit in the last place above the greatest finite value, which is odd: the tie goes to infinity.
double least_that_overflows(fovea_dtype dtype) {
  const double greatest = -lowest_element(dtype);
  return greatest + std::exp2(std::ilogb(greatest)) * unit_roundoff(dtype);
}

}  // namespace fovea::reference
