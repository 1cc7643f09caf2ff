"""The general way for functions of one value: an activation whose meaning is the torch function itself.

Each call of an op of `POINTWISE` becomes an activation named after the op and its numbers (`torch_elu`,
`torch_softshrink_lambd_0p2`), which torch evaluates in double precision and which is fitted on the range in the
calibration, like any function that a user registers. Corners are in the table, or are searched for on a grid.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from heliograph import functions
from heliograph.frontends.torch.refusals import REFUSED
from heliograph.frontends.torch.source import short_name
from heliograph.frontends.torch.values import Call, NoRule, Rule, Value, is_number, rule, scalar
from heliograph.functions import Family, Function
from heliograph.ir import Array
from heliograph.ir.ops.activations import define_activation

Corners: TypeAlias = "Callable[..., Sequence[float]]"


def _none(*args: Any, **kwargs: Any) -> Sequence[float]:
    return ()


def _at(*points: float) -> Corners:
    return lambda *args, **kwargs: points


def _both(default: float) -> Corners:
    return lambda lambd=default: (-float(lambd), float(lambd))


# Functions of one value, by their names in torch, with the points where their slopes jump (None: these are searched for).
# Any other op that torch marks as elementwise is one too, unless it jumps; its corners are searched for.
POINTWISE: Mapping[str, Corners | None] = {
    "elu": lambda alpha=1, scale=1, input_scale=1: () if alpha == scale == input_scale == 1 else (0.0,),
    "selu": _at(0.0),
    "celu": _none,
    "mish": _none,
    "hardswish": _at(-3.0, 3.0),
    "hardsigmoid": _at(-3.0, 3.0),
    "log_sigmoid": _none,
    "softshrink": _both(0.5),
    "rrelu": _at(0.0),
    "exp2": _none,
    "expm1": _none,
    "tan": _none,
    "sinh": _none,
    "cosh": _none,
    "asin": _none,
    "acos": _none,
    "atan": _none,
    "asinh": _none,
    "acosh": _none,
    "atanh": _none,
    "logit": None,
    "erfc": _none,
    "erfinv": _none,
    "lgamma": _none,
    "digamma": _none,
    "sinc": _none,
    "i0": _none,
    "special_entr": None,
    "special_erfcx": _none,
    "special_i0e": _at(0.0),
    "special_i1": _none,
    "special_i1e": _none,
    "special_log_ndtr": _none,
    "special_ndtr": _none,
    "special_ndtri": _none,
    "special_bessel_j0": _none,
    "special_bessel_j1": _none,
}
Run: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"

# The torch function of each activation that was registered here or in ways/fuse.py, by its name.
RUNS: dict[str, Run] = {}
# Corners are searched for within at least this distance of 0, in so many steps; and again on each smaller scale, down
# to the last one, where features are finer.
REACH, _GRID, _SCALE, _SMALLEST = 32.0, 8192, 16.0, 0.1
# How often a place is examined again, each time sixteen times finer; and the share of its bend that a corner must keep.
_LOOKS, _KEEPS = 4, 0.25
_LEAST_BEND = 1e-4
# At a jump the value changes by this many times its change beside the jump.
_JUMP = 100.0


def reach_of(numbers: Sequence[float], values: float) -> float:
    """The radius around 0 in which a function with these constants and values is examined; a power of two."""
    farthest = max([REACH, 1.25 * values, *(2.0 * abs(number) for number in numbers if math.isfinite(number))])
    return float(2.0 ** math.ceil(math.log2(farthest)))


def corners(evaluate: Callable[[Array], Array], reach: float = REACH) -> tuple[tuple[float, ...], bool]:
    """Where the slope or the value of a function jumps on [-reach, reach], and whether the value does at one of them.

    The second difference over the step is the jump of the slope at a corner, however small the step; where the function
    is smooth it shrinks with the step.
    """
    found: list[float] = []
    jumps, scale = False, reach
    while scale > _SMALLEST:
        step = 2 * scale / _GRID
        for place, jump in _corners_within(evaluate, scale):
            if all(abs(place - other) > step for other in found):
                found.append(place)
                jumps = jumps or jump
        scale /= _SCALE
    return tuple(sorted(found)), jumps


def _corners_within(evaluate: Callable[[Array], Array], scale: float) -> Iterator[tuple[float, bool]]:
    """Corners on [-scale, scale] that lie apart by more than the step there, each with whether it is a jump."""
    grid = np.linspace(-scale, scale, _GRID + 1) + scale / _GRID / 3
    step = 2 * scale / _GRID

    def bends(points: Array, h: float) -> Array:
        with np.errstate(all="ignore"):
            found = np.abs(evaluate(points - h) - 2 * evaluate(points) + evaluate(points + h)) / h
        return np.where(np.isfinite(found), found, 0.0)

    bend = bends(grid, step)
    peaks = np.flatnonzero((bend > _LEAST_BEND) & (bend >= np.roll(bend, 1)) & (bend > np.roll(bend, -1)))
    for place in peaks[np.argsort(-bend[peaks])][:64]:
        middle, h, first = grid[place], step, bend[place]
        for _ in range(_LOOKS):
            near = middle + np.linspace(-h, h, 65)
            h /= 16
            close = bends(near, h)
            middle = near[int(np.argmax(close))]
        if close.max() > _KEEPS * first:
            sides = evaluate(middle + 2 * h * np.array([-3.0, -1.0, 1.0, 3.0]))
            left, across, right = np.abs(np.diff(sides))
            yield _plain(float(middle), 2 * h), bool(across > _JUMP * (left + right) + 1e-9 * np.abs(sides).max())


def _plain(number: float, within: float) -> float:
    """The number with the fewest decimals within that distance."""
    for decimals in range(8):
        if abs(round(number, decimals) - number) <= within:
            return round(number, decimals)
    return number


def rule_by_tag(target: Any) -> Rule | None:
    """The rule of an op that is in no table and that torch marks as elementwise."""
    if torch.Tag.pointwise not in getattr(target, "tags", ()) or short_name(target) in REFUSED:
        return None
    return lambda call, x, *args, **kwargs: pointwise(call, x, args, kwargs)


@rule(*(f"aten.{name}" for name in POINTWISE))
def function_of_one_value(call: Call, x: Any, *args: Any, **kwargs: Any) -> Value:
    return pointwise(call, x, args, kwargs)


def pointwise(call: Call, x: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Value:
    """An activation with the meaning of the call's op, whose other arguments are numbers."""
    short = call.op.rsplit(".", 1)[-1]
    numbers = [_number(call, value) for value in args]
    named = {key: _number(call, value) for key, value in kwargs.items() if key != "generator"}
    if not isinstance(x, Value):
        raise call.refuse("one of its numbers depends on an input", "use numbers that are known")
    if isinstance(call.result, list | tuple):
        raise call.refuse(
            "it gives several values for each element", "write what is needed of it with other operations"
        )
    if short == "rrelu":
        # In evaluation it is a leaky ReLU with the mean slope.
        low, high = [*numbers, 0.125, 1 / 3][:2]
        return Value(call.emit("leaky_relu", x.node, negative_slope=(low + high) / 2))
    name = _registered(call, short, x, numbers, named)
    return Value(call.emit(name, x.node))


def _number(call: Call, value: Any) -> Any:
    if value is None or is_number(value) or isinstance(value, str):
        return value
    if isinstance(value, Value):
        raise call.refuse(
            "two of its operands depend on inputs, and an activation is a function of one value",
            "write it with sums, products and functions of one value",
        )
    number = scalar(value)
    if number is None:
        raise call.refuse(
            "it has another number for each element", "use one number, or write it with sums and products"
        )
    return number


def _registered(call: Call, short: str, x: Value, numbers: Sequence[Any], named: Mapping[str, Any]) -> str:
    """The name of the activation, which is in the table of functions from now on."""
    given = [*(str(value) for value in numbers), *(f"{key}_{value}" for key, value in named.items())]
    words = "_".join(re.sub(r"\W", "p", text.replace("-", "m")) for text in given)
    name = f"torch_{short}" + (f"_{words}" if words else "")
    target, boundary = call.target, POINTWISE.get(short)
    reach = REACH
    if boundary is None:
        known = [float(value) for value in (*numbers, *named.values()) if is_number(value)]
        reach = reach_of(known, call.reach.size(x.node))
        name += f"_to_{reach:g}" if reach > REACH else ""
    if functions.known(name) is not None:
        return name

    def run(x: torch.Tensor) -> torch.Tensor:
        return target(x, *numbers, **named)  # type: ignore[no-any-return]

    evaluate = in_numpy(run)
    points, jumps = corners(evaluate, reach) if boundary is None else (tuple(boundary(*numbers, **named)), False)
    if jumps:
        raise NoRule
    made = Function(name, evaluate, corners=tuple(sorted({point for point in points if math.isfinite(point)})))
    made_known(made, f"torch's {short}{f' ({words})' if words else ''}.", run)
    return name


def in_numpy(run: Run) -> Callable[[Array], Array]:
    """The same function of arrays, in double precision."""

    def evaluate(x: Array) -> Array:
        with torch.no_grad():
            values = run(torch.tensor(np.asarray(x), dtype=torch.float64))
        return np.asarray(values.double().numpy()).reshape(np.shape(x))

    return evaluate


def made_known(function: Function, doc: str, run: Run) -> None:
    """Register a function as an activation in the table of functions, and here as a torch computation."""
    RUNS[function.name] = run
    family = Family(function.name, lambda: function, doc)
    functions.add(family)
    define_activation(family)
