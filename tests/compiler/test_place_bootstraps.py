"""Where bootstraps are placed: the cheapest set on small graphs against trying every set."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.ckks.costs import BUILT_IN
from heliograph.ckks.ring import Ring
from heliograph.execution.bootstrap_work import bootstrap_ms
from heliograph.ir import Builder, Node, Program, Stage
from heliograph.ir.analysis.depth import node_depth
from heliograph.ir.location import Location
from heliograph.passes.bootstraps.place_bootstraps import (
    BootstrapSearch,
    PlaceBootstraps,
    Placed,
)
from heliograph.passes.bootstraps.placement import IMPOSSIBLE, Search
from heliograph.passes.bootstraps.sizes import observed_sizes, slot_periods
from heliograph.passes.levels.plan_levels import Levels, TooFewLevelsError

SLOTS = 1024
# Six levels between bootstraps: they begin at level 2 and come back to level 8.
RING = Ring(11, 60, 52, 19, 4, None, (2, 2))


@st.composite
def graphs(draw: st.DrawFn) -> Program:
    """A chain of polynomials of two or three levels, with sums that reach back over one to three of them."""
    builder = Builder("g", Stage.PACKED)
    values = [builder.input("x", slots=SLOTS, chunk=0)]
    coefficients = {
        2: builder.constant(np.array([0.1, 0.5, 0.2, 0.1]), "c2"),
        3: builder.constant(np.ones(8) / 8, "c3"),
    }
    for number in range(draw(st.integers(3, 7))):
        operand = values[-1]
        if draw(st.booleans()) and len(values) > 1:
            operand = builder.op("add_ct", (operand, values[-1 - draw(st.integers(1, min(3, len(values) - 1)))]))
        depth = draw(st.sampled_from([2, 3]))
        made = builder.op("poly", (operand,), coefficients=coefficients[depth], low=-1.0, high=1.0, range=number)
        values.append(made)
    return builder.finish({"y": values[-1]})


def levels_at(program: Program, chosen: frozenset[Node]) -> dict[Node, int] | None:
    """The level at which every node runs when these values are bootstrapped, None where the chain does not hold one."""
    need, at = dict.fromkeys(program.nodes, 0), {}
    for node in reversed(program.nodes):
        level = need[node]
        if node in chosen:
            if level > RING.bootstrap_level:
                return None
            level = RING.bootstrap_input_level
        at[node] = level + node_depth(program, node)
        if at[node] > RING.levels:
            return None
        for operand in node.inputs:
            need[operand] = max(need[operand], at[node])
    return at


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_no_other_set_is_smaller(program: Program) -> None:
    points = sorted({node.inputs[0] for node in program.nodes if node.op == "poly"} - set(program.inputs), key=id)
    least = next(
        (
            size
            for size in range(len(points) + 1)
            if any(levels_at(program, frozenset(group)) is not None for group in itertools.combinations(points, size))
        ),
        None,
    )
    if least is None:
        with pytest.raises(TooFewLevelsError):
            PlaceBootstraps(RING).run(program)
        return
    placed = PlaceBootstraps(RING).run(program)
    bootstraps = [node for node in placed.nodes if node.op == "bootstrap"]
    # Bootstraps dominate the cost, so that the cheapest set is one of the smallest.
    assert len(bootstraps) == least
    if bootstraps:
        levels = Levels(placed, RING)
        assert levels.depth <= RING.levels
        assert levels.bootstrapped <= RING.bootstrap_level


def test_what_a_scaling_reads_is_not_bounded() -> None:
    """A polynomial a + b x has no interval to keep: of what it reads no size is known."""
    builder = Builder("g", Stage.PACKED)
    x = builder.op("add_ct", (builder.input("x", slots=SLOTS, chunk=0),) * 2)
    line, cubic = (builder.constant(np.ones(count) / 4, f"c{count}") for count in (2, 4))
    y = builder.op("poly", (x,), coefficients=line, low=-1.0, high=1.0)
    z = builder.op("poly", (y,), coefficients=cubic, low=-1.0, high=1.0, range=0)
    program = builder.finish({"z": z})
    assert set(BootstrapSearch(program, SLOTS).inputs) == {y}


@st.composite
def wide_graphs(draw: st.DrawFn) -> Program:
    """Tensors of one or two ciphertexts, whose values repeat with several periods, through polynomials and sums."""
    builder = Builder("g", Stage.PACKED)
    coefficients = builder.constant(np.ones(16) / 16, "c")
    masks = {period: builder.constant(np.ones(period), f"mask{period}") for period in (64, SLOTS)}
    x = builder.input("x", slots=SLOTS, chunk=0)
    # What repeats is the sum of its halves, and so on.
    folded = x
    for amount in (512, 256, 128, 64):
        folded = builder.op("add_ct", (folded, builder.op("rotate", (folded,), amount=amount)))
    tensors: list[list[Node]] = [[draw(st.sampled_from([x, folded]))] * draw(st.integers(1, 2))]
    for number in range(draw(st.integers(4, 7))):
        operands = tensors[-1]
        if len(tensors) > 1 and draw(st.booleans()):
            operands = [builder.op("add_ct", (a, b)) for a, b in zip(operands, tensors[-2], strict=True)]
        mask = masks[draw(st.sampled_from(sorted(masks)))]
        operands = [builder.op("mul_plain", (value,), value=mask) for value in operands]
        tensors.append(
            [
                builder.op(
                    "poly", (value,), coefficients=coefficients, low=-1.0, high=1.0, range=number, chunk=position
                )
                for position, value in enumerate(operands)
            ]
        )
    return builder.finish({f"y{i}": value for i, value in enumerate(tensors[-1])})


def cost_of(prepared: BootstrapSearch, chosen: frozenset[Node], search: Search) -> float | None:
    """What the program costs, in ms, when these values are bootstrapped, None where it does not fit."""
    at, want = levels_at(prepared.program, chosen), dict.fromkeys(prepared.program.nodes, 0)
    if at is None:
        return None
    for node in prepared.program.nodes:
        for operand in node.inputs:
            want[operand] = max(want[operand], at[node])
    total = 0
    for node, step in zip(prepared.nodes, search.steps, strict=True):
        total += int(step.ways[0].cost[at[node]])
        if node in chosen:
            assert step.refresh is not None
            total += int(step.refresh[want[node]])
    return total / 1e6


@settings(deadline=None, max_examples=40, derandomize=True)
@given(wide_graphs())
def test_no_other_set_of_whole_tensors_is_cheaper(program: Program) -> None:
    tensors: dict[int, list[Node]] = {}
    for node in program.nodes:
        if node.op == "poly":
            tensors.setdefault(node.attrs["range"], []).append(node.inputs[0])
    prepared = BootstrapSearch(program, RING.slots)
    search = prepared.on(PlaceBootstraps(RING))
    costs = [
        cost_of(prepared, frozenset(node for entry in group for node in tensors[entry]), search)
        for size in range(len(tensors) + 1)
        for group in itertools.combinations(tensors, size)
    ]
    possible = [cost for cost in costs if cost is not None]
    if not possible:
        with pytest.raises(TooFewLevelsError):
            PlaceBootstraps(RING).run(program)
        return
    (found,) = prepared.placed([PlaceBootstraps(RING)])
    assert isinstance(found, Placed)
    placed = found.program
    assert found.cost_ms == pytest.approx(min(possible))
    refreshed = [node for node in placed.nodes if node.op == "bootstrap"]
    # Whole tensors, in as many slots as they fill.
    by_range = Counter(node.attrs["ranges"][0] for node in refreshed)
    assert all(number == len(tensors[entry]) for entry, number in by_range.items())
    periods = slot_periods(placed)
    assert all(node.attrs["slots"] == periods[node.inputs[0]] for node in refreshed)


def test_residual_blocks_take_one_bootstrap_each_at_most() -> None:
    builder = Builder("residual", Stage.PACKED)
    value = builder.input("x", slots=SLOTS, chunk=0)
    coefficients = builder.constant(np.ones(8) / 8, "c")
    for number in range(8):
        skip = value
        for half in range(2):
            value = builder.op("poly", (value,), coefficients=coefficients, low=-1.0, high=1.0, range=2 * number + half)
        value = builder.op("add_ct", (value, skip))
    placed = PlaceBootstraps(RING).run(builder.finish({"y": value}))
    # A block takes all six levels; the branch around it is not refreshed beside it.
    assert sum(node.op == "bootstrap" for node in placed.nodes) <= 8


def test_periods_follow_maps_and_folds() -> None:
    builder = Builder("p", Stage.PACKED)
    x = builder.input("x", slots=SLOTS, chunk=0)
    folded = builder.op("add_ct", (x, builder.op("rotate", (x,), amount=512)))
    again = builder.op("add_ct", (folded, builder.op("rotate", (folded,), amount=256)))
    other = builder.op("add_ct", (again, builder.op("rotate", (again,), amount=100)))
    periods = slot_periods(builder.finish({"y": other}))
    assert (periods[x], periods[folded], periods[again], periods[other]) == (1024, 512, 256, 256)


def test_one_value_in_all_slots_is_bootstrapped_in_two() -> None:
    builder = Builder("mean", Stage.PACKED)
    value = builder.input("x", slots=SLOTS, chunk=0)
    for step in range(10):
        value = builder.op("add_ct", (value, builder.op("rotate", (value,), amount=SLOTS >> (step + 1))))
    coefficients = builder.constant(np.ones(8) / 8, "c")
    for number in range(8):
        value = builder.op("poly", (value,), coefficients=coefficients, low=-1.0, high=1.0, range=number)
    placed = PlaceBootstraps(RING).run(builder.finish({"y": value}))
    refreshed = [node for node in placed.nodes if node.op == "bootstrap"]
    assert refreshed
    for node in refreshed:
        assert slot_periods(placed)[node.inputs[0]] == 1
        # The transforms to coefficients and back have a layer, which combines two slots.
        assert node.attrs["slots"] == 2


def test_a_bootstrap_costs_more_for_more_slots_and_levels() -> None:
    small, large = (bootstrap_ms(Ring(16, 60, 55, levels, 6, None, (3, 3)), 1 << 12, BUILT_IN) for levels in (20, 26))
    assert small < large < bootstrap_ms(Ring(16, 60, 55, 26, 6, None, (3, 3)), 1 << 15, BUILT_IN)


def _squares(builder: Builder, node: Node, length: int) -> list[Node]:
    made = [node]
    for _ in range(length):
        made.append(builder.op("mul_ct", (made[-1], made[-1])))
    return made[1:]


def test_sizes_are_looked_at_behind_a_value_that_is_kept() -> None:
    """A residual stream: everything in its second half is computed while the end of the first half waits."""
    builder = Builder("g", Stage.PACKED)
    x = builder.input("x", slots=SLOTS, chunk=0)
    before = _squares(builder, x, 100)
    behind = _squares(builder, before[-1], 100)
    program = builder.finish({"y": builder.op("add_ct", (before[-1], behind[-1]))})
    (given_input,) = program.inputs
    samples = {given_input: np.ones((1, SLOTS))}
    place = {node: number for number, node in enumerate(program.nodes)}

    def halves(everywhere: bool) -> tuple[list[int], list[int]]:
        sizes = observed_sizes(program, samples, 0.5, everywhere)
        assert set(sizes.values()) <= {0, 1, 2}
        places = sorted(place[node] for node in sizes)
        return [each for each in places if each <= 100], [each for each in places if each > 100]

    first, second = halves(False)
    assert len(first) >= 99
    assert len(second) <= 2
    first, second = halves(True)
    # One in every eight levels.
    assert min(len(first), len(second)) >= 12
    assert np.diff([*first, *second]).max() <= 16


def test_every_ciphertext_of_a_value_that_waits_cuts_a_stretch() -> None:
    """Three values side by side: a path through any of them can be refreshed, in each of two groups of one statement."""
    builder = Builder("g", Stage.PACKED)
    inputs = [builder.input("x", slots=SLOTS, chunk=chunk) for chunk in range(3)]
    line, between = Location("a.py", 1), Location("a.py", 2)
    made: list[Node] = inputs
    for _ in range(2):
        for _ in range(6):
            made = [builder.op("mul_ct", (node, node), line) for node in made]
        made = [builder.op("mul_ct", (node, node), between) for node in made]
    program = builder.finish(tuple(made))
    sizes = observed_sizes(program, {node: np.ones((1, SLOTS)) for node in program.inputs}, 0.5, True)
    level: dict[Node, int] = {}
    for node in program.nodes:
        level[node] = 1 + max((level[operand] for operand in node.inputs), default=-1)
    found = Counter(level[node] for node in sizes)
    # Both groups and what lies between, with all three values.
    assert set(found.values()) == {3}
    assert min(found) <= 7
    assert max(found) > 7


@settings(deadline=None, max_examples=20)
@given(graphs(), st.integers(1, 2))
def test_levels_are_spared(program: Program, spare: int) -> None:
    try:
        placed = PlaceBootstraps(RING, spare=spare).run(program)
    except TooFewLevelsError:
        return
    levels = Levels(placed, RING)
    assert levels.depth <= RING.levels - spare
    assert levels.bootstrapped <= RING.bootstrap_level - spare


# Here bootstraps begin at level 3 and come back to level 8, with a series of degree 7 to level 6.
DEEPER = Ring(11, 39, 35, 20, 7, None, (3, 3))


@st.composite
def offering(draw: st.DrawFn) -> Program:
    """A chain of polynomials of four levels, some of which a bootstrap may compute, with sums that reach back."""
    builder = Builder("g", Stage.PACKED)
    coefficients = builder.constant(np.ones(16) / 16, "c")
    series = {
        "series": builder.constant(np.stack([np.ones(8), np.arange(8)]) / 64, "s"),
        "half_period": 1.25,
    }
    values = [builder.input("x", slots=SLOTS, chunk=0)]
    for number in range(draw(st.integers(2, 4))):
        operand = values[-1]
        if draw(st.booleans()) and len(values) > 1:
            operand = builder.op("add_ct", (operand, values[-1 - draw(st.integers(1, min(2, len(values) - 1)))]))
        attrs = {"coefficients": coefficients, "low": -1.0, "high": 1.0, "range": number}
        values.append(builder.op("poly", (operand,), **attrs, **(series if draw(st.booleans()) else {})))
    return builder.finish({"y": values[-1]})


def cost_with(
    prepared: BootstrapSearch, search: Search, refreshed: frozenset[Node], merged: frozenset[Node]
) -> float | None:
    """What the program costs, in ms, when these values are bootstrapped and those polynomials are computed by bootstraps of
    what they read; None where it does not fit.
    """
    want, total = dict.fromkeys(prepared.nodes, 0), 0
    for node, step in reversed(list(zip(prepared.nodes, search.steps, strict=True))):
        level = want[node]
        if node in merged:
            (price,) = step.merged
            assert price is not None
            if level >= len(price) or price[level] >= IMPOSSIBLE:
                return None
            total += int(price[level])
            at = DEEPER.bootstrap_input_level
        else:
            if node in refreshed:
                assert step.refresh is not None
                if level > DEEPER.bootstrap_level:
                    return None
                total += int(step.refresh[level])
                level = DEEPER.bootstrap_input_level
            at = level + node_depth(prepared.program, node)
            if at > DEEPER.levels:
                return None
            total += int(step.ways[0].cost[at])
        for operand in node.inputs:
            want[operand] = max(want[operand], at)
    return total / 1e6


@settings(deadline=None, max_examples=60, derandomize=True)
@given(offering())
def test_no_other_choice_of_bootstraps_that_compute_polynomials_is_cheaper(program: Program) -> None:
    polynomials = [node for node in program.nodes if node.op == "poly"]
    offers = [node for node in polynomials if "series" in node.attrs and node.inputs[0].op != "input"]
    points = list(dict.fromkeys(node.inputs[0] for node in polynomials if node.inputs[0].op != "input"))
    prepared = BootstrapSearch(program, DEEPER.slots)
    placing = PlaceBootstraps(DEEPER)
    search = prepared.on(placing)
    costs = [
        cost_with(prepared, search, frozenset(refreshed), frozenset(merged))
        for refreshed in _subsets(points)
        for merged in _subsets(offers)
    ]
    possible = [cost for cost in costs if cost is not None]
    if not possible:
        with pytest.raises(TooFewLevelsError):
            placing.run(program)
        return
    (found,) = prepared.placed([placing])
    assert isinstance(found, Placed)
    assert found.cost_ms == pytest.approx(min(possible))
    placed = found.program
    assert sum(one.degree == 7 for one in found.returns) == sum("series" in a.attrs for a in _bootstraps(placed))
    # Those that a bootstrap computes are gone, and what they mean is left.
    assert sum(node.op == "poly" for node in placed.nodes) + sum(
        "series" in a.attrs for a in _bootstraps(placed)
    ) == len(polynomials)
    levels = Levels(placed, DEEPER)
    assert levels.depth <= DEEPER.levels
    assert levels.bootstrapped <= DEEPER.bootstrap_level


def _bootstraps(program: Program) -> list[Node]:
    return [node for node in program.nodes if node.op == "bootstrap"]


def _subsets(nodes: list[Node]) -> list[tuple[Node, ...]]:
    return [chosen for size in range(len(nodes) + 1) for chosen in itertools.combinations(nodes, size)]
