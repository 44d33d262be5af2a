"""The numbers of a call and the memory that they lie in. bf16 is held as uint16 and blocks as bytes: NumPy has no types for them."""
import mmap

import numpy as np

from .calls import BLOCK, BLOCKS

STORED = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "q8_0": np.uint8, "q4_0": np.uint8}
BLOCK_BYTES = {"q8_0": 34, "q4_0": 18}
HUGE_PAGE = 2 << 20


def encode(x, type_):
    """float32 numbers in a type, rounded to nearest even."""
    if type_ == "bf16":
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    if type_ in BLOCKS:
        return encode_blocks(x, type_)
    return x.astype(STORED[type_])


def decode(x, type_):
    """float32 again."""
    if type_ == "bf16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    if type_ in BLOCKS:
        return decode_blocks(x, type_)
    return x.astype(np.float32)


def encode_blocks(x, type_):
    """ggml's: a scale in f16, then 32 whole numbers of 8 or 4 bits; of 4 bits, a byte has the number i low and i + 16 high."""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    if type_ == "q8_0":
        step = np.abs(blocks).max(-1, keepdims=True) / 127
    else:
        farthest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1)
        step = farthest / -8
    inverse = np.divide(1, step, out=np.zeros_like(step), where=step != 0)
    if type_ == "q8_0":
        numbers = np.rint(blocks * inverse).astype(np.int8).view(np.uint8)
    else:
        numbers = np.minimum(blocks * inverse + 8.5, 15).astype(np.uint8)
        numbers = numbers[..., :16] | numbers[..., 16:] << 4
    return np.concatenate([step.astype(np.float16).view(np.uint8), numbers], -1).reshape(*x.shape[:-1], -1)


def decode_blocks(x, type_):
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK_BYTES[type_])
    step, numbers = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32), blocks[..., 2:]
    if type_ == "q8_0":
        values = numbers.view(np.int8).astype(np.float32)
    else:
        values = np.concatenate([numbers & 15, numbers >> 4], -1).astype(np.float32) - 8
    return (step * values).reshape(*x.shape[:-1], -1)


def aligned(shape, dtype):
    """Zeros from the start of a page, in huge pages where the OS has them: it is the same for every library."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = mmap.mmap(-1, size + 2 * HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE
    array = whole[start : start + size].view(dtype).reshape(shape)
    array[...] = 0
    return array


def aligned_copy(x):
    copy = aligned(x.shape, x.dtype)
    copy[...] = x
    return copy


class Tensors:
    """q, k, v [batch, head, seq, dim] as they are stored, and out of the type of q; a mask, True = attend, or None."""

    def __init__(self, call, q, k, v, mask=None):
        self.call, self.mask = call, mask
        self.q, self.k, self.v = map(aligned_copy, (q, k, v))
        self.out = aligned((call.batch, call.heads_q, call.seq_q, call.dim_v), STORED[call.query_type])

    @classmethod
    def random(cls, call, seed=1):
        random = np.random.default_rng(seed)
        shapes = ((call.heads_q, call.seq_q, call.dim_k), (call.heads_kv, call.seq_kv, call.dim_k), (call.heads_kv, call.seq_kv, call.dim_v))
        q, k, v = (random.standard_normal((call.batch, *shape), np.float32) for shape in shapes)
        mask = None
        if call.inputs == "large scores":  # of a standard deviation of 30: most rows have one key alone
            q *= 30
        elif call.inputs == "keys with an offset":  # that softmax takes out of the scores again
            k += 30
        elif call.inputs == "equal values":  # of which every mean is 1
            v[...] = 1
        elif call.inputs == "a row without keys":  # its output is 0
            mask = random.random((call.seq_q, call.seq_kv)) < 0.5
            mask[0] = False
        return cls(call, encode(q, call.query_type), encode(k, call.type), encode(v, call.type), mask)

    def save(self, path):
        np.savez(path, q=self.q, k=self.k, v=self.v, **({} if self.mask is None else {"mask": self.mask}))

    @classmethod
    def load(cls, call, path):
        with np.load(path) as file:
            return cls(call, **file)

    def sees(self):
        """Which queries see which keys, [seq_q, seq_kv]; None: all see all."""
        return np.tri(self.call.seq_q, self.call.seq_kv, dtype=bool) if self.call.causal else self.mask

    def bias(self, dtype):
        """The same to be added to the scores."""
        sees = self.sees()
        return None if sees is None else np.where(sees, dtype(0), dtype(-np.inf))

    def floats(self):
        """q, k and v as copies in f32, for a library that has no such type."""
        types = (self.call.query_type, self.call.type, self.call.type)
        return tuple(aligned_copy(decode(x, type_)) for x, type_ in zip((self.q, self.k, self.v), types))

    def result(self):
        return decode(self.out, self.call.query_type)
