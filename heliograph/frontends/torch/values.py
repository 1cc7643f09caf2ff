"""The objects on which rules work: values, the current call, and the registry of rules.

The model is traced with one sample, whose batch axis is an ordinary axis of length one: a `Value` is a node with all of
torch's axes. No rule deals with batches: the axis is removed from the finished program (torch/unbatched.py), and runs
on several samples check that samples are kept apart (torch/check.py). A tensor that depends on no input stays a
`torch.Tensor`, computed by torch, until a rule makes it a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch

from heliograph import functions
from heliograph.errors import UnsupportedError, at
from heliograph.frontends.torch.inputs.reach import Reach
from heliograph.ir import Builder, ConstantName, Location, Node, shape_of

Operand: TypeAlias = "Value | torch.Tensor | float | int | bool"


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """Low constants beside a value, which may hide places from a softmax (torch/inputs/masks.py).

    offsets: the added constants, in torch's shape; below zero in the places in question, zero elsewhere.
    filled: the places where a number replaced the score.
    node: the value with scores in these places.
    exact: `node` with zeros in the filled places: with `offsets` added it is the value.
    finite: whether the value's own node has the constants as numbers; if not, it is `node`.
    """

    offsets: torch.Tensor
    filled: torch.Tensor
    node: Node
    exact: Node
    finite: bool


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """A low number in places that an encrypted 0/1 input decides (torch/inputs/covers.py).

    bare: the value without it.
    places: 1 where the number is and 0 elsewhere; its shape broadcasts to the value's.
    low: the number; minus infinity where it is not one number any more.
    filled: whether it replaces the score, rather than being added to it.
    """

    bare: Value | torch.Tensor
    places: Value
    low: float
    filled: bool


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor that depends on an input.

    node: with all of torch's axes.
    dtype: torch's dtype; the tracer sets it on a rule's result. A truth value is the number 0 or 1.
    hidden: the mask of scores (torch/inputs/masks.py).
    cover: the encrypted mask of scores; the node is then without it.
    flag: whether each element is 0 or 1, as computed from inputs of zeros and ones alone.
    soft: whether such an input is one of real numbers, whose samples are zeros and ones: a client may give it others.
    """

    node: Node
    dtype: torch.dtype = torch.float64
    hidden: Hidden | None = None
    cover: Cover | None = None
    flag: bool = False
    soft: bool = False

    @property
    def exact_flag(self) -> bool:
        """Whether no client can give other numbers than 0 and 1."""
        return self.flag and not self.soft

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.node.type.shape)  # type: ignore[union-attr]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def axis(self, dim: int) -> int:
        """The axis that torch calls `dim`, counted from the first."""
        return dim % self.rank


class NoRule(Exception):
    """The rule does not support its arguments: the op is refused as if it had no rule."""


class Mixes(UnsupportedError):
    """The model's result for a sample depends on the other samples of its batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """A result without a rule, beside others that have one; the error is raised when something reads it."""

    error: UnsupportedError


def changes_in(dtype: torch.dtype, value: Value) -> bool:
    """Whether torch would round, compare or wrap the value to hold it in that dtype.

    Truth values and numbers of places are whole already, so that signed whole numbers hold them.
    """
    whole = not value.dtype.is_floating_point and dtype.is_signed and dtype != torch.bool
    return not (dtype.is_floating_point or dtype == value.dtype or whole)


class TensorNames:
    """Names of tensors by identity: the parameter's path, or a name after the source of the computation."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[torch.Tensor, str]] = {}

    def set(self, tensor: torch.Tensor, name: str) -> None:
        self._names[id(tensor)] = (tensor, name)  # holding the tensor keeps its identity from being reused

    def get(self, tensor: torch.Tensor, default: str) -> str:
        entry = self._names.get(id(tensor))
        return entry[1] if entry else default


def transposed_name(name: str) -> str:
    """The name of a matrix's transpose; transposing twice gives the first name back."""
    return name.removesuffix(".t") if name.endswith(".t") else f"{name}.t"


class Call:
    """One call of the exported graph, in the form that a rule takes."""

    def __init__(
        self,
        builder: Builder,
        names: TensorNames,
        loc: Location,
        op: str,
        user_name: str,
        result: Any,
        target: Any = None,
    ) -> None:
        self.builder = builder
        self.names = names
        self.loc = loc
        self.op = op  # the registry's name: `aten.relu`
        self.user_name = user_name  # the user's name: `torch.relu`
        self.result = result  # the fake tensor(s) that torch.export recorded: shapes and dtypes
        self.target = target  # the op itself, to be run on tensors
        # The call in the exported graph; its operands have the strides that torch gives them.
        self.node: Any = None
        # Nodes that are one entry along the first axis of another, for ops of the program that have no axis of samples.
        self.entries: set[Node] = set()
        # For each node that is a softmax (or its logarithm): which of the two, its operand, and the axis.
        self.finals: dict[Node, tuple[str, Node, int]] = {}
        # For each finite number in place of a huge one (torch/inputs/covers.py), by its name: the places of a line.
        self.softened: dict[str, int] = {}
        # The possible values, for rules that decide by them.
        self.reach = Reach(builder)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
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

    def constant_node(self, operand: torch.Tensor | float | int) -> Node:
        """A known tensor or number as a node."""
        if isinstance(operand, torch.Tensor):
            return self.emit("constant", value=self.constant(operand))
        number = torch.tensor(float(operand), dtype=torch.float64)
        return self.emit("constant", value=self.constant(number, f"{float(operand)!r}"))

    def nodes(self, *operands: Operand) -> list[Node]:
        """Operands as nodes."""
        return [operand.node if isinstance(operand, Value) else self.constant_node(operand) for operand in operands]

    def reshaped(self, node: Node, shape: Sequence[int]) -> Node:
        """The node under that shape; the node itself if it already has it."""
        target = tuple(int(size) for size in shape)
        return node if target == shape_of(node) else self.emit("reshape", node, shape=target)

    def by_entry(self, x: Value, change: Callable[[Node], Node]) -> Value:
        """The results of `change` on each entry along the first axis, joined along it."""
        made = []
        for place in range(x.shape[0]):
            ends = [(place, place + 1), *((0, size) for size in x.shape[1:])]
            starts, stops = zip(*ends, strict=True)
            part = x.node
            if x.shape[0] > 1:
                part = self.emit("slice", part, starts=starts, stops=stops, steps=(1,) * len(ends))
            entry = self.emit("reshape", part, shape=x.shape[1:])
            self.entries.add(entry)
            found = change(entry)
            made.append(self.emit("reshape", found, shape=(1, *shape_of(found))))
        return Value(made[0] if len(made) == 1 else self.emit("concat", *made, axis=0))

    # ------------------------------------------------------------------ refusals

    def refuse(self, why: str, hint: str) -> UnsupportedError:
        """The error to raise where this form of the op is not supported."""
        return UnsupportedError(f"{self.user_name} cannot be compiled here", where=self.loc, why=why, hint=hint)


_Part = TypeVar("_Part")


def parts(arguments: Any, kind: type[_Part]) -> Iterator[_Part]:
    """Everything of that kind in nested arguments."""
    if isinstance(arguments, kind):
        yield arguments
    elif isinstance(arguments, dict | list | tuple):
        for item in arguments.values() if isinstance(arguments, dict) else arguments:
            yield from parts(item, kind)


def with_dtypes(value: Any, recorded: Any) -> Any:
    """A rule's result, its values with the dtypes that torch recorded."""
    if isinstance(value, Value) and isinstance(recorded, torch.Tensor):
        return replace(value, dtype=recorded.dtype)
    if isinstance(value, list | tuple) and isinstance(recorded, list | tuple):
        return [with_dtypes(item, entry) for item, entry in zip(value, recorded, strict=False)]
    return value


def elementwise(call: Call, op: str, *operands: Operand) -> Value:
    """The op on operands that broadcast against each other, at least one of them a value."""
    return Value(call.emit(op, *call.nodes(*operands)))


def axes_of(x: Value, dims: Any) -> tuple[int, ...]:
    """The axes that torch calls `dims` (one, several, or none for all), counted from the first, ascending."""
    axes = [dims] if isinstance(dims, int) else list(dims or range(x.rank))
    return tuple(sorted({dim % x.rank for dim in axes}))


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
    """The rule of that torch op, from the user's registry or from `RULES`; None if neither has one."""
    for family in functions.registered():
        if name in family.torch_ops:
            return partial(_activation, family.name)
    return RULES.get(name)


def _activation(op: str, call: Call, x: Any, *arguments: Any, **keywords: Any) -> Value:
    return Value(call.emit(op, x.node))


RULES.update({name: partial(_activation, family.name) for family in functions.families() for name in family.torch_ops})


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
