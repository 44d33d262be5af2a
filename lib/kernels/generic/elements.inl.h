// Rows of keys and values of any type as vectors of floats, converted as they are loaded: the floats that convert.inl.h makes of them.
#pragma once
#include "kernels/generic/ahead.inl.h"
#include "kernels/generic/convert.inl.h"
#include "kernels/generic/score.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

// Keys and values of few rows that are not in cache are fetched into the first-level cache so many bytes before their use as Tuning's ahead_bytes
// says, in the order in which they lie in memory whatever the order of their use: keys, then the block's values, then the next keys.
constexpr int64_t kMostAhead = 2 * kKeyRun;

// The keys of a block, each where it lies in its own type, and those that come next.
struct KeyRows {
  const char *row[kBlockKeys + kMostAhead];
  float scale[kBlockKeys];  // of FOVEA_I8
  int32_t dtype;
  int32_t ahead;  // row[j + ahead] is fetched where row[j] is used
  int64_t bytes;  // of a row; 0: they are in cache, perhaps
};

// Fetches lines of rows one by one.
struct RowFetcher {
  const char *const *row;
  int64_t bytes;  // of a row; 0: nothing is fetched
  int64_t at;     // in the row
  FOVEA_INLINE void fetch() {
    __builtin_prefetch(*row + at, 0, 3);
    at += kLineBytes;
    const bool next = at >= bytes;
    row += next;
    at = next ? 0 : at;
  }
};

// Loads kVectors vectors from dim d of a row, a multiple of as many dims; a tail is the last n < kLanes dims.
template <class Simd, int32_t kType>
struct Elements {
  using Vector = typename Simd::Vector;
  static constexpr int kVectors = 1;
  static constexpr int kBytes = (kType == FOVEA_F32 ? 4 : kType == FOVEA_I8 ? 1 : 2) * Simd::kLanes;
  static FOVEA_INLINE void load(const char *row, float scale, int64_t d, Vector (&x)[kVectors]) {
    const auto *half = reinterpret_cast<const uint16_t *>(row);
    if constexpr (kType == FOVEA_F32)
      x[0] = Simd::load(reinterpret_cast<const float *>(row) + d);
    else if constexpr (kType == FOVEA_F16)
      x[0] = Simd::load_f16(half + d);
    else if constexpr (kType == FOVEA_BF16)
      x[0] = Simd::load_bf16(half + d);
    else
      x[0] = Simd::mul(Simd::load_i8(reinterpret_cast<const int8_t *>(row) + d), Simd::set1(scale));
  }
  static FOVEA_INLINE Vector load_tail(const char *row, float scale, int64_t d, int n, typename Simd::Tail tail) {
    if constexpr (kType == FOVEA_F32) return Simd::load_tail(reinterpret_cast<const float *>(row) + d, tail);
    float rest[Simd::kLanes] = {};
    if constexpr (kType == FOVEA_I8)
      scale_bytes<Simd>(reinterpret_cast<const int8_t *>(row) + d, 1, scale, n, rest);
    else
      load_elements<Simd>(reinterpret_cast<const uint16_t *>(row) + d, kType, 1, n, rest);
    return Simd::load(rest);
  }
};

// A block at a time, so that its scale is loaded once. Rows have no tails.
template <class Simd>
struct Elements<Simd, FOVEA_Q8_0> {
  using Vector = typename Simd::Vector;
  static constexpr int kVectors = static_cast<int>(kBlockElements / Simd::kLanes), kBytes = kBytesQ8_0;
  static FOVEA_INLINE void load(const char *row, float, int64_t d, Vector (&x)[kVectors]) {
    const char *block = row + d / kBlockElements * kBytesQ8_0;
    const auto scale = Simd::set1_f16(block);
    const auto *bytes = reinterpret_cast<const int8_t *>(block + sizeof(uint16_t));
    FOVEA_UNROLL
    for (int i = 0; i < kVectors; ++i) x[i] = Simd::mul(Simd::load_i8(bytes + i * Simd::kLanes), scale);
  }
  static FOVEA_INLINE Vector load_tail(const char *, float, int64_t, int, typename Simd::Tail) { return Simd::set1(0.0f); }
};
template <class Simd>
struct Elements<Simd, FOVEA_Q4_0> {
  using Vector = typename Simd::Vector;
  static constexpr int kVectors = static_cast<int>(kBlockElements / Simd::kLanes), kBytes = kBytesQ4_0;
  static FOVEA_INLINE void load(const char *row, float, int64_t d, Vector (&x)[kVectors]) {
    const char *block = row + d / kBlockElements * kBytesQ4_0;
    const auto scale = Simd::set1_f16(block);
    const auto *bytes = reinterpret_cast<const unsigned char *>(block + sizeof(uint16_t));
    FOVEA_UNROLL
    for (int i = 0; i < kVectors / 2; ++i) Simd::load_nibbles(bytes + i * Simd::kLanes, scale, x[i], x[kVectors / 2 + i]);
  }
  static FOVEA_INLINE Vector load_tail(const char *, float, int64_t, int, typename Simd::Tail) { return Simd::set1(0.0f); }
};

// Whether such rows can be loaded as they lie: dims side by side, and a vector is not longer than what a block has of a kind of element.
template <class Simd>
FOVEA_INLINE bool loads_in_place(const Tensor &t, int64_t dim) {
  if (t.dtype == FOVEA_Q8_0 || t.dtype == FOVEA_Q4_0) return Simd::kLanes <= kBlockElements / 2;
  return dim <= 1 || t.stride[3] == 1;
}

// run(Elements<Simd, dtype>()), where loads_in_place().
template <class Simd, class Run>
FOVEA_INLINE auto with_elements(int32_t dtype, Run run) {
  if constexpr (Simd::kLanes <= kBlockElements / 2) {
    if (dtype == FOVEA_Q8_0) return run(Elements<Simd, FOVEA_Q8_0>());
    if (dtype == FOVEA_Q4_0) return run(Elements<Simd, FOVEA_Q4_0>());
  }
  switch (dtype) {
    case FOVEA_F16: return run(Elements<Simd, FOVEA_F16>());
    case FOVEA_BF16: return run(Elements<Simd, FOVEA_BF16>());
    case FOVEA_I8: return run(Elements<Simd, FOVEA_I8>());
    default: return run(Elements<Simd, FOVEA_F32>());
  }
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
