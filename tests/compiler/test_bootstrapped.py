"""Programs deeper than any chain: where they are bootstrapped, in which memory, and what comes out on real ciphertexts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.keyed import compiled, keyed

import heliograph as hg
from heliograph.ckks.ring import Ring
from heliograph.compiler.planning import planner
from heliograph.compiler.planning.plan import Plan, Refusal
from heliograph.errors import PlanningError, RangeError, WireError
from heliograph.execution.key_use import key_use
from heliograph.execution.loop import Trace
from heliograph.interpret import interpret
from heliograph.ir import Builder, CipherType, Stage
from heliograph.ir.bootstraps.asked import bootstrap_slots, bootstrapped, bootstraps
from heliograph.passes.levels.plan_levels import TooFewLevelsError

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from resnet import ResNet

TOY = hg.Options(security_bits=None, log_ring=12, bootstrap=True, degree=7, margin=0.6, precision_bits=6.0)


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, size=(count, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def program() -> hg.Program:
    """Three residual blocks, two of which halve the image; seven activations."""
    torch.manual_seed(0)
    module = ResNet(1).eval()
    # A batch norm that has seen the data: activations keep their size from layer to layer.
    module.train()
    with torch.no_grad():
        for _ in range(20):
            module(torch.from_numpy(images(64, seed=7)))
    module.eval()
    return hg.trace(module, torch.from_numpy(images(1)), calibration=images(32), name="three-blocks")


@pytest.fixture(scope="module")
def artifact(program: hg.Program) -> hg.Artifact:
    return hg.compile(program, TOY)


def test_every_value_is_where_the_chain_holds_it(artifact: hg.Artifact) -> None:
    ring, ends = artifact.ring, list(bootstraps(artifact.program))
    assert ends
    for node in ends:
        assert isinstance(node.type, CipherType)
        operand = bootstrapped(node)[0].type
        assert isinstance(operand, CipherType)
        assert operand.level == ring.bootstrap_input_level
        assert operand.level < node.type.level <= ring.bootstrap_level
        # Sizes are those of a polynomial's input, which is at most one.
        assert node.attrs["ranges"][0] >= 0
        assert node.attrs["slots"] in bootstrap_slots(artifact.program)
    report = artifact.report.to_dict()
    assert report["bootstraps"] == len(ends)
    assert "INSECURE" in artifact.report.full()
    assert "Hamming weight 32" in artifact.report.full()
    # Three primes: the first modulus and the two that the key switch brings.
    assert f"with a modulus of {ring.first_mod_bits + 66} bits" in " ".join(artifact.report.full().split())


def test_it_runs_on_real_ciphertexts(program: hg.Program, artifact: hg.Artifact) -> None:
    pytest.importorskip("openfhe")
    _, client, keys = keyed(artifact)
    predicted = artifact.report.to_dict()
    with hg.Server(artifact, keys, allow_insecure=True) as server:
        for x in images(2, seed=3):
            measured = client.decrypt(server.run(client.encrypt(x)))
            simulated = hg.simulate(artifact, x)
            # Encryption's error is within three bits of the one predicted, on other samples.
            assert np.abs(measured - simulated).max() < 8 * predicted["scheme_error"]
            assert np.abs(measured - interpret(program, x)).max() < 4 * predicted["predicted_max_abs_error"]
        assert server.trace.calls == _calls(artifact, images(1)[0])


def _calls(artifact: hg.Artifact, x: np.ndarray) -> object:
    from heliograph.execution.interface import pack_inputs
    from heliograph.execution.loop import execute
    from heliograph.execution.simulator import Simulator

    simulator = Simulator(artifact.program)
    return execute(artifact.program, simulator, simulator.encrypt_inputs(pack_inputs(artifact.program, [x])))[1].calls


def test_a_value_too_large_for_a_bootstrap_is_refused(artifact: hg.Artifact) -> None:
    with pytest.raises(RangeError):
        hg.simulate(artifact, 40 * images(1)[0])


def test_memory_is_bounded_at_a_cost_in_time(program: hg.Program, artifact: hg.Artifact) -> None:
    free = artifact.report.to_dict()
    bound = int(0.93 * free["server_peak_bytes"])
    less = hg.compile(program, hg.Options(**{**_given(TOY), "memory_bytes": bound})).report.to_dict()
    assert less["server_peak_bytes"] <= bound
    assert less["predicted"]["evaluate_ms"] >= 0.99 * free["predicted"]["evaluate_ms"]
    with pytest.raises(PlanningError, match="memory_bytes allows 1000000"):
        hg.compile(program, hg.Options(**{**_given(TOY), "memory_bytes": 1_000_000}))


def test_keys_that_do_not_fit_are_read_again(program: hg.Program, artifact: hg.Artifact, tmp_path: Path) -> None:
    """With the same chain and less memory than its keys take; a server follows the plan by itself."""
    pytest.importorskip("openfhe")
    from heliograph.compiler.planning.residency import within
    from heliograph.execution.key_use import key_use
    from heliograph.execution.memory import memory_bytes

    use, planned = key_use(artifact.program), memory_bytes(artifact.program, artifact.ring)
    spare = planned["resident_keys"] - use.least_bytes
    bound = planned["server_folder"] - spare // 2
    fitting = within(artifact.program, artifact.ring, bound)
    assert fitting is not None
    made, loading = fitting
    assert loading > 0
    assert memory_bytes(made, artifact.ring)["server"] <= bound
    assert within(artifact.program, artifact.ring, planned["server_folder"] - spare - 10**6) is None
    less = hg.Artifact.from_bytes(replace(artifact, program=made).to_bytes())
    assert less.program.planned.resident_key_bytes == planned["resident_keys"] - spare // 2
    client, x = hg.Client(less.public(), allow_insecure=True), images(1, seed=3)[0]
    with hg.Server(less, client.write_evaluation_keys(tmp_path), allow_insecure=True) as server:
        measured = client.decrypt(server.run(client.encrypt(x)))
        assert np.abs(measured - hg.simulate(less, x)).max() < 8 * artifact.report.to_dict()["scheme_error"]
        assert server.keys is not None
        assert server.keys.peak_bytes <= server.keys.key_bytes == less.program.planned.resident_key_bytes


def _many_rotations() -> tuple[hg.Program, hg.Options, hg.Artifact, int]:
    """Many rotations by amounts that no bootstrap takes, and a bound on memory that not all of their keys fit."""
    sums = ["+".join(f"rotate({of}, {amount})" for amount in range(65, 161)) for of in ("x", "y")]
    source = (
        f"program many\ninput x: secret slots[256] in [-1, 1]\na = {sums[0]}\ny = bootstrap(0.015 * a)\n"
        f"output w = 0.01 * ({sums[1]})\n"
    )
    program, options = hg.parse(source), hg.Options(security_bits=None, log_ring=12)
    free = hg.compile(program, options)
    from heliograph.execution.memory import memory_bytes

    planned = memory_bytes(free.program, free.ring)
    # Below both ways of keeping all keys, in one file too: its bytes are fewer than the keys.
    bound = min(planned["server_file"], planned["server_folder"]) - planned["resident_keys"] // 2
    return program, options, free, bound


def test_keys_that_take_most_of_a_run_to_read_are_composed_from_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.compiler.planning import bootstrapped
    from heliograph.execution import key_use

    program, options, _, bound = _many_rotations()
    usual = key_use.reading_ms
    monkeypatch.setattr(key_use, "reading_ms", lambda count, loaded: 1000 * usual(count, loaded))
    fewer = hg.compile(program, replace(options, memory_bytes=bound)).report.to_dict()
    monkeypatch.setattr(bootstrapped, "_MOST_LOADING", 1.0)
    every = hg.compile(program, replace(options, memory_bytes=bound)).report.to_dict()
    assert fewer["server_peak_bytes"] <= bound
    assert fewer["evaluation_key_bytes"] < every["evaluation_key_bytes"]
    first, second = (
        each["predicted_ms"] + 1000 * (each["key_loading"] or {"ms": 0.0})["ms"] for each in (fewer, every)
    )
    assert first < second / 2


def test_a_bound_below_all_keys_is_met_by_reading_them_again() -> None:
    program, options, free, bound = _many_rotations()
    tight = hg.compile(program, replace(options, memory_bytes=bound))
    report = tight.report.to_dict()
    assert report["server_peak_bytes"] <= bound
    assert report["key_loading"]["loads"] > 0
    assert report["predicted"]["evaluate_ms"] > free.report.to_dict()["predicted"]["evaluate_ms"]
    assert "are read again in every run" in tight.report.full()
    assert report["unbounded_ms"] < report["predicted"]["evaluate_ms"]
    assert "a run without it would take about" in tight.report.full()
    assert "a run without it would take about" not in free.report.full()
    assert "in a folder" in report["assumed"][-1]
    broken = replace(tight.program, parameters=replace(tight.program.planned, resident_key_bytes="x"))
    forged = replace(tight, program=broken).to_bytes()
    with pytest.raises(WireError, match="resident_key_bytes"):
        hg.Artifact.from_bytes(forged)


def _given(options: hg.Options) -> dict[str, object]:
    names = ("security_bits", "log_ring", "bootstrap", "degree", "margin", "precision_bits")
    return {name: getattr(options, name) for name in names}


def test_where_the_large_ring_does_not_fit_the_memory_a_smaller_one_bootstraps(monkeypatch: pytest.MonkeyPatch) -> None:
    program = hg.parse("program p\ninput x: secret slots[4] in [-1, 1]\noutput y = x * x\n")
    tried: list[tuple[str, int]] = []
    sentinel: Any = Plan(program, (), Ring(16, 60, 40, 20, 3), Trace(), 1.0, 0.0, 1.0)

    def plain(log_ring: int, *rest: Any) -> Any:
        tried.append(("plain", log_ring))
        if log_ring < 17:
            return Refusal(TooFewLevelsError(60, 40), levels=60)
        return Refusal(PlanningError("the server would need 15 bytes", where="Options.memory_bytes"))

    def bootstrapped(log_ring: int, *rest: Any) -> Any:
        tried.append(("bootstrapped", log_ring))
        return Refusal(PlanningError("no chain with bootstrapping is secure")) if log_ring < 16 else sentinel

    monkeypatch.setattr(planner, "plan_unbootstrapped", plain)
    monkeypatch.setattr(planner, "plan_bootstrapped", bootstrapped)
    assert planner.make_plan(program, hg.Options(memory_bytes=12), [np.ones(4)]) is sentinel
    assert tried[-2:] == [("bootstrapped", 16), ("plain", 17)]
    with pytest.raises(PlanningError, match="would need 15 bytes"):
        planner.make_plan(program, hg.Options(memory_bytes=12, bootstrap=False), [np.ones(4)])


def test_without_bootstraps_it_is_refused(program: hg.Program) -> None:
    with pytest.raises(PlanningError, match="needs"):
        hg.compile(program, hg.Options(degree=7, margin=0.6, bootstrap=False, log_ring=14))


def test_keys_of_bootstraps_that_are_written_out_are_those_that_are_used(artifact: hg.Artifact) -> None:
    use = key_use(artifact.program)
    read = set().union(*use.reads)
    assert {key.name for key in use.others.values()} == read
    assert {key.kind for key in use.staying} == {"relinearization", "conjugation", "encapsulation"}
    for chain in artifact.program.planned.chains:
        assert set(chain.rotation_keys) == {key.amount for key in use.others.values() if key.ring == chain.ring}


def test_sizes_that_were_observed_say_so() -> None:
    """No polynomial whose input is bounded: the sizes of what is bootstrapped are those of samples, with a margin."""
    pytest.importorskip("openfhe")
    builder = Builder("squares", Stage.TENSOR)
    h = builder.input("x", shape=(16,), low=-1.0, high=1.0)
    half = builder.op("constant", (), value=builder.constant(np.full(16, 0.5), "half"))
    for _ in range(20):
        h = builder.op("sub", (half, builder.op("mul", (builder.op("mul", (h, half)), h))))
    options = hg.Options(security_bits=None, log_ring=11, bootstrap=True)
    artifact, client, keys = keyed(builder.finish([h]), options)
    report = artifact.report.to_dict()
    assert report["bootstrapping"]["observed"] == report["bootstraps"] > 0
    assert "bootstrapped values were observed" in " ".join(report["assumed"])
    x = np.random.default_rng(8).uniform(-1, 1, 16)
    with hg.Server(artifact, keys, allow_insecure=True) as server:
        found = np.asarray(client.decrypt(server.run(client.encrypt(x))))
    for _ in range(20):
        x = 0.5 - 0.5 * x * x
    np.testing.assert_allclose(found, x, atol=1e-3)
    with pytest.raises(RangeError):
        hg.simulate(artifact, np.full(16, 40.0))


def test_several_samples_share_the_bootstraps() -> None:
    pytest.importorskip("openfhe")
    builder, random = Builder("batched", Stage.TENSOR), np.random.default_rng(0)
    h = builder.input("x", shape=(8,), low=-1.0, high=1.0)
    for number in range(4):
        weight = builder.constant(random.normal(size=(8, 8)) / 3, f"w{number}")
        h = builder.op("tanh", (builder.op("linear", (h,), weight=weight),), degree=7)
    program = builder.finish([h])
    options = hg.Options(security_bits=None, log_ring=11, bootstrap=True, batch=4)
    artifact, client, keys = keyed(program, options)
    report = artifact.report.to_dict()
    assert report["batch"] == 4
    # Four samples of eight entries fill 32 slots, and a bootstrap takes no more.
    assert max(bootstrap_slots(artifact.program)) <= 32 < artifact.ring.slots
    assert report["predicted"]["evaluate_sample_ms"] * 4 == pytest.approx(report["predicted"]["evaluate_ms"])
    assert "evaluation per sample" in artifact.report.full()
    x = random.uniform(-1, 1, (4, 8))
    with hg.Server(artifact, keys, allow_insecure=True) as server:
        found = np.asarray(client.decrypt(server.run(client.encrypt(x))))
    exact = [interpret(program, row) for row in x]
    np.testing.assert_allclose(found, exact, atol=4 * report["predicted_max_abs_error"])
    np.testing.assert_allclose(found, hg.simulate(artifact, x), atol=1e-3)


REFRESH = """program refresh
input x: secret slots[16] in [-1, 1]
y = bootstrap(3 * x * x)
output z = y * y - rotate(y, 1)
"""


def test_the_layers_add_up_to_the_prediction() -> None:
    options = hg.Options(security_bits=None, log_ring=11)
    report = compiled(REFRESH, options).report.to_dict()
    rows = report["predicted_ms_by_layer"]
    assert [row["layer"] for row in rows] == ["y", "z"]
    assert sum(row["ms"] for row in rows) == pytest.approx(report["predicted_ms"], rel=1e-12)


@pytest.mark.front
def test_the_author_of_a_program_may_bootstrap() -> None:
    pytest.importorskip("openfhe")
    artifact, client, keys = keyed(REFRESH, hg.Options(security_bits=None, log_ring=11))
    (node,) = bootstraps(artifact.program)
    # Values up to three take a scale two bits smaller.
    assert node.attrs["size_bits"] == 2
    x = np.random.default_rng(5).uniform(-1, 1, 16)
    y = 3 * x * x
    with hg.Server(artifact, keys, allow_insecure=True) as server:
        assert client.decrypt(server.run(client.encrypt(x))) == pytest.approx(y * y - np.roll(y, -1), abs=1e-3)
    with pytest.raises(PlanningError, match="bootstrap=False"):
        hg.compile(hg.parse(REFRESH), hg.Options(security_bits=None, bootstrap=False))
    with pytest.raises(hg.errors.ProgramError, match="300 in size"):
        hg.compile(hg.parse(REFRESH.replace("3 * x", "300 * x")), hg.Options(security_bits=None))


def test_bootstraps_are_as_fine_as_they_must_be() -> None:
    pytest.importorskip("numba")
    pytest.importorskip("openfhe")
    options = hg.Options(security_bits=None, log_ring=11, bootstrap=True)
    random = np.random.default_rng(6)
    for scale, bits in ((36, 8.0), (44, 12.0), (None, 16.0)):
        artifact = hg.compile(hg.parse(REFRESH), replace(options, precision_bits=bits, scale_bits=scale))
        artifact = hg.Artifact.from_bytes(artifact.to_bytes())
        (_, client, keys), x = keyed(artifact), random.uniform(-1, 1, 16)
        y = 3 * x * x
        for backend in ("native", "openfhe"):
            with hg.Server(artifact, keys, backend=backend, allow_insecure=True) as server:
                found = client.decrypt(server.run(client.encrypt(x)))
            assert np.abs(found - (y * y - np.roll(y, -1))).max() < 8 * 2.0**-bits
    for bits, scale in ((16.0, 36), (26.0, None)):
        with pytest.raises(PlanningError, match="its error would be"):
            hg.compile(hg.parse(REFRESH), replace(options, precision_bits=bits, scale_bits=scale))
