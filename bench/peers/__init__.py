"""Libraries that compute attention, Fovea among them, behind one interface.

Each module has

    version(threads)        imports the library, limits it to so many threads and returns its name and version
    offers(call, tensors)   {way: make}: the ways in which it can compute the call. make() prepares everything that can be before a call and
                            returns run, result and what else has to live as long: run() is the timed call, result() what it computed,
                            [batch, head, seq, dim] in floats

and raises Unsupported, from any of them, for what it does not have. A way's name says what it does not read where it lies.
"""

NAMES = ("fovea", "torch", "onnxruntime", "openvino", "ggml", "onednn", "naive")


class Unsupported(Exception):
    """Why a library does not compute a call."""
