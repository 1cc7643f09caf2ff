"""The machine's pace against the built-in prices: its measurement, and the warning of a server."""

import json
import subprocess
import sys
from typing import Any

import pytest

from heliograph.artifact.costs import VARIABLE, costs_path, has_own_costs

pytest.importorskip("numba")


def test_a_rotation_is_measured_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "heliograph.runtime.native.pace"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert set(found) == {"measured_ms", "predicted_ms", "fits"}
    assert 0.1 < found["measured_ms"] < 1000
    assert 0.5 < found["predicted_ms"] < 10


@pytest.mark.parametrize(("ratio", "fits"), [(0.74, False), (0.76, True), (1.0, True), (1.33, True), (1.34, False)])
def test_a_third_to_either_side_is_allowed(ratio: float, fits: bool) -> None:
    from heliograph.runtime.native.pace import Pace

    assert Pace(2.0 * ratio, 2.0).fits is fits


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    from heliograph.serving import run

    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(run, "log", lambda event, **fields: lines.append({"event": event, **fields}))
    return lines


@pytest.mark.parametrize("fits", [True, False])
def test_a_server_warns_of_prices_that_do_not_fit(
    fits: bool, monkeypatch: pytest.MonkeyPatch, logged: list[dict[str, Any]]
) -> None:
    from heliograph.serving import run

    said = json.dumps({"measured_ms": 4.0, "predicted_ms": 2.0, "fits": fits}).encode()
    monkeypatch.setattr(run.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, said))
    run._log_pace()
    assert [each["measured_ms"] for each in logged] == [4.0] * (not fits)
    assert all("doctor --calibrate" in each["text"] for each in logged)


def test_a_measurement_that_fails_is_logged(monkeypatch: pytest.MonkeyPatch, logged: list[dict[str, Any]]) -> None:
    from heliograph.serving import run

    monkeypatch.setattr(run.sys, "executable", "/bin/false")
    run._log_pace()
    assert [each["text"] for each in logged] == ["no rotation could be measured: CalledProcessError"]


def test_own_prices_are_a_table_or_a_choice(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE)
    assert not has_own_costs()
    costs_path().parent.mkdir()
    costs_path().write_text("{}")
    assert has_own_costs()
    costs_path().unlink()
    monkeypatch.setenv(VARIABLE, "built-in")
    assert has_own_costs()
