"""oneDNN by the adapter of fovea_bench: primitives over all heads or one at a time, and its graph where it fuses that."""
import ctypes
import functools
import os
import sys

from . import Unsupported

library = None
thread_count = 1


def version(threads):
    global library, thread_count
    thread_count = threads
    try:
        library = ctypes.CDLL(os.path.join(sys.prefix, "lib", "libfovea_peer_onednn.so"))
    except OSError as error:
        raise Unsupported(str(error)) from error
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    for name, result, *arguments in (
            ("text", ctypes.c_char_p), ("library_name", ctypes.c_char_p),
            ("offers", pointer, pointer, ctypes.c_bool, ctypes.c_float, pointer, pointer, pointer, pointer, integer),
            ("count", integer, pointer), ("path", ctypes.c_char_p, pointer, integer), ("refusal", ctypes.c_char_p, pointer, integer),
            ("run", ctypes.c_bool, pointer, integer), ("rearrange", None, pointer, integer)):
        function = getattr(library, f"peer_{name}")
        function.restype, function.argtypes = result, arguments
    return library.peer_library_name().decode()


def offers(call, tensors):
    if call.type != "f32":
        raise Unsupported("the adapter is f32 alone")
    if tensors.mask is not None:
        raise Unsupported("the adapter has no masks")
    sizes = (ctypes.c_int64 * 7)(call.batch, call.heads_q, call.heads_kv, call.seq_q, call.seq_kv, call.dim_k, call.dim_v)
    arrays = [x.ctypes.data for x in (tensors.q, tensors.k, tensors.v, tensors.out)]
    offers = library.peer_offers(sizes, call.causal, call.scale, *arrays, thread_count)
    if not offers:
        raise Unsupported(library.peer_text().decode())
    return {library.peer_path(offers, i).decode(): functools.partial(offer, offers, i, tensors) for i in range(library.peer_count(offers))}


def offer(offers, i, tensors):
    if refusal := library.peer_refusal(offers, i).decode():
        raise Unsupported(refusal)
    run = functools.partial(library.peer_run, offers, i)

    def result():
        if not run():
            raise RuntimeError(library.peer_text().decode())
        library.peer_rearrange(offers, i)
        return tensors.out

    return run, result
