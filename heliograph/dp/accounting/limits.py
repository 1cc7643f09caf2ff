"""A budget of processor time and memory for work whose size somebody else decides: the files that `verify` is given."""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heliograph.errors import ProgramError, WireError

_AGAIN = 0.5
"""Seconds after which the clock rings once more, should something have kept the first ring to itself."""


class _TimeUp(BaseException):
    """No Exception: what tries one method after another must not take it for the failure of one."""


@contextlib.contextmanager
def limited(seconds: float, memory: int, where: object) -> Iterator[None]:
    """End what is done inside with WireError after `seconds` of the processor, or once it would hold `memory` bytes more.

    `where` is the file that asks for the work. In the main thread only, whose signals it uses: SIGPROF. Raises ProgramError
    elsewhere.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ProgramError(
            "a limit on processor time needs the main thread", where="limited", hint="use a process for each file"
        )
    if not seconds > 0:
        raise ProgramError(f"{seconds:g} seconds are no time", where="seconds")

    def ring(*_: Any) -> None:
        raise _TimeUp

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _held() + memory
    most = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft)
    before = signal.signal(signal.SIGPROF, ring)
    try:
        try:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
            signal.setitimer(signal.ITIMER_PROF, seconds, _AGAIN)
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    except _TimeUp:
        raise _more(f"{seconds:g} s of the processor", where, "allow more seconds") from None
    except MemoryError:
        raise _more(f"{memory / 1e9:.1f} GB of memory", where, "put releases of one kind together") from None
    finally:
        signal.signal(signal.SIGPROF, before)


def _held() -> int:
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _more(what: str, where: object, hint: str) -> WireError:
    return WireError(
        f"the file asks for more than {what}",
        where=where,
        why="work grows with the kinds of mechanism that a file lists; nothing is known of its claims",
        hint=f"{hint}, if you trust where it comes from",
    )
