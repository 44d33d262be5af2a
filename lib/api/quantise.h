// Floats become quantised elements of a cache. The same bits on every machine: each operation is rounded once, to nearest even.
//
// Where something among the numbers of one scale is not finite, the scale is NaN, and so is all that is read with it: a quantised
// number cannot say which it was, and it shall not be lost.
#pragma once
#include <cstdint>

namespace fovea {

// The largest of magnitude bits; of n numbers and what is given.
uint32_t largest_magnitude(const float *x, int64_t n, uint32_t largest);

// FOVEA_I8: a scale for numbers of at most that magnitude, and n numbers, stride apart, with it.
float scale_i8(uint32_t largest);
void quantise_i8(const float *x, int64_t n, float scale, void *to, int64_t stride);

// One block each, as ggml's quantize_row_q8_0_ref() and quantize_row_q4_0_ref() make it.
void quantise_q8_0(const float *x, void *block);
void quantise_q4_0(const float *x, void *block);

}  // namespace fovea
