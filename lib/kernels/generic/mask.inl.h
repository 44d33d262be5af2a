// Masks as they lie in memory: read a piece at a time as what is added to scores, and summed up in a map of blocks.
#pragma once
#include "kernels/generic/convert.inl.h"
#include "kernels/generic/shape.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

// What a piece of a mask adds to a row: the most in the first tile that adds anything, the most and the least in all.
template <class Simd>
struct BiasRange {
  typename Simd::Vector first, most, least;
  FOVEA_INLINE void clear() {
    first = most = Simd::set1(kNoKeys);
    least = Simd::set1(0.0f);
  }
  FOVEA_INLINE void add_tile(const typename Simd::Vector (&bias)[kKeyTile]) {
    const auto highest = maximum<Simd, kKeyTile>(bias);
    first = Simd::select_less(first, Simd::set1(kLowest), highest, first);
    most = Simd::max(most, highest);
    FOVEA_UNROLL
    for (int r = 0; r < kKeyTile; ++r) least = Simd::min(least, bias[r]);
  }
};

// Keys [first, end) of kLanes rows of a mask: piece[j * width + lane] for key first + j. rows: their entries for key 0. range: of tiles from
// `first` on.
template <class Simd>
void transpose_mask(const char *const *rows, const Tensor &mask, int64_t first, int64_t end, float *piece, int64_t width,
                    BiasRange<Simd> &range) {
  constexpr int L = Simd::kLanes, kGroup = Simd::kMostColumns < kKeyTile ? kKeyTile : Simd::kMostColumns;
  const int64_t bytes = element_bytes(mask.dtype), stride = mask.stride[3];
  const float *row[L];
  range.clear();
  // Whole lines of rows are used at once: rows may lie a power of two apart, and push each other out of the cache.
  if (mask.dtype == FOVEA_F32 && stride == 1) {
    for (int lane = 0; lane < L; ++lane) row[lane] = reinterpret_cast<const float *>(rows[lane]);
    for (; first + kGroup <= end; first += kGroup, piece += kGroup * width) {
      typename Simd::Vector x[kGroup / Simd::kMostColumns][Simd::kMostColumns], tile[kKeyTile];
      FOVEA_UNROLL
      for (int c = 0; c < kGroup; c += Simd::kMostColumns) Simd::load_columns(row, first + c, x[c / Simd::kMostColumns]);
      FOVEA_UNROLL
      for (int c = 0; c < kGroup; ++c) {
        tile[c % kKeyTile] = x[c / Simd::kMostColumns][c % Simd::kMostColumns];
        Simd::store(piece + c * width, tile[c % kKeyTile]);
        if (c % kKeyTile == kKeyTile - 1) range.add_tile(tile);
      }
    }
  }
  // What is left goes through a buffer, as other types and strides do.
  alignas(64) float buffer[L * kKeyTile];
  for (int lane = 0; lane < L; ++lane) row[lane] = buffer + lane * kKeyTile;
  for (; first < end; first += kKeyTile, piece += kKeyTile * width) {
    const int64_t n = end - first < kKeyTile ? end - first : kKeyTile;
    for (int lane = 0; lane < L; ++lane)
      load_elements<Simd>(rows[lane] + first * stride * bytes, mask.dtype, stride, n, buffer + lane * kKeyTile);
    typename Simd::Vector tile[kKeyTile];
    FOVEA_UNROLL
    for (int c = 0; c < kKeyTile; c += kColumns) {
      typename Simd::Vector x[kColumns];
      Simd::load_columns(row, c, x);
      FOVEA_UNROLL
      for (int i = 0; i < kColumns; ++i) tile[c + i] = c + i < n ? x[i] : tile[0];  // the first is always there
    }
    FOVEA_UNROLL
    for (int c = 0; c < kKeyTile; ++c)
      if (c < n) Simd::store(piece + c * width, tile[c]);
    range.add_tile(tile);
  }
}

template <int kBytes>
struct SumOf {
  using Type = uint32_t;
};
template <>
struct SumOf<1> {
  using Type = uint8_t;
};
template <>
struct SumOf<2> {
  using Type = uint16_t;
};

template <class T, class Permits, class Changes>
FOVEA_INLINE unsigned describe_elements(const char *from, int64_t stride, int64_t n, Permits permits, Changes changes) {
  const T *p = reinterpret_cast<const T *>(from);
  // Sums as wide as an element, so that a vector holds as many of both.
  using Sum = typename SumOf<sizeof(T)>::Type;
  Sum some_permit = 0, some_change = 0;
  if (stride == 1) {
    for (int64_t j = 0; j < n; ++j) some_permit |= Sum(permits(p[j])), some_change |= Sum(changes(p[j]));
  } else {
    for (int64_t j = 0; j < n; ++j) some_permit |= Sum(permits(p[j * stride])), some_change |= Sum(changes(p[j * stride]));
  }
  return (some_permit ? kMapPermits : 0) | (some_change ? kMapChanges : 0);
}

inline unsigned describe_mask(const char *from, int32_t dtype, int64_t stride, int64_t n) {
  if (dtype == FOVEA_BOOL)
    return describe_elements<unsigned char>(
        from, stride, n, [](unsigned char x) -> unsigned char { return x; },
        [](unsigned char x) -> unsigned char { return x == 0; });
  if (dtype == FOVEA_F32)
    return describe_elements<float>(
        from, stride, n, [](float x) { return static_cast<unsigned>(!(x < kLowest)); },
        [](float x) { return static_cast<unsigned>(!(x == 0)); });
  const uint16_t excludes = dtype == FOVEA_BF16 ? 0xff80 : 0xfc00;  // -inf
  return describe_elements<uint16_t>(
      from, stride, n, [=](uint16_t x) { return static_cast<unsigned>(x != excludes); },
      [](uint16_t x) { return static_cast<unsigned>((x & 0x7fff) != 0); });
}

inline void map_mask(const MaskMapTask *task) {
  const Tensor &mask = task->problem->mask;
  const int64_t bytes = element_bytes(mask.dtype);
  const char *rows = static_cast<const char *>(mask.data) + (task->batch * mask.stride[0] + task->head * mask.stride[1]) * bytes;
  for (int64_t begin = task->key_begin; begin < task->key_end; begin += kBlockKeys) {
    const int64_t n = begin + kBlockKeys < task->key_end ? kBlockKeys : task->key_end - begin, block = begin / kBlockKeys;
    unsigned found = 0;
    for (int64_t i = task->query_begin; i < task->query_end && found != (kMapPermits | kMapChanges); ++i)
      found |= describe_mask(rows + (i * mask.stride[2] + begin * mask.stride[3]) * bytes, mask.dtype, mask.stride[3], n);
    uint8_t &four = task->bits[block / 4];
    four = static_cast<uint8_t>(four | found << block % 4 * 2);
  }
}

// What a map says of a block for queries [first, last] of the heads [head, head_end).
inline unsigned describe_block(const MaskMap &map, int64_t head, int64_t head_end, int64_t first, int64_t last, int64_t block) {
  if (map.head_stride == 0) head_end = head + 1;
  if (map.row_stride == 0) first = last = 0;
  unsigned found = 0;
  for (int64_t h = head; h < head_end; ++h) {
    for (int64_t row = first / kMapQueries; row <= last / kMapQueries; ++row) {
      const uint8_t four = map.bits[h * map.head_stride + row * map.row_stride + block / 4];
      found |= four >> block % 4 * 2 & 3;
    }
  }
  return found;
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
