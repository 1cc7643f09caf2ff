"""Every example runs, and the README's program is the example that is tested."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.data import absent, folder

ROOT = Path(__file__).resolve().parents[2]


def run(path: Path) -> str:
    environment = {**os.environ, "HELIOGRAPH_COSTS": "built-in", "HELIOGRAPH_DATA": str(folder())}
    result = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=ROOT, timeout=540, env=environment
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_readme_shows_the_first_program() -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    assert block.group(1) in (ROOT / "examples/first_program.py").read_text()


@pytest.mark.front
def test_first_program_prints_what_the_readme_says() -> None:
    """The ten lines of the bill, and the results in words."""
    shown = next(block for block in blocks() if "in the clear\n" in block and "bits of security" in block)
    printed = run(ROOT / "examples/first_program.py")

    def steady(text: str) -> list[str]:
        # Times and memory are predicted from the machine's own cost table where it has one.
        text = re.sub(r"[0-9.]+ (ms|s|MB|GB)\b", "#", text)
        return [" ".join(line.split()) for line in text.splitlines()]

    assert steady(printed) == steady(shown)
    assert len(steady(shown)) == 12


def test_the_readme_comes_to_the_point() -> None:
    """What a reader meets before the first table: a sentence, the installation, two commands, a program, a picture."""
    text = (ROOT / "README.md").read_text()
    before = text[: text.index("\n|")]
    marks = [
        "encrypted data",
        "pip install 'heliograph[torch]'",
        "make demo",
        "make test",
        "```python",
        "docs/images/",
    ]
    assert [before.index(mark) for mark in marks] == sorted(before.index(mark) for mark in marks)
    (program,) = re.findall(r"^```python\n(.*?)^```$", before, re.DOTALL | re.MULTILINE)
    assert len([line for line in program.splitlines() if line]) <= 12
    (picture,) = re.findall(r'<img src="([^"]+)"', before)
    assert (ROOT / picture).stat().st_size < 100_000


ADULT, SNIPS = folder() / "adult.npz", folder() / "snips_minilm_l6_features.npz"


@pytest.mark.parametrize(
    "name",
    [
        *("iris_mlp", "cnn_from_pytorch", "slot_program", "own_function", "two_secrets"),
        pytest.param("adult_trees", marks=pytest.mark.skipif(not ADULT.exists(), reason=absent(ADULT))),
        pytest.param("search", marks=pytest.mark.skipif(not SNIPS.exists(), reason=absent(SNIPS))),
        pytest.param("encrypted_search", marks=pytest.mark.skipif(not SNIPS.exists(), reason=absent(SNIPS))),
    ],
)
def test_example_prints_what_the_docs_say(name: str) -> None:
    text = (ROOT / "docs/examples.md").read_text()
    (shown,) = re.findall(rf"\(\.\./examples/{name}\.py\) prints?[^\n]*:\n\n```\n(.*?)```", text, re.DOTALL)
    assert run(ROOT / f"examples/{name}.py").endswith(shown)


def test_the_page_of_examples_leads_to_every_file() -> None:
    linked = set(re.findall(r"\(\.\./examples/([\w.]+)\)", (ROOT / "docs/examples.md").read_text()))
    assert linked == {path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".hg")}


def test_private_training_is_served_encrypted() -> None:
    assert "same class, encrypted: True" in run(ROOT / "examples/private_training.py")


def blocks() -> list[str]:
    """The fenced blocks of the README, in order."""
    return re.findall(r"^```\w*\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


def test_readme_commands_exist_with_their_options() -> None:
    import click
    from click.testing import CliRunner

    from heliograph.cli.main import cli

    lines = [line for block in blocks() for line in block.splitlines() if line.startswith("heliograph ")]
    assert len(lines) >= 7
    for line in lines:
        words = line.split("#")[0].split()
        command = cli.get_command(click.Context(cli), words[1])
        inner = words[2:3] if isinstance(command, click.Group) and words[2] in command.commands else []
        result = CliRunner().invoke(cli, [words[1], *inner, "--help"])
        assert result.exit_code == 0, line
        for option in (word for word in words if word.startswith("-")):
            assert re.search(rf"(^|\s|,){re.escape(option)}\b", result.output), (line, option)


@pytest.mark.front
def test_readme_commands_run(tmp_path: Path) -> None:
    """The block from a model to a decrypted answer, in its order, on a model of one's own."""
    pytest.importorskip("openfhe")
    (block,) = (block for block in blocks() if "heliograph keygen" in block)
    (tmp_path / "model.py").write_text(
        "import torch\n\n\ndef make():\n    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))\n"
    )
    samples = np.random.default_rng(0).uniform(size=(64, 4)).astype(np.float32)
    np.save(tmp_path / "samples.npy", samples)
    np.save(tmp_path / "x.npy", samples[0])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for line in block.splitlines():
        command = [sys.executable, "-m", "heliograph.cli.main", *shlex.split(line, comments=True)[1:]]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (line, done.stderr)
    assert (tmp_path / "report.html").exists()
    import heliograph as hg

    artifact = hg.Artifact.load(tmp_path / "model.helio")
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), hg.simulate(artifact, samples[0]), atol=1e-3)


def test_deep_networks_are_compiled_as_the_page_says() -> None:
    import torch

    import heliograph as hg

    text = (ROOT / "docs/deep_networks.md").read_text()
    (shown,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)).eval()
    names = {"hg": hg, "model": model, "images": torch.rand(600, 6)}
    exec(shown, names)
    assert names["artifact"].report.values["ranges"][0]["degree"] == 31


def test_readme_epsilon() -> None:
    from click.testing import CliRunner

    from heliograph.cli.main import cli

    (shown,) = (block for block in blocks() if block.startswith("$ heliograph dp"))
    command, *printed = shown.splitlines()
    result = CliRunner().invoke(cli, shlex.split(command)[2:])
    assert result.exit_code == 0
    # All but the milliseconds at the end.
    assert result.output.splitlines()[:3] == printed[:3]


def test_many_samples_at_once() -> None:
    pytest.importorskip("openfhe")
    import heliograph as hg

    (whole,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/batches.md").read_text(), re.DOTALL | re.MULTILINE)
    program = hg.parse(
        "program small\ninput x: secret tensor[3] in [-1, 1]\n"
        "h = linear(x, weight=[[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]])\noutput y = h * h\n"
    )
    samples = np.random.default_rng(0).uniform(-1, 1, size=(5000, 3))
    names = {"hg": hg, "program": program, "samples": samples}
    exec(whole, names)
    hidden = samples @ np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]]).T
    np.testing.assert_allclose(names["results"], hidden**2, atol=1e-3)  # type: ignore[arg-type]
    assert names["artifact"].report.to_dict()["batch"] > 2048  # type: ignore[attr-defined]


def test_certified_answers() -> None:
    """The page's program certifies, and so does its network with the certificate of the paper's first row."""
    import heliograph as hg

    (whole,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/certified.md").read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(whole, names)
    assert shown.getvalue() == "True\n"
    assert names["artifact"].report.values["security_bits"] == 128  # type: ignore[attr-defined]
    # Less noise than in the paper, which would drown these inputs.
    certificate = hg.Certificate("l2", sigma=0.1, tau=0.76, n=128, n0=32)
    found = hg.certify(names["program"], certificate).public().certificate  # type: ignore[arg-type]
    assert (found.n, found.n0, found.target) == (128, 32, 112)
    assert f"certified within {0.1 * 0.6745:.3g}"[:20] in str(hg.Answer(7, 120, True, found))
