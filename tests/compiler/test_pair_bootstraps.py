"""Two values in one bootstrap: which ones, and that they come back as what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.backends import openfhe, run, simulator

import heliograph as hg
from heliograph.errors import ProgramError, RangeError, WireError
from heliograph.execution.ranges import bootstrap_inputs
from heliograph.interpret import interpret, run_nodes
from heliograph.ir import Builder, Node, Program, Stage
from heliograph.passes.base import apply
from heliograph.passes.pair_bootstraps import PairBootstraps
from heliograph.target import Ring

SLOTS = 1024
RING = Ring(11, 60, 55, 21, 4, None, (2, 2))
TOY = hg.Options(security_bits=None, log_ring=11, bootstrap=True)


def bootstraps(program: Program) -> list[Node]:
    return [node for node in program.nodes if node.op == "bootstrap"]


def refresh(builder: Builder, x: Node, slots: int = SLOTS) -> Node:
    return builder.op("bootstrap", (x,), slots=slots)


def packed(*slot_counts: int, crossed: bool = False) -> Program:
    """A bootstrap of each number of slots of an input of its own; crossed: of four, the third waits for the first and the
    second for the fourth.
    """
    builder = Builder("packed", Stage.PACKED)
    builder.metadata["inputs"] = []
    x = [builder.input(f"x{i}", slots=SLOTS, chunk=0) for i in range(len(slot_counts))]
    if not crossed:
        made = [refresh(builder, value, slots) for value, slots in zip(x, slot_counts, strict=True)]
    else:
        first = refresh(builder, x[0])
        fourth = refresh(builder, x[3])
        second = refresh(builder, builder.op("add_ct", (x[1], fourth)))
        third = refresh(builder, builder.op("add_ct", (x[2], first)))
        made = [first, second, third, fourth]
    return builder.finish({f"y{i}": builder.op("negate", (value,)) for i, value in enumerate(made)})


def values(program: Program) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    inputs = {node: random.uniform(-1, 1, (1, SLOTS)) for node in program.inputs}
    return [np.asarray(value) for value in run_nodes(program, inputs)]


@pytest.mark.parametrize(
    ("program", "operands"),
    [
        (packed(1024, 1024), [2]),
        (packed(256, 1024), [1, 1]),
        (packed(256, 1024, 256, 1024), [2, 2]),
        (packed(256, 256, 256), [2, 1]),
        # Two by two in either way would make each pair wait for the other.
        (packed(1, 1, 1, 1, crossed=True), [2, 2]),
    ],
)
def test_values_that_do_not_wait_for_each_other_are_paired(program: Program, operands: list[int]) -> None:
    made = apply(PairBootstraps(RING), program)
    assert sorted((len(node.inputs) for node in bootstraps(made)), reverse=True) == operands
    for before, after in zip(values(program), values(made), strict=True):
        np.testing.assert_array_equal(before, after)


def test_one_pair_among_many_is_left_alone() -> None:
    """All bootstraps of that many slots would keep imaginary parts, which takes longer."""
    builder = Builder("chain", Stage.PACKED)
    builder.metadata["inputs"] = []
    x, y = (builder.input(name, slots=SLOTS, chunk=0) for name in "xy")
    for _ in range(12):
        x = refresh(builder, builder.op("negate", (x,)))
    program = builder.finish({"x": x, "y": refresh(builder, y)})
    assert PairBootstraps(RING).run(program) is program


@pytest.fixture(scope="module")
def wide() -> hg.Program:
    """A tensor of three ciphertexts through four activations."""
    builder = Builder("wide", Stage.TENSOR)
    h = builder.input("x", shape=(3 * SLOTS,), low=-1.0, high=1.0)
    for _ in range(4):
        h = builder.op("tanh", (h,), degree=15)
    return builder.finish([h])


def test_a_tensor_of_three_ciphertexts_on_real_ones(wide: hg.Program) -> None:
    artifact = hg.compile(wide, TOY)
    program = artifact.program
    assert sorted(len(node.inputs) for node in bootstraps(program)) == [1, 2]
    assert program.metadata["paired_slots"] == [SLOTS]
    assert "refresh two values at once" in str(artifact.report)
    # Each ciphertext is watched as the part of the tensor that it is.
    assert sorted(chunk for _, chunk in bootstrap_inputs(program).values()) == [0, 1, 2]
    x = np.random.default_rng(0).uniform(-1, 1, 3 * SLOTS)
    exact = interpret(program, x)
    (predicted,), planned = run(program, [x], simulator(program))
    (measured,), calls = run(program, [x], openfhe(program))
    assert calls == planned
    assert sum(number for call, number in calls.items() if call[0] == "bootstrap_pair") == 2
    assert 1 / 4 < np.std(predicted - exact) / np.std(measured - exact) < 4
    assert np.abs(measured - exact).max() < 8 * artifact.report.to_dict()["scheme_error"]
    assert artifact.report.to_dict()["bootstraps"] == 2


def test_a_pair_is_planned_apart_where_it_would_be_too_coarse(wide: hg.Program) -> None:
    precise = hg.compile(wide, hg.Options(**{**vars_of(TOY), "precision_bits": 18.5}))
    assert "paired_slots" not in precise.program.metadata
    assert len(bootstraps(precise.program)) == 3


def test_vectors_that_fill_part_of_their_slots_share_a_bootstrap() -> None:
    source = (
        "program both\ninput x: secret slots[64] in [-1, 1]\ninput y: secret slots[64] in [-0.5, 0.5]\n"
        "a = bootstrap(x)\nb = bootstrap(y)\noutput c = a * b\noutput d = a - b * b\n"
    )
    artifact = hg.compile(hg.parse(source), TOY)
    assert [len(node.inputs) for node in bootstraps(artifact.program)] == [2]
    x, y = np.random.default_rng(1).uniform(-0.5, 0.5, (2, 64))
    client = hg.Client(artifact.public())
    with hg.Server(artifact, client.evaluation_keys()) as server:
        c, d = client.decrypt(server.run(client.encrypt(x, y)))
    np.testing.assert_allclose(c, x * y, atol=2.0**-14)
    np.testing.assert_allclose(d, x - y * y, atol=2.0**-14)
    with pytest.raises(RangeError, match="bootstrapped"):
        hg.simulate(artifact, 40 * x, y)
    with pytest.raises(RangeError, match="bootstrapped"):
        hg.simulate(artifact, x, 40 * y)


@pytest.mark.parametrize("line", ["bootstrap(x, x)", "real_part(x)", "imaginary_part(x)"])
def test_complex_slots_are_not_for_authors(line: str) -> None:
    program = hg.parse(f"program p\ninput x: secret slots[64] in [-1, 1]\noutput y = {line}\n")
    with pytest.raises(ProgramError, match="slots hold real numbers"):
        hg.compile(program, TOY)


@pytest.mark.parametrize("stated", [[], [7], ["64"], 64])
def test_an_artifact_must_declare_its_pairs(wide: hg.Program, stated: Any) -> None:
    artifact = hg.compile(wide, TOY)
    artifact.program.metadata["paired_slots"] = stated
    with pytest.raises(WireError):
        hg.Artifact.from_bytes(artifact.to_bytes())


def vars_of(options: hg.Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}
