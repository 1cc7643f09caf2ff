"""Random executable programs, of every op that can stand in one, with whatever the rules of types let through.

Nothing here plans: levels, scales and sizes may be of no use to anybody. What the verifier passes must nevertheless run, or
be refused in words.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from runtime.bootstrapped import COARSE, FULL
from runtime.bootstrapped import RING as BOOTSTRAPPED

from heliograph.ckks.chains import Chain
from heliograph.ckks.fourier import transform
from heliograph.ckks.parameters import Parameters
from heliograph.ckks.ring import Ring
from heliograph.errors import HeliographError, ProgramError
from heliograph.ir import Builder, CipherType, Node, Program, SparseMatrix, Stage, TensorType
from heliograph.ir.bootstraps.asked import WHOLE
from heliograph.ir.interface import Interface, TensorSpec
from heliograph.ir.maps.diagonals import MapGeometry
from heliograph.ir.maps.layout import Layout
from heliograph.ir.ops.table import OPS
from heliograph.ir.verify import verify
from heliograph.passes.bootstraps.lower_bootstraps import LowerBootstraps
from heliograph.passes.levels.place_chains import PlaceChains
from heliograph.passes.levels.schedule import Schedule
from heliograph.passes.levels.select_keys import SelectKeys

# The amounts that are rotated by: a key of each is in every chain that has keys.
ROTATIONS = (1, 2, 3, 4, 5, 8)
# Amounts without a key of their own, which the steps of a transform are composed of.
PATHS = {6: (5, 1), 12: (8, 4)}


@dataclass(frozen=True, slots=True)
class Family:
    """Programs on one ring: its lower parts, where it has any, and the period of values that are bootstrapped."""

    ring: Ring
    lower: tuple[Ring, ...] = ()
    period: int = 0

    @property
    def chains(self) -> tuple[Chain, ...]:
        """The chains and their keys; the lowest of several has one key only."""
        several = [Chain(ring, ROTATIONS, True) for ring in (self.ring, *self.lower)]
        return (*several[:-1], Chain(self.lower[-1], (1,), False)) if len(self.lower) > 1 else tuple(several)


_SPLIT = Ring(10, 60, 45, 6, 3, None)
PLAIN = (
    Family(Ring(10, 60, 45, 5, 2, None)),
    Family(Ring(10, 45, 40, 4, 5, None, short_specials=True)),
    Family(Ring(11, 55, 49, 5, 3, None, short_specials=True)),
    Family(_SPLIT, (_SPLIT.lower(3, 2), _SPLIT.lower(1, 1))),
)
BOOTSTRAPPING = (
    Family(BOOTSTRAPPED, (), 4),
    Family(BOOTSTRAPPED, (BOOTSTRAPPED.lower(16, 4, True), BOOTSTRAPPED.lower(3, 2)), 16),
    Family(FULL, (), 4),
    Family(FULL, (FULL.lower(18, 6, True),), 8),
    Family(COARSE, (), 8),
)


class RandomExecutable:
    """Adds random ops to a managed program; every choice comes from one generator."""

    def __init__(self, rng: random.Random, family: Family) -> None:
        self.rng, self.family, self.ring = rng, family, family.ring
        self.builder = Builder("random", Stage.MANAGED)
        self.builder.parameters = Parameters(family.chains, PATHS)
        self.slots = self.ring.slots
        self.period = family.period or rng.choice((1, 4, 64, self.slots, self.slots))
        self.values: list[Node] = []
        self.inputs: list[Node] = []
        self.plain: list[Node] = []

    # --------------------------------------------------------------------------------------- values and attributes

    def vector(self) -> Any:
        """A constant that fills the slots a whole number of times; now and then one that does not."""
        size = self.rng.choice((1, self.period, self.period, self.slots, 3))
        values = np.random.default_rng(self.rng.randrange(4)).uniform(-1, 1, size)
        return self.builder.constant(values, "v")

    def matrix(self, rows: int, columns: int) -> Any:
        made = np.random.default_rng(self.rng.randrange(3)).normal(size=(rows, columns)) / columns
        if self.rng.random() < 0.15:
            made[self.rng.randrange(rows)] = 0.0
        return self.builder.constant(SparseMatrix.of(made), "m")

    def scale(self) -> float:
        """Of a plaintext: mostly that of the ring, or the prime's above it."""
        bits = float(self.ring.scale_bits)
        return self.rng.choice((bits, bits, bits, bits, bits - 7.25, 10.0, 0.0, 100.0))

    def operands(self, count: int) -> list[Node]:
        """Values of the same kind where there are any: others are refused."""
        first = self.rng.choice(self.values)
        alike = [value for value in self.values if value.type == first.type]
        known = alike if self.rng.random() < 0.8 else self.values
        return [first, *(self.rng.choice(known) for _ in range(count - 1))]

    def packed(self) -> Node:
        """A plain vector that is known at run time."""
        tensor = self.rng.choice([node for node in self.plain if isinstance(node.type, TensorType)])
        (size,) = tensor.type.shape  # type: ignore[union-attr]
        return self.builder.op("pack", (tensor,), layout=Layout((size,), self.slots, size))

    def made(self, name: str) -> Node:
        """The op on random operands; a ProgramError, or what a rule raises, where they do not fit."""
        attrs, count = ATTRIBUTES[name](self) if name in ATTRIBUTES else ({}, None)
        low, _ = OPS[name].arity
        operands = self.operands(low if count is None else count)
        if name in ("mul_pt", "add_pt"):
            operands = [operands[0], self.packed()]
        if name == "weighted_sum":
            operands = [self.rng.choice([value for value in self.values if _count(value) > 1] or self.values)]
            attrs["matrix"] = self.matrix(2, _count(operands[0]))
        if name == "bootstrap":
            operands = [self.builder.op("real_part", (value,)) if is_complex(value) else value for value in operands]
            operands = [self.at_level(value, self.ring.bootstrap_input_level) for value in operands]
        if name == "raise_modulus":
            operands = [self.at_level(operands[0], 0)]
        if name == "refreshed":
            operands = [operands[0], *operands[: self.rng.randint(1, 2)]]
        return self.builder.op(name, operands, **attrs)

    def at_level(self, value: Node, level: int) -> Node:
        """The value there, where it stands higher: what some ops begin at."""
        here = getattr(value.type, "level", 0)
        if here <= level or self.rng.random() < 0.1:
            return value
        return self.builder.op("level_drop", (value,), levels=here - level)

    # --------------------------------------------------------------------------------------- programs

    def grow(self, steps: int) -> None:
        """Up to so many more values; what rules of types refuse is tried with other operands."""
        names, weights = _choices(self.family)
        for _ in range(20 * steps):
            if len(self.values) >= len(self.inputs) + steps:
                return
            try:
                value = self.made(self.rng.choices(names, weights)[0])
                self.values.append(value)
                # Products are mostly brought back to what other ops take.
                if getattr(value.type, "parts", 2) == 3 and self.rng.random() < 0.6:
                    value = self.builder.op("relinearize", (value,))
                    self.values.append(value)
                if value.op in _RESCALED and self.rng.random() < 0.6:
                    self.values.append(self.builder.op("rescale", (value,)))
            except (HeliographError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                continue

    def ended(self, value: Node) -> Node:
        """The value as an output must be, at level 0 with two parts, by whatever way."""
        if _count(value) > 1:
            value = self.builder.op(
                "weighted_sum", (value,), matrix=self.matrix(1, _count(value)), row=0, plain_log_scale=self.scale()
            )
        if value.type.parts == 3:  # type: ignore[union-attr]
            value = self.builder.op("relinearize", (value,))
        if is_complex(value):
            value = self.builder.op(self.rng.choice(("real_part", "imaginary_part")), (value,))
        while value.type.level:  # type: ignore[union-attr]
            high = value.type.log_scale > 1.5 * self.ring.scale_bits  # type: ignore[union-attr]
            if high and self.rng.random() < 0.8:
                value = self.builder.op("rescale", (value,))
            elif high and value.type.level > 1 and self.rng.random() < 0.5:  # type: ignore[union-attr]
                value = self.builder.op("level_drop", (value,), levels=1)
            else:
                value = self.builder.op("level_drop", (value,), levels=value.type.level)  # type: ignore[union-attr]
        return value

    def outputs(self) -> list[Node]:
        """One or two of the last values."""
        found: list[Node] = []
        wanted = self.rng.randint(1, 2)
        for value in reversed(self.values):
            if len(found) == wanted:
                break
            if isinstance(value.type, CipherType) and value not in self.inputs:
                try:
                    found.append(self.ended(value))
                except ProgramError:
                    continue
        return list(dict.fromkeys(found))

    def carried(self) -> list[tuple[Node, Node]]:
        """A value that an input of the next run can be, with that input; none where there is none.

        Only where inputs fill the slots: a value that does not repeat as its input does would be another one there.
        """
        if self.period < self.slots or self.rng.random() < 0.3:
            return []
        for value in reversed(self.values):
            for source in self.inputs:
                if value not in self.inputs and value.type == source.type and not is_complex(value):
                    return [(value, source)]
        return []

    def program(self, steps: int) -> Program:
        """An executable program; a ProgramError where nothing came of it."""
        for i in range(self.rng.randint(1, 2)):
            level = self.rng.randint(1, self.ring.levels)
            if self.family.period:
                level = self.rng.choice((self.ring.bootstrap_input_level, self.ring.bootstrap_input_level + 1, level))
            node = self.builder.input(
                f"x{i}", slots=self.slots, chunk=0, level=level, log_scale=float(self.ring.scale_bits)
            )
            self.inputs.append(node)
        self.values += self.inputs
        size = min(self.period, 64)
        self.plain = [self.builder.input("p", shape=(size,), low=-1.0, high=1.0, secret=False)]
        for name in self.rng.sample(("neg", "add", "mul", "tanh"), 2):
            operands = [self.rng.choice(self.plain) for _ in range(OPS[name].arity[0])]
            self.plain.append(self.builder.op(name, operands))
        self.grow(steps)
        outputs, carried = self.outputs(), self.carried()
        if not outputs:
            raise ProgramError("nothing came of it")
        names = {f"y{i}": node for i, node in enumerate(outputs)}
        names |= {f"c{i}": node for i, (node, _) in enumerate(carried)}
        one, whole = (Layout((size,), self.slots, size) for size in (self.period, self.slots))
        self.builder.interface = Interface(
            tuple(TensorSpec(node.attrs["name"], (self.period,), one) for node in self.inputs),
            tuple(
                TensorSpec(name, (self.period,), one) if name[0] == "c" else TensorSpec(name, (self.slots,), whole)
                for name in names
            ),
            carried=tuple((f"c{i}", source.attrs["name"]) for i, (_, source) in enumerate(carried)),
        )
        return self._executable(self.builder.finish(names))

    def _executable(self, program: Program) -> Program:
        """The program in the order in which it was made, or scheduled; chains as they came, or placed."""
        lower = tuple(ring for ring in self.family.lower if ring.bootstrap is not None)
        if any(node.op == WHOLE for node in program.nodes):
            program = SelectKeys(self.ring, bootstrapping=lower).run(LowerBootstraps(self.ring, lower).run(program))
        if self.rng.random() < 0.5 or self.ring.bootstrap is not None:
            program = PlaceChains().run(program)
        if self.rng.random() < 0.5:
            return verify(Schedule().run(program))
        return verify(replace(program, stage=Stage.EXECUTABLE))


def _count(value: Node) -> int:
    return int(getattr(value.type, "count", 1))


def is_complex(value: Node) -> bool:
    """Whether its slots may have imaginary parts."""
    found: dict[Node, bool] = {}
    waiting = [value]
    while waiting:
        node = waiting[-1]
        if rest := [operand for operand in node.inputs if operand not in found]:
            waiting += rest
            continue
        made = node.op in _COMPLEX or "imaginary" in node.attrs or (node.op == WHOLE and len(node.inputs) == 2)
        inherited = any(found[operand] for operand in node.inputs) and node.op not in ("real_part", "imaginary_part")
        found[waiting.pop()] = made or inherited
    return found[value]


_COMPLEX = ("mul_i", "complex_of", "raise_modulus", "fourier_factor")
_RESCALED = ("relinearize", "mul_plain", "mul_pt", "lincomb", "linear_transform", "weighted_sum", "fourier_factor")
Attributes = Callable[[RandomExecutable], tuple[dict[str, Any], "int | None"]]


def _combination(r: RandomExecutable) -> tuple[dict[str, Any], int]:
    count = r.rng.randint(1, 4)
    weights = tuple(r.rng.choice((r.rng.uniform(-1, 1), 0.0, 1e-9, 1e6)) for _ in range(count))
    return {"weights": weights, "constant": r.rng.choice((0.0, 0.25)), "plain_log_scales": (r.scale(),) * count}, count


def _transform(r: RandomExecutable) -> tuple[dict[str, Any], int]:
    """Offsets are 0 to 7 of the one shape, 0 to 3 of the other; steps that do not reach them all are refused."""
    rows, columns = r.rng.choice(((8, 16), (4, 4), (8, 8)))
    count = r.rng.choice((1, 1, 2))
    baby, giant = r.rng.choice((((0, 1, 2, 3), (0, 4)), ((0, 1), (0, 2, 4, 6)), ((0, 1, 2, 3, 4, 5, 6, 7), (0,))))
    return {
        "matrices": tuple(r.matrix(rows, columns) for _ in range(count)),
        "geometry": MapGeometry(r.ring.slots, columns, rows),
        "baby_steps": baby,
        "giant_steps": giant,
        "plain_log_scales": (r.scale(),) * count,
    }, count


def _product_with_constant(r: RandomExecutable) -> tuple[dict[str, Any], None]:
    found = {"value": r.vector(), "plain_log_scale": r.scale()}
    return found | ({"imaginary": r.vector()} if r.rng.random() < 0.2 else {}), None


def _bootstrap(r: RandomExecutable) -> tuple[dict[str, Any], int]:
    count, least = r.rng.choice((1, 1, 2)), r.ring.bootstrap_input_level + 1
    found: dict[str, Any] = {
        "slots": r.rng.choice((r.period,) * 6 + (r.period // 2, 2 * r.period)),
        "level": r.rng.randint(least, max(least, r.ring.bootstrap_level)),
        "raised_bits": r.rng.choice((0, 0, 0, 2)),
    }
    if count == 1 and r.rng.random() < 0.15:
        coefficients = np.random.default_rng(1).normal(size=(2, 4)) / 8
        found |= {"series": r.builder.constant(coefficients, "s"), "half_period": 1.5, "deeper": 0}
        found.pop("raised_bits")
    return found, count


def _factor(r: RandomExecutable) -> tuple[dict[str, Any], None]:
    ring = r.ring if r.ring.bootstrap is not None else FULL
    factor = r.rng.choice(transform(ring, r.family.period or 8, r.rng.random() < 0.5)[0])
    names = ("slots", "inverse", "scale", "layers", "giant", "shift")
    return {**{name: getattr(factor, name) for name in names}, "plain_log_scale": float(r.ring.scale_bits)}, None


# What an op's attributes may be, and how many operands it takes where that is not fixed; ops that are not here have none.
ATTRIBUTES: Mapping[str, Attributes] = {
    "rotate": lambda r: ({"amount": r.rng.choice((*ROTATIONS, *ROTATIONS, -1, 0, 7, r.slots, r.slots + 1))}, None),
    "add_scalar": lambda r: ({"value": r.rng.choice((0.5, -0.25, 1e9, -1e-12, 0.0))}, None),
    "mul_int": lambda r: ({"factor": r.rng.choice((2, -3, 1, -1, 1 << 20))}, None),
    "lincomb": _combination,
    "mul_plain": _product_with_constant,
    "add_plain": lambda r: ({"value": r.vector()}, None),
    "mul_pt": lambda r: ({"plain_log_scale": r.scale()}, None),
    "linear_transform": _transform,
    "level_drop": lambda r: ({"levels": r.rng.choice((1, 1, 2, 3, 0, -1))}, None),
    "switch_chain": lambda r: ({"chain": r.rng.randint(-1, 2)}, None),
    "stack": lambda r: ({}, r.rng.randint(1, 4)),
    "weighted_sum": lambda r: ({"row": r.rng.choice((0, 1, 1, 2, -1)), "plain_log_scale": r.scale()}, None),
    "bootstrap": _bootstrap,
    "fourier_factor": _factor,
    "raise_modulus": lambda r: (
        {"slots": r.rng.choice((r.period, 4)), "level": r.ring.levels}
        | ({"share": 4.0} if r.rng.random() < 0.3 else {}),
        None,
    ),
    "reread": lambda r: ({"bits": r.rng.choice((1.0, -1.0, 7.5, 20.0))}, None),
    "refreshed": lambda r: ({"slots": r.period}, None),
}
# Ops that are asked for more often than others, or less.
_WEIGHTS = {"mul_ct": 3.0, "linear_transform": 2.0, "stack": 2.0, "weighted_sum": 3.0, "switch_chain": 0.5}
_INSIDE = {"bootstrap": 20.0, "raise_modulus": 1.0, "refreshed": 0.3, "fourier_factor": 0.7}
# Ops on slots that give no ciphertext, and stand in a program as operands of others.
_PLAIN = ("pack",)


def ops() -> list[str]:
    """The ops that can stand in an executable program and give a ciphertext, and the bootstrap, which is written out."""
    return [
        name
        for name, spec in OPS.items()
        if (Stage.EXECUTABLE in spec.stages or name == WHOLE) and spec.rules is not None and name not in _PLAIN
    ]


@functools.cache
def _choices(family: Family) -> tuple[list[str], list[float]]:
    names = [name for name in ops() if family.period or name not in _INSIDE or name == "fourier_factor"]
    inside = _INSIDE if family.period else {"fourier_factor": 0.1}
    return names, [(_WEIGHTS | inside).get(name, 1.0) for name in names]


def random_executable(seed: int, bootstrapping: float) -> Program:
    """The program of that number; that share of them is on rings that bootstrap."""
    rng = random.Random(seed)
    family = rng.choice(BOOTSTRAPPING if rng.random() < bootstrapping else PLAIN)
    made = RandomExecutable(rng, family)
    return made.program(rng.randint(3, 5 if family.period else 12))


def samples(program: Program, seed: int) -> dict[str, np.ndarray]:
    """An array for each input, by name."""
    drawn = np.random.default_rng(seed)
    shapes = {spec.name: spec.shape for spec in program.interface.inputs} | {
        node.attrs["name"]: node.attrs["shape"] for node in program.inputs if not node.type.secret
    }
    return {name: drawn.uniform(-0.5, 0.5, shape) for name, shape in shapes.items()}
