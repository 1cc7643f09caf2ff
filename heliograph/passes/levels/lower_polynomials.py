"""Write out every polynomial as products, combinations and sums, by its evaluation plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from heliograph.approx.evaluate import PowerStep, plan_polynomial
from heliograph.ir import Builder, Location, Node, Program, Stage
from heliograph.ir.analysis.depth import trim, whole_square


@dataclass(frozen=True, slots=True)
class LowerPolynomials:
    """Replaces every `poly` of a packed program by its steps."""

    name: ClassVar[str] = "lower-polynomials"
    needs: ClassVar[Stage] = Stage.PACKED
    makes: ClassVar[Stage] = Stage.PACKED

    def run(self, program: Program) -> Program:
        builder = Builder(program.name, Stage.PACKED, program)

        def emit(node: Node, operands: list[Node]) -> Node:
            if node.op != "poly":
                return builder.copy(node, operands)
            coefficients = list(map(float, program.array(node.attrs["coefficients"])))
            interval, chunk = node.attrs.get("range"), node.attrs.get("chunk")
            return emit_polynomial(builder, operands[0], coefficients, node.loc, interval, chunk)

        return builder.rewrite(program, emit)


def emit_polynomial(
    builder: Builder,
    x: Node,
    coefficients: list[float],
    loc: Location,
    interval: int | None = None,
    chunk: int | None = None,
) -> Node:
    """The value of a Chebyshev series at x in [-1, 1], by the cheapest plan of least depth.

    The first node that reads x carries the attributes `range` (from `interval`) and `chunk`, by which x can be found
    later.
    """
    marks = {} if interval is None else {"range": interval, "chunk": chunk}
    factor = whole_square(trim(coefficients))
    if factor is not None:
        product = builder.op("mul_ct", (x, x), loc, **marks)
        product = product if factor == 1 else builder.op("mul_int", (product,), loc, factor=factor)
        return builder.op("add_scalar", (product,), loc, value=coefficients[0] - coefficients[2])
    power: dict[int, Node] = {1: x}
    value: dict[int, Node] = {}
    result = x
    for step in plan_polynomial(coefficients).steps:
        if isinstance(step, PowerStep):
            marked = marks if step.left == step.right == 1 else {}
            product = builder.op("mul_ct", (power[step.left], power[step.right]), loc, **marked)
            doubled = builder.op("mul_int", (product,), loc, factor=2)
            if step.left == step.right:
                power[step.index] = builder.op("add_scalar", (doubled,), loc, value=-1.0)
            else:
                other = builder.op("lincomb", (x,), loc, weights=(-1.0,), constant=0.0)
                power[step.index] = builder.op("add_ct", (doubled, other), loc)
            continue
        total: Node | None = None
        for source, g in step.products:
            product = builder.op("mul_ct", (value[source], power[g]), loc)
            total = product if total is None else builder.op("add_ct", (total, product), loc)
        if step.weights:
            combination = builder.op(
                "lincomb",
                [power[i] for i, _ in step.weights],
                loc,
                weights=tuple(weight for _, weight in step.weights),
                constant=step.constant,
                **(marks if [i for i, _ in step.weights] == [1] and 2 not in power else {}),
            )
            total = combination if total is None else builder.op("add_ct", (total, combination), loc)
        elif step.constant:
            assert total is not None
            total = builder.op("add_scalar", (total,), loc, value=step.constant)
        assert total is not None
        result = value[step.target] = total
    return result
