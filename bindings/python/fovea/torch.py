"""Fovea in PyTorch: an operator that torch.compile() knows, and a switch that lets it serve scaled_dot_product_attention().

    with fovea.torch.enabled():
        out = model(inputs)
    print(fovea.torch.stats())
"""

import collections
import contextlib
import functools
import logging
import threading

import torch

from . import _core

__all__ = ["attention", "disable", "enable", "enabled", "reset_stats", "scaled_dot_product_attention", "stats"]

_TYPES = torch.float32, torch.float16, torch.bfloat16
_pytorch = torch.nn.functional.scaled_dot_product_attention
_lock = threading.Lock()
_calls = 0
_fallbacks = collections.Counter()


@functools.lru_cache(maxsize=None)
def _context(threads):
    return _core.Context(threads=min(threads, _core.info()["threads"]))


def _new_out(q, v):
    """The axes of q, and their order in memory, as PyTorch's own kernel gives them: the layer that follows reads it without a copy."""
    if q.dim() == 4 and q.stride(1) < q.stride(2):
        return q.new_empty((q.size(0), q.size(2), q.size(1), v.size(-1))).transpose(1, 2)
    return q.new_empty((*q.shape[:-1], v.size(-1)))


@torch.library.custom_op("fovea::attention", mutates_args=(), device_types="cpu")
def _operator(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, sinks: torch.Tensor | None = None,
              seqlens_kv: torch.Tensor | None = None, scale: float | None = None, softcap: float | None = None,
              causal: bool = False, align: str | None = None, window_left: int = -1, window_right: int = -1) -> torch.Tensor:
    global _calls
    out = _core.attention(q, k, v, out=_new_out(q, v), mask=mask, sinks=sinks, seqlens_kv=seqlens_kv, scale=scale, softcap=softcap,
                          causal=causal, align=align, window=(window_left, window_right), context=_context(torch.get_num_threads()))
    with _lock:
        _calls += 1
    return out


@_operator.register_fake
def _(q, k, v, *options, **more_options):
    return _new_out(q, v)


_attention = torch.ops.fovea.attention.default


def attention(q, k, v, *, mask=None, sinks=None, seqlens_kv=None, scale=None, softcap=None, causal=False, align=None,
              window=(None, None)):
    """fovea.attention() as the operator torch.ops.fovea.attention: for torch.compile(), torch.export and dispatch modes.

    Arguments are tensors on the CPU and otherwise those of fovea.attention(); threads are at most torch.get_num_threads(). A backward pass
    through the operator is an error.
    """
    left, right = (-1 if bound is None else bound for bound in window)
    return _attention(q, k, v, mask, sinks, seqlens_kv, scale, softcap, causal, align, left, right)


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
        return _attention(query, key, value, attn_mask, None, None, scale, None, is_causal, "top-left", -1, -1)

    def as_four_axes(x, heads):
        x = x.expand(*batch, heads, *x.shape[-2:])
        return x.flatten(0, -4) if batch else x[None]

    q, k, v = as_four_axes(query, heads_q), as_four_axes(key, heads_kv), as_four_axes(value, heads_kv)
    if attn_mask is not None and attn_mask.dim() > 4:
        attn_mask = as_four_axes(attn_mask, attn_mask.size(-3))
    out = _attention(q, k, v, attn_mask, None, None, scale, None, is_causal, "top-left", -1, -1)
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
        return {"calls": _calls, "fallbacks": dict(_fallbacks)}


def reset_stats():
    global _calls
    with _lock:
        _calls = 0
        _fallbacks.clear()
