// The Scalable Vector Extension with vectors of 2048 bits.
#define FOVEA_LEVEL sve2048
#include "kernels/arm/sve.inl.h"

namespace fovea {
extern const ForwardKernel kernel_sve2048_prefill_f32;
const ForwardKernel kernel_sve2048_prefill_f32 =
    sve2048::make_forward_kernel<sve2048::Simd>("sve2048/prefill/f32", {192, 192, 16});
}  // namespace fovea
