"""Budgets of time and memory end what runs over them, and leave the process as it was."""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
import time

import numpy as np
import pytest

from heliograph.dp.accounting.limits import limited
from heliograph.errors import ProgramError, WireError


def state() -> tuple[object, ...]:
    return resource.getrlimit(resource.RLIMIT_AS), threading.active_count()


def test_work_within_its_budget_is_let_alone() -> None:
    before = state()
    with limited(30.0, 10**9, "file"):
        assert float(np.ones(1000).sum()) == 1000
    assert state() == before


def test_time() -> None:
    before, began = state(), time.process_time()

    def stubborn() -> None:
        # As what tries one method after another.
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))

    with pytest.raises(WireError, match=r"more than 0\.2 s of the processor"), limited(0.2, 10**9, "file"):
        stubborn()
    assert time.process_time() - began < 2
    assert state() == before


def test_a_ring_that_was_swallowed_comes_again() -> None:
    rings = 0

    def deaf() -> None:
        nonlocal rings
        while rings < 2:
            try:
                while True:
                    sum(range(1000))
            except BaseException:
                rings += 1
                if rings == 2:
                    raise

    with pytest.raises(WireError, match="of the processor"), limited(0.1, 10**9, "file"):
        deaf()
    assert rings == 2


def test_memory() -> None:
    before = state()
    with pytest.raises(WireError, match=r"more than 0\.2 GB of memory"), limited(30.0, 2 * 10**8, "file"):
        np.ones(10**9)
    assert state() == before


def test_errors_of_the_work_itself_are_its_own() -> None:
    before = state()
    with pytest.raises(WireError, match="truncated"), limited(30.0, 10**9, "file"):
        raise WireError("truncated")
    assert state() == before


def test_a_thread_of_its_own() -> None:
    found: list[str] = []

    def work() -> None:
        try:
            with limited(0.2, 10**9, "file"):
                while True:
                    sum(range(1000))
        except WireError as error:
            found.append(error.what)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "of the processor" in found[0]
    with pytest.raises(ProgramError, match="no time"), limited(0.0, 10**9, "file"):
        pass


def test_without_limits_of_address_space_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, which has no module `resource`."""
    before = state()
    monkeypatch.setitem(sys.modules, "resource", None)
    with limited(30.0, 1, "file"):
        assert float(np.ones(10**7).sum()) == 10**7
    with pytest.raises(WireError, match="of the processor"), limited(0.1, 1, "file"):
        all(iter(lambda: sum(range(1000)), 0))
    assert state() == before
