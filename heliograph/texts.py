"""Texts for display: untrusted ones without control characters, which a terminal would obey, and numbers of things."""

from __future__ import annotations


def shown(text: str, most: int | None = None) -> str:
    """The text on one line, without control characters, cut to `most` characters.

    Unprintable characters (escapes, line ends, marks that change the writing direction, surrogates) become "?", a tab a
    space.
    """
    clean = text if text.isprintable() else "".join(c if c.isprintable() else " " if c == "\t" else "?" for c in text)
    return clean if most is None or len(clean) <= most else clean[: most - 3] + "..."


def is_hex(value: object, digits: int) -> bool:
    """Whether the value is a text of `digits` lower-case hexadecimal digits."""
    return isinstance(value, str) and len(value) == digits and set(value) <= set("0123456789abcdef")


def shown_lines(text: str) -> str:
    """A text of several lines, without control characters other than line ends."""
    return "\n".join(map(shown, text.split("\n")))


def number_of(count: int, noun: str) -> str:
    """A number of things in words, such as "1 level" and "2 levels"."""
    return f"{count} {noun}{'s' * (count != 1)}"
