"""The cache costs nothing but time when it is wrong, and a user's own function is one call."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import own_functions

from heliograph import functions
from heliograph.approx import cache, register_function
from heliograph.approx.compositions import sign as sign_module
from heliograph.approx.compositions.argmax import argmax
from heliograph.approx.compositions.sign import frontier, sign
from heliograph.approx.proofs.fit_proof import largest_error
from heliograph.errors import ProgramError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HELIOGRAPH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entry(folder: Path) -> Path:
    (found,) = folder.glob("*.json")
    return found


def test_a_search_is_done_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sign(0.05, 6.0, "best")
    calls: list[float] = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments[0])
        return frontier(*arguments)

    monkeypatch.setattr(sign_module, "frontier", counted)
    assert sign(0.05, 6.0, "best") == first
    assert not calls
    # Another question is another entry.
    assert sign(0.05, 6.5, "best").closeness_bits >= 6.5
    assert calls
    assert len(list(folder.glob("*"))) == 2


def hostile(path: Path, value: Any) -> None:
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"value": value}))


@pytest.mark.parametrize(
    "value",
    [
        [3],  # too weak
        [2, 4],
        [31] * 500,
        [1e9],
        [True, 15],
        "15",
        {"degrees": [15]},
        [-3, 15],
        [[15]],
        None,
        [],
    ],
)
def test_wrong_values_are_searched_again(folder: Path, value: Any) -> None:
    wanted = sign(0.05, 6.0, "best")
    hostile(entry(folder), value)
    assert sign(0.05, 6.0, "best") == wanted
    assert json.loads(entry(folder).read_text())["value"] == list(wanted.degrees)


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\x80\x04K\x01.", b"null", b"{}", b" " * 10_000_000])
def test_broken_files_are_ignored(folder: Path, data: bytes) -> None:
    wanted = sign(0.05, 6.0, "best")
    entry(folder).write_bytes(data)
    assert sign(0.05, 6.0, "best") == wanted


def test_foreign_entries_are_ignored(folder: Path) -> None:
    """An entry under another question's name, a link and a pipe are not read."""
    wanted = argmax(3, 0.05, 1)
    path = entry(folder)
    good = path.read_text()
    path.write_text(json.dumps(json.loads(good) | {"kind": "sign"}))
    assert argmax(3, 0.05, 1) == wanted
    path.unlink()
    path.symlink_to("/dev/zero")
    assert argmax(3, 0.05, 1) == wanted
    if hasattr(os, "mkfifo"):
        path.unlink()
        os.mkfifo(path)
        assert argmax(3, 0.05, 1) == wanted
        assert stat.S_ISREG(path.stat().st_mode)


def test_folders_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HELIOGRAPH_CACHE", str(tmp_path / "file" / "cache"))
    wanted = sign(0.1, 5.0, "best")
    monkeypatch.setenv("HELIOGRAPH_CACHE", "")
    assert cache.folder() is None
    assert sign(0.1, 5.0, "best") == wanted


def test_writers_at_once(folder: Path) -> None:
    def write(value: int) -> None:
        for _ in range(50):
            cache.store("test", {"x": 1}, [value] * 1000)
            seen = cache.load("test", {"x": 1})
            assert seen is not None
            assert len(set(seen)) == 1

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.suffix for path in folder.iterdir()] == [".json"]


@pytest.fixture
def _own_functions() -> Iterator[None]:
    with own_functions.forgotten():
        yield


@pytest.mark.usefixtures("_own_functions")
def test_registered_functions_are_fitted_and_proved() -> None:
    bump = register_function("bump", lambda x: np.exp(-x * x), low=-3.0, high=3.0, slope=0.8578)
    from heliograph.approx.fits.fit import fit

    assert functions.function("bump") is bump
    made = fit(bump.evaluate, -3.0, 3.0, 12)
    bound, proved = largest_error(made.coefficients, -3.0, 3.0, bump)
    x = np.linspace(-3, 3, 777_777)
    error = np.abs(made(x) - bump.evaluate(x)).max()
    assert proved
    assert error <= bound <= 1.05 * error
    plain = register_function("bump2", lambda x: np.exp(-x * x))
    measured, proved = largest_error(made.coefficients, -3.0, 3.0, plain)
    assert not proved
    assert measured == pytest.approx(error, rel=1e-4)


@pytest.mark.usefixtures("_own_functions")
@pytest.mark.parametrize(
    ("name", "evaluate", "keys", "words"),
    [
        ("relu", np.abs, {}, "already"),
        ("not a name", np.abs, {}, "not a name"),
        ("mine", np.abs, {"low": 1.0, "high": 0.0}, "not an interval"),
        ("mine", np.abs, {"low": 1.0}, "not an interval"),
        ("mine", lambda x: 1 / x, {"low": -1.0, "high": 1.0}, "not finite at 0"),
        ("mine", lambda x: x.sum(), {"low": -1.0, "high": 1.0}, "shape"),
        ("mine", np.abs, {"slope": float("nan")}, "bound"),
        ("mine", np.abs, {"method": "spline"}, "no method"),
        ("mine", np.abs, {"kinks": (float("inf"),)}, "kinks"),
        ("add", np.abs, {}, "already"),
    ],
)
def test_registrations_refuse(name: str, evaluate: Any, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        register_function(name, evaluate, **keys)
