"""What a call from Python adds to the call of the C library: microseconds, for each kind of array.

Usage: overhead.py [--check] [--markdown PAGE]. The call is a tiny one (one query, two keys), run on one CPU; the C call of the same arguments
is timed in a loop inside of the module. --check fails where a figure is beyond its limit; --markdown puts the table into a page.
"""
import argparse
import os
import pathlib
import sys
import timeit

import numpy as np

import fovea

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "bench"))
from report import put  # noqa: E402

CALLS, RUNS = 5000, 9
LIMITS = {"NumPy, `out=`": 2, "PyTorch, `out=`": 3}  # the others:
LIMIT_OF_OTHERS = 12


class Lent:
    """An array that has nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def microseconds(q, k, v, function=fovea.attention, **options):
    """Of the call from Python, and of the C call alone: the least of several runs of each, one after the other."""
    python, c = [], []
    names = {"attention": function, "q": q, "k": k, "v": v, **options}
    call = f"attention(q, k, v{''.join(f', {name}={name}' for name in options)})"
    for _ in range(RUNS):
        python += timeit.repeat(call, globals=names, number=CALLS, repeat=1)
        c.append(fovea._core._seconds_per_call(q, k, v, **options))
    return min(python) / CALLS * 1e6, min(c) * 1e6


def cases():
    q, k = (np.ones((1, 1, tokens, 16), np.float32) for tokens in (1, 2))
    out, lengths = np.empty_like(q), np.array([2], np.int32)
    yield "NumPy, `out=`", (q, k, k), {"out": out}
    yield "NumPy, `out=` and four options", (q, k, k), {"out": out, "causal": True, "align": "bottom-right", "seqlens_kv": lengths,
                                                       "scale": 0.25}
    yield "NumPy", (q, k, k), {}
    yield "DLPack alone, `out=`", (Lent(q), Lent(k), Lent(k)), {"out": Lent(out)}
    try:
        import torch

        import fovea.torch
    except ImportError:
        return
    q, k, out = (torch.from_numpy(x) for x in (q, k, out))
    yield "PyTorch, `out=`", (q, k, k), {"out": out}
    yield "PyTorch", (q, k, k), {}
    yield "`fovea.torch.attention()`", (q, k, k), {"function": fovea.torch.attention}
    yield "`fovea.torch.scaled_dot_product_attention()`", (q, k, k), {"function": fovea.torch.scaled_dot_product_attention}
    with torch.inference_mode():
        yield "`torch.ops.fovea.attention`, as compiled code calls it", (q, k, k), {"function": torch.ops.fovea.attention.default}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--markdown", metavar="PAGE")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    beyond, rows = [], []
    print(f"{'arrays':<54} {'Python':>8} {'C':>8} {'added':>8} {'limit':>8}   microseconds")
    for name, arrays, arguments in cases():
        python, c = microseconds(*arrays, **arguments)
        limit = LIMITS.get(name, LIMIT_OF_OTHERS)
        rows.append(f"| {name} | {python - c:.1f} |")
        print(f"{name:<54} {python:8.2f} {c:8.2f} {python - c:8.2f} {limit:8}")
        if python - c > limit:
            beyond.append(name)
    if options.markdown:
        put(options.markdown, {"overhead": "\n".join(["| arrays | added |", "|---|---|", *rows])})
    if options.check and beyond:
        sys.exit(f"beyond their limits: {', '.join(beyond)}")


if __name__ == "__main__":
    main()
