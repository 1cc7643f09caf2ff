"""Programs written for other systems: OpenFHE runs one and comes to the same slots, and MLIR is read."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from runtime import bootstrapped
from runtime.support import toy_artifact

import heliograph as hg
from heliograph.cli.main import cli
from heliograph.tools.exports.export import export
from heliograph.tools.exports.mlir import mlir
from heliograph.tools.exports.recording import recorded

TEXTS = {
    # Plaintext factors, products of ciphertexts, rotations, several outputs.
    "layers": """program layers
input x: secret tensor[6] in [-1, 1]
h = tanh(x)
output y = 2 * h + x, z = sum(h * h, axes=[0])
""",
    # Complex slots and conjugates.
    "products": """program products
input a: secret tensor[4, 4] in [-1, 1]
input b: secret tensor[4, 4] in [-1, 1]
output y = a @ b
""",
}


@functools.cache
def compiled(kind: str) -> hg.Artifact:
    return hg.compile(hg.parse(TEXTS[kind]), hg.Options(security_bits=None, degree=5, precision_bits=14))


@pytest.mark.parametrize("kind", TEXTS)
def test_openfhe_comes_to_the_same_slots(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("openfhe", reason="the program is one of OpenFHE for Python")
    text, arrays = export(compiled(kind), tmp_path / "made", "openfhe-python")
    assert (text.name, arrays.name) == ("made.py", "made.npz")
    # From another folder, and without this package.
    run = subprocess.run(
        [sys.executable, "-I", str(text)], cwd="/", capture_output=True, text=True, timeout=300, check=True
    )
    found = re.findall(r"largest value (\S+), error: largest (\S+), median (\S+)", run.stdout)
    assert len(found) == len(compiled(kind).program.outputs)
    for value, largest, median in found:
        assert float(value) > 0.05
        assert 0.0 < float(median) < 2.0**-10
        assert float(largest) < 2.0**-6, "errors of low-frequency slots, where the roundings of OpenFHE add up"


@pytest.mark.parametrize("kind", TEXTS)
def test_mlir_defines_what_it_reads(kind: str) -> None:
    found = recorded(compiled(kind))
    text = mlir(found)
    known = set(re.findall(r"(%v\d+): ", text.splitlines()[1]))
    assert len(known) == len(found.inputs)
    for line in text.splitlines()[2:-4]:
        made, rest = line.strip().split(" = ", 1)
        assert set(re.findall(r"%[vp]\d+", rest)) <= known
        assert made not in known
        known.add(made)
    assert text.count('"heliograph.') == len(found.steps) + sum(step.plain is not None for step in found.steps)
    for step in found.steps:
        if step.plain is not None and isinstance(step.plain.value, str):
            assert step.plain.value in found.vectors


def test_xdsl_reads_the_text() -> None:
    pytest.importorskip(
        "xdsl", reason="xDSL is not installed (pip install xdsl): only the names in the text are checked"
    )
    from xdsl.context import Context
    from xdsl.dialects.builtin import Builtin
    from xdsl.dialects.func import Func
    from xdsl.parser import Parser

    context = Context(allow_unregistered=True)
    context.load_dialect(Builtin)
    context.load_dialect(Func)
    Parser(context, mlir(recorded(compiled("products")))).parse_module().verify()


def test_the_example_is_the_given_sample() -> None:
    given = np.linspace(-1.0, 1.0, 6)
    found = recorded(compiled("layers"), [given])
    placed = compiled("layers").program.interface.inputs[0].placed
    assert np.array_equal(found.example["in/x/0"], placed.pack(given)[0])


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(hg.ProgramError, match="a program that bootstraps cannot be exported"):
        export(bootstrapped.artifact(), tmp_path / "x", "mlir")
    plain = hg.compile(
        hg.parse(
            "program p\ninput x: secret slots[4] in [-1, 1]\ninput w: plain slots[4] in [0, 1]\noutput y = w * x\n"
        ),
        hg.Options(security_bits=None, log_ring=11),
    )
    with pytest.raises(hg.ProgramError, match="with plain inputs cannot be exported"):
        export(plain, tmp_path / "x", "mlir")
    with pytest.raises(hg.ProgramError, match="no form 'heir'"):
        export(plain, tmp_path / "x", "heir")
    assert not list(tmp_path.iterdir())


def test_the_command_writes_and_does_not_overwrite(tmp_path: Path) -> None:
    toy_artifact().save(tmp_path / "a.helio")
    words = ["export", str(tmp_path / "a.helio"), "--to", "mlir", "-o", str(tmp_path / "made.mlir")]
    run = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert run.output.splitlines() == [f"wrote {tmp_path / 'made.mlir'}", f"wrote {tmp_path / 'made.npz'}"]
    assert (tmp_path / "made.mlir").read_text().startswith("module attributes {heliograph.artifact = ")
    with pytest.raises(hg.ProgramError, match="already exists"):
        CliRunner().invoke(cli, words, catch_exceptions=False)
