"""Functions of one value that a model writes with several ops, `x * torch.tanh(F.softplus(x))`, as one activation.

The search covers the exported graph: a call all of whose inputs, back to one tensor, are elementwise functions of that
tensor and of numbers. Written out, it would take a polynomial for each function and a product for each multiplication
of two values; as one activation it takes one polynomial, fitted to the whole. Excluded are polynomials, single
functions, functions that jump or are not finite everywhere, and functions with a part that is also read elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heliograph import functions
from heliograph.frontends.torch.source import leaf_module, module_stack, op_name
from heliograph.frontends.torch.ways.pointwise import POINTWISE, REACH, corners, in_numpy, made_known, reach_of
from heliograph.functions import Function

# Elementwise ops: polynomial arithmetic, ops that do nothing, and functions.
_ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "neg", "square", "pow"})
_NOTHING = frozenset(
    {
        *("clone", "contiguous", "detach", "alias", "dropout", "to", "_to_copy", "lift_fresh_copy"),
        # Numbers in the shape of a value.
        *("zeros_like", "ones_like", "full_like"),
    }
)
# The functions of the table that torch has, by its names, with whether they have kinks.
_KINKED = {
    name.removeprefix("aten."): bool(family.make().kinks)
    for family in functions.families()
    for name in family.torch_ops
}
# Parts of functions that may jump or bend far from 0.
_PIECES = frozenset(
    {
        *("where", "gt", "ge", "lt", "le", "maximum", "minimum", "masked_fill", "clamp", "clamp_min", "clamp_max"),
        *("hardtanh", "leaky_relu", "hardswish", "hardsigmoid", "softshrink"),
        *(name for name, kinked in _KINKED.items() if kinked),
    }
)
_FUNCTIONS = frozenset({"gelu", "softplus", "div", *_PIECES, *_KINKED, *POINTWISE})
# Over the range of its values, the function must be finite at this many points, and without jumps.
_POINTS = 1 << 14


def _short(node: Any) -> str:
    return op_name(node.target).rsplit(".", 1)[-1].removesuffix("_") if node.op == "call_function" else ""


def _by_element(node: Any) -> bool:
    name = _short(node)
    if not op_name(node.target).startswith("aten."):
        return False
    if name == "dropout" and len(node.args) > 2 and node.args[2]:
        return False
    if name == "pow" and not isinstance(node.args[1], int | float):
        return False
    return name in _ARITHMETIC or name in _NOTHING or name in _FUNCTIONS


@dataclass(frozen=True, slots=True)
class Fused:
    """A function of `source`.

    nodes: its calls in order; the last one gives its value.
    numbers: known operands, read when the function is met.
    """

    source: Any
    nodes: tuple[Any, ...]
    numbers: tuple[Any, ...]

    @property
    def last(self) -> Any:
        return self.nodes[-1]

    def parts(self) -> dict[Any, Fused]:
        """The functions within it, by their last calls, each as large as possible."""
        inner = [self.source, *self.nodes[:-1]]
        return fusions(inner, set(inner))

    @property
    def pieces(self) -> bool:
        """Whether the function may jump or bend, so that the range of its values matters."""
        return any(_short(node) in _PIECES for node in self.nodes)

    def name(self, values: Mapping[Any, Any], size: float) -> str | None:
        """The name of the activation, registered in the table of functions; None where fusing is not worth it.

        `size` is the largest absolute value of the source.
        """
        known = {node: float(values[node].detach().double().reshape(())) for node in self.numbers}

        def run(x: torch.Tensor) -> torch.Tensor:
            numbers = {node: torch.tensor(number, dtype=x.dtype) for node, number in known.items()}
            found: dict[Any, Any] = {self.source: x, **numbers}
            for node in self.nodes:
                args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), found.__getitem__)
                # A truth value becomes a number, as in the program.
                found[node] = (
                    args[0].to(x.dtype) if _short(node) in ("to", "_to_copy") else node.target(*args, **kwargs)
                )
            return found[self.nodes[-1]].to(x.dtype)  # type: ignore[no-any-return]

        given = [value for node in self.nodes for value in (*node.args, *node.kwargs.values())]
        reach = reach_of([*known.values(), *(float(value) for value in given if isinstance(value, int | float))], size)
        label = f"torch_function_{_digest(self, known)}" + (f"_to_{reach:g}" if reach > REACH else "")
        if functions.known(label) is not None:
            return label
        evaluate = in_numpy(run)
        far = min(reach, max(REACH, 1.25 * size))
        try:
            values_there = evaluate(np.linspace(-far, far, _POINTS + 1))
        except (RuntimeError, TypeError):
            return None
        if not np.isfinite(values_there).all():
            return None
        points, jumps = corners(evaluate, reach)
        if jumps:
            return None
        words = " ".join(_short(node) for node in self.nodes)
        made_known(Function(label, evaluate, corners=points), f"A function that a model writes: {words}.", run)
        return label


def _digest(fused: Fused, known: Mapping[Any, float]) -> str:
    """A key, equal for two fused functions that do the same to their sources."""
    places = {fused.source: "x", **{node: repr(number) for node, number in known.items()}}
    lines = []
    for count, node in enumerate(fused.nodes):
        given: Any = (node.args, dict(node.kwargs))
        args, kwargs = torch.fx.node.map_arg(given, lambda n: _Name(places[n]))  # type: ignore
        places[node] = f"v{count}"
        lines.append(f"{node.target}{args}{sorted(kwargs.items())}")
    return hashlib.sha256(";".join(lines).encode()).hexdigest()[:12]


class _Name:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def depending_on(nodes: Iterable[Any], given: set[Any]) -> set[Any]:
    """The nodes of one graph that depend on the given ones."""
    found = set(given)
    for node in nodes:
        if any(operand in found for operand in node.all_input_nodes):
            found.add(node)
    return found


def fusions(nodes: Iterable[Any], depending: set[Any]) -> dict[Any, Fused]:
    """The last calls of functions of one value, each with its function, as large as possible."""
    order = [node for node in nodes if node in depending]
    rank = {node: place for place, node in enumerate(order)}
    # For each call, the values of which it is a function, farthest last.
    pasts: dict[Any, list[Any]] = {}
    for node in order:
        pasts[node] = []
        if node.op == "call_function" and _by_element(node):
            operands = [operand for operand in node.all_input_nodes if operand in depending]
            numbers = [operand for operand in node.all_input_nodes if operand not in depending]
            if operands and all(_is_number(operand) for operand in numbers) and _alike(node, operands):
                shared = [[operand, *pasts[operand]] for operand in operands]
                pasts[node] = [one for one in shared[0] if all(one in some for some in shared[1:])]
    found: dict[Any, Fused] = {}
    inner: set[Any] = set()
    for node in reversed(order):
        if node in inner or not pasts[node]:
            continue
        for source in reversed(pasts[node]):
            fused = _between(source, node, depending)
            if fused is not None and _worth(fused):
                ordered = tuple(sorted(fused.nodes, key=rank.__getitem__))
                found[node] = Fused(source, ordered, fused.numbers)
                inner.update(ordered[:-1])
                break
    return found


def _is_number(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _alike(node: Any, operands: list[Any]) -> bool:
    """Whether the call gives a tensor of numbers in the shape of its operands."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    return all(
        isinstance(operand.meta.get("val"), torch.Tensor)
        and operand.meta["val"].shape == value.shape
        and not operand.meta["val"].is_complex()
        for operand in operands
    )


def _between(source: Any, last: Any, depending: set[Any]) -> Fused | None:
    """The calls from one value to another; None where a function among them is read elsewhere."""
    nodes, numbers, waiting = {last}, set(), [last]
    while waiting:
        for operand in waiting.pop().all_input_nodes:
            if operand is source or operand in nodes:
                continue
            if operand not in depending:
                numbers.add(operand)
                continue
            nodes.add(operand)
            waiting.append(operand)
    for node in nodes - {last}:
        if _short(node) in _FUNCTIONS and any(user not in nodes for user in node.users):
            return None
    return Fused(source, tuple(nodes), tuple(numbers))


def _worth(fused: Fused) -> bool:
    """Whether one polynomial replaces several, or one and a product."""
    kinds = [_short(node) for node in fused.nodes]
    many = sum(kind in _FUNCTIONS for kind in kinds)
    products = sum(_is_product(node, fused) for node in fused.nodes)
    # Layers of torch.nn keep their names, which select degrees: none is fused with another function.
    layers = {module_stack(node)[-1][0] if leaf_module(node) else None for node in fused.nodes}
    apart = layers == {None} or len(layers) == 1
    return (many > 1 and apart) or (many == 1 and products > 0)


def _is_product(node: Any, fused: Fused) -> bool:
    """Whether the call multiplies two values, or one with itself."""
    if _short(node) in ("square", "pow"):
        return True
    inside = [operand for operand in node.all_input_nodes if operand is fused.source or operand in fused.nodes]
    return _short(node) == "mul" and (len(inside) > 1 or node.args[0] is node.args[1])
