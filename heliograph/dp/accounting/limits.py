"""A limit on processor time and memory for work of a size that somebody else decides: the files given to `verify`."""

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
    """Not an Exception: code that tries one method after another must not take it for the failure of one."""


@contextlib.contextmanager
def limited(seconds: float, memory: int, where: object) -> Iterator[None]:
    """End the work inside with WireError after `seconds` of the processor, or before it holds `memory` more bytes.

    `where` is the file that asks for the work. Memory is limited on Linux alone; other systems do not enforce it.
    Time is the process's; its limit ends the work in this thread, between two steps of the interpreter.
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
    """Raises _TimeUp in the thread that constructed it once the process has worked for so long."""

    def __init__(self, seconds: float) -> None:
        self._thread, self._ends, self._done = threading.get_ident(), time.process_time() + seconds, threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="heliograph-limit", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        try:
            self._end()
        except _TimeUp:
            # The time ran out meanwhile; it cannot do so again for half a second.
            self._end()

    def _end(self) -> None:
        self._done.set()
        self._watcher.join()
        # Cancel an exception that was not raised yet.
        self._set(ctypes.py_object())

    def _watch(self) -> None:
        wait = _LOOK_S
        while not self._done.wait(wait):
            if time.process_time() >= self._ends:
                self._set(ctypes.py_object(_TimeUp))
                wait = _AGAIN_S

    def _set(self, kind: Any) -> None:
        """Set the exception that the thread raises at its next step."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), kind)


def _limit_address_space(memory: int) -> tuple[int, int] | None:
    """Make allocations fail that would take so many more bytes for this process; returns the earlier limits.

    None if the system does not report its address space; then nothing is limited.
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
