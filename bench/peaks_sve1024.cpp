// SVE: 1024-bit multiply-adds.
#define FOVEA_PEAKS peaks_sve1024
#define FOVEA_VECTOR_BYTES 128
#define FOVEA_REGISTERS 32
#include "peaks.inl.h"
