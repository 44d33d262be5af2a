"""Tensors of PyTorch. The tests are skipped where it is not installed."""

import subprocess
import sys

import numpy as np
import pytest

import fovea

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def tensors(qkv):
    return tuple(map(torch.from_numpy, qkv))


def reference(q, k, v, **options):
    return torch.nn.functional.scaled_dot_product_attention(*(x.double() for x in (q, k, v)), enable_gqa=True, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_results_are_tensors_of_the_type_of_q(tensors, dtype):
    q, k, v = (x.to(dtype) for x in tensors)
    out, lse = fovea.attention(q, k, v, return_lse=True)
    assert type(out) is torch.Tensor and out.dtype == dtype and lse.dtype == torch.float32
    tolerance = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    torch.testing.assert_close(out.double(), reference(q, k, v), atol=tolerance, rtol=tolerance)


def test_bits_are_those_of_numpy(qkv, tensors):
    wanted = fovea.attention(*qkv, causal=True, align="top-left", return_lse=True, return_weights=True)
    got = fovea.attention(*tensors, causal=True, align="top-left", return_lse=True, return_weights=True)
    for x, y in zip(got, wanted):
        np.testing.assert_array_equal(x.numpy(), y)


def test_outputs_in_place_and_any_strides(qkv, tensors):
    wanted = fovea.attention(*qkv)
    out = torch.zeros(2, 13, 8, 64).transpose(1, 2)
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
    assert fovea.attention(*views, out=out) is out
    np.testing.assert_array_equal(out.numpy(), wanted)


def test_masks_and_lengths_as_pytorch_makes_them(tensors):
    q, k, v = tensors
    mask = torch.rand(13, 17) < 0.6
    mask[:, 0] = True
    torch.testing.assert_close(fovea.attention(q, k, v, mask=mask).double(), reference(q, k, v, attn_mask=mask), atol=2e-6, rtol=2e-6)
    repeated = mask.expand(2, 8, 13, 17)
    torch.testing.assert_close(fovea.attention(q, k, v, mask=repeated), fovea.attention(q, k, v, mask=mask), atol=0, rtol=0)
    lengths = torch.tensor([17, 5])  # int64
    torch.testing.assert_close(fovea.attention(q, k, v, seqlens_kv=lengths)[1], fovea.attention(q[1:], k[1:, :, :5], v[1:, :, :5])[0],
                               atol=2e-6, rtol=2e-6)


def test_caches(tensors):
    q, k, v = tensors
    cache = [torch.zeros(2, 2, 20, dim, dtype=torch.bfloat16) for dim in (32, 64)]
    fovea.kv_append(*cache, k, v, torch.tensor([0, 3]))
    torch.testing.assert_close(cache[0][1, :, 3:], k[1].bfloat16(), atol=0, rtol=0)
    parts = [fovea.attention(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 9), slice(9, 17))]
    out, lse = fovea.merge(parts)
    assert type(out) is type(lse) is torch.Tensor
    torch.testing.assert_close(out.double(), reference(q, k, v), atol=2e-6, rtol=2e-6)


def test_gradients_are_refused_unless_they_are_off(tensors):
    q, k, v = tensors
    parameter = torch.nn.Parameter(k.clone())
    with pytest.raises(fovea.UnsupportedError, match="^k: requires a gradient"):
        fovea.attention(q, parameter, v)
    wanted = fovea.attention(q, k, v)
    with torch.no_grad():
        assert torch.equal(fovea.attention(q, parameter, v), wanted)
    with torch.inference_mode():
        assert torch.equal(fovea.attention(q, parameter, v), wanted)
    assert torch.equal(fovea.attention(q, parameter.detach(), v), wanted)


def test_tensors_that_are_not_in_the_memory_of_the_cpu(tensors):
    for wrong in torch.zeros(2, 2, 17, 32, device="meta"), torch.zeros(2, 2, 17, 32).to_sparse():
        with pytest.raises(fovea.Error, match="^k: "):
            fovea.attention(tensors[0], wrong, tensors[2])


def test_tensors_whose_memory_is_not_what_they_hold(tensors):
    q, k, v = tensors
    negated = torch.complex(k, k).conj().imag
    assert negated.is_neg()
    with pytest.raises(fovea.UnsupportedError, match="^k: is a negated view"):
        fovea.attention(q, negated, v)
    assert torch.equal(fovea.attention(q, negated.resolve_neg(), v), fovea.attention(q, -k, v))
    with torch._subclasses.FakeTensorMode():
        fake = torch.zeros(2, 2, 17, 32)
    with pytest.raises(fovea.ArgumentError, match="^k: "):
        fovea.attention(q.numpy(), fake, v.numpy())


def test_types_that_are_refused(tensors):
    for dtype in torch.float64, torch.complex64, torch.int64, torch.float8_e4m3fn:
        with pytest.raises(fovea.ArgumentTypeError, match="^k: "):
            fovea.attention(tensors[0], tensors[1].to(dtype), tensors[2])


@pytest.mark.parametrize("first", ["torch", "fovea"])
def test_one_openmp_runtime_in_a_process_with_pytorch(first):
    second = {"torch": "fovea", "fovea": "torch"}[first]
    program = f"""
import {first}, {second}, os
q = torch.randn(1, 8, 300, 64)
for _ in range(3):
    fovea.attention(q, q, q)
    q @ q.transpose(2, 3)
maps = {{line.split()[-1] for line in open("/proc/self/maps") if "omp" in line.split()[-1]}}
print(len(maps))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert int(done.stdout) <= 1, done.stdout + done.stderr


def test_pytorch_may_be_imported_after_a_tensor_of_dlpack_was_seen(qkv):
    program = """
import fovea, numpy as np
q = np.ones((1, 1, 2, 4), "f4")
fovea.attention(q, q, q)
import torch
t = torch.from_numpy(q)
assert type(fovea.attention(t, t, t)) is torch.Tensor
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
