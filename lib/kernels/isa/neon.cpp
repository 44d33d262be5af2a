// Advanced SIMD of AArch64.
#define FOVEA_LEVEL neon
#define FOVEA_XSIMD_ARCH ::xsimd::neon64
#define xsimd fovea_xsimd_neon
#include <xsimd/xsimd.hpp>

#include "kernels/generic/forward.inl.h"

namespace fovea::neon {
namespace {

struct Simd : BufferedTail<XsimdVector<FOVEA_XSIMD_ARCH>> {
  // 24 accumulators, 3 query vectors and a broadcast fit the 32 registers.
  static constexpr int kPanelVectors = 3, kKeyTile = 8;
  static constexpr int kWindowPanelVectors = kPanelVectors;
  static constexpr int kValueVectors = 4;
  static constexpr int value_rows(int vectors) { return vectors == 4 ? 6 : 8; }

  // xsimd 8.1 divides by an approximate reciprocal.
  static FOVEA_INLINE Vector div(Vector a, Vector b) { return vdivq_f32(a, b); }
  static FOVEA_INLINE Vector fma(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
  static FOVEA_INLINE float sum(Vector a) { return vaddvq_f32(a); }
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
  static FOVEA_INLINE Vector exp2(Vector t) { return exp2_by_exponent_bits<Simd>(t); }
};

}  // namespace
}  // namespace fovea::neon

namespace fovea {
extern const ForwardKernel kernel_neon_prefill_f32;
const ForwardKernel kernel_neon_prefill_f32 = neon::make_forward_kernel<neon::Simd, 16>("neon/prefill/f32");
}  // namespace fovea
