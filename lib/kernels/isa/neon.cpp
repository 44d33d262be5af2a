// Advanced SIMD of AArch64.
#define FOVEA_LEVEL neon
#define xsimd fovea_xsimd_neon
#include "kernels/arm/neon.inl.h"

namespace fovea {
extern const ForwardKernel kernel_neon_prefill_f32;
const ForwardKernel kernel_neon_prefill_f32 = neon::make_forward_kernel<neon::Simd>("neon/prefill/f32", {12, 12, 16});
}  // namespace fovea
