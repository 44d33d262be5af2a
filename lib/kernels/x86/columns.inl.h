// Columns of 8 or 16 rows. Four of them: 128 bits of each row are loaded into the lane where they end up, then each 128-bit lane is
// transposed by itself. Sixteen: whole lines are loaded, and 128-bit lanes transposed once more among each other.
#pragma once
#include "kernels/generic/simd.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

#if defined(__AVX512F__)
// 128-bit lane g of the result holds row[4 * g].
FOVEA_INLINE __m512 load_quarters(const float *const *row, int64_t d) {
  __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(row[0] + d));
  x = _mm512_mask_broadcast_f32x4(x, 0x00f0, _mm_loadu_ps(row[4] + d));
  x = _mm512_mask_broadcast_f32x4(x, 0x0f00, _mm_loadu_ps(row[8] + d));
  return _mm512_mask_broadcast_f32x4(x, 0xf000, _mm_loadu_ps(row[12] + d));
}
template <class Vector>
FOVEA_INLINE void load_columns_512(const float *const *row, int64_t d, Vector (&x)[kColumns]) {
  const __m512 a = load_quarters(row, d), b = load_quarters(row + 1, d), c = load_quarters(row + 2, d),
               e = load_quarters(row + 3, d);
  const __m512d ab_low = _mm512_castps_pd(_mm512_unpacklo_ps(a, b)), ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
  const __m512d ce_low = _mm512_castps_pd(_mm512_unpacklo_ps(c, e)), ce_high = _mm512_castps_pd(_mm512_unpackhi_ps(c, e));
  x[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_low, ce_low));
  x[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_low, ce_low));
  x[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, ce_high));
  x[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, ce_high));
}
template <class Vector>
FOVEA_INLINE void load_columns_512(const float *const *row, int64_t d, Vector (&x)[16]) {
  __m512 by_four[4][4];  // [g][c]: 128-bit lane l holds column 4 * l + c of rows 4g to 4g + 3
  FOVEA_UNROLL
  for (int g = 0; g < 4; ++g) {
    const __m512 a = _mm512_loadu_ps(row[4 * g] + d), b = _mm512_loadu_ps(row[4 * g + 1] + d);
    const __m512 c = _mm512_loadu_ps(row[4 * g + 2] + d), e = _mm512_loadu_ps(row[4 * g + 3] + d);
    const __m512d ab_low = _mm512_castps_pd(_mm512_unpacklo_ps(a, b)), ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
    const __m512d ce_low = _mm512_castps_pd(_mm512_unpacklo_ps(c, e)), ce_high = _mm512_castps_pd(_mm512_unpackhi_ps(c, e));
    by_four[g][0] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_low, ce_low));
    by_four[g][1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_low, ce_low));
    by_four[g][2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, ce_high));
    by_four[g][3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, ce_high));
  }
  FOVEA_UNROLL
  for (int c = 0; c < 4; ++c) {
    const __m512 low = _mm512_shuffle_f32x4(by_four[0][c], by_four[1][c], 0x44);
    const __m512 low2 = _mm512_shuffle_f32x4(by_four[2][c], by_four[3][c], 0x44);
    const __m512 high = _mm512_shuffle_f32x4(by_four[0][c], by_four[1][c], 0xee);
    const __m512 high2 = _mm512_shuffle_f32x4(by_four[2][c], by_four[3][c], 0xee);
    x[c] = _mm512_shuffle_f32x4(low, low2, 0x88);
    x[4 + c] = _mm512_shuffle_f32x4(low, low2, 0xdd);
    x[8 + c] = _mm512_shuffle_f32x4(high, high2, 0x88);
    x[12 + c] = _mm512_shuffle_f32x4(high, high2, 0xdd);
  }
}
#endif

FOVEA_INLINE __m256 load_halves(const float *const *row, int64_t d) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(row[0] + d)), _mm_loadu_ps(row[4] + d), 1);
}
template <class Vector>
FOVEA_INLINE void load_columns_256(const float *const *row, int64_t d, Vector (&x)[kColumns]) {
  const __m256 a = load_halves(row, d), b = load_halves(row + 1, d), c = load_halves(row + 2, d), e = load_halves(row + 3, d);
  const __m256d ab_low = _mm256_castps_pd(_mm256_unpacklo_ps(a, b)), ab_high = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
  const __m256d ce_low = _mm256_castps_pd(_mm256_unpacklo_ps(c, e)), ce_high = _mm256_castps_pd(_mm256_unpackhi_ps(c, e));
  x[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_low, ce_low));
  x[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_low, ce_low));
  x[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_high, ce_high));
  x[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_high, ce_high));
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
