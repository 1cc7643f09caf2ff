"""Turn tensors into slot vectors and maps into diagonals, in the layouts that cost least
(passes/packing/choose_layouts.py).

A value is a list of slot vectors, one per ciphertext. A map has a block for each pair of result and operand
ciphertexts. The baby steps of an operand serve all its blocks, and the giant steps of a result follow the sum of its
blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from heliograph.ckks.costs import BUILT_IN, CostTable
from heliograph.ckks.ring import Ring
from heliograph.errors import PlanningError, UnsupportedError
from heliograph.ir import Array, Builder, Node, Program, SparseMatrix, Stage, shape_of
from heliograph.ir.analysis.depth import weighted_operands
from heliograph.ir.bootstraps.series import series_of
from heliograph.ir.interface import TensorSpec
from heliograph.ir.maps.diagonals import MapGeometry, diagonal_offsets
from heliograph.ir.maps.layout import Layout
from heliograph.ir.maps.placed import in_places
from heliograph.ir.maps.steps import pair_offsets
from heliograph.ir.node import ConstantName
from heliograph.ir.writer import SlotWriter
from heliograph.passes.base import rule_for
from heliograph.passes.packing.choose_layouts import (
    candidate_layouts,
    choose_layouts,
    in_the_clear,
    largest_batch,
    one_for_each_slot,
)
from heliograph.passes.packing.map_plans import MapPlans
from heliograph.passes.packing.products.choose_products import product_pins
from heliograph.passes.packing.products.copy_operands import with_products


@dataclass(frozen=True, slots=True)
class Pack:
    """Turns tensors into slot vectors, and `affine` into `linear_transform` and rotations.

    `batch`: the number of samples (a power of two) side by side in the same ciphertexts. With one for each slot, every
    element of a tensor is a ciphertext of its own (ir/ops/slots/stacks.py). "max" is the most that the program allows.
    """

    ring: Ring
    costs: CostTable = field(default=BUILT_IN)
    batch: int | str = 1

    name: ClassVar[str] = "pack"
    needs: ClassVar[Stage] = Stage.POLYNOMIAL
    makes: ClassVar[Stage] = Stage.PACKED

    def run(self, program: Program) -> Program:
        if self.batch == "max":
            every = one_for_each_slot(program, self.ring)
            batch = self.ring.slots if every else largest_batch(program, self.ring.slots)
        else:
            batch = int(self.batch)
        if batch > self.ring.slots:
            raise PlanningError(
                f"{batch} samples do not fit side by side: ring 2^{self.ring.log_ring} has {self.ring.slots} slots",
                hint='use a smaller batch, or batch="max"',
            )
        return _Packer(program, self.ring, self.costs, batch).run()


class _Packer:
    def __init__(self, program: Program, ring: Ring, costs: CostTable, batch: int) -> None:
        program, self.groups, self.products = with_products(program, ring, batch, costs)
        self.program, self.ring, self.costs, self.batch = program, ring, costs, batch
        # The number of slots for one sample.
        self.slots = ring.slots // batch
        self.builder = Builder(program.name, Stage.PACKED, program)
        self.plans = MapPlans(program, self.groups, ring, costs, self.slots)
        # The packed form of each node of the polynomial program: for secret nodes, slot vectors, one per ciphertext;
        # for nodes that the server computes in the clear, a single node. Constants have neither: their readers use the
        # arrays.
        self.new: dict[Node, list[Node]] = {}
        self.clear: dict[Node, Node] = {}
        # The layout of each group of values.
        self.chosen: Sequence[Layout] = ()

    def layout(self, node: Node) -> Layout:
        return self.chosen[self.groups.of[node]]

    def run(self) -> Program:
        program, builder, of = self.program, self.builder, self.groups.of
        # A bootstrap's transforms and their tables grow with the slots that a value's copies occupy. Where values are
        # bootstrapped, moved copies therefore take at most half of the slots.
        most_moved = self.slots // 2 if self.plans.deep else self.slots
        pins = product_pins(self.groups, self.products)
        candidates = candidate_layouts(program, self.groups, self.ring.slots, self.batch, most_moved, pins)
        if self.slots == 1:
            # Each element is a ciphertext of its own, so there is only one layout and no map has diagonals.
            chosen = [layouts[0] for layouts in candidates]
        else:
            chosen = self._cheapest(candidates)
        self.chosen = chosen
        for node in program.nodes:
            if in_the_clear(node):
                self.clear[node] = builder.copy(node, [self.clear.get(operand, operand) for operand in node.inputs])
            elif node.op != "constant":
                self.new[node] = rule_for(RULES, node, Pack.name)(self, node)
        new = self.new
        known = {spec.name: spec for spec in program.interface.inputs}
        inputs = tuple(
            replace(
                known.get(a["name"], TensorSpec(a["name"], tuple(a["shape"]))),
                shape=tuple(a["shape"]),
                layout=chosen[of[node]],
                low=a.get("low"),
                high=a.get("high"),
                classes=a.get("classes"),
            )
            for node, a in ((node, node.attrs) for node in program.inputs if node.type.secret)
        )
        known = {spec.name: spec for spec in program.interface.outputs}
        outputs: dict[str, Node] = {}
        specs: list[TensorSpec] = []
        for name, node in zip(program.output_names, program.outputs, strict=True):
            if node not in new:
                raise UnsupportedError(
                    f"output {name!r} does not depend on any encrypted input",
                    where=node.loc,
                    hint="compute it outside of the program, and return it in the clear",
                )
            for chunk, vector in enumerate(new[node]):
                outputs[name if len(new[node]) == 1 else f"{name}/{chunk}"] = vector
            spec = known.get(name, TensorSpec(name, shape_of(node)))
            specs.append(replace(spec, shape=shape_of(node), layout=chosen[of[node]]))
        builder.interface = replace(program.interface, inputs=inputs, outputs=tuple(specs))
        return builder.finish(outputs)

    def _cheapest(self, candidates: Sequence[Sequence[Layout]]) -> list[Layout]:
        """The layout of each group of values; inputs get shifted copies where these pay."""
        program, of = self.program, self.groups.of
        chosen = choose_layouts(program, self.groups, candidates, self.plans.cost)
        # An input that one map reads is packed with shifted copies if that makes the map cheaper
        # (ir/maps/diagonals.py).
        for node in program.nodes:
            for operand, name in zip(node.inputs, node.attrs.get("matrices", ()), strict=False):
                layout, out = chosen[of.get(operand, 0)], chosen[of.get(node, 0)]
                shifted = self.plans.shifted(operand, layout, out) if node.type.secret else None
                if shifted is None or not program.linear_map(name).nnz:
                    continue
                cost = self.plans.steps(node, [(name, layout)], out, thorough=True)[0]
                if self.plans.steps(node, [(name, shifted)], out, thorough=True)[0] < cost:
                    chosen[of[operand]] = shifted
        return chosen

    def _chunk(self, chunk: int, of: int) -> int | None:
        """The attribute with the number of the ciphertext; None if the value has only one."""
        return chunk if of > 1 else None

    def _packed(self, node: Node, layout: Layout) -> list[Node]:
        """The slot vectors of a plain run-time value beside ciphertexts of that layout."""
        count = layout.ciphertexts
        return [
            self.builder.op("pack", (self.clear[node],), node.loc, layout=layout, chunk=self._chunk(chunk, count))
            for chunk in range(count)
        ]

    def _rotate(self, value: Node, amount: int, node: Node) -> Node:
        return self.builder.op("rotate", (value,), node.loc, amount=amount * self.batch)

    def unmoved(self, node: Node) -> list[Node]:
        """The operand's vectors: elements stay in their slots, only their indices change."""
        return self.new[node.inputs[0]]

    def roll_rows(self, node: Node) -> list[Node]:
        """A rotation by whole rows, all in one ciphertext."""
        (operand,) = node.inputs
        (value,), layout = self.new[operand], self.layout(operand)
        amount = node.attrs["amount"] * layout.row_length % layout.period
        return [self._rotate(value, amount, node) if amount else value]

    def sum_rows(self, node: Node) -> list[Node]:
        """The sum of all rows, in each of them."""
        (operand,) = node.inputs
        (value,), layout = self.new[operand], self.layout(operand)
        step = layout.period // 2
        while step >= layout.row_length:
            value = self.builder.op("add_ct", (value, self._rotate(value, step, node)), node.loc)
            step //= 2
        return [value]

    def sum_runs(self, node: Node) -> list[Node]:
        """The sum of each run, at its start.

        The rotations leave other values elsewhere, which no op reads; an output is masked.
        """
        (operand,) = node.inputs
        values, step = self.new[operand], 1
        if node.attrs["count"] > self.slots:
            raise PlanningError(
                f"sum_runs of {node.attrs['count']} elements: a ciphertext has {self.slots} slots", where=node.loc
            )
        while step < node.attrs["count"]:
            values = [self.builder.op("add_ct", (value, self._rotate(value, step, node)), node.loc) for value in values]
            step *= 2
        if node in self.program.outputs:
            layout = self.layout(node)
            masks = [layout.used(chunk).astype(np.float64) for chunk in range(layout.ciphertexts)]
            names = [self.builder.constant(mask[: layout.period * self.batch], "sums.mask") for mask in masks]
            values = [
                self.builder.op("mul_plain", (value,), node.loc, value=name)
                for value, name in zip(values, names, strict=True)
            ]
        return values

    def poly(self, node: Node) -> list[Node]:
        values = self.new[node.inputs[0]]
        if "range" in node.attrs:
            entry = self.builder.ranges[node.attrs["range"]]
            self.builder.ranges[node.attrs["range"]] = replace(entry, layout=self.layout(node))
        attrs = {"coefficients": node.attrs["coefficients"], "low": -1.0, "high": 1.0, "range": node.attrs.get("range")}
        attrs |= series_of(node.attrs)
        return [
            self.builder.op("poly", (value,), node.loc, **attrs, chunk=self._chunk(chunk, len(values)))
            for chunk, value in enumerate(values)
        ]

    def product(self, node: Node) -> list[Node]:
        new = self.new
        left, right = node.inputs
        if in_the_clear(left):
            left, right = right, left
        if in_the_clear(right):
            return self._each("mul_pt", new[left], self._packed(right, self.layout(node)), node)
        return self._each("mul_ct", new[left], new[right], node)

    def matrix_product(self, node: Node) -> list[Node]:
        left, right = (self.new[operand] for operand in node.inputs)
        return self.products[node].write(SlotWriter(self.builder, node.loc, "product", self.batch), left, right)

    def _each(self, op: str, left: Sequence[Node], right: Sequence[Node], node: Node) -> list[Node]:
        return [self.builder.op(op, pair, node.loc) for pair in zip(left, right, strict=True)]

    def _negated(self, values: Sequence[Node], node: Node) -> list[Node]:
        return [self.builder.op("negate", (value,), node.loc) for value in values]

    def input(self, node: Node) -> list[Node]:
        return [
            self.builder.input(
                node.attrs["name"],
                node.loc,
                slots=self.ring.slots,
                chunk=chunk,
                low=node.attrs.get("low"),
                high=node.attrs.get("high"),
            )
            for chunk in range(self.layout(node).ciphertexts)
        ]

    def affine(self, node: Node) -> list[Node]:
        out = self.layout(node)
        if self.slots == 1:
            return self._sums(node, out)
        # Operands with the same period and copies share giant steps and the rotations that add up partial sums.
        alike: dict[MapGeometry, list[tuple[Node, Any, Layout]]] = {}
        for operand, name in zip(node.inputs, node.attrs["matrices"], strict=True):
            layout = self.layout(operand)
            alike.setdefault(MapGeometry.between(layout, out), []).append((operand, name, layout))
        made = []
        for chunk in range(out.ciphertexts):
            partial = [
                (geometry.run, self._transform(node, geometry, maps, out, chunk)) for geometry, maps in alike.items()
            ]
            made.append(self._summed(node, partial, out.run))
        if "bias" in node.attrs:
            made = self._add_plain(made, self.builder.context.array(node.attrs["bias"]), out, node, node.attrs["bias"])
        return made

    def _sums(self, node: Node, out: Layout) -> list[Node]:
        """Each element of the result, as a sum of ciphertexts plus its offset; `weighted_operands` get their weights."""
        builder, loc = self.builder, node.loc
        weighted = weighted_operands(self.program, node)
        totals: list[Node | None] = [None] * out.ciphertexts
        # The terms of each row that get weights: (operand, element, weight).
        terms: list[list[tuple[int, int, float]]] = [[] for _ in totals]
        matrices = []
        for position, (operand, name) in enumerate(zip(node.inputs, node.attrs["matrices"], strict=True)):
            matrix = in_places(self.program.linear_map(name).sparse(), self.layout(operand), out)
            matrices.append(matrix)
            rows = np.repeat(np.arange(out.ciphertexts), np.diff(matrix.indptr))
            for row, column, weight in zip(rows.tolist(), matrix.indices.tolist(), matrix.data.tolist(), strict=True):
                value, total = self.new[operand][column], totals[row]
                if weighted[position]:
                    terms[row].append((position, column, weight))
                elif total is None:
                    totals[row] = value if weight > 0 else builder.op("negate", (value,), loc)
                else:
                    totals[row] = builder.op("add_ct" if weight > 0 else "sub_ct", (total, value), loc)
        offsets = np.zeros(out.ciphertexts)
        if "bias" in node.attrs:
            offsets[out.places()] = builder.context.array(node.attrs["bias"]).ravel()
        stacked: dict[int, tuple[Node, ConstantName]] = {}

        def stack(position: int) -> tuple[Node, ConstantName]:
            if position not in stacked:
                name = builder.constant(matrices[position], str(node.attrs["matrices"][position]))
                stacked[position] = builder.op("stack", self.new[node.inputs[position]], loc), name
            return stacked[position]

        # Few terms are multiplied one by one; many are faster as products of matrices.
        level = self.ring.levels // 2
        one_by_one = self.costs.mul_plain_ms(self.ring, level) * sum(map(len, terms)) <= sum(
            self.costs.weighted_sums_ms(self.ring, level, *matrix.shape)
            for matrix, own in zip(matrices, weighted, strict=True)
            if own
        )
        made: list[Node] = []
        for row, (total, own, offset) in enumerate(zip(totals, terms, offsets.tolist(), strict=True)):
            if total is None and not own:
                # A row of zeros is a ciphertext of zeros.
                value = self.new[node.inputs[0]][0]
                parts = [builder.op("sub_ct", (value, value), loc)]
            elif own and one_by_one:
                values = [self.new[node.inputs[position]][column] for position, column, _ in own]
                weights = tuple(weight for *_, weight in own)
                parts, offset = [builder.op("lincomb", values, loc, weights=weights, constant=offset)], 0.0
            else:
                stacks = [stack(position) for position in sorted({position for position, *_ in own})]
                parts = [builder.op("weighted_sum", (of,), loc, matrix=name, row=row) for of, name in stacks]
            for part in parts:
                total = part if total is None else builder.op("add_ct", (total, part), loc)
            assert total is not None
            made.append(builder.op("add_scalar", (total,), loc, value=offset) if offset else total)
        return made

    def _transform(
        self,
        node: Node,
        geometry: MapGeometry,
        maps: Sequence[tuple[Node, Any, Layout]],
        out: Layout,
        chunk: int,
    ) -> Node:
        """One ciphertext of the sum of maps of this geometry, still as partial sums.

        The terms of a row are spread over a run of slots; `_summed` adds them up.
        """
        steps = self.plans.steps(node, [(name, of) for _, name, of in maps], out, thorough=True)[1]
        operands, names, used = [], [], set()
        for operand, name, of in maps:
            for (o, i), matrix in self.plans.blocks(name, of, out).items():
                if o != chunk:
                    continue
                operands.append(self.new[operand][i])
                names.append(self.builder.constant(matrix, str(name)))
                if out.shift:
                    offsets = [offset // self.batch for offset in diagonal_offsets(matrix, geometry)]
                else:
                    offsets = self.plans.offsets(name, of, out)[o, i].tolist()
                for g, pairs in pair_offsets(offsets, steps.baby, steps.giant, geometry.modulus).items():
                    used |= {(b, g) for b, _ in pairs}
        if not operands:
            # No operand reaches these rows: the map is zero.
            zero = SparseMatrix.of(np.zeros((geometry.out_period, geometry.in_period)))
            operands, names = [self.new[maps[0][0]][0]], [self.builder.constant(zero, "nothing.matrix")]
        return self.builder.op(
            "linear_transform",
            operands,
            node.loc,
            matrices=tuple(names),
            geometry=geometry,
            baby_steps=tuple(sorted({b * self.batch for b, _ in used})),
            giant_steps=tuple(sorted({g * self.batch for _, g in used})),
        )

    def _summed(self, node: Node, partial: Sequence[tuple[int, Node]], period: int) -> Node:
        """The total of partial sums that are spread over runs of slots, in every slot of its row."""
        run = max(run for run, _ in partial)
        total: Node | None = None
        while True:
            for _, made in (item for item in partial if item[0] == run):
                total = made if total is None else self.builder.op("add_ct", (total, made), node.loc)
            assert total is not None
            if run == period:
                return total
            run //= 2
            total = self.builder.op("add_ct", (total, self._rotate(total, run, node)), node.loc)

    def _add_plain(self, values: Sequence[Node], tensor: Array, layout: Layout, node: Node, name: Any) -> list[Node]:
        flat = np.zeros(layout.ciphertexts * layout.period)
        flat[layout.places()] = tensor.ravel()
        made = []
        for chunk, value in zip(flat.reshape(-1, layout.period), values, strict=True):
            if self.slots == 1:
                number = float(chunk[0])
                made.append(self.builder.op("add_scalar", (value,), node.loc, value=number) if number else value)
                continue
            constant = self.builder.constant(
                np.repeat(chunk[layout.positions[: layout.run]], self.batch), f"{name}.slots"
            )
            made.append(self.builder.op("add_plain", (value,), node.loc, value=constant))
        return made

    def sum(self, node: Node) -> list[Node]:
        """A sum or a difference; one operand may be plain, known at compile time or at run time."""
        new, layout = self.new, self.layout(node)
        left, right = node.inputs
        if in_the_clear(left) or in_the_clear(right):
            known, value = (right, left) if in_the_clear(right) else (left, right)
            operands, vectors = new[value], self._packed(known, layout)
            if node.op == "sub" and known is left:
                operands = self._negated(operands, node)
            elif node.op == "sub":
                vectors = self._negated(vectors, node)
            return self._each("add_pt", operands, vectors, node)
        if right.op == "constant" or left.op == "constant":
            constant, value = (right, left) if right.op == "constant" else (left, right)
            array = np.broadcast_to(self.builder.context.array(constant.attrs["value"]), shape_of(node))
            operands = new[value]
            if node.op == "sub":
                array = -array if constant is right else array
                operands = operands if constant is right else self._negated(operands, node)
            if not array.any():
                return operands
            return self._add_plain(operands, array, layout, node, constant.attrs["value"])
        return self._each("add_ct" if node.op == "add" else "sub_ct", new[left], new[right], node)


# How the secret values of a polynomial program are packed: as slot vectors, one for each ciphertext.
RULES: Mapping[str, Callable[[_Packer, Node], list[Node]]] = {
    "input": _Packer.input,
    "affine": _Packer.affine,
    "poly": _Packer.poly,
    "add": _Packer.sum,
    "sub": _Packer.sum,
    "mul": _Packer.product,
    "matrix_product": _Packer.matrix_product,
    "roll_rows": _Packer.roll_rows,
    "sum_rows": _Packer.sum_rows,
    "sum_runs": _Packer.sum_runs,
    **dict.fromkeys(("reshape", "pad_rows", "crop_rows", "equal_row", "repeat_row"), _Packer.unmoved),
}
