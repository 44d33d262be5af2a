"""What is wrong is an exception that names the argument, leaves outputs alone, and never a crash."""

import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fovea


def raises(error, match, *arrays, **options):
    out = options.pop("out", np.full((2, 8, 13, 64), 7, np.float32))
    before = out.copy()
    with pytest.raises(error, match=match) as caught:
        fovea.attention(*arrays, out=out, **options)
    assert isinstance(caught.value, fovea.Error)
    np.testing.assert_array_equal(out, before)
    return caught.value


def test_every_exception_is_an_error_of_fovea_with_a_status(qkv):
    q, k, v = qkv
    error = raises(ValueError, "^k: its dim", q, k[..., :31], v)
    assert error.status == fovea.Status.INVALID_SIZE
    assert raises(TypeError, "^q: .*float64", q.astype(np.float64), k, v).status == fovea.Status.INVALID_DTYPE
    with pytest.raises(NotImplementedError) as caught:
        fovea.Context(isa="neon" if "avx2" in fovea.info()["levels"] else "avx2")
    assert caught.value.status == fovea.Status.ISA_UNAVAILABLE
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error) and copy.status == error.status


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_what_is_no_array(qkv, name):
    for wrong in None, 3, "text", [[1.0]], object(), b"bytes":
        arrays = dict(zip("qkv", qkv), **{name: wrong})
        with pytest.raises(fovea.ArgumentTypeError, match=f"^{name}: "):
            fovea.attention(**arrays)


@pytest.mark.parametrize("name", ["q", "k", "v", "out", "lse", "weights", "mask"])
def test_types_that_no_tensor_has(qkv, name):
    for dtype in np.float64, np.complex64, np.int64, np.int16, ">f4", "U3", "M8[s]", object, [("x", "f4")], ml_dtypes.float8_e4m3fn:
        shape = {"q": (2, 8, 13, 32), "k": (2, 2, 17, 32), "v": (2, 2, 17, 64), "out": (2, 8, 13, 64), "lse": (2, 8, 13)}
        arrays = dict(zip("qkv", qkv), **{name: np.zeros(shape.get(name, (2, 8, 13, 17)), dtype)})
        with pytest.raises(fovea.ArgumentTypeError, match=f"^{name}: "):
            fovea.attention(**arrays)


def test_shapes_that_do_not_fit(qkv):
    q, k, v = qkv
    raises(ValueError, "^k: its batch size", q, k[:1], v[:1])
    raises(ValueError, "^v: its number of keys", q, k, v[:, :, 1:])
    raises(ValueError, "^v: its number of heads", q, k, v[:, :1])
    raises(ValueError, "^heads_q", q[:, :7], k, v)
    raises(ValueError, "^k: has 3 axes", q, k[0], v[0])
    raises(ValueError, "^q: must have 2 to 4 axes", q[0, 0, 0], k, v)
    raises(ValueError, "^q: has 5 axes", q[None], k, v)
    raises(ValueError, "^out: its last axis", q, k, v[..., :63])
    raises(ValueError, "^mask: the shape", q, k, v, mask=np.ones((2, 8, 13, 16), bool))
    raises(ValueError, "^mask: the shape", q, k, v, mask=np.ones((3, 1, 1, 17), bool))
    raises(ValueError, "^seqlens_q: its length", q, k, v, seqlens_q=[1])
    raises(ValueError, "^seqlens_kv: must have 1 axes", q, k, v, seqlens_kv=[[1, 2]])
    raises(ValueError, "^alibi_slopes: its length", q, k, v, alibi_slopes=[1.0] * 7)
    raises(ValueError, "^sinks: must have 1 axis", q, k, v, sinks=np.zeros((8, 1), np.float32))
    raises(ValueError, "^lse: must have the shape", q, k, v, lse=np.zeros((2, 8, 12), np.float32))
    raises(ValueError, "^weights: its last axis", q, k, v, weights=np.zeros((2, 8, 13, 16), np.float32))
    raises(ValueError, "^q: has a batch axis", q, k, v, cu_seqlens_q=[0, 1, 2])
    raises(ValueError, "^cu_seqlens_q: must have at least", q[:1], k, v, cu_seqlens_q=[])
    raises(ValueError, "^block_table: its number of rows", q, k, v, block_table=[[0]])


def test_numbers_out_of_range(qkv):
    raises(ValueError, "^scale: ", *qkv, scale=float("nan"))
    raises(TypeError, "^scale: ", *qkv, scale="1")
    raises(ValueError, "^softcap: ", *qkv, softcap=-1)
    raises(TypeError, "^causal: ", *qkv, causal="bottom-right")
    raises(ValueError, "^align: ", *qkv, causal=True, align="left")
    raises(TypeError, "^window: ", *qkv, window=3)
    raises(TypeError, "^window: ", *qkv, window=(1, "2"))
    raises(ValueError, "^window_left: ", *qkv, window=(-2, 0), align="top-left")
    raises(ValueError, r"^seqlens_kv\[1\]: ", *qkv, seqlens_kv=[17, 18])
    raises(ValueError, r"^seqlens_q\[0\]: ", *qkv, seqlens_q=[-1, 3])
    raises(ValueError, "^seqlens_q: ", *qkv, seqlens_q=[2**40, 3])
    raises(TypeError, "^seqlens_q: ", *qkv, seqlens_q=[1.5, 3])
    raises(TypeError, "^seqlens_q: ", *qkv, seqlens_q=np.array([1.5, 3]))
    raises(ValueError, "^layout: ", *qkv, layout="sbhd")
    raises(TypeError, "^context: ", *qkv, context=4)
    raises(TypeError, "^return_lse: ", *qkv, return_lse=1)
    raises(ValueError, "^seq_kv: ", *qkv, seq_kv=3)
    raises(ValueError, r"^sinks\[0\]: ", *qkv, sinks=[float("nan")] * 8)
    for threads in 0, -1, 8193:
        with pytest.raises(fovea.ArgumentError, match="^threads: "):
            fovea.Context(threads=threads)
    with pytest.raises(fovea.ArgumentError, match="^isa: "):
        fovea.Context(isa="avx1024")
    with pytest.raises(TypeError):
        fovea.attention(*qkv, colour="red")
    with pytest.raises(fovea.ArgumentError):
        fovea.alibi_slopes(-1)


def test_pages_that_are_not_there(rng):
    q, pool = rng.standard_normal((2, 4, 1, 8), np.float32), rng.standard_normal((3, 2, 4, 8), np.float32)
    out = np.zeros((2, 4, 1, 8), np.float32)
    raises(ValueError, "^block_table: 3 at batch entry 1", q, pool, pool, block_table=[[0, 1], [3, 2]], out=out)
    raises(ValueError, "^seq_kv: ", q, pool, pool, block_table=[[0, 1], [1, 2]], seq_kv=9, out=out)
    raises(ValueError, "^block_table: rows", q, pool, pool, block_table=[[0, 1], [1]], out=out)
    raises(ValueError, "^k: has 3 axes", q, pool[0], pool[0], block_table=[[0, 1], [1, 2]], out=out)
    raises(ValueError, "^k: pages of 0 slots", q, pool[:, :, :0], pool[:, :, :0], block_table=[[0, 1], [1, 2]], out=out)
    # A column of a table is not a narrower table: what lies beside it is not read.
    table = np.array([[0, 99], [1, 99]], np.int32)
    np.testing.assert_array_equal(fovea.attention(q, pool, pool, block_table=table[:, :1]),
                                  fovea.attention(q, pool, pool, block_table=[[0], [1]]))


def test_caches_that_do_not_say_enough(qkv):
    q, k, v = qkv
    raises(ValueError, "^k_scale: must be given", q, k.astype(np.int8), v)
    raises(ValueError, "^k_scale: ", q, k, v, k_scale=np.ones((2, 2, 17), np.float32))
    raises(ValueError, "^k_scale: its seq", q, k.astype(np.int8), v, k_scale=np.ones((2, 2, 16), np.float32))
    raises(TypeError, "^k_scale: ", q, k.astype(np.int8), v, k_scale=np.ones((2, 2, 17), np.float16))
    raises(TypeError, "^k: .*k_type", q, k.astype(np.uint8), v)
    raises(TypeError, "^k: .*uint8", q, k, v, k_type="q8_0")
    raises(ValueError, "^k_type: ", q, k.astype(np.uint8), v, k_type="q5_0")
    raises(ValueError, "^k: its last axis", q, k.astype(np.uint8), v, k_type="q8_0")
    blocks = np.zeros((2, 2, 17, 36), np.uint8)
    raises(ValueError, "^k: a stride of 36 bytes", q, blocks[..., :34], v, k_type="q8_0")
    raises(ValueError, "^k: the bytes of a row", q, np.zeros((2, 2, 17, 68), np.uint8)[..., ::2], v, k_type="q8_0")


def test_strides_that_are_negative_or_odd(qkv):
    q, k, v = qkv
    for axis in range(4):
        raises(ValueError, "^k.stride", q, np.flip(k, axis), v)
    raises(ValueError, "^alibi_slopes|^align", q, k, v, alibi_slopes=np.ones(8, np.float32)[::-1])
    fields = np.zeros((2, 2, 17, 32), [("x", "f4"), ("y", "u1")])
    raises(ValueError, "^k: the stride of axis", q, fields["x"], v)
    unaligned = np.zeros(k.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(k.shape)
    raises(ValueError, "^k: its address", q, unaligned, v)


def test_outputs_that_cannot_be_written(qkv):
    q, k, v = qkv
    out = np.zeros((2, 8, 13, 64), np.float32)
    out.flags.writeable = False
    raises(ValueError, "^out: is read-only", q, k, v, out=out)
    raises(ValueError, "^out.stride: ", q, k, v, out=np.lib.stride_tricks.as_strided(
        np.zeros(64, np.float32), (2, 8, 13, 64), (0, 0, 0, 4), writeable=True))
    raises(ValueError, "^out: overlaps q", q, k, v[..., :32], out=q)
    lse = np.zeros((2, 8, 13), np.float32)
    lse.flags.writeable = False
    raises(ValueError, "^lse: is read-only", q, k, v, lse=lse)


def test_a_python_object_in_place_of_any_argument(qkv):
    for name in {"q", "k", "v", "out", "lse", "weights", "return_lse", "return_weights", "scale", "softcap", "causal", "align",
                 "window", "mask", "alibi_slopes", "sinks", "seqlens_q", "seqlens_kv", "cu_seqlens_q", "cu_seqlens_kv",
                 "block_table", "seq_kv", "k_scale", "v_scale", "k_type", "v_type", "layout", "context"}:
        arguments = dict(zip("qkv", qkv), **{name: object()})
        with pytest.raises(fovea.Error, match=f"^{name}: "):
            fovea.attention(**arguments)


SHAPES = hnp.array_shapes(min_dims=1, max_dims=5, min_side=0, max_side=5)
DTYPES = st.sampled_from(["f4", "f2", ml_dtypes.bfloat16, "i1", "u1", "?", "i4", "i8", "f8", ">f4", "c8"])


@st.composite
def anything(draw):
    """An array of some shape, type and strides, or what is none."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from([None, 1, -1.5, "text", [1, 2], [[0, 1]], (3,), object(), True]))
    x = np.zeros(draw(SHAPES), draw(DTYPES))
    for axis in range(x.ndim):
        x = np.take(x, [0], axis) if draw(st.integers(0, 9)) == 0 and x.shape[axis] else x
        if draw(st.integers(0, 9)) == 0:
            x = np.flip(x, axis)
    if draw(st.booleans()):
        x = x.swapaxes(0, -1)
    return x


OPTIONS = ["out", "lse", "weights", "mask", "alibi_slopes", "sinks", "seqlens_q", "seqlens_kv", "cu_seqlens_q", "cu_seqlens_kv",
           "block_table", "k_scale", "v_scale"]


@given(st.data())
def test_no_arguments_crash(data):
    """Arguments that fit mostly, one or two of them replaced by anything: a result or an exception of fovea."""
    b, group, heads, sq, sk, dk, dv = (data.draw(st.integers(0, 4)) for _ in range(7))
    dk *= data.draw(st.sampled_from([1, 32]))
    dtype = data.draw(st.sampled_from(["f4", "f2", ml_dtypes.bfloat16]))
    arguments = {"q": np.ones((b, heads * group, sq, dk), dtype), "k": np.ones((b, heads, sk, dk), dtype),
                 "v": np.ones((b, heads, sk, dv), dtype)}
    for _ in range(data.draw(st.integers(0, 2))):
        arguments[data.draw(st.sampled_from(["q", "k", "v"] + OPTIONS))] = data.draw(anything())
    for name, values in {"scale": [0.5, np.nan, None], "softcap": [1.0, -1.0], "causal": [True, False],
                         "align": ["top-left", "bottom-right", None], "window": [(1, 1), (None, 2), (-3, 0)],
                         "k_type": ["q8_0", "q4_0"], "layout": ["bhsd", "bshd"], "return_lse": [True], "return_weights": [True],
                         "seq_kv": [0, 3, -1]}.items():
        if data.draw(st.integers(0, 4)) == 0:
            arguments[name] = data.draw(st.sampled_from(values))
    try:
        fovea.attention(**arguments)
    except fovea.Error as error:
        assert str(error)


@given(st.data())
def test_no_arguments_of_caches_crash(data):
    arguments = {"k": np.zeros((2, 2, 5, 32), "f4"), "v": np.zeros((2, 2, 5, 8), "f4"), "k_new": np.ones((2, 2, 3, 32), "f4"),
                 "v_new": np.ones((2, 2, 3, 8), "f4"), "start": [0, 2]}
    names = list(arguments) + ["count", "block_table", "k_scale", "v_scale"]
    for _ in range(data.draw(st.integers(0, 3))):
        arguments[data.draw(st.sampled_from(names))] = data.draw(anything())
    try:
        fovea.kv_append(**arguments)
    except fovea.Error as error:
        assert str(error)
    parts = [data.draw(anything()), data.draw(anything())]
    try:
        fovea.merge([tuple(parts), (np.ones((1, 2, 3, 4), "f4"), np.ones((1, 2, 3), "f4"))], seqlens_q=data.draw(st.sampled_from(
            [None, [2], [3], [-1], [[1]]])))
    except fovea.Error as error:
        assert str(error)
