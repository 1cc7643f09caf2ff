"""Tensor programs written in the language and read back."""

from pathlib import Path

import numpy as np
import pytest

from heliograph.dsl.parse import parse
from heliograph.dsl.print import circuit, to_language, write_language
from heliograph.errors import ProgramError, UnsupportedError
from heliograph.interpret import interpret
from heliograph.ir import Builder, Location, Program, SparseMatrix, Stage


def network(size: int = 3, name: str = "Net") -> Program:
    """A program as a front end makes it: names of layers and parameters that are no names of the language."""
    builder = Builder(name, Stage.TENSOR)
    rng = np.random.default_rng(0)
    x = builder.input("input", Location("net.py", 3), shape=(1, 4, 4), low=-1.0, high=1.0)
    weight = builder.constant(rng.normal(size=(size, 1, 2, 2)).astype(np.float32), "0.weight")
    bias = builder.constant(rng.normal(size=size).astype(np.float32), "0.bias")
    h = builder.op(
        "conv",
        [x],
        Location("net.py", 4, 0, "0"),
        weight=weight,
        bias=bias,
        stride=(2, 2),
        padding=(0, 0),
        dilation=(1, 1),
        groups=1,
    )
    h = builder.op("gelu", [h], Location("net.py", 5, 0, "for"), approximate="tanh", degree=7, low=-3.0, high=3.0)
    h = builder.op("mul", [h, builder.op("constant", value=builder.constant(-0.5))], Location("net.py", 6, 0, "0"))
    shared = builder.op("constant", value=builder.constant(np.float64(3.0)))
    h = builder.op("add", [builder.op("mul", [h, shared]), shared])
    h = builder.op("power", [builder.op("neg", [h])], exponent=3)
    flat = builder.op("reshape", [h], shape=(4 * size,))
    matrix = builder.constant(SparseMatrix.of(np.eye(2, 4 * size)), "map")
    out = builder.op("affine", [flat], matrices=(matrix,), shape=(2,))
    return builder.finish({"scores": out, "the map": h})


def test_round_trip() -> None:
    program = network()
    text = to_language(program)
    again = parse(text)
    assert circuit(again) == circuit(program)
    sample = np.random.default_rng(1).uniform(-1, 1, (1, 4, 4))
    for left, right in zip(interpret(program, sample), interpret(again, sample), strict=True):
        np.testing.assert_array_equal(left, right)
    assert "input input: secret tensor[1, 4, 4] in [-1.0, 1.0]" in text
    assert to_language(again).count("\n") == text.count("\n")


def test_functions_that_are_no_polynomials() -> None:
    """Comparison and division as operators where they say all, numbers where they are read as the same."""
    builder = Builder("functions", Stage.TENSOR)
    x = builder.input("x", shape=(2, 3), low=-1.0, high=1.0)
    half = [builder.op("constant", value=builder.constant(np.float64(value))) for value in (0.5, 2.0, 4.0)]
    nodes = [builder.op(op, (x, half[0])) for op in ("gt", "le", "maximum")]
    nodes.append(builder.op("lt", (half[0], x), gap=0.25, bits=8.0))
    nodes.append(builder.op("where", (nodes[0], half[1], x)))
    shifted = builder.op("add", (x, builder.op("constant", value=builder.constant(np.float64(3.0)))))
    # Only the form that is read back as the same op: `2.0 / y` would be an inverse times 2.
    nodes += [
        builder.op("div", operands, degree=degree)
        for operands, degree in (
            ((x, shifted), None),
            ((x, shifted), 7),
            ((builder.op("constant", value=builder.constant(np.float64(7.0))), shifted), None),
            ((shifted, half[2]), None),
        )
    ]
    nodes.append(builder.op("max", (x,), axis=0))
    nodes.append(builder.op("argmax", (x,), axis=-1, index=True, low=-2.0, high=2.0))
    nodes.append(builder.op("softmax", (x,), axis=1))
    nodes.append(builder.op("layer_norm", (x,), rank=1, eps=0.1, weight=builder.constant(np.arange(3.0))))
    nodes.append(builder.op("clamp", (x,), min=-0.5))
    pooled = builder.op("reshape", (x,), shape=(1, 2, 3))
    nodes.append(builder.op("max_pool", (pooled,), kernel=(2, 2), stride=(1, 1), padding=(1, 0), dilation=(1, 2)))
    program = builder.finish(nodes)
    text = to_language(program)
    again = parse(text)
    assert circuit(again) == circuit(program)
    sample = np.random.default_rng(1).uniform(-1, 1, (2, 3))
    for left, right in zip(interpret(program, sample), interpret(again, sample), strict=True):
        np.testing.assert_array_equal(left, right)
    for line in ("gt = x > constant", "div = x / add", "div_3 = div(7.0, add)"):
        assert line in text


def test_large_constants_are_given_or_written(tmp_path: Path) -> None:
    program = network(size=300, name="a b/c")
    text = to_language(program)
    assert 'given("0.weight")' in text
    assert circuit(parse(text, parameters=program.constants)) == circuit(program)
    path = write_language(program, tmp_path / "new")
    assert sorted(p.name for p in path.parent.iterdir()) == ["a_b_c.hg", "a_b_c.npz"]
    assert circuit(parse(path)) == circuit(program)
    assert parse(path).name == "a b/c"
    small = write_language(network(), tmp_path / "small")
    assert [p.name for p in small.parent.iterdir()] == ["Net.hg"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ProgramError, match="cannot be written"):
        write_language(program, tmp_path / "file")


def test_what_cannot_be_written() -> None:
    slots = parse("program p\ninput x: secret slots[4] in [0, 1]\noutput x\n")
    with pytest.raises(UnsupportedError, match="stage packed"):
        to_language(slots)
    builder = Builder("p", Stage.TENSOR)
    x = builder.input("in", shape=(2,))
    with pytest.raises(UnsupportedError, match="the input name 'in'"):
        to_language(builder.finish([x]))
    builder = Builder("p", Stage.TENSOR)
    x = builder.input("x", shape=(2000,))
    large = builder.constant(SparseMatrix.of(np.eye(2000)), "large")
    y = builder.op("affine", [x], matrices=(large,), shape=(2000,))
    with pytest.raises(UnsupportedError, match="large sparse matrix"):
        to_language(builder.finish([y]))
