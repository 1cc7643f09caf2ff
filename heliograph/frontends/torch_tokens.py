"""Inputs of whole numbers that choose rows of a table: the program takes them one-hot, and a lookup is a linear map.

The client makes the one-hot vectors from the numbers by itself (`TensorSpec.classes`). Whatever a model computes from the
numbers alone (sums with offsets, remainders, bounds) changes which row each class chooses, and nothing else: `Tokens` holds
the number that each class stands for by now. A class is taken if torch would take the number in every lookup.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from heliograph.errors import UnsupportedError
from heliograph.frontends.torch_layers import matrix_times
from heliograph.frontends.torch_source import short_name
from heliograph.frontends.torch_values import UNSEEN, Call, Merges, Mixes, Value, parts, rule_of
from heliograph.ir import Location, Node, shape_of

# Ops that pass whole numbers on unchanged.
_SAME = frozenset({"clone", "detach", "alias", "contiguous", "lift_fresh_copy"})
# Ops that change the type.
_TYPES = frozenset({"to", "_to_copy", "type_as", "float", "long"})
# Ops that move numbers, with the places of their arguments that name axes.
_MOVES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "view_copy", "_reshape_alias", "flatten", "unflatten"), ()),
    **dict.fromkeys(("expand", "expand_copy", "permute", "squeeze"), ()),
    **dict.fromkeys(
        ("select", "slice", "narrow", "unsqueeze", "flip", "index_select", "unbind", "split", "chunk"), (1,)
    ),
    **dict.fromkeys(("transpose", "swapaxes"), (1, 2)),
}
_JOINS = frozenset({"cat", "stack"})
# Lookups, with the places of the table and of the numbers.
_LOOKUPS = {
    "embedding": (0, 1),
    "embedding_bag": (0, 1),
    "_embedding_bag": (0, 1),
    "index": (0, 1),
    "index_select": (0, 2),
}
# The most numbers in the one-hot vectors of one input.
_MOST = 1 << 18
_SUM, _MEAN = 0, 1


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Whole numbers that are known once an input is.

    value: the one-hot vectors, on an axis of their own behind the numbers' axes.
    numbers: what each class stands for, whole numbers of a shape that broadcasts to the shape of `value`'s node.
    places: which of the input's places each number comes from, on the numbers' axes and one of one; -1 for known numbers.
    source: the input.
    """

    value: Value
    numbers: torch.Tensor
    places: torch.Tensor
    source: str

    @property
    def classes(self) -> int:
        return int(shape_of(self.value.node)[-1])


def tokens_of(node: Node, classes: int) -> Tokens:
    """The numbers of an input as they are given."""
    shape = shape_of(node)[:-1]
    places = torch.arange(math.prod(shape)).reshape(*shape, 1)
    return Tokens(Value(node, 0), torch.arange(classes), places, str(node.attrs["name"]))


def classes_of(placeholder: Any, tensors: Mapping[Any, torch.Tensor]) -> int | None:
    """A bound on the classes of an input of whole numbers that is looked up somewhere; None where it is not.

    Every number that torch takes is below it: the rows of the largest table, and all constants that numbers meet before.
    `tensors` has the tensors of the model's placeholders.
    """
    rows, shifts = [], 0.0
    waiting, met = [placeholder], {placeholder}
    while waiting:
        node = waiting.pop()
        for user in node.users:
            if user.op != "call_function" or user in met:
                continue
            short, value = short_name(user.target), user.meta.get("val")
            found = _rows_read(short, user, node)
            if found is not None:
                rows.append(found)
            elif short == "embedding_renorm":
                pass
            elif isinstance(value, torch.Tensor | list | tuple) and _whole(value):
                met.add(user)
                waiting.append(user)
                shifts += sum(_size(argument, tensors) for argument in user.args if short not in _MOVES)
    return int(max(rows) + shifts) if rows else None


def _rows_read(short: str, user: Any, node: Any) -> int | None:
    """How many rows the table has in which a call looks the node up; None where it does not."""
    if short == "one_hot":
        return int(user.args[1]) if len(user.args) > 1 and int(user.args[1]) > 0 else None
    if short not in _LOOKUPS:
        return None
    table, numbers = (user.args[place] if place < len(user.args) else user for place in _LOOKUPS[short])
    if short == "index" and isinstance(numbers, list | tuple):
        axis = next((axis for axis, one in enumerate(numbers) if one is node), None)
        return None if axis is None or table is node else int(table.meta["val"].shape[axis])
    if numbers is not node:
        return None
    axis = int(user.args[1]) if short == "index_select" else 0
    return int(table.meta["val"].shape[axis])


def _whole(value: Any) -> bool:
    return all(
        isinstance(one, torch.Tensor) and not one.is_floating_point() and one.dtype != torch.bool
        for one in (value if isinstance(value, list | tuple) else (value,))
    )


def _size(argument: Any, tensors: Mapping[Any, torch.Tensor]) -> float:
    """The largest constant among an argument's numbers."""
    if isinstance(argument, torch.fx.Node):
        tensor = tensors.get(argument)
        # What the model computes from constants is not known yet: an offset is at most as large as its tables.
        return float(tensor.abs().max()) if tensor is not None and tensor.numel() and _whole(tensor) else 0.0
    return float(abs(argument)) if isinstance(argument, int) and not isinstance(argument, bool) else 0.0


def check_size(name: str, shape: tuple[int, ...], classes: int, where: Location) -> None:
    """Refuse an input whose one-hot vectors would be too large."""
    if math.prod(shape) * classes > _MOST:
        raise UnsupportedError(
            f"input {name!r} chooses {math.prod(shape)} rows of a table of {classes}",
            where=where,
            why=f"it would be encrypted as one-hot vectors of {math.prod(shape) * classes} numbers, at most {_MOST}",
            hint="look the vectors up on the client, and trace the part of the model after its embeddings",
        )


# ---------------------------------------------------------------------------------------------- calls


def token_call(call: Call, args: Any, kwargs: Any, allowed: dict[str, Any]) -> Any:
    """What an op makes of whole numbers; an error for what does more than compute with them and look up.

    `allowed` has for each place of each input the classes that all lookups so far take.
    """
    short = call.op.rsplit(".", 1)[-1].removesuffix("_")
    tokens: Tokens = next(parts((args, kwargs), Tokens))
    whole = isinstance(call.result, torch.Tensor) and _whole(call.result)
    if short in _SAME or (short in _TYPES and whole):
        return tokens
    if short.startswith("_assert"):
        return None
    if short in _TYPES:
        return _valued(call, tokens, tokens.numbers)
    if short == "embedding_renorm" and isinstance(args[0], torch.Tensor):
        return _renormed(args[0], float(args[2]), float(args[3]))
    if short == "one_hot":
        return _looked_up(call, tokens, torch.eye(int(call.shape[-1])), allowed)
    if short in _LOOKUPS and isinstance(args[_LOOKUPS[short][0]], torch.Tensor):
        return _lookup(call, short, args, kwargs, tokens, allowed)
    if short in _JOINS:
        return _joined(call, args)
    if short in _MOVES:
        return _moved(call, short, tokens, args, kwargs)
    if torch.Tag.pointwise in getattr(call.target, "tags", ()) or short in ("remainder", "floor_divide", "clamp"):
        return _computed(call, args, kwargs)
    raise call.refuse(
        "it computes with whole numbers that choose rows of a table",
        "look them up, add, subtract or multiply known numbers, take remainders or bounds; or give them a second time as "
        "floating-point numbers",
    )


def _valued(call: Call, tokens: Tokens, values: torch.Tensor) -> Value:
    """A number for each class: the sum of the one-hot vector's elements times these."""
    node, shape = tokens.value.node, shape_of(tokens.value.node)
    values = values.double()
    if values.numel() == shape[-1]:
        made = matrix_times(call, node, values.reshape(1, -1))
        return replace(tokens.value, node=call.emit("reshape", made, shape=shape[:-1]))
    times = call.emit("mul", node, call.constant_node(values.expand(shape).contiguous()))
    return replace(tokens.value, node=call.emit("sum", times, axes=(len(shape) - 1,), keepdims=False))


def _looked_up(
    call: Call, tokens: Tokens, table: torch.Tensor, allowed: dict[str, Any], *, wraps: bool = False
) -> Value:
    """The rows of a table (rows, *rest), zeros where torch would refuse the number; `wraps`: below zero from the end."""
    numbers, rows = tokens.numbers, int(table.shape[0])
    if wraps:
        numbers = torch.where(numbers < 0, numbers + rows, numbers)
    valid = (numbers >= 0) & (numbers < rows)
    rest, flat = tuple(int(size) for size in table.shape[1:]), table.detach().reshape(rows, -1)
    node, shape = tokens.value.node, shape_of(tokens.value.node)
    taken = valid.expand(shape).reshape(-1, tokens.classes).numpy()
    for place, there in zip(tokens.places.reshape(-1).tolist(), taken, strict=True):
        if place >= 0:
            known = allowed.setdefault(tokens.source, {})
            known[place] = known.get(place, True) & there
    if numbers.numel() == tokens.classes:
        if torch.equal(numbers.reshape(-1), torch.arange(rows)):
            chosen = flat
        else:
            chosen = flat[numbers.reshape(-1).clamp(0, rows - 1)] * valid.reshape(-1, 1)
        call.names.set(chosen, call.names.get(table, f"{call.loc.layer}.weight"))
        made = matrix_times(call, node, chosen.t().contiguous())
    else:
        # Another map for each place.
        each = numbers.expand(shape).reshape(-1, tokens.classes)
        chosen = flat[each.clamp(0, rows - 1)] * valid.expand(shape).reshape(-1, tokens.classes, 1)
        grouped = call.emit("reshape", node, shape=(each.shape[0], 1, tokens.classes))
        made = call.emit("matmul", grouped, call.constant_node(chosen))
    made = call.emit("reshape", made, shape=(*shape[:-1], *rest))
    return replace(tokens.value, node=made)


def _lookup(call: Call, short: str, args: Any, kwargs: Any, tokens: Tokens, allowed: dict[str, Any]) -> Any:
    """A lookup in a table that is known."""
    table = args[_LOOKUPS[short][0]]
    if short == "embedding":
        return _looked_up(call, tokens, table, allowed)
    if short == "index_select":
        return _looked_up(call, tokens, table, allowed) if int(args[1]) == 0 else _other_axis(call)
    if short == "index":
        places = [axis for axis, one in enumerate(args[1]) if one is not None]
        return _looked_up(call, tokens, table, allowed, wraps=True) if places == [0] else _other_axis(call)
    return _bagged(call, call.named(args, kwargs), tokens, allowed)


def _other_axis(call: Call) -> Any:
    raise call.refuse("it looks up along another axis than the first of the table", "transpose the table first")


def _bagged(call: Call, named: Mapping[str, Any], tokens: Tokens, allowed: dict[str, Any]) -> list[Any]:
    """nn.EmbeddingBag: rows summed, or averaged, from each offset to the next."""
    mode, padding = int(named.get("mode", _SUM)), named.get("padding_idx")
    padding = -1 if padding is None else int(padding)
    weights, offsets = named.get("per_sample_weights"), named["offsets"]
    if mode not in (_SUM, _MEAN) or (mode == _MEAN and padding >= 0) or not isinstance(offsets, torch.Tensor):
        raise call.refuse(
            "it takes the largest of rows, or averages all but those of padding_idx, or has encrypted offsets",
            'mode="sum", or mode="mean" without padding_idx',
        )
    table = named["weight"].detach().clone()
    if padding >= 0:
        table[padding] = 0.0
    rows = _looked_up(call, _all_axes(call, tokens), table, allowed)
    count = rows.shape[0]
    ends = [*offsets.tolist(), *([] if named.get("include_last_offset") else [count])]
    bags = torch.zeros(len(ends) - 1, count, dtype=torch.float64)
    for bag, (start, end) in enumerate(itertools.pairwise(ends)):
        bags[bag, start:end] = 1.0 / max(1, end - start) if mode == _MEAN else 1.0
    node = rows.node
    if isinstance(weights, Value):
        given = call.emit("reshape", weights.node, shape=(count, 1))
        node = call.emit("mul", node, given)
    elif weights is not None:
        bags = bags * weights.double()
    made = call.emit("matmul", call.constant_node(bags), node)
    return [_leading(call, Value(made, UNSEEN)), None, None, None]


def _renormed(table: torch.Tensor, most: float, order: float) -> torch.Tensor:
    """All rows as torch makes those that are looked up: none longer than `most`."""
    lengths = torch.linalg.vector_norm(table, order, dim=1, keepdim=True)
    return torch.where(lengths > most, table * (most / (lengths + 1e-7)), table)


# ---------------------------------------------------------------------------------------------- numbers that are computed


def _computed(call: Call, args: Any, kwargs: Any) -> Any:
    """An elementwise op on numbers of one input and on known ones: the same op on what each class stands for."""
    some = list(parts((args, kwargs), Tokens))
    first = some[0]
    if any(one.value.node is not first.value.node for one in some) or any(parts((args, kwargs), Value)):
        raise call.refuse(
            "it computes with whole numbers of two inputs, or with whole numbers and encrypted values",
            "look each of them up, or turn them into floating-point numbers first: ids.float()",
        )
    rank = len(shape_of(first.value.node)) - 1 + first.value.seen
    place = rank - first.value.batch if first.value.seen else 0

    def known(operand: Any) -> Any:
        if isinstance(operand, Tokens):
            return operand.numbers
        if isinstance(operand, torch.Tensor) and operand.ndim:
            return (call.unbatched(operand, place) if place else operand).unsqueeze(-1)
        return operand

    made = call.target(*map(known, args), **{name: known(one) for name, one in kwargs.items()})
    if call.result is not None and tuple(made.shape[:-1]) and len(made.shape) > len(shape_of(first.value.node)):
        raise call.refuse("it gives the numbers more axes", "look them up first")
    return replace(first, numbers=made) if _whole(made) else _valued(call, first, made)


# ---------------------------------------------------------------------------------------------- numbers that are moved


def _moved(call: Call, short: str, tokens: Tokens, args: Any, kwargs: Any) -> Any:
    """The numbers in other places, their vectors with them."""
    value, classes = tokens.value, tokens.classes
    if not value.seen and call.batch_size != 1:
        raise call.mixes("its batch axis was merged with others")
    rank = len(call.torch_shape(value)) - 1
    named = call.named(args, kwargs)
    given = list(named.values())
    for place in _MOVES[short]:
        if place < len(given):
            dims, count = given[place], rank + (short == "unsqueeze")
            given[place] = [dim % count for dim in dims] if isinstance(dims, list | tuple) else int(dims) % count
    if short == "permute":
        given[1] = [*(dim % rank for dim in given[1]), rank]
    if short == "squeeze":
        sizes = call.torch_shape(value)[:rank]
        dims = given[1] if len(given) > 1 else [axis for axis, size in enumerate(sizes) if size == 1]
        given[1:] = [[dim % rank for dim in ([dims] if isinstance(dims, int) else dims)]]
    inner = _with_axis(call, classes, value.dtype)
    rule = rule_of(call.op)
    assert rule is not None

    def run(value: Value) -> Any:
        return rule(inner, value, *given[1:])

    try:
        made = run(value)
    except Mixes as refused:
        call.merged.append(refused)
        if call.batch_size > 1:
            raise Merges(refused) from None
        tokens = _all_axes(call, tokens)
        value = tokens.value
        made = run(value)

    def moved(tensor: torch.Tensor) -> Any:
        """The same op on a tensor like the numbers, of one sample that stands for all."""
        whole = tensor.unsqueeze(value.batch) if value.seen else tensor
        whole = whole.expand(*call.torch_shape(value)[:-1], tensor.shape[-1])
        if not _MOVES[short] and short not in ("permute", "squeeze"):
            target = (*call.shape, tensor.shape[-1])
            return whole.expand(target) if short.startswith("expand") else whole.reshape(target)
        return whole.squeeze(tuple(given[1])) if short == "squeeze" else call.target(whole, *given[1:])

    alike = tokens.numbers.numel() == classes
    numbers = None if alike else moved(tokens.numbers.expand(shape_of(value.node)))
    places = moved(tokens.places)

    def of(one: Value, place: int | None) -> Tokens:
        def mine(moved: Any) -> torch.Tensor:
            part = moved if place is None else moved[place]
            return part.select(one.batch, 0) if one.seen else part  # type: ignore[no-any-return]

        return Tokens(one, tokens.numbers if alike else mine(numbers), mine(places), tokens.source)

    return _each(made, of)


def _each(made: Any, change: Any) -> Any:
    if isinstance(made, list | tuple):
        return [change(one, place) for place, one in enumerate(made)]
    return change(made, None)


def _with_axis(call: Call, classes: int, dtype: torch.dtype) -> Call:
    """The call with results that have the vectors' axis behind the others."""

    def grown(result: Any) -> Any:
        if isinstance(result, list | tuple):
            return [grown(one) for one in result]
        return torch.empty((*result.shape, classes), dtype=dtype, device="meta")

    inner = copy_of(call)
    inner.result = grown(call.result)
    return inner


def copy_of(call: Call) -> Call:
    """The same call, to be given another result."""
    made = Call(call.builder, call.names, call.loc, call.batch_size, call.op, call.user_name, call.result, call.target)
    made.merged, made.finals, made.reach, made.node = call.merged, call.finals, call.reach, call.node
    return made


def _all_axes(call: Call, tokens: Tokens) -> Tokens:
    """The numbers with a batch axis of one sample that nobody sees."""
    value = tokens.value
    if not value.seen:
        return tokens
    if call.batch_size != 1:
        refused = call.mixes("it takes the numbers of all samples one behind the other")
        call.merged.append(refused)
        raise Merges(refused)
    shape = (*value.shape[: value.batch], 1, *value.shape[value.batch :])
    numbers = tokens.numbers
    if numbers.numel() != tokens.classes:
        numbers = numbers.expand(shape_of(value.node)).unsqueeze(value.batch)
    made = Value(call.emit("reshape", value.node, shape=shape), UNSEEN, value.dtype)
    return Tokens(made, numbers, tokens.places.unsqueeze(value.batch), tokens.source)


def _leading(call: Call, value: Value) -> Value:
    """With its first axis, of one, as the batch axis: for one sample any will do."""
    if value.seen or not value.shape or value.shape[0] != 1:
        return value
    return Value(call.emit("reshape", value.node, shape=value.shape[1:]), 0, value.dtype)


def _joined(call: Call, args: Sequence[Any]) -> Tokens:
    """Numbers joined, known ones among them: these are what every class stands for in their places."""
    given, axis = list(args[0]), int(args[1]) if len(args) > 1 else 0
    first = next(one for one in given if isinstance(one, Tokens))
    classes, rank = first.classes, len(call.torch_shape(first.value)) - 1
    axis %= rank + (call.op.endswith("stack"))
    values: list[Any] = []
    numbers, places = [], []
    for one in given:
        if isinstance(one, Tokens):
            if one.classes != classes or one.source != first.source:
                raise call.refuse(
                    "it joins whole numbers of different inputs", "look them up first, and join the vectors"
                )
            values.append(one.value)
            numbers.append(one.numbers.expand(shape_of(one.value.node)))
            places.append(one.places)
        else:
            fixed = call.unbatched(one, rank - first.value.batch) if first.value.seen else one
            vectors = torch.zeros(*fixed.shape, classes, dtype=torch.float64)
            vectors[..., 0] = 1.0
            values.append(vectors.unsqueeze(first.value.batch) if first.value.seen else vectors)
            numbers.append(fixed.unsqueeze(-1).expand(*fixed.shape, classes))
            places.append(torch.full((*fixed.shape, 1), -1))
    rule = rule_of(call.op)
    assert rule is not None
    made = rule(_with_axis(call, classes, first.value.dtype), values, axis)
    place = axis - (made.seen and axis > made.batch)
    join = torch.stack if call.op.endswith("stack") else torch.cat
    return Tokens(made, join(numbers, place), join(places, place), first.source)
