"""The loop that executes a scheduled program on any backend, and its records."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heliograph.errors import ProgramError, RangeError
from heliograph.execution.evaluation import Run
from heliograph.execution.evaluator import Evaluator
from heliograph.execution.primitives import BOOTSTRAPS, KEY_SWITCHES, PLAIN_PRODUCTS, ROTATIONS
from heliograph.execution.protocol import Call
from heliograph.ir import CipherType, Node, Program, Stage
from heliograph.ir.analysis.liveness import last_use_table
from heliograph.ir.ops.table import OPS, Context

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Trace:
    """The record of one execution: seconds and calls of primitives, in total and by layer."""

    seconds: float = 0.0
    by_layer: dict[str, float] = field(default_factory=dict)
    calls: Counter[Call] = field(default_factory=Counter)
    calls_by_layer: dict[str, Counter[Call]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayerCalls:
    """The homomorphic work of one layer.

    `rotations`: all automorphisms, hoisted ones included.
    `key_switches`: rotations and relinearizations.
    `plaintext_products`: products with plaintexts (`PLAIN_PRODUCTS`).
    `bootstraps`: raised moduli.
    """

    layer: str
    rotations: int
    key_switches: int
    plaintext_products: int
    bootstraps: int = 0


def calls_table(calls_by_layer: Mapping[str, Counter[Call]]) -> list[LayerCalls]:
    """A row for each layer that rotates, switches keys or multiplies with plaintexts, in program order."""
    rows = []
    for layer, calls in calls_by_layer.items():
        kinds: Counter[str] = Counter()
        for call, number in calls.items():
            kinds[call.primitive] += number
        sums = [sum(kinds[kind] for kind in group) for group in (ROTATIONS, KEY_SWITCHES, PLAIN_PRODUCTS, BOOTSTRAPS)]
        row = LayerCalls(layer, *sums)
        if row.key_switches or row.plaintext_products or row.bootstraps:
            rows.append(row)
    return rows


def _check_plain(node: Node, known: Node, value: Any, log_primes: Sequence[float]) -> None:
    """Raise a RangeError if a plain vector cannot be encoded: backends would round it to nonsense, or stop.

    The error leaves out the value: plain inputs belong to the server, and its client reads the error.
    """
    kind = node.inputs[0].type
    assert isinstance(kind, CipherType)
    size = float(np.abs(value).max(initial=0.0))
    room = sum(log_primes[: kind.level + 1]) - 1 - node.attrs.get("plain_log_scale", kind.log_scale)
    if not math.isfinite(size):
        raise RangeError(f"{known.op} gives NaN or infinity", where=known.loc, why="a plain value meets a ciphertext")
    if size > 0 and math.log2(size) > room:
        raise RangeError(
            f"{known.op} gives a plain value too large for a ciphertext at level {kind.level}",
            where=known.loc,
            why=f"there is room for {2.0**room:.3g}",
            hint="scale the plain input",
        )


def _check_kind(node: Node, kind: CipherType, value: Any, evaluator: Evaluator[Any]) -> None:
    """Raise a ProgramError if a ciphertext, or one of a stack, does not have the planned level and parts."""
    for each in value if isinstance(value, list) else (value,):
        level, parts = evaluator.describe(each)
        if (level, parts) != (kind.level, kind.parts):
            raise ProgramError(
                f"{node.op} gave level {level} with {parts} parts, planned were {kind.level} with {kind.parts}",
                where=node.loc,
                why="input of another level, or a backend that disagrees with the plan",
            )


def execute(
    program: Program,
    evaluator: Evaluator[Any],
    inputs: dict[Node, Any],
    progress: Progress | None = None,
    observe: Callable[[Node, Any], None] | None = None,
) -> tuple[list[Any], Trace]:
    """The output ciphertexts of an executable program, in order, and the trace.

    `inputs` has a ciphertext for each secret input node, and an array with a leading axis of one for each plain one.
    Values are dropped after their last use. After every node, the backend's level and parts must agree with the plan.
    """
    if program.stage is not Stage.EXECUTABLE:
        raise ProgramError(f"a program at stage {program.stage.value} cannot be executed", hint="compile it first")
    with contextlib.closing(evaluator.begin()) as run:
        return _execute(program, evaluator, run, inputs, progress, observe)


def _execute(
    program: Program,
    evaluator: Evaluator[Any],
    run: Run[Any],
    inputs: dict[Node, Any],
    progress: Progress | None,
    observe: Callable[[Node, Any], None] | None,
) -> tuple[list[Any], Trace]:
    trace = Trace()
    context = Context(program.constants, program.log_primes)
    last_uses = last_use_table(program.nodes, program.outputs)
    table: list[Any] = [None] * len(program.nodes)
    index = {node: i for i, node in enumerate(program.nodes)}
    total = len(program.nodes)
    counted: Counter[Call] = Counter()
    start = time.perf_counter()
    for i, node in enumerate(program.nodes):
        begun = time.perf_counter()
        operands = [table[index[operand]] for operand in node.inputs]
        if node.op == "input":
            value = inputs[node]
        elif not node.type.secret:
            # Plain values are computed in the clear, as arrays with a leading axis of one sample. NaN and infinity are
            # refused where they meet a ciphertext.
            with np.errstate(all="ignore"):
                value = OPS[node.op].evaluate(operands, node.attrs, context)
        else:
            for operand, known in zip(operands, node.inputs, strict=True):
                if not known.type.secret:
                    _check_plain(node, known, operand, context.log_primes)
            value = run.evaluate(node, operands)
        if isinstance(node.type, CipherType):
            _check_kind(node, node.type, value, evaluator)
        table[i] = value
        if observe is not None:
            observe(node, value)
        for freed in last_uses[i]:
            table[freed] = None
        layer = node.loc.layer or node.op
        trace.by_layer[layer] = trace.by_layer.get(layer, 0.0) + time.perf_counter() - begun
        if node.type.secret and node.op != "input":
            mine = trace.calls_by_layer.setdefault(layer, Counter())
            for call, number in run.calls.items():
                if number != counted[call]:
                    mine[call] += number - counted[call]
                    counted[call] = number
        if progress is not None:
            progress("evaluate", i + 1, total)
    trace.seconds = time.perf_counter() - start
    trace.calls = Counter(run.calls)
    return [table[index[node]] for node in program.outputs], trace
