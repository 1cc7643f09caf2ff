"""Stacks and their weighted sums: meaning, types, texts, what analyses are told, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heliograph.ckks.ring import Ring
from heliograph.errors import ProgramError
from heliograph.interpret import run_nodes
from heliograph.ir import Builder, CipherType, Node, SlotsType, SparseMatrix, Stage
from heliograph.ir.analysis.liveness import peak_towers
from heliograph.ir.ops.table import Dependence, rules_of
from heliograph.ir.text import parse_program, print_program
from heliograph.ir.verify import verify

SLOTS = 16
WEIGHTS = np.array([[0.5, 0.0, -2.0], [0.0, 0.0, 0.0], [1.0, 3.0, 0.25]])


def build(stage: Stage = Stage.PACKED) -> tuple[Builder, list[Node], Node, list[Node]]:
    builder = Builder("p", stage)
    places = {"level": 2, "log_scale": 45.0} if stage is Stage.MANAGED else {}
    if stage is Stage.MANAGED:
        builder.set_ring(Ring(5, 60, 45, 4, 2, None))
    inputs = [builder.input("x", slots=SLOTS, chunk=i, **places) for i in range(3)]
    stack = builder.op("stack", inputs)
    weights = builder.constant(SparseMatrix.of(WEIGHTS), "w")
    planned = {"plain_log_scale": 44.0} if stage is Stage.MANAGED else {}
    return (
        builder,
        inputs,
        stack,
        [builder.op("weighted_sum", (stack,), matrix=weights, row=row, **planned) for row in range(3)],
    )


@pytest.mark.parametrize("samples", [1, 4])
def test_meaning(samples: int) -> None:
    builder, inputs, _, sums = build()
    x = np.random.default_rng(0).normal(size=(3, samples, SLOTS))
    found = run_nodes(builder.finish(sums), dict(zip(inputs, x, strict=True)))
    for row, out in zip(WEIGHTS, found, strict=True):
        np.testing.assert_allclose(np.broadcast_to(out, (samples, SLOTS)), np.tensordot(row, x, axes=1), atol=1e-12)


def test_types_and_text() -> None:
    for stage, of_stack in (
        (Stage.PACKED, SlotsType(SLOTS, True, 3)),
        (Stage.MANAGED, CipherType(SLOTS, 2, 45.0, count=3)),
    ):
        builder, _, stack, sums = build(stage)
        assert stack.type == of_stack
        program = builder.finish(sums)
        verify(program, after="building")
        text = print_program(program)
        assert "count 3" in text
        again = parse_program(text, program.constants)
        assert print_program(again) == text
        assert [node.type for node in again.nodes] == [node.type for node in program.nodes]
    assert sums[0].type == CipherType(SLOTS, 2, 89.0)
    chained = replace(of_stack, chain=2)  # type: ignore[type-var]
    assert "chain 2, count 3" in str(chained)


def test_bounds_are_reached_and_hold() -> None:
    builder, _, stack, sums = build()
    random = np.random.default_rng(1)
    ends = np.sort(random.uniform(-2, 2, size=(2, 3, SLOTS)), axis=0)
    known = rules_of(stack).bounds(stack, list(zip(*ends, strict=True)), builder.context)  # type: ignore[misc]
    assert known is not None
    for row, node in zip(WEIGHTS, sums, strict=True):
        made = rules_of(node).bounds(node, [known], builder.context)  # type: ignore[misc]
        assert made is not None
        up, down = np.maximum(row, 0), np.minimum(row, 0)
        np.testing.assert_allclose(made[0], up @ ends[0] + down @ ends[1], atol=1e-9)
        np.testing.assert_allclose(made[1], up @ ends[1] + down @ ends[0], atol=1e-9)
        for _ in range(50):
            value = row @ random.uniform(*ends)
            assert (made[0] <= value).all()
            assert (value <= made[1]).all()


def test_what_it_depends_on_and_how_it_repeats() -> None:
    builder, _, stack, sums = build()
    there = [Dependence(np.arange(SLOTS) % 4 == i) for i in range(3)]
    found = rules_of(stack).depends(stack, there, builder.context)
    np.testing.assert_array_equal(found, np.arange(SLOTS) % 4 < 3)
    np.testing.assert_array_equal(rules_of(sums[0]).depends(sums[0], [Dependence(found)], builder.context), found)
    assert rules_of(stack).period(stack, [2, 8, 4], builder.context) == 8


def test_a_stack_is_not_there_twice() -> None:
    builder, _, _, sums = build(Stage.MANAGED)
    program = builder.finish(sums)
    # Three ciphertexts of two parts at level 2, and the sums.
    assert peak_towers(program.nodes, program.outputs) == 18 + 3 * 6


def test_nothing_else_reads_a_stack() -> None:
    builder, inputs, stack, _ = build()
    for op, operands in (("negate", (stack,)), ("add_ct", (stack, stack)), ("stack", (stack, inputs[0]))):
        with pytest.raises(ProgramError, match="does not read stacks"):
            builder.op(op, operands)


def test_what_does_not_fit_is_refused() -> None:
    builder, _, stack, _ = build()
    weights = builder.constant(SparseMatrix.of(WEIGHTS[:, :2]), "v")
    with pytest.raises(ProgramError, match="does not fit what is summed"):
        builder.op("weighted_sum", (stack,), matrix=weights, row=0)
    weights = builder.constant(SparseMatrix.of(WEIGHTS), "w")
    with pytest.raises(ProgramError, match="has no row 3"):
        builder.op("weighted_sum", (stack,), matrix=weights, row=3)
    managed, (x, y, _), stack, (total, _, _) = build(Stage.MANAGED)
    with pytest.raises(ProgramError, match="not planned"):
        managed.op("weighted_sum", (stack,), matrix=managed.constant(SparseMatrix.of(WEIGHTS), "w"), row=0)
    low = managed.op("level_drop", (x,), levels=1)
    with pytest.raises(ProgramError, match="at one level"):
        managed.op("stack", (low, y))
    with pytest.raises(ProgramError, match="different scales"):
        managed.op("stack", (managed.op("rescale", (total,)), low))


def test_a_stack_of_one_is_its_vector() -> None:
    builder = Builder("p", Stage.PACKED)
    x = builder.input("x", slots=SLOTS, chunk=0)
    stack = builder.op("stack", (x,))
    assert stack.type == x.type
    weights = builder.constant(SparseMatrix.of(np.array([[2.0], [-0.5]])), "w")
    outputs = [builder.op("weighted_sum", (each,), matrix=weights, row=1) for each in (stack, x)]
    outputs.append(builder.op("rotate", (stack,), amount=1))
    values = np.random.default_rng(0).normal(size=(4, SLOTS))
    found = run_nodes(builder.finish(outputs), {x: values})
    for out, wanted in zip(found, (-0.5 * values, -0.5 * values, np.roll(values, -1, axis=-1)), strict=True):
        np.testing.assert_array_equal(out, wanted)
    bounds = rules_of(outputs[0]).bounds
    assert bounds is not None
    low, high = bounds(outputs[0], [(-np.ones(SLOTS), np.full(SLOTS, 3.0))], builder.context)  # type: ignore[misc]
    np.testing.assert_allclose((low, high), (np.full(SLOTS, -1.5), np.full(SLOTS, 0.5)))


def test_products_are_relinearized_before_they_are_summed() -> None:
    builder, inputs, _, _ = build(Stage.MANAGED)
    product = builder.op("mul_ct", (inputs[0], inputs[0]))
    weights = builder.constant(SparseMatrix.of(np.ones((1, 1))), "ones")
    with pytest.raises(ProgramError, match="needs a relinearized ciphertext"):
        builder.op("weighted_sum", (product,), matrix=weights, row=0, plain_log_scale=44.0)
    relinearized = builder.op("relinearize", (product,))
    with pytest.raises(ProgramError, match="has 2 parts already"):
        builder.op("relinearize", (relinearized,))
