// SVE: 2048-bit multiply-adds.
#define FOVEA_PEAKS peaks_sve2048
#define FOVEA_VECTOR_BYTES 256
#define FOVEA_REGISTERS 32
#include "peaks.inl.h"
