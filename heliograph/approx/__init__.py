"""Approximation of functions by polynomials, and the plans that evaluate them on ciphertexts.

`register_function`, the same as `heliograph.register_function`, adds a user-defined function; it is loaded on first
use.
"""

from __future__ import annotations

from typing import Any

__all__ = ["register_function"]


def __getattr__(name: str) -> Any:
    if name == "register_function":
        from heliograph.ir.ops.activations import register_function

        return register_function
    raise AttributeError(f"module 'heliograph.approx' has no attribute {name!r}")
