"""The homomorphic calls of each value of a packed program before its levels are planned, relative to the level of the
value.

They are counted by the rules for runs (execution/walk.py), on ciphertexts of one level. Shared rotations and digits,
and the places where sums of products are relinearized and rescaled, do not depend on levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from heliograph.approx.evaluate import SumStep, plan_polynomial
from heliograph.ckks.chains import Chain
from heliograph.ckks.parameters import Parameters
from heliograph.ckks.ring import Ring
from heliograph.execution.evaluator import Evaluator
from heliograph.execution.prices import SWITCH, Spent, Work
from heliograph.execution.protocol import Call
from heliograph.execution.walk import NoValues, Walk, descents, node_calls
from heliograph.ir import Builder, CipherType, Node, Program, SlotsType, Stage
from heliograph.ir.analysis.depth import levels_below, node_depth
from heliograph.ir.maps.diagonals import MapGeometry, diagonal_offsets
from heliograph.ir.maps.steps import Offsets
from heliograph.ir.ops.slots.runs import cipher
from heliograph.ir.ops.table import OPS, Role, role_of
from heliograph.passes.levels.lower_polynomials import LowerPolynomials
from heliograph.passes.levels.plan_levels import PlanLevels, unrescaled

# The level at which calls are counted; any would do.
_LEVEL = 1


def node_works(program: Program, slots: int) -> dict[Node, Work]:
    """The work of each secret value of a packed program, with the relinearization and the rescale that its readers
    need; bootstraps are not counted.
    """
    nodes = [node for node in program.nodes if node.type.secret]
    pending, keeps = unrescaled(nodes)
    counted, short, every = _as_ciphertexts(program, {node for node in keeps if pending[node]})
    parameters = Parameters((Chain(_ring(slots, _LEVEL)),))
    calls: Counter[Call] = Counter()
    walk = Walk(_Counted(replace(program, nodes=tuple(every), parameters=parameters)), calls)
    readers = program.users()
    polynomials: dict[str, Work] = {}
    works: dict[Node, Work] = {}
    for node in nodes:
        if node.op == "poly":
            name, depth = str(node.attrs["coefficients"]), node_depth(program, node)
            if name not in polynomials:
                polynomials[name] = polynomial_work(tuple(map(float, program.array(name))), depth)
            works[node] = polynomials[name]
            continue
        calls.clear()
        if node.op != "input" and role_of(node) not in (Role.BOOTSTRAP, Role.LEVEL):
            walk.count(counted[node])
        # A sum of products is rescaled once, at its last node; the products are one level above the sum's result.
        above = node_depth(program, node) - 1 if pending[node] else 0
        spent: dict[Spent, int] = {(call.primitive, above, call.size): number for call, number in calls.items()}
        if pending[node]:
            out, parts = node in program.outputs, cipher(counted[node]).parts
            rescaled = out or not all(reader in keeps and pending[reader] for reader in readers[node])
            relinearized = node in short or (out and parts > 2)
            both = rescaled and (relinearized or ("narrow", above, 2) in spent)
            if both:
                # The division by the special primes is that by the prime of the level too.
                spent.pop(("narrow", above, 2), None)
            if rescaled:
                spent["narrow_rescale" if both else "rescale", above, 2] = spent[SWITCH, above + 1, 2] = 1
            if relinearized:
                spent["relinearize_wide" if both else "relinearize", above, parts] = 1
        works[node] = Work.joined([spent])
    return works


def program_work(program: Program, slots: int) -> Work:
    """The work of all values of a program, relative to the level of its outputs."""
    below = levels_below(program)
    return Work.joined(
        {
            (primitive, down - below[node] - node_depth(program, node), size): number
            for (primitive, down, size), number in work.calls
        }
        for node, work in node_works(program, slots).items()
    )


def _ring(slots: int, levels: int) -> Ring:
    """A ring on which calls are counted; its primes do not matter."""
    return Ring((2 * slots).bit_length() - 1, 60, 50, levels, 1, None)


def _nothing(chain: Chain) -> Any:
    return NoValues()


class _Counted(Evaluator[Any]):
    """A program whose calls are counted. Its diagonals are not kept for later readers: most ways to lower a product are
    not taken.
    """

    def __init__(self, program: Program) -> None:
        self._offsets: dict[tuple[str, MapGeometry], Offsets] = {}
        super().__init__(program, _nothing, 0)

    def diagonals(self, node: Node) -> Any:
        """Only the offsets of the diagonals."""
        return [self._offsets_of(name, node.attrs["geometry"]) for name in node.attrs["matrices"]]

    def _offsets_of(self, name: str, geometry: MapGeometry) -> Offsets:
        if (name, geometry) not in self._offsets:
            found = diagonal_offsets(self.program.linear_map(name), geometry)
            self._offsets[name, geometry] = Offsets(found, geometry.modulus * geometry.samples)
        return self._offsets[name, geometry]


def _as_ciphertexts(program: Program, as_is: Collection[Node]) -> tuple[dict[Node, Node], dict[Node, Node], list[Node]]:
    """The nodes on ciphertexts of one level; the relinearized values of products; and the list of all nodes behind
    them, polynomials and bootstraps included, though these are not counted here.

    The nodes `as_is` read products that are not rescaled. A value that is read at several levels becomes one value per
    level: these share nothing.
    """
    made: dict[Node, Node] = {}
    short: dict[Node, Node] = {}
    every: list[Node] = []
    dropped: dict[tuple[Node, int], Node] = {}
    below = levels_below(program)

    def add(node: Node) -> Node:
        every.append(node)
        return node

    def read(operand: Node, level: int, reader: Node) -> Node:
        value = made[operand]
        if not operand.type.secret:
            return value
        kept, role = reader in as_is, role_of(reader)
        if cipher(value).parts > 2 and operand not in short and (not kept or role is Role.ROTATION):
            short[operand] = add(Node("relinearize", (value,), {}, replace(cipher(value), parts=2), operand.loc))
        if not (kept and role is Role.TRANSPARENT):
            # What was relinearized for one reader is not relinearized again with a sum.
            value = short.get(operand, value)
        if level == below[operand]:
            return value
        if (value, level) not in dropped:
            dropped[value, level] = add(Node("level_drop", (value,), {}, value.type, operand.loc))
        return dropped[value, level]

    for node in program.nodes:
        kind, attrs = node.type, dict(node.attrs)
        level = below[node] + node_depth(program, node)
        operands = tuple(read(operand, level, node) for operand in node.inputs)
        if isinstance(kind, SlotsType) and kind.secret:
            several = role_of(node) in (Role.SUM, Role.TRANSPARENT, Role.STACK)
            own = [operand.type.parts for operand in operands if isinstance(operand.type, CipherType)]
            parts = 3 if role_of(node) is Role.PRODUCT else max(own, default=2) if several else 2
            kind = CipherType(kind.slots, _LEVEL, 0.0, parts, count=kind.count)
        names = OPS[node.op].attrs
        if "plain_log_scales" in names:
            attrs["plain_log_scales"] = (0.0,) * len(operands)
        if "plain_log_scale" in names:
            attrs["plain_log_scale"] = 0.0
        made[node] = add(Node(node.op, operands, attrs, kind, node.loc))
    return made, short, every


# The work of polynomials by the steps of their plans, without the coefficients, and by depth.
_polynomials: dict[tuple[object, ...], Work] = {}


def polynomial_work(coefficients: tuple[float, ...], depth: int) -> Work:
    """The work of a polynomial of this depth on slots: as LowerPolynomials and PlanLevels write it out."""
    steps = tuple(
        (step.products, tuple(i for i, _ in step.weights), bool(step.constant)) if isinstance(step, SumStep) else step
        for step in plan_polynomial(coefficients).steps
    )
    if (steps, depth) not in _polynomials:
        builder = Builder("polynomial", Stage.PACKED)
        x = builder.input("x", slots=1 << 10, chunk=0)
        y = builder.op("poly", (x,), coefficients=builder.constant(coefficients), low=-1.0, high=1.0)
        lowered = LowerPolynomials().run(builder.finish({"y": y}))
        made = PlanLevels(_ring(1 << 10, depth)).run(lowered)
        calls = (own + descents(node) for node, own in node_calls(made).items())
        _polynomials[steps, depth] = Work.of(sum(calls, Counter()), depth)
    return _polynomials[steps, depth]
