"""The rule for einsum in all its forms: diagonals, dots, sums, and products two factors at a time.

Two factors become a product of matrices where they share letters that are summed, and products of elements elsewhere; a
known factor becomes a linear map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heliograph.frontends.torch.rules.layers import matrix_times
from heliograph.frontends.torch.rules.products import product_of_nodes
from heliograph.frontends.torch.values import Call, Value, rule
from heliograph.frontends.torch.ways.linear import moved
from heliograph.ir import Node


@dataclass(frozen=True, slots=True)
class _Factor:
    """A factor: a letter for each of its axes, and a node or a known tensor."""

    letters: str
    held: Node | torch.Tensor

    @property
    def sizes(self) -> dict[str, int]:
        shape = self.held.shape if isinstance(self.held, torch.Tensor) else self.held.type.shape  # type: ignore[union-attr]
        return dict(zip(self.letters, map(int, shape), strict=True))


@rule("aten.einsum")
def einsum(call: Call, equation: str, tensors: Sequence[Any], path: Any = None) -> Value:
    terms, result = _letters(call, equation, tensors)
    factors = []
    for term, x in zip(terms, tensors, strict=True):
        factors.append(_diagonal(call, _Factor(term, x.node if isinstance(x, Value) else x.detach())))
    while len(factors) > 1:
        later = result + "".join(factor.letters for factor in factors[2:])
        factors[:2] = [_product(call, factors[0], factors[1], later)]
    made = _summed(call, factors[0], result)
    return Value(_turned(call, made, result))


def _letters(call: Call, equation: str, tensors: Sequence[Any]) -> tuple[list[str], str]:
    """The axes of each factor and of the result, a letter each; dots are letters too."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    free = [c for c in map(chr, range(ord("A"), ord("z") + 1)) if c.isalpha() and c not in equation]
    ranks = [x.rank if isinstance(x, Value) else x.ndim for x in tensors]
    widths = [rank - len(t.replace("...", "")) for rank, t in zip(ranks, terms, strict=True) if "..." in t]
    dots = "".join(free[: max(widths, default=0)])
    if any(width != len(dots) for width in widths):
        raise call.refuse(f"the dots of {equation!r} stand for different numbers of axes", "give each axis a letter")
    terms = [term.replace("...", dots) for term in terms]
    if not arrow:
        letters = sorted(set("".join(terms)) - set(dots))
        result = dots + "".join(c for c in letters if "".join(terms).count(c) == 1)
    return terms, result.replace("...", dots)


def _diagonal(call: Call, factor: _Factor) -> _Factor:
    """The diagonal of a factor in which a letter occurs twice."""
    letters = "".join(dict.fromkeys(factor.letters))
    if letters == factor.letters:
        return factor
    if isinstance(factor.held, torch.Tensor):
        codes = {c: i for i, c in enumerate(letters)}
        return _Factor(
            letters, torch.einsum(factor.held, [codes[c] for c in factor.letters], list(range(len(letters))))
        )
    shape = factor.held.type.shape  # type: ignore[union-attr]
    index = np.arange(math.prod(shape)).reshape(shape)
    index = np.einsum(index, [letters.index(c) for c in factor.letters], list(range(len(letters))))
    return _Factor(letters, moved(call, factor.held, np.ascontiguousarray(index), index.shape))


def _summed(call: Call, factor: _Factor, kept: str) -> _Factor:
    """The factor, summed over the letters that nothing needs later."""
    axes = tuple(axis for axis, letter in enumerate(factor.letters) if letter not in kept)
    if not axes:
        return factor
    letters = "".join(letter for letter in factor.letters if letter in kept)
    if isinstance(factor.held, torch.Tensor):
        return _Factor(letters, factor.held.sum(axes))
    return _Factor(letters, call.emit("sum", factor.held, axes=axes, keepdims=False))


def _turned(call: Call, factor: _Factor, order: str) -> Node:
    """The node of a factor with its axes in that order."""
    node = factor.held
    assert isinstance(node, Node)
    axes = tuple(factor.letters.index(letter) for letter in order)
    return node if axes == tuple(range(len(axes))) else call.emit("permute", node, axes=axes)


def _product(call: Call, left: _Factor, right: _Factor, later: str) -> _Factor:
    """The product of two factors, summed over the letters that nothing needs later."""
    if isinstance(left.held, torch.Tensor) and isinstance(right.held, torch.Tensor):
        kept = "".join(dict.fromkeys(c for c in left.letters + right.letters if c in later))
        codes = {c: i for i, c in enumerate(dict.fromkeys(left.letters + right.letters))}
        made = torch.einsum(
            left.held.double(),
            [codes[c] for c in left.letters],
            right.held.double(),
            [codes[c] for c in right.letters],
            [codes[c] for c in kept],
        )
        return _Factor(kept, made)
    left = _summed(call, left, later + right.letters)
    right = _summed(call, right, later + left.letters)
    if isinstance(left.held, torch.Tensor):
        left, right = right, left
    assert isinstance(left.held, Node)
    sizes = {**left.sizes, **right.sizes}
    summed = "".join(c for c in left.letters if c in right.letters and c not in later)
    both = "".join(c for c in left.letters if c in right.letters and c in later)
    first = "".join(c for c in left.letters if c not in right.letters)
    second = "".join(c for c in right.letters if c not in left.letters)

    def size(letters: str) -> int:
        return math.prod(sizes[c] for c in letters)

    if isinstance(right.held, torch.Tensor) and not both:
        # A linear map over the letters that are summed.
        matrix = right.held.permute([right.letters.index(c) for c in second + summed]).reshape(
            size(second), size(summed)
        )
        call.names.set(matrix, f"{call.names.get(right.held, f'{call.loc.layer}.constant')}.matrix")
        rows = call.reshaped(_turned(call, left, first + summed), (size(first), size(summed)))
        node = matrix_times(call, rows, matrix.contiguous())
        return _Factor(first + second, call.reshaped(node, [sizes[c] for c in first + second]))
    if isinstance(right.held, torch.Tensor):
        right = _Factor(right.letters, call.constant_node(right.held))
    if summed:
        stack = [sizes[c] for c in both]
        rows = call.reshaped(_turned(call, left, both + first + summed), (*stack, size(first), size(summed)))
        columns = call.reshaped(_turned(call, right, both + summed + second), (*stack, size(summed), size(second)))
        node = product_of_nodes(call, rows, columns)
    else:
        rows = call.reshaped(_turned(call, left, both + first), [sizes[c] for c in both + first] + [1] * len(second))
        columns = call.reshaped(
            _turned(call, right, both + second),
            [sizes[c] for c in both] + [1] * len(first) + [sizes[c] for c in second],
        )
        node = call.emit("mul", rows, columns)
    letters = both + first + second
    return _Factor(letters, call.reshaped(node, [sizes[c] for c in letters]))
