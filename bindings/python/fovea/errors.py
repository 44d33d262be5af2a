"""What fovea raises. Every exception is a :class:`fovea.Error`, and a ValueError, TypeError, ... as well; its text names the argument."""

import enum


class Status(enum.IntEnum):
    """Why a call was refused: the numbers of ``fovea_status`` in fovea.h."""

    NULL_POINTER = 1
    STRUCT_SIZE = 2
    INVALID_ARGUMENT = 3
    INVALID_SIZE = 4
    INVALID_STRIDE = 5
    INVALID_DTYPE = 6
    OVERLAP = 7
    WORKSPACE = 8
    OUT_OF_MEMORY = 9
    UNSUPPORTED = 20
    ISA_UNAVAILABLE = 30


class Error(Exception):
    """Base of all exceptions of fovea. Outputs and caches are as they were before the call."""

    status: Status

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = Status(status)

    def __reduce__(self):
        return type(self), (int(self.status), str(self))


class ArgumentError(Error, ValueError):
    """A number out of its range, shapes that do not fit each other, strides that are negative, outputs that overlap, ..."""


class ArgumentTypeError(Error, TypeError):
    """Not an array or number of a type that the argument may have."""


class UnsupportedError(Error, NotImplementedError):
    """Well formed, but not to be had in this version or on this CPU."""


class OutOfMemoryError(Error, MemoryError):
    """The memory that a call works in could not be allocated."""


_CLASSES = {
    Status.INVALID_DTYPE: ArgumentTypeError,
    Status.OUT_OF_MEMORY: OutOfMemoryError,
    Status.UNSUPPORTED: UnsupportedError,
    Status.ISA_UNAVAILABLE: UnsupportedError,
}


def for_status(status: int, text: str) -> Error:
    """The exception for a status of the C API."""
    return _CLASSES.get(status, ArgumentError)(status, text)
