"""Untrusted texts, as they may be shown: a terminal obeys control characters, so none reaches it."""

from __future__ import annotations


def shown(text: str, most: int | None = None) -> str:
    """The text on one line, without control characters, cut to `most` characters.

    What is not printable (escapes, line ends, marks that turn the direction of writing, halves of characters) becomes "?",
    a tab a space.
    """
    clean = text if text.isprintable() else "".join(c if c.isprintable() else " " if c == "\t" else "?" for c in text)
    return clean if most is None or len(clean) <= most else clean[: most - 3] + "..."


def is_hex(value: object, digits: int) -> bool:
    """Whether the value is a text of so many hexadecimal digits in lower case."""
    return isinstance(value, str) and len(value) == digits and set(value) <= set("0123456789abcdef")


def shown_lines(text: str) -> str:
    """The same for a text of several lines, which keeps its line ends."""
    return "\n".join(map(shown, text.split("\n")))
