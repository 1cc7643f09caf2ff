"""Choose which values are bootstrapped: the cheapest set after which every path fits the chain.

placement.py has the search. A value can be bootstrapped where its size is known: the input of a polynomial is at most
one. Other values have an observed bound with a margin, and get a correspondingly smaller scale (sizes.py).
"""

from __future__ import annotations

import copy
import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from heliograph.ckks.costs import BUILT_IN, CostTable
from heliograph.ckks.ring import Ring
from heliograph.ckks.trigonometric import levels_deeper
from heliograph.execution.bootstrap_work import bootstrap_ms
from heliograph.execution.prices import Work, Works, prices_on
from heliograph.ir import Attr, Builder, Node, Program, Stage
from heliograph.ir.analysis.carried import carried_nodes
from heliograph.ir.analysis.depth import node_depth
from heliograph.ir.bootstraps.series import series_degree, series_of
from heliograph.ir.ops.table import Context, Role, role_of
from heliograph.passes.bootstraps.placement import (
    IMPOSSIBLE,
    TOGETHER,
    Found,
    Joined,
    Search,
    Shapes,
    Step,
    Way,
    Whole,
    digest,
    run_all,
    shapes,
)
from heliograph.passes.bootstraps.sizes import slot_periods
from heliograph.passes.levels.node_work import node_works
from heliograph.passes.levels.plan_levels import TooFewLevelsError
from heliograph.passes.polynomials.fold_scaling import is_linear

# A scale is reduced by at most this many bits; a larger value would have too few bits left.
MAX_SIZE_BITS = 6
_NS = 1e6
# The priced steps that are kept at a time, of all chains together: a gigabyte. More of them also slow the collection of
# garbage, which looks at each.
_MOST_STEPS = 2_000_000
# A placeholder for prices that are not known yet.
_LATER = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Bound:
    """The bound on a value that can be bootstrapped.

    `size_bits`: the bits of its size.
    `entry`: the polynomial's entry in the table of ranges; None unless the value is a polynomial's input.
    `chunk`: the number of this ciphertext among those of the polynomial's input.
    """

    size_bits: int
    entry: int | None = None
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class PolynomialWay:
    """A candidate polynomial for an activation.

    `depth`, `products`: its levels, and its products of ciphertexts.
    `loss`: the units of loss that its error adds.
    `series`: the degree of an equally accurate series that a bootstrap may compute; 0 for none.
    """

    degree: int
    depth: int
    products: int
    loss: int = 0
    series: int = 0


class Return(NamedTuple):
    """A bootstrap: the level to which it returns, its slots, and the degree of the series that it computes (0 for
    none).
    """

    level: int
    slots: int
    degree: int = 0

    @property
    def reached(self) -> int:
        """The level that it would reach without the series."""
        return self.level + levels_deeper(self.degree)


@dataclass(frozen=True, slots=True)
class Placed:
    """A placement of bootstraps.

    `cost_ms`: a rough estimate of one run, in milliseconds.
    `make`: builds the program with its bootstraps. Many placements are compared, and few programs are needed.
    `returns`: the bootstraps.
    """

    cost_ms: float
    make: Callable[[], Program] = field(repr=False, compare=False)
    returns: tuple[Return, ...] = ()

    @property
    def program(self) -> Program:
        return self.make()


@dataclass(frozen=True, slots=True)
class Allocated:
    """A point of the front: a rough estimate of a run in milliseconds, the units of loss, and the degree by range
    entry.
    """

    cost_ms: float
    loss: int
    degrees: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PlaceBootstraps:
    """Inserts `bootstrap` nodes into a packed program, so that each path between two of them fits the ring.

    `one_size`: one slot count for all bootstraps. This means fewer precomputed plaintexts and keys, and a little more
    time.
    `low_inputs`: inputs are encrypted no higher than the level to which bootstraps return. Rotations then happen lower
    in the chain, with smaller keys, and more values are bootstrapped.
    `pairs`: whether PairBootstraps follows.
    `lower`: sub-chains with bootstraps of their own. Each bootstrap is priced in the cheapest one that returns high
    enough, and other work in the lowest that holds its level.
    `carried`: for each input from the previous run, its level above the one at which bootstraps begin; 0 if missing.
    `spare`: levels kept for aligning scales. PlanLevels aligns them with products that are not known here.

    Raises TooFewLevelsError where the work between two possible places takes more levels than the ring has.
    """

    ring: Ring
    one_size: bool = False
    low_inputs: bool = False
    pairs: bool = True
    lower: tuple[Ring, ...] = ()
    carried: Mapping[str, int] = field(default_factory=dict)
    spare: int = 0

    name: ClassVar[str] = "place-bootstraps"
    needs: ClassVar[Stage] = Stage.PACKED
    makes: ClassVar[Stage] = Stage.PACKED

    def run(self, program: Program) -> Program:
        (placed,) = BootstrapSearch(program, self.ring.slots).placed([self])
        if isinstance(placed, TooFewLevelsError):
            raise placed
        return placed.program

    @property
    def begin(self) -> int:
        """The level at which bootstraps begin; 0 where there are none."""
        return 0 if self.ring.bootstrap is None else self.ring.bootstrap_input_level


# The chain-independent part of a way to compute a value: its levels, the number of its work, its loss and tie.
_Way: TypeAlias = "tuple[int, int, int, int]"
# A kind of bootstrap: its slots, the number of ciphertexts of its tensor, and whether the author wrote it.
_Kind: TypeAlias = "tuple[int, int, bool]"


@dataclass(frozen=True, slots=True)
class _Draft:
    """A step of the search without prices."""

    reads: tuple[int, ...]
    # The number of its ways in `_Drafts.ways`.
    ways: int
    # None for a value that cannot be bootstrapped.
    kind: _Kind | None
    # For each way, slots and degree of the series, if a bootstrap of the operand can compute it.
    merged: tuple[tuple[int, int] | None, ...]
    whole: int | None
    group: int | None
    tie: int
    refresh_depth: int
    # The name of an input that comes from the previous run.
    entry: str | None

    def step(self, ways: Sequence[tuple[Way, ...]], most: Mapping[str, int]) -> Step:
        return Step(
            self.reads,
            ways[self.ways],
            None if self.kind is None else _LATER,
            self.kind is not None and self.kind[2],
            self.whole,
            self.group,
            self.tie,
            self.refresh_depth,
            None if self.entry is None else most[self.entry],
            tuple(None if each is None else _LATER for each in self.merged) if self.merged else (),
        )


class BootstrapSearch:
    """The placement of a packed program's bootstraps on any chain.

    `sizes`: further values that may be bootstrapped where the inputs of polynomials do not suffice, with the bits of
    their largest slots (`observed_sizes`).
    `ways`: the ways to evaluate the polynomial, by entry in the table of ranges.
    `groups`: the group of an entry; all polynomials of a group are evaluated in the same way.

    Many of the chains that are tried are alike, so two tables are kept: the steps of the search with the prices of
    their own work, and the prices of bootstraps.
    """

    def __init__(
        self, program: Program, slots: int, costs: CostTable = BUILT_IN, sizes: Mapping[Node, int] | None = None
    ) -> None:
        self.program, self.costs, self.sizes = program, costs, sizes or {}
        self.nodes = [node for node in program.nodes if node.type.secret]
        self.works, self.depths = node_works(program, slots), {node: node_depth(program, node) for node in self.nodes}
        # The transforms of a bootstrap have at least two slots; what repeats after one slot also repeats after two.
        self.periods = {node: max(2, period) for node, period in slot_periods(program).items()}
        self.inputs = _polynomial_inputs(program, self.nodes)
        self.ways: Mapping[int, Sequence[PolynomialWay]] = {}
        self.groups: Mapping[int, int] = {}
        self._start()

    def having(
        self,
        sizes: Mapping[Node, int] | None = None,
        ways: Mapping[int, Sequence[PolynomialWay]] | None = None,
        groups: Mapping[int, int] | None = None,
    ) -> BootstrapSearch:
        """A search of the same program with other sizes, ways or groups; None keeps the present ones."""
        made = copy.copy(self)
        made.sizes = self.sizes if sizes is None else sizes
        made.ways, made.groups = self.ways if ways is None else ways, self.groups if groups is None else groups
        made._start()
        return made

    def without_constants(self) -> BootstrapSearch:
        """The same search without the constants, most of a program's memory; it cannot build programs."""
        made = copy.copy(self)
        made.program = replace(self.program, constants={})
        return made

    def _start(self) -> None:
        self._priced: dict[tuple[object, ...], tuple[list[Step], dict[int, int], list[Joined]]] = {}
        self._bootstraps: dict[tuple[object, ...], int] = {}
        # The price-independent drafts, by whether the ring bootstraps.
        self._drafted: dict[bool, _Drafts] = {}
        self._most_chains = min(max(_MOST_STEPS // max(len(self.nodes), 1), 1), TOGETHER)

    # ------------------------------------------------------------------------------------------ answers

    def placed(self, asked: Sequence[PlaceBootstraps]) -> list[Placed | TooFewLevelsError]:
        """The cheapest placement for each pass, or the error where there is none: much faster than one by one."""
        found = run_all((self.on(place) for place in asked), self._most_chains)
        return [
            front if isinstance(front, TooFewLevelsError) else self._placed(place, front[0])
            for place, front in zip(asked, found, strict=True)
        ]

    def front(self, place: PlaceBootstraps) -> list[Allocated]:
        """The front of time against loss, the cheapest first."""
        places = {
            number: node.attrs["range"]
            for number, node in enumerate(self.nodes)
            if node.op == "poly" and node.attrs.get("range") in self.ways
        }

        def allocated(found: Found) -> Allocated:
            chosen = {entry: self.ways[entry][found.ways[number]].degree for number, entry in places.items()}
            return Allocated(found.cost / _NS, found.loss, chosen)

        return [allocated(found) for found in self.on(place).run()]

    def _placed(self, place: PlaceBootstraps, found: Found) -> Placed:
        program, periods, context = self.program, self.periods, Context(self.program.constants)
        bounded = self.bounded(place)
        levels = {self.nodes[number]: level for number, level in found.refreshed.items()}
        merged = {self.nodes[number] for number in found.merged}
        written = {node: node.attrs["slots"] for node in levels if node.op == "bootstrap"}

        def value_of(node: Node) -> Node:
            """The operand of the bootstrap that produces this value."""
            return node.inputs[0] if node in merged else node

        most = max([*written.values(), *(periods[value_of(node)] for node in levels if node not in written)], default=0)

        def slots_of(node: Node) -> int:
            # Bootstraps that the author wrote keep their own number of slots.
            return int(written[node]) if node in written else most if place.one_size else periods[node]

        returns = tuple(
            Return(level, slots_of(value_of(node)), series_degree(node, context) if node in merged else 0)
            for node, level in levels.items()
        )
        if not returns:
            return Placed(found.cost / _NS, lambda: program)

        def emit(builder: Builder, node: Node, operands: list[Node]) -> Node:
            made = operands[0] if node in merged else builder.copy(node, operands)
            if node not in levels or node in written:
                return made
            value = value_of(node)
            bound = bounded[value]
            attrs: dict[str, Attr] = {"slots": slots_of(value)}
            if node in merged:
                attrs |= {**series_of(node.attrs), "deeper": levels_deeper(series_degree(node, context))}
            if bound.size_bits:
                attrs["size_bits"] = bound.size_bits
            if bound.entry is not None:
                attrs["ranges"], attrs["chunks"] = (bound.entry,), (bound.chunk,)
            else:
                attrs["observed"] = 1
            return builder.op("bootstrap", (made,), node.loc, **attrs)

        @functools.cache
        def make() -> Program:
            builder = Builder(program.name, Stage.PACKED, program)
            # Inputs too, if they come from an earlier run.
            return builder.rewrite(program, functools.partial(emit, builder), inputs=True)

        return Placed(found.cost / _NS, make, returns)

    # ------------------------------------------------------------------------------------------ the search

    def bounded(self, place: PlaceBootstraps) -> dict[Node, _Bound]:
        """The values that may be bootstrapped."""
        if place.ring.bootstrap is None:
            return {}
        sizes = {
            node: _Bound(bits) for node, bits in self.sizes.items() if bits <= MAX_SIZE_BITS and node.op != "input"
        }
        inputs = {node: bound for node, bound in self.inputs.items() if node.op != "input"}
        return sizes | inputs | _carried_bounds(self.program)

    def on(self, place: PlaceBootstraps) -> Search:
        """The search among all ways to run the program on a ring."""
        ring = place.ring
        back, highest = 0, ring.levels - place.spare
        if ring.bootstrap is not None:
            back = ring.bootstrap_level - place.spare
            highest = back if place.low_inputs else highest
        drafts = self._drafts(place)
        steps, outputs, joined = self._steps(place, drafts)
        kinds = {draft.kind for draft in drafts.values if draft.kind is not None}
        refreshed = {
            kind: self.refresh(place, drafts.most if place.one_size and not kind[2] else kind[0], kind[1])
            for kind in kinds
        }
        merged = {
            kind: self.refresh(place, drafts.most if place.one_size else kind[0], 1, kind[1])
            for kind in {each for draft in drafts.values for each in draft.merged if each is not None}
        }
        full = [
            step
            if draft.kind is None and not draft.merged
            else step.refreshed(
                None if draft.kind is None else refreshed[draft.kind],
                tuple(None if each is None else merged[each] for each in draft.merged),
            )
            for step, draft in zip(steps, drafts.values, strict=True)
        ]
        return Search(full, outputs, place.begin, back, highest, ring.levels, joined=joined)

    def _drafts(self, place: PlaceBootstraps) -> _Drafts:
        some = place.ring.bootstrap is not None
        if some not in self._drafted:
            self._drafted[some] = self._draft(self.bounded(place))
        return self._drafted[some]

    def _draft(self, bounded: Mapping[Node, _Bound]) -> _Drafts:
        """The steps and outputs of the search without prices."""
        # The number of ciphertexts of each tensor, by its entry in the range table.
        siblings = Counter(bound.entry for bound in bounded.values())
        index = {node: place for place, node in enumerate(self.nodes)}
        works: dict[Work, int] = {}
        ways: dict[tuple[_Way, ...], int] = {}

        def way(depth: int, work: Work, loss: int = 0, tie: int = 0) -> _Way:
            return depth, works.setdefault(work, len(works)), loss, tie

        carried = self.program.interface.carried_inputs
        entries = {node: node.attrs["name"] for node in self.program.inputs if node.attrs["name"] in carried}
        rigid, context = _rigid(self.nodes), Context(self.program.constants)
        drafts: list[_Draft] = []
        for node in self.nodes:
            entry = together = None
            if node.op == "poly" and node.attrs.get("range") in self.ways:
                entry = together = int(node.attrs["range"])
                # A loss that occurs once per tensor is counted with the first of its ciphertexts.
                first = node.attrs.get("chunk", 0) == 0
                own = tuple(
                    way(
                        each.depth,
                        Work.products(each.depth, each.products),
                        each.loss if first else 0,
                        digest(node.loc.layer, node.op, each.degree) if first else 0,
                    )
                    for each in self.ways[entry]
                )
            else:
                own = (way(self.depths[node], self.works[node]),)
            bound, kind = bounded.get(node), None
            if node.op == "bootstrap":
                kind = node.attrs["slots"], 1, True
            elif bound is not None:
                kind = self.periods[node], siblings[bound.entry] if bound.entry is not None else 1, False
            merged: tuple[tuple[int, int] | None, ...] = ()
            known = bounded.get(node.inputs[0]) if node.op == "poly" else None
            if known is not None:
                degrees = (
                    [each.series for each in self.ways[entry]] if entry is not None else [series_degree(node, context)]
                )
                period = self.periods[node.inputs[0]]
                merged = tuple((period, degree) if degree else None for degree in degrees) if any(degrees) else ()
                if merged and entry is None and siblings[known.entry] > 1:
                    # Ciphertexts of one tensor are treated alike.
                    together = known.entry
            drafts.append(
                _Draft(
                    tuple(index[operand] for operand in node.inputs if operand.type.secret),
                    ways.setdefault(own, len(ways)),
                    kind,
                    merged,
                    None if bound is None else bound.entry,
                    together if entry is None else self.groups.get(entry, entry),
                    digest("refresh", node.loc.layer, node.op),
                    # A large value enters at a small scale; if its scale cannot be chosen, a product with one sets it.
                    int(bound is not None and bound.size_bits > 0 and node in rigid),
                    entries.get(node),
                )
            )
        outputs: dict[int, str | None] = {index[node]: None for node in self.program.outputs}
        outputs |= {index[node]: entries[source] for node, source in carried_nodes(self.program).items()}
        most = max((self.periods[node] for node in bounded), default=1)
        return _Drafts(drafts, list(ways), Works(works), outputs, most)

    def _steps(self, place: PlaceBootstraps, drafts: _Drafts) -> tuple[list[Step], dict[int, int], list[Joined]]:
        """The steps with the prices of their own work, the levels of outputs, and the joined steps."""
        rings = (place.ring, *place.lower)
        key = (rings, tuple(sorted(place.carried.items())))
        if key not in self._priced:
            if len(self._priced) >= self._most_chains:
                self._priced.clear()
            costs = np.rint(drafts.works.ms(prices_on(rings, self.costs)) * _NS).astype(np.int64)
            ways = [tuple(Way(way[0], costs[way[1]], *way[2:]) for way in each) for each in drafts.ways]
            names = {draft.entry for draft in drafts.values if draft.entry is not None}
            most = {name: place.begin + place.carried.get(name, 0) for name in names}
            steps = [draft.step(ways, most) for draft in drafts.values]
            outputs = {number: 0 if name is None else most[name] for number, name in drafts.outputs.items()}
            if drafts.shapes is None:
                works = [drafts.ways[draft.ways][0][1] for draft in drafts.values]
                drafts.shapes = Shapes(shapes(steps, outputs), works)
            self._priced[key] = steps, outputs, drafts.shapes.priced(costs)
        return self._priced[key]

    def refresh(self, place: PlaceBootstraps, slots: int, count: int, degree: int = 0) -> Whole:
        """The cost of one bootstrap by the level to which it returns.

        The `count` ciphertexts of one tensor are refreshed in pairs where that is faster. A bootstrap that computes a
        series of a `degree` returns to a lower level.
        """
        ring, down = place.ring, levels_deeper(degree)
        table = np.full(ring.bootstrap_level + 1, IMPOSSIBLE)
        parts = sorted((ring, *place.lower), key=lambda ring: -ring.levels)
        for number, part in enumerate(parts):
            reached = max(0, part.bootstrap_level + 1 - down)
            below = tuple(parts[number + 1 :])
            table[:reached] = self._bootstrap(part, below, slots, count if place.pairs else 1, degree)
        if not degree:
            # It returns above the level at which it begins, whatever level is wanted.
            table[: place.begin + 1] = table[place.begin + 1]
        return table

    def _bootstrap(self, ring: Ring, lower: tuple[Ring, ...], slots: int, count: int, degree: int) -> int:
        """Nanoseconds per ciphertext of bootstrapping `count` of them."""
        key = ring, lower, slots, count, degree
        found = self._bootstraps.get(key)
        if found is None:
            alone = bootstrap_ms(ring, slots, self.costs, degree=degree, lower=lower)
            if count > 1:
                pairs = (count + 1) // 2 * bootstrap_ms(ring, slots, self.costs, paired=True, lower=lower)
                alone = min(alone, pairs / count)
            found = self._bootstraps[key] = round(alone * _NS)
        return found


@dataclass(slots=True)
class _Drafts:
    """The part of the search that all chains share."""

    values: Sequence[_Draft]
    # Each once: many values are computed in the same ways.
    ways: Sequence[tuple[_Way, ...]]
    works: Works
    # By the number of an output's node: the input of the next run that it becomes; None for the program's own outputs.
    outputs: Mapping[int, str | None]
    # The largest number of slots of a bootstrap.
    most: int
    # Made with the first prices.
    shapes: Shapes | None = None


def _polynomial_inputs(program: Program, nodes: Sequence[Node]) -> dict[Node, _Bound]:
    """The inputs of nonlinear polynomials on [-1, 1], which are at most one in size."""
    context = Context(program.constants)
    inputs: dict[Node, _Bound] = {}
    for node in nodes:
        whole = node.op == "poly" and (node.attrs["low"], node.attrs["high"]) == (-1.0, 1.0)
        if whole and not is_linear(context, node):
            inputs[node.inputs[0]] = _Bound(0, node.attrs.get("range"), node.attrs.get("chunk", 0))
    return inputs


def _carried_bounds(program: Program) -> dict[Node, _Bound]:
    """The inputs that come from the previous run, with the bounds that their author declared."""
    found = {}
    for node in program.inputs:
        if node.attrs["name"] in program.interface.carried_inputs and node.attrs.get("low") is not None:
            size = max(abs(node.attrs["low"]), abs(node.attrs["high"]))
            found[node] = _Bound(max(0, math.ceil(math.log2(max(size, 1e-30)))))
    return found


def _rigid(nodes: Sequence[Node]) -> set[Node]:
    """The values with scales that follow from others: no plaintext before them has a free scale (PlanLevels)."""
    free: set[Node] = set()
    for node in nodes:
        secret = [operand for operand in node.inputs if operand.type.secret]
        role = role_of(node)
        known = [operand in free for operand in secret]
        if role in (Role.PLAIN_PRODUCT, Role.POLYNOMIAL) or node.op == "input":
            free.add(node)
        elif role is Role.PRODUCT:
            if any(role_of(operand) is Role.PLAIN_PRODUCT for operand in secret):
                free.add(node)
        elif role is not Role.BOOTSTRAP and known and all(known):
            free.add(node)
    return set(nodes) - free
