"""Arithmetic modulo primes of up to 49 bits in floating-point numbers, for processors with a fused multiply-add.

A residue is a signed integer held exactly in a double. A product modulo a prime takes a third of the operations that
64-bit integers need, for which few vector units have products. The resulting residues are the same.

The rounding error of h = a b is fma(a, b, -h), and the quotient by the prime may be off by one from the nearest integer
(van der Hoeven, Lecerf and Quintin, "Modular SIMD arithmetic in Mathemagix", 2016).
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.extending import intrinsic

from heliograph.ir import Array
from heliograph.runtime.native.kernels.arithmetic import inlined, processor_has

# numba's decorator is untyped.
_emitted: Callable[[Callable[..., Any]], Any] = intrinsic


def _fused() -> bool:
    """Whether kernels are compiled for a processor with a fused multiply-add. Without one each product would be a function
    call.
    """
    arm = platform.machine().lower() in ("aarch64", "arm64")
    given = numba.config.CPU_FEATURES is None and numba.config.CPU_NAME != "generic"
    return (arm and given) or processor_has("fma")


# Residues modulo primes below this, 2^49.3, are computed as doubles. Larger primes use integers; so do all primes on
# machines where doubles would be slow.
LIMIT = np.uint64(5 << 47 if _fused() else 0)
# Adding and then subtracting this constant rounds a number below 2^51 to an integer.
_ROUNDING = 1.5 * 2.0**52
# With these bits set, the integer x below 2^52 reads as the double 2^52 + x.
_EXPONENT = np.uint64(0x433 << 52)
_MANTISSA = np.uint64((1 << 52) - 1)
_ABOVE = 2.0**52
_ONE = np.uint64(1)


@_emitted
def fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once."""
    double = numba.float64

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return double(double, double, double), emit


def _same_bits(source: Any, target: Any) -> Any:
    """A function that reinterprets a number's bits as another type."""

    @_emitted
    def read(context: Any, a: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), emit

    return read


_double_of = _same_bits(numba.uint64, numba.float64)
_bits_of = _same_bits(numba.float64, numba.uint64)


@inlined
def near(a: Any) -> Any:
    """A residue below 2^52 as a double."""
    return _double_of(a | _EXPONENT) - _ABOVE


@inlined
def canonical(a: Any, q: Any) -> Any:
    """The canonical residue of an integral double in [-q, q)."""
    return _bits_of((a + q if a < 0.0 else a) + _ABOVE) & _MANTISSA


@inlined
def product_near(a: Any, b: Any, q: Any, inverse: Any) -> Any:
    """a b modulo q, for |a b| below 2^50.8 q. `inverse` is 1 / q.

    Its size is at most q (1/2 + e), where e = 1.5 * 2^-52 |a b| / q bounds the quotient's error: at most 0.12 x for a
    up to x q and b up to q / 2.
    """
    h = a * b
    quotient = fma(h, inverse, _ROUNDING) - _ROUNDING
    return fma(-quotient, q, h) + fma(a, b, -h)


@inlined
def nearest(a: Any, q: Any, inverse: Any) -> Any:
    """a modulo q, between -q / 2 and q / 2, for |a| below 2^53 and below 2^51 q."""
    return fma(_ROUNDING - fma(a, inverse, _ROUNDING), q, a)


@inlined
def centred_constant(a: Any, prime: Any) -> Any:
    """A canonical residue as a double between -q / 2 and q / 2."""
    return float(a) - (float(prime) if a > prime >> _ONE else 0.0)


def centred(residues: Array, prime: int) -> Array:
    """Canonical residues as doubles between -q / 2 and q / 2."""
    whole = residues.astype(np.int64)
    return np.where(whole > prime // 2, whole - prime, whole).astype(np.float64)
