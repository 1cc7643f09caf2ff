"""The same model in another folder is the same artifact, and no folder of its author is in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runtime.support import mlp

import heliograph as hg
from heliograph.artifact.artifact import Artifact
from heliograph.compiler.places import portable, portable_files
from heliograph.errors import ProgramError
from heliograph.ir.text import print_program, without_places

MODEL = """import torch
from blocks.act import squashed
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(8, 6), torch.nn.Linear(6, 3)
    def forward(self, x):
        return self.fc2(squashed(torch.relu(self.fc1(x))))
torch.manual_seed(0)
net = Net().eval()
"""
BLOCK = """import torch
def squashed(x):
    return torch.sigmoid(x)
"""
TEXT = """program scorer
input x: secret tensor[4] in [-1, 1]
output y = relu([[1, 2, 3, 4], [4, 3, 2, 1]] @ x)
"""
SCRIPT = """import sys
sys.path.insert(0, {folder!r})
import torch, numpy as np, heliograph as hg
from pathlib import Path
import model
options = hg.Options(security_bits=None, degree=3)
samples = np.random.default_rng(0).uniform(-1, 1, (16, 8)).astype(np.float32)
program = hg.trace(model.net, torch.zeros((1, 8)), calibration=samples)
hg.compile(program, options).save("net.helio")
hg.compile(hg.parse(Path({folder!r}) / "scorer.hg"), options).save("scorer.helio")
"""


def compiled_in(folder: Path, work: Path, home: Path) -> tuple[bytes, bytes]:
    """The artifacts of a torch model of two files and of a program in the language, made in another process."""
    for path, text in (
        (folder / "model.py", MODEL),
        (folder / "blocks" / "act.py", BLOCK),
        (folder / "scorer.hg", TEXT),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in (work, home):
        path.mkdir(parents=True, exist_ok=True)
    root = str(Path(hg.__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "HOME": str(home), "HELIOGRAPH_COSTS": "built-in"}
    subprocess.run(
        [sys.executable, "-c", SCRIPT.format(folder=str(folder))], cwd=work, env=environment, check=True, timeout=240
    )
    return (work / "net.helio").read_bytes(), (work / "scorer.helio").read_bytes()


def test_one_model_in_two_folders_is_one_artifact(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    one = tmp_path / "one"
    first = compiled_in(one / "models", one / "models", one)
    second = compiled_in(tmp_path / "deep" / "er" / "project", tmp_path / "elsewhere", tmp_path / "home")
    assert first == second
    for data in first:
        text = data.decode("latin1")
        for folder in (tmp_path, Path(hg.__file__).resolve().parent, Path.home()):
            assert str(folder) not in text
            assert folder.name not in text.replace("heliograph-ir", "")
    found = Artifact.from_bytes(first[0]).report.full()
    assert "(model.py:8)" in found
    assert "(blocks/act.py:3)" in found
    assert "(scorer.hg:3)" in Artifact.from_bytes(first[1]).report.full()


def test_files_are_told_from_the_folder_that_they_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = tmp_path / "work"
    assert portable_files([str(base / "a.py"), "work/nets/b.py", "<text>", ""]) == {
        str(base / "a.py"): "a.py",
        "work/nets/b.py": "nets/b.py",
        "<text>": "<text>",
        "": "",
    }
    installed = "/opt/env/lib/python3.10/site-packages/vision/models/resnet.py"
    assert portable_files([installed, "work/../work/nets/b.py"]) == {
        installed: "vision/models/resnet.py",
        "work/../work/nets/b.py": "b.py",
        "": "",
    }
    # No folder but the user's home or the root: names alone.
    home = Path.home()
    far = [str(home / "one" / "a.py"), str(home / "other" / "b.py")]
    assert list(portable_files(far).values())[:2] in (["a.py", "b.py"], ["b.py", "a.py"])
    assert set(portable_files(["/x/y/a.py", str(tmp_path / "b.py")]).values()) == {"a.py", "b.py", ""}


def test_errors_name_files_as_the_user_can_open_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "p.hg").write_text("program p\ninput x: secret tensor[4] in [-1, 1]\noutput y = relu(x)\n")
    program = hg.parse(tmp_path / "nets" / "p.hg")
    kept, before = portable(program)
    assert before == {"p.hg": "nets/p.hg"}
    assert {node.loc.file for node in kept.nodes} == {"p.hg"}
    assert {node.loc.file for node in program.nodes} == {"nets/p.hg"}
    with pytest.raises(ProgramError) as caught:
        hg.compile(program, hg.Options(security_bits=None, target_error=1e-300))
    assert str(caught.value).startswith("nets/p.hg:3")


def test_a_program_without_folders_is_left_as_it_is() -> None:
    program = mlp()
    assert portable(program) == (program, {})


def test_texts_without_places() -> None:
    text = print_program(mlp())
    bare = without_places(text)
    assert "model.py" not in bare
    for layer in ("fc1", "act", "fc2"):
        assert f' loc("{layer}")' in bare
    assert without_places(bare) == bare
    assert without_places(text.replace('"model.py", 5', r'"C:\\a \"b\".py", 123')) == bare
    assert without_places(text.replace('"act"', '"loc(\\"model.py\\", 5, 5, \\"x\\")"')) != bare
