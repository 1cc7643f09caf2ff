"""A training that is killed at any moment goes on, and ends with the weights of one that was not."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.trainings import TOY

import heliograph as hg
from heliograph.transfer import local
from heliograph.transfer.clear import ClearRun, History, train
from heliograph.transfer.data import TransferData
from heliograph.transfer.local import go_on, history_of, prepare, weights_of
from heliograph.transfer.settings import TransferSettings

_CHILD = """
import sys, warnings
warnings.simplefilter("ignore")
from heliograph.transfer.data import TransferData
from heliograph.transfer.local import go_on
go_on(sys.argv[1], TransferData.load(sys.argv[2]), allow_insecure=True)
"""


class _Killed(BaseException):
    """In place of a signal, at a place that is known."""


def test_killed_between_weights_and_history_it_has_the_weights_of_its_best_epoch(
    tmp_path: Path, blobs_data: TransferData, settings: TransferSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(settings, most_epochs=1)
    prepare(tmp_path, blobs_data, short, TOY)

    def killed_behind(write: Callable[..., None]) -> Callable[..., None]:
        def written(path: Path, *rest: object, **kind: object) -> None:
            write(path, *rest, **kind)
            if path.name in ("history.json", "weights.npy"):
                raise _Killed

        return written

    with monkeypatch.context() as patch:
        for name in ("write_file", "write_array"):
            patch.setattr(local, name, killed_behind(getattr(local, name)))
        with pytest.warns(hg.errors.InsecureWarning), pytest.raises(_Killed):
            go_on(tmp_path, blobs_data, allow_insecure=True)
    with pytest.warns(hg.errors.InsecureWarning):
        assert go_on(tmp_path, blobs_data, allow_insecure=True).best == 1
    clear = ClearRun(blobs_data, short)
    train(clear, blobs_data, short, History())
    assert np.abs(weights_of(tmp_path) - clear.best.weights).max() < 2e-3


def test_killed_five_times_it_ends_with_the_same_weights(
    tmp_path: Path, blobs_data: TransferData, settings: TransferSettings
) -> None:
    np.savez(
        tmp_path / "data.npz",
        x_train=blobs_data.x_train,
        y_train=blobs_data.y_train,
        x_val=blobs_data.x_val,
        y_val=blobs_data.y_val,
    )
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    for each in (folder, whole):
        prepare(each, blobs_data, settings, TOY)

    def command(of: Path) -> list[str]:
        return [sys.executable, "-c", _CHILD, str(of), str(tmp_path / "data.npz")]

    begun = time.monotonic()
    subprocess.run(command(whole), capture_output=True, check=True)
    seconds = time.monotonic() - begun
    moments, done = random.Random(20231113), []
    for _ in range(5):
        child = subprocess.Popen(command(folder), stderr=subprocess.PIPE)
        # From before the keys are there to the middle of a step.
        deadline = time.monotonic() + seconds * moments.uniform(0.05, 0.6)
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
        child.communicate()
        done.append(child.returncode)
    assert -signal.SIGKILL in done
    last = subprocess.run(command(folder), capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    one, other = history_of(folder), history_of(whole)
    assert (one.stopped, one.best, len(one.epochs)) == (other.stopped, other.best, len(other.epochs))
    # Two keys, two sequences of errors: the weights are the same within them.
    assert np.abs(weights_of(folder) - weights_of(whole)).max() < 1e-3
