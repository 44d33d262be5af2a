// The Scalable Vector Extension with vectors of 1024 bits.
#define FOVEA_LEVEL sve1024
#include "kernels/arm/sve.inl.h"

namespace fovea {
extern const ForwardKernel kernel_sve1024_prefill_f32;
const ForwardKernel kernel_sve1024_prefill_f32 = sve1024::make_forward_kernel<sve1024::Simd>("sve1024/prefill/f32", {96, 96, 16});
}  // namespace fovea
