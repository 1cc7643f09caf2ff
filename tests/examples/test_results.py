"""Benchmarks keep their results one by one, and go on where they stood."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from results import Results, write


def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(tmp_path / "images.json")
    assert results.missing(3) == [0, 1, 2]
    results.add(0, {"scores": [0.1, -1e-300]})
    results.add(2, {"scores": [1.0]})
    again = Results(tmp_path / "images.json")
    assert again.missing(4) == [1, 3]
    assert again.first(1) == [{"scores": [0.1, -1e-300]}]

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    # Killed while it writes: the file is as it was.
    monkeypatch.setattr("os.fsync", stopped)
    with pytest.raises(KeyboardInterrupt):
        again.add(1, {"scores": [2.0] * 1000})
    monkeypatch.undo()
    assert Results(tmp_path / "images.json").missing(4) == [1, 3]
    write(tmp_path / "images.json", {"5": {}})
    assert Results(tmp_path / "images.json").missing(6) == [0, 1, 2, 3, 4]
