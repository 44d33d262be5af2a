// Elements of every type as floats, and floats as elements: to nearest even, NaN stays NaN, subnormal halves stay what they are. A quantised
// element is its scale times a small whole number, rounded once.
#pragma once
#include "core/dtype.h"
#include "core/float_bits.h"
#include "kernels/generic/simd.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

struct Bf16 {
  uint16_t bits;
};
template <class Element>
constexpr int32_t kDtypeOf = FOVEA_F32;
template <>
constexpr int32_t kDtypeOf<Bf16> = FOVEA_BF16;

// Of a block, where elements lie in such: strides count blocks then.
FOVEA_INLINE int64_t element_bytes(int32_t dtype) {
  switch (dtype) {
    case FOVEA_F32: return 4;
    case FOVEA_BOOL:
    case FOVEA_I8: return 1;
    case FOVEA_Q8_0: return kBytesQ8_0;
    case FOVEA_Q4_0: return kBytesQ4_0;
    default: return 2;
  }
}
// Of so many dims that lie side by side.
FOVEA_INLINE int64_t row_bytes(int32_t dtype, int64_t dim) {
  return element_bytes(dtype) * (dtype == FOVEA_Q8_0 || dtype == FOVEA_Q4_0 ? dim / kBlockElements : dim);
}

// NaN becomes quiet, as instructions make it.
FOVEA_INLINE float quiet_float_of_f16(uint16_t h) {
  const uint32_t bits = float_bits(float_of_f16(h));
  return float_of_bits((bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : bits);
}

// For instruction sets without instructions for quantised blocks that would be worth it: lane by lane.
template <class Base>
struct BlocksByLane : Base {
  using typename Base::Vector;
  static FOVEA_INLINE Vector set1_f16(const char *p) {
    uint16_t half;
    __builtin_memcpy(&half, p, sizeof half);
    return Base::set1(quiet_float_of_f16(half));
  }
  static FOVEA_INLINE void load_nibbles(const unsigned char *p, Vector scale, Vector &low, Vector &high) {
    float lows[Base::kLanes], highs[Base::kLanes];
    for (int i = 0; i < Base::kLanes; ++i) {
      lows[i] = static_cast<float>((p[i] & 15) - 8);
      highs[i] = static_cast<float>((p[i] >> 4) - 8);
    }
    low = Base::mul(Base::load(lows), scale);
    high = Base::mul(Base::load(highs), scale);
  }
};

// For instruction sets without conversions: lane by lane.
template <class Base>
struct ConvertedByLane : Base {
  using typename Base::Vector;
  static FOVEA_INLINE Vector load_i8(const int8_t *p) {
    float lanes[Base::kLanes];
    for (int i = 0; i < Base::kLanes; ++i) lanes[i] = p[i];
    return Base::load(lanes);
  }
  static FOVEA_INLINE Vector load_f16(const uint16_t *p) { return load(p, quiet_float_of_f16); }
  static FOVEA_INLINE Vector load_bf16(const uint16_t *p) { return load(p, float_of_bf16); }
  static FOVEA_INLINE void store_f16(uint16_t *p, Vector v) { store(p, v, f16_of_float); }
  static FOVEA_INLINE void store_bf16(uint16_t *p, Vector v) { store(p, v, bf16_of_float); }
  using Base::load;
  using Base::store;

 private:
  static FOVEA_INLINE Vector load(const uint16_t *p, float (*convert)(uint16_t)) {
    float lanes[Base::kLanes];
    for (int i = 0; i < Base::kLanes; ++i) lanes[i] = convert(p[i]);
    return Base::load(lanes);
  }
  static FOVEA_INLINE void store(uint16_t *p, Vector v, uint16_t (*convert)(float)) {
    float lanes[Base::kLanes];
    Base::store(lanes, v);
    for (int i = 0; i < Base::kLanes; ++i) p[i] = convert(lanes[i]);
  }
};

// convert(j) for vectors of elements from j on, n in all; returns how many that were: none where they do not fill one. The last vector
// overlaps the one before it, and what they share comes out the same: elements one by one would take longer than all others.
template <class Simd, class Convert>
FOVEA_INLINE int64_t convert_vectors(int64_t n, Convert convert) {
  constexpr int64_t L = Simd::kLanes;
  if (n < L) return 0;
  for (int64_t j = 0; j + L <= n; j += L) convert(j);
  if (n % L != 0) convert(n - L);
  return n;
}

// n elements as floats; from a mask of FOVEA_BOOL what it adds: 0 or -inf.
template <class Simd>
void load_elements(const void *from, int32_t dtype, int64_t stride, int64_t n, float *to) {
  const auto *f = static_cast<const float *>(from);
  const auto *h = static_cast<const uint16_t *>(from);
  const auto *b = static_cast<const unsigned char *>(from);
  int64_t j = 0;
  if (stride == 1 && dtype == FOVEA_F16) {
    j = convert_vectors<Simd>(n, [&](int64_t i) { Simd::store(to + i, Simd::load_f16(h + i)); });
  } else if (stride == 1 && dtype == FOVEA_BF16) {
    j = convert_vectors<Simd>(n, [&](int64_t i) { Simd::store(to + i, Simd::load_bf16(h + i)); });
  } else if (stride == 1 && dtype == FOVEA_BOOL) {
    for (; j < n; ++j) to[j] = b[j] ? 0.0f : -__builtin_inff();
  } else if (stride == 1) {
    for (; j < n; ++j) to[j] = f[j];
  }
  switch (dtype) {
    case FOVEA_F16:
      for (; j < n; ++j) to[j] = quiet_float_of_f16(h[j * stride]);
      break;
    case FOVEA_BF16:
      for (; j < n; ++j) to[j] = float_of_bf16(h[j * stride]);
      break;
    case FOVEA_BOOL:
      for (; j < n; ++j) to[j] = b[j * stride] ? 0.0f : -__builtin_inff();
      break;
    default:
      for (; j < n; ++j) to[j] = f[j * stride];
  }
}

template <class Simd>
void store_elements(const float *from, int64_t n, void *to, int32_t dtype, int64_t stride) {
  auto *f = static_cast<float *>(to);
  auto *h = static_cast<uint16_t *>(to);
  int64_t j = 0;
  if (stride == 1 && dtype == FOVEA_F16) {
    j = convert_vectors<Simd>(n, [&](int64_t i) { Simd::store_f16(h + i, Simd::load(from + i)); });
  } else if (stride == 1 && dtype == FOVEA_BF16) {
    j = convert_vectors<Simd>(n, [&](int64_t i) { Simd::store_bf16(h + i, Simd::load(from + i)); });
  }
  switch (dtype) {
    case FOVEA_F16:
      for (; j < n; ++j) h[j * stride] = f16_of_float(from[j]);
      break;
    case FOVEA_BF16:
      for (; j < n; ++j) h[j * stride] = bf16_of_float(from[j]);
      break;
    default:
      for (; j < n; ++j) f[j * stride] = from[j];
  }
}

// n signed bytes times their scale.
template <class Simd>
FOVEA_INLINE void scale_bytes(const int8_t *from, int64_t stride, float scale, int64_t n, float *to) {
  int64_t j = 0;
  if (stride == 1) {
    j = convert_vectors<Simd>(n, [&](int64_t i) { Simd::store(to + i, Simd::mul(Simd::load_i8(from + i), Simd::set1(scale))); });
  }
  for (; j < n; ++j) to[j] = static_cast<float>(from[j * stride]) * scale;
}

// The blocks of a row, side by side.
template <class Simd>
void load_blocks(const void *from, int32_t dtype, int64_t dim, float *to) {
  const char *block = static_cast<const char *>(from);
  for (int64_t d = 0; d < dim; d += kBlockElements, block += element_bytes(dtype)) {
    uint16_t scale;
    __builtin_memcpy(&scale, block, sizeof scale);
    const auto *bytes = reinterpret_cast<const int8_t *>(block + sizeof scale);
    int8_t unpacked[kBlockElements];
    if (dtype == FOVEA_Q4_0) {
      for (int i = 0; i < kBlockElements / 2; ++i) {
        unpacked[i] = static_cast<int8_t>((bytes[i] & 15) - 8);
        unpacked[i + kBlockElements / 2] = static_cast<int8_t>((bytes[i] >> 4 & 15) - 8);
      }
      bytes = unpacked;
    }
    scale_bytes<Simd>(bytes, 1, quiet_float_of_f16(scale), kBlockElements, to + d);
  }
}

// Rows of a tensor as they lie, one stride[2] after the other, become floats, their rows a to_stride apart. scale: of the first row of FOVEA_I8, the
// next a scale_stride behind.
template <class Simd>
void load_rows(const void *from, const Tensor &t, const float *scale, int64_t scale_stride, int64_t count, int64_t dim, float *to,
               int64_t to_stride) {
  const char *row = static_cast<const char *>(from);
  for (int64_t j = 0; j < count; ++j, row += t.stride[2] * element_bytes(t.dtype), to += to_stride) {
    if (t.dtype == FOVEA_I8)
      scale_bytes<Simd>(reinterpret_cast<const int8_t *>(row), t.stride[3], scale[j * scale_stride], dim, to);
    else if (t.dtype == FOVEA_Q8_0 || t.dtype == FOVEA_Q4_0)
      load_blocks<Simd>(row, t.dtype, dim, to);
    else
      load_elements<Simd>(row, t.dtype, t.stride[3], dim, to);
  }
}

// Rows of bfloat16 as they are, with zeros behind them.
template <class Simd>
void load_rows(const void *from, const Tensor &t, const float *, int64_t, int64_t count, int64_t dim, Bf16 *to,
               int64_t to_stride) {
  const auto *row = static_cast<const Bf16 *>(from);
  for (int64_t j = 0; j < count; ++j, row += t.stride[2], to += to_stride) {
    if (t.stride[3] == 1) {
      __builtin_memcpy(to, row, static_cast<size_t>(dim) * sizeof *to);
    } else {
      for (int64_t d = 0; d < dim; ++d) to[d] = row[d * t.stride[3]];
    }
    for (int64_t d = dim; d < to_stride; ++d) to[d] = {};
  }
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
