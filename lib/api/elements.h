// Elements of float types as floats and back: to nearest even where the thread rounds like that, and NaN stays NaN.
#pragma once
#include <cstdint>

namespace fovea {

bool is_float_type(int32_t dtype);

// n elements, stride apart.
void load_floats(const void *from, int32_t dtype, int64_t stride, int64_t n, float *to);
void store_floats(const float *from, int64_t n, void *to, int32_t dtype, int64_t stride);

// n elements as those of another type; those of the same type keep every bit.
void convert_elements(const void *from, int32_t from_dtype, int64_t from_stride, int64_t n, void *to, int32_t to_dtype,
                      int64_t to_stride);

}  // namespace fovea
