"""PyTorch's scaled_dot_product_attention()."""
import functools

import torch
import torch.nn.functional as F

from . import Unsupported
from .calls import FLOATS

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def version(threads):
    torch.set_num_threads(threads)
    torch.inference_mode().__enter__()  # for the life of the process
    return f"PyTorch {torch.__version__}"


def offers(call, tensors):
    if call.type not in FLOATS:
        raise Unsupported("no such type")
    q, k, v = (torch.from_numpy(x).view(TYPES[call.type]) for x in (tensors.q, tensors.k, tensors.v))

    def attention(q, k, v, **options):
        function = functools.partial(F.scaled_dot_product_attention, q, k, v, **options)
        kept = []

        def run():
            kept[:] = [function()]

        return run, lambda: kept[0].reshape(call.batch, call.heads_q, call.seq_q, call.dim_v).float().numpy()

    mask = None if tensors.mask is None else torch.from_numpy(tensors.mask)
    ways = {"enable_gqa" if call.group > 1 else "as it is":
            lambda: attention(q, k, v, attn_mask=mask, is_causal=call.causal, enable_gqa=call.group > 1)}
    if call.group > 1:
        def repeated(x):
            return x[:, :, None].expand(-1, -1, call.group, -1, -1).reshape(call.batch, call.heads_q, call.seq_kv, -1)

        ways["keys and values repeated before"] = lambda: attention(q, repeated(k), repeated(v), is_causal=call.causal)
        if call.seq_q == 1:
            ways["queries of a key-value head as rows"] = lambda: attention(
                q.reshape(call.batch, call.heads_kv, call.group, call.dim_k), k, v)
    return ways
