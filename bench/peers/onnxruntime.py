"""ONNX Runtime: models of one node, their tensors bound."""
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from . import Unsupported
from .calls import FLOATS
from .tensors import aligned_copy

TYPES = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
OPSETS = {"": 23, "com.microsoft": 1}
IR_VERSION = 10  # of ONNX files: that of opset 23's first release
options = onnxruntime.SessionOptions()


def version(threads):
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.log_severity_level = 4  # what it refuses is said in the report
    return f"ONNX Runtime {onnxruntime.__version__}"


def offers(call, tensors):
    if call.type not in FLOATS:
        raise Unsupported("no such type")
    ways = {"Attention-23": lambda: attention(call, tensors)}
    if call.type != "bf16" and tensors.mask is None:
        if call.group == 1 and not call.causal:
            ways["MultiHeadAttention"] = lambda: multi_head_attention(call, tensors)
        if call.dim_k == call.dim_v and (call.causal or call.seq_q == 1):
            ways["GroupQueryAttention"] = lambda: group_query_attention(call, tensors)
    return ways


def attention(call, tensors):
    attributes = {"is_causal": int(call.causal), "scale": call.scale}
    mask = {} if tensors.mask is None else {"attn_mask": tensors.mask}
    return one_node(call, "", "Attention", {"Q": tensors.q, "K": tensors.k, "V": tensors.v, **mask}, {"Y": tensors.out}, attributes,
                    tensors.result)


def token_major(x):
    """[batch, token, head * dim]."""
    return aligned_copy(np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape[0], x.shape[2], -1))


def head_major(out, call, tensors):
    """The result of a model whose outputs are token_major()."""
    return lambda: out.reshape(call.batch, call.seq_q, call.heads_q, call.dim_v).swapaxes(1, 2)


def multi_head_attention(call, tensors):
    """Its queries are [batch, token, head * dim], its keys may be [batch, head, token, dim]."""
    out = token_major(tensors.out)
    inputs = {"query": token_major(tensors.q), "key": token_major(tensors.k), "value": token_major(tensors.v)}
    return one_node(call, "com.microsoft", "MultiHeadAttention", inputs, {"output": out},
                    {"num_heads": call.heads_q, "scale": call.scale}, head_major(out, call, tensors))


def group_query_attention(call, tensors):
    """All keys but those of the queries are in its cache, to which the call appends these."""
    past = call.seq_kv - call.seq_q
    out, dtype = token_major(tensors.out), tensors.k.dtype
    # Cache and appended cache are one buffer, as in generation.
    k, v = aligned_copy(tensors.k), aligned_copy(tensors.v)
    inputs = {"query": token_major(tensors.q), "key": token_major(tensors.k[:, :, past:]), "value": token_major(tensors.v[:, :, past:]),
              "past_key": k, "past_value": v,
              "seqlens_k": np.full(call.batch, call.seq_kv - 1, np.int32), "total_sequence_length": np.array(call.seq_kv, np.int32)}
    if call.seq_q > 1:  # a prompt: nothing is in the cache
        inputs["past_key"], inputs["past_value"] = (np.empty((call.batch, call.heads_kv, 0, call.dim_k), dtype) for _ in range(2))
    return one_node(call, "com.microsoft", "GroupQueryAttention", inputs, {"output": out, "present_key": k, "present_value": v},
                    {"num_heads": call.heads_q, "kv_num_heads": call.heads_kv, "scale": call.scale}, head_major(out, call, tensors))


def one_node(call, domain, op, inputs, outputs, attributes, result):
    def element(x):
        return {np.int32: TensorProto.INT32, np.bool_: TensorProto.BOOL}.get(x.dtype.type, TYPES[call.type])

    infos = [[helper.make_tensor_value_info(name, element(x), x.shape) for name, x in group.items()] for group in (inputs, outputs)]
    node = helper.make_node(op, list(inputs), list(outputs), domain=domain, **attributes)
    model = helper.make_model(helper.make_graph([node], op, *infos), ir_version=IR_VERSION,
                              opset_imports=[helper.make_opsetid(*opset) for opset in OPSETS.items()])
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for bind, group in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, x in group.items():
            bind(name, "cpu", 0, element(x), x.shape, x.ctypes.data)
    call_options = onnxruntime.RunOptions()

    def run():
        session.run_with_iobinding(binding, call_options)

    return run, result, inputs, outputs
