"""Arithmetic modulo primes below 2^60 on numbers of 64 bits, for kernels that numba compiles and vectorizes.

64-bit products are composed from products of 32-bit halves, which every vector unit has; there are no 128-bit numbers.
Results are lazy: each function states the multiple of the prime that bounds its result, and a residue is made canonical
(`settled`) before it is stored.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import binding

# Every constant is an unsigned 64-bit integer, because numba turns mixed unsigned and signed integers into floating-point
# numbers.
_HALF = np.uint64(32)
_LOW = np.uint64((1 << 32) - 1)
ONE = np.uint64(1)


def processor_has(feature: str) -> bool:
    """Whether kernels are compiled for a processor with this feature.

    NUMBA_CPU_FEATURES and NUMBA_CPU_NAME apply, as for numba itself.
    """
    asked = numba.config.CPU_FEATURES
    if asked is not None:
        return f"+{feature}" in asked.split(",")
    if numba.config.CPU_NAME == "generic":
        return False
    try:
        return bool(binding.get_host_cpu_features().get(feature, False))
    except RuntimeError:
        return False


def _guard() -> AbstractContextManager[Any]:
    """A lock around parallel kernels if numba's threading layer does not allow concurrent calls from Python threads.

    OpenMP (libgomp) and TBB allow them; numba's own thread pool ends the process.
    """
    for pool in ("omppool", "tbbpool"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"numba.np.ufunc.{pool}")
            return contextlib.nullcontext()
    return threading.Lock()


_ONE_AT_A_TIME = _guard()


# Names of the kernels that could not be cached on disk.
UNKEPT: set[str] = set()


@functools.cache
def _stamp() -> tuple[float, int]:
    """The time of the last change of the kernels' sources, and their size together."""
    found = [path.stat() for path in Path(__file__).parent.parent.rglob("*.py")]
    return max(each.st_mtime for each in found), sum(each.st_size for each in found)


def _compiled(function: Callable[..., Any], **options: bool) -> Any:
    """The function compiled by numba and cached on disk; compiled anew in each process if nothing can be written."""
    options = {"nogil": True, "boundscheck": False, **options}
    try:
        made = numba.njit(cache=True, error_model="numpy", **options)(function)
        # numba compares a kernel in its cache with the kernel's own file, and not with the files of what it calls.
        kept = made._cache._cache_file
        kept._source_stamp = (kept._source_stamp, *_stamp())
        return made
    except RuntimeError:
        # Neither the source folder nor NUMBA_CACHE_DIR nor the home directory can be used; numba has no exception class of
        # its own for this.
        UNKEPT.add(function.__name__)
        return numba.njit(error_model="numpy", **options)(function)


def kernel(function: Callable[..., Any]) -> Any:
    """A single-threaded kernel, called with the interpreter's lock released, cached on disk once compiled."""
    return _compiled(function)


def parallel_kernel(function: Callable[..., Any]) -> Any:
    """A kernel whose outermost `prange` runs on numba's threads. Call it from Python, not from other kernels."""
    compiled = _compiled(function, parallel=True)

    @functools.wraps(function)
    def call(*arguments: Any) -> None:
        with _ONE_AT_A_TIME:
            compiled(*arguments)

    return call


def inlined(function: Callable[..., Any]) -> Any:
    """A function that is inlined into the kernels that call it."""
    return numba.njit(inline="always", error_model="numpy")(function)


@inlined
def high_product(a: Any, b: Any) -> Any:
    """The high 64 bits of a * b, or up to two less."""
    a0, a1, b0, b1 = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    return a1 * b1 + ((a1 * b0) >> _HALF) + ((a0 * b1) >> _HALF)


@inlined
def times_constant(a: Any, w: Any, ratio: Any, q: Any) -> Any:
    """a * w modulo q, below 4 q. `ratio` is floor(w 2^64 / q), w is below q, a below 2^63 (Shoup's product).

    The quotient is one too small by the truncation of `ratio`, and up to two by `high_product`.
    """
    return a * w - high_product(a, ratio) * q


@inlined
def settled(a: Any, q: Any) -> Any:
    """The canonical residue of a number below 8 q."""
    q2 = q + q
    q4 = q2 + q2
    a = min(a, a - q4)
    a = min(a, a - q2)
    return min(a, a - q)


@inlined
def wide_high(a: Any, b: Any) -> Any:
    """The high 64 bits of a * b, for a and b below 2^62."""
    a0, a1, b0, b1 = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    return a1 * b1 + ((a1 * b0 + a0 * b1 + ((a0 * b0) >> _HALF)) >> _HALF)


@inlined
def reduced(high: Any, low: Any, q: Any, bits: Any, ratio: Any) -> Any:
    """The canonical residue of high 2^64 + low, which is below 16 q 2^`bits` (Barrett's reduction).

    q has `bits` bits, `ratio` is floor(2^(bits + 63) / q). The quotient is too small by less than eleven: two from
    truncating the number, two from `ratio`, six and one from the product and its lowest bit.
    """
    top = (high << (np.uint64(64) - bits)) | (low >> bits)
    rest = low - (high_product(top, ratio) << ONE) * q
    q2 = q + q
    q4 = q2 + q2
    q8 = q4 + q4
    rest = min(rest, rest - q8)
    rest = min(rest, rest - q4)
    rest = min(rest, rest - q2)
    return min(rest, rest - q)


@inlined
def product(a: Any, b: Any, q: Any, bits: Any, ratio: Any) -> Any:
    """a * b modulo q, canonical, for canonical a and b."""
    return reduced(wide_high(a, b), a * b, q, bits, ratio)


@inlined
def total(a: Any, b: Any, q: Any) -> Any:
    """a + b modulo q, canonical, for canonical a and b."""
    c = a + b
    return min(c, c - q)


@inlined
def difference(a: Any, b: Any, q: Any) -> Any:
    """a - b modulo q, canonical, for canonical a and b."""
    c = a - b
    return min(c, c + q)
