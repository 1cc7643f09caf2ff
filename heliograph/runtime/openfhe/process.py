"""Forked copies of a process that uses OpenFHE or our kernels are refused; and numbers that two copies would share.

OpenMP's threads are missing in a forked child, so that a parallel loop waits for ever or ends the process. And OpenFHE's
random generator is a state in the memory of a thread, seeded from `std::random_device` when the thread first needs it: what
copies the memory copies that state. The client's own randomness is the system's, anew for each object
(runtime/cryptor/randomness.py); OpenFHE draws where answers are decrypted, which is done in a thread of its own each time.
Importing OpenFHE draws nothing; making a context does (it looks for primes and roots, which are no secret).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from heliograph.errors import SecurityError

# The process that used OpenFHE first, if it is this one or one that this one was forked from.
_user: int | None = None
_forked = False


def _after_fork_in_child() -> None:
    global _forked
    _forked = _forked or _user is not None


os.register_at_fork(after_in_child=_after_fork_in_child)


def note_use() -> None:
    """From now on forked children of this process are refused."""
    global _user
    if _user is None:
        _user = os.getpid()


def is_forked_copy() -> bool:
    """Whether this process was forked from one that had used OpenFHE."""
    # The process id also reveals forks that were not made by Python.
    return _forked or (_user is not None and _user != os.getpid())


def require_own_process(what: str) -> None:
    """Raise a SecurityError in a forked child of a process that used OpenFHE."""
    if is_forked_copy():
        raise SecurityError(
            f"{what} is refused in a forked process",
            why="the process that it was forked from had used OpenFHE, whose threads are not here: it would hang",
            hint="start workers with spawn (multiprocessing.get_context('spawn')), or let the parent process only import "
            "and load artifacts, and make clients and servers inside the workers",
        )


def with_own_generator(function: Callable[..., Any], *arguments: Any) -> Any:
    """What OpenFHE's function returns, in a thread of its own: what it draws comes from a generator that the system has just
    seeded.
    """
    with ThreadPoolExecutor(1, "heliograph-draw") as thread:
        return thread.submit(function, *arguments).result()
