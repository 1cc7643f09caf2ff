"""Two values in one bootstrap: which ones, and that they come back as what they were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.backends import native, openfhe, run, simulator
from helpers.keyed import keyed
from helpers.ranges import unchecked

import heliograph as hg
from heliograph.ckks.ring import Ring
from heliograph.errors import ProgramError, RangeError, WireError
from heliograph.execution.ranges import bootstrap_inputs
from heliograph.interpret import interpret, run_nodes
from heliograph.ir import Builder, Node, Program, Stage
from heliograph.ir.bootstraps.asked import RAISED, bootstrapped, inside_bootstraps, paired_slots
from heliograph.ir.bootstraps.asked import bootstraps as every_bootstrap
from heliograph.ir.node import freeze_attrs
from heliograph.passes.base import apply
from heliograph.passes.bootstraps.pair_bootstraps import PairBootstraps
from heliograph.runtime.server.floor import Floor

SLOTS = 1024
RING = Ring(11, 60, 52, 19, 4, None, (2, 2))
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


@pytest.fixture(scope="module")
def artifact(wide: hg.Program) -> hg.Artifact:
    return hg.compile(wide, TOY)


def test_a_tensor_of_three_ciphertexts_on_real_ones(artifact: hg.Artifact) -> None:
    program = artifact.program
    assert sorted(len(bootstrapped(node)) for node in every_bootstrap(program)) == [1, 2]
    assert paired_slots(program) == (SLOTS,)
    assert "refresh up to two values at once" in artifact.report.full()
    # Each ciphertext is watched as the part of the tensor that it is.
    assert sorted(chunk for _, chunk in bootstrap_inputs(program).values()) == [0, 1, 2]
    x = np.random.default_rng(0).uniform(-1, 1, 3 * SLOTS)
    exact = interpret(program, x)
    (predicted,), planned = run(program, [x], simulator(program))
    for backend in (native, openfhe):
        (measured,), calls = run(program, [x], backend(program))
        assert calls == planned
        assert sum(number for call, number in calls.items() if call[0] == RAISED) == 2
        assert 1 / 4 < np.std(predicted - exact) / np.std(measured - exact) < 4
        assert np.abs(measured - exact).max() < 8 * artifact.report.to_dict()["scheme_error"]
    assert artifact.report.to_dict()["bootstraps"] == 2


def test_a_pair_is_planned_apart_where_it_would_be_too_coarse(wide: hg.Program) -> None:
    precise = hg.compile(wide, replace(TOY, precision_bits=23.0))
    assert not paired_slots(precise.program)
    assert len(list(every_bootstrap(precise.program))) == 3


@pytest.mark.parametrize("backend", ["openfhe", "native"])
def test_vectors_that_fill_part_of_their_slots_share_a_bootstrap(backend: str) -> None:
    source = (
        "program both\ninput x: secret slots[64] in [-1, 1]\ninput y: secret slots[64] in [-0.5, 0.5]\n"
        "a = bootstrap(x)\nb = bootstrap(y)\noutput c = a * b\noutput d = a - b * b\n"
    )
    artifact, client, keys = keyed(source, TOY)
    assert [len(bootstrapped(node)) for node in every_bootstrap(artifact.program)] == [2]
    x, y = np.random.default_rng(1).uniform(-0.5, 0.5, (2, 64))
    with hg.Server(artifact, keys, backend=backend, allow_insecure=True) as server:
        encrypted = client.encrypt(x, y)
        c, d = client.decrypt(server.run(encrypted))
        # What a run costs at least is taken of pairs too.
        floor = Floor(server.evaluator, server.trace.calls)
        floor.sample()
        medians = floor.medians_ms()
        assert {RAISED, "conjugate"} <= {call.primitive for call in medians}
        assert all(milliseconds > 0 for milliseconds in medians.values())
    np.testing.assert_allclose(c, x * y, atol=2.0**-14)
    np.testing.assert_allclose(d, x - y * y, atol=2.0**-14)
    with pytest.raises(RangeError, match="bootstrapped"):
        hg.simulate(unchecked(artifact), 40 * x, y)
    with pytest.raises(RangeError, match="bootstrapped"):
        hg.simulate(unchecked(artifact), x, 40 * y)


def test_values_of_different_sizes_are_refreshed_apart() -> None:
    """The smaller one would come back at the scale of the larger one."""
    source = (
        "program sizes\ninput x: secret slots[64] in [-1, 1]\ninput y: secret slots[64] in [-32, 32]\n"
        "a = bootstrap(x)\nb = bootstrap(y)\noutput c = a * a\noutput d = 0.01 * b\n"
    )
    artifact = hg.compile(hg.parse(source), TOY)
    assert [len(bootstrapped(node)) for node in every_bootstrap(artifact.program)] == [1, 1]


def test_each_operand_of_a_pair_is_brought_to_its_scale_by_one_product() -> None:
    """The scale of a power cannot be chosen, and takes a product with one; an input comes at the one that is wanted."""
    source = (
        "program scales\ninput x: secret slots[64] in [-1, 1]\ninput y: secret slots[64] in [-1, 1]\n"
        "w = y * y\na = bootstrap(x)\nb = bootstrap(w * w)\noutput c = a * b\n"
    )
    artifact = hg.compile(hg.parse(source), TOY)
    (both,) = every_bootstrap(artifact.program)
    assert len(bootstrapped(both)) == 2
    inside = inside_bootstraps(artifact.program)
    assert sum(node.op == "lincomb" and node not in inside for node in artifact.program.nodes) == 1
    x, y = np.random.default_rng(2).uniform(-1, 1, (2, 64))
    for backend in (native, openfhe):
        (found,), _ = run(artifact.program, [x, y], backend(artifact.program))
        np.testing.assert_allclose(found, x * y**4, atol=2.0**-14)


def test_servers_with_pairs_and_without_share_a_process() -> None:
    """The keys of one are not those of the other, and neither takes the other's away."""
    source = "program one\ninput x: secret slots[64] in [-1, 1]\noutput a = 0.5 * bootstrap(x)\n"
    two = source.replace("output a", "input y: secret slots[64] in [-1, 1]\noutput b = 0.5 * bootstrap(y)\noutput a")
    artifacts = [hg.compile(hg.parse(text), TOY) for text in (source, two)]
    assert artifacts[0].ring == artifacts[1].ring
    values = np.random.default_rng(4).uniform(-1, 1, (2, 64))
    clients = [hg.Client(artifact.public(), allow_insecure=True) for artifact in artifacts]
    servers = [
        hg.Server(a, client.evaluation_keys(), backend="openfhe", allow_insecure=True)
        for a, client in zip(artifacts, clients, strict=True)
    ]

    def check(number: int) -> None:
        given = values[: number + 1]
        found = clients[number].decrypt(servers[number].run(clients[number].encrypt(*given)))
        for x, result in zip(given[::-1], found if number else [found], strict=True):
            np.testing.assert_allclose(result, x / 2, atol=2.0**-14)

    check(0)
    check(1)
    check(0)
    servers[0].close()
    check(1)
    servers[1].close()


@pytest.mark.parametrize("line", ["bootstrap(x, x)", "real_part(x)", "imaginary_part(x)", "mul_i(x)"])
def test_complex_slots_are_not_for_authors(line: str) -> None:
    program = hg.parse(f"program p\ninput x: secret slots[64] in [-1, 1]\noutput y = {line}\n")
    with pytest.raises(ProgramError, match="slots hold real numbers"):
        hg.compile(program, TOY)


@pytest.mark.parametrize(
    ("op", "changes"),
    [
        ("refreshed", {"ranges": (0, 99)}),
        ("refreshed", {"ranges": (0, -2)}),
        ("refreshed", {"ranges": None}),
        ("refreshed", {"chunks": (0, 1, 2)}),
        ("mul_ct", {"range": -1}),
    ],
)
def test_what_an_artifact_says_of_bounded_values_is_checked(
    artifact: hg.Artifact, op: str, changes: dict[str, Any]
) -> None:
    """The watch of ranges looks these up for every value, also for untrusted artifacts."""
    new: dict[Node, Node] = {}
    for node in artifact.program.nodes:
        attrs = dict(node.attrs)
        if node.op == op and set(changes) & set(attrs):
            attrs |= changes
        new[node] = replace(node, inputs=tuple(new[operand] for operand in node.inputs), attrs=freeze_attrs(attrs))
    program = replace(
        artifact.program,
        nodes=tuple(new.values()),
        inputs=tuple(new[node] for node in artifact.program.inputs),
        outputs=tuple(new[node] for node in artifact.program.outputs),
    )
    with pytest.raises(WireError):
        hg.Artifact.from_bytes(replace(artifact, program=program).to_bytes())
