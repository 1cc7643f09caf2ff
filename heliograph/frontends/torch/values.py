"""What the rules work on: values with a batch axis, the call at hand, and the registry of rules.

torch works on batches, a program on one sample. Every tensor that depends on an input has one batch axis; a `Value`
is the program's node (without that axis) and the axis's position in the tensor that torch sees. A tensor that depends
on no input stays a `torch.Tensor`, computed by torch, until a rule makes it a constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch

from heliograph import functions
from heliograph.errors import UnsupportedError, at, said
from heliograph.frontends.torch.inputs.reach import Reach
from heliograph.ir import Builder, ConstantName, Location, Node

Operand: TypeAlias = "Value | torch.Tensor | float | int | bool"


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """Low constants beside a value, which may hide places from a softmax (torch_masks.py).

    offsets: what was added, in the shape that torch sees; below zero in the places in question, zero elsewhere.
    filled: the places where a number replaced the score.
    node: the value with scores in these places.
    exact: the same with zeros where it is filled: with `offsets` added it is the value.
    finite: whether the value's own node has the constants as numbers; else it is `node`.
    """

    offsets: torch.Tensor
    filled: torch.Tensor
    node: Node
    exact: Node
    finite: bool


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor that depends on an input: its node, and where the batch axis stands among torch's axes.

    `dtype` is what torch holds it in; the tracer sets it on what a rule returns. A truth value is the number 0 or 1.
    Where the model has merged the batch axis with others (`x.view(batch * heads, length, width)`), the model is traced
    with one sample, and the axis is one of length one that nobody sees: `batch` is negative, and the node has all axes that
    torch has. `hidden` is the mask of scores (torch_masks.py).
    """

    node: Node
    batch: int = 0
    dtype: torch.dtype = torch.float64
    hidden: Hidden | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Without the batch axis."""
        return tuple(self.node.type.shape)  # type: ignore[union-attr]

    @property
    def rank(self) -> int:
        """The number of axes that torch sees, batch included."""
        return len(self.shape) + self.seen

    @property
    def seen(self) -> bool:
        """Whether torch sees the batch axis."""
        return self.batch >= 0

    @property
    def from_right(self) -> int:
        """The batch axis counted from the end: 1 is the last axis. One that nobody sees is before all others."""
        return self.rank - self.batch if self.seen else _FAR

    def each(self, change: Callable[[Node], Node], batch: int) -> Value:
        """The value with that made of its node, and of those of its mask, whose shape for torch stays."""
        hidden = self.hidden
        if hidden is not None:
            hidden = replace(hidden, node=change(hidden.node), exact=change(hidden.exact))
        return replace(self, node=change(self.node), batch=batch, hidden=hidden)

    def axis(self, dim: int) -> int:
        """The axis of the node that torch calls `dim`, or -1 for the batch axis."""
        dim %= self.rank
        if not self.seen:
            return dim
        return -1 if dim == self.batch else dim - (dim > self.batch)

    def new_axis(self, dim: int) -> tuple[int, int]:
        """Where an axis that torch makes at `dim` is in the node, and the batch axis then."""
        if not self.seen:
            return dim % (self.rank + 1), self.batch
        place = dim % (self.rank + 1)
        batch = self.batch + (place <= self.batch)
        return place - (place > batch), batch


# More axes than any tensor has: rules that count the batch axis from the end then put it at a negative place.
_FAR = 1 << 20
UNSEEN = -1


class NoRule(Exception):
    """The rule does not take what it was given: the op is refused as if it had none."""


class Mixes(UnsupportedError):
    """Samples of the batch would meet, as far as one call shows; the model may part them again later."""


class Merges(Exception):
    """The batch axis is merged with others, and the model is to be traced with one sample; `mixes` says where."""

    def __init__(self, mixes: Mixes) -> None:
        super().__init__(mixes)
        self.mixes = mixes


class BySample(Exception):
    """The rule takes a batch axis only, and the first axis of this value holds others too."""


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """A result that has no rule, beside others that have one; the error is raised where something reads it."""

    error: UnsupportedError


def changes_in(dtype: torch.dtype, value: Value) -> bool:
    """Whether torch would round, compare or wrap the value around to hold it in that dtype.

    Truth values and numbers of places are whole already, so that signed whole numbers hold them.
    """
    whole = not value.dtype.is_floating_point and dtype.is_signed and dtype != torch.bool
    return not (dtype.is_floating_point or dtype == value.dtype or whole)


class TensorNames:
    """Names of tensors by identity: the parameter's path, or what it was computed from."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[torch.Tensor, str]] = {}

    def set(self, tensor: torch.Tensor, name: str) -> None:
        self._names[id(tensor)] = (tensor, name)  # holding the tensor keeps its identity from being used again

    def get(self, tensor: torch.Tensor, default: str) -> str:
        entry = self._names.get(id(tensor))
        return entry[1] if entry else default


def transposed_name(name: str) -> str:
    """The name of a matrix's transpose; transposing twice gives the first name back."""
    return name.removesuffix(".t") if name.endswith(".t") else f"{name}.t"


class Call:
    """One call of the exported graph, as a rule sees it."""

    def __init__(
        self,
        builder: Builder,
        names: TensorNames,
        loc: Location,
        batch_size: int,
        op: str,
        user_name: str,
        result: Any,
        target: Any = None,
    ) -> None:
        self.builder = builder
        self.names = names
        self.loc = loc
        self.batch_size = batch_size
        self.op = op  # the registry's name: `aten.relu`
        self.user_name = user_name  # what a user calls it: `torch.relu`
        self.result = result  # the fake tensor(s) that torch.export recorded: shapes and dtypes
        self.target = target  # the op itself, to be run on tensors
        # The call in the exported graph; its operands have the strides that torch gives them.
        self.node: Any = None
        # Why samples would be mixed, unless the model keeps them apart by other means.
        self.merged: list[Mixes] = []
        # For each node that is a softmax (or its logarithm): which of the two, its operand, and the axis.
        self.finals: dict[Node, tuple[str, Node, int]] = {}
        # What values can be, for rules that decide by it.
        self.reach = Reach(builder)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result as torch sees it, batch axis included."""
        return tuple(int(size) for size in self.result.shape)

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by their names in the schema of the op, whose overloads order them differently."""
        names = [argument.name for argument in self.target._schema.arguments]
        return {**dict(zip(names, args, strict=False)), **kwargs}

    # ------------------------------------------------------------------ making nodes

    def emit(self, op: str, *operands: Node, **attrs: Any) -> Node:
        """A node of the program at this call's location."""
        return self.builder.op(op, operands, self.loc, **attrs)

    def constant(self, tensor: torch.Tensor, name: str = "") -> ConstantName:
        """The tensor as a constant of the program, called by its parameter path."""
        if tensor.is_complex():
            raise self.refuse("a constant of it is complex", "split it into real and imaginary parts")
        data = tensor.detach().cpu()
        if data.dtype in (torch.float16, torch.bfloat16):
            data = data.float()
        label = name or self.names.get(tensor, f"{self.loc.layer}.constant")
        with at(self.loc):
            return self.builder.constant(data.resolve_neg().numpy(), label)

    def constant_node(self, operand: torch.Tensor | float | int, from_right: int = 0) -> Node:
        """A plain tensor node; of a tensor, the batch axis (counted from the end, 0 for none) is taken out first."""
        if not isinstance(operand, torch.Tensor):
            tensor, name = torch.tensor(float(operand), dtype=torch.float64), f"{float(operand)!r}"
        else:
            name = self.names.get(operand, f"{self.loc.layer}.constant")
            tensor = self.unbatched(operand, from_right) if from_right else operand
        return self.emit("constant", value=self.constant(tensor, name))

    def unbatched(self, tensor: torch.Tensor, from_right: int) -> torch.Tensor:
        """The tensor without its batch axis; it must hold the same for every sample."""
        if tensor.ndim < from_right:
            return tensor
        axis = tensor.ndim - from_right
        first = tensor.select(axis, 0)
        if tensor.shape[axis] != 1:
            same = tensor.shape[axis] == self.batch_size and bool((tensor == first.unsqueeze(axis)).all())
            if not same:
                raise self.mixes(
                    f"a constant of shape {tuple(tensor.shape)} has {tensor.shape[axis]} different entries along the "
                    "batch axis"
                )
        self.names.set(first, self.names.get(tensor, f"{self.loc.layer}.constant"))
        return first

    # ------------------------------------------------------------------ refusals

    def refuse(self, why: str, hint: str) -> UnsupportedError:
        """The error to raise where the op cannot be carried in this form."""
        return UnsupportedError(f"{self.user_name} cannot be compiled here", where=self.loc, why=why, hint=hint)

    def mixes(self, detail: str, hint: str = "") -> Mixes:
        """The error to raise where samples of the batch would be mixed."""
        return Mixes(
            f"{self.user_name} mixes samples of the batch",
            where=self.loc,
            why=f"a program works on one sample at a time, and {detail}",
            hint=hint or said("keep axis 0, the batch axis, out of it (and give {example_input} a batch axis)"),
        )

    # ------------------------------------------------------------------ operands

    def together(self, *operands: Operand) -> tuple[list[Node], int]:
        """Operands of an elementwise op as nodes that broadcast without batch axes, and the result's batch axis."""
        values = [operand for operand in operands if isinstance(operand, Value)]
        places = {value.from_right for value in values}
        if len(places) != 1:
            shapes = " and ".join(str(self.torch_shape(value)) for value in values)
            raise self.mixes(
                f"operands of shapes {shapes} meet with their batch axes in different places",
                "give both operands the same number of axes, for example with unsqueeze(1)",
            )
        place = places.pop()
        ranks = [
            operand.rank if isinstance(operand, Value) else operand.ndim if isinstance(operand, torch.Tensor) else 0
            for operand in operands
        ]
        nodes = [
            operand.node if isinstance(operand, Value) else self.constant_node(operand, place) for operand in operands
        ]
        return nodes, max(ranks) - place

    def torch_shape(self, value: Value) -> tuple[int, ...]:
        """The shape as torch sees it."""
        if not value.seen:
            return value.shape
        return (*value.shape[: value.batch], self.batch_size, *value.shape[value.batch :])

    def first_axis(self, value: Value) -> Node:
        """The node, where the batch axis must come first."""
        if not value.seen:
            raise BySample
        if value.batch:
            raise self.refuse(
                f"the batch axis is axis {value.batch} of {self.torch_shape(value)}, and it must be axis 0 here",
                "permute the batch axis to the front first",
            )
        return value.node


_Part = TypeVar("_Part")


def parts(arguments: Any, kind: type[_Part]) -> Iterator[_Part]:
    """Everything of that kind in nested arguments."""
    if isinstance(arguments, kind):
        yield arguments
    elif isinstance(arguments, dict | list | tuple):
        for item in arguments.values() if isinstance(arguments, dict) else arguments:
            yield from parts(item, kind)


def with_dtypes(value: Any, recorded: Any) -> Any:
    """What a rule returned, its values with the dtypes that torch recorded."""
    if isinstance(value, Value) and isinstance(recorded, torch.Tensor):
        return replace(value, dtype=recorded.dtype)
    if isinstance(value, list | tuple) and isinstance(recorded, list | tuple):
        return [with_dtypes(item, entry) for item, entry in zip(value, recorded, strict=False)]
    return value


def elementwise(call: Call, op: str, *operands: Operand) -> Value:
    """The op on operands that broadcast against each other, at least one of them a value."""
    nodes, batch = call.together(*operands)
    return Value(call.emit(op, *nodes), batch)


def reduced_axes(call: Call, what: str, x: Value, dims: Any, keepdim: bool) -> tuple[tuple[int, ...], int]:
    """The axes of the node that a reduction runs over, ascending, and the batch axis of its result."""
    axes = [dims] if isinstance(dims, int) else list(dims or range(x.rank))
    places = sorted({x.axis(dim) for dim in axes})
    if places[0] < 0:
        alternative = f"x.flatten(1).{what}(1)" if x.rank > 1 else "no reduction"
        raise call.mixes(
            f"the {what} runs over axis {x.batch} of {call.torch_shape(x)}, the batch axis",
            f"reduce the other axes only, for example {alternative}",
        )
    return tuple(places), x.batch if keepdim else x.batch - sum(dim % x.rank < x.batch for dim in axes)


Rule: TypeAlias = "Callable[..., Any]"

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the function as the meaning of these torch ops (`aten.relu`, `mylib.foo`; all overloads of each).

    It is called as `function(call, *args, **kwargs)` with the op's own arguments, at least one of them a `Value`, and
    returns a `Value`, a `torch.Tensor`, or a list of these where the op has several results. A later registration
    replaces an earlier one. The in-place form of an op (`aten.relu_`) needs no rule of its own.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def rule_of(name: str) -> Rule | None:
    """The rule of that torch op: of a function that a user registered for it, or of `RULES`; None where it has none."""
    for family in functions.families():
        if family.torch_op == name:
            return partial(_registered, family.name)
    return RULES.get(name)


def _registered(op: str, call: Call, x: Any, *arguments: Any, **keywords: Any) -> Value:
    return Value(call.emit(op, x.node), x.batch)


def is_number(value: Any) -> bool:
    """Whether the operand is a Python number."""
    return isinstance(value, int | float | bool)


def scalar(operand: Any) -> float | None:
    """The number that a Python number or a tensor of one element holds, or None."""
    if is_number(operand):
        return float(operand)
    if isinstance(operand, torch.Tensor) and operand.numel() == 1:
        return float(operand.reshape(()))
    return None


def size_of(shape: Sequence[int]) -> int:
    """The number of elements."""
    return math.prod(shape)
