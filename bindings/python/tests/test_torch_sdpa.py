"""The operator of PyTorch, and scaled_dot_product_attention() served by it. The tests are skipped where PyTorch is not installed."""

import subprocess
import sys

import numpy as np
import pytest

import fovea
import oracle

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import fovea.torch  # noqa: E402

F = torch.nn.functional
PYTORCH = F.scaled_dot_product_attention
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def switch():
    """Off, and nothing counted or compiled, before each test."""
    torch._dynamo.reset()
    fovea.torch.disable()
    fovea.torch.reset_stats()
    yield
    fovea.torch.disable()


@pytest.fixture
def tensors(qkv):
    return tuple(map(torch.from_numpy, qkv))


def assert_right(got, q, k, v, mask=None, is_causal=False, scale=None):
    """Of [batch, head, seq, dim]: within the bound of what PyTorch gives in double precision, which is what the oracle gives."""
    double = None if mask is None else mask if mask.dtype == torch.bool else mask.double()
    wanted = PYTORCH(q.double(), k.double(), v.double(), double, is_causal=is_causal, scale=scale, enable_gqa=True)
    numbers = [x.double().numpy() for x in (q, k, v)]
    expected = oracle.attention(*numbers, scale=scale, causal=is_causal, mask=None if double is None else double.numpy())
    np.testing.assert_allclose(expected[0], wanted.numpy(), rtol=1e-12, atol=1e-12)
    assert got.dtype == q.dtype and got.shape == wanted.shape
    oracle.assert_within_bound(got.double().numpy(), expected, numbers[2], str(q.dtype).removeprefix("torch."))


def masks(dtype):
    random = torch.Generator().manual_seed(2)
    permitted = torch.rand(2, 8, 13, 17, generator=random) < 0.6
    permitted[..., 0] = True
    added = torch.randn(2, 8, 13, 17, generator=random).to(dtype)
    for mask in permitted, added:
        yield from (mask, mask[:1], mask[:, :1], mask[0], mask[0, 0], mask[:, :1, :1], mask[0, 0, :1])
    yield added.masked_fill(~permitted, float("-inf"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_kind_of_mask(tensors, dtype):
    q, k, v = (x.to(dtype) for x in tensors)
    with fovea.torch.enabled():
        for count, mask in enumerate(masks(dtype), 1):
            assert_right(F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True), q, k, v, mask)
            assert fovea.torch.stats() == {"calls": count, "fallbacks": {}}


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_causal_and_scale(tensors, dtype, is_causal, scale):
    q, k, v = (x.to(dtype) for x in tensors)
    for keys in 17, 13, 5:  # more than queries, as many, fewer
        options = {"is_causal": is_causal, "scale": scale}
        with fovea.torch.enabled():
            got = F.scaled_dot_product_attention(q, k[:, :, :keys], v[:, :, :keys], enable_gqa=True, **options)
        assert_right(got, q, k[:, :, :keys], v[:, :, :keys], **options)
    assert fovea.torch.stats() == {"calls": 3, "fallbacks": {}}


@pytest.mark.parametrize("axes", [(13,), (8, 13), (2, 8, 13), (3, 2, 8, 13), (2, 3, 2, 8, 13), (8, 0), (0, 8, 13), (2, 0, 8, 13)], ids=str)
def test_any_number_of_leading_axes(axes, rng):
    q = torch.from_numpy(rng.standard_normal((*axes, 16), np.float32))
    k, v = (torch.from_numpy(rng.standard_normal((*axes[:-1], 17, dim), np.float32)) for dim in (16, 24))
    mask = torch.from_numpy(rng.random((*axes, 17)) < 0.7)
    with fovea.torch.enabled():
        for options in {}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": mask[..., :1, :]}:
            got = F.scaled_dot_product_attention(q, k, v, **options)
            torch.testing.assert_close(got, PYTORCH(q, k, v, **options), atol=4e-6, rtol=0)
    assert fovea.torch.stats() == {"calls": 4, "fallbacks": {}}


def test_leading_axes_that_repeat(tensors):
    q, k, v = tensors
    for keys, values in (k[:1], v[:1]), (k[:, :1], v[:, :1]), (k[:1], v):
        gqa = keys.shape[1] > 1
        with fovea.torch.enabled():
            got = F.scaled_dot_product_attention(q, keys, values, enable_gqa=gqa)
        batch = 2, keys.shape[1], 17
        assert_right(got, q, keys.expand(*batch, 32), values.expand(*batch, 64))
    assert fovea.torch.stats() == {"calls": 3, "fallbacks": {}}


def test_a_row_that_sees_nothing_is_zero_as_in_pytorch(tensors):
    q, k, v = tensors
    mask = torch.ones(13, 17, dtype=torch.bool)
    mask[4] = False
    with fovea.torch.enabled():
        got = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    assert torch.all(got[:, :, 4] == 0) and torch.all(PYTORCH(q, k, v, mask, enable_gqa=True)[:, :, 4] == 0)


def test_the_order_of_axes_in_memory_is_that_of_pytorch(tensors):
    q, k, v = tensors
    v = v[..., :32]
    for query in q, q.transpose(1, 2).contiguous().transpose(1, 2), q[0]:
        arguments = query, k if query.dim() == 4 else k[0], v if query.dim() == 4 else v[0]
        with fovea.torch.enabled():
            got = F.scaled_dot_product_attention(*arguments, enable_gqa=True)
        assert got.stride() == PYTORCH(*arguments, enable_gqa=True).stride()


def double(q, k, v):
    return (q.double(), k.double(), v.double())


@pytest.mark.parametrize("reason, change, options", [
    ("dropout", None, {"dropout_p": 0.5}),
    ("types", double, {}),
    ("not on the CPU", lambda *tensors: [x.to("meta") for x in tensors], {}),
    ("gradients", lambda q, k, v: (q, k.clone().requires_grad_(), v), {}),
    ("subclass of Tensor", lambda q, k, v: (q.as_subclass(type("Special", (torch.Tensor,), {})), k, v), {}),
], ids=lambda x: x if isinstance(x, str) else "")
def test_calls_that_are_left_to_pytorch_are_counted(tensors, reason, change, options):
    arguments = change(*tensors) if change else tensors
    torch.manual_seed(1)
    wanted = PYTORCH(*arguments, enable_gqa=True, **options)
    with fovea.torch.enabled():
        torch.manual_seed(1)
        got = F.scaled_dot_product_attention(*arguments, enable_gqa=True, **options)
    assert fovea.torch.stats() == {"calls": 0, "fallbacks": {reason: 1}}
    assert got.dtype == wanted.dtype and got.device == wanted.device and got.requires_grad == wanted.requires_grad
    if got.device.type == "cpu":
        torch.testing.assert_close(got, wanted, atol=0, rtol=0)


def test_the_first_fallback_of_a_kind_is_logged(tensors, caplog):
    with fovea.torch.enabled():
        for _ in range(2):
            F.scaled_dot_product_attention(*tensors, enable_gqa=True, dropout_p=0.5)
    assert [record.message for record in caplog.records if record.name == "fovea.torch"] == [
        "PyTorch serves calls of scaled_dot_product_attention(), for the reason: dropout"]


@pytest.mark.parametrize("change, options", [
    (lambda q, k, v: (q, k[..., :16], v), {}), (lambda q, k, v: (q, k, v[:, :, :5]), {}), (lambda q, k, v: (q, k.half(), v), {}),
    (lambda q, k, v: (q, k, v), {"attn_mask": torch.ones(4, 17, dtype=torch.bool)}),
    (lambda q, k, v: (q, k, v), {"attn_mask": torch.ones(13, 17, dtype=torch.bool), "is_causal": True}),
], ids=["dims", "keys", "types", "mask", "mask and causal"])
def test_wrong_calls_have_the_errors_of_pytorch(tensors, change, options):
    with fovea.torch.enabled(), pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(*change(*tensors), enable_gqa=True, **options)


def test_gradients_are_those_of_pytorch(tensors):
    q, k, v = (x.clone().requires_grad_() for x in tensors)
    with fovea.torch.enabled():
        F.scaled_dot_product_attention(q, k, v, enable_gqa=True).sum().backward()
        assert q.grad is not None and fovea.torch.stats()["fallbacks"] == {"gradients": 1}
        with torch.no_grad():
            F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        with torch.inference_mode():
            F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert fovea.torch.stats()["calls"] == 2


def test_a_backward_pass_through_the_operator_is_an_error(tensors):
    q, k, v = tensors
    out = fovea.torch.attention(q, k.clone().requires_grad_(), v)
    assert torch.equal(out, fovea.torch.attention(q, k, v))
    with pytest.raises(RuntimeError, match="fovea"):
        out.sum().backward()


def test_autocast_gives_the_type_that_it_gives_in_pytorch(tensors):
    q, k, v = tensors
    mask = torch.randn(13, 17)
    with torch.autocast("cpu", torch.bfloat16), fovea.torch.enabled():
        got = F.scaled_dot_product_attention(q, k.bfloat16(), v, mask, enable_gqa=True)
    assert got.dtype == torch.bfloat16 and fovea.torch.stats() == {"calls": 1, "fallbacks": {}}
    assert_right(got, q.bfloat16(), k.bfloat16(), v.bfloat16(), mask.bfloat16())


def test_the_switch(tensors):
    assert F.scaled_dot_product_attention is PYTORCH
    fovea.torch.enable()
    with fovea.torch.enabled():
        pass
    assert F.scaled_dot_product_attention is fovea.torch.scaled_dot_product_attention
    fovea.torch.disable()
    with pytest.raises(KeyError), fovea.torch.enabled():
        raise KeyError
    assert F.scaled_dot_product_attention is PYTORCH


def test_layers_of_pytorch():
    torch.manual_seed(1)
    layer = torch.nn.MultiheadAttention(64, 4, batch_first=True).requires_grad_(False).train()
    x = torch.randn(2, 9, 64)
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[1, 6:] = True
    wanted, _ = layer(x, x, x, key_padding_mask=padding, need_weights=False)
    with fovea.torch.enabled():
        got, _ = layer(x, x, x, key_padding_mask=padding, need_weights=False)
    assert fovea.torch.stats() == {"calls": 1, "fallbacks": {}}
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=0)


def layer(q, k, v, mask=None, **options):
    return F.scaled_dot_product_attention(q * 2, k, v, mask, enable_gqa=True, **options).transpose(1, 2).reshape(q.shape[0], -1) + 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_code_has_no_break(tensors, mode, dynamic):
    q, k, v = tensors
    mask = torch.rand(13, 17) < 0.7
    with mode(), fovea.torch.enabled():
        compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, options={"force_disable_caches": True})
        for batch in 2, 1:
            arguments = [x[:batch] for x in tensors]
            for options in {}, {"is_causal": True, "scale": 0.3}, {"mask": mask}:
                torch.testing.assert_close(compiled(*arguments, **options), layer(*arguments, **options), atol=1e-6, rtol=1e-6)
    assert fovea.torch.stats() == {"calls": 12, "fallbacks": {}}


def test_compiled_code_counts_its_fallbacks_once(tensors):
    with torch.no_grad(), fovea.torch.enabled():
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for _ in range(3):
            compiled(*tensors, dropout_p=0.5)
    assert fovea.torch.stats() == {"calls": 0, "fallbacks": {"dropout": 1}}


def test_compiled_code_that_needs_gradients_has_those_of_pytorch(tensors):
    torch._dynamo.reset()
    grads = []
    for switch_on in False, True:
        q, k, v = (x.clone().requires_grad_() for x in tensors)
        if switch_on:
            fovea.torch.enable()
        torch.compile(layer, fullgraph=True, backend="aot_eager")(q, k, v).sum().backward()
        grads.append(q.grad)
        torch._dynamo.reset()
    assert fovea.torch.stats() == {"calls": 0, "fallbacks": {"gradients": 1}}
    torch.testing.assert_close(*grads)


def test_exported_programs_hold_the_operator(tensors):
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return fovea.torch.attention(q, k, v, causal=True, align="bottom-right", window=(4, None))

    program = torch.export.export(Module(), tensors)
    assert "torch.ops.fovea.attention" in program.graph_module.code
    wanted = fovea.attention(*tensors, causal=True, align="bottom-right", window=(4, None))
    torch.testing.assert_close(program.module()(*tensors), wanted, atol=0, rtol=0)


def test_the_operator_is_what_pytorch_expects_of_one(tensors):
    q, k, v = tensors
    sinks, lengths = torch.randn(8), torch.tensor([17, 5], dtype=torch.int32)
    tokens_first = q.transpose(1, 2).contiguous().transpose(1, 2)
    for arguments in ((q, k, v), (tokens_first, k, v), (q[0], k[0], v[0]), (q.half(), k.half(), v.half(), torch.randn(13, 17), sinks, lengths, 0.3, 5.0, True,
                                                     "bottom-right", 3)):
        assert set(torch.library.opcheck(torch.ops.fovea.attention, arguments).values()) == {"SUCCESS"}


def test_options_of_the_operator_are_those_of_attention(tensors):
    options = {"mask": torch.rand(13, 17) < 0.7, "sinks": torch.randn(8), "seqlens_kv": torch.tensor([17, 5]), "scale": 0.3,
               "softcap": 4.0, "causal": True, "align": "bottom-right", "window": (6, None)}
    assert torch.equal(fovea.torch.attention(*tensors, **options), fovea.attention(*tensors, **options))


def seen_by(mode, method, run):
    def look(self, function, types, arguments=(), options=None):
        seen.append(str(function))
        return function(*arguments, **(options or {}))

    seen = []
    with type("Mode", (mode,), {method: look})():
        run()
    return seen


def seen_by_a_mode(run):
    return seen_by(torch.utils._python_dispatch.TorchDispatchMode, "__torch_dispatch__", run)


def seen_by_a_function_mode(run):
    return seen_by(torch.overrides.TorchFunctionMode, "__torch_function__", run)


def seen_by_the_profiler(run):
    with torch.profiler.profile() as profile:
        run()
    return [event.key.replace("::", ".") for event in profile.key_averages()]


def seen_by_the_tracer(run):
    return [str(torch.jit.trace(lambda x: run() * x, torch.ones(1), check_trace=False).graph).replace("::", ".")]


@pytest.mark.parametrize("names_seen", [seen_by_a_mode, seen_by_a_function_mode, seen_by_the_profiler, seen_by_the_tracer])
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is deprecated")
def test_who_looks_at_operators_sees_it(tensors, names_seen):
    assert any("fovea.attention" in name for name in names_seen(lambda: fovea.torch.attention(*tensors)))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_what_a_transform_has_wrapped_is_not_read_as_it_lies(tensors):
    got = torch.func.vmap(fovea.torch.attention)(*(x[:, None] for x in tensors))
    assert torch.equal(got[:, 0], fovea.attention(*tensors))


def test_views_that_negate_their_memory(tensors):
    q, k, v = tensors
    negated = torch.complex(k, k).conj().imag
    assert negated.is_neg() and torch.equal(fovea.torch.attention(q, negated, v), fovea.attention(q, -k, v))


def test_the_compiler_is_not_imported_before_it_is_used():
    program = "import sys, fovea.torch; fovea.torch.enable(); print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n", done.stdout + done.stderr


def test_threads_are_at_most_those_of_pytorch():
    program = """
import os, torch, fovea.torch
torch.set_num_threads(1)
q = torch.randn(1, 8, 512, 64)
before = len(os.listdir("/proc/self/task"))
fovea.torch.attention(q, q, q)
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "0\n", done.stdout + done.stderr
