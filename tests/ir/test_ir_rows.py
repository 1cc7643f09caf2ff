"""The ops on rows, which stand at the polynomial stage only: what they mean and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from heliograph.errors import ProgramError
from heliograph.interpret import run_nodes
from heliograph.ir import Array, Builder, Location, Stage, TensorType

LOC = Location("model.py", 7, 3, "block.layer")

# op, shape of the operand, attributes, formula
CASES: dict[str, tuple[str, tuple[int, ...], dict[str, Any], Callable[[Array], Array]]] = {
    "pad": ("pad_rows", (3, 2), {"rows": 8}, lambda x: np.vstack([x, np.zeros((5, 2))])),
    "pad_nothing": ("pad_rows", (3, 2), {"rows": 3}, lambda x: x),
    "crop": ("crop_rows", (8, 2), {"rows": 3}, lambda x: np.stack([x[0], x[1], x[2]])),
    "roll": ("roll_rows", (4, 3), {"amount": 1}, lambda x: np.stack([x[1], x[2], x[3], x[0]])),
    "roll_back": ("roll_rows", (4, 3), {"amount": -1}, lambda x: np.stack([x[3], x[0], x[1], x[2]])),
    "sum": ("sum_rows", (4, 3), {}, lambda x: x[0] + x[1] + x[2] + x[3]),
    "sum_of_one": ("sum_rows", (1, 3), {}, lambda x: x[0]),
    "repeat": ("repeat_row", (3,), {"rows": 4}, lambda x: np.stack([x, x, x, x])),
}


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_meaning(case: str, samples: int) -> None:
    op, shape, attrs, formula = CASES[case]
    builder = Builder(case, Stage.POLYNOMIAL)
    x = builder.input("x", shape=shape)
    node = builder.op(op, (x,), LOC, **attrs)
    given = np.random.default_rng(1).normal(size=(samples, *shape))
    (out,) = run_nodes(builder.finish([node]), {x: given})
    assert node.type == TensorType(formula(given[0]).shape)
    np.testing.assert_allclose(out, np.stack([formula(sample) for sample in given]), atol=1e-12)


def test_one_of_equal_rows() -> None:
    """The rows of a repeated vector are equal, so that taking one gives the vector back."""
    builder = Builder("equal", Stage.POLYNOMIAL)
    x = builder.input("x", shape=(3,))
    node = builder.op("equal_row", (builder.op("repeat_row", (x,), rows=4),))
    (out,) = run_nodes(builder.finish([node]), {x: np.array([[1.0, -2.0, 0.5]])})
    np.testing.assert_array_equal(out, [[1.0, -2.0, 0.5]])


@pytest.mark.parametrize(
    ("op", "shape", "attrs", "words"),
    [
        ("pad_rows", (4, 3), {"rows": 3}, "4 rows do not become 3"),
        ("pad_rows", (4,), {"rows": 8}, "(rows, columns), not (4,)"),
        ("crop_rows", (4, 3), {"rows": 0}, "4 rows do not become 0"),
        ("crop_rows", (4, 3), {"rows": 5}, "4 rows do not become 5"),
        ("roll_rows", (3, 4), {"amount": 1}, "3 rows are not a power of two"),
        ("roll_rows", (4, 2, 2), {"amount": 1}, "(rows, columns), not (4, 2, 2)"),
        ("sum_rows", (3, 4), {}, "3 rows are not a power of two"),
        ("equal_row", (6, 4), {}, "6 rows are not a power of two"),
        ("repeat_row", (4,), {"rows": 3}, "does not become a power of two of rows (3)"),
        ("repeat_row", (4, 2), {"rows": 2}, "does not become a power of two of rows"),
        ("sum_rows", (4, 3), {"rows": 4}, "no attribute 'rows'"),
    ],
)
def test_type_rules_refuse(op: str, shape: tuple[int, ...], attrs: dict[str, Any], words: str) -> None:
    builder = Builder("bad", Stage.POLYNOMIAL)
    with pytest.raises(ProgramError) as caught:
        builder.op(op, (builder.input("x", shape=shape),), LOC, **attrs)
    assert words in str(caught.value)
    assert caught.value.where == "model.py:7:3 (block.layer)"
