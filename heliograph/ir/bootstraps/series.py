"""The attributes `series` and `half_period`: a trigonometric polynomial of a value in [-1, 1] that a bootstrap computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heliograph.ckks.trigonometric import DEGREES, MOST_HALF_PERIOD, evaluate, levels_deeper
from heliograph.errors import ProgramError
from heliograph.ir.node import Array, Node
from heliograph.ir.ops.spec import Bounds, Context
from heliograph.ir.types import CipherType

NAMES = ("series", "half_period")


def series_of(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """These two attributes, of a node that has them."""
    return {name: attrs[name] for name in NAMES if attrs.get(name) is not None}


def check_series(op: str, a: Mapping[str, Any], context: Context) -> None:
    """Raise a ProgramError for a series that no bootstrap can compute."""
    found = series_of(a)
    if not found:
        return
    if len(found) != len(NAMES):
        raise ProgramError(f"{op}: a series has coefficients and a half period")
    shape = context.shape(a["series"])
    if len(shape) != 2 or shape[0] != 2 or shape[1] - 1 not in DEGREES:
        raise ProgramError(
            f"{op}: coefficients @{a['series']} have shape {shape}, not (2, degree + 1) with a degree of {DEGREES}"
        )
    if a.get("deeper", levels_deeper(shape[1] - 1)) != levels_deeper(shape[1] - 1):
        raise ProgramError(f"{op}: its series does not take it {a['deeper']} levels down")
    if not 1.0 < a["half_period"] <= MOST_HALF_PERIOD:
        raise ProgramError(f"{op}: {a['half_period']} is not a half period above 1 and at most {MOST_HALF_PERIOD:g}")


def computed(values: Sequence[Array], a: Mapping[str, Any], context: Context) -> Array:
    """The result of a bootstrap of x, or of x + iy: the value, or the series of each part."""
    x = values[0] if len(values) == 1 else np.asarray(values[0] + 1j * values[1])
    if a.get("series") is None:
        return x
    coefficients, half_period = context.array(a["series"]), a["half_period"]
    if not a.get("complex"):
        return evaluate(coefficients, half_period, x)
    real, imaginary = (evaluate(coefficients, half_period, part) for part in (np.real(x), np.imag(x)))
    return np.asarray(real + 1j * imaginary)


def series_degree(node: Node, context: Context) -> int:
    """The degree of the series that a bootstrap computes, 0 if it computes none."""
    name = node.attrs.get("series")
    return 0 if name is None else context.shape(name)[1] - 1


def reached_level(node: Node) -> int:
    """The level of a `bootstrap`; for one that computes a series, the level that it would reach without the series."""
    assert isinstance(node.type, CipherType)
    return node.type.level + int(node.attrs.get("deeper", 0))


def bootstrap_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds | None:
    """Bounds of a bootstrap's result: its operand's, or the sum of a series' coefficients; None for a pair of values."""
    if node.attrs.get("series") is not None:
        most = np.full(operands[0][0].shape, float(np.abs(context.array(node.attrs["series"])).sum()))
        return -most, most
    return operands[0] if len(operands) == 1 else None
