"""Universal Binary JSON, as far as XGBoost writes it, read within bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

# The markers of numbers, and their types.
_NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_CONSTANTS = {b"Z": None, b"T": True, b"F": False}
_MOST_DEPTH = 32


def ubjson(data: bytes, most_values: int) -> Any:
    """The value of a text in UBJSON; a ValueError if it is malformed, too deep, or has more than `most_values` values.

    Arrays of numbers of one type become numpy arrays.
    """
    reader = _Reader(data, most_values)
    value = reader.value(reader.take(1), 0)
    if reader.place != len(data):
        raise ValueError("there is more after its end")
    return value


class _Reader:
    def __init__(self, data: bytes, most_values: int) -> None:
        self.data = data
        self.place = 0
        self.values_left = most_values

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.place:
            raise ValueError("it ends too early")
        self.place += count
        return self.data[self.place - count : self.place]

    def value(self, marker: bytes, depth: int) -> Any:
        if depth > _MOST_DEPTH:
            raise ValueError("it is too deep")
        self._count(1)
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker == b"S":
            return self._text()
        if marker == b"{":
            return self._table(depth)
        if marker == b"[":
            return self._array(depth)
        return self._number(marker)

    def _table(self, depth: int) -> dict[str, Any]:
        table = {}
        while self.data[self.place : self.place + 1] != b"}":
            name = self._text()
            table[name] = self.value(self.take(1), depth + 1)
        self.take(1)
        return table

    def _array(self, depth: int) -> Any:
        """An array: to its closing bracket, or of counted values, which may have one type."""
        following = self.data[self.place : self.place + 1]
        if following == b"$":
            self.take(1)
            kind = _NUMBERS.get(self.take(1).decode("latin-1"))
            if kind is None or self.take(1) != b"#":
                raise ValueError("it has an array of a type that XGBoost does not write")
            count = self._length()
            self._count(count)
            return np.frombuffer(self.take(count * np.dtype(kind).itemsize), dtype=kind)
        if following == b"#":
            self.take(1)
            # Each value takes a byte or more, so a long count ends with the data.
            return [self.value(self.take(1), depth + 1) for _ in range(self._length())]
        values = []
        while (marker := self.take(1)) != b"]":
            values.append(self.value(marker, depth + 1))
        return values

    def _text(self) -> str:
        return self.take(self._length()).decode("utf-8")

    def _length(self) -> int:
        length = self._number(self.take(1))
        if not isinstance(length, int) or length < 0:
            raise ValueError("it has a length that is no whole number")
        return length

    def _number(self, marker: bytes) -> int | float:
        kind = _NUMBERS.get(marker.decode("latin-1"))
        if kind is None:
            raise ValueError(f"{marker!r} begins no value")
        number: int | float = np.frombuffer(self.take(np.dtype(kind).itemsize), dtype=kind)[0].item()
        return number

    def _count(self, more: int) -> None:
        self.values_left -= more
        if self.values_left < 0:
            raise ValueError("it has too many values")
