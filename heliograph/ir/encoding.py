"""What a client makes of a row of a table before encryption."""

from __future__ import annotations

from collections.abc import Sequence
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
    rounded: the columns whose values are rounded to whole numbers first, halves to even ones.
    compared, edges: the column and the threshold of each comparison: 1 where the value is larger, else 0.
    coded, codes: the column and the category, a number, of each element that is 1 where the value is that, else 0.
    missing: the columns whose value may be missing, NaN or None: 1 where it is, else 0. Comparisons and categories of a
        missing value are 0.
    filled, fills: the columns whose missing values are replaced, and by which numbers; `missing` still tells of them.
    texts, labels: the columns of texts, and the texts of each: a text stands for its place among them, an unknown one
        for -1.
    known, allowed: the columns whose values, unless they are missing, must be among some numbers, and these.
    """

    width: int = field(metadata=bounds(1, MOST_ELEMENTS))
    numbers: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    centres: tuple[float, ...] = field(default=(), metadata=_NUMBER)
    scales: tuple[float, ...] = field(default=(), metadata=bounds(1.0 / LARGEST, LARGEST, optional=True))
    clipped: bool = field(default=False, metadata=bounds(optional=True))
    rounded: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    compared: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    edges: tuple[float, ...] = field(default=(), metadata=_NUMBER)
    coded: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    codes: tuple[float, ...] = field(default=(), metadata=_NUMBER)
    missing: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    filled: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    fills: tuple[float, ...] = field(default=(), metadata=_NUMBER)
    texts: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    labels: tuple[tuple[str, ...], ...] = field(default=(), metadata=bounds(optional=True))
    known: tuple[int, ...] = field(default=(), metadata=_COLUMN)
    allowed: tuple[tuple[float, ...], ...] = field(default=(), metadata=_NUMBER)

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
            (self.known, self.allowed),
        )
        return all(len(a) == len(b) for a, b in pairs) and max(self._used, default=0) < self.width

    @property
    def _used(self) -> frozenset[int]:
        """The columns that are read."""
        read = (
            self.numbers,
            self.rounded,
            self.compared,
            self.coded,
            self.missing,
            self.filled,
            self.texts,
            self.known,
        )
        return frozenset().union(*read)

    def column(self, element: int) -> int | None:
        """The column of a number that is sent; None for another element."""
        return self.numbers[element] if element < len(self.numbers) else None

    def values(self, rows: Any, names: Sequence[str] | None = None) -> Array:
        """Rows (..., width) of numbers and texts as numbers, NaN where a value is missing and in columns that are not read.

        Raises ProgramError for a text in another column, naming the column by `names` or its number.
        """
        given = np.asarray(rows)
        if not self.texts and given.dtype.kind in "biuf":
            return np.asarray(given, dtype=np.float64)
        made = np.full(given.shape, np.nan)
        labels = dict(zip(self.texts, self.labels, strict=True))
        for column in sorted(self._used):
            places = {text: float(place) for place, text in enumerate(labels.get(column, ()))}
            for index, value in np.ndenumerate(given[..., column]):
                place = (*index, column)
                if is_missing(value):
                    continue
                if column in labels:
                    made[place] = places.get(str(value), -1.0)
                else:
                    made[place] = _number(value, f"number {column}" if names is None else repr(names[column]))
        return made

    def encoded(self, rows: Array) -> Array:
        """Rows (..., width) of numbers, with NaN for what is missing, as elements (..., elements)."""
        full = np.array(rows)
        for column, fill in zip(self.filled, self.fills, strict=True):
            own = full[..., column]
            own[np.isnan(own)] = fill
        full[..., list(self.rounded)] = np.rint(full[..., list(self.rounded)])
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

    def __str__(self) -> str:
        """What is made of a row, in words."""
        numbers = f"{len(self.numbers)} numbers, each less a centre and divided by a scale"
        numbers += ", within [-1, 1]" * self.clipped
        parts = [
            (self.numbers, numbers),
            (self.rounded, f"{len(self.rounded)} of them rounded to whole numbers first"),
            (self.compared, f"{len(self.compared)} comparisons of {len(set(self.compared))} columns with thresholds"),
            (self.coded, f"{len(self.coded)} tests of {len(set(self.coded))} columns for categories"),
            (self.missing, f"whether {len(self.missing)} columns have a value"),
            (self.filled, f"missing values of {len(self.filled)} columns filled"),
            (self.texts, f"texts of {len(self.texts)} columns"),
        ]
        return f"from {self.width} columns: " + "; ".join(text for used, text in parts if used)

    def needed(self) -> frozenset[int]:
        """The columns that must have a value."""
        read = {*self.numbers, *self.compared, *self.coded, *self.known}
        return frozenset(read - {*self.filled} - ({*self.missing} - {*self.numbers}))

    def unknown(self, rows: Array) -> list[int]:
        """The columns in which rows of numbers have values that must be known and are not."""
        return [
            column
            for column, allowed in zip(self.known, self.allowed, strict=True)
            if not (np.isnan(rows[..., column]) | np.isin(rows[..., column], allowed)).all()
        ]


def is_missing(value: Any) -> bool:
    """Whether a value says that there is none: None, NaN, or the NA and NaT of pandas."""
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float | np.floating | np.datetime64) and bool(value != value))
    )


def _number(value: Any, column: str) -> float:
    if isinstance(value, str | bytes | complex | np.complexfloating):
        raise ProgramError(f"column {column} holds a text or another object, and the model takes a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ProgramError(f"column {column} holds something that is no number") from None
