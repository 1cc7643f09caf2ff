"""Masks: constants of minus infinity, or so low that it makes no difference, that are added to scores before a softmax.

They mean that a place has no weight, and are not numbers of the program: they would be the ends of a range. A value that
such constants were added to has its mask beside it (`Value.hidden`). What moves elements or adds to them takes the mask
along, and the softmax leaves these places out. Anything else reads the numbers, where they are finite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from heliograph.errors import UnsupportedError
from heliograph.frontends.torch_values import Call, Hidden, Value, elementwise, parts

# A constant this low, added to scores, hides its place: exp(-60) is below the rounding of whatever float is beside it.
HIDES = -60.0
# The lowest number that still counts as a value; anything lower is meant as minus infinity.
LOWEST = -1e6
# Ops whose rules look at masks, ops that may multiply by a number, and ops that only move elements.
READS = frozenset(
    {
        "softmax",
        "_softmax",
        "special_softmax",
        "add",
        "sub",
        "masked_fill",
        "where",
        "maximum",
        "max",
        "clamp",
        "clamp_min",
    }
)
SCALES = frozenset({"mul", "div", "multiply", "divide", "true_divide"})
MOVES = frozenset(
    {
        *(
            "view",
            "reshape",
            "_unsafe_view",
            "view_copy",
            "_reshape_alias",
            "flatten",
            "unflatten",
            "squeeze",
            "unsqueeze",
        ),
        *("transpose", "permute", "swapaxes", "swapdims", "t", "mT", "movedim", "moveaxis", "expand", "expand_copy"),
        *(
            "clone",
            "contiguous",
            "alias",
            "detach",
            "to",
            "_to_copy",
            "type_as",
            "dropout",
            "slice",
            "select",
            "narrow",
        ),
    }
)


def hidden_places(constant: Any) -> torch.Tensor | None:
    """Where a constant hides what it is added to, or None: nowhere, or everywhere (then it is only a number)."""
    if not isinstance(constant, torch.Tensor) or not constant.is_floating_point():
        return None
    found = constant <= HIDES
    return found if bool(found.any()) and bool((constant[~found] > HIDES / 2).all()) else None


def added(call: Call, x: Value, constant: torch.Tensor, places: torch.Tensor) -> Value:
    """x with a constant added that hides these places."""
    rest = torch.where(places, torch.zeros_like(constant), constant)
    clean = elementwise(call, "add", replace(x, hidden=None), rest)
    if x.hidden is not None:
        clean = replace(clean, node=elementwise(call, "add", replace(x, node=x.hidden.node, hidden=None), rest).node)
    finite = bool((constant >= LOWEST).all()) and (x.hidden is None or x.hidden.finite)
    value = elementwise(call, "add", replace(x, hidden=None), constant) if finite else clean
    return covered(call, value, clean, places, x.hidden, finite)


def filled(call: Call, x: Value, places: torch.Tensor, number: float, value: Any) -> Value:
    """x with a very low number in these places; `value` makes it as numbers, where they are any."""
    shape = call.shape
    clean = x if x.hidden is None else replace(x, node=x.hidden.node, hidden=None)
    if call.torch_shape(x) != shape:
        clean = elementwise(call, "add", clean, torch.zeros(places.shape, dtype=torch.float64))
    finite = number >= LOWEST and (x.hidden is None or x.hidden.finite)
    return covered(call, value() if finite else clean, clean, places, x.hidden, finite)


def covered(call: Call, value: Value, clean: Value, places: torch.Tensor, before: Hidden | None, finite: bool) -> Value:
    """The value with these places hidden, and those that were before; `clean` has scores there."""
    shape = call.torch_shape(value)
    mask = places.expand(shape)
    if before is not None:
        mask = mask | before.places.expand(shape)
    return replace(value, hidden=Hidden(mask.clone(), clean.node, finite))


def summed(call: Call, x: Any, y: Any, op: str) -> Value:
    """The sum or difference of what may have hidden places."""
    made = elementwise(call, op, x, y)
    masks = [value for value in (x, y) if isinstance(value, Value) and value.hidden is not None]
    if not masks:
        return made
    pair = [replace(v, node=v.hidden.node) if isinstance(v, Value) and v.hidden is not None else v for v in (x, y)]
    clean = elementwise(call, op, *pair)
    finite = all(value.hidden.finite for value in masks)  # type: ignore[union-attr]
    for value in masks:
        assert value.hidden is not None
        made = covered(call, made, clean, value.hidden.places, made.hidden, finite)
    return made


def _scaled(call: Call, rule: Callable[..., Any], x: Any, number: Any) -> Value | None:
    """Scores times or divided by a number, after the mask; None where minus infinity might not remain so low."""
    if isinstance(number, torch.Tensor) and number.numel() == 1:
        number = number.item()
    if not isinstance(x, Value) or x.hidden is None or not isinstance(number, int | float):
        return None
    if not HIDES / LOWEST <= number <= LOWEST / HIDES or call.torch_shape(x) != call.shape:
        return None
    made: Value = rule(call, replace(x, hidden=None), number)
    clean = rule(call, replace(x, node=x.hidden.node, hidden=None), number)
    return replace(made, hidden=replace(x.hidden, node=clean.node))


def with_masks(call: Call, rule: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a rule makes of operands one of which has hidden places."""
    short = call.op.rsplit(".", 1)[-1]
    masked = [value for value in parts((args, kwargs), Value) if value.hidden is not None]
    lost = any(value.hidden is not None and not value.hidden.finite for value in masked)
    if not masked or short in READS:
        made = rule(call, *args, **kwargs)
        if lost and "softmax" not in short and all(value.hidden is None for value in parts(made, Value)):
            raise infinite(call)  # the rule turned it into numbers
        return made
    if lost and short in SCALES and len(args) == 2:
        scaled = _scaled(call, rule, *args)
        if scaled is not None:
            return scaled
    if short in MOVES and isinstance(args[0], Value) and args[0].hidden is not None:
        x, hidden = args[0], args[0].hidden
        made = rule(call, replace(x, hidden=None), *args[1:], **kwargs)
        clean = rule(call, replace(x, node=hidden.node, hidden=None), *args[1:], **kwargs)
        same = short in ("to", "_to_copy", "type_as")
        places = hidden.places if same else call.target(hidden.places, *args[1:], **kwargs)
        return replace(made, hidden=Hidden(places, clean.node, hidden.finite))
    if lost:
        raise infinite(call)
    return rule(call, *args, **kwargs)


def infinite(call: Call) -> UnsupportedError:
    """The error for an op that would compute with minus infinity."""
    return call.refuse(
        "minus infinity (or a number that stands for it) was written to some places of what it reads; that has a meaning "
        "before a softmax only",
        "write a finite number, or leave these places out",
    )
