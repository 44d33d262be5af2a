// SVE: 128-bit multiply-adds.
#define FOVEA_PEAKS peaks_sve128
#define FOVEA_VECTOR_BYTES 16
#define FOVEA_REGISTERS 32
#include "peaks.inl.h"
