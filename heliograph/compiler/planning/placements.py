"""The choices of a program that needs bootstraps: where it bootstraps, on which chain, with which keys."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heliograph.ckks.bootstrap import bootstrap_key_bytes, bootstrap_table_bytes
from heliograph.ckks.chains import MOST_CHAINS, bootstrap_chain
from heliograph.ckks.noise import bootstrap_error, series_std
from heliograph.ckks.ring import Ring
from heliograph.compiler.options import Options
from heliograph.compiler.planning.chains import lower_parts, with_keys
from heliograph.execution.bootstrap_work import bootstrap_ms
from heliograph.ir import Program
from heliograph.ir.maps.steps import rotation_steps
from heliograph.passes.bootstraps.place_bootstraps import BootstrapSearch, PlaceBootstraps, Placed, Return
from heliograph.passes.levels.plan_levels import TooFewLevelsError

# Of two rings with bootstraps as fine, one that takes this many times as long is not compared further.
_NEARLY = 1.1
# For up to this many carried values, all combinations of their levels are tried.
_MOST_ENTRIES = 3
# Combinations are tried on this many of the fastest chains.
_MOST_WITH_ENTRIES = 16
# Numbers of baby steps for the maps in bootstraps, used where the usual number takes more keys.
_BABIES = (16, 8, 4)
# Bootstraps that are written out are assumed to need at least this share of the bytes of whole ones. Their real size is
# known only after planning, and choices should not be planned in vain.
_WRITTEN_OUT = 0.4


@dataclass(frozen=True, slots=True)
class Choice:
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
            tables = sum(bootstrap_table_bytes(ring, slots) for slots in slot_counts)
            total += bootstrap_key_bytes(ring, slot_counts) + tables
        return total

    def bytes_with(self, rotations: int) -> int:
        """These bytes, and those of the keys of `rotations` more, up to the level to which bootstraps return."""
        own = self.ring.lower(max(1, self.ring.bootstrap_level), 1).rotation_key_bytes
        return self.bootstrap_bytes + rotations * own

    @property
    def reserved_bytes(self) -> int:
        """The least bytes that bootstraps take of a bound on memory: written out, they share keys with the program, and
        their keys reach only as high as they are used.
        """
        return int(_WRITTEN_OUT * self.bootstrap_bytes)

    def with_babies(self, babies: int, options: Options) -> Choice | None:
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
        made = Choice(replace(self.placed, cost_ms=self.cost_ms + more), fewer[0], fewer[1:])
        return made if made.bootstrap_bytes < self.bootstrap_bytes else None


def choices(
    search: BootstrapSearch, rings: Sequence[Ring], options: Options, pairs: bool, spare: int
) -> tuple[list[Choice], str]:
    """The choices on all rings on which bootstraps can be placed, in no order, and why the last other one failed."""
    failure = ""
    found: list[Choice] = []
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
                found.append(Choice(placed, each.ring))

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
            found.append(Choice(placed, each.ring))
    if options.chains != 1:
        found += _with_lower(search, found, options, pairs, spare)
    # Choices that place the same bootstraps in the same chains count once.
    return list({(choice.ring, choice.lower, choice.placed.returns): choice for choice in found}.values()), failure


def _fastest(found: Sequence[Choice]) -> dict[Ring, float]:
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


def in_order(found: Sequence[Choice], packed: Program, options: Options, fastest: bool) -> list[Choice]:
    """The choices and their variants with fewer keys, the best first: with `fastest` the fastest, otherwise the one with
    the least product of time and a small power of the bytes of keys and tables.
    """
    least = min(choice.cost_ms for choice in found)
    every = [
        *found,
        *(
            fewer
            for choice in found
            if choice.cost_ms <= _NEARLY**2 * least
            for babies in _BABIES
            if (fewer := choice.with_babies(babies, options)) is not None
        ),
    ]
    if fastest:
        return sorted(every, key=lambda choice: (choice.cost_ms, choice.bootstrap_bytes))
    rotations = len({step % every[0].ring.slots for node in packed.nodes for step in rotation_steps(node)})
    return sorted(every, key=lambda choice: (with_keys(choice.cost_ms, choice.bytes_with(rotations)), choice.cost_ms))


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
    search: BootstrapSearch, found: Sequence[Choice], options: Options, pairs: bool, spare: int
) -> list[Choice]:
    """Choices with one or more sub-chains that bootstrap too: on each ring the one that saves most time, then the next.

    A ring is skipped if even all its sub-chains together would not beat the best choice without any.
    """
    best = _fastest(found)

    def placed(tried: Sequence[tuple[Ring, tuple[Ring, ...]]]) -> list[Choice]:
        asked = [PlaceBootstraps(ring, pairs=pairs, lower=lower, spare=spare) for ring, lower in tried]
        made = zip(tried, search.placed(asked), strict=True)
        return [Choice(one, *how) for how, one in made if not isinstance(one, TooFewLevelsError)]

    whole = placed([(ring, parts) for ring in best if (parts := lower_parts(ring))])
    # The best choice so far for each ring that is still in the search.
    likely = {choice.ring: choice.cost_ms for choice in whole if choice.cost_ms < min(best.values())}
    taken: dict[Ring, Choice | None] = dict.fromkeys(_worthwhile(likely, options, 1.0))
    made: dict[Ring, list[Choice]] = {ring: [] for ring in taken}
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
        saving: dict[Ring, list[Choice]] = defaultdict(list)
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
