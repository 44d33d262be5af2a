#include "arrays.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "core/float_bits.h"
#include "error.h"

namespace fovea_python {
namespace {

// What NumPy promises to every extension that was built against it, and guards by a version number: the first fields of its arrays and of
// their dtypes. (The buffer protocol takes ten times as long, and knows no bfloat16.)
struct NumpyType {
  PyObject_HEAD;
  PyTypeObject *scalar;
  char kind, letter, byte_order, flags;
  int number;
};
struct NumpyArray {
  PyObject_HEAD;
  char *data;
  int ndim;
  Py_ssize_t *shape, *stride;  // stride in bytes
  PyObject *base;
  NumpyType *type;
  int flags;
};
constexpr unsigned kNumpyAbi1 = 0x1000009, kNumpyAbi2 = 0x2000000;
constexpr int kNumpyWriteable = 0x0400;

// DLPack 1.3.
struct DlVersion {
  uint32_t major, minor;
};
struct DlTensor {
  void *data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct DlManagedTensor {
  DlTensor tensor;
  void *context;
  void (*deleter)(DlManagedTensor *);
};
struct DlManagedTensorVersioned {
  DlVersion version;
  void *context;
  void (*deleter)(DlManagedTensorVersioned *);
  uint64_t flags;
  DlTensor tensor;
};
struct DlExchange {
  DlVersion version;
  const DlExchange *previous;
  void *allocate, *from_object, *to_object;
  int (*borrow)(void *object, DlTensor *);  // valid while the caller keeps the object and runs nothing else
};
constexpr int32_t kDlCpu = 1;
constexpr uint64_t kDlReadOnly = 1, kDlCopied = 2;

nb::object loaded_module(const char *name) { return nb::steal(PyImport_GetModule(nb::str(name).ptr())); }

bool has_known_numpy_abi() {
  for (const char *name : {"numpy._core._multiarray_umath", "numpy.core._multiarray_umath"}) {
    const nb::object module_ = loaded_module(name);
    if (!module_) continue;
    const nb::object capsule = module_.attr("_ARRAY_API");
    void **functions = static_cast<void **>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
    if (!functions) throw nb::python_error();
    const unsigned version = reinterpret_cast<unsigned (*)()>(functions[0])();
    return version == kNumpyAbi1 || version == kNumpyAbi2;
  }
  return false;
}

// numpy.ndarray, once NumPy has been imported by whoever makes arrays; null before, and where its memory is laid out otherwise.
PyTypeObject *numpy_array_type() {
  static PyTypeObject *type = nullptr;
  static bool asked = false;
  if (asked) return type;
  const nb::object numpy = loaded_module("numpy");
  if (!numpy || !nb::hasattr(numpy, "ndarray")) return nullptr;  // or is being imported
  asked = true;
  if (has_known_numpy_abi()) type = reinterpret_cast<PyTypeObject *>(nb::object(numpy.attr("ndarray")).release().ptr());
  return type;
}

// The type of elements of ml_dtypes.bfloat16, which are NumPy's as any user's type is: with a number of their own.
bool is_bfloat16(const NumpyType &type) {
  static PyTypeObject *known = nullptr;
  if (known) return type.scalar == known;
  const nb::object ml_dtypes = loaded_module("ml_dtypes");
  if (!ml_dtypes || !nb::hasattr(ml_dtypes, "bfloat16")) return false;
  known = reinterpret_cast<PyTypeObject *>(nb::object(ml_dtypes.attr("bfloat16")).release().ptr());
  return type.scalar == known;
}

ElementType element_type(const char *name, const NumpyType &type) {
  if (type.byte_order != '>') switch (type.number) {
      case 0: return kBool;
      case 1: return kInt8;
      case 2: return kUint8;
      case 5: return kInt32;
      case 7:
      case 9: return kInt64;  // long and long long
      case 11: return kFloat32;
      case 12: return kFloat64;
      case 23: return kFloat16;
      default:
        if (is_bfloat16(type)) return kBfloat16;
    }
  const nb::str text(nb::handle(reinterpret_cast<PyObject *>(const_cast<NumpyType *>(&type))));
  fail(FOVEA_ERR_INVALID_DTYPE, "%s: elements of type %s cannot be read", name, text.c_str());
}

void check_axes(const char *name, int ndim) {
  if (ndim > kMaxAxes) fail(FOVEA_ERR_INVALID_SIZE, "%s: has %d axes, more than %d", name, ndim, kMaxAxes);
}

Array view_numpy(const char *name, const NumpyArray &from) {
  check_axes(name, from.ndim);
  Array array = {from.data,       from.ndim, {}, {}, element_type(name, *from.type), (from.flags & kNumpyWriteable) != 0,
                 Library::kNumpy, {}};
  const int64_t bytes = array.type.bits / 8;
  for (int a = 0; a < array.ndim; ++a) {
    array.shape[a] = from.shape[a];
    if (from.shape[a] == 1) continue;
    array.stride[a] = from.stride[a] / bytes;
    if (from.stride[a] % bytes)
      fail(FOVEA_ERR_INVALID_STRIDE, "%s: the stride of axis %d, %zd bytes, is not a whole number of elements", name, a,
           from.stride[a]);
  }
  return array;
}

Array view_dlpack(const char *name, const DlTensor &from, Library library) {
  if (from.device_type != kDlCpu)
    fail(FOVEA_ERR_INVALID_ARGUMENT, "%s: is not in the memory of the CPU (DLPack device %d)", name, from.device_type);
  check_axes(name, from.ndim);
  if (from.lanes != 1) fail(FOVEA_ERR_INVALID_DTYPE, "%s: elements of %d lanes cannot be read", name, from.lanes);
  Array array = {static_cast<char *>(from.data) + from.byte_offset, from.ndim, {}, {}, {from.code, from.bits}, true, library, {}};
  int64_t dense = 1;
  for (int a = array.ndim - 1; a >= 0; --a) {
    array.shape[a] = from.shape[a];
    if (array.shape[a] != 1) array.stride[a] = from.strides ? from.strides[a] : dense;
    dense *= array.shape[a];
  }
  if (!from.data && dense != 0) fail(FOVEA_ERR_NULL_POINTER, "%s: has a shape but no memory", name);
  return array;
}

// What is known of types that are not NumPy's. Few types have arrays of them attended to, so few are kept.
struct KnownType {
  PyTypeObject *type;
  Library library;
  const DlExchange *exchange;  // null: __dlpack__()
};
constexpr int kMostKnownTypes = 16;

KnownType learn(PyTypeObject *type) {
  KnownType known = {type, Library::kOther, nullptr};
  const nb::handle object(reinterpret_cast<PyObject *>(type));
  if (const nb::object torch = loaded_module("torch"); torch && nb::hasattr(torch, "Tensor")) {
    const int is_tensor = PyObject_IsSubclass(object.ptr(), nb::object(torch.attr("Tensor")).ptr());
    if (is_tensor < 0) throw nb::python_error();
    if (is_tensor) known.library = Library::kTorch;
  }
  if (nb::hasattr(object, "__dlpack_c_exchange_api__")) {
    const nb::object capsule = object.attr("__dlpack_c_exchange_api__");
    known.exchange = static_cast<const DlExchange *>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (!known.exchange) throw nb::python_error();
    while (known.exchange && known.exchange->version.major != 1) known.exchange = known.exchange->previous;
    if (known.exchange && !known.exchange->borrow) known.exchange = nullptr;
  }
  return known;
}

KnownType known_type(PyTypeObject *type) {
  static KnownType types[kMostKnownTypes];
  static int count = 0;
  for (int i = 0; i < count; ++i)
    if (types[i].type == type) return types[i];
  const KnownType known = learn(type);
  if (count < kMostKnownTypes) {
    Py_INCREF(reinterpret_cast<PyObject *>(type));  // or another type might come to lie there
    types[count++] = known;
  }
  return known;
}

// What DLPack does not tell of a tensor. Results have no gradients, and nothing shall be lost in silence; imaginary parts of conjugated tensors
// are views whose memory holds the negated numbers.
void check_tensor(const char *name, nb::handle tensor) {
  static PyObject *requires_grad = PyUnicode_InternFromString("requires_grad"), *is_neg = PyUnicode_InternFromString("is_neg");
  const nb::object needs_gradient = nb::steal(PyObject_GetAttr(tensor.ptr(), requires_grad));
  const nb::object is_negated = nb::steal(PyObject_CallMethodObjArgs(tensor.ptr(), is_neg, nullptr));
  if (!needs_gradient || !is_negated) throw nb::python_error();
  if (is_negated.ptr() == Py_True) fail(FOVEA_ERR_UNSUPPORTED, "%s: is a negated view: resolve_neg() makes a tensor of it", name);
  if (needs_gradient.ptr() == Py_True && nb::cast<bool>(loaded_module("torch").attr("is_grad_enabled")()))
    fail(FOVEA_ERR_UNSUPPORTED, "%s: requires a gradient, which is not computed: detach() it, or call under torch.no_grad()",
         name);
}

// The capsule lends its tensor: it is not renamed, so that it gives the tensor back itself when it dies.
Array view_capsule(const char *name, nb::object object, Library library) {
  if (library == Library::kTorch) object = object.attr("detach")();
  if (!nb::hasattr(object, "__dlpack__"))
    fail(FOVEA_ERR_INVALID_DTYPE, "%s: must be an array of NumPy or PyTorch or have __dlpack__(), not %s", name,
         nb::cast<std::string>(nb::handle(reinterpret_cast<PyObject *>(Py_TYPE(object.ptr()))).attr("__name__")).c_str());
  nb::object capsule;
  try {
    capsule = object.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 3));
  } catch (nb::python_error &error) {  // from before DLPack 1.0
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = object.attr("__dlpack__")();
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto &managed =
        *static_cast<const DlManagedTensorVersioned *>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed.version.major != 1) fail(FOVEA_ERR_UNSUPPORTED, "%s: is of DLPack %u", name, managed.version.major);
    Array array = view_dlpack(name, managed.tensor, library);
    array.writable = (managed.flags & (kDlReadOnly | kDlCopied)) == 0;  // what is written into a copy is lost
    array.owner = std::move(capsule);
    return array;
  }
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor"))
    fail(FOVEA_ERR_INVALID_DTYPE, "%s: __dlpack__() gives no DLPack capsule", name);
  Array array =
      view_dlpack(name, static_cast<const DlManagedTensor *>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor, library);
  array.owner = std::move(capsule);
  return array;
}

Array view_other(const char *name, nb::handle object) {
  const KnownType known = known_type(Py_TYPE(object.ptr()));
  if (known.library == Library::kTorch) check_tensor(name, object);
  if (!known.exchange) return view_capsule(name, nb::borrow(object), known.library);
  DlTensor tensor;
  if (known.exchange->borrow(object.ptr(), &tensor)) throw nb::python_error();
  return view_dlpack(name, tensor, known.library);
}

nb::object checked(PyObject *made) {
  if (!made) throw nb::python_error();
  return nb::steal(made);
}

// The dtypes of results, by the names that NumPy, ml_dtypes and PyTorch have for them.
nb::object dtype(Library library, ElementType type) {
  if (library == Library::kTorch) return loaded_module("torch").attr(name_of(type));
  return nb::module_::import_(type == kBfloat16 ? "ml_dtypes" : "numpy").attr(name_of(type));
}

template <class T>
T number_of(const char *name, nb::handle item) {
  if constexpr (std::is_same_v<T, float>) {
    const double value = PyFloat_AsDouble(item.ptr());
    if (value == -1 && PyErr_Occurred()) fail(FOVEA_ERR_INVALID_DTYPE, "%s: must hold numbers", name);
    return float(value);
  } else {
    const long long value = PyLong_AsLongLong(item.ptr());
    if (value == -1 && PyErr_Occurred()) fail(FOVEA_ERR_INVALID_DTYPE, "%s: must hold whole numbers of 64 bits", name);
    if (value != int32_t(value)) fail(FOVEA_ERR_INVALID_ARGUMENT, "%s: %lld is not a number of 32 bits", name, value);
    return int32_t(value);
  }
}

template <class T>
T number_of(const char *name, const Array &array, int64_t offset) {
  const auto at = [&](auto *type) { return static_cast<decltype(type)>(array.data)[offset]; };
  if constexpr (std::is_same_v<T, float>) {
    if (array.type == kFloat32) return at(static_cast<const float *>(nullptr));
    if (array.type == kFloat64) return float(at(static_cast<const double *>(nullptr)));
    if (array.type == kFloat16) return fovea::float_of_f16(at(static_cast<const uint16_t *>(nullptr)));
    if (array.type == kBfloat16) return fovea::float_of_bf16(at(static_cast<const uint16_t *>(nullptr)));
    fail(FOVEA_ERR_INVALID_DTYPE, "%s: must be of a floating-point type, not %s", name, name_of(array.type));
  } else {
    if (array.type == kInt32) return at(static_cast<const int32_t *>(nullptr));
    if (array.type != kInt64) fail(FOVEA_ERR_INVALID_DTYPE, "%s: must be of int32 or int64, not %s", name, name_of(array.type));
    const int64_t value = at(static_cast<const int64_t *>(nullptr));
    if (value != int32_t(value))
      fail(FOVEA_ERR_INVALID_ARGUMENT, "%s: %lld is not a number of 32 bits", name, static_cast<long long>(value));
    return int32_t(value);
  }
}

bool is_sequence(nb::handle object) { return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()); }

template <class T>
void read_sequence(const char *name, nb::handle items, Numbers<T> *numbers) {
  numbers->ndim = 1;
  numbers->shape[0] = int64_t(nb::len(items));
  int64_t rows = 0;
  for (nb::handle item : items) {
    if (!is_sequence(item)) {
      if (rows) fail(FOVEA_ERR_INVALID_SIZE, "%s: holds rows and numbers", name);
      numbers->copy.push_back(number_of<T>(name, item));
      continue;
    }
    const int64_t columns = int64_t(nb::len(item));
    if (!numbers->copy.empty() && rows == 0) fail(FOVEA_ERR_INVALID_SIZE, "%s: holds rows and numbers", name);
    if (rows++ && columns != numbers->shape[1]) fail(FOVEA_ERR_INVALID_SIZE, "%s: rows must be of equal length", name);
    numbers->ndim = 2;
    numbers->shape[1] = columns;
    for (nb::handle number : item) numbers->copy.push_back(number_of<T>(name, number));
  }
}

template <class T>
void read_array(const char *name, Array array, ElementType native, Numbers<T> *numbers) {
  if (array.ndim > 2) fail(FOVEA_ERR_INVALID_SIZE, "%s: has %d axes", name, array.ndim);
  numbers->ndim = array.ndim;
  for (int a = 0; a < array.ndim; ++a) numbers->shape[a] = array.shape[a];
  const int inner = array.ndim - 1;
  const int64_t inner_size = array.ndim ? array.shape[inner] : 1, inner_stride = array.ndim ? array.stride[inner] : 0;
  const int64_t row_stride = array.ndim == 2 ? array.stride[0] : 0, rows = array.ndim == 2 ? array.shape[0] : 1;
  const bool aligned = reinterpret_cast<uintptr_t>(array.data) % (array.type.bits / 8) == 0;
  if (!aligned) fail(FOVEA_ERR_INVALID_ARGUMENT, "%s: its address is not a multiple of its elements' size", name);
  // The library is handed rows that do not overlap; others are copied.
  if (array.type == native && (inner_size == 1 || inner_stride == 1) && (rows == 1 || row_stride >= inner_size)) {
    numbers->data = static_cast<const T *>(array.data);
    numbers->row_stride = rows == 1 ? inner_size : row_stride;
    numbers->owner = std::move(array.owner);
    return;
  }
  numbers->copy.reserve(size_t(rows * inner_size));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < inner_size; ++j)
      numbers->copy.push_back(number_of<T>(name, array, i * row_stride + j * inner_stride));
}

template <class T>
Numbers<T> numbers_of(const char *name, nb::handle object, ElementType native) {
  Numbers<T> numbers;
  if (is_sequence(object))
    read_sequence(name, object, &numbers);
  else
    read_array(name, view(name, object), native, &numbers);
  if (numbers.data == nullptr) {
    static const T none = 0;  // an array that is given has an address, also where it is empty
    numbers.data = numbers.copy.empty() ? &none : numbers.copy.data();
    numbers.row_stride = numbers.shape[1];
  }
  return numbers;
}

}  // namespace

const char *name_of(ElementType type) {
  struct Name {
    ElementType type;
    const char *name;
  };
  for (const Name &n :
       {Name{kFloat32, "float32"}, Name{kFloat16, "float16"}, Name{kBfloat16, "bfloat16"}, Name{kFloat64, "float64"},
        Name{kInt8, "int8"}, Name{kUint8, "uint8"}, Name{kInt32, "int32"}, Name{kInt64, "int64"}, Name{kBool, "bool"}})
    if (n.type == type) return n.name;
  return "another type";
}

Array view(const char *name, nb::handle object) {
  PyTypeObject *numpy = numpy_array_type();
  if (numpy && (Py_TYPE(object.ptr()) == numpy || PyObject_TypeCheck(object.ptr(), numpy)))
    return view_numpy(name, *reinterpret_cast<const NumpyArray *>(object.ptr()));
  try {
    return view_other(name, object);
  } catch (nb::python_error &error) {
    static const nb::handle base = nb::object(nb::module_::import_("fovea.errors").attr("Error")).release();
    if (error.matches(base)) throw;
    // What the array's own library says, with the argument's name before it.
    const std::string text = nb::cast<std::string>(nb::str(error.value()));
    error.restore();
    fail(FOVEA_ERR_INVALID_ARGUMENT, "%s: %s", name, text.c_str());
  }
}

std::string format_shape(const int64_t *shape, int ndim) {
  std::string text = "(";
  for (int a = 0; a < ndim; ++a) text += (a ? ", " : "") + std::to_string(shape[a]);
  return text + (ndim == 1 ? ",)" : ")");
}

nb::object make_array(nb::handle like, const Array &like_view, ElementType type, const int64_t *shape, int ndim, bool zeroed) {
  const nb::object sizes = nb::steal(PyTuple_New(ndim));
  for (int a = 0; a < ndim; ++a) PyTuple_SetItem(sizes.ptr(), a, PyLong_FromLongLong(shape[a]));
  const bool same_type = like_view.type == type && like_view.library != Library::kOther;
  if (same_type && like_view.library == Library::kTorch) {
    static PyObject *const new_empty = PyUnicode_InternFromString("new_empty"), *const new_zeros =
                                                                                    PyUnicode_InternFromString("new_zeros");
    return checked(PyObject_CallMethodObjArgs(like.ptr(), zeroed ? new_zeros : new_empty, sizes.ptr(), nullptr));
  }
  const nb::object of_type = same_type ? nb::object(like.attr("dtype")) : dtype(like_view.library, type);
  const nb::object library =
      like_view.library == Library::kTorch ? loaded_module("torch") : nb::object(nb::module_::import_("numpy"));
  return library.attr(zeroed ? "zeros" : "empty")(sizes, nb::arg("dtype") = of_type);
}

nb::object make_out(nb::handle q, const Array &q_view, int64_t last_axis, bool zeroed) {
  const int last = q_view.ndim - 1;
  int64_t shape[kMaxAxes];
  std::copy(q_view.shape, q_view.shape + last, shape);
  shape[last] = last_axis;
  if (q_view.library == Library::kTorch) {
    if (last_axis == q_view.shape[last]) {
      static PyObject *const empty_like = nb::object(loaded_module("torch").attr("empty_like")).release().ptr();
      static PyObject *const zeros_like = nb::object(loaded_module("torch").attr("zeros_like")).release().ptr();
      return checked(PyObject_CallFunctionObjArgs(zeroed ? zeros_like : empty_like, q.ptr(), nullptr));
    }
    const auto stride = [&](int axis) { return nb::cast<int64_t>(q.attr("stride")(axis)); };
    if (last == 3 && stride(1) < stride(2)) {
      std::swap(shape[1], shape[2]);
      return make_array(q, q_view, q_view.type, shape, last + 1, zeroed).attr("transpose")(1, 2);
    }
  }
  return make_array(q, q_view, q_view.type, shape, last + 1, zeroed);
}

Numbers<int32_t> integers(const char *name, nb::handle object, int ndim) {
  Numbers<int32_t> numbers = numbers_of<int32_t>(name, object, kInt32);
  if (numbers.ndim != ndim) fail(FOVEA_ERR_INVALID_SIZE, "%s: must have %d axes, not %d", name, ndim, numbers.ndim);
  return numbers;
}

Numbers<float> floats(const char *name, nb::handle object) {
  Numbers<float> numbers = numbers_of<float>(name, object, kFloat32);
  if (numbers.ndim != 1) fail(FOVEA_ERR_INVALID_SIZE, "%s: must have 1 axis, not %d", name, numbers.ndim);
  return numbers;
}

}  // namespace fovea_python
