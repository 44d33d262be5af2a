// AVX-512 F, BW, DQ, VL, CD.
#define FOVEA_LEVEL avx512
#define xsimd fovea_xsimd_avx512
#include "kernels/x86/avx512.inl.h"

namespace fovea {
extern const ForwardKernel kernel_avx512_prefill_f32;
const ForwardKernel kernel_avx512_prefill_f32 = avx512::make_forward_kernel<avx512::Simd>("avx512/prefill/f32", {48, 32, 8});
}  // namespace fovea
