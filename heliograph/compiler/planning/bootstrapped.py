"""Plan on one ring with bootstraps: the chain with the least total cost of work and bootstraps that fits the memory."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from heliograph.ckks.ring import Ring
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import lower_passes, pair_passes, pair_samples_passes
from heliograph.compiler.planning.chain_plans import packed_program, simulated_plan, tried, wanted_fastest
from heliograph.compiler.planning.chains import bootstrapping_rings
from heliograph.compiler.planning.placements import Choice, choices, in_order
from heliograph.compiler.planning.plan import Plan, Refusal, Wanted, pack_samples, run_ms, tells
from heliograph.compiler.planning.residency import within
from heliograph.errors import PlanningError, said
from heliograph.execution.memory import least_server_bytes
from heliograph.ir import Program
from heliograph.ir.bootstraps.asked import paired_slots
from heliograph.ir.verify import verify
from heliograph.passes.base import Step, Trail
from heliograph.passes.bootstraps.place_bootstraps import BootstrapSearch, PlaceBootstraps
from heliograph.passes.bootstraps.sizes import observed_sizes

# If the fastest plan is wanted, at most this many of the fastest choices are planned completely. A plan costs as much
# as its choice, unless key selection adds a sub-chain: then less, but by no more than this factor.
_COMPARED, _OFF = 8, 1.1
# The margin on observed sizes, without one from the options or the program's ranges.
_SIZE_MARGIN = 0.5
# The levels of a chain that bootstraps must not use: each number is tried in turn until one is enough.
_SPARE = (0, 1, 2)
# If less than this share of an error is allowed, rotations are hardly its cause.
_HOPELESS = 1 / 32
_NOT_SECURE = "no chain with bootstrapping is secure"
# If reading keys again takes a larger share of the time, rotations are composed from fewer keys too.
_MOST_LOADING = 0.5
# If memory is bounded, this many choices are planned completely, the fastest first: share of the keys -> number of
# choices. (The other rotations are composed, which takes long to plan.)
_KEY_SHARES = {1.0: 48, 0.5: 8, 0.2: 8, 0.05: 8}


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
    packing = tried(rings[0], packed_program, program, rings[0], options, wanted.paired)
    if isinstance(packing, Refusal):
        return packing
    search = BootstrapSearch(packing[-1].program, rings[0].slots, options.costs)
    coarse = found = Refusal(PlanningError(_NOT_SECURE))
    coarse_ms: float | None = None
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
                ordered = in_order(chosen, search.program, options, fitting.fastest)
                attempt = fitting.first(ordered)
                if isinstance(attempt, Refusal) and attempt.inexact and attempt.share > _HOPELESS:
                    # If the error comes from rotations, exact ones are cheaper than a finer scale.
                    exact = replace(fitting, exact_rotations=True, times={}).first(ordered)
                    attempt = exact if isinstance(exact, Plan) else attempt
                if isinstance(attempt, Plan):
                    return replace(attempt, coarse_ms=coarse_ms)
                if attempt.final or attempt.drifts:
                    return attempt
                found = attempt
                if found.finer_bits:
                    coarse_ms = coarse_ms or min(choice.cost_ms for choice in chosen)
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
    for everywhere in (False, True):
        if not found:
            samples = pack_samples(packed, wanted.inputs)
            sizes = observed_sizes(packed, samples, size_margin(packed, options), everywhere)
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


def _lowered(
    choice: Choice, packing: Trail, options: Options, wanted: Wanted, pairs: bool, exact_rotations: bool
) -> Trail:
    """All passes of a choice; without pairs if their scales cannot be aligned."""

    def lowered(program: Program) -> Trail:
        return lower_passes(program, ring, options, shift, choice.lower, exact_rotations)

    ring = choice.ring
    shift = max(0, wanted.headroom - (ring.first_mod_bits - ring.scale_bits))
    verify(choice.placed.program, after=PlaceBootstraps.name)
    placed = (*packing, Step(PlaceBootstraps.name, choice.placed.program))
    if wanted.paired:
        placed = (*placed, *pair_samples_passes(choice.placed.program))
        return (*placed, *lowered(placed[-1].program))
    paired = pair_passes(choice.placed.program, ring, options) if pairs else ()
    if paired:
        with contextlib.suppress(PlanningError):
            return (*placed, *paired, *lowered(paired[-1].program))
    return (*placed, *lowered(choice.placed.program))


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The search for the first choice that fits, or for the fastest.

    `packing`: the passes to the packed program.
    `pairs`: whether bootstraps may refresh two values at once.
    `exact_rotations`: as in `PlanLevels`.
    `times`: the milliseconds of the choices that were lowered.
    """

    packing: Trail
    options: Options
    wanted: Wanted
    pairs: bool
    exact_rotations: bool = False
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

        for choice, given in _tries(choices, options, worth_planning):
            if best is not None and given is not options and best.loading_ms <= _MOST_LOADING * best.cost_ms:
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
            tells(choice.ring)
            how = self.wanted, self.pairs, self.exact_rotations
            trail = tried(choice.ring, _lowered, choice, self.packing, given, *how)
            if isinstance(trail, Refusal):
                if trail.levels:
                    # Aligning scales took levels that the placement of bootstraps did not foresee.
                    few = trail
                    too_few.add(choice.room)
                elif given is options or trail.error.where != "Options.key_bytes":
                    return trail
                continue
            program = trail[-1].program
            fitting: tuple[Program, float] | None = program, 0.0
            if options.memory_bytes is not None:
                needed = least_server_bytes(program, choice.ring)
                least_bytes = needed if least_bytes is None else min(needed, least_bytes)
                fitting = within(program, choice.ring, options.memory_bytes)
                if fitting is None and given is options:
                    most = choice.ring.rotation_key_bytes * options.memory_bytes / needed
                    largest[choice.babies] = min(largest.get(choice.babies, math.inf), most)
            own_ms = run_ms(program, options.costs)
            if fitting is None or fitting[1]:
                unbounded_ms = unbounded_ms or own_ms
            if fitting is None:
                continue
            if given is options:
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
        found = simulated_plan(lowered.trail, lowered.choice.ring, self.options, self.wanted)
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
