"""`heliograph refine`: from a model or a program and samples to a program that `heliograph compile` takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli.conftest import Call

import heliograph as hg
from heliograph.interpret import interpret_batch


@pytest.fixture
def samples(folder: Path) -> Path:
    path = folder / "many.npy"
    np.save(path, np.random.default_rng(3).uniform(-1, 1, (200, 8)))
    (folder / "shake.py").write_text("import torch\n\n\ndef shake(x):\n    return x + 0.01 * torch.randn_like(x)\n")
    return path


def test_refine_then_compile(call: Call, folder: Path, samples: Path) -> None:
    arguments = ("--samples", samples, "--degree", 2, "--epochs", 3, "--batch-size", 32, "--augment", "shake.py:shake")
    found = call("refine", "model.py:net", *arguments, "-o", "low.hg", "--json").json
    assert found["degrees"] == {"act": 2}
    assert found["samples_apart"] == 25
    assert len(found["rounds"][0]["epochs"]) == 3
    assert found["agreement"] >= found["before"]
    assert not (folder / "low.hg.checkpoint").exists()
    program = hg.parse(folder / "low.hg")
    assert [node.op for node in program.nodes].count("poly") == 1
    result = call("compile", "low.hg", "--calibration", samples, "--insecure", "-o", "low.helio", "--json").json
    assert result["artifact"] == "low.helio"
    # A program is refined as a module is, and the same call gives the same program.
    table = call("refine", "model.py:net", *arguments, "-o", "again.hg")
    assert table.code == 0
    assert "1 x 2" in table.out
    assert "25 held-out samples" in table.out
    x = np.load(samples)[:20]
    np.testing.assert_array_equal(interpret_batch(hg.parse(folder / "again.hg"), x)[0], interpret_batch(program, x)[0])
    call("refine", "low.hg", "--samples", samples, "--degree-of", "act=1", "--epochs", 1, "-o", "line.hg", "-q")
    assert (folder / "line.hg").exists()


def test_refusals(call: Call, folder: Path, samples: Path) -> None:
    for arguments, text in (
        (("model.py:net", "--samples", "x.npy", "--degree", 2, "-o", "low.txt"), "low.txt is not a name for a program"),
        (("model.py:net", "--samples", "none.npy"), "none.npy cannot be read"),
        (("model.py:net", "--samples", samples, "--degree", 2, "--rate", -1), "rate=-1.0 cannot be used"),
        (
            ("model.py:net", "--samples", samples, "--degree-of", "fc1=2"),
            "no layer with a polynomial is called 'fc1'",
        ),
        (("model.py:net", "--samples", samples, "--degree", 2, "--augment", "shake.py:no"), "defines no 'no'"),
    ):
        result = call("refine", *arguments)
        assert result.code == 2
        assert text in result.err
    (folder / "bad.hg.checkpoint").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    result = call("refine", "model.py:net", "--samples", samples, "--degree", 2, "-o", "bad.hg")
    assert result.code == 2
    assert "the checkpoint cannot be read" in result.err
