"""Fovea's Python module, as its wheel installs it."""
import functools

import fovea
import ml_dtypes

from .calls import BLOCKS

context = None


def version(threads):
    global context
    context = fovea.Context(threads=threads)
    return f"Fovea {fovea.__version__} {context.isa}"


def offers(call, tensors):
    q, k, v, out = (x.view(ml_dtypes.bfloat16) if call.type == "bf16" else x for x in (tensors.q, tensors.k, tensors.v, tensors.out))
    options = {"causal": True} if call.causal else {}
    if tensors.mask is not None:
        options["mask"] = tensors.mask
    if call.type in BLOCKS:
        options.update(k_type=call.type, v_type=call.type)

    def attention():
        return functools.partial(fovea.attention, q, k, v, out=out, context=context, **options), tensors.result

    return {"attention": attention}
