// The Scalable Vector Extension with BF16 and vectors of 256 bits.
#define FOVEA_LEVEL sve256_bf16
#include "kernels/arm/sve_bf16.inl.h"

namespace fovea {
extern const ForwardKernel kernel_sve256_bf16_prefill_bf16;
const ForwardKernel kernel_sve256_bf16_prefill_bf16 =
    sve256_bf16::make_forward_kernel<sve256_bf16::Bf16Simd>("sve256_bf16/prefill/bf16", {24, 24, 16});
}  // namespace fovea
