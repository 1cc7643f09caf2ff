"""Rules for decisions: comparison, truth values (the numbers 0 and 1), and choice between two values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from heliograph.frontends.torch.inputs.covers import NEVER, chosen_under
from heliograph.frontends.torch.inputs.masks import HIDES, LOWEST, filled, floored
from heliograph.frontends.torch.source import leaf_module
from heliograph.frontends.torch.values import (
    Call,
    NoRule,
    Operand,
    Value,
    axes_of,
    elementwise,
    is_number,
    rule,
    scalar,
)
from heliograph.frontends.torch.ways.linear import by_matrix
from heliograph.ir.ops.functions import COMPARISONS

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
def compare(call: Call, x: Any, other: Any) -> Any:
    if is_number(other) and isinstance(x, Value) and x.dtype.is_floating_point:
        # torch compares in the precision of the tensor: 0.1 is not above 0.1 there.
        other = torch.tensor(other, dtype=x.dtype).item()
    made = _compared_flags(call, _COMPARISONS[call.op], x, other)
    return elementwise(call, _COMPARISONS[call.op], x, other) if made is None else _everywhere(call, made)


@rule("aten.eq", "aten.ne", "aten.not_equal")
def equal(call: Call, x: Any, other: Any) -> Any:
    made = _compared_flags(call, "eq" if call.op == "aten.eq" else "ne", x, other)
    if made is None:
        raise NoRule  # encrypted numbers are equal up to a gap only
    return _everywhere(call, made)


def _everywhere(call: Call, made: Any) -> Any:
    """One number as a tensor of truth values."""
    return torch.full(call.shape, bool(made)) if isinstance(made, float) else made


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")
}


def _is_flag(operand: Any) -> bool:
    """Whether an operand is 0 or 1: a truth value in torch, or one that was converted to numbers."""
    return isinstance(operand, Value) and (
        operand.exact_flag or operand.dtype == torch.bool or operand.node.op in COMPARISONS
    )


def _compared_flags(call: Call, name: str, x: Any, other: Any) -> Any:
    """A comparison of truth values by arithmetic, exactly; None where something else is compared.

    It is f(0) + (f(1) - f(0)) x, where f(0) and f(1) are its results for 0 and 1; for two truth values, the same twice.
    """
    compares = _OPERATORS[name]
    if _is_flag(x) and _is_flag(other):
        table = [[float(compares(a, b)) for b in (0.0, 1.0)] for a in (0.0, 1.0)]
        at_zero, at_one = (_by_flag(call, other, *row) for row in table)
        if not isinstance(at_zero, Value) and not isinstance(at_one, Value):
            return _by_flag(call, x, at_zero, at_one)
        difference = elementwise(call, "sub", at_one, at_zero)
        return elementwise(call, "add", at_zero, elementwise(call, "mul", x, difference))
    if _is_flag(x) and not isinstance(other, Value):
        return _by_flag(call, x, *(_number(compares(flag, other)) for flag in (0.0, 1.0)))
    if _is_flag(other) and not isinstance(x, Value):
        return _by_flag(call, other, *(_number(compares(x, flag)) for flag in (0.0, 1.0)))
    return None


def _number(truth: Any) -> Any:
    return truth.double() if isinstance(truth, torch.Tensor) else float(truth)


def _by_flag(call: Call, flag: Value, at_zero: Any, at_one: Any) -> Any:
    """`at_one` where the truth value holds, `at_zero` elsewhere; both are known numbers or tensors."""
    if isinstance(at_zero, float) and isinstance(at_one, float):
        if at_zero == at_one:
            return at_zero
        return flag if at_one > at_zero else elementwise(call, "sub", 1, flag)
    return elementwise(call, "add", at_zero, elementwise(call, "mul", flag, at_one - at_zero))


@rule("aten.count_nonzero")
def count_nonzero(call: Call, x: Any, dim: Any = None) -> Value:
    if not _is_flag(x):
        raise call.refuse(
            "it counts the encrypted numbers that are not 0",
            "count those beyond a gap: (x.abs() > gap).sum(1)",
        )
    return Value(call.emit("sum", x.node, axes=axes_of(x, dim), keepdims=False))


@rule("aten.isfinite", "aten.isreal")
def always(call: Call, x: Any) -> torch.Tensor:
    """True for every encrypted number."""
    return torch.ones(call.shape, dtype=torch.bool)


@rule("aten.isnan", "aten.isinf", "aten.isposinf", "aten.isneginf")
def never(call: Call, x: Any) -> torch.Tensor:
    """False for every encrypted number."""
    return torch.zeros(call.shape, dtype=torch.bool)


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
    """The operand as 0 and 1; only a truth value in torch needs no comparison for that."""
    if isinstance(operand, Value):
        if operand.dtype != torch.bool and not operand.exact_flag:
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
        return elementwise(call, "add", Value(call.emit("relu", shifted.node)), float(value))
    above = elementwise(call, "gt", x, float(threshold))
    kept = elementwise(call, "mul", elementwise(call, "sub", x, float(value)), above)
    return elementwise(call, "add", kept, float(value))


# ---------------------------------------------------------------------------------------------- choice


def _chosen(call: Call, condition: Any, x: Any, y: Any) -> Value:
    """x where the condition is true, y elsewhere."""
    if isinstance(condition, torch.Tensor) and bool(condition.all()) == bool(condition.any()):
        # One of the two everywhere, as where NaN is replaced.
        picked = x if bool(condition.all()) else y
        if isinstance(picked, Value) and picked.shape == call.shape:
            return picked

    def chosen() -> Value:
        return elementwise(call, "where", _flag(call, condition), x, y)

    if isinstance(condition, torch.Tensor):
        truths = condition.bool()
        for value, number, places in ((y, x, truths), (x, y, ~truths)):
            if isinstance(value, Value) and not isinstance(number, Value):
                numbers = torch.as_tensor(number, dtype=call.result.dtype)
                if bool((numbers <= HIDES).all()):
                    return filled(call, value, places, numbers, chosen)
    under = chosen_under(call, condition, x, y)
    if under is not None:
        return under
    for operand in (x, y):
        known = torch.as_tensor(operand) if is_number(operand) else operand
        if isinstance(known, torch.Tensor) and not bool((known.double().abs() < NEVER).all()):
            raise call.refuse(
                "it chooses an infinite value (or a number that stands for one) where the choice depends on an input, or "
                "not in places alone",
                _BELOW if leaf_module(call.node) != "MultiheadAttention" else _PADDING,
            )
    return chosen()


_BELOW = "choose a finite number: before a softmax, one a little below the smallest score"
_PADDING = (
    "give the layer a finite number that it adds to the scores: key_padding_mask=-20.0 * mask.float(), with mask as it is "
    "now, adds -20 where it is true"
)


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


@rule("aten.index_put", "aten._unsafe_index_put")
def index_put(call: Call, x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """One number written under a mask that depends on an input, as a choice; other writes are linear in the values."""
    mask = indices[0] if len(indices) == 1 else None
    if not isinstance(mask, Value) or mask.dtype != torch.bool:
        return by_matrix(call, (x, indices, values, accumulate), {})
    number = None if isinstance(values, Value) else scalar(values)
    if number is None:
        raise NoRule
    shape = (*mask.shape, *(1,) * (len(call.shape) - mask.rank))
    mask = replace(mask, node=call.reshaped(mask.node, shape))
    if accumulate:
        return elementwise(call, "add", x, elementwise(call, "mul", mask, number))
    return _chosen(call, mask, number, x)
