// SVE: 256-bit multiply-adds.
#define FOVEA_PEAKS peaks_sve256
#define FOVEA_VECTOR_BYTES 32
#define FOVEA_REGISTERS 32
#include "peaks.inl.h"
