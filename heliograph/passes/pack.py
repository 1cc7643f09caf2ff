"""Turn tensors into slot vectors and maps into diagonals, in the layouts that cost least (passes/choose_layouts.py).

A value is a list of slot vectors, one per ciphertext. A map has a block for each pair of a result's and an operand's
ciphertext; baby steps of an operand serve all its blocks, giant steps of a result are taken after its blocks are added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from heliograph.errors import InternalError, PlanningError, UnsupportedError
from heliograph.ir import Array, Builder, Node, Program, SparseMatrix, Stage, TensorType
from heliograph.ir.diagonals import copies_fit, make_diagonal_map, modulus_of, positions_in_slots, shift_for
from heliograph.ir.layout import Layout
from heliograph.passes.bsgs import StepCosts, Steps, pair_offsets, plan_steps
from heliograph.passes.choose_layouts import (
    candidate_layouts,
    choose_layouts,
    group_values,
    in_the_clear,
    largest_batch,
)
from heliograph.passes.depth import levels_below, program_depth
from heliograph.passes.map_offsets import MapOffsets
from heliograph.target import BUILT_IN, CostTable, Ring

# Where a program is deeper than the chain, maps stand between a bootstrap and its polynomial's levels: about here.
_LEVEL_BETWEEN_BOOTSTRAPS = 4
# Shifted copies are worked out in tables of all pairs of places.
_MOST_SHIFTED_PAIRS = 1 << 22


@dataclass(frozen=True, slots=True)
class Pack:
    """Tensors become slot vectors; `affine` becomes `linear_transform` and rotations.

    `batch`: so many samples (a power of two) side by side in the same ciphertexts, or "max" for as many as fit.
    """

    ring: Ring
    costs: CostTable = field(default=BUILT_IN)
    batch: int | str = 1

    name: ClassVar[str] = "pack"
    needs: ClassVar[Stage] = Stage.POLYNOMIAL
    makes: ClassVar[Stage] = Stage.PACKED

    def run(self, program: Program) -> Program:
        room = largest_batch(program, self.ring.slots) if self.batch != 1 else 1
        batch = room if self.batch == "max" else int(self.batch)
        if batch > room:
            raise PlanningError(
                f"{batch} samples do not fit side by side: ring 2^{self.ring.log_ring} has room for {room}",
                hint='use a smaller batch, or batch="max"',
            )
        return _Packer(program, self.ring, self.costs, batch).run()


class _Packer:
    def __init__(self, program: Program, ring: Ring, costs: CostTable, batch: int) -> None:
        self.program, self.ring, self.costs, self.batch = program, ring, costs, batch
        # The slots of one sample.
        self.slots = ring.slots // batch
        self.builder = Builder(program.name, Stage.PACKED, program)
        self.below = levels_below(program)
        self.deep = program_depth(program) > ring.levels
        self.users = program.users()
        self.groups = group_values(program)
        self.offsets = MapOffsets(self.slots)
        # The same question comes up for many maps: those of equal structure between equal layouts.
        self.known: dict[Any, tuple[float, Steps]] = {}
        self.positioned: dict[Any, Mapping[tuple[int, int], SparseMatrix]] = {}
        # The plain nodes of the packed program.
        self.clear: dict[Node, Node] = {}

    # ------------------------------------------------------------------------------------------ prices

    def _level(self, node: Node) -> int:
        level = max(1, self.below[node] + 1)
        return min(level, _LEVEL_BETWEEN_BOOTSTRAPS) if self.deep else level

    def _cost(self, node: Node, operand: Node, name: Any, layout: Layout, out: Layout) -> float:
        """The price of one map, by the splits that are quickly found."""
        cost = self._steps(node, [(name, layout)], out, thorough=False)[0]
        shifted = self._shifted(operand, layout, out)
        if shifted is not None and self.program.matrix(name).data.size:
            cost = min(cost, self._shifted_steps(node, name, shifted, out)[0])
        return cost

    def _steps(
        self, node: Node, maps: Sequence[tuple[Any, Layout]], out: Layout, *, thorough: bool
    ) -> tuple[float, Steps]:
        """Cost and steps of maps whose operands have one period, with the rotations that add up partial sums."""
        if not copies_fit(self.slots, *_periods(maps[0][1], out)):
            return math.inf, Steps((), (), math.inf)
        level = self._level(node)
        structures = tuple((self.offsets.structure(self.program.matrix(name)), layout) for name, layout in maps)
        key = (structures, out, level, thorough)
        if key not in self.known:
            blocks = [
                offsets
                for name, layout in maps
                for offsets in self._offsets(name, layout, out).values()
                if offsets.size
            ]
            steps = plan_steps(
                np.unique(np.concatenate(blocks)).tolist() if blocks else (0,),
                self.slots,
                StepCosts.at(self.ring, level, self.costs, self.deep),
                modulus=self._modulus(maps[0][1], out),
                strides=_strides([*(layout for _, layout in maps), out]) if thorough else (),
                inputs=sum(layout.ciphertexts for _, layout in maps),
                outputs=out.ciphertexts,
                products=sum(offsets.size for offsets in blocks),
                thorough=thorough,
            )
            sums = (_spread(maps[0][1], out) // (out.run or out.period)).bit_length() - 1
            # The partial sums are added after the rescale, one level lower.
            cost = steps.cost_ms + out.ciphertexts * sums * self.costs.rotate_ms(self.ring, level - 1)
            self.known[key] = cost, steps
        return self.known[key]

    def _modulus(self, layout: Layout, out: Layout) -> int:
        in_period, out_period, *copies = _periods(layout, out)
        return modulus_of(self.slots, in_period, out_period, 0, *copies)

    def _offsets(self, name: Any, layout: Layout, out: Layout) -> Mapping[tuple[int, int], Array]:
        return self.offsets.blocks(self.program.matrix(name), layout, out)

    def _shifted(self, operand: Node, layout: Layout, out: Layout) -> Layout | None:
        """The layout with shifted copies, for an input that one map reads; the client packs that for nothing."""
        users = self.users[operand]
        if operand.op != "input" or len(self.groups.members[self.groups.of[operand]]) > 1 or len(users) > 1:
            return None
        if operand in self.program.outputs or layout.ciphertexts > 1 or out.ciphertexts > 1:
            return None
        if layout.period * out.period > _MOST_SHIFTED_PAIRS or out.shift:
            return None
        shift, run = shift_for(self.slots, layout.period, out.period)
        return replace(layout, shift=shift, run=run) if shift else None

    def _shifted_steps(self, node: Node, name: Any, layout: Layout, out: Layout) -> tuple[float, Steps]:
        level = self._level(node)
        key = (name, layout, out, level)
        if key not in self.known:
            matrix = self._blocks(name, layout, out)[0, 0]
            offsets = make_diagonal_map(matrix, self.slots, layout.period, out.period, layout.shift).offsets
            prices = StepCosts.at(self.ring, level, self.costs, self.deep)
            steps = plan_steps(offsets or (0,), self.slots, prices)
            sums = (layout.run // out.period).bit_length() - 1
            self.known[key] = steps.cost_ms + sums * self.costs.rotate_ms(self.ring, level - 1), steps
        return self.known[key]

    def _blocks(self, name: Any, layout: Layout, out: Layout) -> Mapping[tuple[int, int], SparseMatrix]:
        """The matrix in positions, by block: (ciphertext of the result, ciphertext of the operand)."""
        key = (name, _plain(layout), _plain(out))
        if key not in self.positioned:
            self.positioned[key] = _in_positions(self.program.matrix(name), layout, out)
        return self.positioned[key]

    # ------------------------------------------------------------------------------------------ emission

    def run(self) -> Program:
        program, builder, of = self.program, self.builder, self.groups.of
        # Where values are bootstrapped, full slots cost twice what half of them do.
        most_moved = self.slots // 2 if self.deep else self.slots
        candidates = candidate_layouts(program, self.groups, self.ring.slots, self.batch, most_moved)
        chosen = choose_layouts(program, self.groups, candidates, self._cost)
        # An input's layout takes the shift that its map wants.
        for node in program.nodes:
            for operand, name in zip(node.inputs, node.attrs.get("matrices", ()), strict=False):
                layout, out = chosen[of.get(operand, 0)], chosen[of.get(node, 0)]
                shifted = self._shifted(operand, layout, out) if node.type.secret else None
                if shifted is None or not program.matrix(name).data.size:
                    continue
                cost = self._steps(node, [(name, layout)], out, thorough=True)[0]
                if self._shifted_steps(node, name, shifted, out)[0] < cost:
                    chosen[of[operand]] = shifted
        new: dict[Node, list[Node]] = {}
        intervals: dict[str, Any] = {}
        for node in program.nodes:
            if in_the_clear(node):
                self.clear[node] = self._copied(node)
                continue
            layout = chosen[of[node]]
            if node.op == "constant":
                continue
            if node.op == "input":
                new[node] = self._input(node, layout)
            elif node.op == "affine":
                new[node] = self._affine(node, new, chosen)
            elif node.op == "poly":
                new[node] = self._poly(node, new[node.inputs[0]])
                if "range" in node.attrs:
                    intervals[str(node.attrs["range"])] = layout.to_json()
            elif node.op in ("reshape", "pad_rows", "crop_rows", "equal_row", "repeat_row"):
                new[node] = new[node.inputs[0]]
            elif node.op in ("sum_rows", "roll_rows"):
                new[node] = [self._rows(node, new[node.inputs[0]][0], chosen[of[node.inputs[0]]])]
            elif node.op in ("add", "sub"):
                new[node] = self._sum(node, new, layout)
            elif node.op == "mul":
                new[node] = self._product(node, new, layout)
            else:
                raise InternalError(f"pack does not know {node.op}")
        metadata = builder.metadata
        metadata["range_layouts"] = intervals
        metadata["inputs"] = [
            {
                "name": node.attrs["name"],
                "shape": list(node.attrs["shape"]),
                "low": node.attrs.get("low"),
                "high": node.attrs.get("high"),
                "layout": chosen[of[node]].to_json(),
            }
            for node in program.inputs
            if node.type.secret
        ]
        if self.batch > 1:
            metadata["batch"] = self.batch
        outputs: dict[str, Node] = {}
        specs: list[dict[str, Any]] = []
        for name, node in zip(program.output_names, program.outputs, strict=True):
            if node not in new:
                raise UnsupportedError(
                    f"output {name!r} does not depend on any encrypted input",
                    where=node.loc,
                    hint="compute it outside of the program, and return it in the clear",
                )
            assert isinstance(node.type, TensorType)
            for chunk, vector in enumerate(new[node]):
                outputs[name if len(new[node]) == 1 else f"{name}/{chunk}"] = vector
            specs.append({"name": name, "shape": list(node.type.shape), "layout": chosen[of[node]].to_json()})
        metadata["outputs"] = specs
        return builder.finish(outputs)

    def _copied(self, node: Node) -> Node:
        """A node that the server computes in the clear, as it is."""
        if node.op == "input":
            self.builder.inputs.append(node)
            return node
        return self.builder.copy(node, [self.clear.get(operand, operand) for operand in node.inputs])

    def _chunk(self, chunk: int, of: int) -> int | None:
        """The attribute that says which ciphertext of a value of several a node is."""
        return chunk if of > 1 else None

    def _packed(self, node: Node, layout: Layout) -> list[Node]:
        """The slot vectors of a plain run-time value beside ciphertexts of that layout."""
        attrs = {key: getattr(layout, key) for key in ("shape", "slots", "period", "gap", "width", "block")}
        attrs["stride"] = layout.stride if layout.stride > 1 else None
        count = layout.ciphertexts
        return [
            self.builder.op("pack", (self.clear[node],), node.loc, **attrs, chunk=self._chunk(chunk, count))
            for chunk in range(count)
        ]

    def _rotate(self, value: Node, amount: int, node: Node) -> Node:
        return self.builder.op("rotate", (value,), node.loc, amount=amount * self.batch)

    def _rows(self, node: Node, value: Node, layout: Layout) -> Node:
        """Rotations by whole rows; the sum of all rows lands in each of them."""
        if node.op == "roll_rows":
            amount = node.attrs["amount"] * layout.block % layout.period
            return self._rotate(value, amount, node) if amount else value
        step = layout.period // 2
        while step >= layout.block:
            value = self.builder.op("add_ct", (value, self._rotate(value, step, node)), node.loc)
            step //= 2
        return value

    def _poly(self, node: Node, values: Sequence[Node]) -> list[Node]:
        attrs = {"coefficients": node.attrs["coefficients"], "low": -1.0, "high": 1.0, "range": node.attrs.get("range")}
        return [
            self.builder.op("poly", (value,), node.loc, **attrs, chunk=self._chunk(chunk, len(values)))
            for chunk, value in enumerate(values)
        ]

    def _product(self, node: Node, new: Mapping[Node, list[Node]], layout: Layout) -> list[Node]:
        left, right = node.inputs
        if in_the_clear(left):
            left, right = right, left
        if in_the_clear(right):
            return self._each("mul_pt", new[left], self._packed(right, layout), node)
        return self._each("mul_ct", new[left], new[right], node)

    def _each(self, op: str, left: Sequence[Node], right: Sequence[Node], node: Node) -> list[Node]:
        return [self.builder.op(op, pair, node.loc) for pair in zip(left, right, strict=True)]

    def _negated(self, values: Sequence[Node], node: Node) -> list[Node]:
        return [self.builder.op("negate", (value,), node.loc) for value in values]

    def _input(self, node: Node, layout: Layout) -> list[Node]:
        return [
            self.builder.input(
                node.attrs["name"],
                node.loc,
                slots=self.ring.slots,
                chunk=chunk,
                low=node.attrs.get("low"),
                high=node.attrs.get("high"),
            )
            for chunk in range(layout.ciphertexts)
        ]

    def _affine(self, node: Node, new: Mapping[Node, list[Node]], chosen: Sequence[Layout]) -> list[Node]:
        out = chosen[self.groups.of[node]]
        # Operands of one period share giant steps and the rotations that add up partial sums.
        alike: dict[tuple[int, int], list[tuple[Node, Any, Layout]]] = {}
        for operand, name in zip(node.inputs, node.attrs["matrices"], strict=True):
            layout = chosen[self.groups.of[operand]]
            alike.setdefault((layout.period, layout.run), []).append((operand, name, layout))
        partial: list[tuple[int, list[Node]]] = []
        for maps in alike.values():
            layout = maps[0][2]
            partial.append(
                (_spread(layout, out), [self._transform(node, maps, new, out, o) for o in range(out.ciphertexts)])
            )
        made = [
            self._summed(node, [(run, vectors[o]) for run, vectors in partial], out.run or out.period)
            for o in range(out.ciphertexts)
        ]
        if "bias" in node.attrs:
            made = self._add_plain(made, self.builder.context.array(node.attrs["bias"]), out, node, node.attrs["bias"])
        return made

    def _transform(
        self,
        node: Node,
        maps: Sequence[tuple[Node, Any, Layout]],
        new: Mapping[Node, list[Node]],
        out: Layout,
        chunk: int,
    ) -> Node:
        """One ciphertext of the partial sums of maps whose operands have one period."""
        layout = maps[0][2]
        # Only an input's copies are moved by the client, by amounts that its one map wants.
        shift = layout.shift if maps[0][0].op == "input" else 0
        if shift:
            steps = self._shifted_steps(node, maps[0][1], layout, out)[1]
        else:
            steps = self._steps(node, [(name, of) for _, name, of in maps], out, thorough=True)[1]
        modulus = self.slots if shift else self._modulus(layout, out)
        operands, names, used = [], [], set()
        for operand, name, of in maps:
            for (o, i), matrix in self._blocks(name, of, out).items():
                if o != chunk:
                    continue
                operands.append(new[operand][i])
                names.append(self.builder.constant(matrix, str(name)))
                if shift or out.shift:
                    copies = (1, out.copies_moved)
                    shape = (layout.period, out.period, shift, 1)
                    offsets = make_diagonal_map(matrix, self.slots, *shape, *copies).offsets
                else:
                    offsets = tuple(self._offsets(name, of, out)[o, i].tolist())
                for g, pairs in pair_offsets(offsets, steps.baby, steps.giant, modulus).items():
                    used |= {(b, g) for b, _ in pairs}
        if not operands:
            # Nothing reaches these rows: a map that is zero.
            zero = SparseMatrix.of(np.zeros((out.period, layout.period)))
            operands, names = [new[maps[0][0]][0]], [self.builder.constant(zero, "nothing.matrix")]
        return self.builder.op(
            "linear_transform",
            operands,
            node.loc,
            matrices=tuple(names),
            in_period=layout.period,
            in_shift=shift,
            out_period=out.period,
            in_copies=layout.copies_moved if layout.shift and not shift else None,
            out_copies=out.copies_moved if out.shift else None,
            stride=self.batch if self.batch > 1 else None,
            baby_steps=tuple(sorted({b * self.batch for b, _ in used})),
            giant_steps=tuple(sorted({g * self.batch for _, g in used})),
        )

    def _summed(self, node: Node, partial: Sequence[tuple[int, Node]], period: int) -> Node:
        """The sum of partial sums that are spread over runs of slots, in every slot of its row."""
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
            if layout.shift:
                chunk = chunk[positions_in_slots(layout.run, layout.period, layout.shift)]
            constant = self.builder.constant(np.repeat(chunk, self.batch), f"{name}.slots")
            made.append(self.builder.op("add_plain", (value,), node.loc, value=constant))
        return made

    def _sum(self, node: Node, new: Mapping[Node, list[Node]], layout: Layout) -> list[Node]:
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
            assert isinstance(node.type, TensorType)
            array = np.broadcast_to(self.builder.context.array(constant.attrs["value"]), node.type.shape)
            operands = new[value]
            if node.op == "sub":
                array = -array if constant is right else array
                operands = operands if constant is right else self._negated(operands, node)
            if not array.any():
                return operands
            return self._add_plain(operands, array, layout, node, constant.attrs["value"])
        return self._each("add_ct" if node.op == "add" else "sub_ct", new[left], new[right], node)


def _plain(layout: Layout) -> Layout:
    """The layout with all copies alike."""
    return replace(layout, shift=0, run=0)


def _periods(layout: Layout, out: Layout) -> tuple[int, int, int, int]:
    """The periods of a map between these layouts, and the copies that are moved on either side."""
    return layout.period, out.period, layout.copies_moved, out.copies_moved


def _spread(layout: Layout, out: Layout) -> int:
    """The slots over which the terms of one row are spread."""
    return max(layout.run or layout.period, out.run or out.period)


def _strides(layouts: Sequence[Layout]) -> list[int]:
    """The distances of neighbouring columns, rows and groups of channels in these layouts."""
    distances = set()
    for layout in layouts:
        _, rows, columns = layout.channels_rows_columns
        width = layout.width or columns * layout.gap
        distances |= {width, layout.block or rows * layout.gap * width}
    return sorted(distances)


def _in_positions(matrix: SparseMatrix, layout: Layout, out: Layout) -> dict[tuple[int, int], SparseMatrix]:
    """The blocks that hold entries, (ciphertext of the result, ciphertext of the operand), each in positions."""
    import scipy.sparse

    shape = (out.ciphertexts * out.period, layout.ciphertexts * layout.period)
    places_in, places_out = layout.places(), out.places()
    if shape == matrix.shape and (np.diff(places_in) == 1).all() and (np.diff(places_out) == 1).all():
        whole = matrix
    else:
        # Rows are moved as they are; columns are renamed.
        order = np.argsort(places_out, kind="stable")
        lengths = np.diff(matrix.indptr)[order].astype(np.int64)
        indptr: Array = np.zeros(shape[0] + 1, dtype=np.int64)
        indptr[places_out[order] + 1] = lengths
        indptr = np.cumsum(indptr)
        starts = np.cumsum(lengths) - lengths
        gather = np.repeat(matrix.indptr[order] - starts, lengths) + np.arange(matrix.data.size)
        columns = places_in.astype(np.int32)[matrix.indices[gather]]
        csr = scipy.sparse.csr_array((matrix.data[gather], columns, indptr.astype(np.int32)), shape=shape)
        csr.sort_indices()
        whole = SparseMatrix(shape, csr.data, csr.indices, csr.indptr)
    if out.ciphertexts == layout.ciphertexts == 1:
        return {(0, 0): whole} if whole.data.size else {}
    blocks = {}
    csr = whole.csr()
    for o in range(out.ciphertexts):
        rows = csr[o * out.period : (o + 1) * out.period]
        for i in range(layout.ciphertexts):
            block = rows[:, i * layout.period : (i + 1) * layout.period]
            if block.nnz:
                blocks[o, i] = SparseMatrix.of(block)
    return blocks
