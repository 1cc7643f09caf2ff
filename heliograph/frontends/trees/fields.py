"""Numbers in the untrusted files of models, as arrays; whatever else stands in their place is a ProgramError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.node import Array
from heliograph.records import short


def entry(table: object, *names: str) -> Any:
    """The value under these names, each within the table under the name before."""
    for place, name in enumerate(names):
        if not isinstance(table, Mapping) or name not in table:
            raise ProgramError(f"the model lacks its {'.'.join(names[: place + 1])}")
        table = table[name]
    return table


def listed(given: object, what: str) -> list[Any] | Array:
    """The value, if it is a list or an array."""
    if not isinstance(given, (list, np.ndarray)):
        raise ProgramError(f"{what} of the model is {short(given)}, not a list")
    return given


def reals(given: object, what: str, length: int | None = None) -> Array:
    """A list of numbers, or of their digits, as a vector of float64; they may be infinite or not a number."""
    try:
        values = np.array(listed(given, what), dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ProgramError(f"{what} of the model has an entry that is no number") from None
    if values.ndim != 1:
        raise ProgramError(f"{what} of the model is a list of lists, not of numbers")
    if length is not None and len(values) != length:
        raise ProgramError(f"{what} of the model has {len(values)} entries, not {length}")
    return values


def wholes(given: object, what: str, low: int, high: int, length: int | None = None) -> Array:
    """A list of whole numbers between the bounds, both included, as a vector of int64."""
    values = reals(given, what, length)
    if not ((values >= low) & (values <= high) & (values == np.floor(values))).all():
        raise ProgramError(f"{what} of the model has an entry that is no whole number from {low} to {high}")
    return values.astype(np.int64)


def whole(given: object, what: str, low: int, high: int) -> int:
    """A whole number between the bounds, both included, or its digits."""
    return int(wholes([given], what, low, high)[0])


def text(given: object, what: str) -> str:
    """A text of moderate length."""
    if not isinstance(given, str) or len(given) > 1 << 16:
        raise ProgramError(f"{what} of the model is {short(given)}, not a text")
    return given
