// Elements of tensors of any floating-point type as numbers, the slow and obvious way.
#pragma once
#include <cstddef>
#include <cstdint>

#include "fovea/fovea.h"

namespace fovea::reference {

size_t element_bytes(fovea_dtype dtype);
double read_element(const void *data, fovea_dtype dtype, int64_t index);         // FOVEA_BOOL: 0 or 1
void write_element(void *data, fovea_dtype dtype, int64_t index, double value);  // the nearest, ties to even
double lowest_element(fovea_dtype dtype);                                        // the lowest finite value
double unit_roundoff(fovea_dtype dtype);         // the largest relative error of rounding to a normal number
double least_that_overflows(fovea_dtype dtype);  // the least number that rounds to infinity

}  // namespace fovea::reference
