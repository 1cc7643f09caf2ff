"""Where a node comes from in the user's own text: every node has one, and every error that concerns a node shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's model: `file:line:column` and the layer (the dotted module path or function name).

    `file` is relative to the working directory where it lies below it. Line 0 means unknown; `file` then holds what else
    says where it is (the class of a layer), or nothing. A location that says nothing is false.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    layer: str = ""

    def __bool__(self) -> bool:
        return bool(self.file or self.layer)

    def __str__(self) -> str:
        place = self.file
        if self.line:
            place = f"{place}:{self.line}"
            if self.column:
                place = f"{place}:{self.column}"
        if self.layer:
            return f"{place} ({self.layer})" if place else self.layer
        return place or "unknown place"

    @property
    def short(self) -> str:
        """`file:line`, or the layer where the file is unknown."""
        return f"{self.file}:{self.line}" if self.line else (self.file or self.layer)


UNKNOWN = Location()


def display_path(path: str | Path) -> str:
    """The path as locations show it: relative to the working directory where it lies below it, and an installed package's
    from the package on, so that no folder of an installation gets into artifacts.
    """
    parts = Path(path).parts
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] in ("site-packages", "dist-packages"):
            return str(Path(*parts[place + 1 :]))
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
