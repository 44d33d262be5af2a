// AVX-512 with AVX512-BF16.
#define FOVEA_PEAKS peaks_avx512_bf16
#define FOVEA_BF16_PRODUCTS 2
#define FOVEA_BF16_DOT(sum, x, y) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(y))
#include "peaks_avx512.inl.h"
