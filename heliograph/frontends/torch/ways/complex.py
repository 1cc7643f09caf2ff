"""Complex numbers within a model: a pair of real values, and linear ops on them as linear maps of both parts.

Fourier transforms, their inverses and ops that move or add complex numbers are linear in real and imaginary parts, so
torch itself provides their matrices (ways/linear.py). Products of two complex values, absolute values and their squares
are written out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from heliograph.frontends.torch.values import Call, Value, elementwise
from heliograph.frontends.torch.ways.linear import by_matrix


@dataclass(frozen=True, slots=True, eq=False)
class Complex:
    """A complex tensor that depends on an input."""

    real: Value
    imag: Value


def complex_call(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of an op on complex values, or on real ones if the result is complex."""
    short = call.op.rsplit(".", 1)[-1]
    x = args[0]
    if short in ("real", "imag") and isinstance(x, Complex):
        return x.real if short == "real" else x.imag
    if short in ("view_as_real", "view_as_real_copy") and isinstance(x, Complex):
        return _side_by_side(call, x)
    if short in ("abs", "absolute") and isinstance(x, Complex):
        total = elementwise(call, "add", _squared(call, x.real), _squared(call, x.imag))
        return Value(call.emit("sqrt", total.node))
    if short in ("mul", "multiply") and all(isinstance(one, Complex | Value) for one in args[:2]):
        return _product(call, *args[:2])
    made = [_part(call, args, kwargs, part) for part in ("real", "imag")]
    recorded = call.result
    if isinstance(recorded, torch.Tensor) and not recorded.is_complex():
        return made[0]
    return Complex(*made)


def _squared(call: Call, x: Value) -> Value:
    return Value(call.emit("mul", x.node, x.node))


def _side_by_side(call: Call, x: Complex) -> Value:
    """Real and imaginary parts along a new last axis."""
    nodes = [call.emit("reshape", part.node, shape=(*part.shape, 1)) for part in (x.real, x.imag)]
    return Value(call.emit("concat", *nodes, axis=len(x.real.shape)))


def _product(call: Call, x: Any, y: Any) -> Any:
    """The product of two values, at least one of them complex."""
    if isinstance(x, Value):
        x, y = y, x
    if isinstance(y, Value):
        return Complex(elementwise(call, "mul", x.real, y), elementwise(call, "mul", x.imag, y))
    real = elementwise(call, "sub", *(elementwise(call, "mul", a, b) for a, b in ((x.real, y.real), (x.imag, y.imag))))
    imag = elementwise(call, "add", *(elementwise(call, "mul", a, b) for a, b in ((x.real, y.imag), (x.imag, y.real))))
    return Complex(real, imag)


def _part(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], part: str) -> Value:
    """The real or imaginary part of the result of an op that is linear in real and imaginary parts."""

    def parts(leaf: Any) -> Any:
        return (leaf.real, leaf.imag) if isinstance(leaf, Complex) else leaf

    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    pairs = [isinstance(leaf, Complex) for leaf in leaves]

    def run(*given: Any) -> torch.Tensor:
        whole = [torch.complex(*leaf) if pair else leaf for leaf, pair in zip(given, pairs, strict=True)]
        arguments, named = pytree.tree_unflatten(whole, spec)
        made = call.target(*arguments, **named)
        if not made.is_complex():
            return made if part == "real" else torch.zeros_like(made)
        return torch.view_as_real(made.resolve_conj())[..., 0 if part == "real" else 1]

    made = by_matrix(call, [parts(leaf) for leaf in leaves], {}, run)
    assert isinstance(made, Value)
    return made
