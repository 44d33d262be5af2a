// Advanced SIMD with BF16.
#include <arm_neon.h>
#define FOVEA_PEAKS peaks_neon_bf16
#define FOVEA_VECTOR_BYTES 16
#define FOVEA_REGISTERS 32
#define FOVEA_BF16_PRODUCTS 4
#define FOVEA_BF16_DOT(sum, x, y) vbfmmlaq_f32(sum, (bfloat16x8_t)(x), (bfloat16x8_t)(y))
#include "peaks.inl.h"
