"""OpenVINO: a model of one ScaledDotProductAttention, its tensors bound."""
import sys

import numpy as np

sys.modules["openvino_telemetry"] = None  # not there: it forks a process that may outlive this one
import openvino  # noqa: E402
from openvino import opset13 as ops  # noqa: E402

from . import Unsupported  # noqa: E402
from .calls import FLOATS  # noqa: E402

TYPES = {"f32": openvino.Type.f32, "f16": openvino.Type.f16, "bf16": openvino.Type.bf16}
core = openvino.Core()


def version(threads):
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"})
    return f"OpenVINO {openvino.__version__.split('-')[0]}"


def offers(call, tensors):
    if call.type not in FLOATS:
        raise Unsupported("no such type")
    ways = {"ScaledDotProductAttention" if call.group == 1 else "keys and values broadcast in the model":
            lambda: attention(call, tensors, tensors.q.shape)}
    if call.group > 1 and call.seq_q == 1:
        ways["queries of a key-value head as rows"] = lambda: attention(
            call, tensors, (call.batch, call.heads_kv, call.group, call.dim_k))
    return ways


def attention(call, tensors, query_shape):
    type_ = TYPES[call.type]
    bound = [openvino.Tensor(x, x.shape, type_) for x in (tensors.q.reshape(query_shape), tensors.k, tensors.v)]
    if tensors.mask is not None:
        bound.append(openvino.Tensor(tensors.mask, tensors.mask.shape, openvino.Type.boolean))
    inputs = [ops.parameter(tensor.shape, tensor.element_type) for tensor in bound]
    q, k, v, *mask = inputs
    if query_shape[1] > call.heads_kv:
        k, v = (repeated(x, call, dim) for x, dim in ((k, call.dim_k), (v, call.dim_v)))
    node = ops.scaled_dot_product_attention(q, k, v, *mask, causal=call.causal)
    precision = "bf16" if call.type == "bf16" else "f32"  # the CPU has no arithmetic in f16
    compiled = core.compile_model(openvino.Model([node], inputs), "CPU", {"INFERENCE_PRECISION_HINT": precision})
    request = compiled.create_infer_request()
    for i, tensor in enumerate(bound):
        request.set_input_tensor(i, tensor)
    out = tensors.out.reshape(*query_shape[:3], call.dim_v)
    request.set_output_tensor(openvino.Tensor(out, out.shape, type_))
    return lambda: request.infer(share_outputs=True), tensors.result


def repeated(x, call, dim):
    """What models that are exported to it hold: unsqueeze, broadcast, reshape."""
    wide = ops.broadcast(ops.unsqueeze(x, np.int64(2)), np.array([call.batch, call.heads_kv, call.group, call.seq_kv, dim]), "BIDIRECTIONAL")
    return ops.reshape(wide, np.array([call.batch, call.heads_q, call.seq_kv, dim]), False)
