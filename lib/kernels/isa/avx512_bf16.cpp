// AVX-512 with AVX512-BF16: queries and keys that are both bfloat16 are multiplied as such, two dims at a time.
#define FOVEA_LEVEL avx512_bf16
#define xsimd fovea_xsimd_avx512_bf16
#include "kernels/x86/avx512.inl.h"

namespace fovea::avx512_bf16 {
namespace {

// A lane holds two neighbouring dims, the first in its low half, as bfloat16 lie in memory. VDPBF16PS adds the exact product of the second, then
// that of the first, each sum rounded to nearest even and subnormal numbers flushed: what two multiply-adds of floats do.
struct Bf16Dot {
  using Vector = Simd::Vector;
  using Key = Bf16;
  static constexpr int kDims = 2, kKeys = 1;

  // Scaled by a power of 2, so that nothing is cut off; a NaN keeps its quiet bit.
  static FOVEA_INLINE void pack(const Vector (&dims)[kDims], Vector (&queries)[kKeys]) {
    const __m512i first = _mm512_srli_epi32(_mm512_castps_si512(dims[0]), 16);
    queries[0] = _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_castps_si512(dims[1])));
  }
  static FOVEA_INLINE Vector broadcast(const Key *dims, int64_t) {
    int pair;
    __builtin_memcpy(&pair, dims, sizeof pair);
    return _mm512_castsi512_ps(_mm512_set1_epi32(pair));
  }
  static FOVEA_INLINE Vector add(Vector queries, Vector key, Vector sum) {
    return _mm512_dpbf16_ps(sum, halves(queries), halves(key));
  }
  static FOVEA_INLINE void separate(Vector (&)[kKeys]) {}

 private:
  static FOVEA_INLINE __m512bh halves(Vector a) { return (__m512bh)_mm512_castps_si512(a); }
};

struct Bf16Simd : Simd {
  using Dot = Bf16Dot;
};

}  // namespace
}  // namespace fovea::avx512_bf16

namespace fovea {
extern const ForwardKernel kernel_avx512_bf16_prefill_bf16;
const ForwardKernel kernel_avx512_bf16_prefill_bf16 =
    avx512_bf16::make_forward_kernel<avx512_bf16::Bf16Simd>("avx512_bf16/prefill/bf16", {48, 32, 8});
}  // namespace fovea
