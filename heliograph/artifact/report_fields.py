"""An untrusted report checked by the fields of its records: who prints or draws it relies on them."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from heliograph.artifact.figures import OPTIONAL, STORED
from heliograph.artifact.validate import check_texts, real, refuse, whole
from heliograph.ir.ops.tensors import DISTRIBUTIONS
from heliograph.report.figures import (
    CERTIFIED_KINDS,
    LARGEST,
    Certified,
    Figure,
    Figures,
    Stored,
    figure_of,
    key_of,
    to_json,
)

T = TypeVar("T")

_TEXT_LENGTH = 4096
_MOST_ROWS = 1 << 16
# Fields that every row of the program's table of ranges has.
_RANGE_TEXTS = ("function", "layer", "location", "method", "source")
_RANGE_NUMBERS = ("degree", "high", "low", "margin", "max_error", "samples")
_RANGE_PAIRS = ("observed", "proved")


def read_stored(values: Mapping[str, Any]) -> Stored:
    """What a file holds of a report; a WireError where that is more or less, or a figure is of another kind."""
    more = sorted(str(key) for key in set(values) - STORED)
    if more:
        raise refuse(f"its report says {more[0][:60]!r}, which follows from its program: it is not for the file to say")
    lacking = STORED - OPTIONAL - set(values)
    if lacking:
        raise refuse(f"its report lacks {min(lacking)!r}")
    known = _record(Stored, values, "its report")
    if known.certificate is not None:
        check_certificate(known.certificate)
    return known


def read_certificate(value: object) -> Certified:
    """What the answers of an untrusted artifact certify; a WireError where it is malformed."""
    check_texts(value, "its certificate")
    found = _record(Certified, value, "its certificate")
    check_certificate(found)
    return found


def check_certificate(found: Certified) -> None:
    """Raise a WireError where a certificate says what no certificate can: who reads answers relies on it."""
    if found.kind not in CERTIFIED_KINDS or found.distribution not in DISTRIBUTIONS:
        raise refuse("its certificate is of a kind that is not known")
    if not found.target <= found.n or not found.zeta < found.tau:
        raise refuse("its certificate asks for more votes than there are")


def check_report(figures: Figures) -> None:
    """Raise a WireError where a figure is of another kind than its field says."""
    _record(Figures, to_json(figures), "its report")
    if figures.bootstraps and figures.bootstrapping is None:
        raise refuse("its report counts bootstraps and does not describe them")
    for row in figures.ranges:
        _check_range(row)


# The field types of each kind of record.
_hints: Callable[[type], Mapping[str, Any]] = functools.cache(get_type_hints)


def _record(cls: type[T], value: object, what: str) -> T:
    """The record in JSON values; a WireError where a field is lacking, of another kind or out of bounds."""
    if not isinstance(value, Mapping):
        raise refuse(f"{what} is malformed")
    entries = fields(cls)  # type: ignore[arg-type]
    needed = {key_of(entry) for entry in entries if entry.default is MISSING}
    if not needed <= set(value) <= {key_of(entry) for entry in entries}:
        raise refuse(f"{what} has other fields than it should")
    return cls(
        **{
            entry.name: _read(
                _hints(cls)[entry.name], value[key_of(entry)], figure_of(entry), f"{key_of(entry)} of {what}"
            )
            for entry in entries
            if key_of(entry) in value
        }
    )


def _read(kind: Any, value: object, figure: Figure, what: str) -> Any:
    """A value of a field of this type; numbers stay as they were written."""
    arguments = get_args(kind)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        (kind,) = (argument for argument in arguments if argument is not types.NoneType)
        return None if value is None else _read(kind, value, figure, what)
    if is_dataclass(kind):
        return _record(kind, value, what)  # type: ignore[arg-type]
    if origin is tuple:
        if not isinstance(value, list) or len(value) > _MOST_ROWS:
            raise refuse(f"{what} is not a list")
        return tuple(_read(arguments[0], entry, figure, what) for entry in value)
    if origin is Mapping:
        if not isinstance(value, Mapping) or (figure.keys is not None and set(value) != figure.keys):
            raise refuse(f"{what} is malformed")
        if arguments[1] is not Any:
            for key, entry in value.items():
                _read(arguments[1], entry, figure, f"{key[:60]} of {what}")
        return value
    if kind is bool:
        if type(value) is not bool:
            raise refuse(f"{what} is neither true nor false")
    elif kind is str:
        if not isinstance(value, str) or len(value) > _TEXT_LENGTH:
            raise refuse(f"{what} is not a text")
    elif kind is int:
        whole(value, what, int(figure.low or 0), int(figure.high))
    else:
        assert kind is float, kind
        real(value, what, -LARGEST if figure.low is None else figure.low, figure.high)
    return value


def _check_range(row: Mapping[str, Any]) -> None:
    """A row of the program's table of ranges; those of compositions and of ranges by unit have more."""
    what = "a range of its report"
    for name in _RANGE_TEXTS:
        _read(str, row.get(name), Figure(), f"{name} of {what}")
    numbers = [*_RANGE_NUMBERS, *(name for name in ("proved_error", "gap") if row.get(name) is not None)]
    for name in (*numbers, *(["smallest_unit"] if "units" in row else [])):
        _read(float, row.get(name), Figure(), f"{name} of {what}")
    for name in _RANGE_PAIRS:
        pair = _read(tuple[float, ...] | None, row.get(name), Figure(), f"{name} of {what}")
        if pair is not None and len(pair) != 2:
            raise refuse(f"{name} of {what} is not a pair")
    if row.get("gap") is not None:
        _read(str, row.get("gap_source"), Figure(), f"gap_source of {what}")
    if "degrees" in row:
        _read(tuple[int, ...], row["degrees"], Figure(high=1 << 20), f"degrees of {what}")
