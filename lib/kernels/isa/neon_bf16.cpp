// Advanced SIMD with BF16: queries and keys that are both bfloat16 are multiplied as such, four dims of two keys at a time.
#define FOVEA_LEVEL neon_bf16
#define xsimd fovea_xsimd_neon_bf16
#include "kernels/arm/neon.inl.h"

namespace fovea::neon_bf16 {
namespace {

// BFMMLA adds the products of four dims of two keys and two queries to their four sums, [key][query]: to each those of the first two dims, then
// those of the others. Such a pair of products is exact; their sum and the lane's are rounded to odd, twice as coarse as to nearest and no less
// even-handed; subnormal numbers are flushed.
struct Bf16Dot {
  using Vector = Simd::Vector;
  using Key = Bf16;
  static constexpr int kDims = 4, kKeys = 2;

  // Scaled by a power of 2, so that nothing is cut off; a NaN keeps its quiet bit.
  static FOVEA_INLINE void pack(const Vector (&dims)[kDims], Vector (&queries)[kKeys]) {
    const uint32x4_t first = pair(dims[0], dims[1]), second = pair(dims[2], dims[3]);
    queries[0] = vreinterpretq_f32_u32(vzip1q_u32(first, second));
    queries[1] = vreinterpretq_f32_u32(vzip2q_u32(first, second));
  }
  // By two loads and a move, from where a register and an index address both keys; by LD1 into half of a register it takes 9 % more cycles.
  static FOVEA_INLINE bfloat16x8_t broadcast(const Key *dims, int64_t next_key) {
    double first, second;
    __builtin_memcpy(&first, dims, sizeof first);
    __builtin_memcpy(&second, dims + next_key, sizeof second);
    __asm__("" : "+w"(second));
    return vreinterpretq_bf16_f64(vcombine_f64(float64x1_t{first}, float64x1_t{second}));
  }
  // Before the next keys are loaded, for which Clang would find no registers.
  static FOVEA_INLINE Vector add(Vector queries, bfloat16x8_t keys, Vector sum) {
    float32x4_t products = vbfmmlaq_f32(sum, keys, vreinterpretq_bf16_f32(queries));
    __asm__ volatile("" : "+w"(products) : : "memory");
    return products;
  }
  static FOVEA_INLINE void separate(Vector (&sums)[kKeys]) {
    const uint64x2_t low = vreinterpretq_u64_f32(sums[0]), high = vreinterpretq_u64_f32(sums[1]);
    sums[0] = vreinterpretq_f32_u64(vuzp1q_u64(low, high));
    sums[1] = vreinterpretq_f32_u64(vuzp2q_u64(low, high));
  }

 private:
  static FOVEA_INLINE uint32x4_t pair(Vector first, Vector second) {
    return vsriq_n_u32(vreinterpretq_u32_f32(second), vreinterpretq_u32_f32(first), 16);
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
    neon_bf16::make_forward_kernel<neon_bf16::Bf16Simd>("neon_bf16/prefill/bf16", {12, 12, 16});
}  // namespace fovea
