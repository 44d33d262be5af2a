// Scores of a panel: kKeyTile keys against the queries of a panel, queries in the lanes. K is read where it lies, the elements of a
// step broadcast; the panel is transposed and carries the scale, or its power of 2. Every score is the same sum over the dims in every
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

// dim_k as rows of Keys have it: what is left of a step is 0.
template <class Simd>
constexpr int64_t whole_steps(int64_t dim_k) {
  return (dim_k + Simd::Dot::kDims - 1) / Simd::Dot::kDims * Simd::Dot::kDims;
}
// Likewise so many keys: the last stands in for what is left.
template <class Simd>
constexpr int whole_keys(int keys) {
  return (keys + Simd::Dot::kKeys - 1) / Simd::Dot::kKeys * Simd::Dot::kKeys;
}

// acc[key][vector] = sum over the dims [begin, end), for T keys, each kKeys of them yet to be separated. panel:
// [dim_k / kDims][NV][kKeys][kLanes].
template <class Simd, int NV, int T>
FOVEA_INLINE void multiply_dims(const typename Simd::Dot::Key *k, int64_t k_stride, const float *panel, int64_t begin,
                                int64_t end, typename Simd::Vector (&acc)[whole_keys<Simd>(T)][NV]) {
  using Dot = typename Simd::Dot;
  constexpr int L = Simd::kLanes, R = whole_keys<Simd>(T), K = Dot::kKeys;
  repeat<R>(FOVEA_EACH(r) { repeat<NV>(FOVEA_EACH(v) { acc[r][v] = Simd::set1(0.0f); }); });
  for (int64_t i = begin / Dot::kDims; i * Dot::kDims < end; ++i) {
    typename Simd::Vector q[NV * K];
    repeat<NV * K>(FOVEA_EACH(v) { q[v] = Simd::load(panel + (i * NV * K + v) * L); });
    repeat<R / K>(FOVEA_EACH(g) {
      constexpr int r = g * K;
      const auto keys = Dot::broadcast(k + r * k_stride + i * Dot::kDims, r + 1 < T ? k_stride : 0);
      repeat<NV * K>(FOVEA_EACH(v) { acc[r + v % K][v / K] = Dot::add(q[v], keys, acc[r + v % K][v / K]); });
    });
  }
}

// The same over all dims, in runs, and separated. The first run stands before the loop: compilers would spill the sums around it otherwise.
template <class Simd, int NV, int T>
FOVEA_INLINE void multiply_keys(const typename Simd::Dot::Key *k, int64_t k_stride, const float *panel, int64_t dim_k,
                                typename Simd::Vector (&acc)[whole_keys<Simd>(T)][NV]) {
  using Dot = typename Simd::Dot;
  constexpr int L = Simd::kLanes, R = whole_keys<Simd>(T), K = Dot::kKeys;
  multiply_dims<Simd, NV, T>(k, k_stride, panel, 0, smaller(kDimRun, dim_k), acc);
  for (int64_t begin = kDimRun; begin < dim_k; begin += kDimRun) {
    alignas(64) float earlier[R * NV * L];
    repeat<R>(FOVEA_EACH(r) { repeat<NV>(FOVEA_EACH(v) { Simd::store(earlier + (r * NV + v) * L, acc[r][v]); }); });
    multiply_dims<Simd, NV, T>(k, k_stride, panel, begin, smaller(begin + kDimRun, dim_k), acc);
    repeat<R>(FOVEA_EACH(r) {
      repeat<NV>(FOVEA_EACH(v) { acc[r][v] = Simd::add(Simd::load(earlier + (r * NV + v) * L), acc[r][v]); });
    });
  }
  repeat<R / K>(FOVEA_EACH(g) {
    repeat<NV>(FOVEA_EACH(v) {
      typename Simd::Vector sums[K];
      repeat<K>(FOVEA_EACH(j) { sums[j] = acc[g * K + j][v]; });
      Dot::separate(sums);
      repeat<K>(FOVEA_EACH(j) { acc[g * K + j][v] = sums[j]; });
    });
  });
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
