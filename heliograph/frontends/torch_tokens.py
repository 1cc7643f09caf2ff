"""Inputs of whole numbers that choose rows of a table: the program takes them one-hot, and the lookup is a linear map.

The client makes the one-hot vectors from the numbers by itself (`TensorSpec.classes`).
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch

from heliograph.errors import UnsupportedError
from heliograph.frontends.torch_layers import matrix_times
from heliograph.frontends.torch_source import short_name
from heliograph.frontends.torch_values import Call, Value, rule_of
from heliograph.ir import Location, Node, shape_of

# Ops that pass whole numbers on unchanged.
_SAME = frozenset({"to", "_to_copy", "clone", "detach", "alias", "contiguous", "lift_fresh_copy"})
# Ops that take some of them, by their place.
_PARTS = frozenset({"select", "slice"})
# Comparisons with a known number.
_COMPARISONS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
# The most numbers in the one-hot vectors of one input.
_MOST = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Whole numbers that an input gives, as the one-hot node that stands for them."""

    node: Node
    classes: int


def classes_of(placeholder: Any, tables: dict[Any, torch.Tensor]) -> int | None:
    """How many rows the tables have that an input of whole numbers is looked up in; None where it is read otherwise.

    `tables` has the tensor of each placeholder that is a parameter.
    """
    found, waiting = [], [placeholder]
    while waiting:
        node = waiting.pop()
        for user in node.users:
            short = short_name(user.target) if user.op == "call_function" else ""
            if short == "embedding" and user.args[0] in tables and user.args[1] is node:
                found.append(int(tables[user.args[0]].shape[0]))
            elif short == "one_hot" and len(user.args) > 1 and int(user.args[1]) > 0:
                found.append(int(user.args[1]))
            elif short in _SAME | _PARTS:
                waiting.append(user)
            elif short in _COMPARISONS and isinstance(user.args[1], int):
                pass  # which numbers it holds for is known
            elif not _reads_shape_alone(user):
                return None
    return max(found, default=None)


def _reads_shape_alone(node: Any) -> bool:
    return node.op == "call_function" and not isinstance(node.meta.get("val"), torch.Tensor)


def check_size(name: str, shape: tuple[int, ...], classes: int, where: Location) -> None:
    """Refuse an input whose one-hot vectors would be too large."""
    if math.prod(shape) * classes > _MOST:
        raise UnsupportedError(
            f"input {name!r} chooses {math.prod(shape)} rows of a table of {classes}",
            where=where,
            why=f"it would be encrypted as one-hot vectors of {math.prod(shape) * classes} numbers, at most {_MOST}",
            hint="look the vectors up on the client, and trace the part of the model after its embeddings",
        )


def token_call(call: Call, args: Any, tokens: Tokens) -> Any:
    """What an op makes of whole numbers; an error for what does more than look up."""
    short = call.op.rsplit(".", 1)[-1]
    if short in _SAME:
        return tokens
    if short.startswith("_assert"):
        return None
    if short == "embedding" and isinstance(args[0], torch.Tensor):
        table = _of_height(args[0].detach(), tokens.classes)
        call.names.set(table, call.names.get(args[0], f"{call.loc.layer}.weight"))
        return Value(matrix_times(call, tokens.node, table.t().contiguous()), 0)
    if short == "one_hot":
        return Value(tokens.node, 0)
    part = rule_of(call.op) if short in _PARTS else None
    if part is not None:
        # The one-hot vectors lie on an axis of their own, after the others.
        axis = args[1] % len(shape_of(tokens.node)) if len(args) > 1 else 0
        made: Value = part(call, Value(tokens.node, 0), axis, *args[2:])
        return Tokens(made.node, tokens.classes)
    if short in _COMPARISONS and isinstance(args[1], int):
        return _compared(call, short, tokens, args[1])
    raise call.refuse(
        "it computes with whole numbers that choose rows of a table",
        "look them up (nn.Embedding) only, or give them a second time as floating-point numbers",
    )


def _compared(call: Call, short: str, tokens: Tokens, number: int) -> Value:
    """One where the comparison holds, else zero: a sum of the one-hot vector's elements."""
    holds = torch.tensor([[float(_COMPARISONS[short](token, number)) for token in range(tokens.classes)]])
    made = matrix_times(call, tokens.node, holds)
    return Value(call.emit("reshape", made, shape=shape_of(made)[:-1]), 0)


def _of_height(table: torch.Tensor, rows: int) -> torch.Tensor:
    """The table with rows of zeros behind, as many as the largest table has."""
    lacking = rows - table.shape[0]
    return torch.cat([table, table.new_zeros(lacking, table.shape[1])]) if lacking else table
