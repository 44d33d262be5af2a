#include "support/mask.h"

#include <algorithm>
#include <limits>

#include "reference/element.h"

namespace fovea::testing {

Mask::Mask(fovea_dtype dtype, const Sizes &n, const std::string &axes, int64_t step) : size_{1, 1, 1, 1}, tensor_{} {
  const int64_t full[4] = {n.batch, n.heads_q, n.seq_q, n.seq_kv};
  int64_t stride = step;
  for (int axis = 3; axis >= 0; --axis) {
    if (axes.find("bhqk"[axis]) == std::string::npos) continue;
    size_[axis] = full[axis];
    tensor_.stride[axis] = stride;
    stride *= full[axis];
  }
  bytes_.assign(std::max<size_t>(size_t(stride), 1) * reference::element_bytes(dtype), 0xff);  // NaN in each of the dtypes
  tensor_.data = bytes_.data();
  tensor_.dtype = dtype;
  permit_where([](int64_t, int64_t, int64_t, int64_t) { return true; });
}

void Mask::set(int64_t b, int64_t h, int64_t i, int64_t j, float value) {
  const int64_t *stride = tensor_.stride;
  reference::write_element(bytes_.data(), tensor_.dtype, b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3], value);
}

void Mask::permit(int64_t b, int64_t h, int64_t i, int64_t j, bool permitted) {
  set(b, h, i, j, is_boolean() ? float(permitted) : permitted ? 0.0f : -std::numeric_limits<float>::infinity());
}

}  // namespace fovea::testing
