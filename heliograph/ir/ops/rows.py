"""Operations on the rows of (rows, columns) that cost rotations and no level. Part of `ir/ops/table.py`.

Row r has the slots behind row r - 1, each row as many as the smallest power of two that holds its columns; with a power
of two of rows their slots are cyclic. Adding up the rows is then log2(rows) rotations and leaves the sum in every row;
repeating a sum, taking one of equal rows, and padding with rows of zeros take no operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.node import Array, Node, Stage, shape_of
from heliograph.ir.ops.bounds import widened
from heliograph.ir.ops.spec import ARITHMETIC, Attrs, Bounds, Context, OpSpec, Role, define
from heliograph.ir.types import TensorType, Type

_POLYNOMIAL = frozenset({Stage.POLYNOMIAL})


def _rows(name: str, operand: TensorType, cyclic: bool) -> tuple[int, int]:
    if len(operand.shape) != 2:
        raise ProgramError(f"{name} takes a tensor (rows, columns), not {operand.shape}")
    rows, columns = operand.shape
    if cyclic and rows & (rows - 1):
        raise ProgramError(f"{name}: {rows} rows are not a power of two")
    return rows, columns


def _define_rows(
    name: str,
    attrs: dict[str, str],
    shape: Callable[[TensorType, Attrs], tuple[int, ...]],
    evaluate: Callable[[Array, Attrs], Array],
    doc: str,
    stages: frozenset[Stage] = _POLYNOMIAL,
) -> None:
    def infer(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
        return TensorType(shape(operands[0], a), operands[0].secret)

    def meaning(values: Sequence[Array], a: Attrs, context: Context) -> Array:
        return evaluate(values[0], a)

    def bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
        # Moves, copies, and sums with weights of one: bounds propagate the same way as the values.
        shape = (1, *shape_of(node.inputs[0]))
        low, high = (evaluate(end.reshape(shape), node.attrs).ravel() for end in operands[0])
        return widened(low, high)

    define(OpSpec(name, stages, (1, 1), attrs, infer, meaning, doc, role=Role.ROWS, bounds=bounds))


def _padded(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    rows, columns = _rows("pad_rows", operand, False)
    if a["rows"] < rows:
        raise ProgramError(f"pad_rows: {rows} rows do not become {a['rows']}")
    return a["rows"], columns


def _cropped(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    rows, columns = _rows("crop_rows", operand, False)
    if not 0 < a["rows"] <= rows:
        raise ProgramError(f"crop_rows: {rows} rows do not become {a['rows']}")
    return a["rows"], columns


def _repeated(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    if len(operand.shape) != 1 or a["rows"] < 1 or a["rows"] & (a["rows"] - 1):
        raise ProgramError(f"repeat_row: {operand.shape} does not become a power of two of rows ({a['rows']})")
    return a["rows"], operand.shape[0]


_define_rows(
    "pad_rows",
    {"rows": "int"},
    _padded,
    lambda x, a: np.pad(x, [(0, 0), (0, a["rows"] - x.shape[1]), (0, 0)]),
    "Rows of zeros behind the others. What makes its operand must leave zeros there: an input, an `affine` or a "
    "`matrix_product`.",
)
_define_rows("crop_rows", {"rows": "int"}, _cropped, lambda x, a: x[:, : a["rows"]], "The first rows.")
_define_rows(
    "roll_rows",
    {"amount": "int"},
    lambda operand, a: _rows("roll_rows", operand, True),
    lambda x, a: np.roll(x, -a["amount"], axis=1),
    "Row r + amount moves to row r, cyclic.",
)
_define_rows(
    "sum_rows",
    {},
    lambda operand, a: (_rows("sum_rows", operand, True)[1],),
    lambda x, a: np.asarray(x.sum(axis=1)),
    "The sum of all rows.",
)
_define_rows(
    "equal_row",
    {},
    lambda operand, a: (_rows("equal_row", operand, True)[1],),
    lambda x, a: x[:, 0],
    "One of rows that are all equal.",
)
_define_rows(
    "repeat_row",
    {"rows": "int"},
    _repeated,
    lambda x, a: np.repeat(x[:, np.newaxis], a["rows"], axis=1),
    "The vector as each of the rows.",
)


def _runs(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    count = a["count"]
    if count < 1 or count & (count - 1) or operand.size % count:
        raise ProgramError(
            f"sum_runs: {operand.size} elements are not runs of {count}", why="a run is a power of two of elements"
        )
    return (operand.size // count,)


_define_rows(
    "sum_runs",
    {"count": "int"},
    _runs,
    lambda x, a: np.asarray(x.reshape(x.shape[0], -1, a["count"]).sum(axis=2)),
    "The sums of `count` elements after each other, of the flattened tensor: log2(count) rotations.",
    ARITHMETIC,
)
