"""The search for degrees and bootstraps together: its whole front against trying everything on small graphs."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.ckks.costs import BUILT_IN
from heliograph.ckks.ring import Ring
from heliograph.execution.bootstrap_work import bootstrap_ms
from heliograph.ir import Builder, Location, Node, Program, Stage
from heliograph.passes.bootstraps.place_bootstraps import BootstrapSearch, PlaceBootstraps, PolynomialWay
from heliograph.passes.bootstraps.placement import Found, Search, Step, Way, digest
from heliograph.passes.levels.plan_levels import TooFewLevelsError

SLOTS = 1024
# Six levels between bootstraps: they begin at level 2 and come back to level 8.
RING = Ring(11, 60, 52, 19, 4, None, (2, 2))
NO_BOOTSTRAPS = Ring(11, 60, 50, 8, 3, None)


def program_of(reads: list[tuple[int, ...]], chunks: list[int], order: random.Random | None = None) -> Program:
    """Tensors of one or two ciphertexts: each the polynomial of the sum of earlier ones, in a layer of its own.

    Where an `order` is given, branches are written in another one.
    """
    builder = Builder("g", Stage.PACKED)
    coefficients = builder.constant(np.ones(4) / 4, "c")
    x = builder.input("x", slots=SLOTS, chunk=0)
    tensors: list[list[Node]] = [[x, x]]
    for number, sources in enumerate(reads):
        made = []
        for chunk in range(chunks[number]):
            operands = [tensors[source][chunk % len(tensors[source])] for source in sources]
            if order is not None:
                order.shuffle(operands)
            value = operands[0]
            for other in operands[1:]:
                value = builder.op("add_ct", (value, other))
            attrs = {"coefficients": coefficients, "low": -1.0, "high": 1.0, "range": number, "chunk": chunk}
            # A map of its own before each: two polynomials do not read one value.
            value = builder.op(
                "mul_plain", (value,), value=builder.constant(np.full(SLOTS, 1.0 + number), f"m{number}")
            )
            made.append(builder.op("poly", (value,), Location(layer=f"act{number}"), **attrs))
        tensors.append(made)
    return builder.finish({f"y{i}": value for i, value in enumerate(tensors[-1])})


@st.composite
def cases(draw: st.DrawFn) -> tuple[Program, dict[int, tuple[PolynomialWay, ...]]]:
    """Residual graphs of up to five tensors, with up to three ways to evaluate each polynomial."""
    count = draw(st.integers(2, 5))
    reads, chunks = [], []
    for number in range(count):
        reads.append((number, *draw(st.sets(st.integers(max(0, number - 2), max(0, number - 1)), max_size=1))))
        chunks.append(draw(st.integers(1, 2)) if count < 5 else 1)
    ways = {}
    for number in range(count):
        found = []
        for place, degree in enumerate(
            sorted(draw(st.sets(st.sampled_from([2, 3, 6, 7, 15]), min_size=1, max_size=3)))
        ):
            loss = draw(st.integers(0, 50)) * (3 - place)
            found.append(PolynomialWay(degree, degree.bit_length(), degree.bit_length(), loss))
        ways[number] = tuple(found)
    return program_of(reads, chunks), ways


def everything(search: Search) -> set[tuple[int, int]]:
    """(cost, loss) of every way to compute and refresh all values that fits the chain."""
    groups = sorted({step.group for step in search.steps if step.group is not None})
    sizes = {step.group: len(step.ways) for step in search.steps}
    wholes = sorted({step.whole for step in search.steps if step.whole is not None})
    found = set()
    for picks in itertools.product(*(range(sizes[group]) for group in groups)):
        way = dict(zip(groups, picks, strict=True))
        for size in range(len(wholes) + 1):
            for refreshed in itertools.combinations(wholes, size):
                result = cost_of(search, way, set(refreshed))
                if result is not None:
                    found.add(result)
    return found


def cost_of(search: Search, way: dict[int | None, int], refreshed: set[int | None]) -> tuple[int, int] | None:
    wanted = [-1] * len(search.steps)
    for output in search.outputs:
        wanted[output] = max(wanted[output], 0)
    cost = loss = 0
    for number in range(len(search.steps) - 1, -1, -1):
        step, level = search.steps[number], wanted[number]
        taken = step.ways[way.get(step.group, 0) if step.group is not None else 0]
        if step.whole is not None and step.whole in refreshed:
            if level > search.back or step.refresh is None:
                return None
            cost += int(step.refresh[level])
            level = search.begin
        at = level + taken.depth
        if at > search.highest:
            return None
        cost, loss = cost + int(taken.cost[at]), loss + taken.loss
        for operand in step.reads:
            wanted[operand] = max(wanted[operand], at)
    return cost, loss


def front_of(points: set[tuple[int, int]]) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for cost, loss in sorted(points):
        if not kept or loss < kept[-1][1]:
            kept.append((cost, loss))
    return kept


@settings(deadline=None, max_examples=60, derandomize=True)
@given(cases(), st.booleans())
def test_the_front_is_that_of_trying_everything(
    case: tuple[Program, dict[int, tuple[PolynomialWay, ...]]], bootstraps: bool
) -> None:
    program, ways = case
    ring = RING if bootstraps else NO_BOOTSTRAPS
    place = PlaceBootstraps(ring)
    search = BootstrapSearch(program, ring.slots).having(ways=ways, groups={entry: entry for entry in ways})
    wanted = front_of(everything(search.on(place)))
    if not wanted:
        with pytest.raises(TooFewLevelsError):
            search.on(place).run()
        return
    found = search.on(place).run()
    assert [(point.cost, point.loss) for point in found] == wanted
    for point in found:
        check(search.on(place), point)


def check(search: Search, point: Found) -> None:
    """The steps of a point cost and lose what it says."""
    way = {step.group: point.ways[number] for number, step in enumerate(search.steps) if step.group is not None}
    refreshed = {search.steps[number].whole for number in point.refreshed}
    assert cost_of(search, dict(way), set(refreshed)) == (point.cost, point.loss)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_branches_does_not_matter(seed: int) -> None:
    """Equal layers, so that there are many ties."""
    reads: list[tuple[int, ...]] = [(0,), (0,), (0,), (1, 2, 3), (4,), (4, 5)]
    ways = {
        number: (PolynomialWay(3, 2, 2, 40), PolynomialWay(7, 3, 3, 10), PolynomialWay(15, 4, 5, 2))
        for number in range(len(reads))
    }
    groups = {entry: entry for entry in ways}

    def allocated(order: random.Random | None) -> list[tuple[float, int, dict[int, int]]]:
        program = program_of(reads, [1] * len(reads), order)
        found = BootstrapSearch(program, RING.slots).having(ways=ways, groups=groups).front(PlaceBootstraps(RING))
        return [(point.cost_ms, point.loss, dict(point.degrees)) for point in found]

    assert allocated(random.Random(seed)) == allocated(None)


def test_activations_of_one_group_take_one_degree() -> None:
    reads: list[tuple[int, ...]] = [(0,), (1,), (2,)]
    ways = {number: (PolynomialWay(3, 2, 2, 50), PolynomialWay(7, 3, 3, 0)) for number in range(3)}
    search = BootstrapSearch(program_of(reads, [1, 1, 1]), RING.slots).having(ways=ways, groups={0: 0, 1: 1, 2: 0})
    for point in search.front(PlaceBootstraps(RING)):
        assert point.degrees[0] == point.degrees[2]


def test_fronts_that_are_thinned_are_still_true_and_keep_their_ends() -> None:
    generator = random.Random(0)
    cost = np.arange(64, dtype=np.int64)
    steps = [Step((), (Way(0, cost),))]
    for number in range(12):
        ways = tuple(
            Way(1, cost + generator.randrange(1000), generator.randrange(1000), digest(number, place))
            for place in range(4)
        )
        steps.append(Step((number,), ways, group=number))
    exact = Search(steps, {len(steps) - 1: 0}, 0, 0, 60, 60, most_states=1 << 30).run()
    thinned = Search(steps, {len(steps) - 1: 0}, 0, 0, 60, 60, most_states=20).run()
    assert len(thinned) < len(exact)
    assert (thinned[0].cost, thinned[-1].loss) == (exact[0].cost, exact[-1].loss)
    for point in thinned:
        way = {number: point.ways[number + 1] for number in range(12)}
        assert cost_of(Search(steps, {len(steps) - 1: 0}, 0, 0, 60, 60), dict(way), set()) == (point.cost, point.loss)
        # Nothing of the true front beats it by much.
        assert min(other.cost for other in exact if other.loss <= point.loss) >= 0.9 * point.cost


def test_a_lower_chain_is_taken_where_it_reaches() -> None:
    """Bootstraps are priced in the cheapest chain that comes back high enough."""
    lower = RING.lower(16, 2, bootstraps=True)
    place = PlaceBootstraps(RING, lower=(lower,))
    table = BootstrapSearch(program_of([(0,)], [1]), RING.slots).refresh(place, SLOTS, 1)
    assert set(table[: lower.bootstrap_level + 1]) == {round(bootstrap_ms(lower, SLOTS, BUILT_IN) * 1e6)}
    assert set(table[lower.bootstrap_level + 1 :]) == {round(bootstrap_ms(RING, SLOTS, BUILT_IN, lower=(lower,)) * 1e6)}
