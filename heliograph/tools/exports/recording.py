"""A compiled program as a list of primitive calls, recorded by evaluating it without ciphertexts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.ckks.ring import Ring
from heliograph.errors import ProgramError
from heliograph.execution.evaluator import Evaluator
from heliograph.execution.interface import pack_inputs
from heliograph.execution.loop import execute
from heliograph.execution.protocol import Composed
from heliograph.execution.simulator import Simulator
from heliograph.ir import Array, Program

Number = int | float


@dataclass(frozen=True, slots=True)
class Value:
    """A ciphertext of a recording: its number, its level, and its number of parts."""

    number: int
    level: int
    parts: int = 2


@dataclass(frozen=True, slots=True)
class Plain:
    """A plaintext: the name of its vector, or a number in all slots; its scale (log2), level, and the ciphertext to which it
    is added, if it is a summand.
    """

    value: str | float
    log_scale: float
    level: int
    beside: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive call: `result` is the number of the value that it makes, `attrs` its numbers by name."""

    primitive: str
    result: Value
    operands: tuple[Value, ...]
    plain: Plain | None = None
    attrs: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Input:
    """An encrypted vector that the client sends: its value, and its name `input/chunk`."""

    value: Value
    name: str
    log_scale: float


@dataclass(frozen=True, slots=True)
class Recording:
    """A program as primitive calls in one chain of moduli.

    log_scales: of the outputs (log2).
    vectors: the slots of plaintexts by name, shorter vectors repeat.
    example: slots of inputs (`in/NAME`) and of outputs (`out/NUMBER`) without the errors of encryption, for one sample.
    """

    name: str
    fingerprint: str
    ring: Ring
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Value, ...]
    log_scales: tuple[float, ...]
    vectors: Mapping[str, Array]
    example: Mapping[str, Array]


class _Recorder(Composed):
    """The primitives, each of which only writes down its call. All parts of a chain are one chain here."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.vectors: dict[str, Array] = {}
        self._names: dict[bytes, str] = {}
        self._count = 0

    def new(self, level: int, parts: int = 2) -> Value:
        self._count += 1
        return Value(self._count - 1, level, parts)

    def _add(
        self,
        primitive: str,
        operands: Sequence[Value],
        plain: Plain | None = None,
        level: int | None = None,
        parts: int | None = None,
        **attrs: Number,
    ) -> Value:
        made = self.new(
            operands[0].level if level is None else level,
            max(operand.parts for operand in operands) if parts is None else parts,
        )
        self.steps.append(Step(primitive, made, tuple(operands), plain, attrs))
        return made

    def describe(self, x: Value) -> tuple[int, int]:
        return x.level, x.parts

    def encode(self, values: Array | float, log_scale: float, level: int, beside: Value | None = None) -> Plain:
        where = None if beside is None else beside.number
        if isinstance(values, float):
            return Plain(values, log_scale, level, where)
        vector = np.ascontiguousarray(values)
        key = vector.dtype.str.encode() + vector.tobytes()
        name = self._names.setdefault(key, f"plain/{len(self._names)}")
        self.vectors[name] = vector
        return Plain(name, log_scale, level, where)

    constant = diagonal = encode

    def add(self, x: Value, y: Value) -> Value:
        return self._add("add", (x, y))

    accumulate = add

    def sub(self, x: Value, y: Value) -> Value:
        return self._add("sub", (x, y))

    def negate(self, x: Value) -> Value:
        return self._add("negate", (x,))

    def mul(self, x: Value, y: Value) -> Value:
        return self._add("mul", (x, y), parts=3)

    def relinearize(self, x: Value) -> Value:
        return self._add("relinearize", (x,), parts=2)

    def add_plain(self, x: Value, plain: Plain) -> Value:
        return self._add("add_plain", (x,), plain)

    def mul_plain(self, x: Value, plain: Plain) -> Value:
        return self._add("mul_plain", (x,), plain)

    def mul_scalar(self, x: Value, value: float, log_scale: float) -> Value:
        return self._add("mul_scalar", (x,), value=float(value), log_scale=log_scale)

    def weighted_sums(self, values: Sequence[Value], weights: Any, log_scale: float) -> list[Value]:
        sums = []
        for row in range(weights.shape[0]):
            part = slice(weights.indptr[row], weights.indptr[row + 1])
            terms = [
                self.mul_scalar(values[column], float(weight), log_scale)
                for column, weight in zip(weights.indices[part], weights.data[part], strict=True)
            ] or [self.mul_scalar(values[0], 0.0, log_scale)]
            total = terms[0]
            for term in terms[1:]:
                total = self.add(total, term)
            sums.append(total)
        return sums

    def times_i(self, x: Value) -> Value:
        return self._add("times_i", (x,))

    def rotate(self, x: Value, amount: int) -> Value:
        return self._add("rotate", (x,), amount=int(amount))

    def decompose(self, x: Value) -> None:
        return None

    def rotate_hoisted(self, x: Value, amount: int, digits: None) -> Value:
        return self.rotate(x, amount)

    def conjugate(self, x: Value) -> Value:
        return self._add("conjugate", (x,))

    def rescale(self, x: Value) -> Value:
        return self._add("rescale", (x,), level=x.level - 1)

    def level_drop(self, x: Value, levels: int) -> Value:
        return self._add("level_drop", (x,), level=x.level - levels, levels=int(levels)) if levels else x

    def move(self, x: Value, level: int) -> Value:
        return x

    def reread(self, x: Value, log_scale: float) -> Value:
        return x

    def raise_modulus(self, x: Value, slots: int, share: float | None = None) -> Value:
        raise ProgramError(
            "a program that bootstraps cannot be exported",
            why="its bootstraps switch to a sparse secret under keys that neither form has",
            hint="compile without bootstraps: a larger ring, lower degrees, or bootstrap=False",
        )


def recorded(artifact: Artifact, sample: Sequence[Any] | None = None) -> Recording:
    """The program of an artifact as primitive calls.

    sample: one array per input for the example, by default random values in the declared ranges.

    Raises ProgramError for a program that bootstraps or has plain inputs.
    """
    program, recorder = artifact.program, _Recorder()
    if any(not node.type.secret for node in program.inputs):
        raise ProgramError(
            "a program with plain inputs cannot be exported",
            why="an export holds the values of its plaintexts, and these come with each run",
            hint="make them constants of the model",
        )
    given = _example(program) if sample is None else list(sample)
    packed = pack_inputs(program, given, declared=True)
    inputs = {
        node: Input(
            recorder.new(node.attrs["level"]), f"{node.attrs['name']}/{node.attrs['chunk']}", node.attrs["log_scale"]
        )
        for node in packed
    }
    evaluator: Evaluator[Value] = Evaluator(program, lambda chain: recorder, 0)
    outputs, _ = execute(program, evaluator, {node: entry.value for node, entry in inputs.items()})
    simulator = Simulator(program, noisy=False)
    exact, _ = execute(program, simulator, simulator.encrypt_inputs(packed))
    example = {f"in/{entry.name}": packed[node][0] for node, entry in inputs.items()}
    example |= {f"out/{number}": np.real(found.slots) for number, found in enumerate(exact)}
    return Recording(
        artifact.name,
        artifact.fingerprint,
        artifact.ring,
        tuple(inputs.values()),
        tuple(recorder.steps),
        tuple(outputs),
        tuple(found.log_scale for found in exact),
        recorder.vectors,
        example,
    )


def _example(program: Program) -> list[Array]:
    """Random values in the declared ranges, one array for each input; always the same."""
    random = np.random.default_rng(0)
    return [
        random.uniform(-1.0 if spec.low is None else spec.low, 1.0 if spec.high is None else spec.high, size=spec.shape)
        for spec in program.interface.inputs
    ]
