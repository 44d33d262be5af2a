// The module fovea._core: names, signatures and texts for what the other files do.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <utility>

#include "arrays.h"
#include "call.h"
#include "context.h"
#include "error.h"

namespace fovea_python {
namespace {

using namespace nb::literals;

nb::object usual_layout() { return nb::steal(PyUnicode_InternFromString("bhsd")); }

// A function of a struct of handles as one that nanobind can call, with an argument for each of them.
template <size_t>
using Handle = nb::handle;
template <class Arguments, class Result, size_t... i>
auto of_handles(Result (*function)(const Arguments &), std::index_sequence<i...>) {
  return [function](Handle<i>... handles) { return function(Arguments{handles...}); };
}
template <class Arguments, class Result>
auto of_handles(Result (*function)(const Arguments &)) {
  return of_handles(function, std::make_index_sequence<sizeof(Arguments) / sizeof(nb::handle)>());
}

// A function of all arguments of fovea.attention().
template <class... Extra>
void define_attention(nb::module_ &m, const char *name, nb::object (*function)(const AttentionArguments &),
                      const Extra &...extra) {
  m.def(name, of_handles(function), "q"_a.none(), "k"_a.none(), "v"_a.none(), nb::kw_only(), "out"_a = nb::none(),
        "lse"_a = nb::none(), "weights"_a = nb::none(), "return_lse"_a = false, "return_weights"_a = false,
        "scale"_a = nb::none(), "softcap"_a = nb::none(), "causal"_a = false, "align"_a = nb::none(), "window"_a = nb::none(),
        "mask"_a = nb::none(), "alibi_slopes"_a = nb::none(), "sinks"_a = nb::none(), "seqlens_q"_a = nb::none(),
        "seqlens_kv"_a = nb::none(), "cu_seqlens_q"_a = nb::none(), "cu_seqlens_kv"_a = nb::none(), "block_table"_a = nb::none(),
        "seq_kv"_a = nb::none(), "k_scale"_a = nb::none(), "v_scale"_a = nb::none(), "k_type"_a = nb::none(),
        "v_type"_a = nb::none(), "layout"_a = usual_layout(), "context"_a = nb::none(), extra...);
}

nb::object alibi_slopes(int64_t heads) {
  constexpr int64_t kMostHeads = 1 << 20;
  if (heads > kMostHeads)
    fail(FOVEA_ERR_INVALID_SIZE, "heads: %lld is more than %lld", static_cast<long long>(heads),
         static_cast<long long>(kMostHeads));
  nb::object slopes = nb::module_::import_("numpy").attr("zeros")(std::max<int64_t>(heads, 0), "float32");
  check(fovea_alibi_slopes(heads, static_cast<float *>(view("slopes", slopes).data)));
  return slopes;
}

nb::dict info() {
  fovea_isa levels[64];
  const int32_t count = fovea_isa_list(levels, 64, 0);
  nb::dict refusals;
  for (int32_t i = 0; i < count && i < 64; ++i) refusals[fovea_isa_name(levels[i])] = fovea_isa_refusal(levels[i]);
  nb::dict result;
  result["version"] = fovea_version();
  result["isa"] = Context::standard().isa();
  result["threads"] = Context::standard().threads();
  result["tuning"] = Context::standard().tuning();
  result["levels"] = refusals;
  return result;
}

#define FOVEA_ATTENTION_ARGUMENTS                                                                                          \
  "q: Array, k: Array, v: Array, *, out: Array | None = None, lse: Array | None = None, weights: Array | None = None, "    \
  "return_lse: bool = False, return_weights: bool = False, scale: float | None = None, softcap: float | None = None, "     \
  "causal: bool = False, align: Literal['top-left', 'bottom-right'] | None = None, "                                       \
  "window: tuple[int | None, int | None] | None = None, mask: Array | None = None, alibi_slopes: Numbers | None = None, "  \
  "sinks: Numbers | None = None, seqlens_q: Integers | None = None, seqlens_kv: Integers | None = None, "                  \
  "cu_seqlens_q: Integers | None = None, cu_seqlens_kv: Integers | None = None, block_table: IntegerTable | None = None, " \
  "seq_kv: int | None = None, k_scale: Array | None = None, v_scale: Array | None = None, "                                \
  "k_type: Literal['q8_0', 'q4_0'] | None = None, v_type: Literal['q8_0', 'q4_0'] | None = None, "                         \
  "layout: Literal['bhsd', 'bshd'] = 'bhsd', context: Context | None = None"

constexpr const char *kAttentionText = R"(softmax(scale * Q K^T) V, for any shape, type and score.

Arrays are of NumPy, of PyTorch (on the CPU) or of any library with DLPack; they are read where they lie, with any strides that are not
negative. The result is of the library of q, PyTorch's or NumPy's.

Args:
    q: [batch, head, seq, dim_k], or without batch, or without batch and head; float32, float16 or bfloat16.
    k, v: [batch, head, seq, dim]; the heads of q are a multiple of theirs. Types as q in any mix, or int8 with k_scale and v_scale,
        or the bytes (uint8) of ggml's blocks with k_type and v_type.
    out: written in place of a new array of the type and shape of q with the dims of v; of any float type. A new tensor has the order of
        q's axes in memory.
    return_lse, lse: return the natural log of the sum of exp(score), float32 [batch, head, seq], too; written into lse if that is given.
    return_weights, weights: return the softmax matrix, float32 [batch, head, seq_q, seq_kv], too; written into weights if that is given.
    scale: default 1/sqrt(dim_k).
    softcap: scores s become softcap * tanh(s / softcap). None or 0: off.
    causal: a query sees no keys behind its position.
    align: where queries stand among the keys, for causal, window and alibi_slopes: "top-left", the first at the first key, or
        "bottom-right", the last at the last key. To be given unless all entries have as many keys as queries.
    window: (left, right): a query at p sees the keys p - left .. p + right. None or -1: no bound on that side.
    mask: broadcasts to [batch, head, seq_q, seq_kv]. bool: True = attend. float32, float16, bfloat16: added to the scores.
    alibi_slopes: [head] of q: - slope * |distance| is added to the scores. fovea.alibi_slopes() makes the usual ones.
    sinks: [head] of q: exp(sink) is added to the sum of exp(score).
    seqlens_q, seqlens_kv: [batch]: how many queries and keys each entry has; rows behind them are not written, in new arrays 0 (lse: -inf).
    cu_seqlens_q, cu_seqlens_kv: [batch + 1] offsets: entries lie one after the other on one axis of tokens; q and out, or k and v, are
        [head, token, dim], "bshd" [token, head, dim].
    block_table: [batch, column]: keys lie in pages, k and v are [page, head, slot, dim]; key j of entry b is in page
        block_table[b, j // slots]. seq_kv: the most keys of an entry, default all that its pages hold.
    k_scale, v_scale: float32, the shape of k and v without dim (or with a dim of 1); an axis of 1 is repeated.
    k_type, v_type: "q8_0" or "q4_0": 34 or 18 bytes for 32 dims.
    layout: "bhsd", or "bshd" for [batch, seq, head, dim] of q, k, v, out and of the scales. lse, weights and mask do not depend on it.
    context: default: one with the best level and all threads of this process.

Returns:
    out, or (out, lse), (out, weights), (out, lse, weights) where these are asked for.

Raises:
    ArgumentError, ArgumentTypeError, UnsupportedError: the text names the argument, and nothing has been written.

The GIL is released meanwhile. The same call gives the same bits on any threads. The memory that a call works in is kept for the next call
of the same Python thread. docs/semantics.md says exactly what is computed.)";

}  // namespace
}  // namespace fovea_python

NB_MODULE(_core, m) {
  using namespace fovea_python;
  nb::set_leak_warnings(false);  // contexts may outlive the interpreter: daemon threads use them

  m.attr("__version__") = fovea_version();
  nb::class_<Context>(m, "Context", R"(A level of instructions, a number of threads, and a table of tuning.

Args:
    isa: "scalar", "avx2", "avx512", "avx512_bf16", "neon", "neon_bf16", "sve" or "sve_bf16". None: what the environment variable FOVEA_ISA
        names, or the best that this CPU and OS allow. A level that is not to be had is an error, never a fallback.
    threads: 1 to 8192. None: the least of OMP_NUM_THREADS, the CPUs that this process may run on and the CPU quota of its control group.
    tuning: a file that `fovea tune` wrote, which is read once, here. None: what the environment variable FOVEA_TUNING names. "": no file.

A context is immutable, and any number of Python threads may use it at a time: one call has its threads, the others meanwhile
compute on their own thread. No bit of a result depends on any of that, but on the level. A context that is not used costs
nothing: threads start when a call has work for them, and sleep between calls. In a forked child it works as well.

Raises:
    UnsupportedError: the level is not to be had here; the text says why.
    ArgumentError: no such level, or such a number of threads, or a fault in the table, whose line the text names.)")
      .def(nb::init<const std::optional<std::string> &, std::optional<int64_t>, const std::optional<std::string> &>(),
           nb::kw_only(), "isa"_a = nb::none(), "threads"_a = nb::none(), "tuning"_a = nb::none())
      .def_prop_ro("isa", &Context::isa, "The name of the level.")
      .def_prop_ro("threads", &Context::threads, "How many threads a call may use, the caller's included.")
      .def_prop_ro("tuning", &Context::tuning, "The file that the parameters come from, \"\" where none was given.")
      .def("__repr__", [](const Context &c) {
        return std::string("fovea.Context(isa='") + c.isa() + "', threads=" + std::to_string(c.threads()) + ")";
      });

  define_attention(m, "attention", &attention, nb::sig("def attention(" FOVEA_ATTENTION_ARGUMENTS ") -> Any"), kAttentionText);
  define_attention(m, "explain", &explain, nb::sig("def explain(" FOVEA_ATTENTION_ARGUMENTS ") -> dict[str, Any]"),
                   R"(How fovea.attention() would run a call of the same arguments.

Returns:
    features, types, level, kernel, tasks, workspace, why not other levels, and error: the text of what the library would refuse, or "".
    Nothing is computed or written.)");
  define_attention(m, "_seconds_per_call", &seconds_per_call,
                   nb::sig("def _seconds_per_call(" FOVEA_ATTENTION_ARGUMENTS ") -> float"),
                   "Seconds of the C call alone that fovea.attention() makes of the same arguments.");

  m.def("_tensor_attention", of_handles(&tensor_attention), "q"_a, "k"_a, "v"_a, "mask"_a.none(), "sinks"_a.none(),
        "seqlens_kv"_a.none(), "scale"_a.none(), "softcap"_a.none(), "causal"_a, "align"_a.none(), "window_left"_a,
        "window_right"_a, "tokens_first"_a, "context"_a);
  m.def("_tensor_calls", &tensor_calls);

  m.def("kv_append", of_handles(&kv_append), "k"_a.none(), "v"_a.none(), "k_new"_a.none(), "v_new"_a.none(), "start"_a.none(),
        "count"_a = nb::none(), nb::kw_only(), "block_table"_a = nb::none(), "k_scale"_a = nb::none(), "v_scale"_a = nb::none(),
        "k_type"_a = nb::none(), "v_type"_a = nb::none(), "layout"_a = usual_layout(), "context"_a = nb::none(),
        nb::sig("def kv_append(k: Array | None, v: Array | None, k_new: Array | None, v_new: Array | None, start: Integers, "
                "count: Integers | None = None, *, block_table: IntegerTable | None = None, k_scale: Array | None = None, "
                "v_scale: Array | None = None, k_type: Literal['q8_0', 'q4_0'] | None = None, "
                "v_type: Literal['q8_0', 'q4_0'] | None = None, layout: Literal['bhsd', 'bshd'] = 'bhsd', "
                "context: Context | None = None) -> None"),
        R"(Writes new tokens into a key-value cache, in its own types.

Args:
    k, v, block_table, k_scale, v_scale, k_type, v_type, layout: the cache, as fovea.attention() reads it. Its axis of keys is what
        each entry has room for. k or v may be None, and its new tokens with it.
    k_new, v_new: [batch, head, token, dim] of float32, float16 or bfloat16.
    start: [batch]: the first new token of entry b becomes its token start[b].
    count: [batch]: how many of its new tokens each entry has; default all.
    context: as in fovea.attention().

Float caches take numbers rounded to nearest even; int8 caches a scale for each token and head; q8_0 and q4_0 ggml's own bytes.

Raises:
    ArgumentError, ArgumentTypeError: the text names the argument, and nothing has been written.)");

  m.def("merge", of_handles(&merge), "parts"_a.none(), nb::kw_only(), "out"_a = nb::none(), "lse"_a = nb::none(),
        "seqlens_q"_a = nb::none(), "cu_seqlens_q"_a = nb::none(), "layout"_a = usual_layout(), "context"_a = nb::none(),
        nb::sig(
            "def merge(parts: Sequence[tuple[Array, Array]], *, out: Array | None = None, lse: Array | None = None, "
            "seqlens_q: Integers | None = None, cu_seqlens_q: Integers | None = None, layout: Literal['bhsd', 'bshd'] = 'bhsd', "
            "context: Context | None = None) -> tuple[Any, Any]"),
        R"(Combines results over disjoint sets of keys into the result over all of these keys.

Args:
    parts: pairs (out, lse) that fovea.attention(..., return_lse=True) gave for the same queries.
    out, lse: written in place of new arrays; they may be those of a part.
    seqlens_q, cu_seqlens_q: of packed or ragged queries, those rows that are merged; default all.
    layout, context: as in fovea.attention().

Returns:
    (out, lse)

Raises:
    ArgumentError, ArgumentTypeError: the text names the part and its array, and nothing has been written.)");

  m.def(
      "alibi_slopes", &alibi_slopes, "heads"_a, nb::sig("def alibi_slopes(heads: int) -> Any"),
      R"(The usual ALiBi slopes of so many heads, a float32 array of NumPy: 2^(-8 (h + 1) / heads) where heads is a power of two; else
those of the next lower power of two, then every other one of the next higher's.)");
  m.def(
      "info", &info, nb::sig("def info() -> dict[str, Any]"),
      R"(What is used where a call names no context: version, isa, threads; and levels, why each level cannot be used here ("" where it
can).)");
}
