#include "call.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

#include "error.h"

namespace fovea_python {
namespace {

// Where an optional tensor has no elements it may have no address either, which would say that it is absent.
alignas(int64_t) char nothing[sizeof(int64_t)];

void *address_of(const Array &array) { return array.data ? array.data : nothing; }

fovea_dtype float_type(ElementType type) {
  if (type == kFloat32) return FOVEA_F32;
  if (type == kFloat16) return FOVEA_F16;
  if (type == kBfloat16) return FOVEA_BF16;
  return 0;
}

// The axes of an array in the order batch, head, seq, dim; those it lacks have size 1.
Tensor arrange(const char *name, const Array &array, Layout layout) {
  if (array.ndim < 2) fail(FOVEA_ERR_INVALID_SIZE, "%s: must have 2 to 4 axes, not %d", name, array.ndim);
  Tensor tensor = {{address_of(array), {0, 0, 0, 0}, 0, 0}, {1, 1, 1, 1}, array.ndim};
  for (int a = 0; a < array.ndim; ++a) {
    int axis = a + 4 - array.ndim;
    if (layout == Layout::kBshd && array.ndim > 2 && (axis == 1 || axis == 2)) axis = 3 - axis;
    tensor.size[axis] = array.shape[a];
    tensor.t.stride[axis] = array.stride[a];
  }
  return tensor;
}

std::string text_of(const char *name, nb::handle object) {
  if (!PyUnicode_Check(object.ptr())) fail(FOVEA_ERR_INVALID_DTYPE, "%s: must be a string", name);
  return nb::cast<std::string>(object);
}

}  // namespace

Layout layout_named(nb::handle name) {
  static PyObject *usual = PyUnicode_InternFromString("bhsd");
  if (name.ptr() == usual) return Layout::kBhsd;
  const std::string text = text_of("layout", name);
  if (text == "bhsd") return Layout::kBhsd;
  if (text == "bshd") return Layout::kBshd;
  fail(FOVEA_ERR_INVALID_ARGUMENT, "layout: \"%.100s\" is neither \"bhsd\" nor \"bshd\"", text.c_str());
}

const Context &context_or_standard(nb::handle context) {
  if (context.is_none()) return Context::standard();
  const Context *given;
  if (!nb::try_cast<const Context *>(context, given) || !given) fail(FOVEA_ERR_INVALID_DTYPE, "context: must be a fovea.Context");
  return *given;
}

double number(const char *name, nb::handle object) {
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1 && PyErr_Occurred()) fail(FOVEA_ERR_INVALID_DTYPE, "%s: must be a number", name);
  return value;
}

bool truth(const char *name, nb::handle object) {
  if (object.ptr() == Py_True) return true;
  if (object.ptr() == Py_False) return false;
  fail(FOVEA_ERR_INVALID_DTYPE, "%s: must be True or False", name);
}

void require_float32(const char *name, const Array &array) {
  if (array.type != kFloat32) fail(FOVEA_ERR_INVALID_DTYPE, "%s: must be of float32, not %s", name, name_of(array.type));
}

void read_lse(const char *name, const Array &array, const int64_t *shape, int ndim, fovea_params *p) {
  require_float32(name, array);
  if (array.ndim != ndim || !std::equal(shape, shape + ndim, array.shape))
    fail(FOVEA_ERR_INVALID_SIZE, "%s: must have the shape %s, not %s", name, format_shape(shape, ndim).c_str(),
         format_shape(array.shape, array.ndim).c_str());
  p->lse = static_cast<float *>(array.data);
  for (int a = 0; a < 3; ++a) p->lse_stride[a] = a < 3 - ndim ? 0 : array.stride[a - (3 - ndim)];
}

void require_writable(const char *name, const Array &array) {
  if (!array.writable) fail(FOVEA_ERR_INVALID_ARGUMENT, "%s: is read-only", name);
}

void require_size(const char *name, const char *axis, int64_t size, const char *of, int64_t wanted) {
  if (size != wanted)
    fail(FOVEA_ERR_INVALID_SIZE, "%s: its %s, %lld, is not %s, %lld", name, axis, static_cast<long long>(size), of,
         static_cast<long long>(wanted));
}

Tensor activation_tensor(const char *name, const Array &array, Layout layout) {
  Tensor tensor = arrange(name, array, layout);
  tensor.t.dtype = float_type(array.type);
  if (!tensor.t.dtype)
    fail(FOVEA_ERR_INVALID_DTYPE, "%s: must be of float32, float16 or bfloat16, not %s", name, name_of(array.type));
  return tensor;
}

Tensor cache_tensor(const char *name, const Array &array, Layout layout, const char *type_name, nb::handle type) {
  if (type.is_none()) {
    if (array.type == kUint8)
      fail(FOVEA_ERR_INVALID_DTYPE, "%s: is of uint8; %s must say which blocks these are", name, type_name);
    if (array.type != kInt8) return activation_tensor(name, array, layout);
    Tensor tensor = arrange(name, array, layout);
    tensor.t.dtype = FOVEA_I8;
    return tensor;
  }
  constexpr int64_t kBlockElements = 32;
  const std::string text = text_of(type_name, type);
  const bool is_q8 = text == "q8_0";
  if (!is_q8 && text != "q4_0")
    fail(FOVEA_ERR_INVALID_ARGUMENT, "%s: \"%.100s\" is neither \"q8_0\" nor \"q4_0\"", type_name, text.c_str());
  if (array.type != kUint8)
    fail(FOVEA_ERR_INVALID_DTYPE, "%s: must be of uint8, the bytes of %s blocks, not %s", name, text.c_str(),
         name_of(array.type));
  const int64_t bytes = is_q8 ? 34 : 18;
  Tensor tensor = arrange(name, array, layout);
  tensor.t.dtype = is_q8 ? FOVEA_Q8_0 : FOVEA_Q4_0;
  if (tensor.size[3] % bytes)
    fail(FOVEA_ERR_INVALID_SIZE, "%s: its last axis, %lld bytes, is not a whole number of blocks of %lld", name,
         static_cast<long long>(tensor.size[3]), static_cast<long long>(bytes));
  if (tensor.size[3] > 1 && tensor.t.stride[3] != 1)
    fail(FOVEA_ERR_INVALID_STRIDE, "%s: the bytes of a row must lie side by side", name);
  tensor.size[3] = tensor.size[3] / bytes * kBlockElements;
  tensor.t.stride[3] = 1;
  for (int a = 0; a < 3; ++a) {
    if (tensor.t.stride[a] % bytes && tensor.size[a] > 1)
      fail(FOVEA_ERR_INVALID_STRIDE, "%s: a stride of %lld bytes is not a whole number of blocks of %lld", name,
           static_cast<long long>(tensor.t.stride[a]), static_cast<long long>(bytes));
    tensor.t.stride[a] /= bytes;
  }
  return tensor;
}

Tensor scale_tensor(const char *name, const Array &array, Layout layout, const Tensor &cache) {
  Array with_dim = array;
  if (array.ndim == cache.ndim - 1) {
    with_dim.shape[with_dim.ndim] = 1;
    with_dim.stride[with_dim.ndim++] = 0;
  }
  if (with_dim.ndim != cache.ndim)
    fail(FOVEA_ERR_INVALID_SIZE, "%s: has %d axes, its cache has %d", name, array.ndim, cache.ndim);
  Tensor tensor = arrange(name, with_dim, layout);
  require_float32(name, array);
  tensor.t.dtype = FOVEA_F32;
  constexpr const char *kAxes[] = {"batch", "heads", "seq"};
  for (int a = 0; a < 3; ++a)
    if (tensor.size[a] != 1) require_size(name, kAxes[a], tensor.size[a], "its cache's", cache.size[a]);
  if (tensor.size[3] != 1) require_size(name, "last axis", tensor.size[3], "that of a scale a row", 1);
  return tensor;
}

}  // namespace fovea_python
