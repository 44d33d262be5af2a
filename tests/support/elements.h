// Dense elements of any floating-point type, to take the place of the floats of a Call.
#pragma once
#include <cstring>
#include <vector>

#include "fovea/fovea.h"
#include "reference/element.h"

namespace fovea::testing {

constexpr fovea_dtype kDtypes[] = {FOVEA_F32, FOVEA_F16, FOVEA_BF16};
constexpr fovea_dtype k16BitDtypes[] = {FOVEA_F16, FOVEA_BF16};

class Elements {
 public:
  Elements(fovea_dtype dtype, size_t count) : dtype_(dtype), bytes_(count * reference::element_bytes(dtype), 0xFF) {}  // NaN
  Elements(fovea_dtype dtype, const std::vector<float> &values) : Elements(dtype, values.size()) {
    for (size_t i = 0; i < values.size(); ++i) set(i, double{values[i]});
  }

  void clear() { bytes_.assign(bytes_.size(), 0xFF); }
  size_t size() const { return bytes_.size() / width(); }
  const std::vector<unsigned char> &bytes() const { return bytes_; }
  double operator[](size_t i) const { return reference::read_element(bytes_.data(), dtype_, int64_t(i)); }
  void set(size_t i, double value) { reference::write_element(bytes_.data(), dtype_, int64_t(i), value); }  // rounded
  uint32_t bits(size_t i) const {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes_.data() + i * width(), width());  // little-endian, as the library's targets are
    return bits;
  }
  void set_bits(size_t i, uint32_t bits) { std::memcpy(bytes_.data() + i * width(), &bits, width()); }

  void become(fovea_tensor *tensor) {  // which keeps its strides
    tensor->data = bytes_.data();
    tensor->dtype = dtype_;
  }

 private:
  size_t width() const { return reference::element_bytes(dtype_); }

  fovea_dtype dtype_;
  std::vector<unsigned char> bytes_;
};

}  // namespace fovea::testing
