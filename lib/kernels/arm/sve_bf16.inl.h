// SVE with BF16: queries and keys that are both bfloat16 are multiplied as such, four dims of two keys at a time.
#pragma once
#include "kernels/arm/sve.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

// BFMMLA in each 128 bits of a vector, which hold two queries; see neon_bf16.cpp for what it computes.
struct Bf16Dot {
  using Vector = Simd::Vector;
  using Key = Bf16;
  static constexpr int kDims = 4, kKeys = 2;

  // Scaled by a power of 2, so that nothing is cut off; a NaN keeps its quiet bit.
  static FOVEA_INLINE void pack(const Vector (&dims)[kDims], Vector (&queries)[kKeys]) {
    const svuint32_t first = pair(dims[0], dims[1]), second = pair(dims[2], dims[3]);
    queries[0] = svreinterpret_f32(svzip1(first, second));
    queries[1] = svreinterpret_f32(svzip2(first, second));
  }
  static FOVEA_INLINE Vector broadcast(const Key *dims, int64_t next_key) {
    uint64_t first, second;
    __builtin_memcpy(&first, dims, sizeof first);
    __builtin_memcpy(&second, dims + next_key, sizeof second);
    return svreinterpret_f32(svtrn1(svdup_u64(first), svdup_u64(second)));
  }
  // Before the next keys are loaded, for which Clang would find no registers.
  static FOVEA_INLINE Vector add(Vector queries, Vector keys, Vector sum) {
    svfloat32_t products = svbfmmla(sum, svreinterpret_bf16_f32(keys), svreinterpret_bf16_f32(queries));
    __asm__ volatile("" : "+w"(products) : : "memory");
    return products;
  }
  static FOVEA_INLINE void separate(Vector (&sums)[kKeys]) {
    const svuint64_t low = svreinterpret_u64_f32(sums[0]), high = svreinterpret_u64_f32(sums[1]);
    sums[0] = svreinterpret_f32(svuzp1(low, high));
    sums[1] = svreinterpret_f32(svuzp2(low, high));
  }

 private:
  static FOVEA_INLINE svuint32_t pair(Vector first, Vector second) {
    const svuint32_t low = svlsr_x(Simd::all(), svreinterpret_u32_f32(first), 16);
    return svorr_x(Simd::all(), low, svand_x(Simd::all(), svreinterpret_u32_f32(second), 0xffff0000));
  }
};

struct Bf16Simd : Simd {
  using Dot = Bf16Dot;
};

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
