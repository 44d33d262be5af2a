from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

Array: TypeAlias = Any  # of NumPy, PyTorch or a library with DLPack
Numbers: TypeAlias = Sequence[float] | Array
Integers: TypeAlias = Sequence[int] | Array
IntegerTable: TypeAlias = Sequence[Sequence[int]] | Array

class Context:
    """
    A level of instructions, a number of threads, and a table of tuning.

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
        ArgumentError: no such level, or such a number of threads, or a fault in the table, whose line the text names.
    """

    def __init__(self, *, isa: str | None = None, threads: int | None = None, tuning: str | None = None) -> None: ...

    @property
    def isa(self) -> str:
        """The name of the level."""

    @property
    def threads(self) -> int:
        """How many threads a call may use, the caller's included."""

    @property
    def tuning(self) -> str:
        """The file that the parameters come from, "" where none was given."""

    def __repr__(self) -> str: ...

def attention(q: Array, k: Array, v: Array, *, out: Array | None = None, lse: Array | None = None, weights: Array | None = None, return_lse: bool = False, return_weights: bool = False, scale: float | None = None, softcap: float | None = None, causal: bool = False, align: Literal['top-left', 'bottom-right'] | None = None, window: tuple[int | None, int | None] | None = None, mask: Array | None = None, alibi_slopes: Numbers | None = None, sinks: Numbers | None = None, seqlens_q: Integers | None = None, seqlens_kv: Integers | None = None, cu_seqlens_q: Integers | None = None, cu_seqlens_kv: Integers | None = None, block_table: IntegerTable | None = None, seq_kv: int | None = None, k_scale: Array | None = None, v_scale: Array | None = None, k_type: Literal['q8_0', 'q4_0'] | None = None, v_type: Literal['q8_0', 'q4_0'] | None = None, layout: Literal['bhsd', 'bshd'] = 'bhsd', context: Context | None = None) -> Any:
    """
    softmax(scale * Q K^T) V, for any shape, type and score.

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
    of the same Python thread. docs/semantics.md says exactly what is computed.
    """

def explain(q: Array, k: Array, v: Array, *, out: Array | None = None, lse: Array | None = None, weights: Array | None = None, return_lse: bool = False, return_weights: bool = False, scale: float | None = None, softcap: float | None = None, causal: bool = False, align: Literal['top-left', 'bottom-right'] | None = None, window: tuple[int | None, int | None] | None = None, mask: Array | None = None, alibi_slopes: Numbers | None = None, sinks: Numbers | None = None, seqlens_q: Integers | None = None, seqlens_kv: Integers | None = None, cu_seqlens_q: Integers | None = None, cu_seqlens_kv: Integers | None = None, block_table: IntegerTable | None = None, seq_kv: int | None = None, k_scale: Array | None = None, v_scale: Array | None = None, k_type: Literal['q8_0', 'q4_0'] | None = None, v_type: Literal['q8_0', 'q4_0'] | None = None, layout: Literal['bhsd', 'bshd'] = 'bhsd', context: Context | None = None) -> dict[str, Any]:
    """
    How fovea.attention() would run a call of the same arguments.

    Returns:
        features, types, level, kernel, tasks, workspace, why not other levels, and error: the text of what the library would refuse, or "".
        Nothing is computed or written.
    """

def kv_append(k: Array | None, v: Array | None, k_new: Array | None, v_new: Array | None, start: Integers, count: Integers | None = None, *, block_table: IntegerTable | None = None, k_scale: Array | None = None, v_scale: Array | None = None, k_type: Literal['q8_0', 'q4_0'] | None = None, v_type: Literal['q8_0', 'q4_0'] | None = None, layout: Literal['bhsd', 'bshd'] = 'bhsd', context: Context | None = None) -> None:
    """
    Writes new tokens into a key-value cache, in its own types.

    Args:
        k, v, block_table, k_scale, v_scale, k_type, v_type, layout: the cache, as fovea.attention() reads it. Its axis of keys is what
            each entry has room for. k or v may be None, and its new tokens with it.
        k_new, v_new: [batch, head, token, dim] of float32, float16 or bfloat16.
        start: [batch]: the first new token of entry b becomes its token start[b].
        count: [batch]: how many of its new tokens each entry has; default all.
        context: as in fovea.attention().

    Float caches take numbers rounded to nearest even; int8 caches a scale for each token and head; q8_0 and q4_0 ggml's own bytes.

    Raises:
        ArgumentError, ArgumentTypeError: the text names the argument, and nothing has been written.
    """

def merge(parts: Sequence[tuple[Array, Array]], *, out: Array | None = None, lse: Array | None = None, seqlens_q: Integers | None = None, cu_seqlens_q: Integers | None = None, layout: Literal['bhsd', 'bshd'] = 'bhsd', context: Context | None = None) -> tuple[Any, Any]:
    """
    Combines results over disjoint sets of keys into the result over all of these keys.

    Args:
        parts: pairs (out, lse) that fovea.attention(..., return_lse=True) gave for the same queries.
        out, lse: written in place of new arrays; they may be those of a part.
        seqlens_q, cu_seqlens_q: of packed or ragged queries, those rows that are merged; default all.
        layout, context: as in fovea.attention().

    Returns:
        (out, lse)

    Raises:
        ArgumentError, ArgumentTypeError: the text names the part and its array, and nothing has been written.
    """

def alibi_slopes(heads: int) -> Any:
    """
    The usual ALiBi slopes of so many heads, a float32 array of NumPy: 2^(-8 (h + 1) / heads) where heads is a power of two; else
    those of the next lower power of two, then every other one of the next higher's.
    """

def info() -> dict[str, Any]:
    """
    What is used where a call names no context: version, isa, threads; and levels, why each level cannot be used here ("" where it
    can).
    """
