"""Choose ring, chain, scale and digits: the smallest ring that carries the program, then the cheapest way to use it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import MIN_SCALE_BITS, MOST_LEVELS, Ring
from heliograph.ckks.security import MAX_LOG_PQ_128
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import back_passes, pack_passes
from heliograph.compiler.planning.bootstrap_planner import plan_bootstrapped, wanted_fastest
from heliograph.compiler.planning.plan import (
    BITS_FINER,
    AmplifiedError,
    Plan,
    Wanted,
    least_ms,
    run_ms,
    sample_inputs,
    simulated,
)
from heliograph.compiler.planning.residency import within
from heliograph.errors import PlanningError, RangeError, said
from heliograph.execution.interface import batch_of
from heliograph.execution.memory import least_server_bytes
from heliograph.execution.prices import call_ms, total_ms
from heliograph.execution.protocol import Call
from heliograph.ir import Array, Program
from heliograph.ir.analysis.depth import program_depth, spends_carried
from heliograph.passes.levels.plan_levels import DriftError, TooFewLevelsError
from heliograph.rounding import power_of_two

# A scale finer than this gains nothing: errors are then far below float32's, and our kernels are slower.
_MAX_SCALE_BITS = 49
# This many bits of the scale may be given up for one special prime less.
_BITS_FOR_A_PRIME = 3
# The first modulus is at least this many bits above the scale, as room for the size of the outputs.
_MIN_HEADROOM_BITS = 8
# If no plan is found, the error names outputs that need more room than this.
_LARGE_BITS = 22


def candidates(log_ring: int, levels: int, headroom: int, options: Options) -> list[Ring]:
    """The chains with enough levels on a ring, the cheapest key switch first.

    For each number of digits these are the one with the finest scale, and one that saves a special prime, if that costs
    only a few bits of the scale.
    """
    found = []
    for digits in range(1, levels + 2):
        scales = range(_MAX_SCALE_BITS, MIN_SCALE_BITS - 1, -1) if options.scale_bits is None else (options.scale_bits,)
        finest: Ring | None = None
        for scale in scales:
            ring = Ring(
                log_ring, min(scale + headroom, 60), scale, levels, digits, options.security_bits, short_specials=True
            )
            if scale + headroom > 60 or not (ring.secure and ring.legal):
                continue
            if finest is None or ring.special < finest.special:
                found.append(ring)
            finest = finest or ring
            if ring.special < finest.special or scale == finest.scale_bits - _BITS_FOR_A_PRIME:
                break
    middle = max(1, levels // 2)
    return sorted(found, key=lambda ring: (options.costs.rotate_ms(ring, middle), ring.rotation_key_bytes))


def log_rings(options: Options) -> list[int]:
    """The rings that may be chosen, the smallest first."""
    return sorted(MAX_LOG_PQ_128) if options.log_ring is None else [options.log_ring]


def reach_of(outputs: Sequence[Array]) -> tuple[float, int]:
    """The largest output, and the bits above the scale that the first modulus then needs."""
    magnitude = max(float(np.abs(out).max(initial=0.0)) for out in outputs)
    return magnitude, max(_MIN_HEADROOM_BITS, math.ceil(math.log2(max(magnitude, 1e-9))) + 4)


# Chains on rings of 2^16 and above have room for anything.
_ROOMY = 16
# This many runs, each starting from what the previous one left, show how errors develop.
_ROUNDS = 4
# Batches (samples at once) that an objective compares.
_BATCHES: tuple[int | str, ...] = (1, 8, 256, "max")
# An answer that takes up to this factor longer counts as equally soon, if it is for more samples.
_AS_SOON = 1.01


def best_plan(
    program: Program, options: Options, outputs: Sequence[Array], offered: Callable[[], Program] | None = None
) -> Plan:
    """The plan of `make_plan`; with `options.objective`, the best plan over several batch sizes."""
    if options.objective is None:
        return make_plan(program, options, outputs, offered=offered)
    plans: list[Plan] = []
    failed: PlanningError | None = None
    for batch in _BATCHES:
        if options.objective == "latency" and plans and _total_ms(plans[-1]) > _AS_SOON * _total_ms(plans[0]):
            # More samples at once take no less time.
            break
        try:
            plans.append(make_plan(program, replace(options, batch=batch), outputs, offered=offered))
        except PlanningError as error:
            failed = failed or error
    if not plans:
        assert failed is not None
        raise failed
    if options.objective == "throughput":
        return min(plans, key=lambda plan: _total_ms(plan) / batch_of(plan.program))
    soonest = min(map(_total_ms, plans))
    return max(
        (plan for plan in plans if _total_ms(plan) <= _AS_SOON * soonest), key=lambda plan: batch_of(plan.program)
    )


def make_plan(
    program: Program,
    options: Options,
    outputs: Sequence[Array],
    samples: int = 2,
    offered: Callable[[], Program] | None = None,
) -> Plan:
    """The plan for a polynomial program, or for a program on slots.

    `outputs`: some of its outputs.
    `samples`: the number of samples for the simulation.
    `offered`: returns the program with the series that bootstraps may compute in place of polynomials.

    If there is no plan, raises a PlanningError with the reasons; it names large outputs if there are any.
    """
    if not all(np.isfinite(out).all() for out in outputs):
        raise PlanningError(
            "the polynomials overflow on the samples",
            where=f"program {program.name!r}",
            why="the error of one brings the operand of another far out of the interval that the samples showed",
            hint=said(
                "more calibration samples, or an {input_range} from which the intervals can be proved, or a larger {margin}"
            ),
        )
    magnitude, headroom = reach_of(outputs)
    try:
        return _plan(program, options, outputs, samples, offered)
    except PlanningError as error:
        if headroom <= _LARGE_BITS or str(error.where).startswith("Options."):
            raise
        divisor = power_of_two(magnitude)
        raise PlanningError(
            f"outputs of {program.name!r} reach {magnitude:.3g}, and no ring was found that carries values so large",
            where=error.where,
            why=f"the first prime has 60 bits at most, {headroom} of them for the size of the outputs; {error.what}",
            hint=f"divide the outputs by a constant in the model, for instance by {divisor:.0f}, and multiply by it what is "
            "decrypted",
        ) from None


def _plan(
    program: Program,
    options: Options,
    outputs: Sequence[Array],
    samples: int,
    offered: Callable[[], Program] | None,
) -> Plan:
    inputs = sample_inputs(program, max(samples, _ROUNDS) if program.interface.carried else samples)
    magnitude, headroom = reach_of(outputs)
    if headroom > 60 - MIN_SCALE_BITS:
        raise PlanningError(
            f"outputs reach {magnitude:.3g}, too large for any first modulus of 60 bits",
            where=f"program {program.name!r}",
            hint="divide the outputs by a constant in the model, or check the ranges of its inputs",
        )
    wanted = Wanted(inputs, headroom, 2.0**-options.precision_bits * max(1.0, magnitude), magnitude, options.gap_error)
    rings = log_rings(options)
    reasons = []
    drifted: DriftError | None = None
    bootstrapped = _Bootstrapped(program, options, wanted, offered or (lambda: program))
    written = any(node.op == "bootstrap" for node in program.nodes)
    endless = bool(program.interface.carried) and spends_carried(program)
    if endless and options.bootstrap is False:
        raise PlanningError(
            said("the program carries values from run to run, and {bootstrap=False} was asked for"),
            where="Options.bootstrap",
            why="each run spends levels of them, and only a bootstrap gives levels back",
        )
    # A value from an earlier run has no more levels than that run left.
    too_deep = options.bootstrap is True or written or endless
    for log_ring in rings if not too_deep else ():
        smaller = None
        if too_deep and options.bootstrap is None:
            smaller = bootstrapped.below(log_ring, rings)
        try:
            return _plan_on(log_ring, program, options, wanted, smaller)
        except DriftError as error:
            drifted = drifted or error
            reasons.append(f"ring 2^{log_ring}: {error.what}")
        except PlanningError as error:
            reasons.append(f"ring 2^{log_ring}: {error.what}")
            if error.where == "Options.memory_bytes" and too_deep and options.bootstrap is None:
                # Without bootstraps, only a large ring is deep enough; a smaller one with bootstraps may fit.
                if smaller is not None:
                    return smaller
                break
            if error.where:
                raise
            too_deep = isinstance(error, TooFewLevelsError)
    for log_ring in rings if too_deep and options.bootstrap is not False else ():
        try:
            return bootstrapped.best_from(log_ring, rings)
        except PlanningError as error:
            if error.where:
                raise
            reasons.append(f"ring 2^{log_ring} with bootstraps: {error.what}")
    if drifted is not None:
        raise drifted
    raise PlanningError(
        f"no ring carries {program.name!r}: it needs {program_depth(program)} levels",
        why="\n       ".join(reasons[-3:]),
        hint="use lower degrees (each halving of degree + 1 saves a level per activation), fewer layers, or less "
        "precision_bits",
    )


@dataclass(slots=True)
class _Bootstrapped:
    """A cache of plans with bootstraps, one for each ring; `known` has the plans and errors so far."""

    program: Program
    options: Options
    wanted: Wanted
    offered: Callable[[], Program]
    known: dict[int, Plan | PlanningError] = field(default_factory=dict)

    def on(self, log_ring: int) -> Plan:
        """The plan on that ring. Raises the PlanningError if there is none."""
        if log_ring not in self.known:
            try:
                self.known[log_ring] = plan_bootstrapped(log_ring, self.offered, self.options, self.wanted)
            except PlanningError as error:
                self.known[log_ring] = error
        found = self.known[log_ring]
        if isinstance(found, PlanningError):
            raise found
        return found

    def best_from(self, log_ring: int, rings: Sequence[int]) -> Plan:
        """The plan on that ring; if the fastest is wanted, also the next ring is tried: longer chains bootstrap less
        often.
        """
        plan, larger = self.on(log_ring), log_ring + 1
        if larger in rings and log_ring < _ROOMY and wanted_fastest(self.program, self.options):
            with contextlib.suppress(PlanningError):
                other = plan_bootstrapped(larger, self.offered, self.options, self.wanted, _total_ms(plan))
                return min(plan, other, key=_total_ms)
        return plan

    def below(self, limit: int, rings: Sequence[int]) -> Plan | None:
        """The plan on the smallest ring below a limit that has one, else None."""
        for log_ring in rings:
            if log_ring < limit:
                with contextlib.suppress(PlanningError):
                    return self.on(log_ring)
        return None


def _total_ms(plan: Plan) -> float:
    return plan.predicted_ms + plan.loading_ms


def _plan_on(log_ring: int, program: Program, options: Options, wanted: Wanted, smaller: Plan | None = None) -> Plan:
    """The plan without bootstraps on one ring, or `smaller`, a plan with bootstraps on a smaller ring, if that is
    faster.

    In a larger ring with a chain for a deep program, every operation and key is several times larger.
    """
    headroom = wanted.headroom
    levels = max(1, program_depth(program))
    least_scale = 0
    failure = ""
    drifted: DriftError | None = None
    rings = candidates(log_ring, levels, headroom, options)
    while rings:
        ring = rings.pop(0)
        if ring.scale_bits < least_scale:
            continue
        if smaller is not None and _total_ms(smaller) < least_ms(program, ring, options.costs):
            return smaller
        try:
            packed = pack_passes(program, ring, options)
            trail = back_passes(program, ring, options, packed=packed)
            executable = trail[-1].program
            if smaller is not None and _total_ms(smaller) < run_ms(executable, options.costs):
                # Larger scales, and keys that do not fit, would only add to the time.
                return smaller
            found = simulated(executable, wanted.inputs, wanted.refuses)
            if wanted.refuses(found):
                # If the error comes from rotations, this is cheaper than a finer scale.
                trail = back_passes(program, ring, options, packed=packed, exact_rotations=True)
                executable = trail[-1].program
                found = simulated(executable, wanted.inputs, wanted.refuses)
        except TooFewLevelsError as few:
            levels = few.needed
            rings = candidates(log_ring, levels, headroom, options)
            continue
        except DriftError as drift:
            # Primes of another size drift differently. Rings that differ only in keys would drift alike.
            drifted = drifted or drift
            rings = [other for other in rings if other.scale_bits != ring.scale_bits]
            continue
        except AmplifiedError as amplified:
            # Missing room is hardly ever the cause.
            failure = f"{amplified.what} (scale of {ring.scale_bits} bits)"
            least_scale = ring.scale_bits + BITS_FINER
            headroom += 1
            rings = candidates(log_ring, levels, headroom, options)
            continue
        except RangeError as out_of_range:
            if headroom >= 30:
                raise PlanningError(out_of_range.what) from None
            failure = out_of_range.what
            headroom += 3
            rings = candidates(log_ring, levels, headroom, options)
            continue
        if wrong := wanted.refuses(found):
            failure = f"{wrong} (scale of {ring.scale_bits} bits)"
            least_scale = ring.scale_bits + 1
            # The levels of the work are now known.
            rings.sort(key=lambda other: _priced_on(found.trace.calls, other, options.costs))
            continue
        fitting: tuple[Program, float] | None = executable, 0.0
        if options.memory_bytes is not None:
            fitting = within(executable, ring, options.memory_bytes)
        if fitting is None:
            least = least_server_bytes(executable, ring)
            raise PlanningError(
                said(f"the server would need {least} bytes, {{memory_bytes}} allows {options.memory_bytes}"),
                where="Options.memory_bytes",
                why="that is with keys that are read anew in every run",
                hint=said("set {key_bytes} lower (slower, fewer keys), or allow more"),
            )
        executable, loading = fitting
        price = total_ms(found.trace.calls, executable, options.costs)
        # Without the memory bound, all keys would stay in memory.
        kept = price if loading else None
        plan = Plan(executable, trail, ring, found.trace, price, found.error, wanted.magnitude, kept, loading)
        return smaller if smaller is not None and _total_ms(smaller) < _total_ms(plan) else plan
    if failure:
        raise PlanningError(failure)
    if drifted is not None:
        raise drifted
    raise TooFewLevelsError(levels, _most_levels(log_ring, options))


def _priced_on(calls: Mapping[Call, int], ring: Ring, costs: CostTable) -> float:
    """The milliseconds of these calls on another ring with as many levels."""
    return sum(number * call_ms(call, ring, costs) for call, number in calls.items())


def _most_levels(log_ring: int, options: Options) -> int:
    """The levels of the longest secure chain on a ring, at the smallest scale that is ever planned."""
    levels = 1
    while levels < MOST_LEVELS and any(
        Ring(
            log_ring,
            MIN_SCALE_BITS + _MIN_HEADROOM_BITS,
            MIN_SCALE_BITS,
            levels + 1,
            digits,
            options.security_bits,
            short_specials=True,
        ).secure
        for digits in range(1, levels + 3)
    ):
        levels += 1
    return levels
