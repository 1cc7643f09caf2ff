"""A folder with a model, samples, and a compiled artifact, made once; and a way to call the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heliograph.cli.main import main

MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(8, 6)
        self.act = torch.nn.ReLU()
        self.fc2 = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Two(torch.nn.Module):
    def forward(self, left, right):
        return left * right + left


def net():
    torch.manual_seed(0)
    return Net().eval()


made = net()
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)).eval()
torch.manual_seed(0)
close = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)).eval()
refused = torch.nn.Sequential(torch.nn.Unflatten(1, (1, 2, 4)), torch.nn.FractionalMaxPool2d(2, output_size=1)).eval()
two = Two().eval()
number = 3


def failing():
    return {}["nothing"]
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        return json.loads(self.out)


Call = Callable[..., Result]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> Call:
    """Run a command in the folder, in this process."""
    monkeypatch.chdir(folder)

    def run(*arguments: object) -> Result:
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.py, x.npy (20 samples), m.helio and p.helio."""
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("cli")
    (path / "model.py").write_text(MODEL)
    random = np.random.default_rng(0)
    np.save(path / "x.npy", random.uniform(-1, 1, (20, 8)))
    np.save(path / "wide.npy", np.random.default_rng(1).uniform(0, 1, (64, 16)))
    np.savez(path / "two.npz", left=random.uniform(-1, 1, (5, 4)), right=random.uniform(-1, 1, (5, 4)))
    main(
        f"compile {path}/model.py:net --calibration {path}/x.npy --insecure --degree 3 --quiet "
        f"-o {path}/m.helio --public {path}/p.helio".split()
    )
    return path
