"""Choose which values are bootstrapped: the cheapest set after which every path fits the chain.

The search is that of placement.py. A value can be bootstrapped where its size is known: the input of a polynomial is at most
one. Other values take a bound that was observed, with a margin; they get a scale so much smaller (`size_bits`).
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.ndimage import minimum_filter1d

from heliograph.approx.evaluate import plan_polynomial
from heliograph.ckks.costs import BUILT_IN, CostTable
from heliograph.ckks.ring import Ring
from heliograph.ckks.trigonometric import levels_deeper
from heliograph.interpret import run_nodes
from heliograph.ir import Array, Attr, Builder, Node, Program, SlotsType, Stage
from heliograph.ir.analysis.carried import carried_nodes
from heliograph.ir.analysis.depth import node_depth
from heliograph.ir.analysis.liveness import last_use_table
from heliograph.ir.bootstraps.series import series_degree, series_of
from heliograph.ir.ops.slots.transforms import transform_offsets
from heliograph.ir.ops.table import Context, Role, role_of, rules_of
from heliograph.passes.bootstraps.placement import (
    IMPOSSIBLE,
    Found,
    Joined,
    Search,
    Shape,
    Step,
    Way,
    Whole,
    digest,
    run_all,
    shapes,
)
from heliograph.passes.levels.plan_levels import TooFewLevelsError
from heliograph.passes.polynomials.fold_scaling import is_linear

# A scale is made smaller by at most this many bits; a larger value would have too few left.
MAX_SIZE_BITS = 6
_NS = 1e6
# A placeholder for bootstrap prices that are not known yet.
_LATER = np.zeros(1, dtype=np.int64)
# The sizes of at most this many values are measured; each value doubles what the search has to try.
_MOST_SIZES = 128
# Values this close to a place count as nearby, as a share of the program on either side.
_NEARBY = 1 / 16


@dataclass(frozen=True, slots=True)
class _Bound:
    """A value that can be bootstrapped: the bits of its size; where it is a polynomial's input, the entry in the table of
    ranges, and which ciphertext of that input.
    """

    size_bits: int
    entry: int | None = None
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class PolynomialWay:
    """A polynomial that may stand for an activation: its levels and products, and the units of loss that its error adds.
    `series` is the degree of a series that is as good, which a bootstrap may compute; 0 if there is none.
    """

    degree: int
    depth: int
    products: int
    loss: int = 0
    series: int = 0


class Return(NamedTuple):
    """Of a bootstrap the level to which it comes back, its slots, and the degree of the series it computes (0: none)."""

    level: int
    slots: int
    degree: int = 0

    @property
    def reached(self) -> int:
        """The level to which it would bring its value."""
        return self.level + levels_deeper(self.degree)


@dataclass(frozen=True, slots=True)
class Placed:
    """A program with its bootstraps: what one run costs, roughly, in ms, and where each comes back. `make` builds it:
    of many that are compared few are wanted.
    """

    cost_ms: float
    make: Callable[[], Program] = field(repr=False, compare=False)
    returns: tuple[Return, ...] = ()

    @property
    def program(self) -> Program:
        return self.make()


@dataclass(frozen=True, slots=True)
class Allocated:
    """A point of the front: roughly the milliseconds of a run, the units of loss, and the degree of each entry."""

    cost_ms: float
    loss: int
    degrees: Mapping[int, int]


def slot_periods(program: Program) -> dict[Node, int]:
    """For each secret value of a packed program the period with which its slots repeat (all slots, where they do not)."""
    periods: dict[Node, int] = {}
    layouts = {spec.name: spec.placed for spec in program.interface.inputs}
    context = Context(program.constants)
    for node in program.nodes:
        if not node.type.secret:
            continue
        assert isinstance(node.type, SlotsType)
        slots = node.type.slots
        if node.op == "input":
            layout = layouts.get(node.attrs["name"])
            periods[node] = slots if layout is None or layout.shift else layout.period * layout.stride
        else:
            known = [periods.get(operand, slots) for operand in node.inputs]
            periods[node] = rules_of(node).period(node, known, context)
    return periods


def observed_sizes(
    program: Program, samples: Mapping[Node, Array], margin: float, nearby: bool = False
) -> dict[Node, int]:
    """For each secret value of a packed program the bits of its largest slot on the samples, with twice the margin on it.

    `samples` are slot vectors by input node, with a leading sample axis. Only where the program is narrow; with `nearby`
    where it is narrower than near that place, so that there are such values in every part of it.
    """
    largest: dict[Node, float] = {}
    few = _where_few_live(program, nearby)

    def look(node: Node, value: Array) -> None:
        # The bootstrap of a single value would lose the imaginary parts of a complex one.
        if node in few and not np.iscomplexobj(value):
            largest[node] = float(np.abs(value).max(initial=0.0))

    run_nodes(program, dict(samples), look)
    return {
        node: max(0, math.ceil(math.log2(max(size * (1 + 2 * margin), 1e-30))))
        for node, size in largest.items()
        if math.isfinite(size)
    }


def _made_by_server(node: Node) -> bool:
    return node.type.secret and node.op != "input"


def _where_few_live(program: Program, nearby: bool) -> set[Node]:
    """The secret values at whose place fewest others wait to be read, `_MOST_SIZES` at most: where a program is narrow. Of a
    statement that has none of these, those at whose place fewest wait within it.

    Inside a product of matrices there are many ciphertexts for each one before it and behind it. With `nearby` what counts
    is how many more wait than at the narrowest place nearby: behind its first layer a program with a residual stream is
    nowhere as narrow as before.
    """
    ends = last_use_table(program.nodes, program.outputs)
    live, waiting = 0, {}
    for node, freed in zip(program.nodes, ends, strict=True):
        if _made_by_server(node):
            waiting[node] = live
            live += 1
        live -= sum(_made_by_server(program.nodes[place]) for place in freed)
    if nearby and waiting:
        counts = np.array(list(waiting.values()))
        above = counts - minimum_filter1d(counts, 2 * math.ceil(_NEARBY * len(counts)) + 1, mode="nearest")
        waiting = dict(zip(waiting, above.tolist(), strict=True))
    kept: set[Node] = set()
    for most in sorted(set(waiting.values()), reverse=True):
        kept = {node for node, others in waiting.items() if others <= most}
        if len(kept) <= _MOST_SIZES:
            break
        kept = set()
    if nearby:
        # Even the narrowest ones are too many: take some of them, spread over the whole program.
        narrowest = [node for node, others in waiting.items() if not others]
        return kept or set(narrowest[:: math.ceil(len(narrowest) / _MOST_SIZES) or 1])
    # While values wait for a long time, a whole statement may have none of these; then it gets its own narrowest ones.
    statements: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in waiting:
        statements[node.loc.layer, node.loc.short].append(node)
    for nodes in statements.values():
        if kept and kept.isdisjoint(nodes):
            fewest = min(waiting[node] for node in nodes)
            kept.update([node for node in nodes if waiting[node] == fewest][:_MOST_SIZES])
    return kept


@dataclass(frozen=True, slots=True)
class _Work:
    """What a value takes, whatever the chain: calls of each kind; products are made in the middle of its levels."""

    depth: int = 0
    decompositions: int = 0
    hoisted: int = 0
    rotations: int = 0
    plain_products: int = 0
    products: int = 0
    sums: int = 0


@dataclass(frozen=True, slots=True)
class Prepared:
    """What placing needs to know of a packed program, whatever the chain: its secret values with their work."""

    program: Program
    nodes: tuple[Node, ...]
    works: tuple[_Work, ...]
    periods: Mapping[Node, int]
    inputs: Mapping[Node, _Bound]
    # What the last search was built from; the next one is often on the same ring.
    frames: list[_Frame] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, program: Program, slots: int) -> Prepared:
        nodes = tuple(node for node in program.nodes if node.type.secret)
        inputs: dict[Node, _Bound] = {}
        context = Context(program.constants)
        for node in nodes:
            whole = node.op == "poly" and (node.attrs["low"], node.attrs["high"]) == (-1.0, 1.0)
            if whole and not is_linear(context, node):
                inputs[node.inputs[0]] = _Bound(0, node.attrs.get("range"), node.attrs.get("chunk", 0))
        works = tuple(_work(program, node, slots) for node in nodes)
        # The transforms of a bootstrap have at least two slots; what repeats after one slot also repeats after two.
        periods = {node: max(2, period) for node, period in slot_periods(program).items()}
        return cls(program, nodes, works, periods, inputs)


def _work(program: Program, node: Node, slots: int) -> _Work:
    depth = node_depth(program, node)
    if node.op == "linear_transform":
        a = node.attrs
        return _Work(
            depth,
            decompositions=len(node.inputs),
            hoisted=len(node.inputs) * len(a["baby_steps"]),
            rotations=len(a["giant_steps"]),
            plain_products=sum(map(len, transform_offsets(a, program.linear_map, slots))),
        )
    if role_of(node) is Role.ROTATION:
        return _Work(depth, rotations=1)
    if role_of(node) is Role.PRODUCT:
        return _Work(depth, products=1)
    if node.op == "poly":
        coefficients = list(map(float, program.array(node.attrs["coefficients"])))
        return _Work(depth, products=plan_polynomial(coefficients).products)
    return _Work(depth, sums=1)


@dataclass(frozen=True, slots=True)
class _Prices:
    """Nanoseconds by level of each kind of call on one chain."""

    decompose: npt.NDArray[np.float64]
    hoisted: npt.NDArray[np.float64]
    rotate: npt.NDArray[np.float64]
    plain: npt.NDArray[np.float64]
    product: npt.NDArray[np.float64]
    add: npt.NDArray[np.float64]

    @classmethod
    def of(cls, ring: Ring, costs: CostTable) -> _Prices:
        def by_level(price: Callable[[int], float]) -> npt.NDArray[np.float64]:
            return np.array([price(level) for level in range(ring.towers)]) * _NS

        return cls(
            by_level(lambda level: costs.decompose_ms(ring, level + 1)),
            by_level(lambda level: costs.rotate_ms(ring, level, hoisted=True)),
            by_level(lambda level: costs.rotate_ms(ring, level)),
            # Without the encoding, as in the bill: a run finds its plaintexts encoded, or encodes them alongside its work.
            by_level(lambda level: costs.summed_product_ms(ring, level)),
            by_level(
                lambda level: (
                    costs.mul_ms(ring, level) + costs.relinearize_ms(ring, level) + costs.rescale_ms(ring, level)
                )
            ),
            by_level(lambda level: costs.add_ms(ring, level)),
        )

    def costs(self, works: Sequence[_Work]) -> list[Whole]:
        """What each takes by the level at which it begins, roughly: exact prices are those of the plan that is made."""
        levels = np.arange(len(self.product))
        made = []
        for work in works:
            products = self.product[np.maximum(1, levels - work.depth // 2).clip(max=len(levels) - 1)]
            total = (
                work.decompositions * self.decompose
                + work.hoisted * self.hoisted
                + work.rotations * self.rotate
                + work.plain_products * self.plain
                + work.products * products
                + work.sums * self.add
            )
            made.append(np.rint(total).astype(np.int64))
        return made


def _carried_bounds(program: Program) -> dict[Node, _Bound]:
    """The inputs that come from a run before: they are bounded as their author declared it."""
    found = {}
    for node in program.inputs:
        if node.attrs["name"] in program.interface.carried_inputs and node.attrs.get("low") is not None:
            size = max(abs(node.attrs["low"]), abs(node.attrs["high"]))
            found[node] = _Bound(max(0, math.ceil(math.log2(max(size, 1e-30)))))
    return found


def _rigid(nodes: Sequence[Node]) -> set[Node]:
    """The values whose scale follows from others: no plaintext before them has one that can be chosen (PlanLevels)."""
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


# Of bootstraps in nanoseconds, by ring, slots, ciphertexts and degree of the series.
Prices: TypeAlias = dict[tuple[Ring, int, int, int], int]


@dataclass(frozen=True, slots=True)
class _Draft:
    """A step of the search without prices: each way has its levels, the number of its work, loss and tie. `kind` are slots,
    ciphertexts of the tensor and whether the author wrote it, of what can be bootstrapped; `merged` are, for each way,
    slots and degree of a series where a bootstrap of what it reads can compute it; `entry` is the name of a value
    that comes from a run before.
    """

    reads: tuple[int, ...]
    ways: tuple[tuple[int, int, int, int], ...]
    kind: tuple[int, int, bool] | None
    merged: tuple[tuple[int, int] | None, ...]
    whole: int | None
    group: int | None
    tie: int
    refresh_depth: int
    entry: str | None

    def step(self, ways: Mapping[tuple[int, int, int, int], Way], most: Mapping[str, int]) -> Step:
        return Step(
            self.reads,
            tuple(ways[way] for way in self.ways),
            None if self.kind is None else _LATER,
            self.kind is not None and self.kind[2],
            self.whole,
            self.group,
            self.tie,
            self.refresh_depth,
            None if self.entry is None else most[self.entry],
            tuple(None if each is None else _LATER for each in self.merged),
        )


@dataclass(frozen=True, slots=True)
class _Frame:
    """What the searches of all rings have in common. `place` is the pass that it was made for; `outputs` are names of values
    that go to the next run, by the places of outputs, and None where they leave; `most` are the most slots of a bootstrap.
    """

    place: PlaceBootstraps
    drafts: Sequence[_Draft]
    works: Sequence[_Work]
    outputs: Mapping[int, str | None]
    most: int
    # Made with the first prices; and what the last search was built from, as the next one is often on the same ring.
    shapes: list[Shape] = field(default_factory=list)
    priced: list[_Priced] = field(default_factory=list)
    prices: Prices = field(default_factory=dict)

    def serves(self, other: PlaceBootstraps) -> bool:
        # Tables of sizes are long, so they are compared by identity.
        alike = (self.place.ring.bootstrap is None) == (other.ring.bootstrap is None)
        return self.place.sizes is other.sizes and self.place.costs is other.costs and alike

    def on(self, place: PlaceBootstraps) -> _Priced:
        """With the prices of a ring."""
        known = next(iter(self.priced), None)
        if known is not None and known.serves(place):
            return known
        costs = _Prices.of(place.ring, place.costs).costs(self.works)
        kinds = {way for draft in self.drafts for way in draft.ways}
        ways = {way: Way(way[0], costs[way[1]], *way[2:]) for way in kinds}
        begin = 0 if place.ring.bootstrap is None else place.ring.bootstrap_input_level
        names = {draft.entry for draft in self.drafts if draft.entry is not None}
        most = {name: begin + place.carried.get(name, 0) for name in names}
        steps = [draft.step(ways, most) for draft in self.drafts]
        outputs = {number: 0 if name is None else most[name] for number, name in self.outputs.items()}
        if not self.shapes:
            self.shapes[:] = shapes(steps, outputs)
        found = _Priced(place, steps, outputs, [shape.priced(steps) for shape in self.shapes])
        self.priced[:] = [found]
        return found


@dataclass(frozen=True, slots=True)
class _Priced:
    """Steps with prices, but for those of their bootstraps."""

    place: PlaceBootstraps
    steps: Sequence[Step]
    outputs: Mapping[int, int]
    joined: Sequence[Joined]

    def serves(self, other: PlaceBootstraps) -> bool:
        mine = self.place
        return mine.costs is other.costs and mine.ring == other.ring and mine.carried == other.carried


@dataclass(frozen=True, slots=True)
class PlaceBootstraps:
    """Packed programs get `bootstrap` nodes, so that each path between two fits the ring.

    `costs` prices the work by level; `sizes` has the bits of the largest slot of further values that may be bootstrapped,
    where the inputs of polynomials do not suffice (see `observed_sizes`). `one_size` uses one slot count for all
    bootstraps: fewer precomputed plaintexts and keys, and a little more time. `low_inputs` encrypts inputs no higher than
    bootstraps return to: rotations then happen lower in the chain, with smaller keys, and more values are bootstrapped.
    `pairs` says that PairBootstraps follows. `lower` are lower parts of the chain with bootstraps of their own: each
    bootstrap is priced in the cheapest that comes back high enough. `carried` has, for inputs that come from a run before,
    by how many levels they come above the one at which bootstraps begin (0 where it is not said). `spare` levels are kept
    for scales that have to meet: PlanLevels brings them together by products that are not known here.

    Raises TooFewLevelsError where the work between two possible places is more than the ring can carry.
    """

    ring: Ring
    costs: CostTable = field(default=BUILT_IN)
    sizes: Mapping[Node, int] = field(default_factory=dict)
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
        return self.place(Prepared.of(program, self.ring.slots)).program

    def place(self, prepared: Prepared) -> Placed:
        """The program with its bootstraps; it is the one that was given where there are none."""
        return self._placed(prepared, self.search(prepared).run()[0])

    def _placed(self, prepared: Prepared, found: Found) -> Placed:
        program = prepared.program
        bounded, periods, context = self._bounded(prepared), prepared.periods, Context(prepared.program.constants)
        levels = {prepared.nodes[place]: level for place, level in found.refreshed.items()}
        merged = {prepared.nodes[place] for place in found.merged}
        written = {node: node.attrs["slots"] for node in levels if node.op == "bootstrap"}

        def value_of(node: Node) -> Node:
            """What is bootstrapped where this value comes from a bootstrap."""
            return node.inputs[0] if node in merged else node

        most = max([*written.values(), *(periods[value_of(node)] for node in levels if node not in written)], default=0)

        def slots_of(node: Node) -> int:
            # Bootstraps that the author wrote keep their own number of slots.
            return int(written[node]) if node in written else most if self.one_size else periods[node]

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

    def front(
        self, prepared: Prepared, ways: Mapping[int, Sequence[PolynomialWay]], groups: Mapping[int, int]
    ) -> list[Allocated]:
        """The front of time against loss, the cheapest first, where polynomials may be evaluated in these ways, by their
        entries in the table of ranges; those of one group are all evaluated in the same.
        """
        places = {
            place: node.attrs["range"]
            for place, node in enumerate(prepared.nodes)
            if node.op == "poly" and node.attrs.get("range") in ways
        }

        def allocated(found: Found) -> Allocated:
            chosen = {entry: ways[entry][found.ways[place]].degree for place, entry in places.items()}
            return Allocated(found.cost / _NS, found.loss, chosen)

        return [allocated(found) for found in self.search(prepared, ways, groups).run()]

    def _bounded(self, prepared: Prepared) -> dict[Node, _Bound]:
        """The values that may be bootstrapped."""
        if self.ring.bootstrap is None:
            return {}
        sizes = {
            node: _Bound(bits) for node, bits in self.sizes.items() if bits <= MAX_SIZE_BITS and node.op != "input"
        }
        inputs = {node: bound for node, bound in prepared.inputs.items() if node.op != "input"}
        return sizes | inputs | _carried_bounds(prepared.program)

    def search(
        self,
        prepared: Prepared,
        ways: Mapping[int, Sequence[PolynomialWay]] | None = None,
        groups: Mapping[int, int] | None = None,
    ) -> Search:
        """The search among all ways to run the program on the ring."""
        ring = self.ring
        begin, back, highest = 0, 0, ring.levels - self.spare
        if ring.bootstrap is not None:
            begin, back = ring.bootstrap_input_level, ring.bootstrap_level - self.spare
            highest = back if self.low_inputs else highest
        frame = next((known for known in prepared.frames if known.serves(self)), None) if not ways else None
        if frame is None:
            frame = self._frame(prepared, ways or {}, groups)
            prepared.frames[:] = [frame] if not ways else []
        priced = frame.on(self)
        kinds = {draft.kind for draft in frame.drafts if draft.kind is not None}
        refreshed = {
            kind: self._refresh(frame.most if self.one_size and not kind[2] else kind[0], kind[1], frame.prices)
            for kind in kinds
        }
        merged = {
            kind: self._refresh(frame.most if self.one_size else kind[0], 1, frame.prices, kind[1])
            for kind in {each for draft in frame.drafts for each in draft.merged if each is not None}
        }
        steps = [
            step
            if draft.kind is None and not draft.merged
            else step.refreshed(
                None if draft.kind is None else refreshed[draft.kind],
                tuple(None if each is None else merged[each] for each in draft.merged),
            )
            for step, draft in zip(priced.steps, frame.drafts, strict=True)
        ]
        return Search(steps, priced.outputs, begin, back, highest, ring.levels, joined=priced.joined)

    def _frame(
        self, prepared: Prepared, ways: Mapping[int, Sequence[PolynomialWay]], groups: Mapping[int, int] | None
    ) -> _Frame:
        """All that the search is made of but prices."""
        bounded = self._bounded(prepared)
        # The number of ciphertexts of each tensor, by its entry in the range table.
        siblings = Counter(bound.entry for bound in bounded.values())
        index = {node: place for place, node in enumerate(prepared.nodes)}
        works: dict[_Work, int] = {}

        def way(work: _Work, loss: int = 0, tie: int = 0) -> tuple[int, int, int, int]:
            return work.depth, works.setdefault(work, len(works)), loss, tie

        carried = prepared.program.interface.carried_inputs
        entries = {node: node.attrs["name"] for node in prepared.program.inputs if node.attrs["name"] in carried}
        rigid, context = _rigid(prepared.nodes), Context(prepared.program.constants)
        drafts: list[_Draft] = []
        for node, work in zip(prepared.nodes, prepared.works, strict=True):
            entry = together = None
            if node.op == "poly" and node.attrs.get("range") in ways:
                entry = together = int(node.attrs["range"])
                # A loss that occurs once per tensor is counted with the first of its ciphertexts.
                first = node.attrs.get("chunk", 0) == 0
                own = tuple(
                    way(
                        _Work(each.depth, products=each.products),
                        each.loss if first else 0,
                        digest(node.loc.layer, node.op, each.degree) if first else 0,
                    )
                    for each in ways[entry]
                )
            else:
                own = (way(work),)
            bound, kind = bounded.get(node), None
            if node.op == "bootstrap":
                kind = node.attrs["slots"], 1, True
            elif bound is not None:
                count = siblings[bound.entry] if bound.entry is not None else 1
                kind = prepared.periods[node], count, False
            merged: tuple[tuple[int, int] | None, ...] = ()
            known = bounded.get(node.inputs[0]) if node.op == "poly" else None
            if known is not None:
                degrees = [each.series for each in ways[entry]] if entry is not None else [series_degree(node, context)]
                period = prepared.periods[node.inputs[0]]
                merged = tuple((period, degree) if degree else None for degree in degrees) if any(degrees) else ()
                if merged and entry is None and siblings[known.entry] > 1:
                    # Ciphertexts of one tensor are treated alike.
                    together = known.entry
            drafts.append(
                _Draft(
                    tuple(index[operand] for operand in node.inputs if operand.type.secret),
                    own,
                    kind,
                    merged,
                    None if bound is None else bound.entry,
                    together if entry is None or groups is None else groups[entry],
                    digest("refresh", node.loc.layer, node.op),
                    # A large value comes in at a small scale; if that cannot be chosen, a product with one brings it there.
                    int(bound is not None and bound.size_bits > 0 and node in rigid),
                    entries.get(node),
                )
            )
        outputs: dict[int, str | None] = {index[node]: None for node in prepared.program.outputs}
        outputs |= {index[node]: entries[source] for node, source in carried_nodes(prepared.program).items()}
        most = max((prepared.periods[node] for node in bounded), default=1)
        return _Frame(self, drafts, list(works), outputs, most)

    def _refresh(self, slots: int, count: int, prices: Prices, degree: int = 0) -> Whole:
        """What one bootstrap costs by the level that it comes back to; the ciphertexts of one tensor are refreshed in pairs
        where that is faster. One that computes a series of a `degree` comes back lower.
        """
        table, down = np.full(self.ring.bootstrap_level + 1, IMPOSSIBLE), levels_deeper(degree)
        for ring in sorted((self.ring, *self.lower), key=lambda ring: -ring.levels):
            reached = max(0, ring.bootstrap_level + 1 - down)
            table[:reached] = self._price(prices, ring, slots, count if self.pairs else 1, degree)
        return table

    def _price(self, prices: Prices, ring: Ring, slots: int, count: int, degree: int) -> int:
        """Nanoseconds of a bootstrap, kept for the searches on other chains with that part."""
        key = ring, slots, count, degree
        found = prices.get(key)
        if found is None:
            alone = self.costs.bootstrap_ms(ring, slots, series=degree)
            if count > 1:
                pairs = (count + 1) // 2 * self.costs.bootstrap_ms(ring, slots, paired=True)
                alone = min(alone, pairs / count)
            found = prices[key] = round(alone * _NS)
        return found


def place_all(passes: Sequence[PlaceBootstraps], prepared: Prepared) -> list[Placed | TooFewLevelsError]:
    """What each of them makes of the program, or why it makes nothing: much faster than one after the other."""
    found = run_all([each.search(prepared) for each in passes])
    return [
        front if isinstance(front, TooFewLevelsError) else each._placed(prepared, front[0])
        for each, front in zip(passes, found, strict=True)
    ]
