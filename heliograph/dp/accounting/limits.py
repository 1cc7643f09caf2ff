"""A budget of processor time and memory for work whose size somebody else decides: the files that `verify` is given."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heliograph.errors import ProgramError, WireError

_LOOK_S = 0.02
_AGAIN_S = 0.5
"""Seconds after which time is up once more, should something have kept the first exception to itself."""


class _TimeUp(BaseException):
    """No Exception: what tries one method after another must not take it for the failure of one."""


@contextlib.contextmanager
def limited(seconds: float, memory: int, where: object) -> Iterator[None]:
    """End what is done inside with WireError after `seconds` of the processor, or once it would hold `memory` bytes more.

    `where` is the file that asks for the work. Memory is limited on Linux alone; other systems do not end what takes more.
    Time is the process's, and ends what is done in this thread, between two steps of the interpreter.
    """
    if not seconds > 0:
        raise ProgramError(f"{seconds:g} seconds are no time", where="seconds")
    try:
        # Stopped first, so that nothing keeps the limits from being lifted.
        with contextlib.ExitStack() as stack:
            clock = _Clock(seconds)
            stack.callback(_lift, _limit_address_space(memory))
            stack.callback(clock.stop)
            yield
    except _TimeUp:
        raise _more(f"{seconds:g} s of the processor", where, "allow more seconds") from None
    except MemoryError:
        raise _more(f"{memory / 1e9:.1f} GB of memory", where, "put releases of one kind together") from None


class _Clock:
    """Raises _TimeUp in the thread that made it once the process has worked for so long."""

    def __init__(self, seconds: float) -> None:
        self._thread, self._ends, self._done = threading.get_ident(), time.process_time() + seconds, threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="heliograph-limit", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        try:
            self._end()
        except _TimeUp:
            # Time was up meanwhile; it is not again for half a second.
            self._end()

    def _end(self) -> None:
        self._done.set()
        self._watcher.join()
        # What was not raised yet is taken back.
        self._set(ctypes.py_object())

    def _watch(self) -> None:
        wait = _LOOK_S
        while not self._done.wait(wait):
            if time.process_time() >= self._ends:
                self._set(ctypes.py_object(_TimeUp))
                wait = _AGAIN_S

    def _set(self, kind: Any) -> None:
        """What the thread raises at its next step."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), kind)


def _limit_address_space(memory: int) -> tuple[int, int] | None:
    """Let allocations fail that would have this process hold so many bytes more; the limits as they were.

    None where the system says nothing of its address space, and nothing is limited.
    """
    try:
        import resource

        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = held + memory
    resource.setrlimit(resource.RLIMIT_AS, (most if soft == resource.RLIM_INFINITY else min(most, soft), hard))
    return soft, hard


def _lift(limits: tuple[int, int] | None) -> None:
    if limits is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, limits)


def _more(what: str, where: object, hint: str) -> WireError:
    return WireError(
        f"the file asks for more than {what}",
        where=where,
        why="work grows with the kinds of mechanism that a file lists; nothing is known of its claims",
        hint=f"{hint}, if you trust where it comes from",
    )
