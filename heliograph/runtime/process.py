"""Forked copies of a process that uses our kernels or OpenFHE are refused.

The threads of parallel loops are missing in a forked child, so that such a loop waits for ever or ends the process. A
client's random numbers come from the system, anew for each object (runtime/client/cryptor/randomness.py), and do not
repeat in a copy. But OpenFHE's random generator keeps its state in a thread's memory, so that a copied process repeats
its numbers.
"""

from __future__ import annotations

import os

from heliograph.errors import SecurityError

# The process that used them first, if it is this process or an ancestor by forking.
_user: int | None = None
_forked = False


def _after_fork_in_child() -> None:
    global _forked
    _forked = _forked or _user is not None


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def note_use() -> None:
    """Note that this process uses them: from now on its forked children are refused."""
    global _user
    if _user is None:
        _user = os.getpid()


def is_forked_copy() -> bool:
    """Whether this process was forked from one that had used them."""
    # The process id also reveals forks that were not made by Python.
    return _forked or (_user is not None and _user != os.getpid())


def require_own_process(what: str) -> None:
    """Raise a SecurityError in a forked child of a process that used them."""
    if is_forked_copy():
        raise SecurityError(
            f"{what} is refused in a forked process",
            why="the process that it was forked from had used ciphertexts, and its threads are not here: it would hang",
            hint="start workers with spawn (multiprocessing.get_context('spawn')), or let the parent process only import "
            "and load artifacts, and make clients and servers inside the workers",
        )
