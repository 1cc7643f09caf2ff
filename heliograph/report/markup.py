"""Self-contained HTML fragments of the report, shared by the page and notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

# Style for notebooks; it does not change their own rules.
_STYLE = """
.heliograph { max-width: 1000px; }
.heliograph table { border-collapse: collapse; margin: 8px 0; }
.heliograph th, .heliograph td { text-align: left; padding: 3px 14px 3px 0; vertical-align: top; }
.heliograph .tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 10px 0; }
.heliograph .tile { border: 1px solid #b9c4cf; border-radius: 8px; padding: 6px 12px; }
.heliograph .tile b { display: block; font-size: 18px; }
.heliograph .amber { color: #b86e14; font-weight: 600; }
.heliograph .term { text-decoration: underline dotted; cursor: help; }
.heliograph .badge { font-weight: 600; } .heliograph .bad { color: #b5452c; }
"""


class Html(str):
    """A text that is HTML already and is not escaped."""


def _escaped(text: str) -> str:
    return text if isinstance(text, Html) else escape(text)


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]], name: str = "") -> str:
    """A table with these cells, escaped unless they are `Html`.

    With a `name`, this is the table's id, and each cell carries the name of its column, for pages too narrow for
    columns.
    """

    def cells(row: tuple[str, ...]) -> str:
        return "".join(
            (f"<td data-name='{escape(column)}'>" if name else "<td>") + _escaped(cell) + "</td>"
            for column, cell in zip(header, row, strict=True)
        )

    head = "".join(f"<th>{escape(column)}</th>" for column in header)
    body = "".join(f"<tr>{cells(row)}</tr>" for row in rows)
    start = f"<table id='{name}'>" if name else "<table>"
    return f"{start}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def titled(text: str, line: str) -> Html:
    """A text with a line that is shown where the pointer rests on it."""
    return Html(f'<span class="term" title="{escape(line)}">{escape(text)}</span>')


def tiles(figures: Sequence[tuple[str, str]]) -> str:
    """The most important figures, each in a tile with its value and its label, which may be `Html`."""
    inner = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{_escaped(label)}</span></div>' for value, label in figures
    )
    return f'<div class="tiles">{inner}</div>'


def badge(text: str, bad: bool) -> str:
    """The security in a word or two."""
    return f'<span class="badge{" bad" if bad else ""}">{escape(text)}</span>'


def fragment(name: str, parts: Sequence[str]) -> str:
    """The pieces under a title, for display in a notebook."""
    return f'<div class="heliograph"><style>{_STYLE}</style><h3>{escape(name)}</h3>{"".join(parts)}</div>'
