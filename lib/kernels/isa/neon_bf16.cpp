// Advanced SIMD with BF16: queries and keys that are both bfloat16 are multiplied as such, two dims at a time.
#define FOVEA_LEVEL neon_bf16
#define xsimd fovea_xsimd_neon_bf16
#include "kernels/arm/neon.inl.h"

namespace fovea::neon_bf16 {
namespace {

// A lane holds two neighbouring dims, the first in its low half, as bfloat16 lie in memory. BFDOT adds two exact products and adds their sum to the
// lane's. Both sums are rounded to odd, twice as coarse as to nearest and no less even-handed; subnormal numbers are flushed.
struct Bf16Dot {
  using Vector = Simd::Vector;
  using Key = Bf16;
  static constexpr int kDims = 2;

  // Scaled by a power of 2, so that nothing is cut off; a NaN keeps its quiet bit.
  static FOVEA_INLINE Vector pack(const Vector (&dims)[kDims]) {
    const uint32x4_t first = vreinterpretq_u32_f32(dims[0]), second = vreinterpretq_u32_f32(dims[1]);
    return vreinterpretq_f32_u32(vsriq_n_u32(second, first, 16));
  }
  // The first lane of a register, from where BFDOT takes it by element.
  static FOVEA_INLINE bfloat16x4_t broadcast(const Key *dims) {
    float pair;
    __builtin_memcpy(&pair, dims, sizeof pair);
    float32x2_t first;
    __asm__("" : "=w"(first) : "0"(pair));
    return vreinterpret_bf16_f32(first);
  }
  static FOVEA_INLINE Vector add(Vector queries, bfloat16x4_t key, Vector sum) {
    return vbfdotq_lane_f32(sum, vreinterpretq_bf16_f32(queries), key, 0);
  }
};

struct Bf16Simd : Simd {
  using Dot = Bf16Dot;
};

}  // namespace
}  // namespace fovea::neon_bf16

namespace fovea {
extern const ForwardKernel kernel_neon_bf16_prefill_bf16;
const ForwardKernel kernel_neon_bf16_prefill_bf16 =
    neon_bf16::make_forward_kernel<neon_bf16::Bf16Simd, 16>("neon_bf16/prefill/bf16");
}  // namespace fovea
