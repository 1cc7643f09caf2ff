"""Choose ring, chain, scale and digits: the smallest ring that carries the program, then the cheapest way to use it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.bootstrap_keys import all_bootstrap_rotations, bootstrap_table_bytes
from heliograph.chains import chain_at, key_chains
from heliograph.compiler.memory import memory_bytes
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import Watch, back_passes, lower_passes, pack_passes
from heliograph.errors import PlanningError, RangeError
from heliograph.execution.backend import Call, execute
from heliograph.execution.simulator import Simulator
from heliograph.interpret import batch_of, input_shape, interpret_many, pack_inputs, unpack_outputs
from heliograph.ir import Array, Node, Program
from heliograph.ir.verify import verify
from heliograph.passes.depth import program_depth
from heliograph.passes.place_bootstraps import PlaceBootstraps, observed_sizes
from heliograph.passes.plan_levels import TooFewLevelsError
from heliograph.target import (
    ADJUSTMENT_LEVELS,
    MAX_LOG_PQ_128,
    MIN_SCALE_BITS,
    MODULAR_REDUCTION_LEVELS,
    CostTable,
    Ring,
)

# Nothing is gained by a scale finer than this; errors are then far below float32's.
_MAX_SCALE_BITS = 50
# Room above the scale in the first modulus, for the size of the outputs: at least this many bits.
_MIN_HEADROOM_BITS = 8
# A chain within this factor of the fastest is taken where its keys are smaller.
_NEARLY = 1.1
# Levels of CoeffsToSlots and SlotsToCoeffs: more levels are faster and leave fewer to the program.
_LEVEL_BUDGETS = ((2, 2), (3, 2), (3, 3), (4, 3))
# Bootstrapping keeps about scale - 35 bits where the first modulus is five bits above the scale.
_BOOTSTRAP_SCALES = (55, 57)
_BOOTSTRAP_HEADROOM_BITS = 5
# Levels between bootstraps beyond which nothing is gained, where security does not bound them.
_MAX_LEVELS_BETWEEN = 24


@dataclass(frozen=True, slots=True)
class Plan:
    """An executable program on its ring, with what the simulator measured of it."""

    program: Program
    packed: Program
    ring: Ring
    calls: Mapping[Call, int]
    predicted_ms: float
    scheme_error: float
    output_magnitude: float


def call_ms(call: Call, ring: Ring, costs: CostTable) -> float:
    """The price of one homomorphic call."""
    primitive, level, parts = call
    if primitive == "bootstrap":
        # The third number is that of its slots.
        return costs.bootstrap_ms(ring, parts)
    if primitive == "rotate":
        return costs.rotate_ms(ring, level)
    if primitive == "rotate_hoisted":
        return costs.rotate_ms(ring, level, hoisted=True)
    if primitive == "decompose":
        return costs.decompose_ms(ring, level + 1)
    if primitive == "relinearize":
        return costs.relinearize_ms(ring, level)
    if primitive == "rescale":
        return costs.rescale_ms(ring, level, parts)
    if primitive == "mul":
        return costs.mul_ms(ring, level)
    if primitive in ("mul_plain", "mul_scalar"):
        return costs.mul_plain_ms(ring, level, parts)
    if primitive == "mul_pt":
        # Its plaintext is encoded anew in every run.
        return costs.mul_plain_ms(ring, level, parts) + costs.encode_ms(ring, level)
    if primitive == "add_pt":
        return costs.add_ms(ring, level, parts) + costs.encode_ms(ring, level)
    return costs.add_ms(ring, level, parts)


def total_ms(calls: Mapping[Call, int], program: Program, costs: CostTable) -> float:
    """The price of many calls of a compiled program: a prediction from a cost table."""
    chains = key_chains(program.metadata)
    return sum(
        # A bootstrap leaves the lower part of the chain that its operand is in.
        count * call_ms(call, (chains[0] if call[0] == "bootstrap" else chain_at(chains, call[1])).ring, costs)
        for call, count in calls.items()
    )


def sample_inputs(program: Program, count: int) -> list[Array]:
    """A few samples of every input with a leading sample axis: calibration samples, or uniform ones from the range."""
    if program.calibration:
        return [np.asarray(samples[:count], dtype=np.float64) for samples in program.calibration]
    random = np.random.default_rng(0)
    samples = []
    for node in program.inputs:
        low, high = node.attrs.get("low", -1.0), node.attrs.get("high", 1.0)
        samples.append(random.uniform(low, high, size=(count, *input_shape(program, node))))
    return samples


def candidates(log_ring: int, levels: int, headroom: int, options: Options) -> list[Ring]:
    """The chains with enough levels on a ring, one for each number of digits, cheapest key switch first."""
    found = []
    for digits in range(1, levels + 2) if options.digits is None else (options.digits,):
        scales = range(_MAX_SCALE_BITS, MIN_SCALE_BITS - 1, -1) if options.scale_bits is None else (options.scale_bits,)
        for scale in scales:
            ring = Ring(log_ring, min(scale + headroom, 60), scale, levels, digits, options.security_bits)
            if scale + headroom <= 60 and ring.secure and ring.legal:
                found.append(ring)
                break
    middle = max(1, levels // 2)
    return sorted(found, key=lambda ring: (options.costs.rotate_ms(ring, middle), ring.rotation_key_bytes))


def bootstrapping_rings(log_ring: int, scale: int, options: Options) -> list[Ring]:
    """Every secure chain that bootstraps and leaves levels between, each with the fewest digits that it can have."""
    found = []
    for budget in _LEVEL_BUDGETS:
        # A map of one level needs as many slots as it has butterfly layers to merge.
        if max(budget) > log_ring - 2:
            continue
        for between in range(1, _MAX_LEVELS_BETWEEN + 1):
            levels = between + sum(budget) + MODULAR_REDUCTION_LEVELS + ADJUSTMENT_LEVELS
            for digits in range(2, levels + 2) if options.digits is None else (options.digits,):
                first = min(scale + _BOOTSTRAP_HEADROOM_BITS, 60)
                ring = Ring(log_ring, first, scale, levels, digits, options.security_bits, budget)
                if ring.legal and ring.secure:
                    found.append(ring)
                    break
            else:
                break
    return found


def pack_samples(program: Program, inputs: Sequence[Array]) -> Mapping[Node, Array]:
    """The slot vectors of each sample by input node, with a leading sample axis."""
    many = [pack_inputs(program, _one(program, inputs, i)) for i in range(inputs[0].shape[0])]
    return {node: np.concatenate([one[node] for one in many]) for node in many[0]}


def _one(program: Program, samples: Sequence[Array], position: int) -> list[Array]:
    """One sample for each input: with an axis of one where a secret input takes several at once."""
    secret = {node.attrs["name"] for node in program.inputs if node.type.secret and batch_of(program) > 1}
    names = dict.fromkeys(node.attrs["name"] for node in program.inputs)
    return [
        array[position : position + 1] if name in secret else array[position]
        for name, array in zip(names, samples, strict=True)
    ]


def simulate_error(program: Program, samples: Sequence[Array]) -> tuple[float, Counter[Call]]:
    """The largest error that encryption adds on these samples, by the simulator, and the calls of one run."""
    worst = 0.0
    calls: Counter[Call] = Counter()
    for position in range(samples[0].shape[0]):
        vectors = pack_inputs(program, _one(program, samples, position))
        outputs = []
        for noisy in (False, True):
            simulator = Simulator(program, seed=position, noisy=noisy)
            results, trace = execute(program, simulator, simulator.encrypt_inputs(vectors))
            calls = trace.calls
            outputs.append(unpack_outputs(program, [simulator.decrypt(result) for result in results]))
        exact, noised = outputs
        worst = max(worst, *(float(np.abs(a - b).max(initial=0.0)) for a, b in zip(exact, noised, strict=True)))
    return worst, calls


def make_plan(program: Program, options: Options, watch: Watch, samples: int = 2) -> Plan:
    """The plan for a polynomial program, or for one that its author wrote on slots.

    Raises a PlanningError with the nearest feasible choice where there is none.
    """
    inputs = sample_inputs(program, samples)
    many = interpret_many(program, sample_inputs(program, 64))
    magnitude = max(float(np.abs(out).max(initial=0.0)) for out in many)
    headroom = max(_MIN_HEADROOM_BITS, math.ceil(math.log2(max(magnitude, 1e-9))) + 4)
    if headroom > 60 - MIN_SCALE_BITS:
        raise PlanningError(
            f"outputs reach {magnitude:.3g}, too large for any first modulus of 60 bits",
            where=f"program {program.name!r}",
            hint="divide the outputs by a constant in the model, or check the ranges of its inputs",
        )
    tolerance = 2.0**-options.precision_bits * max(1.0, magnitude)
    rings = sorted(MAX_LOG_PQ_128) if options.log_ring is None else [options.log_ring]
    reasons = []
    too_deep = options.bootstrap is True
    for log_ring in rings if options.bootstrap is not True else ():
        try:
            return _plan_on(log_ring, program, options, watch, inputs, headroom, tolerance, magnitude)
        except PlanningError as error:
            if error.where:
                raise
            reasons.append(f"ring 2^{log_ring}: {error.what}")
            too_deep = isinstance(error, TooFewLevelsError)
    for log_ring in rings if too_deep and options.bootstrap is not False else ():
        try:
            return plan_bootstrapped(log_ring, program, options, watch, inputs, headroom, tolerance, magnitude)
        except PlanningError as error:
            if error.where:
                raise
            reasons.append(f"ring 2^{log_ring} with bootstraps: {error.what}")
    raise PlanningError(
        f"no ring carries {program.name!r}: it needs {program_depth(program)} levels",
        why="\n       ".join(reasons[-3:]),
        hint="use lower degrees (each halving of degree + 1 saves a level per activation), fewer layers, or less "
        "precision_bits",
    )


def plan_bootstrapped(
    log_ring: int,
    program: Program,
    options: Options,
    watch: Watch,
    inputs: Sequence[Array],
    headroom: int,
    tolerance: float,
    magnitude: float,
) -> Plan:
    """The plan with bootstraps on one ring: the chain whose work and bootstraps together cost least."""
    failure = ""
    for scale in _BOOTSTRAP_SCALES if options.scale_bits is None else (options.scale_bits,):
        rings = bootstrapping_rings(log_ring, scale, options)
        if not rings:
            failure = failure or f"no chain with bootstrapping at a scale of {scale} bits"
            continue
        passes: list[tuple[str, Program]] = []

        def keep(name: str, made: Program, passes: list[tuple[str, Program]] = passes) -> None:
            passes.append((name, made))

        packed = pack_passes(program, rings[0], options, keep)
        placed, failure = _placed(packed, rings, options, {})
        if not placed:
            sizes = observed_sizes(packed, pack_samples(packed, inputs), options.margin)
            placed, failure = _placed(packed, rings, options, sizes)
        if not placed:
            continue
        least = min(cost for cost, _, _ in placed)
        near = [entry for entry in placed if entry[0] <= _NEARLY * least]
        _, made, ring = min(near, key=lambda entry: (_bootstrap_bytes(entry[2], entry[1]), entry[0]))
        keep("place-bootstraps", verify(made, after="place-bootstraps"))
        try:
            executable = lower_passes(made, ring, options, keep, max(0, headroom - _BOOTSTRAP_HEADROOM_BITS))
            error, calls = simulate_error(executable, inputs)
        except RangeError as out_of_range:
            raise PlanningError(out_of_range.what, why=out_of_range.why) from None
        if error > tolerance:
            failure = f"its error would be {error:.2g}, more than {tolerance:.2g} (scale of {ring.scale_bits} bits)"
            continue
        return _finished(executable, ring, calls, error, magnitude, options, passes, watch)
    raise PlanningError(failure or "no chain with bootstrapping is secure")


def _bootstrap_bytes(ring: Ring, program: Program) -> int:
    """Keys and tables of the bootstraps of a program."""
    slot_counts = program.metadata["bootstrap_slots"]
    keys = len(all_bootstrap_rotations(ring, slot_counts)) * ring.rotation_key_bytes
    return keys + sum(bootstrap_table_bytes(ring, slots) for slots in slot_counts)


def _placed(
    packed: Program, rings: Sequence[Ring], options: Options, sizes: Mapping[Node, int]
) -> tuple[list[tuple[float, Program, Ring]], str]:
    """Cost, program and ring for every ring on which bootstraps can be placed; and why others failed."""
    found, failure = [], ""
    for ring, one_size in itertools.product(rings, (False, True)):
        try:
            cost, made = PlaceBootstraps(ring, options.costs, sizes, one_size).place(packed)
        except TooFewLevelsError as few:
            failure = few.what
            continue
        if made is packed:
            failure = "it fits the chain as it is"
            continue
        found.append((cost, made, ring))
    return found, failure


def _plan_on(
    log_ring: int,
    program: Program,
    options: Options,
    watch: Watch,
    inputs: Sequence[Array],
    headroom: int,
    tolerance: float,
    magnitude: float,
) -> Plan:
    levels = max(1, program_depth(program))
    least_scale = 0
    failure = ""
    rings = candidates(log_ring, levels, headroom, options)
    while rings:
        ring = rings.pop(0)
        if ring.scale_bits < least_scale:
            continue
        passes: list[tuple[str, Program]] = []

        def keep(name: str, made: Program, passes: list[tuple[str, Program]] = passes) -> None:
            passes.append((name, made))

        try:
            executable = back_passes(program, ring, options, keep)
            error, calls = simulate_error(executable, inputs)
        except TooFewLevelsError as few:
            levels = few.needed
            rings = candidates(log_ring, levels, headroom, options)
            continue
        except RangeError as out_of_range:
            if headroom >= 30:
                raise PlanningError(out_of_range.what) from None
            failure = out_of_range.what
            headroom += 3
            rings = candidates(log_ring, levels, headroom, options)
            continue
        if error > tolerance:
            failure = f"its error would be {error:.2g}, more than {tolerance:.2g} (scale of {ring.scale_bits} bits)"
            least_scale = ring.scale_bits + 1
            continue
        return _finished(executable, ring, calls, error, magnitude, options, passes, watch)
    if failure:
        raise PlanningError(failure)
    raise TooFewLevelsError(levels, _most_levels(log_ring, options))


def _most_levels(log_ring: int, options: Options) -> int:
    """The longest chain that is secure on a ring, at the smallest scale that is ever planned."""
    levels = 1
    while levels < 100 and any(
        Ring(
            log_ring, MIN_SCALE_BITS + _MIN_HEADROOM_BITS, MIN_SCALE_BITS, levels + 1, digits, options.security_bits
        ).secure
        for digits in range(1, levels + 3)
    ):
        levels += 1
    return levels


def _finished(
    executable: Program,
    ring: Ring,
    calls: Mapping[Call, int],
    error: float,
    magnitude: float,
    options: Options,
    passes: Sequence[tuple[str, Program]],
    watch: Watch,
) -> Plan:
    """The plan, if it keeps within the memory allowed."""
    needed = memory_bytes(executable, ring)["server"]
    if options.memory_bytes is not None and needed > options.memory_bytes:
        raise PlanningError(
            f"the server would need {needed} bytes, memory_bytes allows {options.memory_bytes}",
            where="Options.memory_bytes",
            hint="set key_bytes lower (slower, fewer keys), or allow more",
        )
    for name, made in passes:
        watch(name, made)
    packed = next(p for name, p in passes if name in ("pack", "fit-slots"))
    predicted = total_ms(calls, executable, options.costs)
    return Plan(executable, packed, ring, calls, predicted, error, magnitude)
