"""Choose which values are bootstrapped: the cheapest set after which every path fits the chain.

The program is read backwards. At each place the values that are still to be computed (the cut) are wanted at certain
levels; a value is either computed at the level at which it is wanted, or bootstrapped to it and computed at the level at
which bootstraps begin. That is a shortest path over (cut, levels), residual branches included: one branch may be
refreshed and the other not. States that are dearer than another one and want nothing less are dropped.

An example:

    h = f(x)             f takes 4 levels
    y = g(h) + k(h)      g takes 4 levels, k takes 1

    cut                  wanted at
    y                    0
    g(h), k(h)           0, 0
    h, k(h)              4, 0     g is done: what it reads is wanted 4 levels higher
    h                    4        k reads h at level 1, g at level 4: the higher one counts

Behind this cut there are two states. Either h is computed at level 4, and x is wanted at level 8; or h is bootstrapped
to level 4, and x is wanted 4 levels above the one at which a bootstrap begins. The first is cheaper where the chain has
8 levels, and impossible where it has not.

A value can be bootstrapped where its size is known: the input of a polynomial is at most one. Other values take a bound
that was observed, with a margin; they get a scale so much smaller (`size_bits`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from heliograph.approx.evaluate import plan_polynomial
from heliograph.ckks.costs import BUILT_IN, CostTable
from heliograph.ckks.ring import Ring
from heliograph.interpret import run_nodes
from heliograph.ir import Array, Attr, Builder, Node, Program, SlotsType, Stage
from heliograph.ir.depth import node_depth
from heliograph.ir.ops import Context, Role, role_of, rules_of
from heliograph.ir.slot_ops import transform_diagonals
from heliograph.passes.plan_levels import TooFewLevelsError

# Of so many states of one cut the cheapest are kept; residual networks have some dozens.
_MAX_STATES = 4000
# A scale is made smaller by at most so many bits; a larger value would be left with too few.
MAX_SIZE_BITS = 6

# The values of a cut, by their number in the program, and the level at which each is wanted.
_Wants = tuple[tuple[int, int], ...]
# Whether the tensors of which some ciphertexts are behind the cut and some before it are refreshed, by their entry in the
# table of ranges: a tensor is refreshed whole or not at all.
_Decided = frozenset[tuple[int, bool]]
_Place = tuple[_Wants, _Decided]


@dataclass(frozen=True, slots=True)
class _Bound:
    """A value that can be bootstrapped: the bits of its size; where it is a polynomial's input, the entry in the table of
    ranges, and which ciphertext of that input.
    """

    size_bits: int
    entry: int | None = None
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class _State:
    """What was chosen so far: its cost, and the values bootstrapped."""

    cost: float = 0.0
    chosen: frozenset[int] = frozenset()

    @property
    def rank(self) -> tuple[float, list[int]]:
        return self.cost, sorted(self.chosen)


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


def observed_sizes(program: Program, samples: Mapping[Node, Array], margin: float) -> dict[Node, int]:
    """For each secret value of a packed program the bits of its largest slot on the samples, with twice the margin on it.

    `samples` are slot vectors by input node, with a leading sample axis.
    """
    largest: dict[Node, float] = {}

    def look(node: Node, value: Array) -> None:
        if node.type.secret:
            largest[node] = float(np.abs(value).max(initial=0.0))

    run_nodes(program, dict(samples), look)
    return {
        node: max(0, math.ceil(math.log2(max(size * (1 + 2 * margin), 1e-30))))
        for node, size in largest.items()
        if math.isfinite(size)
    }


@dataclass(frozen=True, slots=True)
class PlaceBootstraps:
    """Packed programs get `bootstrap` nodes, so that each path between two fits the ring.

    `costs` prices the work by level; `sizes` has the bits of the largest slot of further values that may be bootstrapped,
    where the inputs of polynomials do not suffice (see `observed_sizes`). `one_size` uses one slot count for all
    bootstraps: fewer precomputed plaintexts and keys, and a little more time. `low_inputs` encrypts inputs no higher than
    bootstraps return to: rotations then happen lower in the chain, with smaller keys, and more values are bootstrapped.
    `pairs` says that PairBootstraps follows.

    Raises TooFewLevelsError where the work between two possible places is more than the ring can carry.
    """

    ring: Ring
    costs: CostTable = field(default=BUILT_IN)
    sizes: Mapping[Node, int] = field(default_factory=dict)
    one_size: bool = False
    low_inputs: bool = False
    pairs: bool = True

    name: ClassVar[str] = "place-bootstraps"
    needs: ClassVar[Stage] = Stage.PACKED
    makes: ClassVar[Stage] = Stage.PACKED

    def run(self, program: Program) -> Program:
        return self.place(program)[1]

    def place(self, program: Program) -> tuple[float, Program]:
        """The program with its bootstraps, and what one run costs, roughly, in ms."""
        periods = slot_periods(program)
        bounded: dict[Node, _Bound] = {}
        for node in program.nodes:
            if node.op == "poly" and node.type.secret and (node.attrs["low"], node.attrs["high"]) == (-1.0, 1.0):
                bounded[node.inputs[0]] = _Bound(0, node.attrs.get("range"), node.attrs.get("chunk", 0))
        bounded = {
            node: _Bound(bits) for node, bits in self.sizes.items() if bits <= MAX_SIZE_BITS and node.op != "input"
        } | bounded
        cost, chosen = _Search(self, program, periods, bounded).run()
        written = {node.attrs["slots"] for node in program.nodes if node.op == "bootstrap"}
        if not chosen and not written:
            return cost, program
        counts = sorted(written | {periods[node] for node in chosen})
        builder = Builder(program.name, Stage.PACKED, program)

        def emit(node: Node, operands: list[Node]) -> Node:
            made = builder.copy(node, operands) if node.op != "input" else node
            if node.op == "input":
                builder.inputs.append(node)
            if node not in chosen:
                return made
            bound = bounded[node]
            # Those that the author wrote keep their own number of slots.
            attrs: dict[str, Attr] = {"slots": counts[-1] if self.one_size else periods[node]}
            if bound.size_bits:
                attrs["size_bits"] = bound.size_bits
            if bound.entry is not None:
                attrs["ranges"], attrs["chunks"] = (bound.entry,), (bound.chunk,)
            else:
                attrs["observed"] = 1
            return builder.op("bootstrap", (made,), node.loc, **attrs)

        return cost, builder.rewrite(program, emit)


class _Search:
    def __init__(
        self,
        options: PlaceBootstraps,
        program: Program,
        periods: Mapping[Node, int],
        bounded: Mapping[Node, _Bound],
    ) -> None:
        self.ring, self.costs, self.one_size = options.ring, options.costs, options.one_size
        self.low_inputs, self.pairs = options.low_inputs, options.pairs
        self.program, self.periods, self.bounded = program, periods, bounded
        # How many ciphertexts one tensor has, by its entry in the table of ranges.
        self.siblings = Counter(bound.entry for bound in bounded.values())
        self.siblings[None] = 1
        self.nodes = [node for node in program.nodes if node.type.secret]
        self.index = {node: i for i, node in enumerate(self.nodes)}
        # The program is read backwards: the first of a tensor's ciphertexts is met last.
        self.last: dict[int | None, int] = {}
        for node, bound in bounded.items():
            self.last[bound.entry] = min(self.index[node], self.last.get(bound.entry, self.index[node]))

    def run(self) -> tuple[float, frozenset[Node]]:
        """The cost of the cheapest choice, and the values to bootstrap."""
        ring, index = self.ring, self.index
        begin, back = ring.bootstrap_input_level, ring.bootstrap_level
        highest = back if self.low_inputs else ring.levels
        slots = [self.periods[node] for node in self.bounded]
        most = max(slots, default=1)
        start = {index[node]: 0 for node in self.program.outputs}
        states: dict[_Place, _State] = {(tuple(sorted(start.items())), frozenset()): _State()}
        for i in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[i]
            depth, deepest = node_depth(self.program, node), 0
            operands = [index[operand] for operand in node.inputs if operand.type.secret]
            following: dict[_Place, _State] = {}
            for (wants, decided), state in states.items():
                table = dict(wants)
                level = table.pop(i, None)
                if level is None:
                    _keep(following, (wants, decided), state)
                    continue
                # A bootstrap that the author wrote leads from where bootstraps begin to the level wanted.
                written = node.op == "bootstrap"
                if written and level > back:
                    deepest = max(deepest, ring.levels + level - back)
                    continue
                for refresh in self._choices(node, level <= back, decided):
                    at = (begin if refresh or written else level) + depth
                    if at > highest:
                        deepest = max(deepest, at)
                        continue
                    new = dict(table)
                    for operand in operands:
                        new[operand] = max(new.get(operand, 0), at)
                    cost, chosen = state.cost + self._price(node, at), state.chosen
                    if written:
                        cost += self.costs.bootstrap_ms(ring, node.attrs["slots"])
                    if refresh:
                        cost += self._bootstrap_price(node, most if self.one_size else self.periods[node])
                        chosen |= {i}
                    place = tuple(sorted(new.items())), self._decided(i, refresh, decided)
                    _keep(following, place, _State(cost, chosen))
            if not following:
                raise TooFewLevelsError(max(deepest, ring.levels + 1), ring.levels)
            states = _pruned(following)
        best = min(states.values(), key=lambda state: state.rank)
        return best.cost, frozenset(self.nodes[i] for i in best.chosen)

    def _choices(self, node: Node, within: bool, decided: _Decided) -> tuple[bool, ...]:
        """Whether to bootstrap a value: no, yes, either, or neither where the rest of its tensor was and it cannot be."""
        if node not in self.bounded or node.op == "input":
            return (False,)
        known = {refresh for entry, refresh in decided if entry == self.bounded[node].entry}
        return tuple(refresh for refresh in (False, True)[: 1 + within] if refresh in (known or {False, True}))

    def _decided(self, i: int, refresh: bool, decided: _Decided) -> _Decided:
        """What is known of tensors after value i, until the last ciphertext of each."""
        bound = self.bounded.get(self.nodes[i])
        if bound is None or bound.entry is None:
            return decided
        if self.last[bound.entry] == i:
            return frozenset((entry, known) for entry, known in decided if entry != bound.entry)
        return decided | {(bound.entry, refresh)}

    def _bootstrap_price(self, node: Node, slots: int) -> float:
        """What one bootstrap costs; the ciphertexts of one tensor are refreshed in pairs where that is faster."""
        alone, count = self.costs.bootstrap_ms(self.ring, slots), self.siblings[self.bounded[node].entry]
        pairs = (count + 1) // 2 * self.costs.bootstrap_ms(self.ring, slots, paired=True)
        return min(alone, pairs / count) if self.pairs and count > 1 else alone

    def _price(self, node: Node, level: int) -> float:
        """Roughly what a node costs at a level; exact prices are those of the plan that is made of it."""
        ring, costs = self.ring, self.costs
        if node.op == "linear_transform":
            a = node.attrs
            products = sum(len(d.offsets) for d in transform_diagonals(a, self.program.matrix, ring.slots))
            babies = costs.decompose_ms(ring, level + 1) + len(a["baby_steps"]) * costs.rotate_ms(
                ring, level, hoisted=True
            )
            return (
                len(node.inputs) * babies
                + len(a["giant_steps"]) * costs.rotate_ms(ring, level)
                + products * (costs.mul_plain_ms(ring, level) + costs.encode_ms(ring, level))
            )
        if role_of(node) is Role.ROTATION:
            return costs.rotate_ms(ring, level)
        if role_of(node) is Role.PRODUCT:
            return costs.mul_ms(ring, level) + costs.relinearize_ms(ring, level) + costs.rescale_ms(ring, level)
        if node.op == "poly":
            coefficients = list(map(float, self.program.array(node.attrs["coefficients"])))
            products = plan_polynomial(coefficients).products
            middle = max(1, level - node_depth(self.program, node) // 2)
            each = costs.mul_ms(ring, middle) + costs.relinearize_ms(ring, middle) + costs.rescale_ms(ring, middle)
            return products * each
        return costs.add_ms(ring, max(level, 0))


def _keep(states: dict[_Place, _State], place: _Place, state: _State) -> None:
    if place not in states or state.rank < states[place].rank:
        states[place] = state


def _pruned(states: Mapping[_Place, _State]) -> dict[_Place, _State]:
    """Without the states that another one beats in cost and in every level, where both have decided the same."""
    kept: dict[_Place, _State] = {}
    for place, state in sorted(states.items(), key=lambda item: (item[1].rank, item[0][0])):
        # All states have the same cut.
        if not any(_beats(other, place) for other in kept):
            kept[place] = state
        if len(kept) >= _MAX_STATES:
            break
    return kept


def _beats(place: _Place, other: _Place) -> bool:
    """Whether a place wants no value at a higher level than the other does."""
    return place[1] == other[1] and all(a[1] <= b[1] for a, b in zip(place[0], other[0], strict=True))
