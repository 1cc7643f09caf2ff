"""OpenFHE does not survive a fork: this knows whether the process is a forked child of one that used it.

OpenFHE's random generator is a state in the memory of the process, made when it is first needed, and `fork` copies it:
two children, or parent and child, draw the same numbers. The difference of two of their ciphertexts is then that of their
inputs, and two of their evaluation keys give the secret key. Its OpenMP threads are not copied, so that a parallel loop
in the child waits for ever. Importing OpenFHE draws nothing; making a context does (it looks for primes and roots).
"""

from __future__ import annotations

import os

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
            why="the process that it was forked from had used OpenFHE: both would draw the same random numbers, which gives "
            "away inputs and the secret key, and OpenMP's threads are not here, so that evaluation would hang",
            hint="start workers with spawn (multiprocessing.get_context('spawn')), or let the parent process only import "
            "and load artifacts, and make clients and servers inside the workers",
        )
