"""The elements of the report's SVG drawings: texts, lines and boxes, their colours, and the ticks of an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape


def _themed(name: str, colour: str) -> str:
    """The colour for standalone pictures; for dark screens the page redefines the same names (html.py)."""
    return f"var(--{name}, {colour})"


DARK_INK = "#1f2933"
INK, MUTED, GRID = _themed("ink", DARK_INK), _themed("muted", "#5c6b7a"), _themed("grid", "#d8dee6")
PREDICTED, MEASURED, WARM = _themed("predicted", "#2c6fbb"), _themed("measured", "#d9822b"), _themed("warm", "#b5452c")
PROVED, INTERVAL = _themed("proved", "#2f7d5b"), _themed("interval", "#e4ecf5")
BOOTSTRAP, BAND = _themed("bootstrap", "#7b3fa0"), _themed("band", "#f4f6f9")
LEVEL, SCALE = _themed("level", "#0b5394"), _themed("scale", "#2f7d5b")
# Marks text on an axis, which is not a figure of the report.
AXIS = ' class="axis"'


def number(value: float) -> str:
    """A coordinate as a short text."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def title(said: str) -> str:
    """What is shown where the pointer rests on the element around it."""
    return f"<title>{escape(said)}</title>"


def text(x: float, y: float, said: str, size: int = 12, anchor: str = "start", fill: str = INK, more: str = "") -> str:
    """A line of text; `more` are further attributes."""
    return (
        f'<text x="{number(x)}" y="{number(y)}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{more}>'
        f"{escape(said)}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = GRID, width: float = 1.0, inner: str = "") -> str:
    """A straight line; `inner` is what is inside the element, such as a title."""
    return (
        f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" '
        f'stroke="{stroke}" stroke-width="{number(width)}">{inner}</line>'
    )


def rect(x: float, y: float, width: float, height: float, fill: str, more: str = "", inner: str = "") -> str:
    """A rectangle."""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(max(width, 0.0))}" height="{number(height)}" '
        f'fill="{fill}"{more}>{inner}</rect>'
    )


def circle(x: float, y: float, radius: float, fill: str, more: str = "", inner: str = "") -> str:
    """A dot."""
    return f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" fill="{fill}"{more}>{inner}</circle>'


def picture(width: float, height: float, body: Sequence[str], label: str, name: str = "", role: str = "img") -> str:
    """A drawing of these elements; one with links is of the role "group", whose parts are read out too."""
    identity = f' id="{escape(name)}"' if name else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg"{identity} width="{number(width)}" height="{number(height)}" '
        f'viewBox="0 0 {number(width)} {number(height)}" role="{role}" aria-label="{escape(label)}">'
        + "".join(body)
        + "</svg>"
    )


def ending(text: str, most: int) -> str:
    """The text, without its beginning if it is too long: the end of a layer's path says more."""
    return text if len(text) <= most else f"…{text[len(text) - most + 1 :]}"


def shortened(text: str, most: int) -> str:
    """The text, without its middle if it is too long."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def ticks(most: float) -> list[float]:
    """At most six round numbers from 0."""
    if most <= 0:
        return [0.0]
    step = 10.0 ** math.floor(math.log10(most))
    for factor in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0):
        if most / (step * factor) <= 6:
            step *= factor
            break
    return [i * step for i in range(int(most / step + 1e-9) + 1)]
