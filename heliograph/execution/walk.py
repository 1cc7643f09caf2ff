"""The calls of a program's evaluation, counted by evaluating its ops without values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from heliograph.execution.evaluation import Run
from heliograph.execution.evaluator import Evaluator, Transform
from heliograph.execution.primitives import COUNTED, UNCOUNTED
from heliograph.execution.protocol import Call
from heliograph.ir import Node, Program
from heliograph.ir.ops.slots.runs import cipher
from heliograph.ir.ops.table import OPS, Role, role_of

# Stands in for every ciphertext, plaintext and digit.
_NOTHING = object()


class NoValues:
    """Primitives without values: every ciphertext, plaintext and digit is the same object."""

    def describe(self, x: object) -> tuple[int, int]:
        raise AssertionError("nothing has neither level nor parts")

    def sums_of_products(self, values: object, plains: object, groups: Sequence[object]) -> list[object]:
        return [_NOTHING] * len(groups)

    wide_sums = sums_of_products

    def weighted_sums(self, values: object, weights: Any, log_scale: float) -> list[object]:
        return [_NOTHING] * weights.shape[0]


def _nothing(self: NoValues, *operands: Any) -> object:
    return _NOTHING


for _name in {*COUNTED, *UNCOUNTED} - vars(NoValues).keys():
    setattr(NoValues, _name, _nothing)


class Walk(Run[Any]):
    """A run that only counts the calls of evaluating nodes, into `calls` if a table is given."""

    def __init__(self, shared: Evaluator[Any], calls: Counter[Call] | None = None) -> None:
        super().__init__(shared, None)
        self._nothing: Any = NoValues()
        if calls is not None:
            self.calls = calls

    def count(self, node: Node) -> None:
        """Count the calls of a node. Call it in program order, because nodes share digits and rotations."""
        rule = OPS[node.op].run
        assert rule is not None, node.op
        rule(self, node, [_NOTHING if operand.type.secret else (_NOTHING,) for operand in node.inputs])

    def part(self, chain: int) -> Any:
        return self._nothing

    def constant(self, node: Node, level: int, make: Callable[[], Any]) -> Any:
        return _NOTHING

    def factor(self, node: Node) -> Any:
        return None

    def diagonal(self, transform: Transform[Any], g: int, position: int, b: int, offset: int) -> Any:
        return _NOTHING


def descents(node: Node) -> Counter[Call]:
    """The possible chain switches after an op that comes down some levels: one for each of them, in case a sub-chain
    ends there.
    """
    if role_of(node) is not Role.LEVEL:
        return Counter()
    made, operand = cipher(node), cipher(node.inputs[0])
    return Counter(Call("switch_chain", level, made.parts) for level in range(made.level, operand.level))


def node_calls(program: Program) -> dict[Node, Counter[Call]]:
    """The homomorphic calls of each node of an executable program, in order."""
    nothing: Any = NoValues()
    walk = Walk(Evaluator(program, lambda chain: nothing, 0))
    table: dict[Node, Counter[Call]] = {}
    for node in program.nodes:
        if node.op != "input" and node.type.secret:
            walk.calls.clear()
            walk.count(node)
            table[node] = Counter(walk.calls)
    return table
