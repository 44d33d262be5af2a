// SVE: 512-bit multiply-adds.
#define FOVEA_PEAKS peaks_sve512
#define FOVEA_VECTOR_BYTES 64
#define FOVEA_REGISTERS 32
#include "peaks.inl.h"
