"""What large vocabularies take: one-hot vectors are made in place, and sizes are checked before arrays are made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_MODEL = """
import numpy as np
import torch
from torch import nn
import heliograph as hg

class Words(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.table, self.out = nn.Embedding(words, 8), nn.Linear(8, 2)

    def forward(self, ids):
        return self.out(self.table(ids).mean(1))

def peak():
    # Not ru_maxrss: that of the process that began this one counts there.
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024

def samples(words):
    return torch.randint(0, words, (128, 8), generator=torch.Generator().manual_seed(0))
"""


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _MODEL + code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_vocabulary_of_thirty_thousand_words_is_traced_in_little_memory() -> None:
    # 7.7 GB when one-hot vectors were rows of a square matrix.
    text = _run("begun = peak()\nhg.trace(Words(30522).eval(), calibration=samples(30522))\nprint(peak() - begun)")
    assert float(text) < 600


def test_a_vocabulary_that_is_too_large_is_refused_before_arrays_are_made() -> None:
    text = _run(
        "begun = peak()\ntry:\n    hg.trace(Words(300000).eval(), calibration=samples(300000))\n"
        "except hg.UnsupportedError as error:\n    print(error)\nprint(peak() - begun)"
    )
    assert "8 rows of a table of 300000" in text
    assert float(text.splitlines()[-1]) < 400


@pytest.mark.filterwarnings("ignore")
def test_a_client_encrypts_words_in_the_memory_that_the_bill_says(tmp_path: Path) -> None:
    path = str(tmp_path / "words.helio")
    text = _run(
        f"artifact = hg.compile(Words(20000).eval(), calibration=samples(20000))\nartifact.save({path!r})\n"
        "print(artifact.report.figures.client_peak_bytes / 2**20)"
    )
    told = float(text)
    # The client alone, as a process of its own.
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import numpy as np\nimport heliograph as hg\n"
            f"client = hg.Client(hg.Artifact.load({path!r}).public())\nclient.encrypt(np.arange(8))\n"
            'print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024)',
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert float(done.stdout) < 1.4 * told
