// Fovea for C++17: a thin, header-only veneer over the C API in fovea.h, which is the manual. SPDX-License-Identifier: Apache-2.0
//
// The shortest correct program:
//
//     fovea::Context context;
//     fovea::Params call({1, 8, 8, 128, 128, 64, 64});  // batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v
//     call.with_q(q).with_k(k).with_v(v).with_out(out).with_causal(FOVEA_ALIGN_BOTTOM_RIGHT);
//     context.forward(call);
//
// Failures are thrown as fovea::Error. Nothing here has an ABI of its own: all of it is compiled into the caller.
#ifndef FOVEA_FOVEA_HPP_
#define FOVEA_FOVEA_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "fovea/fovea.h"

namespace fovea {
inline namespace veneer {  // its symbols share none of the names in the library itself

class Error : public std::runtime_error {
 public:
  Error(fovea_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
  fovea_status status() const noexcept { return status_; }

 private:
  fovea_status status_;
};

// Throws what the C API reports.
inline void require(fovea_status status) {
  if (status != FOVEA_OK) throw Error(status, fovea_last_error());
}

struct Sizes {
  int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v;
};

using Strides = std::array<int64_t, 4>;  // batch, head, seq, dim; in elements

// One call: a fovea_params whose fields all stay in reach, dense and with every option off to begin with.
struct Params : fovea_params {
  explicit Params(const Sizes &s) : fovea_params() {
    require(fovea_params_init(this, sizeof(fovea_params), s.batch, s.heads_q, s.heads_kv, s.seq_q, s.seq_kv, s.dim_k, s.dim_v));
  }

  Params &with_q(const float *data) { return with_input(q, data); }
  Params &with_k(const float *data) { return with_input(k, data); }
  Params &with_v(const float *data) { return with_input(v, data); }
  Params &with_q(const float *data, const Strides &s) { return with_strides(q, s).with_q(data); }
  Params &with_k(const float *data, const Strides &s) { return with_strides(k, s).with_k(data); }
  Params &with_v(const float *data, const Strides &s) { return with_strides(v, s).with_v(data); }

  Params &with_out(float *data) { return with_output(out, data); }
  Params &with_weights(float *data) { return with_output(weights, data); }
  Params &with_out(float *data, const Strides &s) { return with_strides(out, s).with_out(data); }
  Params &with_weights(float *data, const Strides &s) { return with_strides(weights, s).with_weights(data); }

  Params &with_lse(float *data) {
    lse = data;
    return *this;
  }
  Params &with_lse(float *data, const std::array<int64_t, 3> &strides) {
    for (std::size_t axis = 0; axis < strides.size(); ++axis) lse_stride[axis] = strides[axis];
    return with_lse(data);
  }

  Params &with_scale(float value) {
    scale = value;
    return *this;
  }
  Params &with_softcap(float value) {
    softcap = value;
    return *this;
  }

  // These go together in any order: causal and a window permit the keys that both permit, left to 0 keys around the query's own.
  // A corner is FOVEA_ALIGN_TOP_LEFT or FOVEA_ALIGN_BOTTOM_RIGHT. A call has one: naming the other afterwards throws.
  Params &with_causal(int32_t corner) {
    set_corner(corner);
    causal = 1;
    return *this;
  }
  Params &with_window(int64_t left, int64_t right, int32_t corner) {  // -1: no bound
    set_corner(corner);
    window_left = left;
    window_right = right;
    return *this;
  }
  Params &with_alibi(const float *slopes, int32_t corner) {  // [heads_q]
    set_corner(corner);
    alibi_slopes = slopes;
    return *this;
  }

  Params &with_mask(const bool *data, const Strides &s) { return with_mask(data, FOVEA_BOOL, s); }  // true = attend
  Params &with_mask(const float *data, const Strides &s) { return with_mask(data, FOVEA_F32, s); }  // added
  Params &with_mask(const void *data, fovea_dtype dtype, const Strides &s) {
    mask.data = const_cast<void *>(data);
    mask.dtype = dtype;
    return with_strides(mask, s);
  }

  Params &with_sinks(const float *logits) {  // [heads_q]
    sinks = logits;
    return *this;
  }

  // Of each batch entry; nullptr: all seq_q, seq_kv.
  Params &with_lengths(const int32_t *queries, const int32_t *keys) {
    seqlens_q = queries;
    seqlens_kv = keys;
    return *this;
  }
  // batch + 1 offsets of packed segments; nullptr: that side is not packed.
  Params &with_offsets(const int32_t *queries, const int32_t *keys) {
    cu_seqlens_q = queries;
    cu_seqlens_kv = keys;
    return *this;
  }

  // Keys in pages of `size` slots: k and v are [page, heads_kv, slot, dim], the table is [batch, columns].
  Params &with_pages(int32_t size, int64_t count, const int32_t *table, int64_t columns) {
    page_size = size;
    num_pages = count;
    block_table = table;
    block_table_stride = columns;
    return *this;
  }

  // Calls function(tile), with a const fovea_score_tile &, from worker threads, several at the same time. It must outlive the
  // call and must not throw: a throw ends the process.
  template <class Function>
  Params &with_score(int32_t mode, Function &function) {  // FOVEA_SCORE_MODIFY or FOVEA_SCORE_REPLACE
    score_mode = mode;
    score_user = const_cast<void *>(static_cast<const void *>(&function));
    score = [](void *user, const fovea_score_tile *tile) noexcept { (*static_cast<Function *>(user))(*tile); };
    return *this;
  }

 private:
  void set_corner(int32_t corner) {
    if (align != FOVEA_ALIGN_NONE && align != corner)
      throw Error(FOVEA_ERR_INVALID_ARGUMENT, "align: the call counts positions from another corner already");
    align = corner;
  }
  Params &with_input(fovea_tensor &tensor, const float *data) {
    tensor.data = const_cast<float *>(data);  // the C struct serves inputs and outputs; inputs are only read
    return *this;
  }
  Params &with_output(fovea_tensor &tensor, float *data) {
    tensor.data = data;
    return *this;
  }
  Params &with_strides(fovea_tensor &tensor, const Strides &strides) {
    for (std::size_t axis = 0; axis < strides.size(); ++axis) tensor.stride[axis] = strides[axis];
    return *this;
  }
};

struct Options : fovea_options {
  Options() : fovea_options() { require(fovea_options_init(this, sizeof(fovea_options))); }

  Options &with_isa(fovea_isa level) {
    isa = level;
    return *this;
  }
  Options &with_threads(int32_t count) {
    num_threads = count;
    return *this;
  }
  Options &with_executor(fovea_executor &&) = delete;
  Options &with_executor(const fovea_executor &e) {  // read when the context is created
    executor = &e;
    return *this;
  }
  Options &with_tuning(const char *file) {  // read when the context is created
    tuning = file;
    return *this;
  }
};

// Immutable; threads may share it.
class Context {
 public:
  Context() : Context(Options()) {}
  explicit Context(const fovea_options &options) {
    fovea_context *created = nullptr;
    require(fovea_context_create(&options, &created));
    context_.reset(created);
  }

  // Brings its own workspace.
  void forward(const fovea_params &call) const { require(fovea_forward(get(), &call, nullptr, 0)); }
  // Allocates nothing.
  void forward(const fovea_params &call, void *workspace, std::size_t bytes) const {
    require(fovea_forward(get(), &call, workspace, bytes));
  }
  std::size_t workspace_size(const fovea_params &call) const {
    std::size_t bytes = 0;
    require(fovea_workspace_size(get(), &call, &bytes));
    return bytes;
  }

  // Of the same rows over disjoint sets of keys.
  void merge(const std::vector<const fovea_params *> &parts, const fovea_params &result) const {
    require(fovea_merge(get(), parts.data(), static_cast<int32_t>(parts.size()), &result));
  }

  // Entry b's first count[b] new tokens become its tokens from start[b] on.
  void kv_append(const fovea_params &cache, const fovea_tensor &k_new, const fovea_tensor &v_new, const int32_t *start,
                 const int32_t *count) const {
    require(fovea_kv_append(get(), &cache, &k_new, &v_new, start, count));
  }

  // JSON; of a call with wrong arguments, too.
  std::string explain(const fovea_params &call) const {
    std::string json(fovea_explain(get(), &call, nullptr, 0), '\0');
    fovea_explain(get(), &call, json.data(), json.size() + 1);
    return json;
  }

  fovea_isa isa() const noexcept { return fovea_context_isa(get()); }
  int32_t threads() const noexcept { return fovea_context_threads(get()); }
  const char *tuning() const noexcept { return fovea_context_tuning(get()); }
  const fovea_context *get() const noexcept { return context_.get(); }

 private:
  struct Destroy {
    void operator()(fovea_context *c) const noexcept { fovea_context_destroy(c); }
  };
  std::unique_ptr<fovea_context, Destroy> context_;
};

// The usual ALiBi slopes.
inline std::vector<float> alibi_slopes(int64_t heads) {
  std::vector<float> slopes(heads > 0 ? static_cast<std::size_t>(heads) : 0);
  require(fovea_alibi_slopes(heads, slopes.data()));
  return slopes;
}

// Levels of instruction sets known on this architecture, or only those usable here; best last.
inline std::vector<fovea_isa> isa_list(bool usable_only = false) {
  std::vector<fovea_isa> levels(static_cast<std::size_t>(fovea_isa_list(nullptr, 0, usable_only)));
  fovea_isa_list(levels.data(), static_cast<int32_t>(levels.size()), usable_only);
  return levels;
}

}  // namespace veneer
}  // namespace fovea

#endif  // FOVEA_FOVEA_HPP_
