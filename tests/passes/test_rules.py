"""Rule tables: every op that can reach a pass has a rule there, and one that has none is named."""

from __future__ import annotations

import numpy as np
import pytest
from ir.test_ir_ops import CASES, build, values

from heliograph.errors import InternalError
from heliograph.ir import Builder, Node, Stage
from heliograph.ir.ops.functions import ALONG_ROWS, COMPARISONS
from heliograph.ir.ops.table import OPS, Role
from heliograph.passes.base import rule_for
from heliograph.passes.packing import fit_slots, pack
from heliograph.passes.polynomials import approximate
from heliograph.passes.tensors import expand


def ops_at(stage: Stage) -> set[str]:
    return {name for name, spec in OPS.items() if stage in spec.stages}


def test_expand_writes_what_is_no_function_of_one_value() -> None:
    """What is left is linear, a function of one value, along rows, or a product that FuseLinear writes down."""
    left = {name for name, spec in OPS.items() if spec.linear is not None or spec.activation is not None}
    left |= {"input", "constant", "poly", "mul", "matmul", "power", "repeat", "sum_runs", "matrix_product"}
    joint = {name for name, spec in OPS.items() if spec.role is Role.JOINT}
    assert (
        ops_at(Stage.TENSOR) - left - ALONG_ROWS
        == joint
        == {*expand.RULES, *COMPARISONS, "tree_ensemble", "layer_norm"}
    )


def test_pack_knows_the_polynomial_stage() -> None:
    # Constants give no slot vectors: those who read them take the arrays.
    assert set(pack.RULES) == ops_at(Stage.POLYNOMIAL) - {"constant"}


def test_approximate_knows_what_fuse_linear_leaves() -> None:
    """Constants are not secret, and functions of one variable, a user's own included, have one rule for all."""
    left = ops_at(Stage.TENSOR) & ops_at(Stage.POLYNOMIAL) - {"constant"}
    assert set(approximate.RULES) == left | ALONG_ROWS
    functions = {name for name, spec in OPS.items() if spec.activation is not None}
    assert set(approximate.COMPOSITIONS) <= functions | ALONG_ROWS
    assert set(approximate.COMPOSITIONS) >= ALONG_ROWS


ALIKE = {name for name in ops_at(Stage.PACKED) if OPS[name].role in fit_slots.ALIKE}


def test_fit_slots_knows_what_an_author_writes() -> None:
    """Their roles say of most ops that they act on each copy alike; parts of complex slots are refused before."""
    assert set(fit_slots.RULES) - ALIKE == ops_at(Stage.PACKED) - ALIKE - {"real_part", "imaginary_part"}


@pytest.mark.parametrize("case", [case for case, (op, *_) in CASES.items() if op in ALIKE])
def test_what_acts_on_each_copy_alike_repeats_on_repeated_vectors(case: str) -> None:
    builder, _, node = build(case)
    given, spec = values(case, 1), OPS[node.op]
    once, twice = (spec.evaluate([np.tile(x, n) for x in given], node.attrs, builder.context) for n in (1, 2))
    np.testing.assert_array_equal(twice, np.tile(once, 2))


def test_an_op_without_a_rule_is_named() -> None:
    builder = Builder("p", Stage.TENSOR)
    node: Node = builder.input("x", shape=(2,))
    with pytest.raises(InternalError, match="pass demo has no rule for input"):
        rule_for({}, node, "demo")
