"""ggml's flash attention on its CPU backend, called through ctypes."""
import ctypes
import os
import sys

import numpy as np

from . import Unsupported
from .tensors import aligned, aligned_copy

# enum ggml_type
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}
F32, F16 = TYPES["f32"], TYPES["f16"]
CONTEXT_BYTES = 1 << 20  # tensors and graph, not their data

pointer, size, integer, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_float
libraries = None
backend = None


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", size), ("mem_buffer", pointer), ("no_alloc", ctypes.c_bool)]


def version(threads):
    global libraries, backend
    folder = os.path.join(sys.prefix, "lib")
    try:
        libraries = [ctypes.CDLL(os.path.join(folder, f"lib{name}.so"), ctypes.RTLD_GLOBAL) for name in ("ggml-base", "ggml-cpu")]
    except OSError as error:
        raise Unsupported(str(error)) from error
    backend = function("ggml_backend_cpu_init", pointer)()
    function("ggml_backend_cpu_set_n_threads", None, pointer, integer)(backend, threads)
    return f"ggml {function('ggml_version', ctypes.c_char_p)().decode()}"


def function(name, result, *arguments):
    for library in libraries:
        if hasattr(library, name):
            found = getattr(library, name)
            found.restype, found.argtypes = result, arguments
            return found
    raise Unsupported(f"this version of ggml has no {name}()")


def offers(call, tensors):
    return {"flash_attn_ext": lambda: flash(call, tensors)}


def flash(call, tensors):
    """Queries and results are f32; results are [batch, token, head, dim]."""
    q = tensors.q if tensors.q.dtype == np.float32 else tensors.floats()[0]
    out = aligned((call.batch, call.seq_q, call.heads_q, call.dim_v), np.float32)
    context = function("ggml_init", pointer, InitParams)(InitParams(CONTEXT_BYTES, None, True))
    place = function("ggml_backend_tensor_alloc", integer, pointer, pointer, pointer)
    buffer_of = function("ggml_backend_cpu_buffer_from_ptr", pointer, pointer, size)
    new_tensor = function("ggml_new_tensor_4d", pointer, pointer, integer, *[ctypes.c_int64] * 4)

    def at(tensor, array):
        if place(buffer_of(array.ctypes.data, array.nbytes), tensor, array.ctypes.data) != 0:
            raise Unsupported("a tensor does not lie where ggml wants it")
        return tensor

    def tensor(array, type_, dim):
        batch, heads, tokens, _ = array.shape
        return at(new_tensor(context, type_, dim, tokens, heads, batch), array)

    bias, mask = tensors.bias(np.float16), None
    if bias is not None:
        bias = aligned_copy(bias[None, None])
        mask = tensor(bias, F16, call.seq_kv)
    attention = function("ggml_flash_attn_ext", pointer, *[pointer] * 5, number, number, number)(
        context, tensor(q, F32, call.dim_k), tensor(tensors.k, TYPES[call.type], call.dim_k),
        tensor(tensors.v, TYPES[call.type], call.dim_v), mask, call.scale, 0, 0)
    at(attention, out)
    graph = function("ggml_new_graph", pointer, pointer)(context)
    function("ggml_build_forward_expand", None, pointer, pointer)(graph, attention)
    plan = function("ggml_backend_graph_plan_create", pointer, pointer, pointer)(backend, graph)
    compute = function("ggml_backend_graph_plan_compute", integer, pointer, pointer)

    def run():
        compute(backend, plan)

    return run, lambda: out.swapaxes(1, 2), q, bias
