// Scores of a panel: kKeyTile keys against the queries of a panel, queries in the lanes. K is read where it lies, one element
// broadcast a step; the panel is transposed and carries the scale, or its power of 2. Every score is the same sum over the dims in every
// tile shape, so its bits depend on its query and key alone.
#pragma once
#include "kernels/generic/simd.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

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

// acc[key][vector] = sum over dims, for T keys. panel: [dim_k][NV * kLanes].
template <class Simd, int NV, int T>
FOVEA_INLINE void multiply_keys(const float *k, int64_t k_stride, const float *panel, int64_t dim_k,
                                typename Simd::Vector (&acc)[T][NV]) {
  constexpr int L = Simd::kLanes;
  alignas(64) float earlier[T * NV * L];
  for (int64_t begin = 0;; begin += kDimRun) {
    const int64_t end = begin + kDimRun < dim_k ? begin + kDimRun : dim_k;
    FOVEA_UNROLL
    for (int r = 0; r < T; ++r) {
      FOVEA_UNROLL
      for (int v = 0; v < NV; ++v) acc[r][v] = Simd::set1(0.0f);
    }
    for (int64_t d = begin; d < end; ++d) {
      typename Simd::Vector q[NV];
      FOVEA_UNROLL
      for (int v = 0; v < NV; ++v) q[v] = Simd::load(panel + (d * NV + v) * L);
      FOVEA_UNROLL
      for (int r = 0; r < T; ++r) {
        const auto key = Simd::set1(k[r * k_stride + d]);
        FOVEA_UNROLL
        for (int v = 0; v < NV; ++v) acc[r][v] = Simd::fma(key, q[v], acc[r][v]);
      }
    }
    if (begin > 0) {
      FOVEA_UNROLL
      for (int r = 0; r < T; ++r) {
        FOVEA_UNROLL
        for (int v = 0; v < NV; ++v) acc[r][v] = Simd::add(Simd::load(earlier + (r * NV + v) * L), acc[r][v]);
      }
    }
    if (end >= dim_k) return;
    FOVEA_UNROLL
    for (int r = 0; r < T; ++r) {
      FOVEA_UNROLL
      for (int v = 0; v < NV; ++v) Simd::store(earlier + (r * NV + v) * L, acc[r][v]);
    }
  }
}

// The scores of a tile, as they are.
template <class Simd, int NV>
__attribute__((noinline)) void score_tile(const float *k, int64_t k_stride, const float *panel, int64_t dim_k, float *score) {
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
