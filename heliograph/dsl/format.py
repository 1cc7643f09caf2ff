"""The canonical form of a text: spacing, indentation, line breaks. Comments stay, words never change."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heliograph.dsl.diagnostics import Diagnostics, Source, TooMany
from heliograph.dsl.parse import read_module
from heliograph.dsl.tokens import Line, lexer, split
from heliograph.errors import InternalError

if TYPE_CHECKING:
    import lark

WIDTH = 100
_INDENT = "  "
# Brackets up to this width stay on one line even if a longer bracket beside them is opened up.
_SHORT = 30

_OPEN = {"LPAR", "LSQB"}
_CLOSE = {"RPAR", "RSQB"}
# After one of these a value or a sign begins, so a minus is a sign and a bracket opens a list or a group.
_VALUE_ENDS = {"NAME", "NUMBER", "STRING", "RPAR", "RSQB", "TRUE", "FALSE", "TENSOR", "SLOTS", "INT_TYPE", "FLOAT_TYPE"}


@dataclass(slots=True)
class _Group:
    """A bracketed piece: elements between commas; each element is tokens and inner groups, with the comments at it."""

    opener: lark.Token
    closer: lark.Token | None = None
    elements: list[_Element] = field(default_factory=list)


@dataclass(slots=True)
class _Element:
    parts: list[lark.Token | _Group] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    # Comments inside and after, up to the end of the line on which the element ends.
    after: list[str] = field(default_factory=list)
    comma: bool = False


def format_source(source: Source) -> str:
    """The formatted text; a LanguageError if the text cannot be read."""
    report = Diagnostics(source)
    with contextlib.suppress(TooMany):
        read_module(source, report)
    if report:
        raise report.error()
    out: list[str] = []
    depth = 0
    for line in split(source, report):
        if line.tokens and line.tokens[0].type == "RBRACE":
            depth -= 1
        blank = line.blank_before and bool(out)
        if blank and (out[-1].endswith("{") or (line.tokens and line.tokens[0].type == "RBRACE")):
            blank = False
        if blank:
            out.append("")
        out.extend(_statement(line, depth))
        if line.tokens and line.tokens[-1].type == "LBRACE":
            depth += 1
    text = "\n".join(out) + "\n" if out else ""
    if _words(text) != _words(source.text):
        raise InternalError(f"{source.name}: formatting would change the text", hint="please report it with the file")
    return text


def format_text(text: str, name: str = "<text>") -> str:
    """The formatted text; a LanguageError if it cannot be read."""
    return format_source(Source(text, name))


def _words(text: str) -> list[str]:
    """The words in order, then the comments sorted: one inside brackets moves to the end of its element."""
    tokens = list(lexer().lex(Source(text).text))
    words = [str(token) for token in tokens if token.type not in ("NEWLINE", "COMMENT")]
    return words + sorted(_comment(token) for token in tokens if token.type == "COMMENT")


def _comment(token: lark.Token) -> str:
    return str(token).rstrip()


def _statement(line: Line, depth: int) -> list[str]:
    indent = _INDENT * depth
    if not line.tokens:
        assert line.comment is not None
        return [indent + _comment(line.comment)]
    tail = f"  {_comment(line.comment)}" if line.comment is not None else ""
    tokens = _typed(line)
    root = _nest(tokens)
    flat = None if _has_comments(root) else "".join(_flat(root))
    if flat is not None and len(indent) + len(flat) <= WIDTH:
        return [indent + flat + tail]
    lines = _exploded(root, depth)
    lines[-1] += tail
    return lines


def _typed(line: Line) -> list[lark.Token]:
    """All tokens of the line; words get the types for their places."""
    by_start = {token.start_pos: token for token in line.tokens}
    return [by_start.get(token.start_pos, token) for token in line.all_tokens]


def _nest(tokens: list[lark.Token]) -> _Element:
    """The tokens as a tree of bracketed groups; each comment goes to the element next to it."""
    root = _Element()
    stack: list[tuple[_Group, _Element]] = []
    element = root
    fresh_line = False
    for token in tokens:
        kind = token.type
        if kind == "NEWLINE":
            fresh_line = True
            continue
        if kind == "COMMENT":
            group = stack[-1][0] if stack else None
            # A comment at the end of a line belongs to the piece that ends there: the element before the comma, if a
            # comma was last.
            if element.parts:
                element.after.append(_comment(token))
            elif not fresh_line and group is not None and len(group.elements) > 1:
                group.elements[-2].after.append(_comment(token))
            else:
                element.before.append(_comment(token))
        elif kind in _OPEN:
            group = _Group(token)
            element.parts.append(group)
            stack.append((group, element))
            element = _Element()
            group.elements.append(element)
        elif kind in _CLOSE and stack:
            group, element = stack.pop()
            group.closer = token
            last = group.elements[-1]
            if not last.parts and not last.before and len(group.elements) > 1:
                group.elements.pop()
        elif kind == "COMMA" and stack:
            element.comma = True
            element = _Element()
            stack[-1][0].elements.append(element)
        else:
            element.parts.append(token)
        fresh_line = False
    return root


def _has_comments(element: _Element) -> bool:
    return bool(element.before or element.after) or _inner_comments(element)


def _gap(previous: str, kind: str, sign: bool, context: str) -> str:
    """The space between two tokens; `sign` means that the previous one is the sign of a value."""
    if not previous or sign or previous in _OPEN or kind in _CLOSE:
        return ""
    if "POW" in (previous, kind) or "RANGE" in (previous, kind) or kind in ("COMMA", "COLON"):
        return ""
    if context == "args" and "EQUAL" in (previous, kind):
        return ""
    if previous == "COLON":
        return "" if context == "index" else " "
    if kind in _OPEN and previous in _VALUE_ENDS:
        return ""
    return " "


def _flat(element: _Element, context: str = "") -> list[str]:
    """The pieces of an element on one line; `context` is `index` inside an index, `args` in other brackets."""
    out: list[str] = []
    previous, sign = "", False
    for part in element.parts:
        token = part.opener if isinstance(part, _Group) else part
        kind = token.type
        out.append(_gap(previous, kind, sign, context))
        if isinstance(part, _Group):
            inner = "index" if kind == "LSQB" and previous in _VALUE_ENDS and not sign else "args"
            out.append(_flat_group(part, inner))
            assert part.closer is not None
            previous, sign = part.closer.type, False
        else:
            out.append(str(token))
            sign = kind == "MINUS" and previous not in _VALUE_ENDS
            previous = kind
    return out


def _flat_group(group: _Group, context: str) -> str:
    out = [str(group.opener)]
    for position, item in enumerate(group.elements):
        out.extend(_flat(item, context))
        if item.comma:
            out.append(", " if position < len(group.elements) - 1 else ",")
    out.append(str(group.closer))
    return "".join(out)


def _group_has_comments(group: _Group) -> bool:
    return any(_has_comments(element) for element in group.elements)


def _exploded(element: _Element, depth: int, context: str = "") -> list[str]:
    """The lines of an element whose outermost groups are opened up, one inner element a line."""
    indent = _INDENT * depth
    lines = [indent]
    previous, sign = "", False
    for part in element.parts:
        token = part.opener if isinstance(part, _Group) else part
        kind = token.type
        lines[-1] += _gap(previous, kind, sign, context)
        if isinstance(part, _Group):
            inner = "index" if kind == "LSQB" and previous in _VALUE_ENDS and not sign else "args"
            assert part.closer is not None
            flat = None if _group_has_comments(part) else _flat_group(part, inner)
            body = [] if flat is not None and len(flat) <= _SHORT else _elements(part, depth + 1, inner)
            lines[-1] += str(part.opener) if body or flat is None else flat[:-1]
            if body:
                lines += body
                lines.append(indent + str(part.closer))
            else:
                lines[-1] += str(part.closer)
            previous, sign = part.closer.type, False
        else:
            lines[-1] += str(token)
            sign = kind == "MINUS" and previous not in _VALUE_ENDS
            previous = kind
    return lines


def _elements(group: _Group, depth: int, context: str) -> list[str]:
    indent = _INDENT * depth
    elements = group.elements
    if len(elements) > 4 and not any(_has_comments(e) for e in elements) and all(_is_short(e) for e in elements):
        return _filled(elements, indent, context)
    lines: list[str] = []
    for element in elements:
        lines += [indent + comment for comment in element.before]
        if element.parts:
            flat = None if _inner_comments(element) else "".join(_flat(element, context))
            if flat is not None and len(indent) + len(flat) < WIDTH:
                lines.append(indent + flat)
            else:
                lines += _exploded(element, depth, context)
            if element.comma:
                lines[-1] += ","
        if element.after:
            lines[-1] += f"  {element.after[0]}"
            lines += [indent + comment for comment in element.after[1:]]
    return lines


def _inner_comments(element: _Element) -> bool:
    return any(_group_has_comments(part) for part in element.parts if isinstance(part, _Group))


def _is_short(element: _Element) -> bool:
    """A number or word, perhaps with a sign: many of them share a line."""
    return 0 < len(element.parts) <= 2 and not any(isinstance(part, _Group) for part in element.parts)


def _filled(elements: list[_Element], indent: str, context: str) -> list[str]:
    lines = [indent]
    for element in elements:
        text = "".join(_flat(element, context)) + ("," if element.comma else "")
        if lines[-1].strip() and len(lines[-1]) + 1 + len(text) > WIDTH:
            lines.append(indent)
        lines[-1] += (" " if lines[-1].strip() else "") + text
    return lines
