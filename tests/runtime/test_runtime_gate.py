"""Evaluations and changes of keys under a steady load: neither side waits for ever, and nothing overlaps that must not."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from runtime.support import sample, toy_artifact

from heliograph.errors import ProgramError
from heliograph.runtime.client.client import Client
from heliograph.runtime.openfhe import registry
from heliograph.runtime.openfhe.gate import Gate
from heliograph.runtime.server.server import Server

# Only a test that fails waits so long.
PATIENCE = 60.0


class Evaluation:
    """A thread inside `using` until it is told to end."""

    def __init__(self, gate: Gate) -> None:
        self.begun, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(gate,), daemon=True)
        self._thread.start()

    def _run(self, gate: Gate) -> None:
        with gate.using():
            self.begun.set()
            self._end.wait(PATIENCE)

    def end(self) -> None:
        self._end.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.001)


def test_a_change_holds_back_evaluations_that_come_after_it() -> None:
    gate, order = Gate(), []
    first = Evaluation(gate)
    assert first.begun.wait(PATIENCE)

    def change() -> None:
        with gate.changing():
            order.append("change")

    writer = threading.Thread(target=change, daemon=True)
    writer.start()
    until(lambda: gate.changes == 1)
    second = Evaluation(gate)
    until(lambda: gate.held_back == 1)
    assert not second.begun.is_set()
    # The load never stops: before the first ends, the second is there.
    first.end()
    writer.join(PATIENCE)
    assert order == ["change"]
    assert second.begun.wait(PATIENCE)
    second.end()
    assert (gate.evaluations, gate.held_back, gate.changes) == (0, 0, 0)


def test_who_is_inside_is_not_held_back_by_a_change() -> None:
    gate = Gate()
    with gate.using():
        writer = threading.Thread(target=lambda: gate.changing().__enter__(), daemon=True)
        writer.start()
        until(lambda: gate.changes == 1)
        with gate.using():  # would hang
            assert gate.evaluations == 2
    until(lambda: gate.changes == 0)


def test_evaluations_that_were_held_back_go_in_before_the_next_change() -> None:
    gate, order, lock = Gate(), [], threading.Lock()
    first = Evaluation(gate)
    assert first.begun.wait(PATIENCE)

    def change(name: str) -> None:
        with gate.changing(), lock:
            order.append(name)

    def evaluate() -> None:
        with gate.using(), lock:
            order.append("evaluation")

    threads = []
    for number, name in enumerate(("a", "b")):
        threads.append(threading.Thread(target=change, args=(name,), daemon=True))
        threads[-1].start()
        until(lambda wanted=number + 1: gate.changes == wanted)  # type: ignore[misc]
    threads.append(threading.Thread(target=evaluate, daemon=True))
    threads[-1].start()
    until(lambda: gate.held_back == 1)
    first.end()
    for thread in threads:
        thread.join(PATIENCE)
    assert order == ["a", "evaluation", "b"]


def test_what_is_to_be_done_later_is_done_under_a_steady_load() -> None:
    gate, done = Gate(), threading.Event()
    first = Evaluation(gate)
    assert first.begun.wait(PATIENCE)
    gate.later(done.set)
    assert not done.is_set()
    second = Evaluation(gate)
    until(lambda: gate.held_back == 1)
    first.end()
    assert done.wait(PATIENCE)
    assert second.begun.wait(PATIENCE)
    second.end()


def test_what_a_finalizer_leaves_while_other_leavings_are_done_is_done_too() -> None:
    gate, done = Gate(), []

    def outer() -> None:
        gate.later(lambda: done.append("inner"))  # as the garbage collector may call it, in the middle
        assert done == []
        done.append("outer")

    gate.later(outer)
    assert done == ["outer", "inner"]
    with gate.changing():
        gate.later(lambda: done.append("after the change"))
        assert done == ["outer", "inner"]
    assert done[-1] == "after the change"


def test_what_is_to_be_done_later_does_not_touch_an_evaluation_that_pauses() -> None:
    gate, done, seen = Gate(), [], []
    with gate.using():
        gate.later(lambda: done.append("closed"))
        with gate.pausing():
            seen.append(list(done))
        seen.append(list(done))
    assert seen == [[], []]
    assert done == ["closed"]


def test_changes_inside_each_other_and_inside_an_evaluation() -> None:
    gate = Gate()
    with gate.changing(), gate.changing(), gate.using():
        pass
    with gate.using(), pytest.raises(ProgramError, match="inside an evaluation"), gate.changing():
        pass
    with gate.using(), gate.using(), gate.pausing(), gate.changing():
        pass
    with gate.changing():
        pass


def test_one_that_gives_up_waiting_leaves_the_gate_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    first = Evaluation(gate)
    assert first.begun.wait(PATIENCE)

    class Stop(Exception):
        pass

    def interrupted(timeout: float | None = None) -> bool:
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(gate._moved, "wait", interrupted)
        with pytest.raises(Stop), gate.changing():
            pass
        gate.later(lambda: None)
        with pytest.raises(Stop), gate.using():
            pass
    assert (gate.evaluations, gate.held_back, gate.changes) == (1, 0, 0)
    first.end()
    with gate.changing(), gate.using():
        pass


def test_random_threads_never_meet_where_they_must_not() -> None:
    gate, inside, changing, wrong = Gate(), [0], [0], []

    @contextlib.contextmanager
    def alone() -> Iterator[None]:
        changing[0] += 1
        if inside[0] or changing[0] != 1:
            wrong.append((inside[0], changing[0]))
        yield
        changing[0] -= 1

    swept: list[int] = []
    count = threading.Lock()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for step in range(150):
            kind = rng.random()
            if kind < 0.2:
                with gate.changing(), alone():
                    time.sleep(rng.random() * 1e-4)
            elif kind < 0.3:
                gate.later(lambda step=step: swept.append(step) if not inside[0] else wrong.append("swept"))
            else:
                with gate.using():
                    with count:
                        inside[0] += 1
                    time.sleep(rng.random() * 1e-4)
                    if kind < 0.5:
                        with count:
                            inside[0] -= 1
                        with gate.pausing(), alone():
                            pass
                        with count:
                            inside[0] += 1
                    with count:
                        inside[0] -= 1

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread waits for ever"
    assert wrong == []
    assert (gate.evaluations, gate.held_back, gate.changes) == (0, 0, 0)
    assert swept


def test_a_new_client_is_served_while_others_keep_a_process_busy() -> None:
    """Two threads evaluate over and over, each beginning before the other ends; the load ends only when all is served."""
    artifact, stop = toy_artifact(), threading.Event()
    client = Client(artifact, allow_insecure=True)
    keys, encrypted = client.evaluation_keys(), client.encrypt(sample())
    servers = [Server(artifact, keys, backend="openfhe", allow_insecure=True) for _ in range(3)]

    begun = [0, 0]

    def load(number: int) -> None:
        """Runs that end only when the other thread has begun one meanwhile, or is held back."""
        seen = 0

        def overlap(stage: str, done: int, total: int) -> None:
            nonlocal seen
            if done == 1:
                begun[number] += 1
                seen = begun[1 - number]
            if done == total:
                until(lambda: begun[1 - number] > seen or registry._GATE.held_back > 0 or stop.is_set())

        while not stop.is_set():
            servers[number].run(encrypted, overlap)

    threads = [threading.Thread(target=load, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    served: list[bool] = []

    def serve() -> None:
        newcomer = Client(artifact, allow_insecure=True)
        with Server(artifact, newcomer.evaluation_keys(), backend="openfhe", allow_insecure=True) as server:
            newcomer.decrypt(server.run(newcomer.encrypt(sample())))
        served.append(True)

    try:
        until(lambda: min(begun) > 1)
        before = registry.installed()
        third = servers.pop()
        new = threading.Thread(target=serve, daemon=True)
        new.start()
        new.join(PATIENCE)
        assert served == [True]
        third.close()
        until(lambda: len(registry.installed()) < len(before))
        assert all(thread.is_alive() for thread in threads)
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        for server in servers:
            server.close()
