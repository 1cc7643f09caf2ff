"""Masks that are encrypted: huge numbers in places that an input of zeros and ones decides, before a softmax.

`(1 - mask) * finfo.min`, `scores.masked_fill(mask == 0, -inf)` and attention under an encrypted mask of truth values all
mean that a hidden place has no weight. No ciphertext holds such a number. So the value has the number and its places
beside it (`Value.cover`) and is itself without them, until a softmax reads it: there the smallest number takes its place
that leaves a hidden place at most exp(-12) of the weight of the largest visible one, on the calibration samples or for
all scores that the ranges of the inputs allow. A number that is not lower than that is kept. Other ops read the number
itself, where it is one that a ciphertext can hold.

A row all of whose places are hidden has no such answer. It is refused where a calibration sample has one; in an encrypted
sample nobody sees it, and its weights are then those of the scores without the mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from heliograph.errors import UnsupportedError
from heliograph.frontends.torch.inputs.masks import LOWEST, MOVES, SCALES, added, hidden_places, summed, with_masks
from heliograph.frontends.torch.values import Call, Cover, Value, elementwise, is_number, parts, scalar
from heliograph.ir import Array

# A hidden place has at most exp(-DEPTH) of the weight of the largest visible place of its row.
DEPTH = 12.0
# What a comparison with torch takes instead, so that nothing of hidden places is left.
DEEP = 40.0
# Numbers from this on may stand for a mask; smaller ones are numbers of the program, as a score may be as large.
_HUGE = 1e3
# Nothing but a mask is multiplied by such a number, or chosen to be one.
NEVER = 1e30
# Scores that differ by more than this are given to no softmax.
_WIDEST = 1e4
# Numbers in place of huge ones end in this fraction, so that they are not merged with a constant of the model, which has
# another meaning.
_FRACTION = 1 / 1024
_NAME = "hidden_places"

_LOGICAL = frozenset({"index", "index_select", "repeat", "tile", "expand_as", "view_as", "reshape_as", "broadcast_to"})
_LIKE = frozenset({"expand_as", "view_as", "reshape_as", "type_as"})
_SPLITS = frozenset({"split", "split_with_sizes", "chunk", "unbind"})
_JOINS = frozenset({"cat", "concat", "concatenate", "stack"})
_FRESH = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})
_LARGER = frozenset({"maximum", "max", "fmax", "clamp", "clamp_min"})
_TYPES = frozenset({"to", "_to_copy", "type_as"})


def _short(call: Call) -> str:
    return call.op.rsplit(".", 1)[-1]


# ---------------------------------------------------------------------------------------------- zeros and ones


def as_flags(call: Call, args: Any, kwargs: Any, made: Any) -> Any:
    """A rule's result, marked where all of its elements are 0 or 1 because those of its operands are.

    A mask less 1, which masks are made of, has -1 where the mask is 0 as its cover.
    """
    # Of others these take the shape or the type alone.
    if _short(call) in ("sub", "subtract") and len(args) == 2 and not kwargs and _all_in(args[1], (1,)):
        mask = args[0]
        if isinstance(mask, Value) and mask.flag and mask.cover is None:
            return replace(_covered(call, torch.zeros(call.shape), opposite(call, mask), -1.0, False), dtype=made.dtype)
    values = list(parts(args[:1] if _short(call) in _LIKE else (args, kwargs), Value))
    if not values or not all(value.flag for value in values) or not _keeps_flags(call, args, kwargs):
        return made
    soft = any(value.soft for value in values)
    if isinstance(made, list | tuple):
        return [replace(one, flag=True, soft=soft) if isinstance(one, Value) else one for one in made]
    return replace(made, flag=True, soft=soft) if isinstance(made, Value) and made.cover is None else made


def _keeps_flags(call: Call, args: Any, kwargs: Any) -> bool:
    short = _short(call)
    if isinstance(call.result, torch.Tensor) and call.result.dtype == torch.bool:
        return True
    if short in MOVES | _LOGICAL | _SPLITS:
        return True
    if short in ("mul", "multiply"):
        return all(isinstance(part, Value) or _all_in(part, (0, 1)) for part in args)
    if short in _JOINS:
        return all(_all_in(part, (0, 1)) for part in parts(args[0], torch.Tensor))
    if short in ("rsub", "sub", "subtract"):
        one, flag = args[:2] if short != "rsub" else (args[1], args[0])
        return not kwargs and len(args) == 2 and isinstance(flag, Value) and _all_in(one, (1,))
    return False


def _all_in(operand: Any, numbers: tuple[int, ...]) -> bool:
    """Whether a known operand holds these numbers alone."""
    if isinstance(operand, Value):
        return False
    known = torch.as_tensor(operand)
    return bool(torch.isin(known, torch.tensor(numbers, dtype=known.dtype)).all())


def opposite(call: Call, flag: Value) -> Value:
    """1 where the flag is 0, and 0 where it is 1."""
    return replace(elementwise(call, "sub", 1, flag), dtype=flag.dtype, flag=True, soft=flag.soft)


def _either(call: Call, x: Value, y: Value) -> Value:
    if x.node is y.node:
        return x
    both = elementwise(call, "mul", x, y)
    total = elementwise(call, "sub", elementwise(call, "add", x, y), both)
    return replace(total, dtype=x.dtype, flag=True, soft=x.soft or y.soft)


# ---------------------------------------------------------------------------------------------- where masks begin


def chosen_under(call: Call, condition: Any, x: Any, y: Any) -> Value | None:
    """x where an encrypted condition of zeros and ones holds, else y, where one of the two is a huge number below zero.

    None in all other cases.
    """
    if not isinstance(condition, Value) or not condition.exact_flag:
        return None
    for number, other, holds in ((x, y, True), (y, x, False)):
        low = _low(number)
        if low is None:
            continue
        if isinstance(other, Value):
            # The mask itself, with the number in place of its ones.
            bare: Value | torch.Tensor = torch.zeros(call.shape) if other.node is condition.node and holds else other
        else:
            bare = torch.as_tensor(other).to(call.result.dtype).expand(call.shape)
        places = condition if holds else opposite(call, condition)
        return _covered(call, bare, places, low, filled=True)
    return None


def _low(number: Any) -> float | None:
    """The one huge number below zero that a known operand holds, or None."""
    if isinstance(number, Value):
        return None
    known = torch.as_tensor(number)
    if not known.numel() or bool((known > -_HUGE).any()) or bool((known != known.reshape(-1)[0]).any()):
        return None
    return float(known.reshape(-1)[0])


def times_huge(call: Call, x: Any, y: Any) -> Value | None:
    """The product of a mask and a huge number; None for other products."""
    for value, number in ((x, y), (y, x)):
        size = None if isinstance(number, Value) or not isinstance(value, Value) else scalar(number)
        if size is None or abs(size) < _HUGE:
            continue
        if value.flag:
            return _covered(call, torch.zeros(call.shape), value, size, filled=False)
        if abs(size) >= NEVER:
            raise call.refuse(
                f"it multiplies an encrypted value by {size:.3g}, as masks are made, and it is not known to be 0 or 1",
                "give calibration samples whose masks hold zeros and ones alone, or the mask as truth values (torch.bool)",
            )
    return None


def under(call: Call, scores: Any, places: Value, low: float, filled: bool = True) -> Value:
    """The scores with that number in these places."""
    cover = scores.cover if isinstance(scores, Value) else None
    if cover is None:
        return _covered(call, scores, places, low, filled)
    same = low == cover.low and filled and cover.filled
    return _covered(call, cover.bare, _either(call, cover.places, places), low if same else -math.inf, filled)


def _covered(call: Call, bare: Value | torch.Tensor, places: Value, low: float, filled: bool) -> Value:
    """A value with that number in these places, in the shape that both have together."""
    shape = tuple(np.broadcast_shapes(tuple(bare.shape), places.shape))
    if isinstance(bare, Value):
        if bare.shape != shape:
            bare = elementwise(call, "add", bare, torch.zeros(shape))
        node = bare.node
    else:
        bare = bare.expand(shape)
        node = places.node if places.shape == shape else call.emit("broadcast", places.node, shape=shape)
    return Value(node, cover=Cover(bare, places, low, filled))


# ---------------------------------------------------------------------------------------------- what ops do with them


def plus(call: Call, x: Any, y: Any, op: str = "add") -> Value:
    """The sum of two operands, of which one or both have a cover."""
    if op == "sub" and isinstance(y, Value) and y.cover is not None:
        turned = _negative(call, y)
        if turned is None:
            return plus(call, x, as_numbers(call, y), op)
        y, op = turned, "add"
    covers = [value.cover for value in (x, y) if isinstance(value, Value) and value.cover is not None]
    if not covers:
        return summed(call, x, y, op)
    left, right = (value.cover.bare if isinstance(value, Value) and value.cover else value for value in (x, y))
    bare = _sum(call, left, right, op)
    made = _covered(call, bare, covers[0].places, covers[0].low, covers[0].filled)
    if covers[0].filled:
        # Something is added to the number that was written there.
        assert made.cover is not None
        made = replace(made, cover=replace(made.cover, low=-math.inf))
    for cover in covers[1:]:
        made = under(call, made, cover.places, cover.low, cover.filled)
    return made


def _sum(call: Call, x: Any, y: Any, op: str) -> Any:
    """The sum or difference of operands without covers."""
    if not isinstance(x, Value) and not isinstance(y, Value):
        return x + y if op == "add" else x - y
    for value, known, adds in ((x, y, True), (y, x, op == "add")):
        if not isinstance(value, Value) or isinstance(known, Value) or not adds:
            continue
        known = torch.as_tensor(known)
        if not bool(known.any()) and np.broadcast_shapes(tuple(known.shape), value.shape) == value.shape:
            return value
        offset = known if op == "add" else -known
        places = hidden_places(offset)
        if places is not None:
            return added(call, value, offset, places)
    return summed(call, x, y, op)


def _negative(call: Call, x: Value) -> Value | None:
    """-x for a mask alone; None where it has scores beside it."""
    cover = x.cover
    if cover is None or isinstance(cover.bare, Value) or bool(cover.bare.any()):
        return None
    return replace(x, cover=replace(cover, low=-cover.low))


def with_covers(call: Call, rule: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result of a rule on operands, some of which have covers."""
    short = _short(call)
    covered = [value for value in parts((args, kwargs), Value) if value.cover is not None]
    if not covered or short.startswith("_assert") or short in _FRESH:
        return with_masks(call, rule, args, kwargs)
    first: Any = args[0]
    made = None
    if short in ("softmax", "_softmax", "special_softmax"):
        axis = first.axis(args[1] if len(args) > 1 else kwargs["dim"])
        return with_masks(call, rule, (settled(call, first, axis), *args[1:]), kwargs)
    if "scaled_dot_product_attention" in short and all(value is _mask(args, kwargs) for value in covered):
        return rule(call, *args, **kwargs)
    if short in ("add", "sub", "subtract") and len(args) == 2 and kwargs.get("alpha", 1) == 1:
        return plus(call, args[0], args[1], "add" if short == "add" else "sub")
    if short == "neg":
        made = _negative(call, first)
    elif short in MOVES and isinstance(first, Value) and first.cover is not None:
        made = _moved(call, rule, args, kwargs)
    elif short in SCALES and len(args) == 2 and not kwargs:
        made = _scaled(call, rule, *args)
    elif short in _LARGER:
        made = _bounded(call, args, kwargs)
    elif short in ("where", "masked_fill") and len(args) == 3:
        condition, x, y = args if short == "where" else (args[1], args[2], args[0])
        made = _chosen(call, rule, condition, x, y)
    if made is not None:
        return made
    args, kwargs = _mapped((args, kwargs), lambda value: as_numbers(call, value) if value.cover is not None else value)
    return with_masks(call, rule, args, kwargs)


def _mask(args: Any, kwargs: Any) -> Any:
    return args[3] if len(args) > 3 else kwargs.get("attn_mask")


def _mapped(arguments: Any, change: Callable[[Value], Any]) -> Any:
    if isinstance(arguments, Value):
        return change(arguments)
    if isinstance(arguments, dict):
        return {name: _mapped(item, change) for name, item in arguments.items()}
    return (
        type(arguments)(_mapped(item, change) for item in arguments) if type(arguments) in (list, tuple) else arguments
    )


def _bare(call: Call, rule: Callable[..., Any], bare: Any, args: Any, kwargs: Any) -> Any:
    """What the rule, or torch, makes of the first operand without its cover."""
    if isinstance(bare, Value):
        return with_masks(call, rule, (bare, *args), kwargs)
    return call.target(bare, *args, **kwargs)


def _moved(call: Call, rule: Callable[..., Any], args: Any, kwargs: Any) -> Value:
    x, rest = args[0], args[1:]
    bare, places = _bare(call, rule, x.cover.bare, rest, kwargs), x.cover.places
    if _short(call) not in _TYPES:
        if places.shape != x.shape:
            places = replace(places, node=call.emit("broadcast", places.node, shape=x.shape))
        moved = rule(call, replace(places, dtype=x.dtype), *rest, **kwargs)
        places = replace(places, node=moved.node)
    return _covered(call, bare, places, x.cover.low, x.cover.filled)


def _scaled(call: Call, rule: Callable[..., Any], x: Any, number: Any) -> Value | None:
    factor = None if isinstance(number, Value) else scalar(number)
    if factor is None or not isinstance(x, Value) or x.cover is None or not factor or not math.isfinite(factor):
        return None
    factor = factor if _short(call) in ("mul", "multiply") else 1 / factor
    known = not isinstance(x.cover.bare, Value) and not bool(x.cover.bare.any())
    if (factor < 0 and not known) or tuple(call.shape) != x.shape:
        return None
    bare = x.cover.bare if known else _bare(call, rule, x.cover.bare, (number,), {})
    return _covered(call, bare, x.cover.places, x.cover.low * factor, x.cover.filled)


def _bounded(call: Call, args: Any, kwargs: Any) -> Value | None:
    """The larger of a value and a bound below all scores."""
    named = {
        "other": args[1] if len(args) > 1 else None,
        "min": None,
        "max": args[2] if len(args) > 2 else None,
        **kwargs,
    }
    x, other = args[0], named["other"] if named["other"] is not None else named["min"]
    if isinstance(other, Value):
        x, other = other, x
    bound = None if isinstance(other, Value) or other is None else scalar(other)
    if bound is None or bound > LOWEST or named["max"] is not None or not isinstance(x, Value) or x.cover is None:
        return None
    return replace(x, cover=replace(x.cover, low=max(x.cover.low, bound) if math.isfinite(x.cover.low) else -math.inf))


def _chosen(call: Call, rule: Callable[..., Any], condition: Any, x: Any, y: Any) -> Value | None:
    """x where the condition holds and y elsewhere, one of which has a cover."""
    mine, other = (x, y) if isinstance(x, Value) and x.cover is not None else (y, x)
    cover = mine.cover if isinstance(mine, Value) else None
    if cover is None or (isinstance(other, Value) and other.cover is not None):
        return None
    if isinstance(condition, Value) and not condition.exact_flag:
        return None
    low = _low(other)
    if isinstance(condition, Value):
        there = condition if mine is x else opposite(call, condition)
        if low is not None:
            return under(call, mine, opposite(call, there), low)
        places = replace(elementwise(call, "mul", cover.places, there), flag=True)
    else:
        known = condition if mine is x else ~condition
        places = cover.places
        if low is None:
            places = replace(elementwise(call, "mul", places, known.double()), flag=True)
    pair = (cover.bare, other) if mine is x else (other, cover.bare)
    tensors = [torch.as_tensor(one) if is_number(one) else one for one in pair]
    if any(isinstance(one, Value) for one in (*tensors, condition)):
        given = (condition, *tensors) if _short(call) == "where" else (tensors[1], condition, tensors[0])
        bare = with_masks(call, rule, given, {})
    else:
        bare = torch.where(condition, *tensors)
    return _covered(call, bare, places, cover.low if low is None else -math.inf, cover.filled)


def as_numbers(call: Call, x: Value) -> Value:
    """The value as numbers, where a ciphertext can hold them; an UnsupportedError elsewhere."""
    cover = x.cover
    assert cover is not None
    if not abs(cover.low) <= -LOWEST:
        raise _unreadable(call, cover.low)
    number = elementwise(call, "mul", cover.places, cover.low)
    if not isinstance(cover.bare, Value) and not bool(cover.bare.any()):
        made = number if number.shape == x.shape else elementwise(call, "add", number, cover.bare)
    elif cover.filled:
        shown = opposite(call, cover.places)
        made = elementwise(call, "add", elementwise(call, "mul", _known(cover.bare), shown), number)
    else:
        made = summed(call, _known(cover.bare), number, "add")
    return replace(made, dtype=x.dtype)


def _known(bare: Value | torch.Tensor) -> Value | torch.Tensor:
    return bare if isinstance(bare, Value) else bare.double()


def _unreadable(call: Call, low: float) -> UnsupportedError:
    number = f"{low:.3g}" if math.isfinite(low) else "minus infinity"
    return call.refuse(
        f"{number} was written to, or added in, places that an encrypted mask decides; that has a meaning before a softmax "
        "only",
        "apply the softmax to the masked scores directly, or use a finite number, for example -20.0 * (1 - mask)",
    )


# ---------------------------------------------------------------------------------------------- before a softmax


def settled(call: Call, x: Value, axis: int) -> Value:
    """The scores that a softmax over that axis of the node is given: with a finite number in the hidden places."""
    cover = x.cover
    if cover is None:
        return x
    finite = abs(cover.low) <= -LOWEST
    if cover.low > 0:
        return as_numbers(call, x)
    bare = cover.bare if isinstance(cover.bare, Value) else Value(call.constant_node(cover.bare.double()))
    excess = _excess(call, bare, cover.places, axis)
    if excess is None:
        if finite:
            return as_numbers(call, x)
        raise call.refuse(
            "an encrypted mask hides places, and nothing is known of the scores beside it: the number that hides them is "
            "chosen by the scores",
            "give calibration samples, with masks as they occur",
        )
    depth = math.ceil(max(0.0, excess) + DEPTH) + _FRACTION
    if finite and -cover.low <= depth:
        return as_numbers(call, x)
    name = call.constant(torch.tensor(-depth, dtype=torch.float64), _NAME)
    places = x.shape[axis]
    call.softened[str(name)] = call.softened.get(str(name), 0) + places
    offset = Value(call.emit("mul", cover.places.node, call.emit("constant", value=name)))
    return replace(summed(call, bare, offset, "add"), dtype=x.dtype)


def _excess(call: Call, bare: Value, places: Value, axis: int) -> float | None:
    """How far a score in a hidden place lies above the largest visible one of its row, at most; None if nothing is known.

    An UnsupportedError is raised for a row all of whose places are hidden.
    """
    low, dead = np.zeros(bare.shape), np.zeros(bare.shape, dtype=bool)
    node = bare.node
    if bare.hidden is not None:
        offsets = np.broadcast_to(bare.hidden.offsets.double().numpy(), bare.shape)
        node, dead = bare.hidden.exact, offsets < LOWEST
        low = np.where(dead, 0.0, offsets)
    scores, hides = call.reach.on_samples(node), call.reach.on_samples(places.node)
    if scores is None or hides is None:
        return _spread(call, node, low, dead, axis)
    count = max(len(scores), len(hides))
    shape = (count, *bare.shape)
    scores = np.moveaxis(np.broadcast_to(scores + low, shape), axis + 1, -1)
    hides = np.moveaxis(
        np.broadcast_to(hides.reshape(len(hides), *(1,) * (bare.rank - places.rank), *places.shape), shape),
        axis + 1,
        -1,
    )
    dead = np.moveaxis(np.broadcast_to(dead, shape), axis + 1, -1)
    hidden, visible = ~dead & (hides > 0.5), ~dead & (hides <= 0.5)
    none = hidden.any(-1) & ~visible.any(-1)
    if none.any():
        row = tuple(int(place) for place in np.argwhere(none)[0])
        raise call.refuse(
            f"a calibration sample's mask hides all places of a row (row {row[-1]}), and what torch gives there depends on "
            "how the mask is made: zeros, equal weights or NaN",
            "leave one place of each row visible in every sample; before causal attention, pad samples behind their end",
        )
    highest = np.where(hidden, scores, -np.inf).max(-1)
    least = np.where(visible, scores, -np.inf).max(-1)
    known = hidden.any(-1)
    if known.any():
        return float((highest - least)[known].max())
    # No sample hides a place, and later ones may hide any.
    some = visible.any(-1)
    spread = np.where(visible, scores, -np.inf).max(-1) - np.where(visible, scores, np.inf).min(-1)
    return float(spread[some].max(initial=0.0))


def _spread(call: Call, node: Any, low: Array, dead: Array, axis: int) -> float | None:
    """How far two scores of a row may lie apart, by the ranges of the inputs; None if that is not known."""
    bounds = call.reach.intervals(node)
    if bounds is None:
        return None
    least, most = (np.moveaxis(end.reshape(low.shape) + low, axis, -1) for end in bounds)
    dead = np.moveaxis(dead, axis, -1)
    with np.errstate(invalid="ignore"):
        apart = np.where(dead, -np.inf, most).max(-1) - np.where(dead, np.inf, least).min(-1)
    widest = float(apart[np.isfinite(apart)].max(initial=0.0))
    return widest if np.isfinite(least).all() and np.isfinite(most).all() and widest <= _WIDEST else None
