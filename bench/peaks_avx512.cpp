// AVX-512.
#define FOVEA_PEAKS peaks_avx512
#include "peaks_avx512.inl.h"
