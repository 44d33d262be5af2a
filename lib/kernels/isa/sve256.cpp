// The Scalable Vector Extension with vectors of 256 bits.
#define FOVEA_LEVEL sve256
#include "kernels/arm/sve.inl.h"

namespace fovea {
extern const ForwardKernel kernel_sve256_prefill_f32;
const ForwardKernel kernel_sve256_prefill_f32 = sve256::make_forward_kernel<sve256::Simd>("sve256/prefill/f32", {24, 24, 16});
}  // namespace fovea
