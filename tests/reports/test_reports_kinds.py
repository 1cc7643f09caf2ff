"""The reports of each kind of program: plain inputs, slots, decisions (compositions), several outputs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from kinds_of_programs import KINDS, TEXTS, artifact, program

import heliograph as hg
from heliograph.cli.main import cli
from heliograph.errors import ProgramError
from heliograph.interpret import interpret
from heliograph.report.explain import Recorder


def run(*arguments) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def samples(kind: str, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    found = []
    for node in program(kind).inputs:
        shape = (node.type.slots,) if hasattr(node.type, "slots") else node.type.shape
        found.append(random.uniform(node.attrs["low"], node.attrs["high"], shape))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_inspect_and_diff(kind, tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib (the extra `plot`)")
    path = tmp_path / "a.helio"
    artifact(kind).save(path)
    run("inspect", path, "--html", tmp_path / "r.html", "--dot", tmp_path / "g.dot", "--png", tmp_path / "p", "-q")
    assert (tmp_path / "r.html").stat().st_size > 10_000
    assert {plot.name for plot in (tmp_path / "p").iterdir()} == {"levels.png", "ranges.png", "times.png"}
    found = json.loads(run("inspect", path, "--json"))
    secret = sum(node.type.secret for node in artifact(kind).program.nodes)
    assert len(found["nodes"]) == secret, "plain values have no level and are not listed"
    assert (tmp_path / "g.dot").read_text().count("[label=") == secret
    assert "cost the same" in run("diff", path, path)
    other = tmp_path / "b.helio"
    hg.compile(program(kind), hg.Options(security_bits=None, degree=5, precision_bits=10, log_ring=12)).save(other)
    assert "->" in run("diff", path, other)


@pytest.mark.parametrize("kind", KINDS)
def test_debug(kind):
    pytest.importorskip("openfhe")
    given = samples(kind)
    found = hg.debug(artifact(kind), *given, program=program(kind), tolerance=0.2)
    assert found.first_deviation is None, str(found)
    outputs = [layer for layer in found.layers if layer.kind == "output"]
    expected = interpret(program(kind), *given)
    for layer, value in zip(outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(layer.original, value, atol=1e-12)
        assert layer.encryption_error < 1e-6
    if kind == "slots":
        (inside,) = [layer for layer in found.layers if layer.kind == "activation"]
        assert inside.approximation_error < 1e-12, "the polynomial is the program's own"
    if kind == "decision":
        # What a composition reads is no value of the program; that of the activation behind it is.
        assert [layer.original is None for layer in found.layers if layer.kind == "activation"].count(False) == 1


def test_debug_refuses_another_program_on_slots():
    other = hg.parse(TEXTS["slots"].replace("output s, y = poly(d", "output s, z = poly(d"))
    with pytest.raises(ProgramError, match="not the one"):
        hg.debug(artifact("slots"), *samples("slots"), program=other, encrypted=False)


def explained(kind: str, name: str) -> dict[str, tuple[float, float]]:
    recorder = Recorder()
    hg.compile(program(kind), hg.Options(security_bits=None, degree=5, precision_bits=10), watch=recorder)
    return {i.what: (i.before, i.after) for i in recorder.explain(program(kind), name).improved}


def test_what_expand_and_fit_slots_improved():
    assert explained("decision", "expand") == {"functions of several values, or along any axis": (2, 0)}
    assert explained("plain", "approximate") == {"functions that encryption cannot compute": (1, 0)}, "relu(b) is plain"
    assert explained("decision", "approximate") == {"functions that encryption cannot compute": (3, 0)}
    slots = artifact("slots").ring.slots
    assert explained("slots", "fit-slots") == {
        "slots of a ciphertext in use": (8, slots),
        "polynomials that stand on another interval than [-1, 1]": (1, 0),
    }
