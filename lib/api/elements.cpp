#include "api/elements.h"

#include <string.h>

#include "core/float_bits.h"
#include "fovea/fovea.h"

namespace fovea {
namespace {

inline float itself(float x) { return x; }

template <class Element, float (*to_float)(Element)>
void load(const void *data, int64_t stride, int64_t n, float *to) {
  const auto *from = static_cast<const Element *>(data);
  if (stride == 1)
    for (int64_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
  else
    for (int64_t i = 0; i < n; ++i) to[i] = to_float(from[i * stride]);
}

template <class Element, Element (*of_float)(float)>
void store(const float *from, int64_t n, void *data, int64_t stride) {
  auto *to = static_cast<Element *>(data);
  if (stride == 1)
    for (int64_t i = 0; i < n; ++i) to[i] = of_float(from[i]);
  else
    for (int64_t i = 0; i < n; ++i) to[i * stride] = of_float(from[i]);
}

template <class Bits>
void copy(const void *from, int64_t from_stride, int64_t n, void *to, int64_t to_stride) {
  if (from_stride == 1 && to_stride == 1) {
    memmove(to, from, size_t(n) * sizeof(Bits));
    return;
  }
  for (int64_t i = 0; i < n; ++i)
    memmove(static_cast<Bits *>(to) + i * to_stride, static_cast<const Bits *>(from) + i * from_stride, sizeof(Bits));
}

}  // namespace

bool is_float_type(int32_t dtype) { return dtype == FOVEA_F32 || dtype == FOVEA_F16 || dtype == FOVEA_BF16; }

void load_floats(const void *from, int32_t dtype, int64_t stride, int64_t n, float *to) {
  switch (dtype) {
    case FOVEA_F16: return load<uint16_t, float_of_f16>(from, stride, n, to);
    case FOVEA_BF16: return load<uint16_t, float_of_bf16>(from, stride, n, to);
    default: return load<float, itself>(from, stride, n, to);
  }
}

void store_floats(const float *from, int64_t n, void *to, int32_t dtype, int64_t stride) {
  switch (dtype) {
    case FOVEA_F16: return store<uint16_t, f16_of_float>(from, n, to, stride);
    case FOVEA_BF16: return store<uint16_t, bf16_of_float>(from, n, to, stride);
    default: return store<float, itself>(from, n, to, stride);
  }
}

void convert_elements(const void *from, int32_t from_dtype, int64_t from_stride, int64_t n, void *to, int32_t to_dtype,
                      int64_t to_stride) {
  if (from_dtype == to_dtype) {
    if (to_dtype == FOVEA_F32) return copy<uint32_t>(from, from_stride, n, to, to_stride);
    return copy<uint16_t>(from, from_stride, n, to, to_stride);
  }
  constexpr int64_t kPart = 256;  // floats at a time, on the stack
  float x[kPart];
  const int64_t from_bytes = from_dtype == FOVEA_F32 ? 4 : 2, to_bytes = to_dtype == FOVEA_F32 ? 4 : 2;
  for (int64_t i = 0; i < n; i += kPart) {
    const int64_t part = n - i < kPart ? n - i : kPart;
    load_floats(static_cast<const char *>(from) + i * from_stride * from_bytes, from_dtype, from_stride, part, x);
    store_floats(x, part, static_cast<char *>(to) + i * to_stride * to_bytes, to_dtype, to_stride);
  }
}

}  // namespace fovea
