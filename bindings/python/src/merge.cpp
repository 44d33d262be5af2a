// fovea.merge(): results over disjoint sets of keys.
#include <algorithm>
#include <string>
#include <vector>

#include "call.h"
#include "error.h"
#include "without_gil.h"

namespace fovea_python {
namespace {

struct Part {
  Array out_array, lse_array;
  Tensor out;
  fovea_params p;
};

// p: sizes and both tensors; a packed batch is one entry of all tokens.
Part read_part(const char *out_name, nb::handle out, const char *lse_name, nb::handle lse, Layout layout) {
  Part part = {view(out_name, out), view(lse_name, lse), {}, {}};
  part.out = activation_tensor(out_name, part.out_array, layout);
  const int ndim = part.out.ndim - 1;
  const int64_t *size = part.out.size;
  check(fovea_params_init(&part.p, sizeof part.p, size[0], size[1], size[1], size[2], 0, 0, size[3]));
  part.p.out = part.out.t;
  read_lse(lse_name, part.lse_array, size + 3 - ndim, ndim, &part.p);
  return part;
}

}  // namespace

nb::object merge(const MergeArguments &a) {
  const Context &context = context_or_standard(a.context);
  const Layout layout = layout_named(a.layout);
  if (!PyList_Check(a.parts.ptr()) && !PyTuple_Check(a.parts.ptr()))
    fail(FOVEA_ERR_INVALID_DTYPE, "parts: must be a list or tuple of pairs (out, lse)");
  const size_t count = nb::len(a.parts);
  if (count == 0) fail(FOVEA_ERR_INVALID_SIZE, "parts: must have at least one");
  if (count > INT32_MAX) fail(FOVEA_ERR_INVALID_SIZE, "parts: are too many");
  std::vector<Part> parts;
  parts.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const nb::object pair = a.parts[i];
    const std::string name = "parts[" + std::to_string(i) + "]";
    if (!PyTuple_Check(pair.ptr()) || nb::len(pair) != 2)
      fail(FOVEA_ERR_INVALID_DTYPE, "%s: must be a pair (out, lse)", name.c_str());
    parts.push_back(
        read_part((name + ".out").c_str(), nb::object(pair[0]), (name + ".lse").c_str(), nb::object(pair[1]), layout));
    if (parts[i].out.ndim != parts[0].out.ndim)
      fail(FOVEA_ERR_INVALID_SIZE, "%s.out: has %d axes, parts[0].out has %d", name.c_str(), parts[i].out.ndim,
           parts[0].out.ndim);
  }

  const Part &first = parts[0];
  const bool has_gaps = !a.seqlens_q.is_none() || !a.cu_seqlens_q.is_none();
  const nb::object like = nb::object(nb::object(a.parts[0])[0]);
  nb::object out = nb::borrow(a.out), lse = nb::borrow(a.lse);
  if (out.is_none())
    out = make_array(like, first.out_array, first.out_array.type, first.out_array.shape, first.out.ndim, has_gaps);
  if (lse.is_none()) {
    lse = make_array(like, first.out_array, kFloat32, first.lse_array.shape, first.lse_array.ndim, false);
    const Array dense = view("lse", lse);
    int64_t rows = 1;
    for (int axis = 0; axis < dense.ndim; ++axis) rows *= dense.shape[axis];
    if (has_gaps) std::fill_n(static_cast<float *>(dense.data), rows, -__builtin_inff());
  }
  Part result = read_part("out", out, "lse", lse, layout);
  require_writable("out", result.out_array);
  require_writable("lse", result.lse_array);
  if (result.out.ndim != first.out.ndim)
    fail(FOVEA_ERR_INVALID_SIZE, "out: has %d axes, parts[0].out has %d", result.out.ndim, first.out.ndim);
  Numbers<int32_t> seqlens_q, cu_seqlens_q;
  if (!a.seqlens_q.is_none()) {
    seqlens_q = integers("seqlens_q", a.seqlens_q, 1);
    require_size("seqlens_q", "length", seqlens_q.shape[0], "the batch size", result.p.batch);
    result.p.seqlens_q = seqlens_q.data;
  }
  const int32_t all_tokens[2] = {0, int32_t(std::min<int64_t>(result.p.seq_q, INT32_MAX))};
  if (!a.cu_seqlens_q.is_none()) {
    cu_seqlens_q = integers("cu_seqlens_q", a.cu_seqlens_q, 1);
    if (cu_seqlens_q.shape[0] == 0) fail(FOVEA_ERR_INVALID_SIZE, "cu_seqlens_q: must have at least 1 offset");
    if (result.p.batch != 1)
      fail(FOVEA_ERR_INVALID_SIZE, "out: has a batch axis, but with cu_seqlens_q all segments share one axis of tokens");
    result.p.batch = cu_seqlens_q.shape[0] - 1;
    result.p.cu_seqlens_q = cu_seqlens_q.data;
    for (Part &part : parts) part.p.cu_seqlens_q = all_tokens;
  }

  std::vector<const fovea_params *> pointers;
  pointers.reserve(count);
  for (const Part &part : parts) pointers.push_back(&part.p);
  // What a merged element takes, in multiply-adds of attention: as many as the library counts for its own threads.
  constexpr double kMultiplyAddsPerElement = 25;
  const double elements = double(result.p.batch) * double(result.p.heads_q) * double(result.p.seq_q) * double(result.p.dim_v);
  fovea_status status;
  {
    const WithoutGil without_gil;
    status = fovea_merge(context.for_work(elements * kMultiplyAddsPerElement * double(count)), pointers.data(), int32_t(count),
                         &result.p);
  }
  check(status);
  return nb::make_tuple(out, lse);
}

}  // namespace fovea_python
