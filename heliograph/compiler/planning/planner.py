"""Choose ring, chain, scale, digits and bootstraps: the smallest ring that carries the program, then the cheapest way to
use it.

On each ring, chains are tried in the order of their prices: bootstraps are placed if the program is deeper than any
chain, then the program is lowered, fitted to the memory, and simulated. A chain that does not serve gives a `Refusal`,
which says what the next one must have.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

import numpy as np

from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import MIN_SCALE_BITS, Ring
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import (
    back_passes,
    lower_passes,
    pack_passes,
    pair_passes,
    pair_samples_passes,
)
from heliograph.compiler.planning.chains import (
    MIN_HEADROOM_BITS,
    bootstrapping_rings,
    candidates,
    log_rings,
    most_levels,
    with_keys,
)
from heliograph.compiler.planning.placements import Choice, choices, in_order
from heliograph.compiler.planning.plan import (
    BITS_FINER,
    AmplifiedError,
    Plan,
    Refusal,
    Wanted,
    least_ms,
    pack_samples,
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
from heliograph.ir import Array, Program, Stage, size_of
from heliograph.ir.analysis.depth import program_depth, spends_carried
from heliograph.ir.bootstraps.asked import paired_slots
from heliograph.ir.verify import verify
from heliograph.passes.base import Step, Trail
from heliograph.passes.bootstraps.place_bootstraps import BootstrapSearch, PlaceBootstraps
from heliograph.passes.bootstraps.sizes import observed_sizes
from heliograph.passes.levels.plan_levels import DriftError, TooFewLevelsError
from heliograph.passes.packing.pair_samples import refuse_pairs
from heliograph.rounding import power_of_two
from heliograph.texts import number_of

# If no plan is found, the error names outputs that need more room than this. No chain gets more for values that leave
# their ranges.
_LARGE_BITS, _MOST_ROOM = 22, 30
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
# If the fastest plan is wanted, at most this many of the fastest choices are planned completely. A plan costs as much
# as its choice, unless key selection adds a sub-chain: then less, but by no more than this factor.
_COMPARED, _OFF = 8, 1.1
# The margin on observed sizes, without one from the options or the program's ranges.
_SIZE_MARGIN = 0.5
# The levels of a chain that bootstraps must not use: each number is tried in turn until one is enough.
_SPARE = (0, 1, 2)
# A chain with more digits is compared with one on the ring twice as large; with much smaller keys, that one may take this
# many times as long.
_MANY_DIGITS, _FOR_SMALL_KEYS = 8, 1.5
# If a plan is too coarse, the next one is finer by at least half a bit: chains that differ only in digits are not
# tried.
_FINER = 2.0**-0.5
_NOT_SECURE = "no chain with bootstrapping is secure"
# If memory is bounded, this many choices are planned completely, the fastest first: share of the keys -> number of
# choices. (The other rotations are composed, which takes long to plan.)
_KEY_SHARES = {1.0: 48, 0.5: 8, 0.2: 8, 0.05: 8}


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
        tolerance = 2.0**-options.precision_bits * max(1.0, magnitude)
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
            return faster(smaller, _with_fewer_digits(found, program, options, wanted))
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
        found, larger = bootstrapped(log_ring), log_ring + 1
        if isinstance(found, Plan):
            if larger in rings and log_ring < _ROOMY and wanted_fastest(program, options):
                # Longer chains bootstrap less often.
                return faster(found, plan_bootstrapped(larger, offered, options, wanted.below(found)))
            return found
        if found.slow or found.error.where:
            raise found.error
        reasons.append(functools.partial("ring 2^{} with bootstraps: {}".format, log_ring, found.error.what))
    if drifted is not None:
        raise drifted.error
    fixed = "" if options.scale_bits is None else "give a smaller {scale_bits} or none, "
    fixed += "" if options.log_ring is None else "give a larger {log_ring} or none, "
    depth = program_depth(program, _may_be_apart(options, rings[-1]))
    raise PlanningError(
        f"no ring carries {program.name!r}: it needs {number_of(depth, 'level')}",
        why="\n       ".join(reason() for reason in reasons[-3:]),
        hint=said(
            f"{fixed}use lower degrees (each halving of degree + 1 saves a level per activation), fewer layers, or less "
            "{precision_bits}"
        ),
    )


def _with_fewer_digits(found: Plan, program: Program, options: Options, wanted: Wanted) -> Plan:
    """The plan, or the one on the ring twice as large if that has cheaper or much smaller keys.

    A chain that hardly fits its ring has a digit for nearly every prime: then each key has as many parts, and a key switch
    as many transforms for each of them.
    """
    ring, larger_ring = found.ring, found.ring.log_ring + 1
    if ring.digits <= _MANY_DIGITS or larger_ring not in log_rings(options) or _may_be_apart(options, ring.log_ring):
        return found
    limit = replace(wanted, faster_than=min(wanted.faster_than, _FOR_SMALL_KEYS * found.total_ms))
    larger = plan_unbootstrapped(larger_ring, program, options, limit)
    if isinstance(larger, Refusal) or wanted_fastest(program, options):
        return faster(found, larger)
    return min(found, larger, key=lambda plan: with_keys(plan.total_ms, plan.key_bytes))


def faster(plan: Plan | None, other: Plan | Refusal) -> Plan:
    """The faster one of two plans, where there are two."""
    if isinstance(other, Refusal) or (plan is not None and plan.total_ms <= other.total_ms):
        assert plan is not None
        return plan
    return other


def wanted_fastest(program: Program, options: Options) -> bool:
    """Whether the fastest plan is wanted, however large; otherwise larger keys must save enough time.

    A program that carries values from run to run counts, because it runs again and again.
    """
    return options.objective is not None or options.allocate == "plan" or bool(program.interface.carried)


def _reason(log_ring: int, found: Refusal, options: Options) -> str:
    """Why a ring was refused without bootstraps. The levels that it has are counted only for the text."""
    if not found.levels:
        return f"ring 2^{log_ring}: {found.error.what}"
    most = most_levels(log_ring, options)
    if options.scale_bits is not None and found.levels <= most:
        levels = number_of(found.levels, "level")
        return f"ring 2^{log_ring}: {levels} of {options.scale_bits} bits {'is' if found.levels == 1 else 'are'} not secure"
    return f"ring 2^{log_ring}: {TooFewLevelsError(found.levels, most).what}"


# ---------------------------------------------------------------------------------------------- one chain


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _tried(ring: Ring, make: Callable[_P, _T], *given: _P.args, **named: _P.kwargs) -> _T | Refusal:
    """What a step of planning returns, or why it refuses this chain."""
    try:
        return make(*given, **named)
    except TooFewLevelsError as few:
        return Refusal(few, levels=few.needed)
    except DriftError as drift:
        return Refusal(drift, drifts=True)
    except AmplifiedError as amplified:
        # Missing room is hardly ever the cause.
        error = PlanningError(f"{amplified.what} (scale of {ring.scale_bits} bits)")
        return Refusal(error, finer_bits=BITS_FINER, share=2.0**-BITS_FINER, room_bits=1)
    except RangeError as out_of_range:
        return Refusal(PlanningError(out_of_range.what, why=out_of_range.why), room_bits=3)
    except PlanningError as error:
        return Refusal(error)


def _simulated(trail: Trail, ring: Ring, options: Options, wanted: Wanted) -> Plan | Refusal:
    """The plan with an executable program, if its errors are small enough."""
    program = trail[-1].program
    found = _tried(ring, simulated, program, wanted.inputs, wanted.refuses)
    if isinstance(found, Refusal):
        return found
    if wrong := wanted.refuses(found):
        error = PlanningError(f"{wrong} (scale of {ring.scale_bits} bits)")
        # Errors grow at most in proportion to the errors of bootstraps.
        share = min(_FINER, wanted.tolerance / found.error)
        return Refusal(error, finer_bits=1, share=share, calls=found.trace.calls)
    price = total_ms(found.trace.calls, program, options.costs)
    return Plan(program, trail, ring, found.trace, price, found.error, wanted.magnitude)


# ---------------------------------------------------------------------------------------------- without bootstraps


def _may_be_apart(options: Options, log_ring: int) -> bool:
    """Whether each element of a tensor may have a ciphertext of its own on this ring.

    If it turns out that elements share ciphertexts, the chain that is too short is refused, and says so.
    """
    return options.batch in ("max", 1 << (log_ring - 1))


def plan_unbootstrapped(log_ring: int, program: Program, options: Options, wanted: Wanted) -> Plan | Refusal:
    """The plan without bootstraps on one ring."""
    levels = max(1, program_depth(program, _may_be_apart(options, log_ring)))
    headroom, least_scale = wanted.headroom, 0
    failed: Refusal | None = None
    drifted: Refusal | None = None
    rings = candidates(log_ring, levels, headroom, options)
    while rings:
        ring = rings.pop(0)
        if ring.scale_bits < least_scale:
            continue
        found = _unbootstrapped(ring, program, options, wanted)
        if (
            isinstance(found, Plan)
            or found.final
            or (not found.finer_bits and found.room_bits and headroom >= _MOST_ROOM)
        ):
            return found
        if found.drifts:
            # Primes of another size drift differently. Rings that differ only in keys would drift alike.
            drifted = drifted or found
            rings = [other for other in rings if other.scale_bits != ring.scale_bits]
            continue
        if found.finer_bits:
            least_scale = ring.scale_bits + found.finer_bits
        if not found.levels:
            failed = found
        if found.calls is not None:
            # The levels of the work are now known.
            calls = found.calls
            rings.sort(key=lambda other: _priced_on(calls, other, options.costs))
            continue
        levels, headroom = found.levels or levels, headroom + found.room_bits
        rings = candidates(log_ring, levels, headroom, options)
    return failed or drifted or Refusal(PlanningError(f"it needs {levels} levels"), levels=levels)


def _unbootstrapped(ring: Ring, program: Program, options: Options, wanted: Wanted) -> Plan | Refusal:
    """The plan without bootstraps on one chain.

    In a larger ring with a chain for a deep program, every operation and key is several times larger. So the time is
    compared with the one to beat before a program is packed, and before it is simulated.
    """
    batch = options.batch if isinstance(options.batch, int) else 1
    if wanted.faster_than < math.inf and wanted.faster_than < least_ms(program, ring, options.costs, batch):
        return wanted.too_slow()
    packed = _tried(ring, _packed, program, ring, options, wanted.paired)
    if isinstance(packed, Refusal):
        return packed
    if wanted.paired:
        packed = (*packed, *pair_samples_passes(packed[-1].program))
    # If the error comes from rotations, exact ones are cheaper than a finer scale.
    for exact in (False, True):
        trail = _tried(ring, back_passes, program, ring, options, packed=packed, exact_rotations=exact)
        if isinstance(trail, Refusal):
            return trail
        if wanted.faster_than < math.inf and wanted.faster_than < run_ms(trail[-1].program, options.costs):
            return wanted.too_slow()
        found = _simulated(trail, ring, options, wanted)
        if isinstance(found, Plan):
            return _resident(found, options)
        if found.calls is None:
            break
    return found


def _packed(program: Program, ring: Ring, options: Options, paired: bool) -> Trail:
    """The program on slots; a PlanningError if samples are to be paired and one of its operations does not allow it."""
    trail = pack_passes(program, ring, options)
    if paired:
        refuse_pairs(trail[-1].program)
    return trail


def _resident(plan: Plan, options: Options) -> Plan | Refusal:
    """The plan within the bound on memory."""
    if options.memory_bytes is None:
        return plan
    fitting = within(plan.program, plan.ring, options.memory_bytes)
    if fitting is None:
        least = least_server_bytes(plan.program, plan.ring)
        return Refusal(
            PlanningError(
                said(f"the server would need {least} bytes, {{memory_bytes}} allows {options.memory_bytes}"),
                where="Options.memory_bytes",
                why="that is with keys that are read anew in every run",
                hint=said("set {key_bytes} lower (slower, fewer keys), or allow more"),
            )
        )
    program, loading = fitting
    # Without the memory bound, all keys would stay in memory.
    unbounded_ms = plan.predicted_ms if loading else None
    return replace(plan, program=program, loading_ms=loading, unbounded_ms=unbounded_ms)


def _priced_on(calls: Mapping[Call, int], ring: Ring, costs: CostTable) -> float:
    """The milliseconds of these calls on another ring with as many levels."""
    return sum(number * call_ms(call, ring, costs) for call, number in calls.items())


# ---------------------------------------------------------------------------------------------- with bootstraps


def plan_bootstrapped(
    log_ring: int, offered: Callable[[], Program], options: Options, wanted: Wanted
) -> Plan | Refusal:
    """The plan with bootstraps on one ring: on the chain with the least total cost of work and bootstraps.

    `offered` returns the program with the series that bootstraps may compute. Fitting these takes time, so it is called
    only if the ring has a chain that bootstraps.

    A chain with larger keys and tables is chosen only where it saves enough time. With `Options.memory_bytes`, it is the
    first in this order that fits, or a faster one that fits by reading keys again
    in every run. Finer bootstraps are tried if coarse ones are not precise enough.
    """
    rings = bootstrapping_rings(log_ring, options, series=True)
    if rings:
        program = offered()
        if not any(node.op == "poly" and node.attrs.get("series") is not None for node in program.nodes):
            rings = bootstrapping_rings(log_ring, options)
    if not rings:
        return Refusal(PlanningError(_NOT_SECURE))
    packing = _tried(rings[0], _packed, program, rings[0], options, wanted.paired)
    if isinstance(packing, Refusal):
        return packing
    search = BootstrapSearch(packing[-1].program, rings[0].slots, options.costs)
    coarse = found = Refusal(PlanningError(_NOT_SECURE))
    # Pairs are a bit coarser: if there were any, try again without them.
    for pairs in (True, False):
        fitting, serves = _Fitting(packing, options, wanted, pairs), math.inf
        # Aligning scales may take levels. In that case, try again with some to spare.
        for spare in _SPARE:
            chosen, failure = _placed(search, rings, options, wanted, pairs, spare)
            found = coarse if chosen and serves < math.inf else Refusal(PlanningError(failure))
            # Bootstraps that proved too coarse are not tried again with levels to spare.
            chosen = [choice for choice in chosen if choice.error <= serves]
            while chosen and not found.levels:
                attempt = fitting.first(in_order(chosen, search.program, options, fitting.fastest))
                if isinstance(attempt, Plan) or attempt.final or attempt.drifts:
                    return attempt
                found = attempt
                if found.finer_bits:
                    coarse, serves = found, found.serves
                    chosen = [choice for choice in chosen if choice.error <= serves]
            if not found.levels:
                break
        if not coarse.paired:
            break
    return found


def _placed(
    search: BootstrapSearch, rings: Sequence[Ring], options: Options, wanted: Wanted, pairs: bool, spare: int
) -> tuple[list[Choice], str]:
    """The choices, with observed sizes if those that are proved are too large; and why the last other one failed."""
    found, failure = choices(search, rings, options, pairs, spare)
    packed = search.program
    for nearby in (False, True):
        if not found:
            samples = pack_samples(packed, wanted.inputs)
            sizes = observed_sizes(packed, samples, size_margin(packed, options), nearby)
            found, failure = choices(search.having(sizes=sizes), rings, options, pairs, spare)
    return found, failure


def size_margin(program: Program, options: Options) -> float:
    """The margin on observed sizes: the option's, or else the largest margin of a range."""
    if options.margin is not None:
        return options.margin
    return max((entry.margin for entry in program.ranges), default=_SIZE_MARGIN)


@dataclass(frozen=True, slots=True)
class _Lowered:
    """A choice as an executable program that fits the memory.

    `program`: the executable program, the last one of `trail` with the bound on its keys in memory.
    `loading_ms`: the time for reading keys again in each run.
    `cost_ms`: the time of a run with it.
    """

    choice: Choice
    trail: Trail
    program: Program
    loading_ms: float
    cost_ms: float


def _lowered(choice: Choice, packing: Trail, options: Options, wanted: Wanted, pairs: bool) -> Trail:
    """All passes of a choice; without pairs if their scales cannot be aligned."""
    ring = choice.ring
    shift = max(0, wanted.headroom - (ring.first_mod_bits - ring.scale_bits))
    verify(choice.placed.program, after=PlaceBootstraps.name)
    placed = (*packing, Step(PlaceBootstraps.name, choice.placed.program))
    if wanted.paired:
        placed = (*placed, *pair_samples_passes(choice.placed.program))
        return (*placed, *lower_passes(placed[-1].program, ring, options, shift, choice.lower))
    paired = pair_passes(choice.placed.program, ring, options) if pairs else ()
    if paired:
        with contextlib.suppress(PlanningError):
            return (*placed, *paired, *lower_passes(paired[-1].program, ring, options, shift, choice.lower))
    return (*placed, *lower_passes(choice.placed.program, ring, options, shift, choice.lower))


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The search for the first choice that fits, or for the fastest.

    `packing`: the passes to the packed program.
    `pairs`: whether bootstraps may refresh two values at once.
    `times`: the milliseconds of the choices that were lowered.
    """

    packing: Trail
    options: Options
    wanted: Wanted
    pairs: bool
    times: dict[Choice, float] = field(default_factory=dict)

    @property
    def fastest(self) -> bool:
        return wanted_fastest(self.packing[-1].program, self.options)

    def first(self, choices: Sequence[Choice]) -> Plan | Refusal:
        """The first of these choices that fits the memory; if time matters most, the fastest of the first `_COMPARED`."""
        options = self.options
        least_bytes, unbounded_ms = None, None
        best: _Lowered | None = None
        first: tuple[_Lowered, Plan] | None = None
        few: Refusal | None = None
        # Numbers of levels between bootstraps that proved too few for their placements.
        too_few: set[int] = set()
        compared = 0
        # By the baby steps of bootstraps: a bound on the size of a key, where larger keys did not fit. Keys are a share
        # of a server's memory, which falls at most in proportion to their size.
        largest: dict[float, float] = {}

        def worth_planning(choice: Choice, composed: bool) -> bool:
            limits = () if composed else (most for babies, most in largest.items() if babies <= choice.babies)
            return choice.room not in too_few and choice.ring.rotation_key_bytes <= min(limits, default=math.inf)

        for choice, tried in _tries(choices, options, worth_planning):
            if best is not None and tried is not options:
                # Reading keys again costs less than composing rotations from several others.
                break
            enough = compared >= (_COMPARED if self.fastest else 1)
            if best is not None and not best.loading_ms and (enough or choice.cost_ms > _OFF * best.cost_ms):
                break
            if choice.cost_ms >= self.wanted.faster_than:
                # A finished program takes longer than its placement.
                break
            if best is not None and self.times.get(choice, 0.0) >= best.cost_ms:
                compared += 1
                continue
            trail = _tried(choice.ring, _lowered, choice, self.packing, tried, self.wanted, self.pairs)
            if isinstance(trail, Refusal):
                if trail.levels:
                    # Aligning scales took levels that the placement of bootstraps did not foresee.
                    few = trail
                    too_few.add(choice.room)
                elif tried is options or trail.error.where != "Options.key_bytes":
                    return trail
                continue
            program = trail[-1].program
            fitting: tuple[Program, float] | None = program, 0.0
            if options.memory_bytes is not None:
                needed = least_server_bytes(program, choice.ring)
                least_bytes = needed if least_bytes is None else min(needed, least_bytes)
                fitting = within(program, choice.ring, options.memory_bytes)
                if fitting is None and tried is options:
                    most = choice.ring.rotation_key_bytes * options.memory_bytes / needed
                    largest[choice.babies] = min(largest.get(choice.babies, math.inf), most)
            own_ms = run_ms(program, options.costs)
            if fitting is None or fitting[1]:
                unbounded_ms = unbounded_ms or own_ms
            if fitting is None:
                continue
            if tried is options:
                self.times[choice] = own_ms
            found = _Lowered(choice, trail, *fitting, own_ms + fitting[1])
            best = found if best is None or found.cost_ms < best.cost_ms else best
            compared += 1
            if first is None:
                # If its bootstraps are too coarse, most of the others need not be planned.
                plan = self._finished(found, unbounded_ms)
                if isinstance(plan, Refusal):
                    return plan
                first = found, plan
        if best is not None and first is not None:
            return first[1] if best is first[0] else self._finished(best, unbounded_ms)
        if few is not None and least_bytes is None:
            return few
        if least_bytes is None and self.wanted.faster_than < math.inf:
            return self.wanted.too_slow()
        return Refusal(_too_large(choices, least_bytes, options))

    def _finished(self, lowered: _Lowered, unbounded_ms: float | None) -> Plan | Refusal:
        """The plan after a simulation."""
        found = _simulated(lowered.trail, lowered.choice.ring, self.options, self.wanted)
        if isinstance(found, Plan):
            return replace(found, program=lowered.program, unbounded_ms=unbounded_ms, loading_ms=lowered.loading_ms)
        return replace(found, serves=found.share * lowered.choice.error, paired=bool(paired_slots(lowered.program)))


def _tries(
    choices: Sequence[Choice], options: Options, worth_planning: Callable[[Choice, bool], bool]
) -> Iterator[tuple[Choice, Options]]:
    """The choices to plan completely, in order; if memory is bounded, also with fewer keys.

    `worth_planning(choice, composed)` is called when a choice's turn comes, because earlier tries show how much room is
    needed; `composed` says whether rotations are composed from a few keys.
    """
    if options.memory_bytes is None:
        yield from ((choice, options) for choice in choices if worth_planning(choice, False))
        return
    # Choices that would not fit with any keys of the program itself need not be tried.
    possible = [choice for choice in choices if choice.reserved_bytes < options.memory_bytes]
    for share, most in _KEY_SHARES.items():
        composed = share < 1.0
        worthwhile = (choice for choice in possible if worth_planning(choice, composed))
        for choice in itertools.islice(worthwhile, most):
            left = int(share * (options.memory_bytes - choice.reserved_bytes))
            yield choice, replace(options, key_bytes=min(left, options.key_bytes or left)) if composed else options


def _too_large(choices: Sequence[Choice], least_bytes: int | None, options: Options) -> PlanningError:
    """The error if none of these choices fits the memory; `least_bytes` is the least need of a planned one."""
    reserved = min(choice.reserved_bytes for choice in choices)
    return PlanningError(
        said(
            f"the server would need {least_bytes or reserved} bytes at least, {{memory_bytes}} allows "
            f"{options.memory_bytes}"
        ),
        where="Options.memory_bytes",
        why=f"keys and tables of bootstraps alone take {reserved} bytes or more in this ring",
        hint="allow more, or lower degrees so that no value needs a bootstrap",
    )
