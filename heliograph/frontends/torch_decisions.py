"""Rules for decisions: comparison, truth values (the numbers 0 and 1), and choice between two values."""

from __future__ import annotations

from typing import Any

import torch

from heliograph.frontends.torch_masks import HIDES, LOWEST, filled, floored
from heliograph.frontends.torch_values import Call, Operand, Value, elementwise, is_number, rule, scalar

_COMPARISONS = {
    "aten.gt": "gt",
    "aten.greater": "gt",
    "aten.ge": "ge",
    "aten.greater_equal": "ge",
    "aten.lt": "lt",
    "aten.less": "lt",
    "aten.le": "le",
    "aten.less_equal": "le",
}


@rule(*_COMPARISONS)
def compare(call: Call, x: Any, other: Any) -> Value:
    if is_number(other) and isinstance(x, Value) and x.dtype.is_floating_point:
        # torch compares in the precision of the tensor: 0.1 is not above 0.1 there.
        other = torch.tensor(other, dtype=x.dtype).item()
    return elementwise(call, _COMPARISONS[call.op], x, other)


@rule("aten.heaviside")
def heaviside(call: Call, x: Any, values: Any) -> Value:
    """0 below zero, `values` at zero, 1 above: a mean of x > 0 and x >= 0."""
    above = elementwise(call, "gt", x, 0)
    number = None if isinstance(values, Value) else scalar(values)
    if number == 0:
        return above
    reached = elementwise(call, "ge", x, 0)
    if number == 1:
        return reached
    return elementwise(call, "add", above, elementwise(call, "mul", elementwise(call, "sub", reached, above), values))


@rule("aten.maximum", "aten.fmax")
def maximum(call: Call, x: Any, other: Any) -> Value:
    for value, bound in ((x, other), (other, x)):
        number = None if isinstance(bound, Value) else scalar(bound)
        if number is not None and number <= LOWEST and isinstance(value, Value):
            return floored(call, value, number)
    return elementwise(call, "maximum", x, other)


@rule("aten.minimum", "aten.fmin")
def minimum(call: Call, x: Any, other: Any) -> Value:
    return elementwise(call, "minimum", x, other)


# ---------------------------------------------------------------------------------------------- truth values


def _flag(call: Call, operand: Any) -> Operand:
    """The operand as 0 and 1; only what torch holds as a truth value is that without a comparison."""
    if isinstance(operand, Value):
        if operand.dtype != torch.bool:
            raise call.refuse(
                f"it takes {operand.dtype} values as true or false", "compare first, for example x > threshold"
            )
        return operand
    if isinstance(operand, torch.Tensor):
        flags = operand != 0
        call.names.set(flags, call.names.get(operand, f"{call.loc.layer}.constant"))
        return flags
    return bool(operand)


@rule("aten.__and__", "aten.bitwise_and", "aten.logical_and")
def both(call: Call, x: Any, other: Any) -> Value:
    return elementwise(call, "mul", _flag(call, x), _flag(call, other))


def either(call: Call, x: Any, other: Any) -> Value:
    """1 where at least one of two truth values is."""
    left, right = _flag(call, x), _flag(call, other)
    return elementwise(call, "sub", elementwise(call, "add", left, right), elementwise(call, "mul", left, right))


@rule("aten.__or__", "aten.bitwise_or", "aten.logical_or")
def either_rule(call: Call, x: Any, other: Any) -> Value:
    return either(call, x, other)


@rule("aten.__xor__", "aten.bitwise_xor", "aten.logical_xor")
def one_of(call: Call, x: Any, other: Any) -> Value:
    left, right = _flag(call, x), _flag(call, other)
    twice = elementwise(call, "mul", elementwise(call, "mul", left, right), 2)
    return elementwise(call, "sub", elementwise(call, "add", left, right), twice)


@rule("aten.bitwise_not", "aten.logical_not")
def opposite(call: Call, x: Any) -> Value:
    return elementwise(call, "sub", 1, _flag(call, x))


# ---------------------------------------------------------------------------------------------- functions that jump


@rule("aten.hardshrink")
def hardshrink(call: Call, x: Any, lambd: float = 0.5) -> Value:
    """x beyond +-lambd, 0 between: no polynomial follows the jumps, two comparisons do."""
    beyond = [
        elementwise(call, "mul", x, elementwise(call, comparison, x, bound))
        for comparison, bound in (("gt", float(lambd)), ("lt", -float(lambd)))
    ]
    return elementwise(call, "add", *beyond)


@rule("aten.threshold")
def threshold(call: Call, x: Any, threshold: float, value: float) -> Value:
    """x above the threshold, `value` elsewhere: where the two are equal a ReLU, else a comparison."""
    if float(threshold) == float(value):
        shifted = elementwise(call, "sub", x, float(value))
        return elementwise(call, "add", Value(call.emit("relu", shifted.node), shifted.batch), float(value))
    above = elementwise(call, "gt", x, float(threshold))
    kept = elementwise(call, "mul", elementwise(call, "sub", x, float(value)), above)
    return elementwise(call, "add", kept, float(value))


# ---------------------------------------------------------------------------------------------- choice


def _chosen(call: Call, condition: Any, x: Any, y: Any) -> Value:
    """x where the condition is true, y elsewhere."""

    def chosen() -> Value:
        return elementwise(call, "where", _flag(call, condition), x, y)

    if isinstance(condition, torch.Tensor):
        truths = condition.bool()
        for value, number, places in ((y, x, truths), (x, y, ~truths)):
            if isinstance(value, Value) and not isinstance(number, Value):
                numbers = torch.as_tensor(number, dtype=call.result.dtype)
                if bool((numbers <= HIDES).all()):
                    return filled(call, value, places, numbers, chosen)
    for operand in (x, y):
        known = torch.as_tensor(operand) if is_number(operand) else operand
        if isinstance(known, torch.Tensor) and not bool(torch.isfinite(known).all()):
            raise call.refuse(
                "it chooses an infinite value where the choice depends on an input, or not in places alone",
                "choose a finite number: before a softmax, one a little below the smallest score",
            )
    return chosen()


@rule("aten.where")
def where(call: Call, condition: Any, x: Any = None, y: Any = None) -> Value:
    if x is None or y is None:
        raise call.refuse(
            "with a condition alone it lists the places where that holds, and their number depends on the input",
            "give both values: torch.where(condition, x, y)",
        )
    return _chosen(call, condition, x, y)


@rule("aten.masked_fill")
def masked_fill(call: Call, x: Any, mask: Any, value: Any) -> Value:
    return _chosen(call, mask, value, x)
