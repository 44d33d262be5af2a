// Masks of every dtype, over any of the axes, at any strides.
#pragma once
#include <string>
#include <vector>

#include "fovea/fovea.h"
#include "support/call.h"

namespace fovea::testing {

constexpr fovea_dtype kMaskDtypes[] = {FOVEA_BOOL, FOVEA_F32, FOVEA_F16, FOVEA_BF16};
constexpr fovea_dtype kAddedDtypes[] = {FOVEA_F32, FOVEA_F16, FOVEA_BF16};

class Mask {
 public:
  // axes: those of "bhqk" that it has; the strides of the others are 0. step: the innermost stride; gaps hold NaN. Every key is permitted.
  Mask(fovea_dtype dtype, const Sizes &n, const std::string &axes = "bhqk", int64_t step = 1);
  Mask(Mask &&) = default;  // its memory stays where it is

  const fovea_tensor &tensor() const { return tensor_; }
  const std::vector<unsigned char> &bytes() const { return bytes_; }
  bool is_boolean() const { return tensor_.dtype == FOVEA_BOOL; }

  void set(int64_t b, int64_t h, int64_t i, int64_t j, float value);  // a boolean mask attends where value is not 0
  void permit(int64_t b, int64_t h, int64_t i, int64_t j, bool permitted);
  template <class Permitted>  // permitted(b, h, i, j)
  void permit_where(Permitted permitted) {
    for_each([&](int64_t b, int64_t h, int64_t i, int64_t j) { permit(b, h, i, j, permitted(b, h, i, j)); });
  }
  template <class Value>  // value(b, h, i, j)
  void set_all(Value value) {
    for_each([&](int64_t b, int64_t h, int64_t i, int64_t j) { set(b, h, i, j, value(b, h, i, j)); });
  }

 private:
  template <class Visit>
  void for_each(Visit visit) const {
    for (int64_t b = 0; b < size_[0]; ++b)
      for (int64_t h = 0; h < size_[1]; ++h)
        for (int64_t i = 0; i < size_[2]; ++i)
          for (int64_t j = 0; j < size_[3]; ++j) visit(b, h, i, j);
  }

  int64_t size_[4];  // 1 on the axes that it does not have
  std::vector<unsigned char> bytes_;
  fovea_tensor tensor_;
};

}  // namespace fovea::testing
