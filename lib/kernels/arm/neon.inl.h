// Advanced SIMD of AArch64. The including file names its level, and xsimd after it.
#pragma once
#define FOVEA_XSIMD_ARCH ::xsimd::neon64
#include <xsimd/xsimd.hpp>

#include "kernels/generic/forward.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

struct Simd : ShuffledByLane<BlocksByLane<BufferedTail<XsimdVector<FOVEA_XSIMD_ARCH>>>> {
  using Dot = FloatDot<Simd>;
  // 24 accumulators, 3 query or 4 value vectors and a broadcast fit the 32 registers: 99 % of what the multiply-add pipes of
  // Neoverse V1, V2 and Apple M1 can do, as bench/mca.py predicts.
  static constexpr int kPanelVectors = 3, kKeyTile = 8;
  static constexpr int kValueVectors = 4;
  static constexpr int value_rows(int vectors) { return vectors == 4 ? 6 : 8; }
  static constexpr int value_vectors(int64_t) { return kValueVectors; }
  static constexpr int kSumsByDims = 16, kFewRowsSums = 24;

  // In a register, from where FMLA takes it by element: LD1R, which fills a vector from memory, takes time of a multiply-add pipe
  // too.
  static FOVEA_INLINE Vector set1(float x) {
    if (!__builtin_constant_p(x)) __asm__("" : "+w"(x));
    return vdupq_n_f32(x);
  }
  // xsimd 8.1 divides by an approximate reciprocal.
  static FOVEA_INLINE Vector div(Vector a, Vector b) { return vdivq_f32(a, b); }
  static FOVEA_INLINE Vector fma(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
  template <int kCount>
  static FOVEA_INLINE Vector sums(const Vector *x) {
    static_assert(kCount == 4);
    return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]));
  }
  static FOVEA_INLINE bool all_finite(Vector a) {
    const float32x4_t zero = vsubq_f32(a, a);  // NaN for NaN and infinities
    return vminvq_u32(vceqq_f32(zero, zero)) != 0;
  }
  // FMIN and FMAX return NaN for NaN.
  static FOVEA_INLINE Vector clamp(Vector t, float low, float high) {
    return vminq_f32(vdupq_n_f32(high), vmaxq_f32(vdupq_n_f32(low), t));
  }
  static FOVEA_INLINE Vector exponent_bits(Vector biased) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(biased), 23));
  }
  static constexpr int kMostColumns = kColumns;
  static FOVEA_INLINE void load_columns(const float *const *row, int64_t d, Vector (&x)[kColumns]) {
    const float32x4_t a = vld1q_f32(row[0] + d), b = vld1q_f32(row[1] + d), c = vld1q_f32(row[2] + d), e = vld1q_f32(row[3] + d);
    const float32x4_t ac_low = vzip1q_f32(a, c), ac_high = vzip2q_f32(a, c), be_low = vzip1q_f32(b, e),
                      be_high = vzip2q_f32(b, e);
    x[0] = vzip1q_f32(ac_low, be_low);
    x[1] = vzip2q_f32(ac_low, be_low);
    x[2] = vzip1q_f32(ac_high, be_high);
    x[3] = vzip2q_f32(ac_high, be_high);
  }
  static FOVEA_INLINE Vector load_i8(const int8_t *p) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(bytes)))));
  }
  static FOVEA_INLINE Vector load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  static FOVEA_INLINE Vector load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
  static FOVEA_INLINE void store_f16(uint16_t *p, Vector v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
  // As bf16_of_float().
  static FOVEA_INLINE void store_bf16(uint16_t *p, Vector v) {
    const float32x4_t x = v;
    const uint32x4_t bits = vreinterpretq_u32_f32(x), high = vshrq_n_u32(bits, 16);
    const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(vandq_u32(high, vdupq_n_u32(1)), vdupq_n_u32(0x7fff))), 16);
    const uint32x4_t quiet = vorrq_u32(high, vdupq_n_u32(0x40));
    vst1_u16(p, vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet)));
  }
  static FOVEA_INLINE Vector exp2(Vector t) { return exp2_by_exponent_bits<Simd>(t); }
};

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
