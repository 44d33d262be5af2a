"""Attention in float64, as docs/semantics.md says it, and the bound of its errors."""

import numpy as np

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # of the output's type
U, U_EXP = 2.0**-24, 2.0**-22


def attention(q, k, v, scale=None, softcap=0.0, causal=False, align="top-left", window=(-1, -1), mask=None, alibi_slopes=None,
              sinks=None):
    """out, lse, weights and the size A of a row's scores, of [batch, head, seq, dim] without lengths."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scale = scale if scale is not None else 1 / np.sqrt(q.shape[-1])
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * scale
    size = np.einsum("bhqd,bhkd->bhqk", np.abs(q), np.abs(k)) * abs(scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
        size = size + softcap
    seq_q, seq_kv = scores.shape[-2:]
    position = np.arange(seq_q)[:, None] + (seq_kv - seq_q if align == "bottom-right" else 0)
    distance = np.arange(seq_kv) - position
    if alibi_slopes is not None:
        bias = np.abs(distance) * np.asarray(alibi_slopes, np.float64)[:, None, None]
        scores, size = scores - bias, size + np.abs(bias)
    sees = np.ones(scores.shape, bool)
    if mask is not None and mask.dtype == bool:
        sees &= mask
    elif mask is not None:
        bias = np.asarray(mask, np.float64)
        sees &= bias != -np.inf
        bias = np.where(bias == -np.inf, 0, bias)
        scores, size = scores + bias, size + np.abs(bias)
    left, right = (-1 if bound is None else bound for bound in window)
    if causal:
        right = 0
    if left >= 0:
        sees &= distance >= -left
    if right >= 0:
        sees &= distance <= right
    scores = np.where(sees, scores, -np.inf)
    sink = np.full(scores.shape[1], -np.inf) if sinks is None else np.asarray(sinks, np.float64)
    sink = np.broadcast_to(sink[:, None, None], scores.shape[:-1] + (1,))
    largest = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), sink)
    largest = np.where(np.isfinite(largest), largest, 0)
    exponentials = np.exp(scores - largest)
    total = exponentials.sum(-1, keepdims=True) + np.exp(sink - largest)
    weights = np.divide(exponentials, total, out=np.zeros_like(exponentials), where=total > 0)
    with np.errstate(divide="ignore"):
        lse = (largest + np.log(total))[..., 0]
    size = np.where(sees, size, 0).max(-1, initial=0)
    return weights @ v, lse, weights, size


def assert_within_bound(got, expected, v, dtype="float32"):
    """got: out, or (out, lse), or (out, lse, weights)."""
    out, lse, weights, size = expected
    got = got if isinstance(got, tuple) else (got,)
    group = weights.shape[1] // v.shape[1]
    terms = weights @ np.repeat(np.abs(np.asarray(v, np.float64)), group, axis=1)
    factor = (U * (1 + 2 * size) + U_EXP)[..., None]
    smallest = (weights.shape[-1] + 1) * float(np.finfo(np.float32).tiny)
    least_step = 2.0**-25 if dtype == "float16" else 0
    error = np.abs(np.asarray(got[0], np.float64) - out)
    assert np.all(error <= 8 * factor * terms + UNIT[dtype] * np.abs(out) + least_step + smallest), error.max()
    if len(got) > 1:
        known = np.isfinite(lse)
        assert np.array_equal(np.isfinite(got[1]), known)
        error = np.abs(np.where(known, got[1], 0) - np.where(known, lse, 0))
        assert np.all(error <= 8 * U * (1 + 2 * size) + U * np.abs(np.where(known, lse, 0))), error.max()
    if len(got) > 2:
        error = np.abs(got[2] - weights)
        assert np.all(error <= (8 * factor + U) * weights + smallest), error.max()


def blocks_of_q8_0(x):
    """ggml's reference quantisation: bytes, and the numbers that they stand for."""
    x = np.asarray(x, np.float32)
    groups = x.reshape(*x.shape[:-1], -1, 32)
    d = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0)
    scaled = groups * inverse
    bytes_ = (np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))).astype(np.int8)
    scale = d.astype(np.float16)
    blocks = np.concatenate([scale.view(np.uint8), bytes_.view(np.uint8)], axis=-1)
    return blocks.reshape(*x.shape[:-1], -1), (scale.astype(np.float32) * bytes_).reshape(x.shape)


def values_of_q4_0(blocks):
    groups = blocks.reshape(*blocks.shape[:-1], -1, 18)
    scale = np.ascontiguousarray(groups[..., :2]).view(np.float16).astype(np.float32)
    low, high = (groups[..., 2:] & 15).astype(np.int32) - 8, (groups[..., 2:] >> 4).astype(np.int32) - 8
    return (scale * np.concatenate([low, high], -1)).reshape(*blocks.shape[:-1], -1)
