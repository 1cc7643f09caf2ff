"""Choose ring, chain, scale, digits and bootstraps: the smallest ring that carries the program, then the cheapest way to
use it.

On each ring, chains are tried in the order of their prices: bootstraps are placed if the program is deeper than any
chain, then the program is lowered, fitted to the memory, and simulated. A chain that does not serve gives a `Refusal`,
which says what the next one must have.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from heliograph.ckks.ring import MIN_SCALE_BITS
from heliograph.compiler.options import Options
from heliograph.compiler.planning.bootstrapped import plan_bootstrapped
from heliograph.compiler.planning.chain_plans import wanted_fastest
from heliograph.compiler.planning.chains import MIN_HEADROOM_BITS, log_rings, most_levels, with_keys
from heliograph.compiler.planning.plan import Plan, Refusal, Wanted, sample_inputs
from heliograph.compiler.planning.unbootstrapped import may_be_apart, plan_unbootstrapped
from heliograph.errors import PlanningError, said
from heliograph.execution.interface import batch_of
from heliograph.ir import Array, Program, Stage, size_of
from heliograph.ir.analysis.depth import program_depth, spends_carried
from heliograph.passes.levels.plan_levels import TooFewLevelsError
from heliograph.rounding import power_of_two
from heliograph.texts import number_of

# If no plan is found, the error names outputs that need more room than this.
_LARGE_BITS = 22
# Chains on rings of 2^16 and above have room for anything.
_ROOMY = 16
# This many runs, each starting from what the previous one left, show how errors develop.
_ROUNDS = 4
# log2 of the smallest ring on which samples are planned in pairs where the options name none.
_SMALLEST = 14
# Batches (samples at once) that an objective compares.
_BATCHES: tuple[int | str, ...] = (1, 8, 256, "max")
# An answer that takes up to this factor longer counts as equally soon, if it is for more samples.
_AS_SOON = 1.01
# A chain with more digits is compared with one on the ring twice as large; with much smaller keys, that one may take this
# many times as long.
_MANY_DIGITS, _FOR_SMALL_KEYS = 8, 1.5
# So is one that takes this many times as long as one that was too coarse.
_DEARER = 1.5


def reach_of(outputs: Sequence[Array]) -> tuple[float, int]:
    """The largest output, and the bits above the scale that the first modulus then needs."""
    magnitude = max(float(np.abs(out).max(initial=0.0)) for out in outputs)
    return magnitude, max(MIN_HEADROOM_BITS, math.ceil(math.log2(max(magnitude, 1e-9))) + 4)


def best_plan(
    program: Program,
    options: Options,
    outputs: Sequence[Array],
    offered: Callable[[], Program] | None = None,
    faster_than: float = math.inf,
) -> Plan:
    """The plan of `batch_plan`; with `options.objective`, the best plan over several batch sizes."""
    if options.objective is None:
        return batch_plan(program, options, outputs, offered, faster_than)
    plans: list[Plan] = []
    failed: PlanningError | None = None
    for batch in _BATCHES:
        if options.objective == "latency" and plans and plans[-1].total_ms > _AS_SOON * plans[0].total_ms:
            # More samples at once take no less time.
            break
        try:
            plans.append(batch_plan(program, replace(options, batch=batch), outputs, offered))
        except PlanningError as error:
            failed = failed or error
    if not plans:
        assert failed is not None
        raise failed
    if options.objective == "throughput":
        return min(plans, key=lambda plan: plan.total_ms / batch_of(plan.program))
    soonest = min(plan.total_ms for plan in plans)
    return max((plan for plan in plans if plan.total_ms <= _AS_SOON * soonest), key=lambda plan: batch_of(plan.program))


def batch_plan(
    program: Program,
    options: Options,
    outputs: Sequence[Array],
    offered: Callable[[], Program] | None = None,
    faster_than: float = math.inf,
) -> Plan:
    """The faster one of the plans of `make_plan` for a batch: with all samples side by side, or with half of them as
    imaginary parts.
    """
    plan = functools.partial(make_plan, program, outputs=outputs, offered=offered)
    if not _may_pair(program, options):
        return plan(options, faster_than=faster_than)
    assert isinstance(options.batch, int)
    # Where values bootstrap, pairs are faster: the other plan is then given up as soon as it is slower.
    try:
        paired = plan(replace(options, batch=options.batch // 2), faster_than=faster_than, paired=True)
    except PlanningError:
        return plan(options, faster_than=faster_than)
    with contextlib.suppress(PlanningError):
        return faster(paired, plan(options, faster_than=min(faster_than, paired.total_ms)))
    return paired


def _may_pair(program: Program, options: Options) -> bool:
    """Whether pairs may save something. Where all samples take one ciphertext side by side, they share all that pairs do."""
    batch = options.batch
    if not isinstance(batch, int) or batch == 1 or program.interface.carried or program.stage is Stage.PACKED:
        return False
    largest = max((size_of(node) for node in program.nodes if node.type.secret), default=0)
    return largest * batch > 1 << ((options.log_ring or _SMALLEST) - 1)


def make_plan(
    program: Program,
    options: Options,
    outputs: Sequence[Array],
    samples: int = 2,
    offered: Callable[[], Program] | None = None,
    faster_than: float = math.inf,
    paired: bool = False,
) -> Plan:
    """The plan for a polynomial program, or for a program on slots.

    `outputs`: some of its outputs.
    `samples`: the number of samples for the simulation.
    `offered`: returns the program with the series that bootstraps may compute in place of polynomials.
    `faster_than`: plans that take as many milliseconds are of no use.
    `paired`: whether the plan is for twice as many samples, of which half are imaginary parts.

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
        if headroom > 60 - MIN_SCALE_BITS:
            raise PlanningError(
                f"outputs reach {magnitude:.3g}, too large for any first modulus of 60 bits",
                where=f"program {program.name!r}",
                hint="divide the outputs by a constant in the model, or check the ranges of its inputs",
            )
        inputs = sample_inputs(program, max(samples, _ROUNDS) if program.interface.carried else samples)
        tolerance = 2.0 ** -options.bits() * max(1.0, magnitude)
        wanted = Wanted(inputs, headroom, tolerance, magnitude, options.gap_error, faster_than, paired)
        return _plan(program, options, wanted, offered or (lambda: program))
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


def _plan(program: Program, options: Options, wanted: Wanted, offered: Callable[[], Program]) -> Plan:
    """The plan on the first ring that has one. Raises PlanningError if there is none."""
    rings = log_rings(options)
    reasons: list[Callable[[], str]] = []
    drifted: Refusal | None = None
    written = any(node.op == "bootstrap" for node in program.nodes)
    endless = bool(program.interface.carried) and spends_carried(program)
    if endless and options.bootstrap is False:
        raise PlanningError(
            said("the program carries values from run to run, and {bootstrap=False} was asked for"),
            where="Options.bootstrap",
            why="each run spends levels of them, and only a bootstrap gives levels back",
        )

    @functools.cache
    def bootstrapped(log_ring: int) -> Plan | Refusal:
        return plan_bootstrapped(log_ring, offered, options, wanted)

    def on_larger_ring(found: Plan, again: Callable[..., Plan | Refusal], always: bool = False) -> Plan:
        """The plan, or that of `again` on the ring twice as large if it is faster, or not much slower with smaller keys.

        A chain that hardly fits its ring has a digit for nearly every prime: then each key has as many parts, and a key
        switch as many transforms for each of them; or its scale leaves room for few levels between bootstraps. Other
        chains are compared only with `always`.
        """
        log_ring, fastest = found.ring.log_ring, wanted_fastest(program, options)
        dearer = found.coarse_ms is not None and found.total_ms > _DEARER * found.coarse_ms
        crowded = found.ring.digits > _MANY_DIGITS or dearer
        worth = always or (crowded and not may_be_apart(options, log_ring))
        if not worth or log_ring + 1 not in rings:
            return found
        slower = 1.0 if fastest else _FOR_SMALL_KEYS
        limit = replace(wanted, faster_than=min(wanted.faster_than, slower * found.total_ms))
        larger = again(log_ring + 1, wanted=limit)
        if isinstance(larger, Refusal) or fastest:
            return faster(found, larger)
        return min(found, larger, key=lambda plan: with_keys(plan.total_ms, plan.key_bytes))

    def below(limit: int) -> Plan | None:
        """The plan with bootstraps on the smallest ring below a limit that has one, else None."""
        plans = (bootstrapped(log_ring) for log_ring in rings if log_ring < limit)
        return next((plan for plan in plans if isinstance(plan, Plan)), None)

    # A value from an earlier run has no more levels than that run left.
    too_deep = options.bootstrap is True or written or endless
    for log_ring in rings if not too_deep else ():
        smaller = below(log_ring) if too_deep and options.bootstrap is None else None
        found = plan_unbootstrapped(log_ring, program, options, wanted.below(smaller))
        if isinstance(found, Plan):
            again = functools.partial(plan_unbootstrapped, program=program, options=options)
            return faster(smaller, on_larger_ring(found, again))
        if smaller is not None and (found.slow or found.no_memory):
            return smaller
        reasons.append(functools.partial(_reason, log_ring, found, options))
        if found.drifts:
            drifted = drifted or found
            continue
        if found.no_memory and too_deep and options.bootstrap is None:
            # Without bootstraps, only a large ring is deep enough; a smaller one with bootstraps may fit.
            break
        if found.slow or found.error.where:
            raise found.error
        too_deep = bool(found.levels)
    for log_ring in rings if too_deep and options.bootstrap is not False else ():
        found = bootstrapped(log_ring)
        if isinstance(found, Plan):
            # Longer chains bootstrap less often.
            again = functools.partial(plan_bootstrapped, offered=offered, options=options)
            return on_larger_ring(found, again, wanted_fastest(program, options)) if log_ring < _ROOMY else found
        if found.slow or found.error.where:
            raise found.error
        reasons.append(functools.partial("ring 2^{} with bootstraps: {}".format, log_ring, found.error.what))
    if drifted is not None:
        raise drifted.error
    fixed = "" if options.scale_bits is None else "give a smaller {scale_bits} or none, "
    fixed += "" if options.log_ring is None else "give a larger {log_ring} or none, "
    depth = program_depth(program, may_be_apart(options, rings[-1]))
    raise PlanningError(
        f"no ring carries {program.name!r}: it needs {number_of(depth, 'level')}",
        why="\n       ".join(reason() for reason in reasons[-3:]),
        hint=said(
            f"{fixed}use lower degrees (each halving of degree + 1 saves a level per activation), fewer layers, or less "
            "{precision_bits}"
        ),
    )


def faster(plan: Plan | None, other: Plan | Refusal) -> Plan:
    """The faster one of two plans, where there are two."""
    if isinstance(other, Refusal) or (plan is not None and plan.total_ms <= other.total_ms):
        assert plan is not None
        return plan
    return other


def _reason(log_ring: int, found: Refusal, options: Options) -> str:
    """Why a ring was refused without bootstraps. The levels that it has are counted only for the text."""
    if not found.levels:
        return f"ring 2^{log_ring}: {found.error.what}"
    most = most_levels(log_ring, options)
    if options.scale_bits is not None and found.levels <= most:
        levels = number_of(found.levels, "level")
        return f"ring 2^{log_ring}: {levels} of {options.scale_bits} bits {'is' if found.levels == 1 else 'are'} not secure"
    return f"ring 2^{log_ring}: {TooFewLevelsError(found.levels, most).what}"
