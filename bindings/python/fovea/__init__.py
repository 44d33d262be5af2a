"""Scaled dot-product attention on CPUs, for arrays of NumPy, PyTorch and anything with DLPack.

    out = fovea.attention(q, k, v, causal=True)
"""

from ._core import Context, __version__, alibi_slopes, attention, explain, info, kv_append, merge
from .errors import ArgumentError, ArgumentTypeError, Error, OutOfMemoryError, Status, UnsupportedError

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "Context",
    "Error",
    "OutOfMemoryError",
    "Status",
    "UnsupportedError",
    "__version__",
    "alibi_slopes",
    "attention",
    "explain",
    "info",
    "kv_append",
    "merge",
]
