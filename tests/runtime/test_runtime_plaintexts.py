"""Plaintexts that are kept, and those that are encoded ahead: the same results, in the order of use, within the bound."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Hashable, Iterator
from typing import Any

import pytest
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.execution.plaintexts import EncodeAhead, Encoding


def endless(made: list[int], count: int = 10) -> Any:
    def encoding(i: int) -> Encoding:
        return Encoding(i, lambda: made.append(i) or i * i, 10, i, False)  # type: ignore[func-returns-value]

    def following(key: Hashable) -> Iterator[Encoding]:
        assert isinstance(key, int)
        return (encoding(i) for i in itertools.chain(range(key, count), itertools.cycle(range(count))))

    return following, encoding


def test_it_stays_within_its_bound_and_in_order() -> None:
    made: list[int] = []
    following, encoding = endless(made)
    ahead = EncodeAhead(following, 35)
    for i in [*range(10), *range(10), 0, 1]:
        assert ahead.take(encoding(i)) == i * i
        # Three of ten bytes fit: at most this many were made beyond the one taken.
        assert len(made) <= 23 + 3
    # An evaluation that begins anew.
    assert [ahead.take(encoding(i)) for i in (0, 1, 2)] == [0, 1, 4]
    ahead.clear()
    assert not ahead.begun
    # What is larger than the bound is made when it is asked for.
    assert EncodeAhead(following, 5).take(encoding(3)) == 9


def test_plaintexts_are_encoded_beside_the_evaluation() -> None:
    """By a thread of its own: what is ahead is made while nobody asks for it."""
    threads: list[str] = []
    ready = threading.Event()

    def make(i: int) -> int:
        threads.append(threading.current_thread().name)
        if i == 2:
            ready.set()
        return i

    def following(key: Hashable) -> Iterator[Encoding]:
        assert isinstance(key, int)
        return (Encoding(i, functools.partial(make, i), 10, i, False) for i in range(key, 10))

    ahead = EncodeAhead(following, 35)
    assert ahead.take(Encoding(0, functools.partial(make, 0), 10, 0, False)) == 0
    assert ready.wait(10), "the next plaintexts are made without being asked for"
    assert {name.rpartition("_")[0] for name in threads} == {"encode-ahead"}
    ahead.clear()


def test_an_error_comes_where_the_plaintext_is_used() -> None:
    def fails() -> Any:
        raise ValueError("no plaintext")

    ahead = EncodeAhead(lambda key: iter([Encoding(0, fails, 1, 0, False)]), 10)
    with pytest.raises(ValueError, match="no plaintext"):
        ahead.take(Encoding(0, fails, 1, 0, False))
    ahead.clear()


@pytest.mark.parametrize("cache_bytes", [0, 1 << 19, 1 << 30])
def test_results_do_not_depend_on_the_cache(cache_bytes: int) -> None:
    pytest.importorskip("openfhe")
    artifact = toy_artifact()
    client = hg.Client(artifact, allow_insecure=True)
    with hg.Server(artifact, client.evaluation_keys(), cache_bytes=cache_bytes, allow_insecure=True) as server:
        for seed in (1, 2):
            x = sample(seed)
            assert client.decrypt(server.run(client.encrypt(x))) == pytest.approx(hg.simulate(artifact, x), abs=1e-2)
            assert server.evaluator.cache.bytes <= cache_bytes
    assert not server.evaluator.ahead.begun
