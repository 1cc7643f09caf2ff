"""Frozen records as plain values and back: what an untrusted text or file says is checked by the fields' own types.

A record is a dataclass whose fields are numbers, booleans, texts, None, tuples, or records. As plain values it is a
dictionary by field name, without the fields that have their default. Lists are taken for tuples, whole numbers for floats.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from heliograph.errors import ProgramError

R = TypeVar("R")


def plain(record: Any) -> dict[str, Any]:
    """The fields that differ from their defaults, by name; nested records stay records."""
    return {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if field.default is dataclasses.MISSING or getattr(record, field.name) != field.default
    }


def record(kind: type[R], given: Mapping[str, Any], what: str) -> R:
    """The record of that kind from plain values; a ProgramError that says which field of `what` is wrong."""
    hints = _hints(kind)  # type: ignore[arg-type]
    for name in given:
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, n=1)
            raise ProgramError(
                f"{what} has no field {str(name)[:60]!r}" + (f"; perhaps {near[0]!r} was meant" if near else "")
            )
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in given:
            values[field.name] = _value(hints[field.name], given[field.name], f"{field.name} of {what}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ProgramError(f"{what} lacks its {field.name}")
    return kind(**values)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(hint: Any, value: Any, what: str) -> Any:
    """The value as the hint asks for it; raises a ProgramError where it is of another type."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if value is None:
            return None
        (hint,) = (each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)
        if not isinstance(value, (tuple, list)):
            raise _wrong(value, what)
        if inner[-1] is Ellipsis:
            return tuple(_value(inner[0], item, what) for item in value)
        if len(value) != len(inner):
            raise _wrong(value, what)
        return tuple(_value(each, item, what) for each, item in zip(inner, value, strict=True))
    if dataclasses.is_dataclass(hint):
        if isinstance(value, hint):  # type: ignore[arg-type]
            return value
        if not isinstance(value, Mapping):
            raise _wrong(value, what)
        return record(hint, value, what)  # type: ignore[arg-type]
    if type(value) is not hint and not (hint is float and type(value) is int):
        raise _wrong(value, what)
    return value


def _wrong(value: Any, what: str) -> ProgramError:
    shown = repr(value)[:60] if isinstance(value, (int, float, str, bool)) else type(value).__name__
    return ProgramError(f"the {what} is {shown}, which is not of its type")
