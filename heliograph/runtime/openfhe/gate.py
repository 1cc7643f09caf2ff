"""A lock for many evaluations or one change at a time, under which neither waits for ever.

Evaluations run concurrently (`using`), a change runs alone (`changing`). A change that waits holds back evaluations that
want to begin; those that it held back go in before the next change. Work that can wait until nothing runs (`later`) holds
them back as well, so that it is done under a steady load too. Who is inside already is never held back.

Nothing is locked while an evaluation runs or a change is made, only while one of them begins or ends: what a finalizer
calls (`later`) never waits.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

from heliograph.errors import ProgramError


class Gate:
    """Who may begin. `evaluations` are inside, `held_back` wait to begin, `changes` wait for their turn."""

    def __init__(self) -> None:
        # Not re-entrant: a finalizer may run at any moment in the thread that holds the lock, and must not see a half-made
        # change.
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._local = threading.local()
        self._later: deque[Callable[[], None]] = deque()
        self._queue: deque[object] = deque()
        self._owner: int | None = None
        self._readers = 0
        self._paused = 0
        # Each change begins a phase. Evaluations held back in an earlier phase are admitted before the next change.
        self._phase = 0
        self._held = 0
        self._admitted = 0

    @property
    def evaluations(self) -> int:
        return self._readers

    @property
    def held_back(self) -> int:
        return self._held

    @property
    def changes(self) -> int:
        return len(self._queue)

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """One evaluation: others may run beside it, no change."""
        depth = getattr(self._local, "depth", 0)
        with self._lock:
            if not depth and self._owner != threading.get_ident():
                self._wait_to_begin()
            self._readers += 1
        self._local.depth = depth + 1
        try:
            yield
        finally:
            self._local.depth = depth
            with self._lock:
                self._readers -= 1
                self._settle()
            self._tidy()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """A change: no evaluation runs, and no other change. A ProgramError inside an evaluation."""
        if self._owner == threading.get_ident():
            yield
            return
        if getattr(self._local, "depth", 0):
            raise ProgramError("keys cannot be made or released from inside an evaluation")
        with self._turn(0):
            yield

    @contextlib.contextmanager
    def pausing(self) -> Iterator[None]:
        """A change by an evaluation between two of its operations. It is an evaluation again before anything else changes.

        What `later` has to do waits until it is over: it may concern this very evaluation.
        """
        with self._turn(getattr(self._local, "depth", 0)):
            yield

    def later(self, action: Callable[[], None]) -> None:
        """Do something as soon as nothing runs, now if possible. Never waits: it is for finalizers too."""
        self._later.append(action)
        self._tidy()

    @contextlib.contextmanager
    def _turn(self, depth: int) -> Iterator[None]:
        ticket, begun = object(), False
        with self._lock:
            self._readers -= depth
            self._paused += depth > 0
            self._queue.append(ticket)
            self._moved.notify_all()
            try:
                while self._owner is not None or self._readers or self._admitted or self._queue[0] is not ticket:
                    self._moved.wait()
                begun = True
            finally:
                self._queue.remove(ticket)
                if begun:
                    self._owner = threading.get_ident()
                else:
                    self._end_turn(depth)
        try:
            yield
        finally:
            with self._lock:
                self._owner = None
                self._admit()
                self._end_turn(depth)
            self._tidy()

    def _end_turn(self, depth: int) -> None:
        self._readers += depth
        self._paused -= depth > 0
        self._settle()

    def _wait_to_begin(self) -> None:
        phase = self._phase
        self._held += 1
        try:
            while self._is_barred(phase):
                self._moved.wait()
        finally:
            if phase == self._phase:
                self._held -= 1
            else:
                self._admitted -= 1
            # Wakes a change that was waiting only for this evaluation, in case it gives up.
            self._moved.notify_all()

    def _is_barred(self, phase: int) -> bool:
        self._do_later()
        return self._owner is not None or (phase == self._phase and bool(self._queue or self._later))

    def _admit(self) -> None:
        """Let those in that were held back so far, before the next change."""
        self._phase += 1
        self._admitted += self._held
        self._held = 0
        self._moved.notify_all()

    def _settle(self) -> None:
        self._do_later()
        self._moved.notify_all()

    def _do_later(self) -> None:
        """Do what waits, where nothing runs; the lock is held, so that nothing begins meanwhile."""
        if not self._later or self._readers or self._paused or self._owner is not None:
            return
        while self._later:
            self._later.popleft()()
        if not self._queue:
            self._admit()

    def _tidy(self) -> None:
        """What a finalizer left while the lock was held by someone, perhaps by the thread that it ran in."""
        while self._later and self._lock.acquire(blocking=False):
            try:
                self._do_later()
                if self._later:
                    return  # Whoever is inside will do it on leaving.
            finally:
                self._lock.release()
