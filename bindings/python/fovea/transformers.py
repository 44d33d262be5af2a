"""Fovea in Hugging Face transformers: attn_implementation="fovea".

    fovea.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="fovea")
"""

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, prepare_padding_mask, sdpa_mask
from transformers.utils.import_utils import is_tracing

from .errors import Status, UnsupportedError
from .torch import call_operator

__all__ = ["register"]


def register(name="fovea"):
    """Makes attn_implementation=name known, and the masks that go with it."""
    AttentionInterface.register(name, _attend)
    AttentionMaskInterface.register(name, _mask)


# What a model carries from here to its layers in place of a mask of every query and key is as little as the flags of a call need beside them,
# and its type says which flags. It has four axes, [batch, 1, 1, ...], which transformers hands on as they are.
_CAUSAL = torch.uint8    # 1 where a key is no padding, [..., key]; the call is causal
_WINDOW = torch.int8     # the same, and the layer's window; without keys there is no padding
_LENGTHS = torch.int32   # how many keys there are, [..., 1], in a cache that has room for more; the call is causal
# None                     nothing is padding; causal or not is what the layer says
# bool, or a float type    all that there is to say


def _mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=causal_mask_function, attention_mask=None,
          local_size=None, allow_is_causal_skip=True, allow_is_bidirectional_skip=False, config=None, device="cpu", **options):
    def every_pair():
        return sdpa_mask(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
                         mask_function=mask_function, attention_mask=attention_mask, allow_is_causal_skip=False, device=device, **options)

    def padding(keys):
        """Of the first of the keys, [batch, 1, 1, key]; None where all are known to be none."""
        mask = prepare_padding_mask(attention_mask, keys, kv_offset)
        if mask is None:
            return None
        mask = mask[:, kv_offset:kv_offset + keys]
        return None if not is_tracing(mask) and bool(mask.all()) else mask[:, None, None, :]

    if allow_is_bidirectional_skip and mask_function is bidirectional_mask_function:
        return padding(kv_length)
    # With this flag the mask function is that of create_causal_mask(), of a window, or of chunks.
    chunked = local_size is not None and getattr(config, "attention_chunk_size", None) is not None
    if not allow_is_causal_skip or chunked:
        return every_pair()
    windowed = local_size is not None and kv_length > local_size
    if isinstance(q_offset, torch.Tensor):
        if attention_mask is not None and is_tracing(attention_mask):
            return every_pair()
        keys = kv_length if attention_mask is None else int(q_offset) + q_length
        seen = q_offset + q_length
    else:
        keys = seen = q_offset + q_length - kv_offset
        if keys == kv_length:  # the last query stands at the last key
            mask = padding(keys)
            if windowed:
                return torch.empty(batch_size, 1, 1, 0, dtype=_WINDOW, device=device) if mask is None else mask.view(_WINDOW)
            return None if mask is None else mask.view(_CAUSAL)
    if windowed or kv_offset or padding(keys) is not None:
        return every_pair()
    return torch.as_tensor(seen, dtype=_LENGTHS, device=device).expand(batch_size, 1, 1, 1)


def _attend(module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None, softcap=None, is_causal=None,
            s_aux=None, position_bias=None, **options):
    """The attention function of a layer: query, key and value are [batch, head, seq, dim], the result is [batch, seq, head, dim]."""
    if dropout:
        raise UnsupportedError(Status.UNSUPPORTED, "dropout: is not to be had; call the model in eval()")
    causal = bool(is_causal if is_causal is not None else getattr(module, "is_causal", True))
    mask = lengths = None
    left = -1  # no bound
    if attention_mask is not None:
        kind = attention_mask.dtype
        if kind == _LENGTHS:
            causal, lengths = True, attention_mask.flatten()
        elif kind in (_CAUSAL, _WINDOW):
            causal = True
            mask = attention_mask.view(torch.bool) if attention_mask.shape[-1] else None
            if kind == _WINDOW:
                left = (sliding_window if sliding_window is not None else module.config.sliding_window) - 1
        else:
            causal, mask = False, attention_mask
    if position_bias is not None:
        mask = position_bias if mask is None else (
            torch.where(mask, position_bias, float("-inf")) if mask.dtype == torch.bool else mask + position_bias)
    out = call_operator(query, key, value, mask, s_aux, lengths, scaling, softcap, causal, "bottom-right", left, -1, tokens_first=True)
    return out, None
