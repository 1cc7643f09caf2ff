"""What mkdocs.yml gives to mkdocstrings: parameters and fields in docstrings become lists.

A docstring has a line `name: what it is` for each (CONTRIBUTING.md); lines that follow belong to it.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_LINE = re.compile(r"(\w+(?:, \w+)*): (.*)")


class Parameters(griffe.Extension):
    """Rewrites the docstring of each function and class."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        _rewrite(func, {parameter.name for parameter in func.parameters})

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        made = cls.members.get("__init__")
        names = {parameter.name for parameter in made.parameters} if isinstance(made, griffe.Function) else set()
        _rewrite(cls, names | set(cls.members))


def _rewrite(described: griffe.Object, names: set[str]) -> None:
    if described.docstring is not None:
        described.docstring.value = listed(described.docstring.value, names)


def listed(text: str, names: set[str]) -> str:
    """The text with an item of a list for each line that begins with some of the names and a colon."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is not None and set(match[1].split(", ")) <= names:
            if lines and lines[-1] and not inside:
                lines.append("")
            shown = ", ".join(f"`{name}`" for name in match[1].split(", "))
            lines.append(f"- {shown}: {match[2]}")
            inside = True
        elif inside and line.strip():
            lines.append(f"    {line.strip()}")
        else:
            lines.append(line)
            inside = inside and bool(line.strip())
    return "\n".join(lines)
