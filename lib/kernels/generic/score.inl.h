// Scores of a panel: kKeyTile keys against the queries of a panel, queries in the lanes. K is read where it lies, one lane's worth of
// elements broadcast a step; the panel is transposed and carries the scale, or its power of 2. Every score is the same sum over the dims in every
// tile shape, so its bits depend on its query and key alone.
#pragma once
#include "kernels/generic/simd.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

FOVEA_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
FOVEA_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
FOVEA_INLINE int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : smaller(x, high); }

constexpr float kNoKeys = -__builtin_inff();  // the maximum over no keys
constexpr float kLowest = -3.402823466e+38f;  // -FLT_MAX: less than this is kNoKeys

// What to subtract where the maximum may be kNoKeys: exp2(-inf - 0) is 0, exp2(-inf + inf) would be NaN.
template <class Simd>
FOVEA_INLINE typename Simd::Vector finite_reference(typename Simd::Vector max) {
  return Simd::select_less(max, Simd::set1(kLowest), Simd::set1(0.0f), max);
}

template <class Simd, int T>
FOVEA_INLINE typename Simd::Vector maximum(const typename Simd::Vector (&s)[T]) {
  static_assert((T & (T - 1)) == 0);
  typename Simd::Vector most[T];
  FOVEA_UNROLL
  for (int r = 0; r < T; ++r) most[r] = s[r];
  FOVEA_UNROLL
  for (int n = T / 2; n > 0; n /= 2) {
    FOVEA_UNROLL
    for (int r = 0; r < n; ++r) most[r] = Simd::max(most[r], most[r + n]);
  }
  return most[0];
}

// A chain of additions loses up to a quarter of a unit roundoff per term, where the terms are alike and all round the same way; so
// long sums are sums of shorter ones. So many dims of a score are summed before they are added to the rest.
constexpr int64_t kDimRun = 64;
constexpr int64_t kKeyRun = 64;  // likewise the keys of an output

// dim_k as rows of Keys have it: what is left of a lane is 0.
template <class Simd>
constexpr int64_t whole_lanes(int64_t dim_k) {
  return (dim_k + Simd::Dot::kDims - 1) / Simd::Dot::kDims * Simd::Dot::kDims;
}

// acc[key][vector] = sum over the dims [begin, end), for T keys. panel: [dim_k / kDims][NV * kLanes].
template <class Simd, int NV, int T>
FOVEA_INLINE void multiply_dims(const typename Simd::Dot::Key *k, int64_t k_stride, const float *panel, int64_t begin,
                                int64_t end, typename Simd::Vector (&acc)[T][NV]) {
  using Dot = typename Simd::Dot;
  constexpr int L = Simd::kLanes;
  repeat<T>(FOVEA_EACH(r) { repeat<NV>(FOVEA_EACH(v) { acc[r][v] = Simd::set1(0.0f); }); });
  for (int64_t i = begin / Dot::kDims; i * Dot::kDims < end; ++i) {
    typename Simd::Vector q[NV];
    repeat<NV>(FOVEA_EACH(v) { q[v] = Simd::load(panel + (i * NV + v) * L); });
    repeat<T>(FOVEA_EACH(r) {
      const auto key = Dot::broadcast(k + r * k_stride + i * Dot::kDims);
      repeat<NV>(FOVEA_EACH(v) { acc[r][v] = Dot::add(q[v], key, acc[r][v]); });
    });
  }
}

// The same over all dims, in runs. The first run stands before the loop: compilers would spill the sums around it otherwise.
template <class Simd, int NV, int T>
FOVEA_INLINE void multiply_keys(const typename Simd::Dot::Key *k, int64_t k_stride, const float *panel, int64_t dim_k,
                                typename Simd::Vector (&acc)[T][NV]) {
  constexpr int L = Simd::kLanes;
  multiply_dims<Simd, NV, T>(k, k_stride, panel, 0, smaller(kDimRun, dim_k), acc);
  for (int64_t begin = kDimRun; begin < dim_k; begin += kDimRun) {
    alignas(64) float earlier[T * NV * L];
    repeat<T>(FOVEA_EACH(r) { repeat<NV>(FOVEA_EACH(v) { Simd::store(earlier + (r * NV + v) * L, acc[r][v]); }); });
    multiply_dims<Simd, NV, T>(k, k_stride, panel, begin, smaller(begin + kDimRun, dim_k), acc);
    repeat<T>(FOVEA_EACH(r) {
      repeat<NV>(FOVEA_EACH(v) { acc[r][v] = Simd::add(Simd::load(earlier + (r * NV + v) * L), acc[r][v]); });
    });
  }
}

// The scores of a tile, as they are.
template <class Simd, int NV>
__attribute__((noinline)) void score_tile(const typename Simd::Dot::Key *k, int64_t k_stride, const float *panel, int64_t dim_k,
                                          float *score) {
  constexpr int L = Simd::kLanes;
  typename Simd::Vector acc[Simd::kKeyTile][NV];
  multiply_keys<Simd, NV, Simd::kKeyTile>(k, k_stride, panel, dim_k, acc);
  FOVEA_UNROLL
  for (int r = 0; r < Simd::kKeyTile; ++r) {
    FOVEA_UNROLL
    for (int v = 0; v < NV; ++v) Simd::store(score + (r * NV + v) * L, acc[r][v]);
  }
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
