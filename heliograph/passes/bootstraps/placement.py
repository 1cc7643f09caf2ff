"""The search behind PlaceBootstraps and AllocateDegrees: the cheapest way to compute or bootstrap each value.

The program is read backwards. At each place, the values still to be computed (the cut) are wanted at certain levels. A
value is either computed at the level at which it is wanted, or bootstrapped to it and computed at the level at which
bootstraps begin. A polynomial may be evaluated in one of several ways, which differ in levels, products and loss. This
is a shortest path over (cut, levels, loss), residual branches included: one branch may be refreshed and the other not,
and their common operands are counted once.

An example:

    h = f(x)             f takes 4 levels
    y = g(h) + k(h)      g takes 4 levels, k takes 1

    cut                  wanted at
    y                    0
    g(h), k(h)           0, 0
    h, k(h)              4, 0     g is done: its operand is wanted 4 levels higher
    h                    4        k reads h at level 1, g at level 4: the higher one counts

Behind this cut there are two states. Either h is computed at level 4, and x is wanted at level 8; or h is bootstrapped
to level 4, and x is wanted 4 levels above the one at which a bootstrap begins. The first is cheaper where the chain has
8 levels, and impossible where it has not.

A state is dropped if another one costs no more, loses no more and wants no value higher. The rest is the whole front of
cost against loss, and the search is exact as long as a cut has no more than `MOST_STATES` of them. Where it has more,
the fronts of its levels are thinned evenly in the logarithm of the loss, and their ends stay. A dropped state is
replaced by the next one on its front, with less loss and more cost. So the cost and loss of each result are still
correct; only the optimum may be missed.

Costs are whole nanoseconds and losses whole units, so that sums do not depend on the order of the program; ties in both
are broken by digests of names (`tie`), which do not depend on it either.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse

from heliograph.passes.levels.plan_levels import TooFewLevelsError

Whole = npt.NDArray[np.int64]
Levels = npt.NDArray[np.int16]

MOST_STATES = 2000
# Losses stay below this, so adding multiples of it keeps fronts apart.
MOST_LOSS = 1 << 40
# The cost of a step that cannot be taken.
IMPOSSIBLE = 1 << 60
_BLOCK = 256
_COMPUTED, _REFRESHED, _MERGED = "computed", "refreshed", "merged"
# A front is thinned to no fewer points than this.
_LEAST_FRONT = 6
# This many searches run side by side: their tables are still small then.
TOGETHER = 64
# The most pairs of rows that are compared at once to see which row beats which.
_MOST_CELLS = 1 << 20


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute a value.

    `depth`: its levels.
    `cost`: nanoseconds by the level at which it begins.
    `loss`: the units of loss that it adds.
    `tie`: breaks ties of cost and loss.
    """

    depth: int
    cost: Whole
    loss: int = 0
    tie: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One secret value.

    `reads`: the numbers of its operands.
    `ways`: the ways to compute it.
    `refresh`: the cost of bootstrapping it, by the level to which the bootstrap returns; None if it cannot be
    bootstrapped.
    `written`: whether it is itself a bootstrap that the author wrote; `refresh` is then its cost.
    `whole`: the tensor of which it is a ciphertext; all or none of a tensor's ciphertexts are refreshed. None for no
    tensor.
    `group`: its polynomial; all ciphertexts of a polynomial are computed in the same way. None for no polynomial.
    `refresh_tie`: breaks ties where it is bootstrapped.
    `refresh_depth`: the levels that it takes before it is bootstrapped.
    `most`: the highest level of an input from the previous run; None for other values.
    `merged`: for each way, the cost of a bootstrap of its operand that also computes it, by the level to which that
    bootstrap returns; None if there is no such bootstrap. Empty if no way has one.
    """

    reads: tuple[int, ...]
    ways: tuple[Way, ...]
    refresh: Whole | None = None
    written: bool = False
    whole: int | None = None
    group: int | None = None
    refresh_tie: int = 0
    refresh_depth: int = 0
    most: int | None = None
    merged: tuple[Whole | None, ...] = ()

    def refreshed(self, costs: Whole | None, merged: tuple[Whole | None, ...] = ()) -> Step:
        """The same step with these prices of bootstraps."""
        # Not dataclasses.replace, which is slower: planners do this a million times.
        return Step(
            self.reads,
            self.ways,
            costs,
            self.written,
            self.whole,
            self.group,
            self.refresh_tie,
            self.refresh_depth,
            self.most,
            merged,
        )

    @property
    def plain(self) -> bool:
        """Whether there is nothing to decide: it is computed in its only way, at the level at which it is wanted."""
        undecided = self.whole, self.group, self.most
        return len(self.ways) == 1 and self.refresh is None and not self.merged and undecided == (None, None, None)


@dataclass(frozen=True, slots=True)
class Shape:
    """Steps that the search treats as one: a step, and earlier plain steps that only these steps read.

    The level `at` at which the step begins settles the levels of all of them.

    `number`: the step.
    `reads`: the operands from outside, each with the levels above `at` at which it is wanted.
    `reach`: the levels above `at` of the highest step.
    `others`: the earlier steps, one entry for all with the same cost: the number of one step, the levels above `at` at
    which it begins, and their count.
    """

    number: int
    reads: tuple[tuple[int, int], ...]
    reach: int
    others: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """A `Shape` with the total cost of its `others` by level; None if it has no others."""

    number: int
    reads: tuple[tuple[int, int], ...]
    reach: int
    others: Whole | None

    def cost(self, way: Way) -> Whole:
        """The total cost by the level at which the step begins; valid while no other step lies too high."""
        return way.cost if self.others is None else way.cost + self.others


class Shapes:
    """Shapes that are priced many times; `rows` is the row of each step in a table of costs by level."""

    def __init__(self, shapes: Sequence[Shape], rows: Sequence[int]) -> None:
        self._shapes = shapes
        places: dict[tuple[int, int], int] = {}
        entries = [
            (place, places.setdefault((rows[number], above), len(places)), count)
            for place, shape in enumerate(shapes)
            for number, above, count in shape.others
        ]
        where, which, counts = np.array(entries, dtype=np.int64).reshape(-1, 3).T
        self._counts = scipy.sparse.csr_array((counts, (where, which)), shape=(len(shapes), len(places)))
        self._rows, self._above = np.array(list(places), dtype=np.int64).reshape(-1, 2).T

    def priced(self, costs: Whole) -> list[Joined]:
        """The shapes with prices from a table of costs by level, with a row for each kind of step."""
        levels = np.arange(costs.shape[1]) + self._above[:, np.newaxis]
        others = self._counts @ costs[self._rows[:, np.newaxis], levels.clip(max=costs.shape[1] - 1)]
        return [
            Joined(shape.number, shape.reads, shape.reach, summed if shape.others else None)
            for shape, summed in zip(self._shapes, others, strict=True)
        ]


def shapes(steps: Sequence[Step], outputs: Collection[int]) -> list[Shape]:
    """The shapes of the search, in program order; only the step of a shape has a choice.

    The shapes stay valid for other costs if the same steps share a cost array.
    """
    readers: list[list[int]] = [[] for _ in steps]
    for number, step in enumerate(steps):
        for operand in set(step.reads):
            readers[operand].append(number)
    owner, above = list(range(len(steps))), [0] * len(steps)
    members: dict[int, list[int]] = {}
    for number in range(len(steps) - 1, -1, -1):
        step, owners = steps[number], {owner[reader] for reader in readers[number]}
        if step.plain and number not in outputs and len(owners) == 1:
            owner[number] = owners.pop()
            above[number] = max(above[reader] for reader in readers[number]) + step.ways[0].depth
        members.setdefault(owner[number], []).append(number)
    made = []
    for number in sorted(members):
        own = sorted(members[number])
        reads: dict[int, int] = {}
        for member in own:
            for operand in steps[member].reads:
                if owner[operand] != number:
                    reads[operand] = max(reads.get(operand, 0), above[member])
        alike: dict[tuple[int, int], list[int]] = {}
        for member in own:
            if member != number:
                alike.setdefault((id(steps[member].ways[0].cost), above[member]), []).append(member)
        others = tuple((same[0], height, len(same)) for (_, height), same in alike.items())
        made.append(Shape(number, tuple(reads.items()), max(above[member] for member in own), others))
    return made


@dataclass(frozen=True, slots=True)
class Found:
    """A point of the front.

    `ways`: the way of each step.
    `refreshed`: the bootstrapped steps, with the levels to which their bootstraps return.
    `merged`: the steps among these that are computed by a bootstrap of their operand.
    """

    cost: int
    loss: int
    ways: tuple[int, ...]
    refreshed: Mapping[int, int]
    merged: frozenset[int] = frozenset()


@functools.lru_cache(maxsize=1 << 14)
def digest(*names: object) -> int:
    """A number from names that is the same in every run, for breaking ties."""
    text = "\x00".join(map(str, names)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")


@dataclass(slots=True)
class _States:
    """States of one cut, a row each.

    `of`: the number of the search.
    `levels`: the levels at which the values of the cut are wanted.
    `decided`: the decisions for open tensors and polynomials; -1 where there is none yet.
    """

    of: Levels
    levels: Levels
    decided: Levels
    cost: Whole
    loss: Whole
    tie: Whole

    def __len__(self) -> int:
        return len(self.cost)

    def taken(self, rows: npt.NDArray[np.intp]) -> _States:
        return _States(*(getattr(self, name)[rows] for name in _COLUMNS))

    @staticmethod
    def joined(parts: Sequence[_States]) -> _States:
        return _States(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))


_COLUMNS = ("of", "levels", "decided", "cost", "loss", "tie")


@dataclass(slots=True)
class _Trace:
    """The history of the states after one step, a row each.

    `parent`: the row before the step.
    `way`: the way.
    `refreshed`: the level to which the bootstrap returned; -1 without a bootstrap.
    """

    step: int
    parent: npt.NDArray[np.int32]
    way: npt.NDArray[np.int16]
    refreshed: Levels


@dataclass(slots=True)
class Search:
    """A search for the front of cost against loss.

    `steps`: in program order.
    `outputs`: the steps that are outputs, with the levels at which they are wanted.
    `begin`: the level at which bootstraps begin.
    `back`: the highest level to which a bootstrap returns.
    `highest`: the highest level of a value.
    `levels`: the levels of the chain.
    `joined`: the priced `shapes` of steps and outputs, if they are already known.
    """

    steps: Sequence[Step]
    outputs: Mapping[int, int]
    begin: int
    back: int
    highest: int
    levels: int
    most_states: int = MOST_STATES
    joined: Sequence[Joined] | None = None

    def run(self) -> list[Found]:
        """The front, the cheapest first. Raises TooFewLevelsError where it is empty."""
        (found,) = run_all([self])
        if isinstance(found, TooFewLevelsError):
            raise found
        return found


def run_all(searches: Iterable[Search], together: int = TOGETHER) -> list[list[Found] | TooFewLevelsError]:
    """The front of each search, or its error: the same as one by one, in a fraction of the time.

    All searches are of one program: their levels and prices differ, their graph does not. `together`: the number of
    searches that are held at a time.
    """
    left, found = iter(searches), []
    while some := list(itertools.islice(left, together)):
        found += _Together(some).run()
    return found


def _joined(search: Search) -> list[Joined]:
    """The priced shapes of a search."""
    made = Shapes(shapes(search.steps, search.outputs), range(len(search.steps)))
    return made.priced(np.array([step.ways[0].cost for step in search.steps]))


class _Together:
    """Searches that go through the program side by side, with one table for the states of all."""

    def __init__(self, searches: Sequence[Search]) -> None:
        self.searches = searches
        self.begin, self.back, self.highest, self.levels = (
            np.array([getattr(search, name) for search in searches], dtype=np.int64)
            for name in ("begin", "back", "highest", "levels")
        )
        self.failed: dict[int, TooFewLevelsError] = {}
        self.traces: list[_Trace] = []

    def run(self) -> list[list[Found] | TooFewLevelsError]:
        first, count = self.searches[0], len(self.searches)
        cut = sorted(first.outputs)
        # Open tensors ("whole", entry) and polynomials ("group", entry); the first step of each is reached last.
        open_: list[tuple[str, int]] = []
        last: dict[tuple[str, int], int] = {}
        for number, step in enumerate(first.steps):
            for kind, entry in (("whole", step.whole), ("group", step.group)):
                if entry is not None:
                    last.setdefault((kind, entry), number)
        zero = np.zeros(count, dtype=np.int64)
        states = _States(
            np.arange(count, dtype=np.int16),
            np.array([[search.outputs[number] for number in cut] for search in self.searches], dtype=np.int16),
            np.zeros((count, 0), dtype=np.int16),
            zero,
            zero.copy(),
            zero.copy(),
        )
        every = [one.joined or _joined(one) for one in self.searches]
        for place in range(len(every[0]) - 1, -1, -1):
            together = [steps[place] for steps in every]
            parents, ways, refreshed, states = self._taken(together, states, cut, open_, last)
            if not len(states):
                break
            kept = _pruned(states, first.most_states) if len(states) > 1 else np.arange(len(states))
            if len(kept) < len(states):
                states = states.taken(kept)
                parents, ways, refreshed = parents[kept], ways[kept], refreshed[kept]
            self.traces.append(_Trace(together[0].number, parents.astype(np.int32), ways, refreshed))
        return [
            self.failed[number] if number in self.failed else self._front(states, number) for number in range(count)
        ]

    def _taken(
        self,
        together: Sequence[Joined],
        states: _States,
        cut: list[int],
        open_: list[tuple[str, int]],
        last: dict[tuple[str, int], int],
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int16], Levels, _States]:
        """The states after one step; updates `cut` and `open_`."""
        number, reach = together[0].number, together[0].reach
        own = [search.steps[number] for search in self.searches]
        step, of = own[0], states.of
        column = cut.index(number)
        wanted = states.levels[:, column].astype(np.int64)
        rest = np.delete(states.levels, column, axis=1)
        del cut[column]
        places = []
        for operand, above in together[0].reads:
            if operand not in cut:
                cut.append(operand)
                rest = np.hstack([rest, np.full((len(rest), 1), -1, dtype=np.int16)])
            places.append((cut.index(operand), above))
        before = {name: states.decided[:, place] for place, name in enumerate(open_)}
        following = [name for name in open_ if last[name] != number]
        for kind, entry in (("whole", step.whole), ("group", step.group)):
            if entry is not None and (kind, entry) not in following and last[kind, entry] != number:
                following.append((kind, entry))
        most = self.highest if step.most is None else np.array([one.most for one in own], dtype=np.int64)
        highest, back = most[of], self.back[of]
        parts: list[tuple[npt.NDArray[np.intp], int, bool, _States]] = []
        reached: list[Whole] = []
        for how, way_number in _choices(step):
            # Ways that are merged into a bootstrap are numbered after all others.
            ways = [one.ways[way_number % len(one.ways)] for one in own]
            if how is _MERGED:
                ways = [_in_bootstrap(way) for way in ways]
            raised, way = how is not _COMPUTED, ways[0]
            base = wanted if not raised else self.begin[of] + (step.refresh_depth if how is _REFRESHED else 0)
            at = base + way.depth
            fits = at + reach <= highest
            extra = np.zeros(len(states), dtype=np.int64)
            reached.append(at + reach)
            if raised:
                prices = [one.refresh if how is _REFRESHED else one.merged[way_number % len(one.ways)] for one in own]
                priced = _table(prices, IMPOSSIBLE)
                fits &= wanted <= back
                extra = priced[of, np.minimum(wanted, back)]
                fits &= extra < IMPOSSIBLE
                if step.written:
                    reached.append(self.levels[of] + wanted - back)
            decisions = {("whole", step.whole): int(how is _REFRESHED), ("group", step.group): way_number}
            for name, chosen in decisions.items():
                if name in before:
                    known = before[name]
                    fits &= (known < 0) | (known == chosen)
            rows = np.flatnonzero(fits)
            if not len(rows):
                continue
            level = at[rows]
            new = rest[rows]
            for place, above in places:
                new[:, place] = np.maximum(new[:, place], level + above)
            decided = np.full((len(rows), len(following)), -1, dtype=np.int16)
            for place, name in enumerate(following):
                if name in before:
                    decided[:, place] = before[name][rows]
                if name in decisions:
                    decided[:, place] = decisions[name]
            costs = _table([one.cost(each) for one, each in zip(together, ways, strict=True)], 0)
            parts.append(
                (
                    rows,
                    way_number,
                    raised,
                    _States(
                        of[rows],
                        new,
                        decided,
                        states.cost[rows] + costs[of[rows], level] + extra[rows],
                        states.loss[rows] + way.loss,
                        states.tie[rows] + way.tie + (step.refresh_tie if raised and not step.written else 0),
                    ),
                )
            )
        open_[:] = following
        back_to, none = wanted.astype(np.int16), np.full(len(states), -1, dtype=np.int16)
        made = _States.joined([part for *_, part in parts]) if parts else states.taken(np.arange(0))
        for lost in np.setdiff1d(of, made.of).tolist():
            levels = int(self.levels[lost])
            deepest = max(levels + 1, *(int(depths[of == lost].max()) for depths in reached))
            self.failed[lost] = TooFewLevelsError(deepest, levels)
        if not parts:
            return np.arange(0), none[:0], none[:0], made
        return (
            np.concatenate([rows for rows, *_ in parts]),
            np.concatenate([np.full(len(rows), way, dtype=np.int16) for rows, way, *_ in parts]),
            np.concatenate([back_to[rows] if raised else none[rows] for rows, _, raised, _ in parts]),
            made,
        )

    def _front(self, states: _States, number: int) -> list[Found]:
        """The front of one search in cost and loss, the cheapest first; levels no longer matter."""
        rows = np.flatnonzero(states.of == number)
        order = rows[np.lexsort((states.tie[rows], states.loss[rows], states.cost[rows]))]
        least = np.minimum.accumulate(states.loss[order])
        better = np.append(True, states.loss[order][1:] < least[:-1])
        return [self._found(states, int(row)) for row in order[better]]

    def _found(self, states: _States, row: int) -> Found:
        steps = self.searches[0].steps
        ways, refreshed = [0] * len(steps), {}
        cost, loss = int(states.cost[row]), int(states.loss[row])
        for trace in reversed(self.traces):
            ways[trace.step] = int(trace.way[row])
            if trace.refreshed[row] >= 0:
                refreshed[trace.step] = int(trace.refreshed[row])
            row = int(trace.parent[row])
        merged = frozenset(number for number in refreshed if ways[number] >= len(steps[number].ways))
        chosen = tuple(way % len(step.ways) for way, step in zip(ways, steps, strict=True))
        return Found(cost, loss, chosen, refreshed, merged)


def _choices(step: Step) -> list[tuple[str, int]]:
    """The choices for a step, each with the number of its way: computed, computed and refreshed, or merged into a
    bootstrap of its operand. Merged ways are numbered after all others.
    """
    every = range(len(step.ways))
    found = [] if step.written else [(_COMPUTED, way) for way in every]
    if step.refresh is not None:
        found += [(_REFRESHED, way) for way in every]
    return found + [(_MERGED, len(every) + way) for way, price in enumerate(step.merged) if price is not None]


def _in_bootstrap(way: Way) -> Way:
    """The way without its own levels and cost, where a bootstrap does its work."""
    return Way(0, np.zeros_like(way.cost), way.loss, way.tie)


def _table(rows: Sequence[Whole | None], missing: int) -> Whole:
    """Rows of different lengths as one table, padded with `missing`."""
    known = [row for row in rows if row is not None]
    table = np.full((len(rows), max(map(len, known))), missing, dtype=np.int64)
    for place, row in enumerate(known):
        table[place, : len(row)] = row
    return table


def _pruned(states: _States, most: int) -> npt.NDArray[np.intp]:
    """The rows to keep, in a fixed order; about `most` of each search."""
    keys = np.hstack([states.of[:, None], states.levels, states.decided])
    order = np.lexsort((states.tie, states.loss, states.cost, *keys.T[::-1]))
    keys, loss = keys[order], states.loss[order]
    first = np.append(True, (keys[1:] != keys[:-1]).any(axis=1))
    # Along the front of one key, costs rise, so losses must fall. Losses of later keys are moved below all earlier
    # ones.
    group = np.cumsum(first) - 1
    moved = loss - group * MOST_LOSS
    least = np.minimum.accumulate(moved)
    kept = _unbeaten(states, order[first | np.append(True, moved[1:] < least[:-1])])
    counts = np.bincount(states.of[kept])
    if counts.max() <= most:
        return kept
    parts = np.split(kept, np.cumsum(counts)[:-1])
    return np.concatenate([_thinned(states, part, most) if len(part) > most else part for part in parts])


def _unbeaten(states: _States, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """The rows that no other row of the same search beats, search by search.

    A row beats another with the same decisions if it costs no more, loses no more and wants no value higher.
    """
    rows = rows[np.lexsort((states.tie[rows], states.loss[rows], states.cost[rows], states.of[rows]))]
    parts = np.split(rows, np.cumsum(np.bincount(states.of[rows]))[:-1])
    kept: list[npt.NDArray[np.intp]] = []
    small: list[npt.NDArray[np.intp]] = []
    for part in filter(len, parts):
        if len(part) > _BLOCK:
            kept += [*_side_by_side(states, small), _one_front(states, part)]
            small = []
            continue
        longest = max(len(part), *map(len, small)) if small else len(part)
        if small and (len(small) + 1) * longest * longest > _MOST_CELLS:
            kept += _side_by_side(states, small)
            small = []
        small.append(part)
    kept += _side_by_side(states, small)
    return np.concatenate(kept)


def _side_by_side(states: _States, parts: Sequence[npt.NDArray[np.intp]]) -> list[npt.NDArray[np.intp]]:
    """The unbeaten rows of each part, as a list of one array; each part is sorted, the cheapest first."""
    if not parts:
        return []
    lengths = np.array(list(map(len, parts)))
    there = np.arange(int(lengths.max())) < lengths[:, None]
    rows = np.zeros(there.shape, dtype=np.intp)
    rows[there] = np.concatenate(parts)
    # Rows that come earlier cost no more.
    beats = np.triu(np.ones((there.shape[1],) * 2, dtype=bool), 1) & there[:, :, None] & there[:, None, :]
    loss = states.loss[rows]
    beats &= loss[:, :, None] <= loss[:, None, :]
    for column in range(states.levels.shape[1]):
        levels = states.levels[:, column][rows]
        beats &= levels[:, :, None] <= levels[:, None, :]
    for column in range(states.decided.shape[1]):
        decided = states.decided[:, column][rows]
        beats &= decided[:, :, None] == decided[:, None, :]
    return [rows[there & ~beats.any(axis=1)]]


def _one_front(states: _States, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """The unbeaten rows of one search with many rows, block by block."""
    front = np.empty(0, dtype=np.intp)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        candidates = np.concatenate([front, block])
        # Rows that come earlier cost no more.
        earlier = np.arange(len(candidates))[:, None] < len(front) + np.arange(len(block))[None, :]
        beats = earlier & (states.loss[candidates][:, None] <= states.loss[block][None, :])
        for column in range(states.levels.shape[1]):
            beats &= states.levels[candidates, column][:, None] <= states.levels[block, column][None, :]
        for column in range(states.decided.shape[1]):
            beats &= states.decided[candidates, column][:, None] == states.decided[block, column][None, :]
        front = np.concatenate([front, block[~beats.any(axis=0)]])
    return front


def _thinned(states: _States, rows: npt.NDArray[np.intp], most: int) -> npt.NDArray[np.intp]:
    """Each front thinned evenly in the logarithm of the loss; its ends stay."""
    keys = np.hstack([states.levels[rows], states.decided[rows]])
    _, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.ravel()
    each = max(_LEAST_FRONT, most // (int(group.max()) + 1))
    log = np.log2(states.loss[rows] + 1.0)
    low, high = float(log.min()), float(log.max()) + 1e-9
    cell = ((log - low) / (high - low) * each).astype(np.int64)
    # In each cell the point with the least loss stays, so a replacement loses no more. The cheapest stays too.
    order = np.lexsort((states.cost[rows], states.loss[rows], cell, group))
    first = np.append(True, (group[order][1:] != group[order][:-1]) | (cell[order][1:] != cell[order][:-1]))
    final = np.append(group[order][1:] != group[order][:-1], True)
    return np.asarray(rows[np.sort(order[first | final])])
