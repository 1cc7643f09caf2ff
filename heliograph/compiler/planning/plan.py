"""A plan: a program on its ring, its price, and its error under encryption."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.errors import PlanningError, RangeError
from heliograph.execution.interface import batch_of, input_shape, pack_inputs, unpack_outputs
from heliograph.execution.keys import program_keys
from heliograph.execution.loop import Trace, execute
from heliograph.execution.prices import prices_on, total_ms
from heliograph.execution.primitives import RELINEARIZATIONS, RESCALES
from heliograph.execution.protocol import Call
from heliograph.execution.ranges import polynomial_inputs, range_layout
from heliograph.execution.simulator import Simulator
from heliograph.execution.walk import node_calls
from heliograph.ir import Array, Node, Program, size_of
from heliograph.ir.analysis.carried import carried_on
from heliograph.ir.analysis.depth import levels_below, node_depth
from heliograph.ir.ops.table import Role, role_of
from heliograph.machine import in_threads, threads_for
from heliograph.passes.base import Trail, begins
from heliograph.passes.levels.node_work import polynomial_work


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result of a simulation.

    `error`: the largest error of an output.
    `gap_error`: the largest error of a difference that an argmax compares, as a share of its gap.
    `trace`: the trace of the last run.
    """

    error: float
    gap_error: float
    trace: Trace


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requirements for every plan of a program.

    `inputs`: the samples for the simulation of errors.
    `headroom`: the bits that outputs need above the scale.
    `tolerance`: the largest allowed error.
    `magnitude`: the largest output.
    `gap_error`: as in `Options`.
    `faster_than`: the milliseconds of a plan that is known already.
    `paired`: whether ciphertexts hold a second group of samples as imaginary parts.
    """

    inputs: Sequence[Array]
    headroom: int
    tolerance: float
    magnitude: float
    gap_error: float = math.inf
    faster_than: float = math.inf
    paired: bool = False

    def below(self, plan: Plan | None) -> Wanted:
        """The same requirements for a plan that is faster than this one."""
        return self if plan is None else replace(self, faster_than=min(self.faster_than, plan.total_ms))

    def too_slow(self) -> Refusal:
        return Refusal(PlanningError(f"no plan takes less than {self.faster_than:.0f} ms"), slow=True)

    def refuses(self, found: Simulated) -> str:
        """Why a plan with these errors is refused; empty if it is not."""
        if found.error > self.tolerance:
            return f"its error would be {found.error:.2g}, more than {self.tolerance:.2g}"
        if found.gap_error > self.gap_error:
            return f"compared differences would err by {found.gap_error:.2g} of the gap, more than {self.gap_error:.2g}"
        return ""


def tells(ring: Ring) -> None:
    """Tell whoever listens that another plan is tried on a ring of this size."""
    begins(f"plans in N = 2^{ring.log_ring}")


@dataclass(frozen=True, slots=True)
class Plan:
    """An executable program on its ring.

    `trail`: the passes from the polynomial program.
    `trace`, `scheme_error`: the trace and the error of encryption, by simulation.
    `predicted_ms`: the predicted milliseconds of a run.
    `output_magnitude`: the largest output.
    `unbounded_ms`: the price of the plan that a bound on memory ruled out; None if it ruled out none.
    `loading_ms`: the time for reading keys again in each run, if not all of them stay in memory.
    `coarse_ms`: the price of the cheapest placement on this ring, if plans were refused as too coarse; else None.
    """

    program: Program
    trail: Trail
    ring: Ring
    trace: Trace
    predicted_ms: float
    scheme_error: float
    output_magnitude: float
    unbounded_ms: float | None = None
    loading_ms: float = 0.0
    coarse_ms: float | None = None

    @property
    def total_ms(self) -> float:
        return self.predicted_ms + self.loading_ms

    @property
    def key_bytes(self) -> int:
        """The bytes of all evaluation keys."""
        return sum(key.bytes for key in program_keys(self.program))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a chain or a ring is refused, and what the next one must have.

    `error`: the error, if no other one serves.
    `levels`: the least number of levels.
    `finer_bits`: by how many bits the scale must be finer.
    `inexact`: whether exact rotations may do instead (`PlanLevels`).
    `share`: bootstraps with this share of the errors may be precise enough.
    `room_bits`: how many bits more the first modulus needs above the scale.
    `drifts`: whether the scale must be another one.
    `calls`: the calls of the run that was simulated, which price other chains.
    `serves`: bootstraps with at most this error may be precise enough.
    `paired`: whether bootstraps refreshed two values at once.
    `slow`: whether no plan can be fast enough.
    """

    error: PlanningError
    levels: int = 0
    finer_bits: int = 0
    inexact: bool = False
    share: float = 1.0
    room_bits: int = 0
    drifts: bool = False
    calls: Mapping[Call, int] | None = None
    serves: float = math.inf
    paired: bool = False
    slow: bool = False

    @property
    def final(self) -> bool:
        """Whether no other chain on the ring would serve."""
        return not (self.levels or self.finer_bits or self.room_bits or self.drifts)

    @property
    def no_memory(self) -> bool:
        return self.error.where == "Options.memory_bytes"


def sample_inputs(program: Program, count: int) -> list[Array]:
    """A few samples of every input, with a leading sample axis: calibration samples, or uniform ones from the range."""
    if program.calibration:
        return [np.asarray(samples[:count], dtype=np.float64) for samples in program.calibration]
    random = np.random.default_rng(0)
    samples = []
    for node in program.inputs:
        low, high = node.attrs.get("low", -1.0), node.attrs.get("high", 1.0)
        samples.append(random.uniform(low, high, size=(count, *input_shape(program, node))))
    return samples


def pack_samples(program: Program, inputs: Sequence[Array]) -> Mapping[Node, Array]:
    """The slot vectors of each sample by input node, with a leading sample axis."""
    many = [pack_inputs(program, one_sample(program, inputs, i)) for i in range(inputs[0].shape[0])]
    return {node: np.concatenate([one[node] for one in many]) for node in many[0]}


def one_sample(program: Program, samples: Sequence[Array], position: int) -> list[Array]:
    """One sample of each input; secret inputs of a batched program keep a sample axis of length one."""
    batched = batch_of(program) > 1
    secret = {node.attrs["name"] for node in program.inputs if node.type.secret and batched}
    names = dict.fromkeys(node.attrs["name"] for node in program.inputs)
    return [
        array[position : position + 1] if name in secret else array[position]
        for name, array in zip(names, samples, strict=True)
    ]


def run_ms(program: Program, costs: CostTable) -> float:
    """The milliseconds of a run of an executable program, by its calls; nothing is computed."""
    return total_ms(sum(node_calls(program).values(), Counter()), program, costs)


def least_ms(program: Program, ring: Ring, costs: CostTable, batch: int = 1) -> float:
    """A lower bound of `run_ms` for a polynomial program on a ring without bootstraps, for a batch of samples.

    It counts only the dearest polynomial of each value, because polynomials of the same value may share powers, for as
    few ciphertexts as hold the value, and at the lowest level that the program allows.
    """
    below, prices, users = levels_below(program, apart=batch == ring.slots), prices_on((ring,), costs), program.users()
    dearest: dict[Node, float] = {}
    for node in program.nodes:
        if node.op == "poly" and node.type.secret:
            depth, operand = node_depth(program, node), node.inputs[0]
            calls = polynomial_work(tuple(map(float, program.array(node.attrs["coefficients"]))), depth).calls
            if any(role_of(user) in (Role.SUM, Role.TRANSPARENT) for user in users[node]):
                # A sum may be relinearized and rescaled as a whole, at the last level.
                once = (*RELINEARIZATIONS, *RESCALES)
                calls = tuple((call, n) for call, n in calls if call[0] not in once or call[1] < depth - 1)
            held = math.ceil(size_of(node) * batch / ring.slots)
            dearest[operand] = max(dearest.get(operand, 0.0), held * prices.ms(calls, below[node] + depth))
    return sum(dearest.values())


# If errors take a value out of its range, it is unknown how much finer the scale must be: this many bits are tried
# next.
BITS_FINER = 3


class AmplifiedError(RangeError):
    """Errors of encryption take a value out of its range; without them it stays inside."""


def _amplified(error: RangeError) -> AmplifiedError:
    return AmplifiedError(error.what, where=error.where, why=error.why, hint=error.hint)


@dataclass(frozen=True, slots=True)
class _Run:
    """A simulated run.

    `outputs`: the decrypted outputs.
    `compared`: what an argmax compares, by its node.
    `results`: the outputs' ciphertexts.
    """

    outputs: Sequence[Array]
    compared: Mapping[Node, Array]
    results: Sequence[Any]
    trace: Trace


def simulated(
    program: Program, samples: Sequence[Array], refuses: Callable[[Simulated], str] | None = None
) -> Simulated:
    """The errors of encryption on these samples, by the simulator; it stops at the first sample that `refuses` rejects.

    For a program that carries values from run to run, the samples are successive runs: each starts from the values of
    the previous one, with their errors. Raises RangeError if a value leaves its range, AmplifiedError if only errors
    take it there.
    """
    compared = {
        node: (entry, chunk)
        for node, (entry, chunk) in polynomial_inputs(program).items()
        if program.ranges[entry].gap is not None and program.ranges[entry].function.startswith("argmax")
    }
    vectors = [pack_inputs(program, one_sample(program, samples, i)) for i in range(samples[0].shape[0])]
    left: dict[bool, Mapping[Node, Any]] = {False: {}, True: {}}

    def run(position: int, noisy: bool) -> _Run:
        seen: dict[Node, Array] = {}

        def watch(node: Node, value: Any) -> None:
            if node in compared:
                entry, chunk = compared[node]
                seen[node] = range_layout(program, entry).in_all_copies(np.real(value.slots), chunk)

        simulator = Simulator(program, seed=position, noisy=noisy)
        encrypted = {**simulator.encrypt_inputs(vectors[position]), **left[noisy]}
        results, trace = execute(program, simulator, encrypted, observe=watch if compared else None)
        outputs = unpack_outputs(program, [simulator.decrypt(result) for result in results])
        return _Run(outputs, seen, results, trace)

    def both(first: int, number: int) -> tuple[_Run, _Run] | RangeError:
        """The runs on a sample without errors of encryption and with them. An exception is returned, because it does not
        count if a sample before this one is refused.
        """
        try:
            exact = run(first + number, noisy=False)
        except RangeError as error:
            return error
        try:
            return exact, run(first + number, noisy=True)
        except RangeError as error:
            # The exact run came first, and it passed.
            return _amplified(error)

    found, worst, decisions = Simulated(0.0, 0.0, Trace()), 0.0, 0.0
    size = len(program.nodes) * program.ring.slots
    # Where a run starts from what the one before it left, they take turns.
    together = 1 if program.interface.carried else threads_for(len(vectors), size)
    for first in range(0, len(vectors), together):
        runs = in_threads(partial(both, first), min(together, len(vectors) - first), size)
        for position, pair in enumerate(runs, first):
            if isinstance(pair, RangeError):
                raise pair
            exact, noisy = pair
            left = {False: carried_on(program, exact.results), True: carried_on(program, noisy.results)}
            apart = (np.abs(a - b).max(initial=0.0) for a, b in zip(exact.outputs, noisy.outputs, strict=True))
            worst = max(worst, *map(float, apart))
            for node, (entry, _) in compared.items():
                known = program.ranges[entry]
                moved = float(np.abs(exact.compared[node] - noisy.compared[node]).max(initial=0.0))
                decisions = max(decisions, moved * (known.high - known.low) / 2 / float(known.gap or 1.0))
            found = Simulated(worst, decisions, noisy.trace)
            if refuses is not None and refuses(found):
                return found
            if position == 0 and _is_fragile(program):
                louder = _louder(program, vectors[0], exact.outputs)
                if louder > _EXPLODES * _LOUDER * worst:
                    return Simulated(louder, decisions, noisy.trace)
    return found


# Polynomials that are composed keep values in [-1, 1], and beyond they grow fast: an error of several deviations in one
# slot, which few simulations meet, may destroy the result. With errors this many times as large every simulation meets
# it; errors that only grow in proportion are no sign of it. (100 trees of depth 6, compared in 5112 slots at a scale of
# 30 bits: with errors 3 times as large all of 12 simulations failed, with errors twice as large 2, and 4 of 361 real
# runs. The plan that passes has 33 bits; none of 40 runs failed.)
_LOUDER, _EXPLODES = 3.0, 4.0


def _is_fragile(program: Program) -> bool:
    """Whether polynomials of the program are composed."""
    return any(entry.degrees is not None and len(entry.degrees) > 1 for entry in program.ranges)


def _louder(program: Program, vectors: Mapping[Node, Array], exact: Sequence[Array]) -> float:
    """The largest error of the outputs with such errors of encryption. AmplifiedError if a value leaves its range."""
    simulator = Simulator(program, seed=1, louder=_LOUDER)
    try:
        results, _ = execute(program, simulator, simulator.encrypt_inputs(vectors))
        outputs = unpack_outputs(program, [simulator.decrypt(result) for result in results])
    except RangeError as error:
        raise _amplified(error) from None
    return max(float(np.abs(a - b).max(initial=0.0)) for a, b in zip(exact, outputs, strict=True))
