"""Choose the chain of a program that needs bootstraps: their places, and the chain's levels and digits."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from heliograph.ckks.bootstrap import all_bootstrap_rotations, bootstrap_table_bytes
from heliograph.ckks.chains import MOST_CHAINS, bootstrap_chain
from heliograph.ckks.noise import bootstrap_error, series_std
from heliograph.ckks.ring import Ring
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import lower_passes, pack_passes, pair_passes
from heliograph.compiler.planning.bootstrap_rings import bootstrapping_rings
from heliograph.compiler.planning.plan import BITS_FINER, AmplifiedError, Plan, Wanted, pack_samples, run_ms, simulated
from heliograph.compiler.planning.residency import within
from heliograph.errors import PlanningError, RangeError, said
from heliograph.execution.bootstrap_work import bootstrap_ms
from heliograph.execution.memory import least_server_bytes
from heliograph.execution.prices import total_ms
from heliograph.ir import Program
from heliograph.ir.bootstraps.asked import paired_slots
from heliograph.ir.verify import verify
from heliograph.passes.base import Step, Trail
from heliograph.passes.bootstraps.place_bootstraps import BootstrapSearch, PlaceBootstraps, Placed, Return
from heliograph.passes.bootstraps.sizes import observed_sizes
from heliograph.passes.levels.plan_levels import TooFewLevelsError

# A chain within this factor of the fastest is taken if its keys are smaller.
_NEARLY = 1.1
# If the fastest plan is wanted, at most this many of the fastest choices are planned completely. A plan costs as much
# as its choice, unless key selection adds a sub-chain: then less, but by no more than this factor.
_COMPARED, _OFF = 8, 1.1
# The margin on observed sizes, without one from the options or the program's ranges.
_SIZE_MARGIN = 0.5
# For up to this many carried values, all combinations of their levels are tried.
_MOST_ENTRIES = 3
# The levels of a chain that bootstraps must not use: each number is tried in turn until one is enough.
_SPARE = (0, 1, 2)
# Combinations are tried on this many of the fastest chains.
_MOST_WITH_ENTRIES = 16
# Numbers of baby steps for the maps in bootstraps, used where the usual number takes more keys.
_BABIES = (16, 8, 4)
# If a plan is too coarse, the next one is finer by at least half a bit: chains that differ only in digits are not
# tried.
_FINER = 2.0**-0.5
# Bootstraps that are written out are assumed to need at least this share of the bytes of whole ones. Their real size is
# known only after planning, and choices should not be planned in vain.
_WRITTEN_OUT = 0.4
_NOT_SECURE = "no chain with bootstrapping is secure"
# If memory is bounded, this many choices are planned completely, the fastest first: share of the keys -> number of
# choices. (The other rotations are composed, which takes long to plan.)
_KEY_SHARES = {1.0: 48, 0.5: 8, 0.2: 8, 0.05: 8}


@dataclass(frozen=True, slots=True)
class _Choice:
    """A placement of bootstraps on a ring, not verified yet.

    `placed`: the placement.
    `ring`: the whole chain.
    `lower`: the sub-chains that bootstrap too, the highest first.
    """

    placed: Placed
    ring: Ring
    lower: tuple[Ring, ...] = ()

    @property
    def cost_ms(self) -> float:
        return self.placed.cost_ms

    @property
    def room(self) -> int:
        """Levels between two bootstraps."""
        return self.ring.bootstrap_level - self.ring.bootstrap_input_level

    @property
    def rings(self) -> tuple[Ring, ...]:
        """The rings of the chains that bootstrap, the whole one first."""
        return (self.ring, *self.lower)

    def place_of(self, one: Return) -> int:
        """The number in `rings` of a bootstrap's chain."""
        return bootstrap_chain(self.rings, one.reached)

    @property
    def useful(self) -> bool:
        """Whether some bootstrap happens in each of the sub-chains: one without any would not become a chain."""
        return {0, *map(self.place_of, self.placed.returns)} == set(range(len(self.rings)))

    @property
    def babies(self) -> float:
        """The baby steps of its bootstraps; infinite for the usual number."""
        return self.ring.bootstrap_babies or math.inf

    @property
    def error(self) -> float:
        """The error of its coarsest bootstrap for values of size up to one."""
        ordinary = any(not one.degree for one in self.placed.returns)
        return bootstrap_error(self.ring) if ordinary else series_std(self.ring)

    @property
    def bootstrap_bytes(self) -> int:
        """Bytes of the bootstraps' keys and tables, in all chains with bootstraps."""
        by_chain: dict[Ring, set[int]] = defaultdict(set)
        for one in self.placed.returns:
            by_chain[self.rings[self.place_of(one)]].add(one.slots)
        total = 0
        for ring, slot_counts in by_chain.items():
            keys = len(all_bootstrap_rotations(ring, slot_counts)) * ring.rotation_key_bytes
            total += keys + sum(bootstrap_table_bytes(ring, slots) for slots in slot_counts)
        return total

    @property
    def reserved_bytes(self) -> int:
        """The least bytes that bootstraps take of a bound on memory: written out, they share keys with the program, and
        their keys reach only as high as they are used.
        """
        return int(_WRITTEN_OUT * self.bootstrap_bytes)

    def with_babies(self, babies: int, options: Options) -> _Choice | None:
        """The choice with this many baby steps in the maps of its bootstraps; None if that saves no bytes."""
        rings = self.rings
        fewer = tuple(replace(ring, bootstrap_babies=babies) for ring in rings)
        if 1 in (self.ring.bootstrap or ()):
            return None
        more = 0.0
        for one in self.placed.returns:
            place = self.place_of(one)
            more += bootstrap_ms(fewer[place], one.slots, options.costs, lower=fewer[place + 1 :])
            more -= bootstrap_ms(rings[place], one.slots, options.costs, lower=rings[place + 1 :])
        made = _Choice(replace(self.placed, cost_ms=self.cost_ms + more), fewer[0], fewer[1:])
        return made if made.bootstrap_bytes < self.bootstrap_bytes else None


def plan_bootstrapped(
    log_ring: int, offered: Callable[[], Program], options: Options, wanted: Wanted, faster_than: float = math.inf
) -> Plan:
    """The plan with bootstraps on one ring: on the chain with the least total cost of work and bootstraps.

    `offered` returns the program with the series that bootstraps may compute. Fitting these takes time, so it is called
    only if the ring has a chain that bootstraps.

    Among chains of nearly the same cost, the one with the smallest keys and tables is chosen. With
    `Options.memory_bytes`, it is the first in order of cost that fits, or a faster one that fits by reading keys again
    in every run. Finer bootstraps are tried if coarse ones are not precise enough. Raises PlanningError if there is no
    plan, or if the fastest is wanted and none takes less than `faster_than` milliseconds.
    """
    rings = bootstrapping_rings(log_ring, options, series=True)
    if not rings:
        raise PlanningError(_NOT_SECURE)
    program = offered()
    if not any(node.op == "poly" and node.attrs.get("series") is not None for node in program.nodes):
        rings = bootstrapping_rings(log_ring, options)
    if not rings:
        raise PlanningError(_NOT_SECURE)
    packing = pack_passes(program, rings[0], options)
    packed = packing[-1].program
    known = BootstrapSearch(packed, rings[0].slots, options.costs)
    failure = ""
    for pairs in (True, False):
        coarse: _TooCoarseError | None = None
        times: dict[_Choice, float] = {}
        # Aligning scales may take levels. In that case, try again with some to spare.
        for spare in _SPARE:
            few = False
            choices, failure = _choices(known, rings, options, pairs, spare)
            for nearby in (False, True) if not choices else ():
                samples, margin = pack_samples(packed, wanted.inputs), size_margin(packed, options)
                sizes = observed_sizes(packed, samples, margin, nearby)
                choices, failure = _choices(known.having(sizes=sizes), rings, options, pairs, spare)
                if choices:
                    break
            while choices:
                try:
                    ordered = _in_order(choices, packed, options)
                    return _first_fitting(ordered, packing, options, wanted, pairs, faster_than, times)
                except RangeError as out_of_range:
                    raise PlanningError(out_of_range.what, why=out_of_range.why) from None
                except TooFewLevelsError as found_few:
                    failure, few = found_few.what, True
                    break
                except _TooCoarseError as failed:
                    failure, coarse = failed.what, failed
                    choices = [choice for choice in choices if choice.error <= failed.serves]
            if not few:
                break
        # Pairs are a bit coarser: if there were any, try again without them.
        if coarse is None or not coarse.paired:
            break
    raise PlanningError(failure)


def size_margin(program: Program, options: Options) -> float:
    """The margin on observed sizes: the option's, or else the largest margin of a range."""
    if options.margin is not None:
        return options.margin
    return max((entry.margin for entry in program.ranges), default=_SIZE_MARGIN)


class _TooCoarseError(PlanningError):
    """The error of encryption is larger than allowed.

    `paired`: whether bootstraps refreshed two values at once.
    `serves`: bootstraps with at most this error may be precise enough.
    """

    def __init__(self, what: str, paired: bool, serves: float) -> None:
        self.paired, self.serves = paired, serves
        super().__init__(what)


def _choices(
    search: BootstrapSearch, rings: Sequence[Ring], options: Options, pairs: bool, spare: int
) -> tuple[list[_Choice], str]:
    """The choices on all rings on which bootstraps can be placed, in no order, and why the last other one failed."""
    failure = ""
    found: list[_Choice] = []
    fits: list[Ring] = []

    def place(tried: Sequence[Ring], ways: Sequence[tuple[bool, bool]]) -> None:
        nonlocal failure
        asked = [PlaceBootstraps(ring, one_size, low, pairs, spare=spare) for ring in tried for one_size, low in ways]
        for each, placed in zip(asked, search.placed(asked), strict=True):
            if isinstance(placed, TooFewLevelsError):
                failure = placed.what
            elif not placed.returns:
                failure = "it fits the chain as it is"
                fits.append(each.ring)
            else:
                found.append(_Choice(placed, each.ring))

    place(rings, [(False, False)])
    # The other ways take as long or longer, with fewer keys. With lower inputs, values may have to be bootstrapped.
    likely = _worthwhile(_fastest(found), options)
    place([*likely, *fits], [(False, True), (True, False), (True, True)])
    fastest = dict.fromkeys(choice.ring for choice in sorted(found, key=lambda choice: choice.cost_ms))
    with_entries = itertools.product(list(fastest)[:_MOST_WITH_ENTRIES], (False, True), _entries(search.program))
    asked = [
        PlaceBootstraps(ring, one_size, pairs=pairs, carried=carried, spare=spare)
        for ring, one_size, carried in with_entries
    ]
    for each, placed in zip(asked, search.placed(asked), strict=True):
        if not isinstance(placed, TooFewLevelsError):
            found.append(_Choice(placed, each.ring))
    if options.chains != 1:
        found += _with_lower(search, found, options, pairs, spare)
    # Choices that place the same bootstraps in the same chains count once.
    return list({(choice.ring, choice.lower, choice.placed.returns): choice for choice in found}.values()), failure


def _fastest(found: Sequence[_Choice]) -> dict[Ring, float]:
    """The least time on each ring."""
    least: dict[Ring, float] = {}
    for choice in found:
        least[choice.ring] = min(choice.cost_ms, least.get(choice.ring, choice.cost_ms))
    return least


def _worthwhile(times: Mapping[Ring, float], options: Options, much: float = _NEARLY) -> list[Ring]:
    """The rings that may be chosen: no other ring with bootstraps as fine is `much` times as fast. If memory is
    bounded, only rings with keys no larger are compared.
    """
    kept: list[Ring] = []
    for ring in sorted(times, key=lambda ring: (bootstrap_error(ring), times[ring])):
        better = (
            much * times[other] < times[ring]
            for other in kept
            if options.memory_bytes is None or other.rotation_key_bytes <= ring.rotation_key_bytes
        )
        if not any(better):
            kept.append(ring)
    chosen = set(kept)
    return [ring for ring in times if ring in chosen]


def _in_order(found: Sequence[_Choice], packed: Program, options: Options) -> list[_Choice]:
    """The choices and their variants with fewer keys, the best first."""
    least = min(choice.cost_ms for choice in found)
    # If memory is bounded, the fastest may be out of reach.
    worth = _NEARLY if options.memory_bytes is None else _NEARLY**2
    every = [
        *found,
        *(
            fewer
            for choice in found
            if choice.cost_ms <= worth * least
            for babies in _BABIES
            if (fewer := choice.with_babies(babies, options)) is not None
        ),
    ]
    near = [choice for choice in every if choice.cost_ms <= _NEARLY * least]
    near.sort(
        key=lambda choice: (
            choice.cost_ms if wanted_fastest(packed, options) else 0.0,
            choice.bootstrap_bytes,
            choice.cost_ms,
        )
    )
    far = [choice for choice in every if choice.cost_ms > _NEARLY * least]
    return [*near, *sorted(far, key=lambda choice: (choice.cost_ms, choice.bootstrap_bytes))]


def _entries(program: Program) -> list[dict[str, int]]:
    """The levels of values from the previous run above the one at which bootstraps begin: every combination of 0 and 1
    except all zeros.

    A value that is read only near the end needs no bootstrap of its own if it is left a level higher.
    """
    names = sorted(program.interface.carried_inputs)
    if not 0 < len(names) <= _MOST_ENTRIES:
        return []
    every = itertools.product((0, 1), repeat=len(names))
    return [dict(zip(names, above, strict=True)) for above in every if any(above)]


def _with_lower(
    search: BootstrapSearch, found: Sequence[_Choice], options: Options, pairs: bool, spare: int
) -> list[_Choice]:
    """Choices with one or more sub-chains that bootstrap too: on each ring the one that saves most time, then the next.

    A ring is skipped if even all its sub-chains together would not beat the best choice without any.
    """
    best = _fastest(found)

    def placed(tried: Sequence[tuple[Ring, tuple[Ring, ...]]]) -> list[_Choice]:
        asked = [PlaceBootstraps(ring, pairs=pairs, lower=lower, spare=spare) for ring, lower in tried]
        made = zip(tried, search.placed(asked), strict=True)
        return [_Choice(one, *how) for how, one in made if not isinstance(one, TooFewLevelsError)]

    whole = placed([(ring, parts) for ring in best if (parts := lower_parts(ring))])
    # The best choice so far for each ring that is still in the search.
    likely = {choice.ring: choice.cost_ms for choice in whole if choice.cost_ms < min(best.values())}
    taken: dict[Ring, _Choice | None] = dict.fromkeys(_worthwhile(likely, options, 1.0))
    made: dict[Ring, list[_Choice]] = {ring: [] for ring in taken}
    # Parts that save nothing by themselves are not tried beside others.
    useful = {ring: list(lower_parts(ring)) for ring in taken}
    for _ in range((MOST_CHAINS if options.chains is None else options.chains) - 1):
        lower = {ring: () if choice is None else choice.lower for ring, choice in taken.items()}
        tried = [
            (ring, tuple(sorted((*lower[ring], part), key=lambda part: -part.levels)))
            for ring in taken
            for part in useful[ring]
            if part not in lower[ring]
        ]
        saving: dict[Ring, list[_Choice]] = defaultdict(list)
        for choice in placed(tried):
            if choice.placed.returns and choice.useful and choice.cost_ms < best[choice.ring]:
                saving[choice.ring].append(choice)
        taken = {}
        for ring, choices in saving.items():
            useful[ring] = [part for choice in choices for part in choice.lower if part not in lower[ring]]
            taken[ring] = choice = min(choices, key=lambda choice: choice.cost_ms)
            best[ring] = choice.cost_ms
            made[ring].append(choice)
    return [choice for choices in made.values() for choice in choices]


def lower_parts(ring: Ring) -> tuple[Ring, ...]:
    """The sub-chains that can bootstrap, each with the fewest possible digits, highest first."""
    assert ring.bootstrap is not None
    room = ring.bootstrap_level - ring.bootstrap_input_level
    found = []
    for less in range(1, room):
        level = ring.levels - less
        tried = (ring.lower(level, digits, bootstraps=True) for digits in range(2, level + 2))
        fitting = next((part for part in tried if part.legal and part.secure), None)
        if fitting is not None:
            found.append(fitting)
    return tuple(found)


def _tries(
    choices: Sequence[_Choice], options: Options, worth_planning: Callable[[_Choice, bool], bool]
) -> Iterator[tuple[_Choice, Options]]:
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


@dataclass(frozen=True, slots=True)
class _Planned:
    """A completely planned choice.

    `program`: the executable program.
    `loading_ms`: the time for reading keys again in each run.
    `trail`: the passes.
    `own_ms`: the time of the run itself, by the placement or by the program's calls.
    """

    choice: _Choice
    program: Program
    loading_ms: float
    trail: Trail
    own_ms: float

    @property
    def cost_ms(self) -> float:
        return self.own_ms + self.loading_ms


def _finished(planned: _Planned, wanted: Wanted, unbounded_ms: float | None, options: Options) -> Plan:
    """The plan after a simulation. Raises _TooCoarseError if its errors are too large."""
    ring, program = planned.choice.ring, planned.program
    try:
        found = simulated(program, wanted.inputs, wanted.refuses)
        wrong = wanted.refuses(found)
        # For finer scales; errors grow at most in proportion to the errors of bootstraps.
        share = min(_FINER, wanted.tolerance / found.error) if wrong else 1.0
    except AmplifiedError as amplified:
        wrong, share = amplified.what, 2.0**-BITS_FINER
    if wrong:
        raise _TooCoarseError(
            f"{wrong} (scale of {ring.scale_bits} bits)", bool(paired_slots(program)), share * planned.choice.error
        )
    price = total_ms(found.trace.calls, program, options.costs)
    return Plan(
        program,
        planned.trail,
        ring,
        found.trace,
        price,
        found.error,
        wanted.magnitude,
        unbounded_ms,
        planned.loading_ms,
    )


def _planned(choice: _Choice, packing: Trail, options: Options, wanted: Wanted, pairs: bool) -> _Planned:
    """The choice as an executable program."""
    room = choice.ring.first_mod_bits - choice.ring.scale_bits
    trail = (*packing, *_lowered(choice, options, max(0, wanted.headroom - room), pairs))
    return _Planned(choice, trail[-1].program, 0.0, trail, choice.cost_ms)


def _lowered(choice: _Choice, options: Options, shift: int, pairs: bool) -> Trail:
    """The passes from placing bootstraps to the executable program; without pairs if their scales cannot be aligned."""
    verify(choice.placed.program, after=PlaceBootstraps.name)
    placed = Step(PlaceBootstraps.name, choice.placed.program)
    paired = pair_passes(choice.placed.program, choice.ring, options) if pairs else ()
    if paired:
        with contextlib.suppress(PlanningError):
            lowered = lower_passes(paired[-1].program, choice.ring, options, shift, choice.lower)
            return (placed, *paired, *lowered)
    return (placed, *lower_passes(choice.placed.program, choice.ring, options, shift, choice.lower))


def wanted_fastest(program: Program, options: Options) -> bool:
    """Whether the fastest plan is wanted, however large; otherwise the smallest of nearly equally fast plans is chosen.

    A program that carries values from run to run counts, because it runs again and again.
    """
    return options.objective is not None or options.allocate == "plan" or bool(program.interface.carried)


def _first_fitting(
    choices: Sequence[_Choice],
    packing: Trail,
    options: Options,
    wanted: Wanted,
    pairs: bool,
    faster_than: float,
    times: dict[_Choice, float],
) -> Plan:
    """The first of these choices that fits the memory; if time matters most, the fastest of the first `_COMPARED`.

    `times` has the milliseconds of choices from earlier calls; new ones are added.
    """
    least_bytes, unbounded_ms = None, None
    best: _Planned | None = None
    first: tuple[_Planned, Plan] | None = None
    few: TooFewLevelsError | None = None
    # Numbers of levels between bootstraps that proved too few for their placements.
    too_few: set[int] = set()
    compared = 0
    # By the baby steps of bootstraps: a bound on the size of a key, where larger keys did not fit. Keys are a share of
    # a server's memory, which falls at most in proportion to their size.
    largest: dict[float, float] = {}
    for_time = wanted_fastest(packing[-1].program, options)

    def worth_planning(choice: _Choice, composed: bool) -> bool:
        limits = () if composed else (most for babies, most in largest.items() if babies <= choice.babies)
        return choice.room not in too_few and choice.ring.rotation_key_bytes <= min(limits, default=math.inf)

    tries = _tries(choices, options, worth_planning)
    for choice, tried in tries:
        if best is not None and tried is not options:
            # Reading keys again costs less than composing rotations from several others.
            break
        if best is not None and not best.loading_ms:
            most = _OFF * best.cost_ms if for_time else math.inf
            if compared >= (_COMPARED if for_time else 1) or choice.cost_ms > most:
                break
        if for_time and choice.cost_ms >= faster_than:
            # A finished program takes longer than its placement.
            break
        if best is not None and times.get(choice, 0.0) >= best.cost_ms:
            compared += 1
            continue
        try:
            found = _planned(choice, packing, tried, wanted, pairs)
        except TooFewLevelsError as found_few:
            # Aligning scales took levels that the placement of bootstraps did not foresee.
            few = found_few
            too_few.add(choice.room)
            continue
        except PlanningError as refused:
            if tried is options or refused.where != "Options.key_bytes":
                raise
            continue
        fitting: tuple[Program, float] | None = found.program, 0.0
        if options.memory_bytes is not None:
            needed = least_server_bytes(found.program, choice.ring)
            least_bytes = needed if least_bytes is None else min(needed, least_bytes)
            fitting = within(found.program, choice.ring, options.memory_bytes)
            if fitting is None and tried is options:
                most = choice.ring.rotation_key_bytes * options.memory_bytes / needed
                largest[choice.babies] = min(largest.get(choice.babies, math.inf), most)
        if fitting is None or fitting[1]:
            unbounded_ms = unbounded_ms or run_ms(found.program, options.costs)
        if fitting is not None:
            own_ms = run_ms(found.program, options.costs) if for_time else choice.cost_ms
            if for_time and tried is options:
                times[choice] = own_ms
            found = replace(found, program=fitting[0], loading_ms=fitting[1], own_ms=own_ms)
            best = found if best is None or found.cost_ms < best.cost_ms else best
            compared += 1
            if for_time and first is None:
                # If its bootstraps are too coarse, most of the others need not be planned.
                first = found, _finished(found, wanted, unbounded_ms, options)
    if best is not None:
        if first is not None and best is first[0]:
            return first[1]
        return _finished(best, wanted, unbounded_ms, options)
    if few is not None and least_bytes is None:
        raise few
    if least_bytes is None and math.isfinite(faster_than):
        raise PlanningError(f"no plan takes less than {faster_than:.0f} ms")
    raise _too_large(choices, least_bytes, options)


def _too_large(choices: Sequence[_Choice], least_bytes: int | None, options: Options) -> PlanningError:
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
