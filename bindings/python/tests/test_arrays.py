"""Whose arrays are taken and given: NumPy's, those of ml_dtypes, and whatever has DLPack."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import fovea


class Lent:
    """An array of another library: nothing but DLPack."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


class LentOfOld(Lent):
    """From before DLPack 1.0: no versions, no word of read-only memory."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


@pytest.mark.parametrize("wrap", [Lent, LentOfOld])
def test_arrays_of_dlpack_alone(qkv, wrap):
    wanted = fovea.attention(*qkv)
    got = fovea.attention(*map(wrap, qkv), mask=wrap(np.ones((17,), bool)), sinks=wrap(np.full(8, -np.inf, np.float32)))
    assert type(got) is np.ndarray
    np.testing.assert_array_equal(got, wanted)
    out = np.zeros_like(wanted)
    lent = wrap(out.swapaxes(1, 2).copy().swapaxes(1, 2))
    assert fovea.attention(*map(wrap, qkv), out=lent) is lent
    np.testing.assert_array_equal(lent.array, wanted)


def test_read_only_memory_of_dlpack(qkv):
    out = np.zeros((2, 8, 13, 64), np.float32)
    out.flags.writeable = False
    np.testing.assert_array_equal(fovea.attention(*qkv[:2], Lent(out[:, :2, :1].repeat(17, 2))), 0)
    with pytest.raises(fovea.ArgumentError, match="^out: "):
        fovea.attention(*qkv, out=Lent(out))


def test_what_dlpack_refuses_names_the_argument(qkv):
    class Broken(Lent):
        def __dlpack__(self, **options):
            raise BufferError("the tensor is on the moon")

    with pytest.raises(fovea.ArgumentError, match="^k: the tensor is on the moon") as caught:
        fovea.attention(qkv[0], Broken(qkv[1]), qkv[2])
    assert isinstance(caught.value.__cause__, BufferError)

    class Liar(Lent):
        def __dlpack__(self, **options):
            return 3

    with pytest.raises(fovea.ArgumentTypeError, match="^k: __dlpack__"):
        fovea.attention(qkv[0], Liar(qkv[1]), qkv[2])


def test_lent_memory_is_given_back(qkv):
    lent = Lent(qkv[1])

    def use():
        for _ in range(10):
            fovea.attention(qkv[0], lent, qkv[2])
            try:
                fovea.attention(qkv[0], lent, qkv[2], scale="no")
            except fovea.Error:
                pass

    before = sys.getrefcount(lent.array)
    use()
    after = sys.getrefcount(lent.array)
    assert after == before


def test_nothing_is_leaked(qkv):
    out, lengths = np.zeros((2, 8, 13, 64), np.float32), np.array([17, 3], np.int32)
    counted = [*qkv, out, lengths, None, "bhsd"]
    before = [sys.getrefcount(x) for x in counted]
    for _ in range(100):
        fovea.attention(*qkv, out=out, seqlens_kv=lengths)
        fovea.attention(*qkv, out=out, return_lse=True)
        with pytest.raises(fovea.Error):
            fovea.attention(*qkv, out=out, seqlens_kv=lengths[:1])
    for x, count in zip(counted, before):
        assert abs(sys.getrefcount(x) - count) < 50


def test_subclasses_of_ndarray(qkv):
    class Named(np.ndarray):
        pass

    got = fovea.attention(*(x.view(Named) for x in qkv))
    np.testing.assert_array_equal(got, fovea.attention(*qkv))


def test_results_are_of_the_type_of_q(qkv):
    q, k, v = qkv
    assert fovea.attention(q.astype(np.float16), k, v).dtype == np.float16
    assert fovea.attention(q, k.astype(np.float16), v.astype(ml_dtypes.bfloat16)).dtype == np.float32


def test_ml_dtypes_may_be_imported_at_any_time(qkv):
    program = """
import fovea, numpy as np
q = np.ones((1, 1, 2, 4), np.float32)
fovea.attention(q, q, q)
import ml_dtypes
b = q.astype(ml_dtypes.bfloat16)
assert fovea.attention(b, b, b).dtype == ml_dtypes.bfloat16
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_no_library_of_arrays_is_imported():
    program = "import sys, fovea; assert not {'numpy', 'torch', 'ml_dtypes'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
