// The baseline of the target. Its plain C++ may use 128-bit vectors (SSE2 or Advanced SIMD), so the peak does: on x86-64 a multiply
// and an add, two instructions.
#define FOVEA_PEAKS peaks_scalar
#define FOVEA_VECTOR_BYTES 16
#if defined(__x86_64__)
#define FOVEA_REGISTERS 16
#else
#define FOVEA_REGISTERS 32
#endif
#include "peaks.inl.h"
