"""What a call is to give, in float64, on a sample of its rows; and how wrong what a library gave is."""
import numpy as np

from .tensors import decode

HEADS, ROWS = 8, 8  # of the sample: pairs of batch entry and head, and rows of each

# The largest error of an output over sum_j p_j |v_j|, which it is a mean of. A library may round weights and sums to the type of the call, and
# queries to that of the cache; f32 sums have a unit roundoff of 2^-24, and fast exponentials are given eight bits more.
TOLERANCES = {"f32": 2.0**-16, "f16": 2.0**-8, "bf16": 2.0**-6, "q8_0": 2.0**-6, "q4_0": 2.0**-6}


class Oracle:
    def __init__(self, tensors, seed=1):
        call = tensors.call
        random = np.random.default_rng(seed)
        pairs = random.permutation(call.batch * call.heads_q)[:HEADS]
        rows = random.permutation(call.seq_q)[:ROWS]
        rows[0], rows[-1] = 0, call.seq_q - 1  # the first and the last one, whose keys are fewest and most
        self.places, self.expected, self.sizes = [], [], []
        for batch, head in zip(*np.divmod(pairs, call.heads_q)):
            place = batch, head, rows
            expected, size = attention(call, *self.slices(tensors, batch, head, rows), rows)
            self.places.append(place), self.expected.append(expected), self.sizes.append(size)

    @staticmethod
    def slices(tensors, batch, head, rows):
        call = tensors.call
        q = decode(tensors.q[batch, head, rows], call.query_type)
        k, v = (decode(x[batch, head // call.group], call.type) for x in (tensors.k, tensors.v))
        return (x.astype(np.float64) for x in (q, k, v))

    def error(self, result):
        """The largest over all sampled outputs, as a share of sum_j p_j |v_j|; infinite where there is no number."""
        largest = 0.0
        for (batch, head, rows), expected, size in zip(self.places, self.expected, self.sizes):
            error = np.abs(np.asarray(result[batch, head][rows], np.float64) - expected) / size
            largest = max(largest, float(error.max()) if np.isfinite(error).all() else float("inf"))
        return largest


def attention(call, q, k, v, rows):
    scores = q @ k.T * call.scale
    if call.causal:
        scores[np.arange(call.seq_kv) > rows[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights @ v, weights @ np.abs(v)
