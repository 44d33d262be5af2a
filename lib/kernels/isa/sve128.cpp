// The Scalable Vector Extension with vectors of 128 bits.
#define FOVEA_LEVEL sve128
#include "kernels/arm/sve.inl.h"

namespace fovea {
extern const ForwardKernel kernel_sve128_prefill_f32;
const ForwardKernel kernel_sve128_prefill_f32 = sve128::make_forward_kernel<sve128::Simd>("sve128/prefill/f32", {12, 12, 16});
}  // namespace fovea
