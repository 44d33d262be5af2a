"""What a call is to give, in float64, on a sample of its rows; and how wrong what a library gave is."""
import numpy as np

from .tensors import decode

HEADS, ROWS = 8, 8  # of the sample: pairs of batch entry and head, and rows of each

# The largest error of an output that is right, over sum_j p_j |v_j|, whose size its rounding errors have. A library may round weights, outputs and
# sums to the type of the call, and queries to that of the cache: a few times its unit roundoff.
ROUNDING = {"f32": 0, "f16": 8 * 2.0**-11, "bf16": 4 * 2.0**-8, "q8_0": 4 * 2.0**-8, "q4_0": 4 * 2.0**-8}
# An error of a score is one of its weight: of sums in f32 some units of 2^-24 in the size of the score's own terms, and five bits for fast
# exponentials.
SCORE_ROUNDING = 2.0**-19


class Oracle:
    def __init__(self, tensors, seed=1):
        call = tensors.call
        random = np.random.default_rng(seed)
        pairs = random.permutation(call.batch * call.heads_q)[:HEADS]
        rows = random.permutation(call.seq_q)[:ROWS]
        rows[0], rows[-1] = 0, call.seq_q - 1  # the first and the last one, whose keys are fewest and most
        self.places, self.expected, self.sizes, self.tolerances = [], [], [], []
        for batch, head in zip(*np.divmod(pairs, call.heads_q)):
            place = batch, head, rows
            expected, size, score_size = attention(call, *self.slices(tensors, batch, head, rows), tensors.sees(), rows)
            self.places.append(place), self.expected.append(expected), self.sizes.append(size)
            self.tolerances.append(ROUNDING[call.type] + SCORE_ROUNDING * (1 + score_size))

    @staticmethod
    def slices(tensors, batch, head, rows):
        call = tensors.call
        q = decode(tensors.q[batch, head, rows], call.query_type)
        k, v = (decode(x[batch, head // call.group], call.type) for x in (tensors.k, tensors.v))
        return (x.astype(np.float64) for x in (q, k, v))

    def error(self, result):
        """The largest over all sampled outputs, and whether each is within its tolerance; None, False where one is no number."""
        largest, right = 0.0, True
        for (batch, head, rows), expected, size, tolerance in zip(self.places, self.expected, self.sizes, self.tolerances):
            error = np.abs(np.asarray(result[batch, head][rows], np.float64) - expected) / size
            if not np.isfinite(error).all():
                return None, False
            largest, right = max(largest, float(error.max())), right and bool((error <= tolerance).all())
        return largest, right


def attention(call, q, k, v, sees, rows):
    """Outputs, the size of their terms, and of each row the size of the terms of its largest score."""
    scores, score_size = q @ k.T * call.scale, np.abs(q) @ np.abs(k).T * call.scale
    if sees is not None:
        scores[~sees[rows]] = -np.inf
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(largest > -np.inf, largest, 0))
    weights /= np.maximum(weights.sum(-1, keepdims=True), np.finfo(np.float64).tiny)  # a row without keys has weights of 0
    size = weights @ np.abs(v)
    return weights @ v, np.where(size > 0, size, 1), score_size.max(-1, keepdims=True)
