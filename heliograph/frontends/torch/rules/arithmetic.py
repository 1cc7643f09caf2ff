"""Rules for arithmetic: sums, products, powers, matrix products, reductions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from heliograph import functions
from heliograph.frontends.torch.inputs.covers import times_huge
from heliograph.frontends.torch.inputs.masks import added, hidden_places, summed
from heliograph.frontends.torch.rules.decisions import either
from heliograph.frontends.torch.rules.statistics import inverse_length
from heliograph.frontends.torch.values import (
    Call,
    Value,
    axes_of,
    changes_in,
    elementwise,
    is_number,
    rule,
    scalar,
)
from heliograph.functions import Analytic, Family, Function
from heliograph.ir import Array
from heliograph.ir.ops.activations import define_activation

# ---------------------------------------------------------------------------------------------- elementwise


def scaled(call: Call, x: Any, factor: Any) -> Any:
    """x times a plain number; x itself where the number is 1."""
    if factor == 1:
        return x
    if isinstance(x, Value):
        return Value(call.emit("mul", x.node, call.constant_node(float(factor))))
    return x * factor


@rule("aten.add")
def add(call: Call, x: Any, other: Any, alpha: Any = 1) -> Value:
    if call.result.dtype == torch.bool:
        return either(call, x, other)
    return total(call, x, scaled(call, other, alpha))


def total(call: Call, x: Any, y: Any) -> Value:
    """The sum, where a constant of minus infinity hides places."""
    for value, constant in ((x, y), (y, x)):
        places = hidden_places(constant) if isinstance(value, Value) else None
        if places is not None:
            return added(call, value, constant, places)
    return summed(call, x, y, "add")


@rule("aten.sub", "aten.subtract")
def sub(call: Call, x: Any, other: Any, alpha: Any = 1) -> Value:
    if isinstance(x, Value) and isinstance(other, torch.Tensor):
        places = hidden_places(other * -alpha)
        if places is not None:
            return added(call, x, other * -alpha, places)
    return summed(call, x, scaled(call, other, alpha), "sub")


@rule("aten.rsub")
def rsub(call: Call, x: Any, other: Any, alpha: Any = 1) -> Value:
    return elementwise(call, "sub", other, scaled(call, x, alpha))


@rule("aten.neg", "aten.negative", "aten._neg_view")
def neg(call: Call, x: Any) -> Value:
    return Value(call.emit("neg", x.node))


@rule("aten.mul", "aten.multiply")
def mul(call: Call, x: Any, other: Any) -> Value:
    if is_number(other) and other == 1:
        # torch writes 1 / x as the reciprocal times 1.
        return Value(x.node)
    made = times_huge(call, x, other)
    return elementwise(call, "mul", x, other) if made is None else made


@rule("aten.div", "aten.divide", "aten.true_divide")
def div(call: Call, x: Any, other: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        raise call.refuse(f"rounding_mode={rounding_mode!r} rounds an encrypted value", "divide without rounding")
    if isinstance(other, Value):
        inverse = inverse_length(call, other)
        return elementwise(call, "div", x, other) if inverse is None else elementwise(call, "mul", x, inverse)
    divisor = other if isinstance(other, torch.Tensor) else torch.tensor(float(other), dtype=torch.float64)
    if bool((divisor == 0).any()):
        raise call.refuse("the divisor holds a zero", "remove the zero")
    factor = divisor.double().reciprocal()
    call.names.set(factor, f"{call.names.get(divisor, repr(scalar(divisor)))}.reciprocal")
    return elementwise(call, "mul", x, factor)


@rule("aten.hypot")
def hypot(call: Call, x: Any, other: Any) -> Value:
    squares = [elementwise(call, "mul", one, one) for one in (x, other)]
    total_ = elementwise(call, "add", *squares)
    return Value(call.emit("sqrt", total_.node))


@rule("aten.logaddexp")
def logaddexp(call: Call, x: Any, other: Any) -> Value:
    """log(exp(x) + exp(y)) as y + softplus(x - y)."""
    difference = elementwise(call, "sub", x, other)
    return elementwise(call, "add", other, Value(call.emit("softplus", difference.node)))


@rule("aten.xlogy", "aten.special_xlogy")
def xlogy(call: Call, x: Any, other: Any) -> Value:
    logarithm = Value(call.emit("log", other.node)) if isinstance(other, Value) else torch.log(other)
    return elementwise(call, "mul", x, logarithm)


@rule("aten.addcmul")
def addcmul(call: Call, x: Any, left: Any, right: Any, value: Any = 1) -> Value:
    product = left * right if not isinstance(left, Value) and not isinstance(right, Value) else None
    return elementwise(
        call, "add", x, scaled(call, elementwise(call, "mul", left, right) if product is None else product, value)
    )


@rule("aten.lerp")
def lerp(call: Call, x: Any, end: Any, weight: Any) -> Value:
    difference = elementwise(call, "sub", end, x)
    return elementwise(call, "add", x, elementwise(call, "mul", difference, weight))


@rule("aten.square")
def square(call: Call, x: Any) -> Value:
    return Value(call.emit("power", x.node, exponent=2))


_ROOTS = {-1.0: "reciprocal", 0.5: "sqrt", -0.5: "rsqrt"}


@rule("aten.pow", "aten.float_power")
def power(call: Call, x: Any, exponent: Any) -> Any:
    if isinstance(exponent, Value):
        base = scalar(x) if not isinstance(x, Value) else None
        if base is None or base <= 0:
            raise call.refuse(
                "the exponent depends on an input",
                "use a fixed exponent; only one positive number b may be raised to what is encrypted",
            )
        scaled = call.emit("mul", exponent.node, call.constant_node(math.log(base)))
        return Value(call.emit("exp", scaled))
    number = scalar(exponent)
    if number in _ROOTS:
        return Value(call.emit(_ROOTS[number], x.node))
    if number is None or not math.isfinite(number):
        raise call.refuse("a tensor of exponents has no rule", "use one exponent for all elements")
    if number != int(number):
        return Value(call.emit(_fractional_power(number), x.node))
    if number < 0:
        inverse = call.emit("reciprocal", x.node)
        return Value(call.emit("power", inverse, exponent=-int(number)))
    if number == 0:
        return torch.ones(call.shape, dtype=torch.float64)
    if number == 1:
        return Value(x.node)
    if number == 2 and x.node.op == "sqrt":
        return Value(x.node.inputs[0])
    return Value(call.emit("power", x.node, exponent=int(number)))


def _fractional_power(number: float) -> str:
    """The name of the activation x^number, on a range above zero."""
    name = "power_" + repr(number).replace("-", "m").replace(".", "p")
    if functions.known(name) is None:
        proof = Analytic(
            lambda mp, x: x**number,
            lambda a, b, y: float((b + y) ** number if number > 0 else a**number),
            positive=True,
        )

        def evaluate(x: Array) -> Array:
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.asarray(np.power(x, number))

        made = Function(name, evaluate, proof, increasing=number > 0)
        family = Family(name, lambda: made, f"x to the power {number:g}, on a range above zero.")
        functions.add(family)
        define_activation(family)
    return name


# ---------------------------------------------------------------------------------------------- reductions

# Sums of whole numbers leave these.
_WRAPS = (torch.int8, torch.uint8, torch.int16)


def _reduce(call: Call, op: str, x: Any, dims: Any, keepdim: bool) -> Value:
    return Value(call.emit(op, x.node, axes=axes_of(x, dims), keepdims=bool(keepdim)))


@rule("aten.mean")
def mean(call: Call, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return _reduce(call, "mean", x, dim, keepdim)


@rule("aten.sum")
def sum_(call: Call, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    if changes_in(call.result.dtype, x) or call.result.dtype in _WRAPS:
        raise call.refuse(
            f"it adds in {call.result.dtype}, which rounds the values or wraps their sum around",
            "leave dtype out, and convert after decryption",
        )
    return _reduce(call, "sum", x, dim, keepdim)
