"""The origin of a node in the user's own text: every node has one, and every error about a node shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's model: `file:line:column` and the layer (the dotted module path or function name).

    `file` is relative to the working directory if it lies below it. Line 0 means unknown; `file` then holds any other
    description of the place (the class of a layer), or nothing. An empty location is false.
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
        """`file:line`, or the layer if the file is unknown."""
        return f"{self.file}:{self.line}" if self.line else (self.file or self.layer)


UNKNOWN = Location()

# If more layers are joined in one operation, only the first and the last are named.
_MOST_JOINED = 3


def joined(places: Sequence[Location]) -> Location:
    """The place of one operation that replaces several layers: `block.conv1+bn1`, on the line of the last.

    At least one place. Layers without a line are written one after the other, `nn.Conv2d(...) + nn.BatchNorm2d(4)`.
    """
    last = places[-1]
    layers = list(dict.fromkeys(place.layer for place in places if place.layer))
    files = [place.file for place in places] if not any(place.line for place in places) else [last.file]
    return replace(last, file=_listed(files, " + "), layer=_listed(_within(layers), "+"))


def _listed(names: Sequence[str], between: str) -> str:
    once = list(dict.fromkeys(name for name in names if name))
    return between.join(once if len(once) <= _MOST_JOINED else (once[0], "...", once[-1]))


def _within(layers: list[str]) -> list[str]:
    """The names, where the later ones omit the module that contains all of them."""
    inside = {layer.rpartition(".")[0] for layer in layers}
    if len(layers) < 2 or len(inside) > 1:
        return layers
    return [layers[0], *(layer.rpartition(".")[2] for layer in layers[1:])]


def display_path(path: str | Path) -> str:
    """The path for display in locations: relative to the working directory if it lies below it; an installed package's
    path starts at the package, so that no installation folder gets into artifacts.
    """
    parts = Path(path).parts
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] in ("site-packages", "dist-packages"):
            return str(Path(*parts[place + 1 :]))
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
