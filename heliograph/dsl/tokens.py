"""From text to statements: words, keywords by their place, and the end of each statement."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heliograph.dsl.diagnostics import Diagnostics, Source, Span, TooMany, shown

if TYPE_CHECKING:
    import lark

MAX_TOKENS = 100_000
MAX_WORD = 200
MAX_BRACKETS = 60

# Keywords where a statement starts (unless `=` or `,` follows: then it is a variable of that name).
_STARTERS = {
    "program": "PROGRAM",
    "input": "INPUT",
    "param": "PARAM",
    "const": "CONST",
    "output": "OUTPUT",
    "return": "RETURN",
    "fn": "FN",
    "for": "FOR",
}
_RESERVED = {"in": "IN", "by": "BY", "with": "WITH", "true": "TRUE", "false": "FALSE"}
_TYPES = {"tensor": "TENSOR", "slots": "SLOTS", "int": "INT_TYPE", "float": "FLOAT_TYPE"}
_SECRECY = {"secret": "SECRET", "plain": "PLAIN", "carried": "CARRIED"}
RESERVED = frozenset(_RESERVED)
STARTERS = frozenset(_STARTERS)

_OPENERS = {"LPAR": "RPAR", "LSQB": "RSQB"}
_CLOSERS = {"RPAR", "RSQB"}
_SHAPES = {"LPAR": "(", "RPAR": ")", "LSQB": "[", "RSQB": "]"}


class _Keep:
    """Tells lark to keep the tokens that no rule uses; the splitter reads them."""

    # The last two are rejected with messages of their own.
    always_accept = ("COMMENT", "NEWLINE", "BAD", "LBRACE", "RBRACE", "EQUALS", "DIFFERS")

    def process(self, stream: Iterator[lark.Token]) -> Iterator[lark.Token]:
        return stream


def grammar_text() -> str:
    """The grammar as text for lark."""
    return Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")


@functools.cache
def lexer() -> Any:
    """The lark object whose `lex` gives all tokens, comments and line ends included."""
    import lark

    return lark.Lark(grammar_text(), parser="lalr", lexer="basic", postlex=_Keep())


def span_of(token: lark.Token) -> Span:
    start = token.start_pos or 0
    return Span(start, token.end_pos if token.end_pos is not None else start + 1)


@dataclass(slots=True)
class Line:
    """One statement, or a comment on its own line.

    `tokens` has no comments and ends with `{` in the header of a block; `}` is a line of its own. `all_tokens` also has
    the comments and line ends inside brackets, for the formatter. `broken` means that an error in it has been reported.
    """

    tokens: list[lark.Token]
    all_tokens: list[lark.Token] = field(default_factory=list)
    comment: lark.Token | None = None
    blank_before: bool = False
    broken: bool = False

    @property
    def span(self) -> Span:
        first, last = self.tokens[0], self.tokens[-1]
        return Span(span_of(first).start, span_of(last).end)


def split(source: Source, report: Diagnostics) -> list[Line]:
    """The statements and lone comments of the text, in order; errors go to the report."""
    return _Splitter(source, report).run()


class _Splitter:
    def __init__(self, source: Source, report: Diagnostics) -> None:
        self.source = source
        self.report = report
        self.lines: list[Line] = []
        self.current: Line | None = None
        self.brackets: list[lark.Token] = []
        self.blank = False
        # Whether the current token is the first on its line, and the line that a statement's comment may follow.
        self.line_start = True
        self.last_on_line: Line | None = None
        self.skip_line = False

    def run(self) -> list[Line]:
        tokens = _tokens(self.source, self.report)
        token = next(tokens, None)
        while token is not None:
            following = next(tokens, None)
            self._take(token, following)
            token = following
        self._unclosed()
        self._end()
        return self.lines

    def _take(self, token: lark.Token, following: lark.Token | None) -> None:
        kind = token.type
        if kind == "NEWLINE":
            self._newline(token)
            return
        if kind == "COMMENT":
            self._comment(token)
            return
        if self.line_start and self.brackets and self._starts_statement(token, following):
            self._unclosed()
            self._end()
        self.line_start = False
        if self.skip_line:
            return
        self.last_on_line = None
        if kind == "BAD":
            self._bad(token)
            return
        if len(token) > MAX_WORD and kind in ("NAME", "NUMBER"):
            self._fault(token, f"this word has {len(token)} characters; at most {MAX_WORD} are allowed")
        if kind in ("LBRACE", "RBRACE"):
            self._brace(token)
            return
        if kind in _OPENERS:
            if len(self.brackets) == MAX_BRACKETS:
                self._fault(token, f"brackets nest more than {MAX_BRACKETS} deep", hint="give the inner part a name")
            self.brackets.append(token)
        elif kind in _CLOSERS:
            self._close(token)
        self._append(token)

    def _newline(self, token: lark.Token) -> None:
        self.line_start = True
        self.skip_line = False
        if self.brackets and self.current is not None:
            self.current.all_tokens.append(token)
            return
        blank = token.count("\n") > 1
        self._end()
        self.last_on_line = None
        self.blank = self.blank or blank

    def _comment(self, token: lark.Token) -> None:
        if self.brackets and self.current is not None:
            self.current.all_tokens.append(token)
            return
        self._end()
        if self.last_on_line is not None and self.last_on_line.comment is None:
            self.last_on_line.comment = token
            return
        self.lines.append(Line([], comment=token, blank_before=self._blank()))

    def _brace(self, token: lark.Token) -> None:
        if self.brackets:
            self._unclosed()
        if token.type == "RBRACE":
            self._end()
        self._append(token)
        self._end()

    def _append(self, token: lark.Token) -> None:
        if self.current is None:
            self.current = Line([], blank_before=self._blank())
        self.current.tokens.append(token)
        self.current.all_tokens.append(token)

    def _blank(self) -> bool:
        blank, self.blank = self.blank, False
        return blank

    def _end(self) -> None:
        if self.current is not None and self.current.tokens:
            _mark_keywords(self.current.tokens)
            self.lines.append(self.current)
            self.last_on_line = self.current
        self.current = None
        self.brackets.clear()

    def _starts_statement(self, token: lark.Token, following: lark.Token | None) -> bool:
        """Whether a new statement starts inside open brackets: two names in a row, or `name =` without a comma."""
        if token.type == "RBRACE":
            return True
        if token.type != "NAME" or following is None:
            return False
        if str(token) in _STARTERS and following.type in ("NAME", "STRING"):
            return True
        assert self.current is not None
        return following.type == "EQUAL" and self.current.tokens[-1].type not in ("COMMA", "LPAR")

    def _close(self, token: lark.Token) -> None:
        if not self.brackets:
            self._fault(token, f"{_SHAPES[token.type]!r} closes nothing", hint="remove it, or open it before")
            return
        opener = self.brackets.pop()
        wanted = _OPENERS[opener.type]
        if token.type != wanted:
            line, column = self.source.line_column(span_of(opener).start)
            self._fault(
                token,
                f"{_SHAPES[token.type]!r} does not close {_SHAPES[opener.type]!r}",
                expected=f"{_SHAPES[wanted]!r}, for the one opened at line {line}, column {column}",
            )

    def _unclosed(self) -> None:
        if self.brackets:
            opener = self.brackets[-1]
            self._fault(
                opener,
                f"this {_SHAPES[opener.type]!r} is never closed",
                expected=f"{_SHAPES[_OPENERS[opener.type]]!r} before the next statement",
            )
            self.brackets.clear()

    def _bad(self, token: lark.Token) -> None:
        text = str(token)
        self._append(token)
        if text == '"':
            self._fault(token, "this string is not closed on its line", expected='a closing "')
        elif text == "'":
            self._fault(token, "strings are written in double quotes", hint='write "..."')
        elif text == "^":
            self._fault(token, "there is no operator ^", hint="a power is written x ** 2")
        elif text == ";":
            self._fault(token, "statements end with the line, not with ;", hint="put each statement on its own line")
        else:
            name = text if text.isprintable() else f"U+{ord(text):04X}"
            self._fault(token, f"the character {name!r} has no place here")
        # Unknown bytes rarely come alone, and the rest of the line would only repeat the message.
        self.skip_line = True

    def _fault(self, token: lark.Token, what: str, expected: str = "", hint: str = "") -> None:
        if self.current is not None:
            self.current.broken = True
        self.report.add(span_of(token), what, expected=expected, hint=hint)


def _tokens(source: Source, report: Diagnostics) -> Iterator[lark.Token]:
    for count, token in enumerate(lexer().lex(source.text)):
        if count >= MAX_TOKENS:
            report.add(
                span_of(token),
                f"the text has more than {MAX_TOKENS} words and numbers",
                hint="keep large parameters in an .npz or .safetensors file and load() them",
            )
            raise TooMany
        yield token


def _mark_keywords(tokens: list[lark.Token]) -> None:
    """Give keywords, which their place identifies, their token types, in place."""
    import lark

    def retype(position: int, kind: str) -> None:
        tokens[position] = lark.Token.new_borrow_pos(kind, str(tokens[position]), tokens[position])

    first = tokens[0]
    starter = ""
    after = tokens[1].type if len(tokens) > 1 else ""
    if first.type == "NAME" and str(first) in _STARTERS and after not in ("EQUAL", "COMMA"):
        starter = str(first)
        retype(0, _STARTERS[starter])
    depth = 0
    for position, token in enumerate(tokens):
        kind = token.type
        if kind in _OPENERS:
            depth += 1
        elif kind in _CLOSERS:
            depth -= 1
        elif kind == "NAME":
            word = str(token)
            if word in _RESERVED:
                retype(position, _RESERVED[word])
            elif position:
                # A type follows a colon (not one of a slice) or an arrow.
                previous = tokens[position - 1].type
                type_place = previous == "ARROW" or (
                    previous == "COLON" and ((starter in ("input", "param") and depth == 0) or starter == "fn")
                )
                if type_place and starter == "input" and word in _SECRECY:
                    retype(position, _SECRECY[word])
                elif (type_place or previous in ("SECRET", "PLAIN", "CARRIED")) and word in _TYPES:
                    retype(position, _TYPES[word])


def describe(token: lark.Token) -> str:
    """A token's name in messages."""
    if token.type in ("$END", "NEWLINE"):
        return "the end of the statement"
    return repr(shown(str(token)))
