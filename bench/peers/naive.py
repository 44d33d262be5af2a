"""Attention in three steps of NumPy, on the BLAS that it comes with: what one would write without a library."""
import numpy as np

from . import Unsupported
from .calls import FLOATS


def version(threads):
    return f"NumPy {np.__version__}"  # its threads are limited by the environment of the process


def offers(call, tensors):
    if call.type not in FLOATS:
        raise Unsupported("no such type")
    return {name: lambda step=step: three_steps(call, tensors, step)
            for name, step in (("all heads at once", call.batch * call.heads_kv), ("head by head", 1))}


def three_steps(call, tensors, step):
    """`step` key-value heads at a time, the queries that share one as one matrix."""
    heads, rows = call.batch * call.heads_kv, call.group * call.seq_q
    q, k, v = (tensors.q, tensors.k, tensors.v) if call.type == "f32" else tensors.floats()
    q, k, v = q.reshape(heads, rows, -1), k.reshape(heads, call.seq_kv, -1), v.reshape(heads, call.seq_kv, -1)
    out = np.empty((heads, rows, call.dim_v), np.float32)
    scores, reduced = np.empty((step, rows, call.seq_kv), np.float32), np.empty((step, rows, 1), np.float32)
    scale = np.float32(call.scale)
    bias = tensors.bias(np.float32)
    bias = None if bias is None else np.tile(bias, (call.group, 1))
    parts = [(q[i : i + step], k[i : i + step].swapaxes(1, 2), v[i : i + step], out[i : i + step]) for i in range(0, heads, step)]

    def run():
        for q_part, k_part, v_part, out_part in parts:
            np.matmul(q_part, k_part, out=scores)
            np.multiply(scores, scale, out=scores)
            if bias is not None:
                np.add(scores, bias, out=scores)
            np.max(scores, -1, keepdims=True, out=reduced)
            np.subtract(scores, reduced, out=scores)
            np.exp(scores, out=scores)
            np.sum(scores, -1, keepdims=True, out=reduced)
            np.matmul(scores, v_part, out=out_part)
            np.divide(out_part, reduced, out=out_part)

    return run, lambda: out.reshape(call.batch, call.heads_q, call.seq_q, call.dim_v)
