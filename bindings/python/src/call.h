// The arguments of Python's functions as a call of the library.
#pragma once
#include <fovea/fovea.h>
#include <nanobind/nanobind.h>

#include "arrays.h"
#include "context.h"

namespace fovea_python {

// Which axis of an array is which: [batch, head, seq, dim] or [batch, seq, head, dim], without batch or without batch and head.
enum class Layout { kBhsd, kBshd };
Layout layout_named(nb::handle name);

// An array as the library describes it, with its four sizes.
struct Tensor {
  fovea_tensor t;
  int64_t size[4];  // dim counts elements, also of blocks
  int ndim;
};

const Context &context_or_standard(nb::handle context);
double number(const char *name, nb::handle object);
bool truth(const char *name, nb::handle object);

// type: the name of the type of the blocks that an array of bytes holds, or None.
Tensor cache_tensor(const char *name, const Array &array, Layout layout, const char *type_name, nb::handle type);
Tensor activation_tensor(const char *name, const Array &array, Layout layout);
// Of int8 caches: the shape of the cache without its last axis, or with a last axis of 1; an axis of 1 is repeated.
Tensor scale_tensor(const char *name, const Array &array, Layout layout, const Tensor &cache);
void require_float32(const char *name, const Array &array);
// Where a call's log-sum-exp lies: shape has so many of the axes batch, head, seq.
void read_lse(const char *name, const Array &array, const int64_t *shape, int ndim, fovea_params *p);
void require_writable(const char *name, const Array &array);
void require_size(const char *name, const char *axis, int64_t size, const char *of, int64_t wanted);

// fovea.attention() and what takes the same arguments.
struct AttentionArguments {
  nb::handle q, k, v, out, lse, weights, return_lse, return_weights, scale, softcap, causal, align, window, mask, alibi_slopes,
      sinks, seqlens_q, seqlens_kv, cu_seqlens_q, cu_seqlens_kv, block_table, seq_kv, k_scale, v_scale, k_type, v_type, layout,
      context;
};
nb::object attention(const AttentionArguments &arguments);
nb::object explain(const AttentionArguments &arguments);
nb::object seconds_per_call(const AttentionArguments &arguments);

// The same of tensors, for fovea/torch.py: arguments by position, which are read in a fraction of the time of those by name. tokens_first:
// whether the result is [batch, seq, head, dim], as layers of transformers have it, else it has the axes of q.
struct TensorArguments {
  nb::handle q, k, v, mask, sinks, seqlens_kv, scale, softcap, causal, align, window_left, window_right, tokens_first, context;
};
nb::object tensor_attention(const TensorArguments &arguments);
int64_t tensor_calls();  // how many were computed

// fovea.kv_append().
struct AppendArguments {
  nb::handle k, v, k_new, v_new, start, count, block_table, k_scale, v_scale, k_type, v_type, layout, context;
};
void kv_append(const AppendArguments &arguments);

// fovea.merge().
struct MergeArguments {
  nb::handle parts, out, lse, seqlens_q, cu_seqlens_q, layout, context;
};
nb::object merge(const MergeArguments &arguments);

}  // namespace fovea_python
