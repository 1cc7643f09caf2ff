"""Choose ring, chain, scale and digits: the smallest ring that carries the program, then the cheapest way to use it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.compiler.memory import memory_bytes
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import Watch, back_passes, slot_passes
from heliograph.errors import PlanningError, RangeError
from heliograph.execution.backend import Call, execute
from heliograph.execution.simulator import Simulator
from heliograph.interpret import input_shape, interpret_many, pack_inputs, unpack_outputs
from heliograph.ir import Array, Program, Stage
from heliograph.passes.depth import program_depth
from heliograph.passes.plan_levels import TooFewLevelsError
from heliograph.target import MAX_LOG_PQ_128, MIN_SCALE_BITS, CostTable, Ring

# Nothing is gained by a scale finer than this; errors are then far below float32's.
_MAX_SCALE_BITS = 50
# Room above the scale in the first modulus, for the size of the outputs: at least this many bits.
_MIN_HEADROOM_BITS = 8


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


def total_ms(calls: Mapping[Call, int], ring: Ring, costs: CostTable) -> float:
    """The price of many calls: a prediction from a cost table."""
    return sum(count * call_ms(call, ring, costs) for call, count in calls.items())


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


def simulate_error(program: Program, samples: Sequence[Array]) -> tuple[float, Counter[Call]]:
    """The largest error that encryption adds on these samples, by the simulator, and the calls of one run."""
    worst = 0.0
    calls: Counter[Call] = Counter()
    for position in range(samples[0].shape[0]):
        sample = [array[position] for array in samples]
        vectors = pack_inputs(program, sample)
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
    for log_ring in rings:
        try:
            return _plan_on(log_ring, program, options, watch, inputs, headroom, tolerance, magnitude)
        except PlanningError as error:
            if error.where:
                raise
            reasons.append(f"ring 2^{log_ring}: {error.what}")
    raise PlanningError(
        f"no ring carries {program.name!r}: it needs {program_depth(program)} levels",
        why="\n       ".join(reasons[-3:]),
        hint="use lower degrees (each halving of degree + 1 saves a level per activation), fewer layers, or less "
        "precision_bits",
    )


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
            make = slot_passes if program.stage is Stage.PACKED else back_passes
            executable = make(program, ring, options, keep)
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
        predicted = total_ms(calls, ring, options.costs)
        return Plan(executable, packed, ring, calls, predicted, error, magnitude)
    raise PlanningError(failure or f"{levels} levels do not fit at the security asked for")
