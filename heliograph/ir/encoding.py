"""What a client makes of a row of a table before encryption."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.maps.layout import MOST_ELEMENTS
from heliograph.ir.node import Array
from heliograph.records import LARGEST, bounds

_COLUMN = bounds(0, MOST_ELEMENTS, optional=True)
_NUMBER = bounds(-LARGEST, LARGEST, optional=True)


@dataclass(frozen=True, slots=True)
class Encoding:
    """The elements of an encrypted vector, from the columns of a row. First the numbers, then the comparisons, the
    categories, and the missing values.

    width: the number of the row's columns.
    numbers, centres, scales: the columns whose values are sent, each less its centre and divided by its scale.
    clipped: whether what lies beyond [-1, 1] then becomes -1 or 1.
    compared, edges: the column and the threshold of each comparison: 1 where the value is larger, else 0.
    coded, codes: the column and the category, a number, of each element that is 1 where the value is that, else 0.
    missing: the columns whose value may be missing, NaN or None: 1 where it is, else 0. Comparisons and categories of a
        missing value are 0.
    filled, fills: the columns whose missing values are replaced, and by which numbers; `missing` still tells of them.
    texts, labels: the columns of texts, and the texts of each: a text stands for its place among them, an unknown one
        for -1.
    """

    width: int = field(metadata=bounds(1, MOST_ELEMENTS))
    numbers: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    centres: tuple[float, ...] = field(default=(), metadata=_NUMBER)
    scales: tuple[float, ...] = field(default=(), metadata=bounds(1.0 / LARGEST, LARGEST, optional=True))
    clipped: bool = field(default=False, metadata=bounds(optional=True))
    compared: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    edges: tuple[float, ...] = field(default=(), metadata=_NUMBER)
    coded: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    codes: tuple[float, ...] = field(default=(), metadata=_NUMBER)
    missing: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    filled: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    fills: tuple[float, ...] = field(default=(), metadata=_NUMBER)
    texts: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    labels: tuple[tuple[str, ...], ...] = field(default=(), metadata=bounds(optional=True))

    @property
    def elements(self) -> int:
        """The length of an encoded row: never the row's own, so that each is known from the other."""
        made = len(self.numbers) + len(self.edges) + len(self.codes) + len(self.missing)
        return made + 1 if made == self.width else made

    @property
    def consistent(self) -> bool:
        """Whether each column exists and has what belongs to it."""
        pairs = (
            (self.numbers, self.centres),
            (self.numbers, self.scales),
            (self.compared, self.edges),
            (self.coded, self.codes),
            (self.filled, self.fills),
            (self.texts, self.labels),
        )
        columns = (*self.numbers, *self.compared, *self.coded, *self.missing, *self.filled, *self.texts)
        return all(len(a) == len(b) for a, b in pairs) and max(columns, default=0) < self.width

    def values(self, rows: Any) -> Array:
        """Rows (..., width) of numbers and texts as numbers, NaN where a value is missing.

        Raises ProgramError for a text in another column, naming the column's number.
        """
        given = np.asarray(rows)
        if not self.texts and given.dtype.kind in "biuf":
            return np.asarray(given, dtype=np.float64)
        made = np.empty(given.shape)
        labels = dict(zip(self.texts, self.labels, strict=True))
        for column in range(self.width):
            places = {text: float(place) for place, text in enumerate(labels.get(column, ()))}
            for index, value in np.ndenumerate(given[..., column]):
                place = (*index, column)
                if value is None or value != value or type(value).__name__ == "NAType":
                    made[place] = np.nan
                elif column in labels:
                    made[place] = places.get(str(value), -1.0)
                else:
                    made[place] = _number(value, column)
        return made

    def encoded(self, rows: Array) -> Array:
        """Rows (..., width) of numbers, with NaN for what is missing, as elements (..., elements)."""
        full = np.array(rows)
        for column, fill in zip(self.filled, self.fills, strict=True):
            own = full[..., column]
            own[np.isnan(own)] = fill
        with np.errstate(invalid="ignore"):
            numbers = (full[..., list(self.numbers)] - np.array(self.centres)) / np.array(self.scales)
            parts = (
                np.clip(numbers, -1.0, 1.0) if self.clipped else numbers,
                full[..., list(self.compared)] > np.array(self.edges),
                full[..., list(self.coded)] == np.array(self.codes),
                np.isnan(rows[..., list(self.missing)]),
            )
        made = np.zeros((*rows.shape[:-1], self.elements))
        found = np.concatenate(parts, axis=-1)
        made[..., : found.shape[-1]] = found
        return made

    def needed(self) -> frozenset[int]:
        """The columns that must have a value."""
        read = {*self.numbers, *self.compared, *self.coded}
        return frozenset(read - {*self.filled} - ({*self.missing} - {*self.numbers}))


def _number(value: Any, column: int) -> float:
    if isinstance(value, str | bytes | complex | np.complexfloating):
        raise ProgramError(f"column number {column} holds a text or another object, and the model takes a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ProgramError(f"column number {column} holds something that is no number") from None
