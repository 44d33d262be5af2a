// 512-bit multiply-adds, and exp2 by the instructions made for it. The including file defines FOVEA_PEAKS.
#include <immintrin.h>
#define FOVEA_VECTOR_BYTES 64
#define FOVEA_REGISTERS 32
static const __mmask16 kAll = 0xffff;  // the unmasked intrinsics of GCC 12 warn of an uninitialised vector

// The exponent is floor(x), the polynomial's argument the rest. roundscale and a subtraction, as reduce from memory is slow on Zen 5.
#define FOVEA_FLOOR(x) _mm512_maskz_roundscale_ps(kAll, x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)
#define FOVEA_SCALE(p, n) _mm512_maskz_scalef_ps(kAll, p, n)
#include "peaks.inl.h"
