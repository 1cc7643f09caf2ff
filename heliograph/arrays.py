"""Arrays from untrusted files: shapes that are bounded before any computation, and a reader of .npy.

numpy's own reader allocates as much as a header claims, reads headers of any length, and raises errors of many types.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from heliograph.texts import shown

MAX_DIMENSIONS = 32
# No computer can hold an array with more elements; below this, no product of dimensions overflows in numpy.
_MAX_ELEMENTS = 1 << 44
_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 10_000
_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f(2|4|8|16))")


def sound_shape(shape: object, most_dimensions: int = MAX_DIMENSIONS) -> tuple[int, ...]:
    """The shape as integers whose product numpy can handle; a ValueError if it is not such a shape.

    An array without elements may not have huge other dimensions either: numpy multiplies them all.
    """
    if not isinstance(shape, Sequence) or isinstance(shape, (str, bytes)) or len(shape) > most_dimensions:
        raise ValueError(f"its shape is not a list of at most {most_dimensions} dimensions")
    if not all(type(n) is int and 0 <= n <= _MAX_ELEMENTS for n in shape):
        raise ValueError("its shape has a dimension that is not a size")
    if math.prod(max(n, 1) for n in shape) > _MAX_ELEMENTS:
        raise ValueError("its shape is too large for any array")
    return tuple(shape)


def read_npy(file: IO[bytes], size: int, spend: Callable[[int, np.dtype[Any]], None]) -> npt.NDArray[Any]:
    """The array of real numbers in a .npy file of `size` bytes; a ValueError if the file holds none.

    `spend` is called with the number and type of the elements before any of them is read, and may refuse.
    """
    shape, dtype, order, header = _header(file, size)
    count = math.prod(shape)
    spend(count, dtype)
    if header + count * dtype.itemsize > size:
        raise ValueError("the array is cut off")
    raw = file.read(count * dtype.itemsize)
    if len(raw) != count * dtype.itemsize:
        raise ValueError("the array is cut off")
    return np.frombuffer(raw, dtype=dtype).reshape(shape, order="F" if order else "C")


def _header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], np.dtype[Any], bool, int]:
    """The shape, the type, whether the first index runs fastest, and the length of the header."""
    start = file.read(8)
    if len(start) < 8 or start[:6] != _MAGIC or start[6] not in (1, 2, 3) or start[7] != 0:
        raise ValueError("it is not in a known version of numpy's format")
    digits = 2 if start[6] == 1 else 4
    length = int.from_bytes(file.read(digits), "little")
    if length > min(_MAX_HEADER, size):
        raise ValueError(f"its header claims {length} bytes")
    try:
        header = ast.literal_eval(file.read(length).decode("latin1" if start[6] < 3 else "utf-8"))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        header = None
    if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
        raise ValueError("its header is malformed")
    descr, order = header["descr"], header["fortran_order"]
    if not isinstance(descr, str) or not _DTYPE.fullmatch(descr) or type(order) is not bool:
        raise ValueError(f"it has dtype {shown(str(descr), 60)}; real numbers are needed")
    return sound_shape(header["shape"]), np.dtype(descr), order, 8 + digits + length
