// The Scalable Vector Extension with vectors of 512 bits.
#define FOVEA_LEVEL sve512
#include "kernels/arm/sve.inl.h"

namespace fovea {
extern const ForwardKernel kernel_sve512_prefill_f32;
const ForwardKernel kernel_sve512_prefill_f32 = sve512::make_forward_kernel<sve512::Simd>("sve512/prefill/f32", {48, 48, 16});
}  // namespace fovea
