"""Inputs of whole numbers that index rows of tables: the program takes them one-hot, and a lookup is a linear map.

Any tensor that a model computes from one whole number alone (`ids + offsets`, `ids % 100`, `ids != 0`, `ids.float()`)
is a known function of it, kept as the list of its values (`Tokens`). A lookup takes the rows of the table at these
values, and the product of the one-hot vector with them is the looked-up row. The client makes the one-hot vectors from
the numbers by itself (`TensorSpec.classes`). The count of numbers is determined before the walk (inputs/survey.py).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from heliograph.errors import UnsupportedError
from heliograph.frontends.torch.rules.layers import transposed
from heliograph.frontends.torch.source import short_name
from heliograph.frontends.torch.values import Call, Value, elementwise, parts
from heliograph.frontends.torch.ways.linear import moved
from heliograph.ir import Location, Node, shape_of

# Ops that pass numbers on unchanged, and ops that change only their type.
_SAME = frozenset({"clone", "detach", "detach_", "alias", "contiguous", "lift_fresh", "lift_fresh_copy"})
_TYPES = frozenset({"to", "_to_copy", "type_as"})
# Functions of each element that torch does not mark as such.
_POINTWISE = frozenset({"floor_divide", "__and__", "__or__", "__xor__", "isin", "bucketize"})
# Ops that move, repeat and drop elements, and ops that join several tensors, or numbers.
_MOVES = frozenset(
    {
        *("view", "reshape", "_unsafe_view", "view_copy", "_reshape_alias", "flatten", "unflatten", "view_as"),
        *("reshape_as", "squeeze", "unsqueeze", "permute", "transpose", "swapaxes", "swapdims", "t", "mT", "numpy_T"),
        *("movedim", "moveaxis", "expand", "expand_as", "broadcast_to", "expand_copy", "repeat", "tile", "slice"),
        *("narrow", "select", "unbind", "split", "split_with_sizes", "chunk", "tensor_split", "flip", "roll"),
        *("index_select", "index", "gather", "repeat_interleave", "unfold", "diagonal", "take_along_dim"),
    }
)
_JOINS = frozenset(
    {
        *("cat", "concat", "concatenate", "stack", "hstack", "vstack", "column_stack", "dstack"),
        *("slice_scatter", "select_scatter"),
    }
)
_PADS = frozenset({"pad", "constant_pad_nd"})
# Tensors of the same kind that hold none of the numbers.
_FRESH = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})
BAGS = frozenset({"embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"})
RENORMS = frozenset({"embedding_renorm", "embedding_renorm_"})
# The most numbers in the one-hot vectors of one input.
MOST = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """One lookup.

    places: the places that it reads, as `Tokens.places`.
    values: the row numbers, as `Tokens.values`.
    rows: the number of rows in the table.
    wraps: whether negative row numbers count from the end.
    """

    places: torch.Tensor
    values: torch.Tensor
    rows: int
    wraps: bool


@dataclass(slots=True, eq=False)
class Sources:
    """The inputs of whole numbers that are looked up.

    shapes: the shape of one sample of each. Their elements are numbered consecutively.
    classes: how many numbers each may hold, from 0 on.
    nodes: the one-hot node of each, once it exists.
    reads: the lookups, during the survey of the graph; else None.
    """

    shapes: Sequence[tuple[int, ...]]
    classes: Sequence[int]
    nodes: dict[int, Node] = field(default_factory=dict)
    reads: list[Read] | None = None

    @property
    def sizes(self) -> list[int]:
        """The number of elements of each."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def total(self) -> int:
        """The number of elements of all."""
        return sum(self.sizes)

    def first(self, number: int) -> int:
        """The place of an input's first element."""
        return sum(self.sizes[:number])

    def of(self, place: int) -> int:
        """The index of the input to which a place belongs."""
        ends = np.cumsum(self.sizes)
        return int(np.searchsorted(ends, place, side="right"))

    def tokens(self, number: int, batch: int, dtype: torch.dtype) -> Tokens:
        """The elements of one input, each the identity of its number, with the sample repeated `batch` times."""
        shape, size = self.shapes[number], self.sizes[number]
        places = (self.first(number) + torch.arange(size)).reshape(shape).expand(batch, *shape)
        values = torch.arange(max(self.classes)).to(dtype)
        return Tokens(self, places, values.reshape(-1, *(1,) * places.ndim).expand(-1, *places.shape))


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """A tensor whose elements are known functions of one whole number each.

    places: in the tensor's shape, the place of that number in `sources`; -1 for an element that is a constant.
    values: behind a leading axis of classes, the element's value if that number is 0, 1, ...
    """

    sources: Sources
    places: torch.Tensor
    values: torch.Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype


class Unknown:
    """In a survey, a tensor that depends on inputs in another way; `ids`: whether on looked-up whole numbers."""

    def __init__(self, ids: bool) -> None:
        self.ids = ids


_COMPUTED = "do that on the client, and give the result as an input of its own"
# The result of `token_call` for an op that computes from several numbers together.
NUMBERS = object()


def check_size(name: str, shape: tuple[int, ...], classes: int, where: Location | str | None) -> None:
    """Refuse an input whose one-hot vectors would be too large."""
    if math.prod(shape) * classes > MOST:
        raise UnsupportedError(
            f"input {name!r} chooses {math.prod(shape)} rows of a table of {classes}",
            where=where,
            why=f"it would be encrypted as one-hot vectors of {math.prod(shape) * classes} numbers, at most {MOST}",
            hint="look the vectors up on the client, and trace the part of the model after its embeddings; columns that "
            "share a table by offsets take fewer numbers with a table for each",
        )


def token_call(call: Call, args: Any, kwargs: Any) -> Any:
    """The result of an op on operands some of which are `Tokens`: `Tokens` again, a value or tensors; `NUMBERS` for an
    op on several numbers, or on a number and an encrypted value, so that an ordinary rule may take it.
    """
    short = short_name(call.target)
    if short.startswith("_assert"):
        return None
    if short == "embedding":
        return _looked_up(call, args[0], args[1], wraps=False)
    if short in BAGS:
        return _bag(call, **call.named(args, kwargs))
    if short in RENORMS:
        return _renormed(call, *args)
    if short == "one_hot":
        return _one_hot(call, args[0], int(args[1]) if len(args) > 1 else -1)
    if short in ("index", "index_select", "take") and not isinstance(args[0], Tokens):
        return _indexed(call, short, args)
    if short == "gather" and isinstance(args[0], torch.Tensor) and isinstance(args[2], Tokens):
        return _gathered(args[0], int(args[1]), args[2])
    if short in _FRESH:
        first = next(parts((args, kwargs), Tokens))
        one = Tokens(first.sources, first.places, first.values[:1])
        # The only class: the result depends on no number.
        return _each(call, [one], args, kwargs)[0][0]
    if short in _SAME and isinstance(args[0], Tokens):
        return args[0]
    if short in _TYPES and isinstance(args[0], Tokens):
        return Tokens(args[0].sources, args[0].places, args[0].values.to(call.result.dtype))
    if any(parts((args, kwargs), Value)) or any(parts((args, kwargs), Unknown)):
        return NUMBERS
    if short in _MOVES | _JOINS | _PADS:
        return _moved(call, short, args, kwargs)
    if short in _POINTWISE or _is_pointwise(call.target):
        return _mapped(call, args, kwargs)
    return NUMBERS


def _is_pointwise(target: Any) -> bool:
    """Whether torch marks the op, or another overload of it, as pointwise."""
    packet = getattr(target, "overloadpacket", None)
    overloads = [target] if packet is None else [getattr(packet, name) for name in packet.overloads()]
    return any(torch.Tag.pointwise in getattr(one, "tags", ()) for one in overloads)


def numbers_in(call: Call, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The operands with values in place of `Tokens`: sums of the one-hot vectors' elements times numbers."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    made = [as_number(call, leaf) if isinstance(leaf, Tokens) else leaf for leaf in leaves]
    given, named = pytree.tree_unflatten(made, spec)
    return given, named


def as_number(call: Call, tokens: Tokens) -> Value:
    """The numbers as a value."""

    def rows(values: torch.Tensor) -> torch.Tensor:
        return values.double().unsqueeze(1)

    made = _read(call, tokens, rows, (), "numbers")
    return Value(made.node, tokens.dtype)


# ---------------------------------------------------------------------------------------------- functions of one number


def _each(call: Call, tokens: Sequence[Tokens], args: Any, kwargs: Any) -> list[Any]:
    """The op's results for each class, stacked on a leading axis; one tensor for each result.

    `tokens` stand in for the `Tokens` among the operands, in order.
    """
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    slots = [number for number, leaf in enumerate(leaves) if isinstance(leaf, Tokens)]

    def run(*values: torch.Tensor) -> Any:
        some = list(leaves)
        for slot, value in zip(slots, values, strict=True):
            some[slot] = value
        given, named = pytree.tree_unflatten(some, spec)
        found = call.target(*given, **named)
        return tuple(found) if isinstance(found, list | tuple) else (found,)

    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # torch warns where it works class by class
            return list(torch.vmap(run)(*(one.values for one in tokens)))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise call.refuse(f"torch does not compute it for each whole number by itself: {first}", _COMPUTED) from None


def _made(sources: Sources, places: torch.Tensor, values: torch.Tensor) -> Any:
    """The tokens; a tensor where no element depends on an input."""
    return Tokens(sources, places, values) if bool((places >= 0).any()) else values[0]


def _mapped(call: Call, args: Any, kwargs: Any) -> Any:
    """A function of each element, where everything that meets in one element comes from one number."""
    tokens = list(parts((tuple(args), dict(kwargs)), Tokens))
    shapes = [tuple(one.places.shape) for one in tokens]
    wanted = torch.broadcast_shapes(*shapes)
    places = torch.full(wanted, -1)
    for one in tokens:
        theirs = one.places.expand(wanted)
        if bool(((places >= 0) & (theirs >= 0) & (places != theirs)).any()):
            return NUMBERS
        places = torch.maximum(places, theirs)
    found = _each(call, tokens, args, kwargs)
    known = [tuple(one.shape) for one in parts((tuple(args), dict(kwargs)), torch.Tensor)]
    made_shapes = {tuple(values.shape[1:]) for values in found}
    if short_name(call.target) not in _POINTWISE and made_shapes != {tuple(torch.broadcast_shapes(wanted, *known))}:
        # Another overload of an op by element: max over an axis.
        return NUMBERS
    made = [_made(tokens[0].sources, places.expand(values.shape[1:]), values) for values in found]
    return made if isinstance(call.result, list | tuple) else made[0]


def _moved(call: Call, short: str, args: Any, kwargs: Any) -> Any:
    """An op that moves elements, applied to places and values alike."""
    tokens = list(parts((tuple(args), dict(kwargs)), Tokens))
    if short not in _JOINS and len(tokens) > 1:
        raise call.refuse("which numbers are taken depends on whole numbers of an input", _COMPUTED)
    if len({one.dtype for one in tokens}) > 1:
        return NUMBERS
    found = _each(call, tokens, args, kwargs)
    # The same on places, counted from one: an element that is none of them becomes zero.
    moving = [Tokens(one.sources, one.places, one.places.unsqueeze(0) + 1) for one in tokens]
    given, named = tuple(args), dict(kwargs)
    if short in _JOINS:
        given, named = pytree.tree_map(
            lambda leaf: torch.zeros_like(leaf, dtype=torch.int64) if isinstance(leaf, torch.Tensor) else leaf,
            (given, named),
        )
    if short in _PADS:
        at = 3 if short == "pad" else 2
        if short == "pad" and named.get("mode", given[2] if len(given) > 2 else "constant") != "constant":
            at = len(given)
        given = tuple(0 if place == at and value is not None else value for place, value in enumerate(given))
        named = {name: 0 if name == "value" and value is not None else value for name, value in named.items()}
    where = _each(call, moving, given, named)
    made = [_made(tokens[0].sources, places[0] - 1, values) for places, values in zip(where, found, strict=True)]
    return made if isinstance(call.result, list | tuple) else made[0]


# ---------------------------------------------------------------------------------------------- lookups


def _table(call: Call, table: Any, tokens: Any) -> torch.Tensor:
    """The table, if it is known and each row is chosen by one number; otherwise a refusal that names the op."""
    if not isinstance(tokens, Tokens):
        raise call.refuse(
            "the row is chosen by several whole numbers together, or by something that was computed from encrypted values",
            "give the number of the row as an input of its own, or look the vectors up on the client",
        )
    if not isinstance(table, torch.Tensor):
        raise call.refuse(
            "the table that is looked up depends on an input",
            "look up in parameters or constants; F.one_hot(ids, n).float() @ table takes rows of encrypted values",
        )
    return table.detach()


def _looked_up(call: Call, table: Any, tokens: Any, wraps: bool) -> Any:
    """The rows (along axis 0) of a table, with any number of axes, at the numbers in the tokens."""
    known = _table(call, table, tokens)
    height, rest = known.shape[0], tuple(known.shape[1:])
    if tokens.sources.reads is not None:
        tokens.sources.reads.append(Read(tokens.places, tokens.values.long(), height, wraps))
    name = call.names.get(table, f"{call.loc.layer}.weight")
    if not rest or not known.is_floating_point():
        # A function of one number again, or several of them.
        values = _rows(known, tokens.values.long(), wraps)
        places = tokens.places.reshape(*tokens.places.shape, *(1,) * len(rest)).expand(values.shape[1:])
        return _made(tokens.sources, places, values)
    flat = known.reshape(height, -1)

    def rows(values: torch.Tensor) -> torch.Tensor:
        return _rows(flat, values.long(), wraps)

    return _read(call, tokens, rows, rest, name)


def _rows(table: torch.Tensor, places: torch.Tensor, wraps: bool) -> torch.Tensor:
    """The rows at these places, zeros for places outside the table: their numbers are refused before encryption."""
    height = table.shape[0]
    if wraps:
        places = torch.where(places < 0, places + height, places)
    inside = (places >= 0) & (places < height)
    found = table[places.clamp(0, height - 1)]
    return torch.where(inside.reshape(*inside.shape, *(1,) * (table.ndim - 1)), found, torch.zeros_like(found))


def _gathered(table: torch.Tensor, dim: int, tokens: Tokens) -> Any:
    """`torch.gather` of a known table: along that axis, each element takes the entry at its number."""
    height, values = table.shape[dim], tokens.values.long()
    if tokens.sources.reads is not None:
        tokens.sources.reads.append(Read(tokens.places, values, height, wraps=False))
    inside = (values >= 0) & (values < height)
    found = torch.stack([table.detach().gather(dim, each) for each in values.clamp(0, height - 1)])
    return _made(tokens.sources, tokens.places, torch.where(inside, found, torch.zeros_like(found)))


def _one_hot(call: Call, tokens: Any, classes: int) -> Any:
    if classes <= 0:
        raise call.refuse("how many classes there are is not said", "write F.one_hot(ids, num_classes=n)")
    return _looked_up(call, torch.eye(classes, dtype=torch.float64), tokens, wraps=False)


def _indexed(call: Call, short: str, args: Any) -> Any:
    """`table[:, ids]`, `torch.index_select`, `torch.take`: a known table at one tensor of numbers."""
    table, axis = args[0], 0
    index = args[1] if short != "index_select" else args[2]
    if short == "index_select":
        axis = int(args[1]) % table.ndim if isinstance(table, torch.Tensor) else 0
    if short == "index":
        used = [(place, one) for place, one in enumerate(index) if one is not None]
        if len(used) > 1:
            return _picked_alone(call, table, used)
        axis, index = used[0]
    known = _table(call, table, index)
    if index.dtype == torch.bool:
        raise call.refuse(
            "a mask that depends on an input chooses how many rows there are", "use torch.where(mask, value, 0)"
        )
    if short == "take":
        known = known.reshape(-1)
    if axis:
        turned = known.movedim(axis, 0).contiguous()
        call.names.set(turned, call.names.get(table, f"{call.loc.layer}.weight"))
        known = turned
    elif short != "take":
        known = table
    made = _looked_up(call, known, index, wraps=short != "index_select")
    return made if not axis else _axes_back(call, made, index.places.ndim, axis)


def _picked_alone(call: Call, table: Any, used: Sequence[tuple[int, Any]]) -> Any:
    """`table[ids, 0]`, `table[rows, ids]`: several indices, one of them an input's; the others are numbers."""
    tokens = [one for _, one in used if isinstance(one, Tokens)]
    known = [one for _, one in used if isinstance(one, torch.Tensor)]
    if len(tokens) != 1 or len(known) + 1 != len(used) or [place for place, _ in used] != list(range(len(used))):
        raise call.refuse(
            "several indices depend on inputs, or axes lie between them",
            "look up one index after the other, or give the number of the row as an input of its own",
        )
    if not isinstance(table, torch.Tensor):
        _table(call, table, tokens[0])
    # The indices merged into one, into a table whose first axes are merged.
    sizes = table.shape[: len(used)]
    one = tokens[0]
    row: Any = torch.zeros((), dtype=torch.int64)
    for (_, index), size in zip(used, sizes, strict=True):
        values = index.values if isinstance(index, Tokens) else index.unsqueeze(0)
        values = torch.where(values < 0, values + size, values)
        values = torch.where((values < 0) | (values >= size), -(10**9), values)
        ranks = max(row.ndim, values.ndim)
        row = _aligned(row, ranks) * size + _aligned(values, ranks)
    places = one.places.expand(row.shape[1:])
    flat = table.reshape(-1, *table.shape[len(used) :])
    call.names.set(flat, call.names.get(table, f"{call.loc.layer}.weight"))
    return _looked_up(call, flat, Tokens(one.sources, places, row), wraps=False)


def _aligned(values: torch.Tensor, ranks: int) -> torch.Tensor:
    """Values of classes, with axes of length one inserted behind the class axis."""
    if values.ndim == 0:
        return values.reshape((1,) * ranks)
    return values.reshape(values.shape[0], *(1,) * (ranks - values.ndim), *values.shape[1:])


def _axes_back(call: Call, made: Any, count: int, axis: int) -> Any:
    """The result with `axis` axes of the table in front of the `count` axes of the index."""
    if isinstance(made, Unknown):
        return made
    if isinstance(made, Tokens):
        order = [*range(count, count + axis), *range(count), *range(count + axis, made.places.ndim)]
        values = made.values.permute(0, *(place + 1 for place in order))
        return Tokens(made.sources, made.places.permute(order), values)
    order = [*range(count, count + axis), *range(count), *range(count + axis, made.rank)]
    return Value(call.emit("permute", made.node, axes=tuple(order)))


def _renormed(call: Call, table: Any, tokens: Any, largest: float, kind: float) -> torch.Tensor:
    """The table with each row no longer than `max_norm`: torch shortens each looked-up row by itself."""
    known = _table(call, table, tokens).clone()
    with torch.no_grad():
        made = torch.embedding_renorm_(known, torch.arange(known.shape[0]), largest, kind)
    call.names.set(made, call.names.get(table, f"{call.loc.layer}.weight"))
    return made


# ---------------------------------------------------------------------------------------------- bags


def _bag(
    call: Call,
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> list[Any]:
    """Sums and means of the rows of bags: `offsets` has the place in `indices` at which each bag begins."""
    table = _table(call, weight, indices)
    if not isinstance(offsets, torch.Tensor):
        raise bag_offsets(call)
    if mode == 2:
        raise call.refuse(
            "it takes the largest of each column over a bag",
            'write it with a lookup, torch.nn.functional.embedding(ids, weight).amax(1), or use mode="sum" or mode="mean"',
        )
    if mode == 1 and padding_idx is not None and padding_idx >= 0:
        raise call.refuse(
            "a mean that leaves padding out divides by a number of ids that depends on the input",
            'use mode="sum" with padding_idx and divide by a fixed number, or by a count that is an input of its own',
        )
    starts = [int(start) for start in offsets.reshape(-1)]
    count = int(indices.places.numel())
    ends = [*starts[1:], count]
    if include_last_offset:
        starts, ends = starts[:-1], ends[:-1]
    longest = max((end - start for start, end in zip(starts, ends, strict=True)), default=0)
    if not longest:
        raise call.refuse("all bags are empty", "give at least one id to a bag")
    # Bags in rows; a shorter one is filled up with a constant of no row.
    index = torch.full((len(starts), longest), count)
    for bag, (start, end) in enumerate(zip(starts, ends, strict=True)):
        index[bag, : end - start] = torch.arange(start, end)
    classes = indices.values.shape[0]
    nothing = torch.full((classes, 1), -1, dtype=torch.int64)
    places = torch.cat([indices.places.reshape(-1), torch.tensor([-1])])[index]
    values = torch.cat([indices.values.long().reshape(classes, -1), nothing], 1)[:, index]
    if padding_idx is not None and padding_idx >= 0:
        table = table.clone()
        table[padding_idx] = 0
        call.names.set(table, call.names.get(weight, f"{call.loc.layer}.weight"))
    else:
        table = weight
    rows = _looked_up(call, table, Tokens(indices.sources, places, values), wraps=False)
    if isinstance(rows, Unknown):
        return [rows, None, None, None]
    rows = _weighted(call, rows, per_sample_weights, index, count)
    if mode == 1:
        lengths = (index < count).sum(1).clamp(min=1).double().reshape(-1, 1, 1)
        rows = elementwise(call, "mul", rows, 1.0 / lengths)
    made = call.emit("sum", rows.node, axes=(1,), keepdims=False)
    return [Value(made), None, None, None]


def bag_offsets(call: Call) -> UnsupportedError:
    """The error for bags whose limits are an input."""
    return call.refuse(
        "where each bag begins is an input, so that the lengths of bags, and the samples they belong to, are not known",
        "give the ids as a matrix (batch, length), the places behind a bag's end filled with padding_idx",
    )


def _weighted(call: Call, rows: Value, weights: Any, index: torch.Tensor, count: int) -> Value:
    """The rows times the weights of their ids."""
    if weights is None:
        return rows
    if isinstance(weights, torch.Tensor):
        padded = torch.cat([weights.detach().double().reshape(-1), torch.zeros(1, dtype=torch.float64)])
        return elementwise(call, "mul", rows, padded[index].unsqueeze(-1))
    whole = bool((index == torch.arange(count).reshape(index.shape)).all()) if index.numel() == count else False
    if isinstance(weights, Tokens):
        weights = as_number(call, weights)
    node = weights.node
    if not whole:
        # The place of a constant, whose row is zero, may have any weight.
        node = moved(call, node, torch.where(index < count, index, -1).numpy(), index.shape)
    return Value(call.emit("mul", rows.node, call.reshaped(node, (*index.shape, 1))))


# ---------------------------------------------------------------------------------------------- one-hot vectors


def _read(
    call: Call,
    tokens: Tokens,
    rows: Callable[[torch.Tensor], torch.Tensor],
    rest: tuple[int, ...],
    name: str,
) -> Any:
    """The rows for the values of each element, in place of the element, with the axes `rest` behind it.

    `rows` takes the values of one element by class, (classes,), and gives (classes, numbers of a row). Elements whose
    values are the same function of their number share one map.
    """
    if tokens.sources.reads is not None:
        return Unknown(ids=True)
    places, values = tokens.places, tokens.values
    shape = tuple(places.shape)
    if shape[:1] > (1,) and bool((places == places[:1]).all()) and bool((values == values[:, :1]).all()):
        # The same sample several times.
        made = _read(call, Tokens(tokens.sources, places[:1], values[:, :1]), rows, rest, name)
        return Value(call.emit("broadcast", made.node, shape=(*shape, *rest)))
    flat, by_class = places.reshape(-1), values.reshape(values.shape[0], -1)
    constant = torch.nonzero(flat < 0).reshape(-1).tolist()
    groups: dict[tuple[int, bytes], list[int]] = {}
    for element, place in enumerate(flat.tolist()):
        if place >= 0:
            number = tokens.sources.of(place)
            own = by_class[: tokens.sources.classes[number], element].contiguous()
            groups.setdefault((number, own.numpy().tobytes()), []).append(element)
    width = math.prod(rest)
    made, order = [], []
    for (number, _), elements in groups.items():
        whole = len(elements) == len(flat)
        node = _picked(
            call, tokens.sources, number, [int(flat[element]) for element in elements], shape if whole else ()
        )
        map_ = rows(by_class[: tokens.sources.classes[number], elements[0]])
        call.names.set(map_, name)
        made.append(_times(call, node, map_))
        order += elements
    if len(made) == 1 and not constant:
        node = made[0]
    else:
        # One group after the other, and each element back in its place.
        node = made[0] if len(made) == 1 else call.emit("concat", *made, axis=0)
        if order != list(range(len(flat))):
            place_of = np.full(len(flat), -1)
            place_of[order] = np.arange(len(order))
            lanes = np.arange(width)
            index = np.where(place_of[:, np.newaxis] < 0, -1, place_of[:, np.newaxis] * width + lanes)
            node = moved(call, node, index, index.shape)
    if constant:
        fixed = torch.zeros(len(flat), width, dtype=torch.float64)
        for element in constant:
            fixed[element] = rows(by_class[:1, element])[0].double()
        if bool(fixed.any()):
            call.names.set(fixed, f"{name}.constant")
            node = call.emit("add", node, call.constant_node(fixed))
    wanted = (*shape, *rest)
    node = node if shape_of(node) == wanted else call.emit("reshape", node, shape=wanted)
    return Value(node)


def _times(call: Call, node: Node, rows: torch.Tensor) -> Node:
    """One-hot vectors on the last axis times the rows of their classes."""
    if rows.shape[0] == rows.shape[1] and bool((rows == torch.eye(rows.shape[0], dtype=rows.dtype)).all()):
        return node
    return call.emit("linear", node, weight=call.constant(transposed(call, rows)))


def _picked(call: Call, sources: Sources, number: int, places: Sequence[int], shape: tuple[int, ...]) -> Node:
    """The one-hot vectors at these places of an input, (places, classes), or (*shape, classes) with a given shape."""
    node, classes = sources.nodes[number], sources.classes[number]
    size = sources.sizes[number]
    own = [place - sources.first(number) for place in places]
    wanted = (*(shape or (len(own),)), classes)
    if len(own) == 1 and not shape:
        wanted = (1, classes)
    steps = {second - first for first, second in itertools.pairwise(own)}
    if own != list(range(size)):
        flat = node if shape_of(node) == (size, classes) else call.emit("reshape", node, shape=(size, classes))
        if len(steps) <= 1 and min(steps, default=1) > 0:
            step = min(steps, default=1)
            node = call.emit("slice", flat, starts=(own[0], 0), stops=(own[-1] + 1, classes), steps=(step, 1))
        else:
            index = np.array(own)[:, np.newaxis] * classes + np.arange(classes)
            node = moved(call, flat, index, index.shape)
    return node if shape_of(node) == wanted else call.emit("reshape", node, shape=wanted)
