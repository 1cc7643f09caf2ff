"""Inputs that only the server knows, and programs on slots: from text to a decrypted answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heliograph.artifact.artifact import Artifact
from heliograph.cli.main import main
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.dsl.parse import parse
from heliograph.errors import PlanningError, ProgramError, RangeError, WireError
from heliograph.execution.memory import memory_bytes
from heliograph.interpret import interpret
from heliograph.tools.simulate import simulate

TOY = Options(security_bits=None, precision_bits=16, degree=5)
SCORER = """program scorer
input x: secret tensor[4] in [-1, 1]
input w: plain tensor[3, 4] in [-1, 1]
input b: plain tensor[3] in [-2, 2]
h = w @ x + relu(b)
output y = sigmoid(h) * (b * b) - 2 * b
"""
FILTER = """program filter
input x: secret slots[8] in [-1, 1]
input w: plain slots[8] in [0, 1]
s = 0.5 * x + 0.25 * rotate(x, 1) + 0.25 * rotate(x, -1)
d = rescale(s * w) - w * w
output s, y = poly(d, [1, 0.5, 0.25, 0.125], low=-2, high=1)
"""


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.uniform(-1, 1, 4), random.uniform(-1, 1, (3, 4)), random.uniform(-2, 2, 3)


def test_plain_inputs_are_given_to_the_server_at_run_time() -> None:
    pytest.importorskip("openfhe")
    from heliograph.runtime.client.client import Client
    from heliograph.runtime.server.server import Server

    artifact = compile(parse(SCORER), TOY)
    artifact = Artifact.from_bytes(artifact.to_bytes())
    assert artifact.plain_inputs == ("w", "b")
    assert [spec.name for spec in artifact.public().inputs] == ["x"]
    client = Client(artifact.public(), allow_insecure=True)
    with Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        for seed in range(2):
            x, w, b = arrays(seed)
            answer = client.decrypt(server.run(client.encrypt(x), plain={"w": w, "b": b}))
            np.testing.assert_allclose(answer, simulate(artifact, x, w, b, noisy=False), atol=1e-3)
        with pytest.raises(ProgramError, match="plain inputs are 'w', 'b'"):
            server.run(client.encrypt(x))
        with pytest.raises(RangeError, match="'b' is outside its range"):
            server.run(client.encrypt(x), plain={"w": w, "b": [0, 0, 9]})
        with pytest.raises(ProgramError, match="holds nan"):
            server.run(client.encrypt(x), plain={"w": w * np.nan, "b": b})


def test_what_is_plain_is_computed_exactly_and_in_the_clear() -> None:
    artifact = compile(parse(SCORER), TOY)
    assert [entry["function"] for entry in artifact.report.values["ranges"]] == ["sigmoid"]
    assert "relu" in {node.op for node in artifact.program.nodes if not node.type.secret}
    x, w, b = arrays()
    polynomial = simulate(artifact, x, w, b, noisy=False)
    exact = interpret(parse(SCORER), x, w, b)
    assert np.abs(polynomial - exact).max() <= artifact.report.values["predicted_max_abs_error"] * 1.5


def test_a_hostile_plain_part_is_refused() -> None:
    artifact = compile(parse(SCORER), TOY)
    text = str(artifact.program)
    huge = text.replace("shape = [3, 4]", "shape = [300000, 400000]").replace("3x4, plain", "300000x400000, plain")
    with pytest.raises(WireError):
        Artifact.from_bytes(artifact.to_bytes().replace(text.encode(), huge.encode()))


def test_a_slot_program_compiles_and_runs() -> None:
    pytest.importorskip("openfhe")
    from heliograph.runtime.client.client import Client
    from heliograph.runtime.server.server import Server

    program = parse(FILTER)
    artifact = compile(program, TOY)
    assert set(artifact.stages) == {"packed", "managed"}
    assert artifact.report.values["ranges"][0]["source"] == "proved"
    random = np.random.default_rng(3)
    x, w = random.uniform(-1, 1, 8), random.uniform(0, 1, 8)
    client = Client(artifact.public(), allow_insecure=True)
    with Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        answers = client.decrypt(server.run(client.encrypt(x), plain={"w": w}))
    for answer, expected in zip(answers, interpret(program, x, w), strict=True):
        np.testing.assert_allclose(answer, expected, atol=1e-4)


def test_combinations_are_called_by_the_name_in_the_table() -> None:
    text = """program combination
input x: secret slots[5] in [-1, 1]
input y: secret slots[5] in [-1, 0.5]
output z = lincomb(x, y, weights=[0.5, -2], constant=1)
"""
    artifact = compile(parse(text), TOY)
    (known,) = artifact.program.interface.outputs
    assert (known.low, known.high) == pytest.approx((-0.5, 3.5))
    random = np.random.default_rng(2)
    x, y = random.uniform(-1, 1, 5), random.uniform(-1, 0.5, 5)
    np.testing.assert_allclose(simulate(artifact, x, y), 0.5 * x - 2 * y + 1, atol=1e-3)


def test_an_explicit_rescale_stands_where_it_was_asked_for_or_is_refused() -> None:
    body = "program p\ninput x: secret slots[4] in [-1, 1]\noutput y = {}\n"
    lazy = compile(parse(body.format("x * x + rotate(x, 1) * x")), TOY)
    asked = compile(parse(body.format("rescale(x * x) + rescale(rotate(x, 1) * x)")), TOY)
    count = [sum(node.op == "rescale" for node in artifact.program.nodes) for artifact in (lazy, asked)]
    assert count == [1, 2]
    with pytest.raises(PlanningError, match=r"<text>:3:12.*there is nothing to rescale"):
        compile(parse(body.format("rescale(rotate(x, 1))")), TOY)


def test_a_polynomial_whose_interval_is_proved_to_be_missed_is_refused() -> None:
    text = "program p\ninput x: secret slots[4] in [2, 3]\noutput y = poly(x, [0, 1], low=-1, high=1)\n"
    with pytest.raises(ProgramError, match="outside its interval"):
        compile(parse(text), TOY)


def test_more_slots_than_the_ring_has_take_a_larger_ring() -> None:
    text = "program p\ninput x: secret slots[2000] in [-1, 1]\noutput y = 0.5 * x\n"
    assert compile(parse(text), TOY).ring.slots >= 2048
    with pytest.raises(PlanningError, match="2048 slots"):
        compile(parse(text), Options(security_bits=None, log_ring=11))


def test_a_bound_on_memory_says_what_it_costs() -> None:
    """Half of the keys have room; the free plan is the same, without reading any again."""
    first, second = ("+".join(f"rotate({of}, {a})" for a in range(65, 81)) for of in "xy")
    source = (
        f"program many\ninput x: secret slots[256] in [-1, 1]\na = {first}\ny = 0.01 * a * x\n"
        f"output z = 0.01 * ({second})\n"
    )
    options = Options(security_bits=None, log_ring=11)
    free = compile(parse(source), options)
    planned = memory_bytes(free.program, free.ring)
    enough = compile(parse(source), replace(options, memory_bytes=planned["server"]))
    tight = compile(
        parse(source), replace(options, memory_bytes=planned["server_folder"] - planned["resident_keys"] // 2)
    )
    values, words = tight.report.to_dict(), "a run without it would take about"
    assert values["key_loading"]["ms"] > 0
    assert values["unbounded_ms"] == free.report.to_dict()["predicted_ms"]
    assert f"{words} {values['unbounded_ms'] / 1e3:.3g} s" in " ".join(tight.report.full().split())
    for other in (free, enough):
        assert other.report.to_dict()["unbounded_ms"] is None
        assert words not in " ".join(other.report.full().split())


def test_the_command_line_takes_plain_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openfhe")
    x, w, b = arrays()
    (tmp_path / "scorer.hg").write_text(SCORER)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "own.npz", w=w, b=b)
    np.savez(tmp_path / "all.npz", x=x, w=w, b=b)
    paths = {name: str(tmp_path / name) for name in ("a.helio", "pub", "k.key", "e.keys", "x.ct", "y.ct", "y.npy")}

    def call(*arguments: str) -> str:
        main(list(arguments))
        return capsys.readouterr().out

    call("compile", str(tmp_path / "scorer.hg"), "-o", paths["a.helio"], "--insecure", "--degree", "5", "--quiet")
    scorer = str(tmp_path / "scorer.hg")
    call("compile", scorer, "-o", str(tmp_path / "top.helio"), "--insecure", "--top1", "--flood", "0.02", "--quiet")
    top = Artifact.load(tmp_path / "top.helio")
    assert (
        simulate(top, x, w, b).round().tolist() == np.eye(3)[int(interpret(parse(SCORER), x, w, b).argmax())].tolist()
    )
    assert "error against the simulation" in call(
        "run", "--insecure", paths["a.helio"], "--input", str(tmp_path / "all.npz")
    )
    call("keygen", "--insecure", paths["a.helio"], "-o", paths["k.key"], "--keys", paths["e.keys"], "--quiet")
    call("encrypt", "--insecure", paths["k.key"], str(tmp_path / "x.npy"), "-o", paths["x.ct"], "--quiet")
    own = ("--plain", str(tmp_path / "own.npz"), "-o", paths["y.ct"])
    call("evaluate", "--insecure", paths["a.helio"], paths["x.ct"], "--keys", paths["e.keys"], *own, "--quiet")
    call("decrypt", "--insecure", paths["k.key"], paths["y.ct"], "-o", paths["y.npy"], "--quiet")
    answer = np.load(paths["y.npy"])
    np.testing.assert_allclose(answer, simulate(Artifact.load(paths["a.helio"]), x, w, b), atol=1e-2)


def test_an_author_stacks_vectors_for_a_weighted_sum() -> None:
    text = """program stacked
input x: secret slots[8] in [-1, 1]
input y: secret slots[8] in [-1, 1]
output z = weighted_sum(stack(x * y, y), matrix=[[0.5, 2], [1, 0]], row=0)
"""
    artifact = compile(parse(text), TOY)
    x, y = np.random.default_rng(0).uniform(-1, 1, (2, 8))
    np.testing.assert_allclose(simulate(artifact, x, y, noisy=False), 0.5 * x * y + 2 * y, atol=1e-6)
