"""Choose where every tensor stands in the slots, and turn maps into diagonals.

All values that meet in a sum, a product or a polynomial share one layout; maps lead from layout to layout. Layouts are
chosen by the cost of the maps around them, improved one group at a time until nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import networkx
import numpy as np

from heliograph.errors import InternalError, PlanningError, UnsupportedError
from heliograph.ir import Array, Builder, Node, Program, SparseMatrix, Stage, TensorType
from heliograph.ir.diagonals import make_diagonal_map, shift_for
from heliograph.ir.layout import Layout
from heliograph.ir.node import next_power_of_two
from heliograph.ir.row_ops import ROW_OPS
from heliograph.passes.bsgs import Steps, plan_steps
from heliograph.passes.depth import levels_below
from heliograph.target import BUILT_IN, CostTable, Ring

_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Pack:
    """Tensors become slot vectors; `affine` becomes `linear_transform` and rotations."""

    ring: Ring
    costs: CostTable = field(default=BUILT_IN)

    name: ClassVar[str] = "pack"
    needs: ClassVar[Stage] = Stage.POLYNOMIAL
    makes: ClassVar[Stage] = Stage.PACKED

    def run(self, program: Program) -> Program:
        return _Packer(program, self.ring, self.costs).run()


class _Packer:
    def __init__(self, program: Program, ring: Ring, costs: CostTable) -> None:
        self.program, self.ring, self.costs = program, ring, costs
        self.slots = ring.slots
        self.builder = Builder(program.name, Stage.PACKED, program)
        self.below = levels_below(program)
        self.users = program.users()
        self.group: dict[Node, int] = {}
        self.members: list[list[Node]] = []
        self._group_nodes()
        # (matrix, layout in, layout out, level) -> plan; the same question comes up in every round.
        self.known: dict[Any, tuple[float, Steps, Layout]] = {}
        self.positioned: dict[Any, SparseMatrix] = {}
        # The plain nodes of the packed program.
        self.clear: dict[Node, Node] = {}

    # ------------------------------------------------------------------------------------------ layouts

    def _group_nodes(self) -> None:
        graph: networkx.Graph = networkx.Graph()
        graph.add_nodes_from(node for node in self.program.nodes if not _in_the_clear(node))
        for node in graph:
            # Rows keep their places or have places of their own: see `_pinned`.
            if node.op not in ("affine", "input", "constant") and (node.op not in ROW_OPS or node.op == "roll_rows"):
                graph.add_edges_from((node, operand) for operand in node.inputs if not _in_the_clear(operand))
        order = {node: i for i, node in enumerate(self.program.nodes)}
        components = [sorted(c, key=order.__getitem__) for c in networkx.connected_components(graph)]
        for members in sorted(components, key=lambda c: order[c[0]]):
            for node in members:
                self.group[node] = len(self.members)
            self.members.append(members)

    def _shape(self, members: list[Node]) -> tuple[int, ...]:
        """The richest shape in a group: a spatial one where there is one."""
        shapes = [node.type.shape for node in members if isinstance(node.type, TensorType)]
        return max(shapes, key=lambda shape: (len(shape) in (2, 3), len(shape)))

    def _pinned(self) -> dict[int, Layout]:
        """The layouts that ops on rows fix: a row in as many slots as the next power of two holds columns."""
        pinned: dict[int, Layout] = {}
        for node in self.program.nodes:
            for member in (node, *node.inputs) if node.op in ROW_OPS else ():
                assert isinstance(member.type, TensorType)
                shape, number = member.type.shape, self.group[member]
                columns = shape[-1]
                block = next_power_of_two(columns)
                rows = Layout(shape, self.slots, 1, width=columns, block=block) if len(shape) == 2 else None
                layout = self._layout(rows or Layout(shape, self.slots, 1))
                if pinned.setdefault(number, layout) != layout:
                    raise InternalError(f"rows of two shapes share a layout: {pinned[number].shape} and {shape}")
        return pinned

    def _candidates(self) -> list[list[Layout]]:
        pinned = self._pinned()
        shapes = [self._shape(members) for members in self.members]
        frames = {(shape[-2], shape[-1]) for shape in shapes if len(shape) == 3}
        frames |= {(1, shape[-1]) for shape in shapes if len(shape) == 2}
        table = []
        for number, shape in enumerate(shapes):
            layouts = [pinned.get(number) or self._layout(Layout(shape, self.slots, 1))]
            if len(shape) in (2, 3) and number not in pinned:
                rows, columns = (shape[-2] if len(shape) == 3 else 1), shape[-1]
                for frame_rows, frame_columns in sorted(frames):
                    gap = 1
                    while rows * gap <= max(frame_rows, gap if rows == 1 else 0) and columns * gap <= frame_columns:
                        area = max(frame_rows, rows * gap) * frame_columns
                        for block in {area, next_power_of_two(area)}:
                            layouts.append(self._layout(Layout(shape, self.slots, 1, 0, gap, frame_columns, block)))
                        gap *= 2
            fitting = [layout for layout in dict.fromkeys(layouts) if layout.period <= self.slots]
            if not fitting:
                smallest = min(layout.period for layout in layouts)
                raise PlanningError(
                    f"a tensor of shape {shape} needs {smallest} slots; ring 2^{self.ring.log_ring} has {self.slots}",
                    hint="tensors larger than one ciphertext are not carried yet",
                )
            table.append(sorted(fitting, key=lambda layout: (layout.period, layout.gap, layout.block)))
        return table

    def _layout(self, layout: Layout) -> Layout:
        """The layout with its period: the least power of two that holds every place."""
        return replace(layout, period=next_power_of_two(int(layout.places().max()) + 1))

    def _choose(self) -> list[Layout]:
        candidates = self._candidates()
        chosen = [layouts[0] for layouts in candidates]
        maps = [node for node in self.program.nodes if node.op == "affine" and node.type.secret]
        around: list[list[Node]] = [[] for _ in self.members]
        for node in maps:
            for number in {self.group[node], *(self.group[operand] for operand in node.inputs)}:
                around[number].append(node)

        def price(number: int) -> float:
            # Products and polynomials cost the same in every layout.
            return sum(self._map_cost(node, chosen) for node in around[number])

        for _ in range(_ROUNDS):
            before = list(chosen)
            for number, layouts in enumerate(candidates):
                if len(layouts) == 1:
                    continue
                prices = []
                for layout in layouts:
                    chosen[number] = layout
                    prices.append(price(number))
                chosen[number] = layouts[int(np.argmin(prices))]
            if chosen == before:
                break
        return chosen

    def _map_cost(self, node: Node, chosen: list[Layout]) -> float:
        out = chosen[self.group[node]]
        total = 0.0
        for operand, name in zip(node.inputs, node.attrs["matrices"], strict=True):
            total += self._transform(node, operand, name, chosen[self.group[operand]], out)[0]
        return total

    def _shifted(self, operand: Node, layout: Layout, out: Layout) -> Layout | None:
        """The layout with shifted copies, for an input that one map reads; the client packs that for nothing."""
        users = self.users[operand]
        if operand.op != "input" or len(self.members[self.group[operand]]) > 1 or len(users) > 1:
            return None
        if operand in self.program.outputs:
            return None
        shift, run = shift_for(self.slots, layout.period, out.period)
        return replace(layout, shift=shift, run=run) if shift else None

    def _position_matrix(self, name: Any, layout: Layout, out: Layout) -> SparseMatrix:
        key = (name, _plain(layout), out)
        if key not in self.positioned:
            matrix = self.program.matrix(name)
            rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
            import scipy.sparse

            self.positioned[key] = SparseMatrix.of(
                scipy.sparse.csr_array(
                    (matrix.data, (out.places()[rows], layout.places()[matrix.indices])),
                    shape=(out.period, layout.period),
                )
            )
        return self.positioned[key]

    def _transform(
        self, node: Node, operand: Node, name: Any, layout: Layout, out: Layout
    ) -> tuple[float, Steps, Layout]:
        """Cost, steps and the operand's layout (perhaps shifted) of one map."""
        level = max(1, self.below[node] + 1)
        key = (name, operand, layout, out, level)
        if key in self.known:
            return self.known[key]
        matrix = self._position_matrix(name, layout, out)
        best: tuple[float, Steps, Layout] | None = None
        for candidate in (layout, self._shifted(operand, layout, out)):
            if candidate is None:
                continue
            offsets = make_diagonal_map(matrix, self.slots, layout.period, out.period, candidate.shift).offsets
            steps = plan_steps(offsets or (0,), self.slots, self.ring, level, self.costs)
            sums = (_run(candidate, out) // out.period).bit_length() - 1
            # The partial sums are added after the rescale, one level lower.
            cost = steps.cost_ms + sums * self.costs.rotate_ms(self.ring, level - 1)
            if best is None or cost < best[0]:
                best = (cost, steps, candidate)
        assert best is not None
        self.known[key] = best
        return best

    # ------------------------------------------------------------------------------------------ emission

    def run(self) -> Program:
        program, builder = self.program, self.builder
        chosen = self._choose()
        # An input's layout takes the shift that its map wants.
        for node in program.nodes:
            if node.op == "affine" and node.type.secret:
                out = chosen[self.group[node]]
                for operand, name in zip(node.inputs, node.attrs["matrices"], strict=True):
                    number = self.group[operand]
                    chosen[number] = self._transform(node, operand, name, _plain(chosen[number]), out)[2]
        new: dict[Node, Node] = {}
        intervals: dict[str, Any] = {}
        for node in program.nodes:
            if _in_the_clear(node):
                self.clear[node] = self._copied(node)
                continue
            layout = chosen[self.group[node]]
            if node.op == "constant":
                continue
            if node.op == "input":
                new[node] = self._input(node, layout)
            elif node.op == "affine":
                new[node] = self._affine(node, new, chosen)
            elif node.op == "poly":
                new[node] = builder.op(
                    "poly",
                    (new[node.inputs[0]],),
                    node.loc,
                    coefficients=node.attrs["coefficients"],
                    low=-1.0,
                    high=1.0,
                    range=node.attrs.get("range"),
                )
                if "range" in node.attrs:
                    intervals[str(node.attrs["range"])] = layout.to_json()
            elif node.op in ("reshape", "pad_rows", "crop_rows", "equal_row", "repeat_row"):
                new[node] = new[node.inputs[0]]
            elif node.op in ("sum_rows", "roll_rows"):
                new[node] = self._rows(node, new[node.inputs[0]], chosen[self.group[node.inputs[0]]])
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
                "layout": chosen[self.group[node]].to_json(),
            }
            for node in program.inputs
            if node.type.secret
        ]
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
            outputs[name] = new[node]
            specs.append({"name": name, "shape": list(node.type.shape), "layout": chosen[self.group[node]].to_json()})
        metadata["outputs"] = specs
        return builder.finish(outputs)

    def _copied(self, node: Node) -> Node:
        """A node that the server computes in the clear, as it is."""
        if node.op == "input":
            self.builder.inputs.append(node)
            return node
        return self.builder.copy(node, [self.clear.get(operand, operand) for operand in node.inputs])

    def _packed(self, node: Node, layout: Layout) -> Node:
        """The slot vector of a plain run-time value beside ciphertexts of that layout."""
        attrs = {key: getattr(layout, key) for key in ("shape", "slots", "period", "gap", "width", "block")}
        return self.builder.op("pack", (self.clear[node],), node.loc, **attrs)

    def _rows(self, node: Node, value: Node, layout: Layout) -> Node:
        """Rotations by whole rows; the sum of all rows lands in each of them."""
        if node.op == "roll_rows":
            amount = node.attrs["amount"] * layout.block % layout.period
            return self.builder.op("rotate", (value,), node.loc, amount=amount) if amount else value
        step = layout.period // 2
        while step >= layout.block:
            turned = self.builder.op("rotate", (value,), node.loc, amount=step)
            value = self.builder.op("add_ct", (value, turned), node.loc)
            step //= 2
        return value

    def _product(self, node: Node, new: Mapping[Node, Node], layout: Layout) -> Node:
        left, right = node.inputs
        if _in_the_clear(left):
            left, right = right, left
        if _in_the_clear(right):
            return self.builder.op("mul_pt", (new[left], self._packed(right, layout)), node.loc)
        return self.builder.op("mul_ct", (new[left], new[right]), node.loc)

    def _input(self, node: Node, layout: Layout) -> Node:
        return self.builder.input(
            node.attrs["name"],
            node.loc,
            slots=self.slots,
            chunk=0,
            low=node.attrs.get("low"),
            high=node.attrs.get("high"),
        )

    def _affine(self, node: Node, new: Mapping[Node, Node], chosen: list[Layout]) -> Node:
        builder, out = self.builder, chosen[self.group[node]]
        partial: list[tuple[int, Node]] = []
        for operand, name in zip(node.inputs, node.attrs["matrices"], strict=True):
            layout = chosen[self.group[operand]]
            steps = self._transform(node, operand, name, _plain(layout), out)[1]
            matrix = self._position_matrix(name, layout, out)
            made = builder.op(
                "linear_transform",
                (new[operand],),
                node.loc,
                matrix=builder.constant(matrix, str(name)),
                in_period=layout.period,
                in_shift=layout.shift,
                out_period=out.period,
                baby_steps=steps.baby,
                giant_steps=steps.giant,
            )
            partial.append((_run(layout, out), made))
        run = max(run for run, _ in partial)
        total: Node | None = None
        while True:
            for _, made in (item for item in partial if item[0] == run):
                total = made if total is None else builder.op("add_ct", (total, made), node.loc)
            assert total is not None
            if run == out.period:
                break
            run //= 2
            total = builder.op("add_ct", (total, builder.op("rotate", (total,), node.loc, amount=run)), node.loc)
        if "bias" in node.attrs:
            total = self._add_plain(total, builder.context.array(node.attrs["bias"]), out, node, node.attrs["bias"])
        return total

    def _add_plain(self, value: Node, tensor: Array, layout: Layout, node: Node, name: Any) -> Node:
        flat = np.zeros(layout.period)
        flat[layout.places()] = tensor.ravel()
        constant = self.builder.constant(flat, f"{name}.slots")
        return self.builder.op("add_plain", (value,), node.loc, value=constant)

    def _sum(self, node: Node, new: Mapping[Node, Node], layout: Layout) -> Node:
        left, right = node.inputs
        if _in_the_clear(left) or _in_the_clear(right):
            known, value = (right, left) if _in_the_clear(right) else (left, right)
            operand, vector = new[value], self._packed(known, layout)
            if node.op == "sub" and known is left:
                operand = self.builder.op("negate", (operand,), node.loc)
            elif node.op == "sub":
                vector = self.builder.op("negate", (vector,), node.loc)
            return self.builder.op("add_pt", (operand, vector), node.loc)
        if right.op == "constant" or left.op == "constant":
            constant, value = (right, left) if right.op == "constant" else (left, right)
            assert isinstance(node.type, TensorType)
            array = np.broadcast_to(self.builder.context.array(constant.attrs["value"]), node.type.shape)
            operand = new[value]
            if node.op == "sub":
                array = -array if constant is right else array
                operand = operand if constant is right else self.builder.op("negate", (operand,), node.loc)
            if not array.any():
                return operand
            return self._add_plain(operand, array, layout, node, constant.attrs["value"])
        op = "add_ct" if node.op == "add" else "sub_ct"
        return self.builder.op(op, (new[left], new[right]), node.loc)


def _in_the_clear(node: Node) -> bool:
    """Whether the server computes this value at run time, from plain inputs (constants are known before)."""
    return not node.type.secret and node.op != "constant"


def _plain(layout: Layout) -> Layout:
    """The layout with all copies alike."""
    return replace(layout, shift=0, run=0)


def _run(layout: Layout, out: Layout) -> int:
    """The slots over which the terms of one row are spread."""
    return layout.run or max(layout.period, out.period)
