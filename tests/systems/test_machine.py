"""Work on all cores: results in order, the caller's settings, and the bound on threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from heliograph import machine
from heliograph.machine import in_threads


@pytest.fixture
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("three_cores")
def test_results_come_in_order_from_several_threads() -> None:
    together = threading.Barrier(3, timeout=30)

    def work(number: int) -> tuple[int, str]:
        if number < 3:
            together.wait()
        return number, threading.current_thread().name

    found = in_threads(work, 8, 1 << 20)
    assert [number for number, _ in found] == list(range(8))
    assert len({name for _, name in found}) == 3


@pytest.mark.usefixtures("three_cores")
def test_threads_have_the_callers_settings_for_overflows() -> None:
    def work(number: int) -> float:
        return float(np.float64(1e308) * (10.0 + number))

    with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow"):
        in_threads(work, 4, 1 << 20)
    with np.errstate(over="ignore"):
        assert in_threads(work, 4, 1 << 20) == [np.inf] * 4


@pytest.mark.usefixtures("three_cores")
@pytest.mark.parametrize(("threads", "size"), [("1", 1 << 20), ("3", 8)])
def test_one_thread_where_more_are_not_allowed_or_not_worth_it(
    threads: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    names = in_threads(lambda number: threading.current_thread().name, 4, size)
    assert set(names) == {threading.current_thread().name}


@pytest.mark.usefixtures("three_cores")
def test_blas_has_one_thread_for_each_of_several() -> None:
    def seen(_: int) -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        assert all(threads == {1} for threads in in_threads(seen, 6, 1 << 20, blas=True))
        assert seen(0) == {2}
        # What is too small for threads is not limited.
        assert in_threads(seen, 2, 1, blas=True) == [{2}, {2}]
        assert in_threads(seen, 2, 1 << 20) == [{2}, {2}]


@pytest.mark.usefixtures("three_cores")
def test_blas_has_its_threads_again_after_calls_that_overlap() -> None:
    before = threadpool_info()
    together = threading.Barrier(2, timeout=30)
    ended = threading.Event()

    def late(number: int) -> None:
        if number == 0:
            together.wait()
            assert ended.wait(timeout=30)

    running = threading.Thread(target=in_threads, args=(late, 3, 1 << 20, True))
    running.start()
    in_threads(lambda number: together.wait() if number == 0 else None, 3, 1 << 20, blas=True)
    ended.set()
    running.join()
    assert threadpool_info() == before


@pytest.mark.usefixtures("three_cores")
def test_threads_within_threads_are_none() -> None:
    def names(_: int) -> set[str]:
        return set(in_threads(lambda _: threading.current_thread().name, 6, 1 << 20))

    assert all(len(inner) == 1 for inner in in_threads(names, 3, 1 << 20))
