// AVX-512 F, BW, DQ, VL, CD. The including file names its level, and xsimd after it.
#pragma once
#define FOVEA_XSIMD_ARCH ::xsimd::avx512bw
#include <xsimd/xsimd.hpp>

#include "kernels/generic/forward.inl.h"
#include "kernels/x86/columns.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

struct Simd : XsimdVector<FOVEA_XSIMD_ARCH> {
  using Dot = FloatDot<Simd>;
  // 24 accumulators, 3 query vectors and a broadcast fill the 32 registers; 8 x 3 loads 11 vectors for 24 multiply-adds, and
  // 8 x 2, of which less is wasted on a diagonal, 10 for 16.
  static constexpr int kPanelVectors = 3, kKeyTile = 8;
  static constexpr int kValueVectors = 4;
  static constexpr int value_rows(int vectors) { return vectors == 4 ? 6 : vectors == 3 ? 8 : 12; }
  static constexpr int value_vectors(int64_t) { return kValueVectors; }
  static constexpr int kSumsByDims = 16, kFewRowsSums = 24;

  static FOVEA_INLINE Vector in_register(Vector a) {
    __asm__("" : "+v"(a.data));
    return a;
  }
  // xsimd 8.1 multiplies and adds here.
  static FOVEA_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  // Halves of two vectors, then quarters, pairs and lanes are added, so that in the end each lane is a sum of its own.
  static FOVEA_INLINE __m512 add_halves(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  static FOVEA_INLINE __m512 add_quarters(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
  static FOVEA_INLINE __m512 add_pairs(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  }
  static FOVEA_INLINE __m512 add_lanes(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
  }
  template <int kCount>
  static FOVEA_INLINE Vector sums(const Vector *x) {
    const auto at = [x](int i) { return i < kCount ? __m512(x[i]) : _mm512_setzero_ps(); };
    __m512 of_four[4];  // lane 4 * g + i: a quarter of the sum of x[4 * g + i] is still in each
    FOVEA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m512 low = add_halves(at(i), at(4 + i)), high = add_halves(at(8 + i), at(12 + i));
      of_four[i] = add_quarters(low, high);
    }
    return add_lanes(add_pairs(of_four[0], of_four[1]), add_pairs(of_four[2], of_four[3]));
  }
  template <int kCount>
  static FOVEA_INLINE Vector lanes(Vector a, int from) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i index = _mm512_add_epi32(_mm512_min_epi32(lane, _mm512_set1_epi32(kCount - 1)), _mm512_set1_epi32(from));
    return _mm512_permutexvar_ps(index, a);
  }
  template <int kCount>
  static FOVEA_INLINE Vector repeat(Vector a) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(_mm512_and_epi32(lane, _mm512_set1_epi32(kCount - 1)), a);
  }
  static FOVEA_INLINE bool all_finite(Vector a) {
    return _mm512_fpclass_ps_mask(a, 0x99) == 0;  // quiet and signalling NaN, both infinities
  }
  // The operand that may be NaN comes second: VMINPS and VMAXPS return it then.
  static FOVEA_INLINE Vector clamp(Vector t, float low, float high) {
    return _mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), t));
  }
  static FOVEA_INLINE Vector exponent_bits(Vector biased) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(biased), 23));
  }
  // VREDUCEPS leaves t - floor(t), VSCALEFPS multiplies by 2^floor(t) and knows every special case.
  static FOVEA_INLINE Vector exp2(Vector t) {
    const Vector f = _mm512_reduce_ps(t, 0x09);
    return _mm512_scalef_ps(exp2_polynomial<Simd>(f, kExp2Unit), t);
  }

  static constexpr int kMostColumns = 16;
  template <int kCount>
  static FOVEA_INLINE void load_columns(const float *const *row, int64_t d, Vector (&x)[kCount]) {
    load_columns_512(row, d, x);
  }

  static FOVEA_INLINE __m256i load_16(const uint16_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }
  static FOVEA_INLINE void store_16(uint16_t *p, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), x); }
  static FOVEA_INLINE Vector load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
  }
  static FOVEA_INLINE Vector set1_f16(const char *p) {
    short half;
    __builtin_memcpy(&half, p, sizeof half);
    return _mm512_cvtph_ps(_mm256_set1_epi16(half));
  }
  // What the 16 values of 4 bits are is looked up, by the low bits of each lane.
  static FOVEA_INLINE void load_nibbles(const unsigned char *p, Vector scale, Vector &low, Vector &high) {
    const __m512 values = _mm512_mul_ps(_mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7), scale);
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    low = _mm512_permutexvar_ps(bytes, values);
    high = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), values);
  }
  static FOVEA_INLINE Vector load_f16(const uint16_t *p) { return _mm512_cvtph_ps(load_16(p)); }
  static FOVEA_INLINE Vector load_bf16(const uint16_t *p) {
    // Word i goes to the upper half of lane i, over zeros.
    const __m512i words = _mm512_slli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 16);
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, words, _mm512_castsi256_si512(load_16(p))));
  }
  static FOVEA_INLINE void store_f16(uint16_t *p, Vector v) { store_16(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
  // As bf16_of_float().
  static FOVEA_INLINE void store_bf16(uint16_t *p, Vector v) {
    const __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    store_16(p, _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40))));
  }

  using Tail = __mmask16;
  static FOVEA_INLINE Tail tail(int n) { return static_cast<Tail>((1u << n) - 1); }
  static FOVEA_INLINE Vector load_tail(const float *p, Tail n) { return _mm512_maskz_loadu_ps(n, p); }
  static FOVEA_INLINE void store_tail(float *p, Vector v, Tail n) { _mm512_mask_storeu_ps(p, n, v); }
};

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
