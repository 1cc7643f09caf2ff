"""The errors that Heliograph raises: each says what is wrong, where, why, and what to try."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from heliograph.texts import shown_lines

# The most errors of a text of the language that are collected, that its error shows, and the characters of these.
MOST_DIAGNOSTICS = 100
_MOST_SHOWN = 20
_MOST_CHARACTERS = 19_000
_ARGUMENT = re.compile(r"\{(?:([A-Za-z_][\w.]*(?:=[^{}|]*)?)|([^{}|]+)\|([^{}|]*))\}")


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a function in the text of an error.

    name: its name in Python.
    value: its value in Python syntax; empty if the text does not mention it.
    typed: its form on the command line, if that is not the argument's flag.
    """

    name: str
    value: str = ""
    typed: str | None = None

    def __str__(self) -> str:
        return f"{self.name}={self.value}" if self.value else self.name


class Said(str):
    """A text with marked arguments: as a str it has their Python names, and the command line replaces them by flags."""

    parts: tuple[str | Argument, ...]

    def __str__(self) -> str:
        return self

    def with_flags(self, typed: Callable[[Argument], str]) -> str:
        """The text with each argument replaced by the result of `typed`."""
        parts = (typed(part) if isinstance(part, Argument) and part.typed is None else part for part in self.parts)
        return "".join(part.typed or "" if isinstance(part, Argument) else part for part in parts)


def said(*given: str | Argument) -> Said:
    """A text from arguments and from texts in which `{name}` or `{name=value}` marks an argument.

    In `{Python|command line}` the first part is for Python, the second for the command line.
    """
    parts: list[str | Argument] = []
    for text in given:
        if isinstance(text, Argument):
            parts.append(text)
            continue
        end = 0
        for found in _ARGUMENT.finditer(text):
            name, _, value = (found[1] or "").partition("=")
            argument = Argument(name, value) if name else Argument(found[2], typed=found[3])
            parts += [text[end : found.start()], argument]
            end = found.end()
        parts.append(text[end:])
    made = Said("".join(map(str, parts)))
    made.parts = tuple(parts)
    return made


class HeliographError(Exception):
    """Base of every error that is meant for the user; the command line prints it without a traceback.

    `what` is one sentence; `where` is a place that the user knows (a file and line, a layer, an argument); `why` is the
    cause; `hint` is what to try. Texts from `said` keep their arguments marked. Empty parts are left out of the text.
    The text never has control characters other than line ends, even if parts of it come from an untrusted file.
    """

    def __init__(self, what: str, *, where: object = "", why: str = "", hint: str = "") -> None:
        self.what = what
        self.where = str(where) if where else ""
        self.why = why
        self.hint = hint
        super().__init__(self._text())

    def _text(self) -> str:
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.hint:
            lines.append(f"  try: {self.hint}")
        return shown_lines("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments: pickling between worker processes needs the state spelled out.
        return (_rebuild, (type(self), self.what, self.where, self.why, self.hint))


def _rebuild(cls: type[HeliographError], what: str, where: str, why: str, hint: str) -> HeliographError:
    return cls(what, where=where, why=why, hint=hint)


@contextlib.contextmanager
def raised_as(kind: type[HeliographError], errors: type[HeliographError] = HeliographError) -> Iterator[None]:
    """Raise errors of one class as errors of another class with the same text."""
    try:
        yield
    except errors as error:
        raise kind(error.what, where=error.where, why=error.why, hint=error.hint) from None


class ProgramError(HeliographError):
    """The user's program, options or data cannot be used as they are."""


class UnsupportedError(ProgramError):
    """The program uses something that Heliograph does not support; the hint says what to write instead."""


class PlanningError(ProgramError):
    """No parameters meet the requirements (levels, precision, security, memory); the text has the nearest that do."""


class RangeError(ProgramError):
    """A value is outside the interval that a polynomial or an encoding was planned for."""


class WireError(HeliographError):
    """A file or message is not what it claims to be: truncated, altered, oversized, foreign, or of another version."""


class SecurityError(HeliographError):
    """Continuing would give up security that was requested."""


class TooLittleMemoryError(HeliographError):
    """The plan needs more memory than is available."""


class TooLittleDiskError(HeliographError):
    """The disk has no room for the file of mapped keys."""


class StatusError(HeliographError):
    """A server's refusal with an unknown class, or one for something that does not exist (yet).

    `status` is the HTTP status.
    """

    def __init__(self, status: int, what: str, *, where: object = "", why: str = "", hint: str = "") -> None:
        self.status = status
        super().__init__(what, where=where, why=why, hint=hint)


class BudgetError(ProgramError):
    """A mechanism was refused: it would have exceeded the budget. Nothing was charged."""


def _render(diagnostics: tuple[Any, ...], total: int) -> str:
    """The first diagnostics as a text, and how many there are."""
    parts: list[str] = []
    size = 0
    for diagnostic in diagnostics[:_MOST_SHOWN]:
        text = str(diagnostic)
        if size + len(text) > _MOST_CHARACTERS:
            break
        parts.append(text)
        size += len(text) + 1
    if total > 1:
        more = f", the first {len(parts)} are shown" if len(parts) < total else ""
        parts.append(f"{total}{' or more' if total >= MOST_DIAGNOSTICS else ''} errors{more}")
    return "\n".join(parts)


class LanguageError(ProgramError):
    """A text of the language has errors; `diagnostics` (dsl/diagnostics.py) lists them in the order of the text."""

    def __init__(self, diagnostics: tuple[Any, ...]) -> None:
        self.diagnostics = diagnostics
        first = diagnostics[0]
        super().__init__(
            first.what, where=f"{first.file}:{first.line}:{first.column}", why=first.expected, hint=first.hint
        )

    def _text(self) -> str:
        return _render(self.diagnostics, len(self.diagnostics))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.diagnostics,))


class UnsupportedLanguageError(LanguageError, UnsupportedError):
    """The text is correct, but this version does not support one of its features."""


class SlowWarning(UserWarning):
    """A calibration of noise or steps will take long."""


class CompositionWarning(UserWarning):
    """A second run uses private data, and its guarantee does not include the first run."""


class InsecureWarning(UserWarning):
    """Something runs without security because the caller allowed it."""


class MissingPackageError(HeliographError, ImportError):
    """An optional package is not installed; the hint says what to install."""


class VerifyError(HeliographError):
    """A pass broke the contract of its stage. This is our bug; the text names the pass, the rule and the node."""


class InternalError(HeliographError):
    """Something happened that cannot happen. This is our bug."""


@contextlib.contextmanager
def at(where: object, said_by: str = "", hint: str = "") -> Iterator[None]:
    """Add the place `where` to a ProgramError raised inside; an error that already has a place is left unchanged.

    `said_by` is put before the text ("sign: ..."); `hint` replaces the error's own hint.
    """
    try:
        yield
    except ProgramError as error:
        if error.where:
            raise
        what = f"{said_by}: {error.what}" if said_by else error.what
        raise type(error)(what, where=where, why=error.why, hint=hint or error.hint) from None


# Package -> what to install for it. numba comes with us where it has wheels.
INSTALLS = {
    "torch": "heliograph[torch]",
    "openfhe": "heliograph[openfhe]",
    "numba": "numba",
    "matplotlib": "heliograph[plot]",
    "sklearn": "heliograph[sklearn]",
    "fastapi": "heliograph[serve]",
    "uvicorn": "heliograph[serve]",
}


@contextlib.contextmanager
def packages_named() -> Iterator[None]:
    """Turn a failed import of an optional package into a MissingPackageError that says what to install."""
    try:
        yield
    except MissingPackageError:
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in INSTALLS:
            raise
        raise MissingPackageError(
            f"{package} is not installed", why=str(error), hint=f"pip install '{INSTALLS[package]}'"
        ) from None
