"""Allocate degrees to layers: the front of time against predicted loss over all chains, and the chosen point on it.

The pass side is passes/degrees/allocate_degrees.py. This file has the possible chains of a plan and the choice on the
front: the cheapest point with polynomials that change the class of no more samples than allowed, found by bisection.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from heliograph import rounding
from heliograph.ckks.ring import Ring
from heliograph.compiler.arguments import require_program
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import linear_passes, polynomial_passes, scaled, unproved_pack_passes
from heliograph.compiler.planning.bootstrapped import size_margin
from heliograph.compiler.planning.chains import bootstrapping_rings, candidates, log_rings, longest, lower_parts
from heliograph.compiler.planning.plan import pack_samples, sample_inputs
from heliograph.compiler.planning.planner import reach_of
from heliograph.compiler.reporting.bill import class_agreement
from heliograph.compiler.reporting.held_out import apart_of, approximate_pass, setting_of
from heliograph.errors import PlanningError, ProgramError, said
from heliograph.execution.bootstrap_work import bootstrap_ms
from heliograph.execution.prices import Work, prices_on
from heliograph.interpret import interpret_batch
from heliograph.ir import Array, Program, size_of
from heliograph.ir.analysis.depth import depth_of_degree, levels_below
from heliograph.ir.ops.table import OPS
from heliograph.machine import in_threads
from heliograph.passes.base import apply, begins
from heliograph.passes.bootstraps.place_bootstraps import BootstrapSearch, PlaceBootstraps
from heliograph.passes.bootstraps.sizes import observed_sizes
from heliograph.passes.degrees.allocate_degrees import (
    Candidate,
    Point,
    Table,
    paper_errors,
    paper_points,
    products_of,
    require_candidates,
    worthwhile,
)
from heliograph.passes.degrees.impacts import impacts_of
from heliograph.passes.levels.plan_levels import TooFewLevelsError
from heliograph.passes.polynomials.approximate import degrees_by_layer
from heliograph.passes.polynomials.approximation import Activation, Approximations
from heliograph.passes.ranges.calibrate import Calibrate, Calibration
from heliograph.passes.tensors.expand import Expand
from heliograph.passes.tensors.simplify import Simplify
from heliograph.report.figures import Allocation, CurvePoint, LayerImpact

# Impacts are measured on this many samples. Points are compared on this many held-out samples, and the chosen point is
# checked on more.
_IMPACT_SAMPLES = 128
_COMPARED, _MEASURED = 128, 256
_CHUNK = 64
# For chains without bootstraps, this many lengths are tried on each ring.
_LENGTHS = 16
# This many of the best chains are also tried with a sub-chain that bootstraps.
_WITH_LOWER = 3
# Points of the front differ in cost by at least this factor.
_APART = 1.005
# If a point proves too coarse, the search moves on by the front's length divided by this.
_STEPS = 16


# A chain, and the search on the packed program without its constants.
Carrying: TypeAlias = "tuple[PlaceBootstraps, BootstrapSearch]"


@dataclass(frozen=True, slots=True)
class Allocator:
    """The allocation of degrees for one program.

    `source`: the program as its author wrote it.
    `fused`: the program of few linear maps and activations.
    `table`: the candidates.
    `polynomial`: the polynomial program.
    `points`: the front, the cheapest first.
    `papers`: in mode "plan", OLA's allocations for every budget, at OLA's prices.
    `chains`: in mode "plan", the chains of the front, on which an allocation of OLA's is priced as a plan.
    `trial`: the approximations for trying degrees, with ranges from every other calibration sample.
    `calibrated`: what the calibration samples show of the fused program.
    `samples`: the held-out samples, from the rest.
    `exact`: the program's own outputs on the held-out samples.
    `known`: measured losses, by degrees, errors, and number of samples.
    """

    source: Program
    fused: Program
    options: Options
    table: Table
    polynomial: Program
    points: tuple[Point, ...]
    papers: tuple[Point, ...]
    chains: tuple[Carrying, ...]
    trial: Approximations
    calibrated: Calibration
    samples: tuple[Array, ...]
    exact: Sequence[Array]
    known: dict[tuple[object, ...], float] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Program, fused: Program, options: Options) -> Allocator:
        """The allocator of a program as its author wrote it, with calibration samples, in mode `options.allocate`."""
        if not fused.calibration or fused.calibration[0].shape[0] < 2:
            raise ProgramError(
                "degrees are allocated by what samples show, and there are none",
                where="Options.allocate",
                hint=said("{pass calibration=samples to trace|give --calibration FILE}, or give degrees by layer"),
            )
        calibrated = Calibrate().calibration(fused)
        known = approximate_pass(options, calibrated.whole).table(fused)
        polynomial = polynomial_passes(known)[-1].program
        table = Table(_candidates(source, known.free, options.bootstrap_activations))
        require_candidates(table, source.name)
        apart = apart_of(fused, _MEASURED)
        exact = [out[1::2][:_MEASURED] for out in calibrated.outputs]
        del known
        papers, chains = list[Point](), list[Carrying]()
        if options.allocate == "paper":
            table = table.of(paper_errors)
            points = _paper(polynomial, table, options)
        else:
            points, chains = _plan(polynomial, table, options, exact)
            # If no ring bootstraps, OLA has no allocation.
            with contextlib.suppress(PlanningError):
                papers = _front(_paper(polynomial, table.of(paper_errors), options))
        trial = approximate_pass(options, calibrated.half).table(fused)
        return cls(
            source, fused, options, table, polynomial, tuple(_front(points)), tuple(papers), tuple(chains), trial,
            calibrated, apart, exact,
        )  # fmt: skip

    def composing(self) -> Allocator:
        """The allocator with ReLUs that may be composed from several polynomials."""
        table = self.table.composing()
        points, chains = _plan(self.polynomial, table, self.options, self.exact)
        return replace(self, table=table, points=tuple(_front(points)), chains=tuple(chains))

    def by_paper(self) -> Allocator:
        """The allocator in mode "paper"."""
        options, table = replace(self.options, allocate="paper"), self.table.of(paper_errors)
        return replace(self, options=options, table=table, points=self.papers, papers=(), chains=())

    def priced(self, degrees: Mapping[str, int]) -> float:
        """The milliseconds of a plan with these degrees on the best of the chains; infinity if they fit no chain."""
        ways, groups = self.table.fixed(degrees), self.table.groups()
        costs = [math.inf]
        searches = {search: search.having(ways=ways, groups=groups) for _, search in self.chains}
        for place, search in self.chains:
            with contextlib.suppress(TooFewLevelsError):
                costs.append(searches[search].front(place)[0].cost_ms)
        return min(costs)

    def measured(self, point: Point, most: int = _MEASURED, compared: float | None = None) -> float:
        """`_measured`, kept, because OLA's allocations are looked at as points of the plan and by themselves."""
        key = (*sorted(point.degrees.items()), *sorted(point.errors.items()), most)
        if key not in self.known:
            self.known[key] = self._measured(point, most, compared)
        return self.known[key]

    def _measured(self, point: Point, most: int, compared: float | None) -> float:
        """The measured loss of a point on the first `most` held-out samples.

        This is the share of samples that change their class or, if the outputs are not class scores, the mean square
        error as a share of the outputs' variance. `compared` is the result for the first `_COMPARED` samples, if it is
        known: then only the others are classified.
        """
        begins("degrees")
        first = 0 if compared is None else _COMPARED
        if compared is not None and self.samples[0].shape[0] <= first:
            return compared
        trial = self.trial
        if point.errors:
            fused = linear_passes(self.source, {**self.options.errors, **point.errors})[-1].program
            partly = Calibrate().run(replace(fused, calibration=setting_of(fused)))
            trial = approximate_pass(self.options, partly).table(fused)
        samples, exact = ([array[first:most] for array in arrays] for arrays in (self.samples, self.exact))
        found = run_in_chunks(trial.with_degrees(point.single).write(), samples)
        same = class_agreement(self.source, exact, found)
        if same is not None:
            agree = same.agree + (0 if compared is None else round((1.0 - compared) * first))
            return 1.0 - agree / (same.samples + first)
        if compared is not None:
            return self._measured(point, most, None)
        error = sum(float(np.square(a - b).sum()) for a, b in zip(exact, found, strict=True))
        spread = sum(float(np.square(a - a.mean(axis=0)).sum()) for a in exact)
        return error / spread if spread > 0 else float(error > 0)


def run_in_chunks(program: Program, samples: Sequence[Array]) -> list[Array]:
    """The outputs of a tensor program on many samples, on all cores: products with sparse matrices run in parallel."""

    def run(number: int) -> list[Array]:
        part = slice(number * _CHUNK, (number + 1) * _CHUNK)
        with np.errstate(all="ignore"):
            return interpret_batch(program, *(array[part] for array in samples))

    work = _CHUNK * sum(size_of(node) for node in program.nodes)
    parts = in_threads(run, -(-samples[0].shape[0] // _CHUNK), work, blas=True)
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


@dataclass(frozen=True, slots=True)
class Allocated:
    """The result of an allocation.

    `options`: the options with the degrees by layer.
    `record`: the allocation for the report.
    `calibrated`: what the calibration samples show of the program.
    """

    options: Options
    record: Allocation
    calibrated: Calibration


def allocations(source: Program, fused: Program, options: Options) -> Iterator[Allocated]:
    """The degrees by layer: the cheapest point that changes the class of no more samples than `accuracy_loss` allows.

    If there is none, ReLUs may be composed from several polynomials; if that does not help either, the point with the
    least loss is chosen.

    In mode "plan", OLA's own allocation is second, if it is another one and changes no more classes: points are priced
    before the precision of their chains, and so the number of digits, is known. With bootstraps this decides half of
    the time and more.
    """
    allocator = Allocator.of(source, fused, options)
    point, record = chosen(allocator)
    if record.measured > options.accuracy_loss and options.allocate == "plan" and allocator.table.composable:
        point, record = chosen(allocator.composing())

    def allocated(point: Point, record: Allocation) -> Allocated:
        degrees = {**degrees_by_layer(fused, options.degrees), **point.single}
        found = replace(options, degrees=degrees, errors={**options.errors, **point.errors})
        return Allocated(found, record, allocator.calibrated)

    yield allocated(point, record)
    if allocator.papers:
        other, papers = chosen(allocator.by_paper())
        if papers.measured <= max(record.allowed, record.measured) and other.degrees != point.degrees:
            yield allocated(other, papers)


def allocation_curve(program: Program, options: Options) -> list[Point]:
    """Allocations of a program as its author wrote it, the cheapest last: the one that `compile` would choose, and all
    cheaper ones, with more loss.
    """
    require_program(program, "allocation_curve")
    program = scaled(program)
    fused = linear_passes(program, options.errors)[-1].program
    allocator = Allocator.of(program, fused, options)
    place, _ = bisected(allocator)
    return list(reversed(allocator.points[: place + 1]))


def bisected(
    allocator: Allocator, hopeless: Callable[[Point], bool] = lambda point: False
) -> tuple[int, dict[int, float]]:
    """The place of the chosen point on the front, and the measured losses by place.

    The search ends early if the first remaining point is `hopeless`; that point is then the result, without a
    measurement.
    """
    points, allowed = allocator.points, allocator.options.accuracy_loss
    # Later points cost more and lose less, so bisection finds the first good enough one, as far as losses really fall.
    measured: dict[int, float] = {}
    low, high = 0, len(points) - 1
    while low < high and not hopeless(points[low]):
        middle = (low + high) // 2
        measured[middle] = allocator.measured(points[middle], _COMPARED)
        low, high = (low, middle) if measured[middle] <= allowed else (middle + 1, high)
    if hopeless(points[low]):
        measured.pop(low, None)
        return low, measured
    measured[low] = allocator.measured(points[low], compared=measured.get(low))
    # More samples may give a different answer.
    while measured[low] > allowed and low < len(points) - 1:
        low = min(low + max(1, len(points) // _STEPS), len(points) - 1)
        if hopeless(points[low]):
            break
        measured[low] = allocator.measured(points[low])
    return low, measured


def papers_own(allocator: Allocator, milliseconds: float) -> tuple[Point, float] | None:
    """OLA's allocation as a plan with its measured loss, if that is allowed and it takes less time than this; else
    None.
    """

    @functools.cache
    def priced(degrees: tuple[tuple[str, int], ...]) -> float:
        return allocator.priced(dict(degrees))

    def price(point: Point) -> float:
        return priced(tuple(point.degrees.items()))

    if not allocator.papers:
        return None
    # A higher price in OLA nearly always means a higher cost of the plan: the search ends where nothing can be gained.
    place, measured = bisected(replace(allocator, points=allocator.papers), lambda point: price(point) >= milliseconds)
    found = allocator.papers[place]
    if measured.get(place, math.inf) > allocator.options.accuracy_loss or price(found) >= milliseconds:
        return None
    return replace(found, predicted_ms=price(found)), measured[place]


def chosen(allocator: Allocator) -> tuple[Point, Allocation]:
    """The chosen point of the front, and its record for the report."""
    low, measured = bisected(allocator)
    points, allowed, table = allocator.points, allocator.options.accuracy_loss, allocator.table
    papers = papers_own(allocator, points[low].predicted_ms if measured[low] <= allowed else math.inf)
    if papers is not None:
        table = table.having(papers[0].degrees)
        point = replace(papers[0], loss=table.loss(papers[0].degrees))
        # It is inserted among the others, by cost.
        low = sum(each.predicted_ms < point.predicted_ms for each in points)
        points = (*points[:low], point, *points[low:])
        measured = {i + (i >= low): value for i, value in measured.items()} | {low: papers[1]}
    point = points[low]
    total = table.loss(point.degrees) or 1.0
    layers = []
    for candidate in table.candidates.values():
        degree, activation = point.degrees[candidate.layer], candidate.activation
        mean, std = activation.moments
        layers.append(
            LayerImpact(
                candidate.layer,
                activation.node.loc.short,
                activation.node.op,
                degree,
                rounding.nearest(mean * activation.size),
                rounding.nearest(std * activation.size),
                rounding.nearest(candidate.impact),
                rounding.nearest(candidate.error(degree)),
                rounding.nearest(candidate.loss(degree) / total),
            )
        )
    curve = tuple(
        CurvePoint(
            rounding.nearest(points[i].predicted_ms),
            rounding.nearest(points[i].loss),
            measured.get(i),
            i == low,
        )
        for i in range(len(points))
    )
    mode, count = allocator.options.allocate or "plan", int(allocator.samples[0].shape[0])
    return point, Allocation(mode, allowed, measured[low], count, tuple(layers), curve)


def _candidates(source: Program, activations: Mapping[int, Activation], series: bool) -> dict[int, Candidate]:
    """The candidates with their impacts, by entry.

    Impacts are measured before maps are fused: the activations are the same, in the same order. With `series`,
    bootstraps may compute the activations.
    """
    expanded = apply(Expand(), apply(Simplify(), source))
    samples = [array[:_IMPACT_SAMPLES] for array in expanded.calibration]
    impacts: dict[tuple[str, str], list[float]] = defaultdict(list)
    nodes = [node for node in expanded.nodes if OPS[node.op].activation is not None and node.type.secret]
    for node, impact in zip(nodes, impacts_of(expanded, samples), strict=True):
        impacts[node.loc.layer, node.op].append(impact)
    return {
        entry: Candidate(
            activation,
            impacts[activation.node.loc.layer, activation.node.op].pop(0),
            worthwhile(activation),
            series=activation.series_errors() if series else {},
        )
        for entry, activation in sorted(activations.items())
    }


# ---------------------------------------------------------------------------------------------- the plan's front


def _plan(
    program: Program, table: Table, options: Options, outputs: Sequence[Array]
) -> tuple[list[Point], list[Carrying]]:
    """Points on all possible chains of a plan, and the chains that fit the program with some degrees, the cheapest
    first.
    """
    points: list[Point] = []
    failure: PlanningError | None = None
    fronts: list[tuple[float, PlaceBootstraps, BootstrapSearch]] = []

    def add(place: PlaceBootstraps, search: BootstrapSearch) -> float:
        """Add a front to the points; return the cost of its cheapest point."""
        found = search.front(place)
        for each in found:
            degrees = {table.candidates[entry].layer: degree for entry, degree in each.degrees.items()}
            points.append(Point(degrees, table.loss(degrees), each.cost_ms, table.composed(degrees)))
        return found[0].cost_ms

    for ring, search in _chains(program, table, options, outputs):
        place = PlaceBootstraps(ring)
        try:
            fronts.append((add(place, search), place, search))
        except TooFewLevelsError as few:
            failure = few
    fronts.sort(key=lambda front: front[0])
    chains = [(place, search) for _, place, search in fronts]
    if options.chains != 1:
        # Try the best chains again with a sub-chain that bootstraps too and has half the room.
        for _, place, search in fronts[:_WITH_LOWER]:
            parts = lower_parts(place.ring) if place.ring.bootstrap is not None else ()
            if parts:
                lower = replace(place, lower=(parts[len(parts) // 2],))
                add(lower, search)
                chains.append((lower, search))
    if not points:
        raise PlanningError(
            f"no ring carries {program.name!r}, whatever the degrees",
            why="" if failure is None else failure.what,
            hint=said("fewer layers, or {bootstrap=None} so that values may be bootstrapped"),
        )
    return points, chains


def _front(points: Sequence[Point]) -> list[Point]:
    """The points that no other one beats in time and loss, the cheapest first, thinned where they are close."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.predicted_ms, point.loss, sorted(point.degrees.items()))):
        if kept and point.loss >= kept[-1].loss:
            continue
        if len(kept) > 1 and point.predicted_ms < _APART * kept[-2].predicted_ms:
            kept.pop()
        kept.append(point)
    return kept


def _chains(
    program: Program, table: Table, options: Options, outputs: Sequence[Array]
) -> Iterator[tuple[Ring, BootstrapSearch]]:
    """Chains, each with the search on the packed program without its constants, which are most of its memory."""
    _, headroom = reach_of(outputs)
    least, most = _depths(program, table)
    written = any(node.op == "bootstrap" for node in program.nodes)
    ways, groups = table.ways(), table.groups()

    def packed_for(ring: Ring) -> BootstrapSearch:
        """The search on the program packed for the slots of a ring."""
        made = unproved_pack_passes(program, ring, options)[-1].program
        return BootstrapSearch(made, ring.slots, options.costs).having(ways=ways, groups=groups)

    for log_ring in log_rings(options) if options.bootstrap is not True and not written else ():
        top = longest(log_ring, least, most, headroom, options)
        if top < least:
            continue
        lengths = sorted({round(each) for each in np.linspace(least, top, _LENGTHS)})
        chosen = [candidates(log_ring, levels, headroom, options)[0] for levels in lengths]
        search = packed_for(chosen[0]).without_constants()
        for ring in chosen:
            yield ring, search
        if top == most:
            return
    if options.bootstrap is False:
        return
    for log_ring in log_rings(options):
        rings = _useful(bootstrapping_rings(log_ring, options, options.bootstrap_activations), options)
        if rings:
            search = packed_for(rings[0])
            if not _placeable(search, table, rings):
                samples = pack_samples(search.program, sample_inputs(program, 2))
                sizes = observed_sizes(search.program, samples, size_margin(search.program, options))
                search = search.having(sizes=sizes)
            search = search.without_constants()
            for ring in rings:
                yield ring, search
            return


def _placeable(search: BootstrapSearch, table: Table, rings: Sequence[Ring]) -> bool:
    """Whether the least degrees fit the chain with most room."""
    ring = max(rings, key=lambda ring: ring.bootstrap_level - ring.bootstrap_input_level)
    lowest = {entry: ways[:1] for entry, ways in table.ways().items()}
    try:
        search.having(ways=lowest).front(PlaceBootstraps(ring))
    except TooFewLevelsError:
        return False
    return True


def _useful(rings: Sequence[Ring], options: Options) -> list[Ring]:
    """The chain with the cheapest bootstraps for each number of levels between them; none if more room costs less."""

    def cost(ring: Ring) -> float:
        return bootstrap_ms(ring, ring.slots // 2, options.costs)

    kept: list[Ring] = []
    for ring in sorted(rings, key=lambda ring: (ring.bootstrap_input_level - ring.bootstrap_level, cost(ring))):
        if not kept or cost(ring) < cost(kept[-1]):
            kept.append(ring)
    return kept


def _depths(program: Program, table: Table) -> tuple[int, int]:
    """The depth of the polynomial program with the lowest and with the highest degrees."""
    found = []
    for pick in (min, max):
        own = {
            node: pick(table.candidates[node.attrs["range"]].depths)
            for node in program.nodes
            if node.op == "poly" and node.attrs.get("range") in table.candidates
        }
        need = levels_below(program, own)
        found.append(max((need[node] for node in program.inputs if node.type.secret), default=0))
    return found[0], found[1]


# ---------------------------------------------------------------------------------------------- OLA's


def _paper(program: Program, table: Table, options: Options) -> list[Point]:
    """OLA's allocations: each layer pays, on a chain of its own, for its polynomial and for a bootstrap that returns
    just high enough for the polynomial and the map after it.
    """
    rings = next(
        (found for log in log_rings(options) if (found := bootstrapping_rings(log, options))),
        [],
    )
    if not rings:
        raise PlanningError(
            "no ring bootstraps", where="Options.allocate", hint='use allocate="plan", which needs no bootstraps'
        )
    costs = options.costs

    def cost_ms(layer: str, degree: int) -> float:
        depth = depth_of_degree(degree)
        products = sum(
            products_of(degree, each.activation.parity) for each in table.candidates.values() if each.layer == layer
        )
        fitting = [ring for ring in rings if ring.bootstrap_level - ring.bootstrap_input_level >= depth + 1]
        ring = min(fitting or rings, key=lambda ring: bootstrap_ms(ring, ring.slots // 2, costs))
        polynomial = prices_on((ring,), costs).ms(
            Work.products(depth, products).calls, ring.bootstrap_input_level + depth + 1
        )
        return bootstrap_ms(ring, ring.slots // 2, costs) + float(polynomial)

    layers: dict[str, dict[int, float]] = {}
    for candidate in table.candidates.values():
        # Activations with the same name take one degree, so their losses add up.
        own = layers.setdefault(candidate.layer, dict.fromkeys(candidate.errors, 0.0))
        for degree in own:
            own[degree] += candidate.loss(degree)
    return paper_points(layers, cost_ms)
