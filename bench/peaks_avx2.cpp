// AVX2 and FMA: 256-bit multiply-adds.
#define FOVEA_PEAKS peaks_avx2
#define FOVEA_VECTOR_BYTES 32
#define FOVEA_REGISTERS 16
#include "peaks.inl.h"
