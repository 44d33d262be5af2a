// Arrays of Python as memory: NumPy arrays through NumPy's C ABI, others through DLPack, whose C functions are used where a type has
// them. Nothing is copied.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fovea_python {

namespace nb = nanobind;

// As DLPack describes types of one lane.
struct ElementType {
  uint8_t code, bits;
  bool operator==(const ElementType &other) const { return code == other.code && bits == other.bits; }
  bool operator!=(const ElementType &other) const { return !(*this == other); }
};
constexpr ElementType kInt8{0, 8}, kInt32{0, 32}, kInt64{0, 64}, kUint8{1, 8}, kFloat16{2, 16}, kFloat32{2, 32}, kFloat64{2, 64},
    kBfloat16{4, 16}, kBool{6, 8};
const char *name_of(ElementType type);

enum class Library { kNumpy, kTorch, kOther };

constexpr int kMaxAxes = 4;

struct Array {
  void *data;
  int ndim;
  int64_t shape[kMaxAxes], stride[kMaxAxes];  // elements; strides of axes of size 1 are 0
  ElementType type;
  bool writable;
  Library library;
  nb::object owner;  // of what DLPack lent; the memory is valid while it lives
};

// name: the argument, for errors. object is not None.
Array view(const char *name, nb::handle object);

// "(2, 8, 100, 64)"
std::string format_shape(const int64_t *shape, int ndim);

// A new array of the library that like is of (NumPy's for others) with the element type given. zeroed: else its elements are anything.
nb::object make_array(nb::handle like, const Array &like_view, ElementType type, const int64_t *shape, int ndim, bool zeroed);
// The same of the shape and type of q but for its last axis. A tensor's has the order of q's axes in memory too, as PyTorch's own function
// gives it: the layer that follows reads it without a copy.
nb::object make_out(nb::handle q, const Array &q_view, int64_t last_axis, bool zeroed);

// A list or tuple of numbers, or an array of at most two axes, as the contiguous int32 or float32 numbers that the library reads: where
// the array is that already, its own memory.
template <class T>
struct Numbers {
  const T *data = nullptr;
  int ndim = 0;
  int64_t shape[2] = {1, 1};
  int64_t row_stride = 0;  // two axes: from row to row
  nb::object owner;
  std::vector<T> copy;
};
Numbers<int32_t> integers(const char *name, nb::handle object, int ndim);
Numbers<float> floats(const char *name, nb::handle object);

}  // namespace fovea_python
