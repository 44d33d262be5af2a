// fovea.attention(), and fovea.explain() of the same arguments.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "call.h"
#include "error.h"

namespace fovea_python {
namespace {

class Call {
 public:
  explicit Call(const AttentionArguments &arguments) : a_(arguments), context_(context_or_standard(arguments.context)) {
    out_layout_ = layout_ = layout_named(a_.layout);
    q_array_ = view("q", a_.q);
    k_array_ = view("k", a_.k);
    v_array_ = view("v", a_.v);
    q_ = activation_tensor("q", q_array_, layout_);
    k_ = cache_tensor("k", k_array_, layout_, "k_type", a_.k_type);
    v_ = cache_tensor("v", v_array_, layout_, "v_type", a_.v_type);
    read_batching();
    read_sizes();
    p_.q = q_.t, p_.k = k_.t, p_.v = v_.t;
    read_scales();
    read_numbers();
    read_positions();
    if (!a_.mask.is_none()) read_mask();
    if (!a_.alibi_slopes.is_none()) p_.alibi_slopes = read_per_head("alibi_slopes", a_.alibi_slopes, &alibi_slopes_);
    if (!a_.sinks.is_none()) p_.sinks = read_per_head("sinks", a_.sinks, &sinks_);
    wants_lse_ = truth("return_lse", a_.return_lse) || !a_.lse.is_none();
    wants_weights_ = truth("return_weights", a_.return_weights) || !a_.weights.is_none();
  }

  // Into a new tensor of [batch, seq, head, dim].
  nb::object run_tokens_first() {
    const int64_t shape[4] = {q_.size[0], q_.size[2], q_.size[1], v_.size[3]};
    out_ = make_array(a_.q, q_array_, q_array_.type, shape, 4, false);
    out_layout_ = Layout::kBshd;
    return run();
  }

  nb::object run() {
    place_outputs(true);
    context_.forward(p_);
    return result();
  }

  nb::object explain() {
    place_outputs(false);
    const size_t length = fovea_explain(context_.get(), &p_, nullptr, 0);
    std::string json(length + 1, '\0');
    fovea_explain(context_.get(), &p_, &json[0], json.size());
    json.resize(length);
    return nb::module_::import_("json").attr("loads")(json);
  }

  double seconds() {
    place_outputs(true);
    // Of a microsecond each, milliseconds: enough for a clock, and for a lucky run among several.
    constexpr int64_t kCalls = 2000;
    return context_.seconds_per_forward(p_, kCalls);
  }

 private:
  bool packed_q() const { return cu_seqlens_q_.data != nullptr; }
  bool packed_kv() const { return cu_seqlens_kv_.data != nullptr; }
  bool paged() const { return block_table_.data != nullptr; }

  // How batch entries share the axes: what comes before any size is compared.
  void read_batching() {
    const auto read = [](const char *name, nb::handle object, Numbers<int32_t> *numbers, int ndim) {
      if (!object.is_none()) *numbers = integers(name, object, ndim);
    };
    read("seqlens_q", a_.seqlens_q, &seqlens_q_, 1);
    read("seqlens_kv", a_.seqlens_kv, &seqlens_kv_, 1);
    read("cu_seqlens_q", a_.cu_seqlens_q, &cu_seqlens_q_, 1);
    read("cu_seqlens_kv", a_.cu_seqlens_kv, &cu_seqlens_kv_, 1);
    read("block_table", a_.block_table, &block_table_, 2);
    if (packed_q() && cu_seqlens_q_.shape[0] == 0) fail(FOVEA_ERR_INVALID_SIZE, "cu_seqlens_q: must have at least 1 offset");
    if (packed_kv() && cu_seqlens_kv_.shape[0] == 0) fail(FOVEA_ERR_INVALID_SIZE, "cu_seqlens_kv: must have at least 1 offset");
  }

  void read_sizes() {
    if (packed_q() && q_.size[0] != 1) fail_packed("q", "cu_seqlens_q");
    if (packed_kv() && k_.size[0] != 1) fail_packed("k", "cu_seqlens_kv");
    if (!packed_q() && !packed_kv() && !paged() && q_.ndim != k_.ndim)
      fail(FOVEA_ERR_INVALID_SIZE, "k: has %d axes, q has %d", k_.ndim, q_.ndim);
    if (paged() && k_.ndim != 4) fail(FOVEA_ERR_INVALID_SIZE, "k: has %d axes, but pages are [page, head, slot, dim]", k_.ndim);
    if (v_.ndim != k_.ndim) fail(FOVEA_ERR_INVALID_SIZE, "v: has %d axes, k has %d", v_.ndim, k_.ndim);
    const int64_t batch = packed_q() ? cu_seqlens_q_.shape[0] - 1 : q_.size[0];
    require_size("k", "dim", k_.size[3], "that of q", q_.size[3]);
    require_size("v", "number of heads", v_.size[1], "that of k", k_.size[1]);
    require_size("v", paged() ? "page size" : "number of keys", v_.size[2], "that of k", k_.size[2]);
    require_size("v", paged() ? "number of pages" : "batch size", v_.size[0], "that of k", k_.size[0]);
    if (packed_kv())
      require_size("cu_seqlens_kv", "number of segments", cu_seqlens_kv_.shape[0] - 1, "the batch size", batch);
    else if (!paged())
      require_size("k", "batch size", k_.size[0], packed_q() ? "the number of segments" : "that of q", batch);
    if (seqlens_q_.data) require_size("seqlens_q", "length", seqlens_q_.shape[0], "the batch size", batch);
    if (seqlens_kv_.data) require_size("seqlens_kv", "length", seqlens_kv_.shape[0], "the batch size", batch);
    int64_t seq_kv = k_.size[2];
    if (paged()) {
      require_size("block_table", "number of rows", block_table_.shape[0], "the batch size", batch);
      if (__builtin_mul_overflow(k_.size[2], block_table_.shape[1], &seq_kv))
        fail(FOVEA_ERR_INVALID_SIZE, "block_table: its pages hold too many keys");
    }
    if (!a_.seq_kv.is_none()) {
      if (!paged())
        fail(FOVEA_ERR_INVALID_ARGUMENT, "seq_kv: is for pages; without a block_table k says how many keys there are");
      const int64_t keys_of_pages = seq_kv;
      if (!nb::try_cast<int64_t>(a_.seq_kv, seq_kv)) fail(FOVEA_ERR_INVALID_DTYPE, "seq_kv: must be a whole number");
      if (seq_kv > keys_of_pages)
        fail(FOVEA_ERR_INVALID_ARGUMENT, "seq_kv: %lld is more than the pages of an entry hold, %lld",
             static_cast<long long>(seq_kv), static_cast<long long>(keys_of_pages));
    }
    check(fovea_params_init(&p_, sizeof p_, batch, q_.size[1], k_.size[1], q_.size[2], seq_kv, q_.size[3], v_.size[3]));
    p_.seqlens_q = seqlens_q_.data, p_.seqlens_kv = seqlens_kv_.data;
    p_.cu_seqlens_q = cu_seqlens_q_.data, p_.cu_seqlens_kv = cu_seqlens_kv_.data;
    if (!paged()) return;
    if (k_.size[2] < 1 || k_.size[2] > INT32_MAX)
      fail(FOVEA_ERR_INVALID_SIZE, "k: pages of %lld slots", static_cast<long long>(k_.size[2]));
    p_.block_table = block_table_.data;
    p_.page_size = int32_t(k_.size[2]);
    p_.block_table_stride = block_table_.shape[0] > 1 ? block_table_.row_stride : block_table_.shape[1];
    p_.num_pages = k_.size[0];
  }

  [[noreturn]] void fail_packed(const char *name, const char *offsets) {
    fail(FOVEA_ERR_INVALID_SIZE, "%s: has a batch axis, but with %s all segments share one axis of tokens", name, offsets);
  }

  void read_scales() {
    const auto read = [&](const char *name, nb::handle object, const Tensor &cache, Array *array, fovea_tensor *scale) {
      if (object.is_none()) {
        if (cache.t.dtype == FOVEA_I8) fail(FOVEA_ERR_NULL_POINTER, "%s: must be given where the cache is of int8", name);
        return;
      }
      *array = view(name, object);
      *scale = scale_tensor(name, *array, layout_, cache).t;
    };
    read("k_scale", a_.k_scale, k_, &k_scale_, &p_.k_scale);
    read("v_scale", a_.v_scale, v_, &v_scale_, &p_.v_scale);
  }

  void read_numbers() {
    if (!a_.scale.is_none()) p_.scale = float(number("scale", a_.scale));
    if (!a_.softcap.is_none()) p_.softcap = float(number("softcap", a_.softcap));
  }

  void read_positions() {
    p_.causal = truth("causal", a_.causal);
    if (!a_.window.is_none()) {
      if (!PySequence_Check(a_.window.ptr()) || nb::len(a_.window) != 2)
        fail(FOVEA_ERR_INVALID_DTYPE, "window: must be a pair (left, right)");
      p_.window_left = window_bound(nb::object(a_.window[0]));
      p_.window_right = window_bound(nb::object(a_.window[1]));
    }
    if (!a_.align.is_none()) {
      static constexpr const char *kTopLeft = "top-left", *kBottomRight = "bottom-right";
      const std::string text = PyUnicode_Check(a_.align.ptr()) ? nb::cast<std::string>(a_.align) : "";
      if (text != kTopLeft && text != kBottomRight)
        fail(FOVEA_ERR_INVALID_ARGUMENT, "align: must be \"%s\" or \"%s\"", kTopLeft, kBottomRight);
      p_.align = text == kTopLeft ? FOVEA_ALIGN_TOP_LEFT : FOVEA_ALIGN_BOTTOM_RIGHT;
    } else if (p_.seq_q == p_.seq_kv && !p_.seqlens_q && !p_.seqlens_kv && !packed_q() && !packed_kv() && !paged()) {
      p_.align = FOVEA_ALIGN_TOP_LEFT;  // both corners are the same
    }
  }

  static int64_t window_bound(nb::handle bound) {
    int64_t keys = -1;
    if (!bound.is_none() && !nb::try_cast<int64_t>(bound, keys))
      fail(FOVEA_ERR_INVALID_DTYPE, "window: bounds must be whole numbers or None");
    return keys;
  }

  // The longest entry of an axis, which a mask has to be as long as; lengths that are out of range are the library's to refuse.
  static int64_t longest(const Numbers<int32_t> &lengths, const Numbers<int32_t> &offsets, int64_t axis) {
    int64_t most = 0;
    if (offsets.data) {
      for (int64_t b = 0; b + 1 < offsets.shape[0]; ++b)
        most = std::max(most, int64_t{offsets.data[b + 1]} - int64_t{offsets.data[b]});
      return most;
    }
    if (!lengths.data) return axis;
    for (int64_t b = 0; b < lengths.shape[0]; ++b) most = std::max(most, int64_t{lengths.data[b]});
    return most;
  }

  void read_mask() {
    mask_ = view("mask", a_.mask);
    p_.mask.data = mask_.data ? mask_.data : &mask_;  // an address also where there are no elements
    p_.mask.dtype = mask_.type == kBool       ? FOVEA_BOOL
                    : mask_.type == kFloat32  ? FOVEA_F32
                    : mask_.type == kFloat16  ? FOVEA_F16
                    : mask_.type == kBfloat16 ? FOVEA_BF16
                                              : 0;
    if (!p_.mask.dtype)
      fail(FOVEA_ERR_INVALID_DTYPE, "mask: must be of bool, float32, float16 or bfloat16, not %s", name_of(mask_.type));
    const int64_t axis[4] = {p_.batch, p_.heads_q, p_.seq_q, p_.seq_kv};
    const int64_t least[4] = {p_.batch, p_.heads_q, longest(seqlens_q_, cu_seqlens_q_, p_.seq_q),
                              longest(seqlens_kv_, cu_seqlens_kv_, p_.seq_kv)};
    for (int a = 0; a < 4; ++a) {
      const int at = a - (4 - mask_.ndim);
      const int64_t size = at < 0 ? 1 : mask_.shape[at];
      p_.mask.stride[a] = at < 0 || size == 1 ? 0 : mask_.stride[at];
      const bool is_ragged = least[a] < axis[a] || (a == 2 && packed_q()) || (a == 3 && packed_kv());
      if (size == 1 || size == axis[a] || (is_ragged && size >= least[a])) continue;
      const int64_t shape[4] = {axis[0], axis[1], least[2], least[3]};
      fail(FOVEA_ERR_INVALID_SIZE, "mask: the shape %s does not broadcast to %s", format_shape(mask_.shape, mask_.ndim).c_str(),
           format_shape(shape, 4).c_str());
    }
  }

  const float *read_per_head(const char *name, nb::handle object, Numbers<float> *numbers) {
    *numbers = floats(name, object);
    require_size(name, "length", numbers->shape[0], "the number of query heads", p_.heads_q);
    return numbers->data;
  }

  // The caller's arrays or, where there is none, new ones; not so for a call that is only described.
  void place_outputs(bool allocate) {
    // Rows that no entry has are not written: in arrays of the caller's they keep what they hold, in new ones they are empty rows.
    const bool has_gaps = p_.seqlens_q || packed_q();
    if (!a_.out.is_none()) out_ = nb::borrow(a_.out);
    if (!out_ && allocate) out_ = make_out(a_.q, q_array_, p_.dim_v, has_gaps);
    p_.out.dtype = q_.t.dtype;
    p_.out.data = &out_array_;  // an address for calls that are only described
    if (out_) {
      out_array_ = view("out", out_);
      require_writable("out", out_array_);
      const Tensor out = activation_tensor("out", out_array_, out_layout_);
      const int64_t wanted[4] = {q_.size[0], p_.heads_q, p_.seq_q, p_.dim_v};
      require_shape("out", out, wanted, q_.ndim);
      p_.out = out.t;
    }
    // The axes batch, head, seq in any layout, as many as q has.
    const int64_t rows[4] = {q_.size[0], p_.heads_q, p_.seq_q, p_.seq_kv};
    const int64_t *rows_of_q = rows + (4 - q_.ndim);
    if (wants_lse_) {
      lse_ = a_.lse.is_none() ? nb::object() : nb::borrow(a_.lse);
      if (!lse_ && allocate) {
        lse_ = make_array(a_.q, q_array_, kFloat32, rows_of_q, q_.ndim - 1, has_gaps);
        if (has_gaps) fill_with_minus_infinity(view("lse", lse_));
      }
      p_.lse = &described_lse_;
      if (lse_) {
        lse_array_ = view("lse", lse_);
        require_writable("lse", lse_array_);
        read_lse("lse", lse_array_, rows_of_q, q_.ndim - 1, &p_);
      }
    }
    if (wants_weights_) {
      weights_ = a_.weights.is_none() ? nb::object() : nb::borrow(a_.weights);
      if (!weights_ && allocate) weights_ = make_array(a_.q, q_array_, kFloat32, rows_of_q, q_.ndim, has_gaps);
      p_.weights.data = &described_lse_;
      if (weights_) {
        weights_array_ = view("weights", weights_);
        require_writable("weights", weights_array_);
        require_float32("weights", weights_array_);
        const Tensor weights = activation_tensor("weights", weights_array_, Layout::kBhsd);
        require_shape("weights", weights, rows, q_.ndim);
        p_.weights = weights.t;
      }
    }
  }

  static void require_shape(const char *name, const Tensor &tensor, const int64_t *wanted, int ndim) {
    constexpr const char *kAxes[] = {"batch size", "number of heads", "number of queries", "last axis"};
    if (tensor.ndim != ndim) fail(FOVEA_ERR_INVALID_SIZE, "%s: has %d axes, q has %d", name, tensor.ndim, ndim);
    for (int a = 0; a < 4; ++a) require_size(name, kAxes[a], tensor.size[a], "that of the call", wanted[a]);
  }

  static void fill_with_minus_infinity(const Array &dense) {
    int64_t elements = 1;
    for (int a = 0; a < dense.ndim; ++a) elements *= dense.shape[a];
    std::fill_n(static_cast<float *>(dense.data), elements, -INFINITY);
  }

  nb::object result() {
    if (wants_lse_ && wants_weights_) return nb::make_tuple(out_, lse_, weights_);
    if (wants_lse_) return nb::make_tuple(out_, lse_);
    if (wants_weights_) return nb::make_tuple(out_, weights_);
    return std::move(out_);
  }

  const AttentionArguments &a_;
  const Context &context_;
  Layout layout_, out_layout_;
  fovea_params p_ = {};
  Tensor q_, k_, v_;
  Array q_array_ = {}, k_array_ = {}, v_array_ = {}, k_scale_ = {}, v_scale_ = {}, mask_ = {}, out_array_ = {}, lse_array_ = {},
        weights_array_ = {};
  Numbers<int32_t> seqlens_q_, seqlens_kv_, cu_seqlens_q_, cu_seqlens_kv_, block_table_;
  Numbers<float> alibi_slopes_, sinks_;
  bool wants_lse_ = false, wants_weights_ = false;
  nb::object out_, lse_, weights_;
  float described_lse_ = 0;
};

int64_t tensor_calls_so_far = 0;  // the GIL guards it

}  // namespace

nb::object attention(const AttentionArguments &arguments) { return Call(arguments).run(); }

nb::object tensor_attention(const TensorArguments &a) {
  static PyObject *const layout = PyUnicode_InternFromString("bhsd");
  const nb::handle none = Py_None, no = Py_False;
  const nb::object window = nb::make_tuple(a.window_left, a.window_right);
  AttentionArguments all = {a.q,      a.k,     a.v,    none,   none, none,    no,     no,           a.scale, a.softcap,
                            a.causal, a.align, window, a.mask, none, a.sinks, none,   a.seqlens_kv, none,    none,
                            none,     none,    none,   none,   none, none,    layout, a.context};
  Call call(all);
  nb::object out = truth("tokens_first", a.tokens_first) ? call.run_tokens_first() : call.run();
  ++tensor_calls_so_far;
  return out;
}

int64_t tensor_calls() { return tensor_calls_so_far; }

nb::object explain(const AttentionArguments &arguments) { return Call(arguments).explain(); }

nb::object seconds_per_call(const AttentionArguments &arguments) { return nb::float_(Call(arguments).seconds()); }

}  // namespace fovea_python
