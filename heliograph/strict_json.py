"""Untrusted JSON: strict, and bounded before it is parsed."""

from __future__ import annotations

import json
import math
from typing import Any

_MAX_DIGITS = 40


def strict_json(text: bytes, most_values: int) -> Any:
    """The value of a JSON text; a ValueError if it is invalid, too deep, or has more than `most_values` values.

    Numbers are finite and have at most 40 digits.
    """
    if counted(text) > most_values:
        raise ValueError(f"it has more than {most_values} values")
    try:
        return json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is too deep") from None


def counted(text: bytes) -> int:
    """An upper bound on the number of values in JSON, counted without parsing."""
    return sum(map(text.count, (b",", b"[", b"{", b":")))


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("too many digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("too large a number")
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number")
