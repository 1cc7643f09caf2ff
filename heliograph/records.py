"""Conversion of frozen records to plain values and back; untrusted values are checked by the fields' types and bounds.

A record is a dataclass whose fields are numbers, booleans, texts, None, tuples, tables (mappings by text), or records. As
plain values it is a dictionary by field name. `bounds` in a field's metadata restricts its values beyond its type;
relations between fields are checked by the record's reader. Lists are accepted as tuples, and integers as floats.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field
from typing import Any, ParamSpec, TypeVar

from heliograph.errors import ProgramError

R = TypeVar("R")
P = ParamSpec("P")
# The bound of numbers without their own bounds; integers must not be negative either.
LARGEST = 1e30
_MOST_CHARACTERS = 4096
_MOST_ENTRIES = 1 << 16
# The most characters of a name.
MOST_NAME = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a field's values beyond its type, and its form in JSON.

    low, high: the bounds of a number, or of each in a tuple or table, both included.
    most: the most entries of a tuple or table.
    choices: the allowed values.
    named: texts are names: short, printable, not empty.
    keys: the names in a table, if they are known.
    key: the field's name in JSON, if it differs.
    optional: JSON omits the field if it has its default.
    """

    low: float | None = None
    high: float = LARGEST
    most: int = _MOST_ENTRIES
    choices: tuple[object, ...] = ()
    named: bool = False
    keys: frozenset[str] | None = None
    key: str = ""
    optional: bool = False


_FREE = Bounds()


def bounds(low: float | None = None, high: float = LARGEST, **more: Any) -> dict[str, Bounds]:
    """The metadata of a field with these `Bounds`."""
    return {"bounds": Bounds(low, high, **more)}


def bounds_of(entry: Field[Any]) -> Bounds:
    """The bounds of a field."""
    found = entry.metadata.get("bounds", _FREE)
    assert isinstance(found, Bounds)
    return found


def key_of(entry: Field[Any]) -> str:
    """The name of a field in JSON."""
    return bounds_of(entry).key or entry.name


def plain(record: Any) -> dict[str, Any]:
    """The fields that differ from their defaults, by name; nested records stay records."""
    return {
        entry.name: getattr(record, entry.name)
        for entry in dataclasses.fields(record)
        if entry.default is MISSING or getattr(record, entry.name) != entry.default
    }


def to_json(value: Any) -> Any:
    """A record, a table or a tuple of them as JSON values; other values stay unchanged."""
    if dataclasses.is_dataclass(value):
        return {
            key_of(entry): to_json(getattr(value, entry.name))
            for entry in dataclasses.fields(value)
            if not bounds_of(entry).optional or getattr(value, entry.name) != entry.default
        }
    if isinstance(value, Mapping):
        return {key: to_json(entry) if dataclasses.is_dataclass(entry) else entry for key, entry in value.items()}
    return [to_json(entry) for entry in value] if isinstance(value, tuple) else value


def record(kind: type[R], given: object, what: str) -> R:
    """The record of class `kind` from plain values; a ProgramError names the wrong field of `what`.

    Numbers keep their type: an integer for a float field stays an integer.
    """
    if not isinstance(given, Mapping):
        raise ProgramError(f"{what} is {short(given)}, not a record")
    entries = _entries(kind)  # type: ignore[arg-type]
    for key in given:
        if key not in entries:
            near = difflib.get_close_matches(str(key), entries, n=1)
            raise ProgramError(
                f"{what} has no field {str(key)[:60]!r}" + (f"; perhaps {near[0]!r} was meant" if near else "")
            )
    values = {}
    for key, (entry, hint) in entries.items():
        if key in given:
            values[entry.name] = _value(hint, given[key], bounds_of(entry), f"{key} of {what}")
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise ProgramError(f"{what} lacks its {key}")
    return kind(**values)


def check(found: Any, what: str) -> None:
    """Raise a ProgramError if a field of a record has the wrong type or is out of bounds."""
    for key, (entry, hint) in _entries(type(found)).items():  # type: ignore[arg-type]
        _value(hint, getattr(found, entry.name), bounds_of(entry), f"{key} of {what}")


class Named(type):
    """The type of records that a person writes: a misspelt field is refused with the nearest name."""

    def __call__(cls, *given: Any, **named: Any) -> Any:
        names = [entry.name for entry in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in named:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=2)
                raise ProgramError(
                    f"there is no option {name!r}",
                    where=cls.__name__,
                    hint=f"did you mean {' or '.join(near)}?" if near else f"help(heliograph.{cls.__name__}) names all",
                )
        return super().__call__(*given, **named)


def named(options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Of a function with an argument `options` of this type: a misspelt argument is refused with the nearest name, also
    one of an option.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        own = list(inspect.signature(function).parameters)
        known = [entry.name for entry in dataclasses.fields(options)]

        @functools.wraps(function)
        def checked(*given: P.args, **named: P.kwargs) -> R:
            for name in named:
                if name not in own:
                    what = function.__name__
                    near = difflib.get_close_matches(name, [*own, *known], n=1)
                    meant = f"help(heliograph.{what}) names all"
                    if near:
                        meant = f"perhaps {near[0]!r} was meant"
                        meant = f"options=hg.{options.__name__}({near[0]}=...)" if near[0] not in own else meant
                    raise ProgramError(f"{what} takes no argument {name!r}", hint=meant)
            return function(*given, **named)

        return checked

    return decorated


# The fields of each record class, by their names in JSON, with their types.
@functools.cache
def _entries(kind: type) -> dict[str, tuple[Field[Any], Any]]:
    hints = typing.get_type_hints(kind)
    return {key_of(entry): (entry, hints[entry.name]) for entry in dataclasses.fields(kind)}


def _value(hint: Any, value: Any, found: Bounds, what: str) -> Any:
    """The value, converted to the type `hint`; a ProgramError if it does not fit type or bounds."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (hint,) = (each for each in arguments if each is not types.NoneType)
        return _value(hint, value, found, what)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, hint):  # type: ignore[arg-type]
            return record(hint, value, what)  # type: ignore[arg-type]
        check(value, what)
    elif origin is tuple:
        return _tuple(arguments, value, found, what)
    elif origin is Mapping:
        return _table(arguments[1], value, found, what)
    elif hint is bool:
        if type(value) is not bool:
            raise ProgramError(f"{what} is {short(value)}, neither true nor false")
    elif hint is str:
        _check_text(value, found, what)
    elif hint is int:
        whole(value, what, int(found.low or 0), int(found.high))
    else:
        assert hint is float, hint
        real(value, what, -LARGEST if found.low is None else found.low, found.high)
    if found.choices and value not in found.choices:
        raise ProgramError(f"{what} is {short(value)}, not {wanted(hint, found)}")
    return value


def fits(hint: Any, value: Any, found: Bounds) -> bool:
    """Whether the value is of this type and within these bounds."""
    try:
        _value(hint, value, found, "it")
    except ProgramError:
        return False
    return True


def wanted(hint: Any, found: Bounds) -> str:
    """A description, in words, of values with this type and these bounds."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (each for each in typing.get_args(hint) if each is not types.NoneType)
        choices = (*found.choices, *((True, False) if hint is bool else ()))
        return _either((*choices, None)) if choices else wanted(hint, found)
    if found.choices or hint is bool:
        return _either(found.choices or (True, False))
    if hint is int:
        return _between("a whole number", int(found.low or 0), int(found.high))
    if hint is float:
        return _between("a number", -LARGEST if found.low is None else found.low, found.high)
    return "a text" if hint is str else f"of type {getattr(hint, '__name__', hint)}"


def _either(choices: tuple[object, ...]) -> str:
    words = [f'"{each}"' if isinstance(each, str) else str(each) for each in choices]
    return " or ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])


def _between(noun: str, low: float, high: float) -> str:
    """A description of a number between bounds; the smallest positive float represents an open end at zero."""
    if low == math.ulp(0.0):
        noun, low = noun.replace("a ", "a positive ", 1), -LARGEST
    if abs(low) < LARGEST and high < LARGEST:
        return f"{noun} from {_shown(low)} to {_shown(high)}"
    least, most = abs(low) < LARGEST, high < LARGEST
    return noun + f" of at least {_shown(low)}" * least + f" of at most {_shown(high)}" * most


def _shown(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def _tuple(arguments: tuple[Any, ...], value: Any, found: Bounds, what: str) -> tuple[Any, ...]:
    """A tuple of any length, or with one entry for each type."""
    if not isinstance(value, (tuple, list)) or len(value) > found.most:
        raise ProgramError(f"{what} is {short(value)}, not a list of at most {found.most} entries")
    kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
    if len(value) != len(kinds):
        raise ProgramError(f"{what} has {len(value)} entries, not {len(kinds)}")
    return tuple(_value(kind, entry, found, what) for kind, entry in zip(kinds, value, strict=True))


def _table(kind: Any, value: Any, found: Bounds, what: str) -> Any:
    if not isinstance(value, Mapping) or (found.keys is not None and set(value) != found.keys):
        raise ProgramError(f"{what} is malformed")
    if kind is Any:
        return value
    return {key: _value(kind, entry, found, f"{str(key)[:60]} of {what}") for key, entry in value.items()}


def _check_text(value: Any, found: Bounds, what: str) -> None:
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:
        raise ProgramError(f"{what} is {short(value)}, not a text of at most {_MOST_CHARACTERS} characters")
    if found.named:
        printable(value, what)


def whole(value: object, what: str, low: int, high: int) -> int:
    """The value as an integer between the bounds, both included; a ProgramError if it is not."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ProgramError(f"{what} is {short(value)}, not {_between('a whole number', low, high)}")
    return value


def real(value: object, what: str, low: float = -LARGEST, high: float = LARGEST) -> float:
    """The value as a finite number between the bounds; a ProgramError if it is not."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise ProgramError(f"{what} is {short(value)}, not {_between('a number', low, high)}")
    return float(value)


def printable(value: object, what: str) -> str:
    """The value as a short printable text; a ProgramError if it is not."""
    if not isinstance(value, str) or not 0 < len(value) <= MOST_NAME or not value.isprintable():
        raise ProgramError(f"{what} is {short(value)}, not a name")
    return value


def short(value: object) -> str:
    """A value in a few characters."""
    return repr(value)[:60] if isinstance(value, (int, float, str, bool)) or value is None else type(value).__name__
