"""Servers that several threads use at once: every answer right, no call refused, every run's counts its own."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import heliograph as hg
from heliograph.execution.key_use import key_use
from heliograph.execution.loop import execute
from heliograph.execution.plaintexts import PlaintextCache
from heliograph.ir import Builder, Program, Stage
from heliograph.runtime.wire.keyfolder import KeyFolder

pytest.importorskip("openfhe")

THREADS = 8
WIDTH = 64
# Room for a few of the some hundred plaintexts: every run encodes ahead.
SMALL_CACHE = 200_000


def wide() -> Program:
    """Two maps with some dozen diagonals each."""
    random = np.random.default_rng(0)
    builder = Builder("wide", Stage.TENSOR)
    x = builder.input("x", shape=(WIDTH,), low=-1.0, high=1.0)
    weights = [builder.constant(random.normal(size=(WIDTH, WIDTH)) / 8, name) for name in ("first", "second")]
    hidden = builder.op("relu", (builder.op("linear", (x,), weight=weights[0]),), degree=3)
    return builder.finish({"y": builder.op("linear", (hidden,), weight=weights[1])})


def in_threads(work: Callable[[int], None]) -> list[str]:
    """What failed, of this many threads that do the work at once."""
    failures: list[str] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def hammer(servers: Sequence[tuple[hg.Client, hg.Server]], runs: int) -> tuple[Counter[str], list[str]]:
    """How many answers and how many traces were right or wrong, and what failed, with all threads at work at once."""
    sides = [servers[number % len(servers)] for number in range(THREADS)]
    messages, wanted, alone = [], [], []
    for number, (client, server) in enumerate(sides):
        messages.append(client.encrypt(np.random.default_rng(number).uniform(-1, 1, WIDTH)))
        wanted.append(client.decrypt(server.run(messages[-1])))
        alone.append(server.trace.calls)
    found: Counter[str] = Counter()

    def work(number: int) -> None:
        client, server = sides[number]
        inputs = server.inputs(messages[number], {})
        for _ in range(runs):
            answer = client.decrypt(server.run(messages[number]))
            found["right" if np.abs(answer - wanted[number]).max() < 1e-3 else "wrong"] += 1
            with server.evaluating():
                _, trace = execute(server.artifact.program, server.evaluator, inputs)
            found["counted" if trace.calls == alone[number] else "miscounted"] += 1

    failures = in_threads(work)
    return found, failures


client_of = functools.partial(hg.Client, allow_insecure=True)
server_of = functools.partial(hg.Server, allow_insecure=True)


@functools.cache
def artifact() -> hg.Artifact:
    return hg.compile(wide(), hg.Options(security_bits=None, log_ring=11))


@pytest.mark.parametrize("cache_bytes", [0, SMALL_CACHE, 1 << 30])
def test_eight_threads_on_one_server(cache_bytes: int) -> None:
    client = client_of(artifact())
    with server_of(artifact(), client.evaluation_keys(), cache_bytes=cache_bytes) as server:
        found, failures = hammer([(client, server)], 6)
        assert server.evaluator.cache.bytes <= cache_bytes
    assert not failures
    assert found == {"right": 6 * THREADS, "counted": 6 * THREADS}


def test_eight_threads_on_two_servers() -> None:
    clients = [client_of(artifact()) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        servers = [
            (
                client,
                stack.enter_context(server_of(artifact(), client.evaluation_keys(), cache_bytes=SMALL_CACHE)),
            )
            for client in clients
        ]
        found, failures = hammer(servers, 6)
    assert not failures
    assert found == {"right": 6 * THREADS, "counted": 6 * THREADS}


def test_eight_threads_on_a_server_that_loads_its_keys(tmp_path: Path) -> None:
    client = client_of(artifact())
    client.write_evaluation_keys(tmp_path / "keys")
    with server_of(artifact(), KeyFolder(tmp_path / "keys"), key_bytes=_few_keys(), cache_bytes=SMALL_CACHE) as server:
        assert server.keys is not None
        found, failures = hammer([(client, server)], 2)
        assert server.keys.loads > 0
    assert not failures
    assert found == {"right": 2 * THREADS, "counted": 2 * THREADS}


def _few_keys() -> int:
    return key_use(artifact().program).least_bytes


def test_eight_threads_on_batches() -> None:
    """Samples side by side in one ciphertext, and as many messages as there are threads."""
    made = hg.compile(wide(), hg.Options(security_bits=None, log_ring=11, batch=4))
    client = client_of(made)
    samples = [np.random.default_rng(number).uniform(-1, 1, (4, WIDTH)) for number in range(THREADS)]
    with server_of(made, client.evaluation_keys(), cache_bytes=SMALL_CACHE) as server:
        answers: dict[int, np.ndarray] = {}

        def work(number: int) -> None:
            for _ in range(4):
                answers[number] = client.decrypt(server.run(client.encrypt(samples[number])))

        failures = in_threads(work)
    assert not failures
    for number, answer in answers.items():
        assert np.abs(answer - hg.simulate(made, samples[number])).max() < 1e-2


@pytest.mark.slow
def test_a_thousand_runs_in_each_of_eight_threads() -> None:
    client = client_of(artifact())
    with server_of(artifact(), client.evaluation_keys(), cache_bytes=SMALL_CACHE) as server:
        found, failures = hammer([(client, server)], 500)
    print(f"\n{dict(found)}, {len(failures)} failed")
    assert not failures
    assert found == {"right": 500 * THREADS, "counted": 500 * THREADS}


def test_a_server_closed_by_another_thread_refuses_in_words() -> None:
    """Runs that have begun finish; those that come later are refused; nothing is left behind."""
    client = client_of(artifact())
    server = server_of(artifact(), client.evaluation_keys(), cache_bytes=SMALL_CACHE)
    message = client.encrypt(np.zeros(WIDTH))
    begun = threading.Barrier(THREADS + 1, timeout=60)

    def work(number: int) -> None:
        server.run(message)
        begun.wait()
        while True:
            server.run(message)

    closer = threading.Thread(target=lambda: (begun.wait(), server.close()))
    closer.start()
    failures = in_threads(work)
    closer.join()
    assert {failure.partition("\n")[0] for failure in failures} == {"ProgramError: this server is closed"}
    assert not server.evaluator.ahead.begun
    assert server.evaluator.cache.bytes == 0


def test_a_run_that_breaks_off_leaves_the_next_one_alone() -> None:
    client = client_of(artifact())
    message = client.encrypt(np.linspace(-1, 1, WIDTH))
    with server_of(artifact(), client.evaluation_keys(), cache_bytes=SMALL_CACHE) as server:
        wanted = client.decrypt(server.run(message))
        calls = server.trace.calls
        for stop in (2, 3, 5):

            def progress(stage: str, done: int, total: int, stop: int = stop) -> None:
                if done == stop:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                server.run(message, progress)
            assert client.decrypt(server.run(message)) == pytest.approx(wanted, abs=1e-4)
            assert server.trace.calls == calls


def test_the_cache_holds_its_bound_in_threads() -> None:
    cache = PlaintextCache(100)

    def work(number: int) -> None:
        for i in range(300):
            assert cache.get(i % 40, lambda i=i: i % 40, 10) == i % 40  # type: ignore[misc]

    assert not in_threads(work)
    assert cache.bytes == 100
    cache.close()
    assert cache.get(1, lambda: 1, 10) == 1
    assert cache.bytes == 0
