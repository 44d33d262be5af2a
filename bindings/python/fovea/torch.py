"""Fovea in PyTorch: an operator that torch.compile() knows, and a switch that lets it serve scaled_dot_product_attention().

    with fovea.torch.enabled():
        out = model(inputs)
    print(fovea.torch.stats())
"""

import collections
import contextlib
import logging
import threading

import torch
from torch import get_num_threads
from torch._C import _get_tracing_state, _is_torch_function_mode_enabled, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import _profiler_enabled
from torch.compiler import is_dynamo_compiling

from . import _core
from .errors import Error

__all__ = ["attention", "disable", "enable", "enabled", "reset_stats", "scaled_dot_product_attention", "stats"]

_PLAIN = torch.Tensor, torch.nn.Parameter
_TYPES = torch.float32, torch.float16, torch.bfloat16
_pytorch = torch.nn.functional.scaled_dot_product_attention
_lock = threading.Lock()
_calls_before = 0
_fallbacks = collections.Counter()
_contexts = {}  # by PyTorch's number of threads


def _compute(q, k, v, mask=None, sinks=None, seqlens_kv=None, scale=None, softcap=None, causal=False, align=None, window_left=-1,
             window_right=-1, tokens_first=False):
    return _core._tensor_attention(q, k, v, mask, sinks, seqlens_kv, scale, softcap, causal, align, window_left, window_right,
                                   tokens_first, _contexts.get(get_num_threads()) or _new_context())


def _new_context():
    threads = get_num_threads()
    return _contexts.setdefault(threads, _core.Context(threads=min(threads, _core.info()["threads"])))


def _shape_result(q, k, v, *options, **more_options):
    """A result of _compute() as far as torch.compile() looks at it: the axes of q, in memory in the order of q's too."""
    if q.size(-1) == v.size(-1):
        return torch.empty_like(q)
    if q.dim() == 4 and q.stride(1) < q.stride(2):
        return q.new_empty((q.size(0), q.size(2), q.size(1), v.size(-1))).transpose(1, 2)
    return q.new_empty((*q.shape[:-1], v.size(-1)))


def _refuse_gradients(context, gradient):
    raise RuntimeError("fovea::attention has no gradients: call it under torch.no_grad(), or train with PyTorch's own function")


# Less than torch.library.custom_op(), whose own Python takes longer than a short call.
_library = torch.library.Library("fovea", "DEF")
_library.define("attention(Tensor q, Tensor k, Tensor v, Tensor? mask=None, Tensor? sinks=None, Tensor? seqlens_kv=None, "
                "float? scale=None, float? softcap=None, bool causal=False, str? align=None, SymInt window_left=-1, "
                "SymInt window_right=-1) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
_library.impl("attention", _compute, "CPU")
torch.library.register_fake("fovea::attention", _shape_result, lib=_library)
torch.library.register_autograd("fovea::attention", _refuse_gradients, lib=_library)
_operator = torch.ops.fovea.attention.default


def call_operator(q, k, v, mask, sinks, seqlens_kv, scale, softcap, causal, align, window_left, window_right, tokens_first=False):
    """The operator; tokens_first: transposed to [batch, seq, head, dim].

    Where PyTorch's dispatcher would do nothing but call _compute(), that is called here: the way through takes longer than a short call. It would
    do more where a graph is made of the call, a mode, a transform or a profiler looks at it, or a tensor is of a class of its own.
    """
    if (not is_dynamo_compiling() and not _len_torch_dispatch_stack() and not _is_torch_function_mode_enabled() and
            peek_interpreter_stack() is None and _get_tracing_state() is None and not _profiler_enabled() and
            type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN and (mask is None or type(mask) in _PLAIN) and
            (sinks is None or type(sinks) in _PLAIN) and (seqlens_kv is None or type(seqlens_kv) in _PLAIN)):
        try:
            return _compute(q, k, v, mask, sinks, seqlens_kv, scale, softcap, causal, align, window_left, window_right, tokens_first)
        except Error:
            pass  # gradients and negated views are the dispatcher's; what is wrong the operator refuses in the same words
    out = _operator(q, k, v, mask, sinks, seqlens_kv, scale, softcap, causal, align, window_left, window_right)
    return out.transpose(1, 2) if tokens_first else out


def attention(q, k, v, *, mask=None, sinks=None, seqlens_kv=None, scale=None, softcap=None, causal=False, align=None,
              window=(None, None)):
    """fovea.attention() as the operator torch.ops.fovea.attention: for torch.compile(), torch.export and dispatch modes.

    Arguments are tensors on the CPU and otherwise those of fovea.attention(); threads are at most torch.get_num_threads(). A backward pass
    through the operator is an error.
    """
    left, right = window
    return call_operator(q, k, v, mask, sinks, seqlens_kv, scale, softcap, causal, align, -1 if left is None else left,
                         -1 if right is None else right)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """torch.nn.functional.scaled_dot_product_attention() by Fovea, or by PyTorch where Fovea cannot serve the call: stats() counts why."""
    tensors = [query, key, value]
    reason = _not_served(tensors, attn_mask, dropout_p, is_causal)
    if reason is None:
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = (x.to(dtype) for x in tensors)
            if attn_mask is not None and attn_mask.dtype != torch.bool:
                attn_mask = attn_mask.to(dtype)
        reason = _types_not_served(query, key, value, attn_mask)
    if reason is None:
        shape = _shapes(query, key, value, attn_mask, enable_gqa)
        if shape is None:
            reason = "shapes"
    if reason is not None:
        _count_fallback(reason)
        return _pytorch(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
                        enable_gqa=enable_gqa)
    batch, heads_q, heads_kv = shape
    if query.dim() == 4 and key.shape[:1] == value.shape[:1] == batch:
        return call_operator(query, key, value, attn_mask, None, None, scale, None, is_causal, "top-left", -1, -1)

    def as_four_axes(x, heads):
        x = x.expand(*batch, heads, *x.shape[-2:])
        return x.flatten(0, -4) if batch else x[None]

    q, k, v = as_four_axes(query, heads_q), as_four_axes(key, heads_kv), as_four_axes(value, heads_kv)
    if attn_mask is not None and attn_mask.dim() > 4:
        attn_mask = as_four_axes(attn_mask, attn_mask.size(-3))
    out = call_operator(q, k, v, attn_mask, None, None, scale, None, is_causal, "top-left", -1, -1)
    if query.dim() == 2:
        return out[0, 0]
    return out.reshape(*batch, heads_q, *out.shape[-2:])


def _not_served(tensors, mask, dropout_p, is_causal):
    """Why such a call is PyTorch's, or None: what does not depend on types and shapes."""
    if mask is not None:
        tensors = [*tensors, mask]
    for x in tensors:
        if type(x) is not torch.Tensor and type(x) is not torch.nn.Parameter:
            return "subclass of Tensor"
        if not x.is_cpu:
            return "not on the CPU"
        if x.layout != torch.strided or x.is_nested:
            return "layout"
        if x.requires_grad and torch.is_grad_enabled():
            return "gradients"
    if dropout_p > 0:
        return "dropout"
    if is_causal and mask is not None:
        return "mask and is_causal"
    return None


def _types_not_served(query, key, value, mask):
    if query.dtype not in _TYPES or key.dtype != query.dtype or value.dtype != query.dtype:
        return "types"
    if mask is not None and mask.dtype != torch.bool and mask.dtype != query.dtype:
        return "type of the mask"
    return None


def _shapes(query, key, value, mask, enable_gqa):
    """The leading axes of the result and both numbers of heads; None where the shapes are not of one call."""
    q, k, v = query.shape, key.shape, value.shape
    dims = len(q)
    if dims < 2 or len(k) != dims or len(v) != dims or q[-1] != k[-1] or k[-2] != v[-2]:
        return None
    batch, heads_q, heads_kv = q[:-3], 1, 1
    if dims > 2:
        heads_q, heads_kv = q[-3], k[-3]
        if v[-3] != heads_kv:
            return None
        if heads_q != heads_kv and (heads_kv == 0 or (heads_q % heads_kv if enable_gqa else heads_kv - 1)):
            return None
    if not (_repeats(k[:-3], batch) and _repeats(v[:-3], batch)):
        return None
    if mask is not None and not (2 <= mask.dim() <= dims and _repeats(mask.shape, (*q[:-1], k[-2])[dims - mask.dim():])):
        return None
    return batch, heads_q, heads_kv


def _repeats(shape, wanted):
    """Whether a tensor of this shape broadcasts to that of as many axes."""
    return shape == wanted or all(a == b or a == 1 for a, b in zip(shape, wanted))


def _count_fallback(reason):
    """In compiled code once for each compilation."""
    with _lock:
        _fallbacks[reason] += 1
        first = _fallbacks[reason] == 1
    if first:
        logging.getLogger(__name__).warning("PyTorch serves calls of scaled_dot_product_attention(), for the reason: %s", reason)


# Run while code is compiled, and no part of it: torch.compiler.assume_constant_result(), which would import all of the compiler.
_count_fallback._dynamo_marked_constant = True


def enable():
    """Lets Fovea serve torch.nn.functional.scaled_dot_product_attention(), in this process, until disable().

    Code that took the function from its module before, and graphs that have been compiled, keep PyTorch's.
    """
    torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention


def disable():
    """Gives torch.nn.functional.scaled_dot_product_attention() back to PyTorch."""
    torch.nn.functional.scaled_dot_product_attention = _pytorch


@contextlib.contextmanager
def enabled():
    """enable() for the body of a with statement."""
    before = torch.nn.functional.scaled_dot_product_attention
    enable()
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = before


def stats():
    """{"calls": how many the operator computed, "fallbacks": {reason: how many PyTorch served}}, since reset_stats()."""
    with _lock:
        return {"calls": _core._tensor_calls() - _calls_before, "fallbacks": dict(_fallbacks)}


def reset_stats():
    global _calls_before
    with _lock:
        _calls_before = _core._tensor_calls()
        _fallbacks.clear()
