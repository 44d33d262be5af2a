// SVE with BF16: 256 bits.
#include <arm_sve.h>
#define FOVEA_PEAKS peaks_sve256_bf16
#define FOVEA_VECTOR_BYTES 32
#define FOVEA_REGISTERS 32
#define FOVEA_BF16_PRODUCTS 4
#define FOVEA_BF16_DOT(sum, x, y) svbfmmla(sum, svreinterpret_bf16_f32(svfloat32_t(x)), svreinterpret_bf16_f32(svfloat32_t(y)))
#include "peaks.inl.h"
