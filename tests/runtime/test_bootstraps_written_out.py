"""Bootstraps as ops of the program: compiled, simulated, run on both backends; kept, sent and refused."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.backends import native, openfhe, run, simulator
from runtime.bootstrapped import COARSE, FULL, lowered, only_bootstrap

pytest.importorskip("numba")
pytest.importorskip("openfhe")

import heliograph as hg
from heliograph.artifact.container import unpack
from heliograph.artifact.public import VERSION
from heliograph.artifact.validate import check_program
from heliograph.ckks.ring import Ring
from heliograph.errors import RangeError, VerifyError, WireError
from heliograph.execution.key_use import key_use
from heliograph.execution.keys import program_keys
from heliograph.execution.memory import table_bytes
from heliograph.execution.protocol import Call
from heliograph.execution.walk import node_calls
from heliograph.interpret import interpret, run_nodes
from heliograph.ir import Builder, CipherType, Node, Stage
from heliograph.ir.bootstraps.asked import (
    RAISED,
    REFRESHED,
    WHOLE,
    bootstraps,
    bootstraps_by_chain,
    inside_bootstraps,
    raising_chains,
    written_out,
)
from heliograph.ir.text import parse_program, print_program
from heliograph.ir.verify import verify
from heliograph.runtime.server.floor import Floor

TOY = hg.Options(security_bits=None, log_ring=11, scale_bits=36, bootstrap=True, degree=7)
SOURCE = """program deep
input x: secret tensor[64] in [-1, 1]
a = tanh(x)
b = tanh(a)
c = tanh(b)
d = tanh(c)
output y = tanh(d)
"""


def cipher(node: Node) -> CipherType:
    assert isinstance(node.type, CipherType)
    return node.type


@pytest.fixture(scope="module")
def artifact() -> hg.Artifact:
    return hg.compile(hg.parse(SOURCE), TOY)


@pytest.mark.parametrize(("ring", "slots"), [(FULL, 1024), (FULL, 64), (COARSE, 2048)])
def test_what_is_written_out_means_what_it_refreshes(ring: Ring, slots: int) -> None:
    program, x = lowered(only_bootstrap(ring, slots)), np.random.default_rng(1).uniform(-1, 1, slots)
    found = {}
    for backend in (simulator, native, openfhe):
        ((values,), calls) = run(program, [x], backend(program))
        assert calls == sum(node_calls(program).values(), Counter())
        found[backend] = math.log2(float(np.std(values - x)))
    assert max(found.values()) - min(found.values()) < 1.0
    # Its polynomials mean nearly that.
    np.testing.assert_array_equal(interpret(program, x), x)
    ((exact,), _) = run(program, [x], simulator(program, noisy=False))
    assert 0 < np.abs(exact - x).max() < 2.0**-12


def test_every_op_of_a_bootstrap_means_what_the_simulator_makes_of_it_without_errors() -> None:
    program, seen = lowered(only_bootstrap(FULL, 64)), {}
    x = np.random.default_rng(2).uniform(-1, 1, 64)
    session = simulator(program, noisy=False)
    run(program, [x], session, lambda node, value: seen.update({node: value.slots}))
    (start,), inside = program.inputs, inside_bootstraps(program)

    def compare(node: Node, value: np.ndarray) -> None:
        if node in inside:
            scale = 1 + np.abs(value).max()
            np.testing.assert_allclose(np.broadcast_to(value[0], FULL.slots) / scale, seen[node] / scale, atol=1e-9)

    run_nodes(program, {start: np.resize(x, FULL.slots)[np.newaxis]}, compare)
    ops = {node.op for node in inside}
    assert ops >= {"fourier_factor", RAISED, "reread", "conjugate", "mul_i", "lincomb", "mul_ct", "rotate"}


def test_two_values_share_a_bootstrap() -> None:
    builder = Builder("two", Stage.MANAGED)
    builder.set_ring(FULL)
    made = only_bootstrap(FULL, 64)
    layout = made.interface.inputs[0].layout
    x, y = (
        builder.input(name, slots=FULL.slots, chunk=0, level=FULL.bootstrap_input_level, log_scale=35.0)
        for name in "xy"
    )
    both = builder.op(WHOLE, (x, y), slots=64, level=FULL.bootstrap_level - 1)
    parts = [builder.op(part, (both,)) for part in ("real_part", "imaginary_part")]
    ends = [builder.op("level_drop", (part,), levels=FULL.bootstrap_level - 1) for part in parts]
    specs = [replace(made.interface.inputs[0], name=name) for name in ("x", "y", "u", "v")]
    builder.interface = replace(made.interface, inputs=tuple(specs[:2]), outputs=tuple(specs[2:]))
    assert layout is not None
    program = lowered(builder.finish(ends))
    values = [np.random.default_rng(seed).uniform(-0.5, 0.5, 64) for seed in (1, 2)]
    (end,) = bootstraps(program)
    assert end.op == REFRESHED
    assert len(end.inputs) == 3
    for backend in (simulator, native, openfhe):
        found, _ = run(program, values, backend(program))
        for one, wanted in zip(found, values, strict=True):
            assert np.std(one - wanted) < 2.0**-12


def test_a_compiled_program_has_its_bootstraps_written_out(artifact: hg.Artifact) -> None:
    program, figures = artifact.program, artifact.report.figures
    assert not any(node.op == WHOLE for node in program.nodes)
    ends = list(bootstraps(program))
    assert len(ends) == figures.bootstraps == sum(bootstraps_by_chain(program)) > 0
    assert figures.bootstrapping is not None
    assert figures.bootstrapping.slots == (64,)
    assert figures.bootstrapping.table_bytes == table_bytes(program) > 0
    for end in ends:
        within = written_out(program, end)
        assert sum(node.op == RAISED for node in within) == 1
        assert within[-1] is end
        assert not set(end.inputs[1:]) & set(within)
    raised = [key for key in program_keys(program) if key.kind == "encapsulation"]
    assert len(raised) == len(raising_chains(program)) == 1


def test_it_runs_encrypted_as_predicted(artifact: hg.Artifact, tmp_path: Path) -> None:
    """Over files, with all keys and with few of them in memory."""
    artifact.save(tmp_path / "a.helio")
    loaded = hg.Artifact.load(tmp_path / "a.helio")
    assert print_program(loaded.program) == print_program(artifact.program)
    artifact.public().save(tmp_path / "a.public")
    public = hg.PublicArtifact.load(tmp_path / "a.public")
    assert public == artifact.public()
    assert public.raising_chains == raising_chains(artifact.program)
    assert public.bootstraps
    hg.Client(public, allow_insecure=True).save(tmp_path / "client.key")
    client = hg.Client.load(tmp_path / "client.key", allow_insecure=True)
    assert [key.name for key in client.public.evaluation_keys] == [key.name for key in program_keys(artifact.program)]
    client.write_evaluation_keys(tmp_path / "keys")
    x = np.random.default_rng(3).uniform(-1, 1, 64)
    exact, (predicted,) = interpret(artifact.program, x), run(loaded.program, [x], simulator(loaded.program))[0]
    use = key_use(loaded.program)
    # Keys of bootstraps come and go like others.
    assert use.least_bytes < use.staying_bytes + use.size(use.others)
    from heliograph.runtime.wire.keyfolder import KeyFolder

    for backend, bound in (("native", None), ("native", use.least_bytes), ("openfhe", None)):
        keys = KeyFolder(tmp_path / "keys")
        with hg.Server(loaded, keys, backend=backend, key_bytes=bound, allow_insecure=True) as server:
            found = client.decrypt(server.run(client.encrypt(x)))
        assert 1 / 8 < np.std(predicted - exact) / np.std(found - exact) < 8


def test_a_bound_on_keys_leaves_those_of_bootstraps_alone() -> None:
    """Rotations of the program are composed where there is room for few keys; those of bootstraps have their own."""
    builder = Builder("turned", Stage.MANAGED)
    builder.set_ring(FULL)
    made = only_bootstrap(FULL, 64)
    x = builder.input("x", slots=FULL.slots, chunk=0, level=FULL.bootstrap_input_level, log_scale=35.0)
    fresh = builder.op(WHOLE, (x,), slots=64, level=FULL.bootstrap_level)
    turned = [builder.op("rotate", (fresh,), amount=amount) for amount in (5, 11, 21, 43)]
    total = turned[0]
    for each in turned[1:]:
        total = builder.op("add_ct", (total, each))
    builder.interface = made.interface
    whole = builder.finish([builder.op("level_drop", (total,), levels=FULL.bootstrap_level)])
    all_keys = lowered(whole)
    few = lowered(whole, key_bytes=3 * all_keys.planned.chains[1].ring.rotation_key_bytes)
    for program, rotations in ((all_keys, 4), (few, 8)):
        inside = inside_bootstraps(program)
        own = [node for node in program.nodes if node.op == "rotate" and node not in inside]
        assert (len(own) == 4) == (rotations == 4), len(own)
        assert {node.attrs["amount"] for node in inside if node.op == "rotate"} == {
            node.attrs["amount"] for node in inside_bootstraps(all_keys) if node.op == "rotate"
        }
    values = np.random.default_rng(4).uniform(-1, 1, 64)
    for backend in (native, openfhe):
        (found,), _ = run(few, [values], backend(few))
        np.testing.assert_allclose(found, sum(np.roll(values, -amount) for amount in (5, 11, 21, 43)), atol=2.0**-9)


def test_keys_are_made_as_low_as_they_are_used() -> None:
    """A lower part of the chain has keys of its own, smaller ones; above it are only those that are used there."""
    whole, *lower = lowered(only_bootstrap(FULL, 64)).planned.chains
    assert lower
    assert all(chain.ring.rotation_key_bytes < whole.ring.rotation_key_bytes for chain in lower)
    everywhere = set(whole.rotation_keys).union(*(chain.rotation_keys for chain in lower))
    assert set(whole.rotation_keys) < everywhere


def test_each_bootstrap_raises_the_modulus_to_the_lowest_chain_that_reaches() -> None:
    short = FULL.lower(18, 5, bootstraps=True)
    builder = Builder("two levels", Stage.MANAGED)
    builder.set_ring(FULL)
    made = only_bootstrap(FULL, 64)
    x = builder.input("x", slots=FULL.slots, chunk=0, level=FULL.bootstrap_input_level, log_scale=35.0)
    ends = []
    for level in (FULL.bootstrap_level, short.bootstrap_level):
        fresh = builder.op(WHOLE, (x,), slots=64, level=level)
        ends.append(builder.op("level_drop", (fresh,), levels=level))
    spec = made.interface.outputs[0]
    builder.interface = replace(made.interface, outputs=(replace(spec, name="u"), replace(spec, name="v")))
    program = lowered(builder.finish(ends), short)
    raised = {cipher(node).level: cipher(node).chain for node in program.nodes if node.op == RAISED}
    assert set(raised) == {20, 18}
    chains = program.planned.chains
    assert {level: chains[number].ring.levels for level, number in raised.items()} == {20: 20, 18: 18}
    assert sum(key.kind == "encapsulation" for key in program_keys(program)) == 2
    values = np.random.default_rng(5).uniform(-1, 1, 64)
    for backend in (simulator, native, openfhe):
        found, _ = run(program, [values], backend(program))
        for one in found:
            assert np.std(one - values) < 2.0**-12


def test_a_value_that_is_too_large_is_refused_where_the_modulus_is_raised() -> None:
    program = lowered(only_bootstrap(FULL, 64))
    x = np.random.default_rng(6).uniform(-1, 1, 64)
    x[7] = 2.5
    with pytest.raises(RangeError, match=r"a value of size 2.5 is bootstrapped, planned were 1 at most"):
        run(program, [x], simulator(program))


def test_a_bootstrap_can_be_timed() -> None:
    program = lowered(only_bootstrap(FULL, 64))
    session = native(program)
    _, calls = run(program, [np.zeros(64)], session)
    assert calls[Call(RAISED, 0, 64)] == 1
    floor = Floor(session.evaluator, calls)
    floor.sample()
    assert all(median > 0 for median in floor.medians_ms().values())


# ---------------------------------------------------------------------------------------------- from strangers


@pytest.mark.parametrize(
    ("op", "attrs", "refusal"),
    [
        ("fourier_factor", {"layers": 5}, "not one of its ring"),
        ("fourier_factor", {"giant": 1}, "not one of its ring"),
        ("reread", {"bits": 1e3}, "the bits by which a scale is read"),
        ("refreshed", {"observed": 7}, "sizes that were observed"),
    ],
)
def test_numbers_out_of_bounds_are_refused(op: str, attrs: dict[str, object], refusal: str) -> None:
    program = lowered(only_bootstrap(FULL, 1024))
    node = next(node for node in program.nodes if node.op == op)
    changed = replace(node, attrs={**node.attrs, **attrs})
    with pytest.raises(WireError, match=refusal):
        check_program(replace(program, nodes=tuple(changed if each is node else each for each in program.nodes)))


@pytest.mark.parametrize(
    "change",
    [
        ("slots = 1024} : cipher", "slots = 1000} : cipher"),
        ("slots = 1024} : cipher", "slots = 0} : cipher"),
        ("layers = ", "layers = 9"),
        ("giant = ", "giant = -"),
        ("shift = ", "shift = -1"),
        ("level = 20", "level = 99"),
        ("inverse = true", "inverse = 3"),
        ("bits = ", "bits = 1e999"),
    ],
)
def test_texts_that_no_writer_wrote_are_refused(change: tuple[str, str]) -> None:
    program = lowered(only_bootstrap(FULL, 1024))
    text = print_program(program)
    assert change[0] in text
    with pytest.raises(hg.HeliographError):
        check_program(verify(parse_program(text.replace(*change), dict(program.constants))))


@pytest.mark.parametrize("raising", [[], [1], [0, 0], "0", [True], None, [0.0], [-1]])
def test_lists_of_chains_that_cannot_be_are_refused(raising: object, artifact: hg.Artifact) -> None:
    public = artifact.public()
    container = unpack(public.to_bytes(), "public artifact", VERSION, 1 << 26, "it")
    assert container.fields["raising_chains"] == [0]
    with pytest.raises(WireError):
        hg.PublicArtifact._read(replace(container, fields={**container.fields, "raising_chains": raising}), "it")


def test_a_modulus_is_raised_only_in_a_chain_that_bootstraps() -> None:
    program = lowered(only_bootstrap(FULL, 1024))
    chains = program.planned.chains
    assert len(chains) > 1
    nodes = {node: node for node in program.nodes}
    raised = next(node for node in program.nodes if node.op == RAISED)
    nodes[raised] = replace(raised, type=replace(cipher(raised), chain=1))
    with pytest.raises((VerifyError, WireError)):
        check_program(verify(replace(program, nodes=tuple(nodes.values()))))
