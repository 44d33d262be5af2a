// Scalable Vector Extension, for vectors of the length that the including file is compiled for (-msve-vector-bits): the algorithm
// keeps arrays of vectors, and only vectors of a known length can be in one.
#pragma once
#include <arm_sve.h>

#include "kernels/generic/forward.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

struct SveVector {
  typedef svfloat32_t Vector __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
  static constexpr int kLanes = __ARM_FEATURE_SVE_BITS / 32;

  // 24 accumulators, 3 query or 4 value vectors and a broadcast fit the 32 registers: 99 % of what the multiply-add pipes of
  // Neoverse V1, V2 and A64FX can do, as bench/mca.py predicts. Fewer than 18 would not cover
  // A64FX's latency of 9 in its two pipes.
  static constexpr int kPanelVectors = 3, kKeyTile = 8;
  static constexpr int kValueVectors = 4;
  static constexpr int value_rows(int vectors) { return vectors == 4 ? 6 : 8; }
  static constexpr int value_vectors(int64_t) { return kValueVectors; }
  static constexpr int kSumsByDims = 16, kFewRowsSums = 24;

  static FOVEA_INLINE svbool_t all() { return svptrue_b32(); }
  static FOVEA_INLINE Vector load(const float *p) { return svld1(all(), p); }
  static FOVEA_INLINE void store(float *p, Vector v) { svst1(all(), p, v); }
  static FOVEA_INLINE Vector set1(float x) { return svdup_f32(x); }
  static FOVEA_INLINE Vector in_register(Vector a) { return a; }
  static FOVEA_INLINE Vector add(Vector a, Vector b) { return svadd_x(all(), a, b); }
  static FOVEA_INLINE Vector sub(Vector a, Vector b) { return svsub_x(all(), a, b); }
  static FOVEA_INLINE Vector mul(Vector a, Vector b) { return svmul_x(all(), a, b); }
  static FOVEA_INLINE Vector div(Vector a, Vector b) { return svdiv_x(all(), a, b); }
  static FOVEA_INLINE Vector fma(Vector a, Vector b, Vector c) { return svmla_x(all(), c, a, b); }
  static FOVEA_INLINE Vector abs(Vector a) { return svabs_x(all(), a); }
  static FOVEA_INLINE Vector max(Vector a, Vector b) { return svmax_x(all(), a, b); }
  static FOVEA_INLINE Vector min(Vector a, Vector b) { return svmin_x(all(), a, b); }
  static FOVEA_INLINE Vector select_less(Vector a, Vector b, Vector x, Vector y) { return svsel(svcmplt(all(), a, b), x, y); }
  static FOVEA_INLINE float sum(Vector a) { return svaddv(all(), a); }
  static FOVEA_INLINE bool all_less(Vector a, Vector b) { return !svptest_any(all(), svnot_z(all(), svcmplt(all(), a, b))); }
  static FOVEA_INLINE bool all_finite(Vector a) {
    const Vector zero = sub(a, a);  // NaN for NaN and infinities
    return !svptest_any(all(), svcmpuo(all(), zero, zero));
  }
  // FMIN and FMAX return NaN for NaN.
  static FOVEA_INLINE Vector clamp(Vector t, float low, float high) { return min(set1(high), max(set1(low), t)); }
  static FOVEA_INLINE Vector exponent_bits(Vector biased) {
    return svreinterpret_f32(svlsl_x(all(), svreinterpret_u32_f32(biased), 23));
  }
  static constexpr int kMostColumns = kColumns;
  static FOVEA_INLINE void load_columns(const float *const *row, int64_t d, Vector (&x)[kColumns]) {
    static_assert(kColumns == 4);
    // Four floats of each row, one row after the other; then twice the even ones and the odd ones apart.
    alignas(64) float rows[kLanes * kColumns];
    for (int lane = 0; lane < kLanes; ++lane) __builtin_memcpy(rows + lane * kColumns, row[lane] + d, kColumns * sizeof(float));
    const Vector a = load(rows), b = load(rows + kLanes), c = load(rows + 2 * kLanes), e = load(rows + 3 * kLanes);
    const Vector even_low = svuzp1(a, b), even_high = svuzp1(c, e), odd_low = svuzp2(a, b), odd_high = svuzp2(c, e);
    x[0] = svuzp1(even_low, even_high);
    x[1] = svuzp1(odd_low, odd_high);
    x[2] = svuzp2(even_low, even_high);
    x[3] = svuzp2(odd_low, odd_high);
  }

  static FOVEA_INLINE Vector load_i8(const int8_t *p) { return svcvt_f32_x(all(), svld1sb_s32(all(), p)); }
  // 16 bits in the low half of each lane, which is where FCVT looks for a half and leaves one.
  static FOVEA_INLINE Vector load_f16(const uint16_t *p) { return svcvt_f32_x(all(), svreinterpret_f16(svld1uh_u32(all(), p))); }
  static FOVEA_INLINE Vector load_bf16(const uint16_t *p) { return svreinterpret_f32(svlsl_x(all(), svld1uh_u32(all(), p), 16)); }
  static FOVEA_INLINE void store_f16(uint16_t *p, Vector v) { svst1h(all(), p, svreinterpret_u32(svcvt_f16_f32_x(all(), v))); }
  // As bf16_of_float().
  static FOVEA_INLINE void store_bf16(uint16_t *p, Vector v) {
    const svuint32_t bits = svreinterpret_u32_f32(v), high = svlsr_x(all(), bits, 16);
    const svuint32_t to_even = svadd_x(all(), svand_x(all(), high, 1), 0x7fff);
    const svuint32_t rounded = svlsr_x(all(), svadd_x(all(), bits, to_even), 16);
    svst1h(all(), p, svsel(svcmpuo(all(), v, v), svorr_x(all(), high, 0x40), rounded));
  }

  // The count, not its predicate: a function that takes a predicate has to keep its caller's vectors.
  using Tail = int;
  static FOVEA_INLINE Tail tail(int n) { return n; }
  static FOVEA_INLINE Vector load_tail(const float *p, Tail n) { return svld1(svwhilelt_b32(0, n), p); }
  static FOVEA_INLINE void store_tail(float *p, Vector v, Tail n) { svst1(svwhilelt_b32(0, n), p, v); }
};

struct Simd : ShuffledByLane<BlocksByLane<SveVector>> {
  using Dot = FloatDot<Simd>;
  static FOVEA_INLINE Vector exp2(Vector t) { return exp2_by_exponent_bits<Simd>(t); }
};

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
