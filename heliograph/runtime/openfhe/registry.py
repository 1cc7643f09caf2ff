"""OpenFHE's process-wide maps of evaluation keys: who may read them, who may change them, and how keys leave them.

OpenFHE finds evaluation keys by a tag in two static maps, which all contexts of the process share and no lock guards.
Each server has a tag of its own, so that two servers never see each other's keys, whatever their clients are. Evaluation
only reads the maps and may go on in several threads (`using`); making, installing and dropping keys is done alone
(`changing`), also between two operations of an evaluation (`pausing`).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from heliograph.errors import ProgramError
from heliograph.runtime.openfhe.context import library

_CONDITION = threading.Condition()
_LOCAL = threading.local()
_DEAD: deque[str] = deque()
_LATER: deque[Callable[[], None]] = deque()
_readers = 0
_paused = 0
_busy = False


@contextlib.contextmanager
def using() -> Iterator[None]:
    """While evaluation reads the maps."""
    global _readers
    with _CONDITION:
        _readers += 1
    _LOCAL.depth = getattr(_LOCAL, "depth", 0) + 1
    try:
        yield
    finally:
        _LOCAL.depth -= 1
        with _CONDITION:
            _readers -= 1
            _sweep()
            _CONDITION.notify_all()


@contextlib.contextmanager
def changing() -> Iterator[None]:
    """While keys are made, installed or dropped: waits until no evaluation runs, and holds new ones back."""
    global _busy
    if getattr(_LOCAL, "depth", 0):
        raise ProgramError("keys cannot be made or released from inside an evaluation")
    with _CONDITION:
        while _readers:
            _CONDITION.wait()
        _busy = True
        try:
            yield
        finally:
            _busy = False
            _sweep()


@contextlib.contextmanager
def pausing() -> Iterator[None]:
    """While an evaluation changes its own keys between two operations: waits until no other one runs.

    It is a reader again before anyone else can change anything; what was released meanwhile goes when it is over.
    """
    global _readers, _busy, _paused
    depth = getattr(_LOCAL, "depth", 0)
    with _CONDITION:
        _readers -= depth
        _paused += 1
        _CONDITION.notify_all()
        try:
            while _readers:
                _CONDITION.wait()
            _busy = True
            yield
        finally:
            _busy = False
            _paused -= 1
            _readers += depth


def release(tag: str) -> None:
    """Drop the keys of a tag now, or as soon as no evaluation runs. Never waits: it is called by finalizers too."""
    _DEAD.append(tag)
    _try_sweep()


def when_idle(action: Callable[[], None]) -> None:
    """Do something now, or as soon as no evaluation runs. Never waits: it is called by finalizers too."""
    _LATER.append(action)
    _try_sweep()


def _try_sweep() -> None:
    if _CONDITION.acquire(blocking=False):
        try:
            _sweep()
        finally:
            _CONDITION.release()


def _sweep() -> None:
    if _readers or _busy or _paused:
        return
    if _DEAD:
        tags = {_DEAD.popleft() for _ in range(len(_DEAD))}
        drop(tags)
    while _LATER:
        _LATER.popleft()()


def drop(tags: Collection[str]) -> None:
    """Take the keys of these tags out of OpenFHE's maps.

    OpenFHE can only clear its maps whole, so the others are put back; keys are shared pointers, nothing is copied.
    """
    openfhe = library()
    # These are static functions of the class, which the binding shows as methods of any instance.
    context = openfhe.CryptoContext
    rotation: dict[str, Any] = context.GetAllEvalAutomorphismKeys()
    products: dict[str, Any] = context.GetAllEvalMultKeys()
    if any(tag in rotation for tag in tags):
        context.ClearEvalAutomorphismKeys()
        for tag, keys in rotation.items():
            if tag not in tags:
                context.InsertEvalAutomorphismKey(keys, tag)
    if any(tag in products for tag in tags):
        openfhe.ClearEvalMultKeys()
        for tag, keys in products.items():
            if tag not in tags:
                context.InsertEvalMultKey(keys, tag)


def put_maps(tag: str, maps: Sequence[Any]) -> None:
    """Make the automorphism keys of a tag those of these maps; the first becomes OpenFHE's own and grows.

    Keys are shared pointers: with 40 keys it takes less than a millisecond, whatever their size.
    """
    context = library().CryptoContext
    others: dict[str, Any] = context.GetAllEvalAutomorphismKeys()
    if tag in others:
        context.ClearEvalAutomorphismKeys()
        for other, keys in others.items():
            if other != tag:
                context.InsertEvalAutomorphismKey(keys, other)
    for keys in maps:
        context.InsertEvalAutomorphismKey(keys, tag)


def installed() -> set[str]:
    """The tags that have keys in the process."""
    context = library().CryptoContext
    return {*context.GetAllEvalAutomorphismKeys(), *context.GetAllEvalMultKeys()}
