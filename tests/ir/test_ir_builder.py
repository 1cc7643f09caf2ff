"""The builder as passes use it, and the small helpers beside it."""

from __future__ import annotations

import numpy as np
import pytest

from heliograph.errors import InternalError, ProgramError, UnsupportedError, at
from heliograph.interpret import interpret
from heliograph.ir import Builder, Location, Node, Program, Stage, shape_of, size_of
from heliograph.ir.maps.gather import gather_matrix

PLACE = Location("model.py", 3)


def small() -> Program:
    builder = Builder("p", Stage.TENSOR)
    x, y = (builder.input(name, shape=(2, 3), low=-1.0, high=1.0) for name in ("x", "y"))
    return builder.finish({"s": builder.op("add", (x, y)), "n": builder.op("neg", (y,))})


def test_a_copied_input_is_kept_once_and_outputs_keep_their_names() -> None:
    program = small()
    builder = Builder(program.name, program.stage, program)
    new = {}
    for node in program.nodes:
        new[node] = builder.copy(node, [new[operand] for operand in node.inputs])
        builder.copy(node, new[node].inputs)
    made = builder.finish_as(program, new)
    assert made.inputs == program.inputs
    assert made.output_names == ("s", "n")
    assert str(made) == str(program)


def test_rewriting_replaces_all_but_inputs() -> None:
    program = small()
    builder = Builder(program.name, program.stage, program)
    made = builder.rewrite(program, lambda node, operands: builder.op("neg", operands[:1]))
    assert [node.op for node in made.nodes] == ["input", "input", "neg", "neg"]
    assert made.inputs == program.inputs


def test_rewriting_may_change_inputs_and_what_leaves() -> None:
    program = small()
    builder = Builder(program.name, program.stage, program)

    def emit(node: Node, operands: list[Node]) -> Node:
        made = builder.copy(node, operands)
        return builder.op("neg", (made,)) if node.op == "input" else made

    def leave(name: str, node: Node, made: Node) -> Node:
        assert node is program.outputs[program.output_names.index(name)]
        return builder.op("add", (made, made)) if name == "n" else made

    made = builder.rewrite(program, emit, inputs=True, leave=leave)
    assert made.inputs == program.inputs
    assert made.output_names == ("s", "n")
    x, y = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    total, negated = interpret(made, x, y)
    np.testing.assert_array_equal(total, -x - y)
    np.testing.assert_array_equal(negated, 2 * y)


def test_errors_get_the_place_that_they_lack() -> None:
    with pytest.raises(UnsupportedError) as found, at(PLACE, said_by="sign", hint="less"):
        raise UnsupportedError("no plan", why="too deep", hint="more")
    assert str(found.value) == "model.py:3: sign: no plan\n  why: too deep\n  try: less"
    with pytest.raises(ProgramError) as found, at(PLACE, said_by="sign", hint="less"):
        raise ProgramError("no plan", where="Options.degrees", hint="more")
    assert str(found.value) == "Options.degrees: no plan\n  try: more"
    with pytest.raises(InternalError, match=r"^no plan$"), at(PLACE):
        raise InternalError("no plan")


def test_shapes_are_those_of_tensors_only() -> None:
    x = Builder("p", Stage.TENSOR).input("x", shape=(2, 3))
    assert (shape_of(x), size_of(x)) == ((2, 3), 6)
    slots = Builder("p", Stage.PACKED).input("x", slots=8)
    with pytest.raises(InternalError, match="is not a tensor"):
        size_of(slots)


def test_gathering_takes_elements_or_zero() -> None:
    x = np.array([1.0, 2.0, 3.0])
    index = np.array([[2, -1], [0, 0]])
    np.testing.assert_array_equal(gather_matrix(index, 3) @ x, [3, 0, 1, 1])
    weights = np.array([[2.0, 5.0], [3.0, 4.0]])
    np.testing.assert_array_equal(gather_matrix(index, 3, weights) @ x, [6, 0, 3, 4])
