"""Errors in a text of the language, and their display: a place, the line with a caret, a hint."""

from __future__ import annotations

import bisect
import difflib
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heliograph import texts
from heliograph.errors import MOST_DIAGNOSTICS, LanguageError, ProgramError, UnsupportedLanguageError
from heliograph.files import open_file
from heliograph.ir.location import Location, display_path

MAX_SOURCE_BYTES = 1 << 20
_MAX_PART = 400
_EXCERPT = 100


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of the text: offsets from `start` up to `end`."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """From the start of this to the end of the other."""
        return Span(self.start, max(self.end, other.end))


class Source:
    """A text with a name, the offsets of its lines, and the folder that must contain its parameter files."""

    def __init__(self, text: str, name: str = "<text>", folder: Path | None = None) -> None:
        self.text = text.replace("\r\n", "\n").replace("\r", "\n")
        self.name = name
        self.folder = folder if folder is not None else Path.cwd()
        self._starts = [0]
        position = self.text.find("\n")
        while position >= 0:
            self._starts.append(position + 1)
            position = self.text.find("\n", position + 1)

    def line_column(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1."""
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def line_text(self, line: int) -> str:
        start = self._starts[line - 1]
        end = self._starts[line] - 1 if line < len(self._starts) else len(self.text)
        return self.text[start:end]

    def location(self, span: Span, layer: str = "") -> Location:
        line, column = self.line_column(span.start)
        return Location(self.name, line, column, layer)

    @staticmethod
    def read(path: Path) -> Source:
        """The text of a file; a ProgramError if it is absent, special, too large or not UTF-8."""
        name = display_path(path)
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise ProgramError("this is not a file", where=name)
            with open_file(path) as file:
                raw = file.read(MAX_SOURCE_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "the path is malformed"
            raise ProgramError(f"{texts.shown(name, _MAX_PART)} cannot be read", why=reason) from None
        if len(raw) > MAX_SOURCE_BYTES:
            raise ProgramError(
                f"the file has more than {MAX_SOURCE_BYTES} bytes, the most that is read of a program",
                where=name,
                hint="keep large parameters in an .npz or .safetensors file and load() them",
            )
        folder = path.resolve().parent
        try:
            return Source(raw.decode("utf-8-sig"), name, folder)
        except UnicodeDecodeError as error:
            source = Source(raw.decode("utf-8-sig", errors="replace"), name, folder)
            before = raw[: error.start].decode("utf-8-sig", errors="replace")
            offset = len(before.replace("\r\n", "\n"))
            report = Diagnostics(source)
            report.add(
                Span(offset, offset + 1),
                f"byte 0x{raw[error.start]:02x} is not UTF-8",
                hint="save the file as UTF-8 text",
            )
            raise report.error() from None


class Fault(Exception):
    """One error at one place; caught where the reader can go on with the next statement."""

    def __init__(
        self, span: Span, what: str, *, expected: str = "", hint: str = "", note: str = "", unsupported: bool = False
    ) -> None:
        super().__init__(what)
        self.span = span
        self.what = what
        self.expected = expected
        self.hint = hint
        self.note = note
        self.unsupported = unsupported


class Poisoned(Exception):
    """The value depends on something with an error that is already reported; it needs no further report."""


class TooMany(Exception):
    """There are so many errors, or so much work was done, that reading on makes no sense."""


def shown(name: str) -> str:
    """A name or number from the text in the form for messages: short, printable."""
    return texts.shown(name, 60)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error, ready to show; `line` and `column` count from 1."""

    file: str
    line: int
    column: int
    what: str
    expected: str = ""
    hint: str = ""
    note: str = ""
    excerpt: str = ""
    caret: int = 0
    width: int = 1
    unsupported: bool = False

    def __str__(self) -> str:
        lines = [f"{self.file}:{self.line}:{self.column}: {self.what}"]
        if self.excerpt:
            lines.append(f"    {self.excerpt}".rstrip())
            lines.append("    " + " " * self.caret + "^" + "~" * (self.width - 1))
        parts = (("expected", self.expected), ("note", self.note), ("try", self.hint))
        lines += [f"  {label}: {text}" for label, text in parts if text]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "line": self.line,
            "column": self.column,
            "message": self.what,
            "expected": self.expected,
            "note": self.note,
            "try": self.hint,
        }


@dataclass
class Diagnostics:
    """Collects errors, one per place."""

    source: Source
    _by_place: dict[int, Diagnostic] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._by_place)

    def __len__(self) -> int:
        return len(self._by_place)

    def add(
        self, span: Span, what: str, *, expected: str = "", hint: str = "", note: str = "", unsupported: bool = False
    ) -> None:
        """Record an error unless there is one at that place already; TooMany when the collection is full."""
        if span.start in self._by_place:
            return
        line, column = self.source.line_column(span.start)
        raw = self.source.line_text(line)
        first = max(0, column - 1 - _EXCERPT * 2 // 3) if len(raw) > _EXCERPT else 0
        # The common indentation of a short line carries no information.
        if not first:
            first = min(len(raw) - len(raw.lstrip(" \t")), column - 1)
        excerpt = texts.shown(raw[first : first + _EXCERPT])
        caret = column - 1 - first
        width = max(1, min(span.end - span.start, len(excerpt.rstrip()) - caret))
        self._by_place[span.start] = Diagnostic(
            self.source.name,
            line,
            column,
            texts.shown(what, _MAX_PART),
            texts.shown(expected, _MAX_PART),
            texts.shown(hint, _MAX_PART),
            texts.shown(note, _MAX_PART),
            excerpt,
            caret,
            width,
            unsupported,
        )
        if len(self._by_place) >= MOST_DIAGNOSTICS:
            raise TooMany

    def add_fault(self, fault: Fault) -> None:
        self.add(
            fault.span,
            fault.what,
            expected=fault.expected,
            hint=fault.hint,
            note=fault.note,
            unsupported=fault.unsupported,
        )

    def error(self) -> LanguageError:
        """All of them as one exception."""
        found = tuple(self._by_place[start] for start in sorted(self._by_place))
        if all(diagnostic.unsupported for diagnostic in found):
            return UnsupportedLanguageError(found)
        return LanguageError(found)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'a' or 'b'?`, or nothing if no name is similar."""
    candidates = sorted(set(known))
    if len(name) > 60:
        return ""
    if len(candidates) > 300:
        # Matching is slow; a typo rarely changes the first letter.
        candidates = [c for c in candidates if c[:1] == name[:1] and abs(len(c) - len(name)) < 3][:300]
    near = difflib.get_close_matches(name, candidates, n=3)
    if not near:
        folded = {candidate.lower(): candidate for candidate in candidates}
        near = [folded[name.lower()]] if name.lower() in folded else []
    return f"did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
