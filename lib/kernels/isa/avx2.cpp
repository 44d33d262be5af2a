// AVX2, FMA, F16C.
#define FOVEA_LEVEL avx2
#define FOVEA_XSIMD_ARCH ::xsimd::fma3<::xsimd::avx2>
#define xsimd fovea_xsimd_avx2
#include <xsimd/xsimd.hpp>

#include "kernels/generic/forward.inl.h"
#include "kernels/x86/columns.inl.h"

namespace fovea::avx2 {
namespace {

struct Simd : XsimdVector<FOVEA_XSIMD_ARCH> {
  using Dot = FloatDot<Simd>;
  // 12 accumulators, 3 query vectors and a broadcast fill the 16 registers.
  static constexpr int kPanelVectors = 3, kKeyTile = 4;
  static constexpr int kValueVectors = 4;
  static constexpr int value_rows(int vectors) { return vectors <= 2 ? 6 : 3; }
  static constexpr int value_vectors(int64_t rows) { return rows <= 3 ? 4 : 2; }  // few rows need more sums to hide their latency
  static constexpr int kSumsByDims = 8, kFewRowsSums = 12;

  static FOVEA_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  // Halves of two vectors, then pairs and lanes are added, so that in the end each lane is a sum of its own.
  static FOVEA_INLINE __m256 add_halves(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }
  static FOVEA_INLINE __m256 add_pairs(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  }
  static FOVEA_INLINE __m256 add_lanes(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
  }
  template <int kCount>
  static FOVEA_INLINE Vector sums(const Vector *x) {
    static_assert(kCount == 8);
    const __m256 a = add_halves(x[0], x[4]), b = add_halves(x[1], x[5]), c = add_halves(x[2], x[6]), d = add_halves(x[3], x[7]);
    return add_lanes(add_pairs(a, b), add_pairs(c, d));
  }
  template <int kCount>
  static FOVEA_INLINE Vector lanes(Vector a, int from) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i index = _mm256_add_epi32(_mm256_min_epi32(lane, _mm256_set1_epi32(kCount - 1)), _mm256_set1_epi32(from));
    return _mm256_permutevar8x32_ps(a, index);
  }
  template <int kCount>
  static FOVEA_INLINE Vector repeat(Vector a) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_permutevar8x32_ps(a, _mm256_and_si256(lane, _mm256_set1_epi32(kCount - 1)));
  }
  static FOVEA_INLINE bool all_finite(Vector a) {
    const __m256 zero = _mm256_sub_ps(a, a);  // NaN for NaN and infinities
    return _mm256_movemask_ps(_mm256_cmp_ps(zero, zero, _CMP_UNORD_Q)) == 0;
  }
  // The operand that may be NaN comes second: MINPS and MAXPS return it then.
  static FOVEA_INLINE Vector clamp(Vector t, float low, float high) {
    return _mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), t));
  }
  static FOVEA_INLINE Vector exponent_bits(Vector biased) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(biased), 23));
  }
  static FOVEA_INLINE Vector exp2(Vector t) { return exp2_by_exponent_bits<Simd>(t); }

  static constexpr int kMostColumns = kColumns;
  static FOVEA_INLINE void load_columns(const float *const *row, int64_t d, Vector (&x)[kColumns]) {
    load_columns_256(row, d, x);
  }

  static FOVEA_INLINE __m128i load_8(const uint16_t *p) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p)); }
  static FOVEA_INLINE void store_8(uint16_t *p, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i *>(p), x); }
  static FOVEA_INLINE Vector load_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
  }
  static FOVEA_INLINE Vector set1_f16(const char *p) {
    short half;
    __builtin_memcpy(&half, p, sizeof half);
    return _mm256_cvtph_ps(_mm_set1_epi16(half));
  }
  static FOVEA_INLINE void load_nibbles(const unsigned char *p, Vector scale, Vector &low, Vector &high) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))),
                  eight = _mm256_set1_epi32(8);
    const __m256i lows = _mm256_and_si256(bytes, _mm256_set1_epi32(15)), highs = _mm256_srli_epi32(bytes, 4);
    low = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(lows, eight)), scale);
    high = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(highs, eight)), scale);
  }
  static FOVEA_INLINE Vector load_f16(const uint16_t *p) { return _mm256_cvtph_ps(load_8(p)); }
  static FOVEA_INLINE Vector load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_8(p)), 16));
  }
  static FOVEA_INLINE void store_f16(uint16_t *p, Vector v) { store_8(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
  // As bf16_of_float().
  static FOVEA_INLINE void store_bf16(uint16_t *p, Vector v) {
    const __m256i bits = _mm256_castps_si256(v), high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i x = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
    store_8(p, _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
  }

  using Tail = __m256i;
  static FOVEA_INLINE Tail tail(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static FOVEA_INLINE Vector load_tail(const float *p, Tail n) { return _mm256_maskload_ps(p, n); }
  static FOVEA_INLINE void store_tail(float *p, Vector v, Tail n) { _mm256_maskstore_ps(p, n, v); }
};

}  // namespace
}  // namespace fovea::avx2

namespace fovea {
extern const ForwardKernel kernel_avx2_prefill_f32;
const ForwardKernel kernel_avx2_prefill_f32 = avx2::make_forward_kernel<avx2::Simd>("avx2/prefill/f32", {24, 24, 16});
}  // namespace fovea
