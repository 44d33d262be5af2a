// Elements of tensors of any type as numbers, the slow and obvious way.
#pragma once
#include <cstddef>
#include <cstdint>

#include "fovea/fovea.h"

namespace fovea::reference {

size_t element_bytes(fovea_dtype dtype);                                         // of a block, where elements lie in blocks
int64_t block_elements(fovea_dtype dtype);                                       // 32 of FOVEA_Q8_0 and FOVEA_Q4_0, else 1
double read_element(const void *data, fovea_dtype dtype, int64_t index);         // FOVEA_BOOL: 0 or 1
void write_element(void *data, fovea_dtype dtype, int64_t index, double value);  // the nearest, ties to even

// Element i of a block. Where FOVEA_I8 elements lie, they are whole numbers, in want of their scale.
double read_block_element(const void *data, fovea_dtype dtype, int64_t block, int64_t i);
// block_elements() numbers with a scale that suits them, each as near as the type allows.
void write_block(void *data, fovea_dtype dtype, int64_t block, const float *values);

double lowest_element(fovea_dtype dtype);        // the lowest finite value
double unit_roundoff(fovea_dtype dtype);         // the largest relative error of rounding to a normal number
double least_that_overflows(fovea_dtype dtype);  // the least number that rounds to infinity

}  // namespace fovea::reference
