"""Addresses of arrays, for kernels that take many separate arrays. The caller keeps the arrays alive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from heliograph.ir import Array


def addresses(arrays: Sequence[Array]) -> Array:
    """The addresses of contiguous arrays of words."""
    assert all(array.flags.c_contiguous and array.dtype == np.uint32 for array in arrays)
    return np.array([array.ctypes.data for array in arrays], dtype=np.uint64)


def _pointer(context: Any, address: Any) -> Any:
    signature = types.CPointer(types.uint32)(address)

    def generate(_: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())

    return signature, generate


# Makes a pointer from an address, for `numba.carray`.
pointer: Any = intrinsic(_pointer)
