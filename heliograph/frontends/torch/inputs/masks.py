"""Masks: numbers far below the scores that are added to them, or written over them, before a softmax.

Such a number may mean that its place has no weight, or it may be a number like any other; that depends on the scores
and on the axis of the softmax. So a value to which low constants were added has both beside it (`Value.hidden`): the
scores without them, and the constants. Ops that move elements, add to them or scale them take both along, and the
softmax decides, line by line (`shown`): a place is hidden where no score comes near, which calibration samples or
declared ranges of the inputs have to show. Without either, and where intervals are wider, scores are assumed to lie
within `_FAR` of zero, so that a constant of -1e4 hides. A constant that does not hide is a number of the program. Ops
other than a softmax read the numbers, where they are finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from heliograph.errors import UnsupportedError
from heliograph.frontends.torch.values import Call, Hidden, Value, elementwise, parts
from heliograph.ir import Array, Node

# A place this far below the largest of its line has no weight: exp(-30) is below the precision of any answer. Constants
# above this can never hide a place among scores of similar size.
HIDES = -30.0
# The lowest number that still counts as a value; a lower one stands for minus infinity. No softmax is computed over
# scores that differ by so much.
LOWEST = -1e6
# Scores about which nothing is known are assumed to lie within this of zero: then -1e4 hides.
_FAR = (1e4 + HIDES) / 2
# A score counts as kept if torch's rounding beside the constant changes it by no more than this.
_ROUNDED = 2.0**-8
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
# Masks are scaled by numbers from this to its inverse.
_LEAST = 6e-5


def hidden_places(constant: Any) -> torch.Tensor | None:
    """The places where a constant might hide the score to which it is added; None if there are none."""
    if not isinstance(constant, torch.Tensor) or not constant.is_floating_point():
        return None
    found = constant <= HIDES
    return found if bool(found.any()) else None


def added(
    call: Call, x: Value, constant: torch.Tensor, places: torch.Tensor, dtype: torch.dtype | None = None
) -> Value:
    """x plus a constant that is low in these places; torch adds in `dtype`, by default the result's."""
    low = torch.where(places, constant, torch.zeros_like(constant)).to(dtype or call.result.dtype)
    rest = torch.where(places, torch.zeros_like(constant), constant)
    bare = replace(x, hidden=None)
    if x.hidden is None:
        clean = exact = elementwise(call, "add", bare, rest)
    else:
        clean = elementwise(call, "add", replace(bare, node=x.hidden.node), rest)
        exact = elementwise(call, "add", replace(bare, node=x.hidden.exact), rest)
    finite = bool((constant >= LOWEST).all()) and (x.hidden is None or x.hidden.finite)
    value = elementwise(call, "add", bare, constant) if finite else clean
    return covered(call, value, Hidden(low, torch.zeros_like(places), clean.node, exact.node, finite), x.hidden)


def filled(call: Call, x: Value, places: torch.Tensor, numbers: torch.Tensor, value: Callable[[], Value]) -> Value:
    """x with very low numbers in these places; `value` gives the result as numbers, where they are finite."""
    if not bool(places.any()) and x.shape == call.shape:
        return x
    before = x.hidden
    clean = replace(x, node=x.node if before is None else before.node, hidden=None)
    base = replace(x, node=x.node if before is None else before.exact, hidden=None)
    shape = call.shape
    if x.shape != shape:
        nothing = torch.zeros(places.shape, dtype=torch.float64)
        clean, base = (elementwise(call, "add", one, nothing) for one in (clean, base))
    exact = elementwise(call, "mul", base, (~places).to(torch.float64))
    low = torch.where(places, numbers, torch.zeros_like(numbers)).to(call.result.dtype)
    finite = bool((numbers >= LOWEST).all()) and (before is None or before.finite)
    if before is not None:
        old = before.offsets.expand(shape)
        before = replace(before, offsets=torch.where(places.expand(shape), torch.zeros_like(old), old))
    made = value() if finite else clean
    return covered(call, made, Hidden(low, places, clean.node, exact.node, finite), before)


def covered(call: Call, value: Value, hidden: Hidden, before: Hidden | None) -> Value:
    """The value with these constants beside it, on top of the earlier ones."""
    shape = value.shape
    offsets, filled = hidden.offsets.expand(shape), hidden.filled.expand(shape)
    if before is not None:
        offsets = offsets + before.offsets.expand(shape)
        filled = filled | before.filled.expand(shape)
    return replace(value, hidden=replace(hidden, offsets=offsets.clone(), filled=filled.clone()))


def hiding(call: Call, x: Value, places: torch.Tensor, dtype: torch.dtype) -> Value:
    """x with minus infinity in these places."""
    infinite = torch.zeros(places.shape, dtype=dtype).masked_fill(places, -math.inf)
    return covered(call, x, Hidden(infinite, torch.zeros_like(places), x.node, x.node, False), None)


def floored(call: Call, x: Value, bound: float) -> Value:
    """The larger of x and a number below all scores, which replaces anything lower."""
    hidden = x.hidden
    if hidden is None or not bool((hidden.offsets < bound).any()):
        return x
    places = hidden.offsets < bound
    exact = elementwise(call, "mul", replace(x, node=hidden.exact, hidden=None), (~places).to(torch.float64))
    offsets = torch.where(places, torch.full_like(hidden.offsets, bound), hidden.offsets)
    return replace(x, hidden=replace(hidden, offsets=offsets, filled=hidden.filled | places, exact=exact.node))


def summed(call: Call, x: Any, y: Any, op: str) -> Value:
    """The sum or difference of operands that may have low constants beside them; a subtrahend's are numbers."""
    if op == "sub" and isinstance(y, Value) and y.hidden is not None:
        if not y.hidden.finite:
            raise infinite(call)
        y = replace(y, hidden=None)
    made = elementwise(call, op, x, y)
    masks = [value.hidden for value in (x, y) if isinstance(value, Value) and value.hidden is not None]
    if not masks:
        return made

    def of(which: str) -> Node:
        pair = [
            replace(v, node=getattr(v.hidden, which)) if isinstance(v, Value) and v.hidden is not None else v
            for v in (x, y)
        ]
        return elementwise(call, op, *pair).node

    clean, exact, finite = of("node"), of("exact"), all(mask.finite for mask in masks)
    hidden = None
    for mask in masks:
        # Something is added to the numbers that were written there.
        part = replace(mask, node=clean, exact=exact, finite=finite, filled=torch.zeros_like(mask.filled))
        made = covered(call, made, part, hidden)
        hidden = made.hidden
    return made


def _scaled(call: Call, rule: Callable[..., Any], x: Any, number: Any) -> Value | None:
    """Scores times or divided by a number, after the mask; None where minus infinity might not remain that low."""
    if isinstance(number, torch.Tensor) and number.numel() == 1:
        number = number.item()
    if not isinstance(x, Value) or x.hidden is None or not isinstance(number, int | float):
        return None
    if not _LEAST <= number <= 1 / _LEAST or x.shape != call.shape:
        return None
    hidden = x.hidden
    made: Value = rule(call, replace(x, hidden=None), number)
    clean, exact = (rule(call, replace(x, node=node, hidden=None), number).node for node in (hidden.node, hidden.exact))
    return replace(made, hidden=replace(hidden, node=clean, exact=exact, offsets=call.target(hidden.offsets, number)))


def with_masks(call: Call, rule: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result of a rule on operands, one of which has low constants beside it."""
    short = call.op.rsplit(".", 1)[-1]
    masked = [value for value in parts((args, kwargs), Value) if value.hidden is not None]
    lost = any(value.hidden is not None and not value.hidden.finite for value in masked)
    if not masked or short in READS:
        made = rule(call, *args, **kwargs)
        if lost and "softmax" not in short and all(value.hidden is None for value in parts(made, Value)):
            raise infinite(call)  # the rule turned it into numbers
        return made
    if short in SCALES and len(args) == 2 and not kwargs:
        scaled = _scaled(call, rule, *args)
        if scaled is not None:
            return scaled
    if short in MOVES and isinstance(args[0], Value) and args[0].hidden is not None:
        x, hidden = args[0], args[0].hidden
        made, clean, exact = (
            rule(call, replace(x, node=node, hidden=None), *args[1:], **kwargs)
            for node in (x.node, hidden.node, hidden.exact)
        )
        if short not in ("to", "_to_copy", "type_as"):
            offsets, filled = (call.target(one, *args[1:], **kwargs) for one in (hidden.offsets, hidden.filled))
            hidden = replace(hidden, offsets=offsets, filled=filled)
        return replace(made, hidden=replace(hidden, node=clean.node, exact=exact.node))
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


# ---------------------------------------------------------------------------------------------- the view of a softmax


@dataclass(frozen=True, slots=True)
class Shown:
    """The softmax's view of its operand. Arrays have its axis last; without it they have one entry a line.

    node: the scores; in hidden places they mean nothing.
    visible: the places that are read.
    known: the lines whose weights are the same for all inputs.
    weights: the weights of these lines.
    """

    node: Node
    visible: Array
    known: Array
    weights: Array


def shown(call: Call, x: Value, axis: int, zeros: bool) -> Shown:
    """The softmax's view, over that axis of the node, of x, which has low constants beside it.

    A line of minus infinity everywhere has weights of zero with `zeros`, as in torch's attention. Elsewhere torch gives
    NaN there, and an UnsupportedError is raised. Constants in all places of a line change nothing but the rounding: its
    weights are the softmax of its scores, or uniform where constants so large round the scores away.
    """
    assert x.hidden is not None
    offsets, filled = (np.moveaxis(part, axis, -1) for part in _constants(x))
    low = offsets < 0
    whole = low.all(-1, keepdims=True)
    top = np.where(whole, offsets.max(-1, keepdims=True), 0.0)
    dead = np.isneginf(top)
    if dead.any() and not zeros:
        raise _all_hidden(call, dead[..., 0])
    with np.errstate(invalid="ignore"):
        relative = np.where(dead, 0.0, offsets - top)
    top = np.where(dead, 0.0, top)
    visible, known = ~low | dead, dead[..., 0]
    unclear = (low & (relative >= LOWEST)) & ~dead
    if unclear.any():
        size = np.zeros(offsets.shape)
        visible, size = _near(call, x.hidden.exact, relative, axis, filled)
        visible |= dead
        bare = known | _rounded_away(call, offsets, filled, visible, whole & ~dead, size, x.hidden.offsets.dtype)
    else:
        bare = known
    with np.errstate(over="ignore"):
        shares = np.where(visible, np.exp(np.where(visible, relative, -np.inf)), 0.0)
    weights = np.where(dead, 0.0, shares / shares.sum(-1, keepdims=True))
    node = x.hidden.node
    if x.hidden.finite and visible.all() and not whole.any():
        node = x.node
    elif (low & visible & ~bare[..., np.newaxis]).any():
        # Some of the constants are numbers.
        node, shift = x.hidden.exact, np.where(visible & low, relative, 0.0)
        if shift.any():
            shift = np.ascontiguousarray(np.moveaxis(shift, -1, axis))
            node = call.emit("add", node, call.constant_node(torch.from_numpy(shift)))
    return Shown(node, visible, bare, weights)


def _constants(x: Value) -> tuple[Array, Array]:
    """The constants, and the places where they replace the score, in the shape of the node."""
    assert x.hidden is not None
    offsets, filled = (np.broadcast_to(part.double().numpy(), x.shape) for part in (x.hidden.offsets, x.hidden.filled))
    return offsets, filled > 0


def _near(call: Call, exact: Node, relative: Array, axis: int, filled: Array) -> tuple[Array, Array]:
    """The places that come near the largest of their line, and the largest absolute score in each."""
    values = call.reach.on_samples(exact)
    if values is not None:
        scores = np.moveaxis(np.broadcast_to(values, (values.shape[0], *exact.type.shape)), axis + 1, -1)  # type: ignore[union-attr]
        sums = scores + relative
        highest, least = sums.max(0), sums.max(-1, keepdims=True).min(0)
        size = np.abs(scores).max(0)
    else:
        low, high = np.full(relative.shape, -_FAR), np.full(relative.shape, _FAR)
        bounds = call.reach.intervals(exact)
        if bounds is not None:
            ends = [np.moveaxis(end.reshape(exact.type.shape), axis, -1) for end in bounds]  # type: ignore[union-attr]
            low, high = np.maximum(low, ends[0]), np.minimum(high, ends[1])
        low, high = np.where(filled, 0.0, low), np.where(filled, 0.0, high)
        highest, least = high + relative, (low + relative).max(-1, keepdims=True)
        size = np.maximum(np.abs(low), np.abs(high))
    return (relative == 0.0) | (highest > least + HIDES) & (relative >= LOWEST), size


def _rounded_away(
    call: Call, offsets: Array, filled: Array, visible: Array, whole: Array, size: Array, dtype: torch.dtype
) -> Array:
    """The lines with low constants everywhere in which rounding to that dtype leaves nothing of the scores."""
    with np.errstate(divide="ignore"):
        step = np.exp2(np.floor(np.log2(-np.where(offsets < 0, offsets, -1.0)))) * torch.finfo(dtype).eps
    gone = filled | (size < step / 4)
    kept = ~filled & (step <= _ROUNDED)
    lost: Array = (whole & (gone | ~visible)).all(-1)
    unclear = whole[..., 0] & ~lost & (visible & ~filled & ~kept).any(-1)
    if unclear.any():
        raise call.refuse(
            f"the constants that are added to {_lines(unclear)} are so large that {str(dtype).removeprefix('torch.')} "
            "rounds the scores",
            "leave one place of each row visible, or add a smaller number, for example -1e4; calibration samples may "
            "show that nothing is left of the scores",
        )
    return lost


def _lines(which: Array) -> str:
    """Lines of a softmax in words, a few of them by their places."""
    while which.ndim > 1 and which.shape[0] == 1:
        which = which[0]
    if not which.ndim:
        return "all places"
    found = np.argwhere(which)
    named = [str(int(place[0])) if len(place) == 1 else str(tuple(int(i) for i in place)) for place in found[:3]]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"all places of row{'s' if len(found) > 1 else ''} {', '.join(named)}{more}"


def _all_hidden(call: Call, lines: Array) -> UnsupportedError:
    return call.refuse(
        f"{_lines(lines)} (of {lines.size}) hold minus infinity, and torch gives NaN there",
        "leave one place of each row visible; or write a finite number, for which torch gives equal weights; "
        "scaled_dot_product_attention, and nn.MultiheadAttention with need_weights=False, give zeros there",
    )
