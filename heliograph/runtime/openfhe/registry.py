"""OpenFHE's process-wide maps of evaluation keys: who may read them, who may change them, and how keys leave them.

OpenFHE finds evaluation keys by a tag in two static maps, which all contexts of the process share and no lock guards.
Each server has a tag of its own, so that two servers never see each other's keys, whatever their clients are. Evaluation
only reads the maps and may go on in several threads (`using`); making, installing and dropping keys is done alone
(`changing`), also between two operations of an evaluation (`pausing`). Neither waits for ever (gate.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

from heliograph.runtime.openfhe.context import library
from heliograph.runtime.openfhe.gate import Gate

_GATE = Gate()


def using() -> AbstractContextManager[None]:
    """While evaluation reads the maps."""
    return _GATE.using()


def changing() -> AbstractContextManager[None]:
    """While keys are made, installed or dropped: waits for the evaluations that run, and holds new ones back."""
    return _GATE.changing()


def pausing() -> AbstractContextManager[None]:
    """While an evaluation changes its own keys between two operations: waits until no other one runs.

    It is a reader again before anyone else can change anything; what was released meanwhile goes when it is over.
    """
    return _GATE.pausing()


def release(tag: str) -> None:
    """Drop the keys of a tag now, or as soon as no evaluation runs. Never waits: it is called by finalizers too."""
    _GATE.later(lambda: drop({tag}))


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
