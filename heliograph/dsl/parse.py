"""From text to a program: reading, the tree, the checks, and the lowering to the intermediate representation."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heliograph.dsl import ast
from heliograph.dsl.diagnostics import Diagnostics, Fault, Source, Span, TooMany, did_you_mean
from heliograph.dsl.tokens import STARTERS, Line, describe, grammar_text, span_of, split
from heliograph.errors import ProgramError
from heliograph.ir import Program

if TYPE_CHECKING:
    import lark

MAX_BLOCKS = 20


@functools.cache
def _grammar() -> Any:
    import lark

    from heliograph.dsl.tree import TreeBuilder

    return lark.Lark(grammar_text(), parser="lalr", lexer="basic", transformer=TreeBuilder(), maybe_placeholders=True)


# Names of the grammar's terminals in messages; terminals not listed here are left out.
_TERMINALS = {
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a string",
    "LPAR": "'('",
    "RPAR": "')'",
    "LSQB": "'['",
    "RSQB": "']'",
    "LBRACE": "'{'",
    "COMMA": "','",
    "COLON": "':'",
    "EQUAL": "'='",
    "RANGE": "'..'",
    "IN": "'in'",
    "WITH": "'with'",
    "BY": "'by'",
    "TENSOR": "'tensor'",
    "SLOTS": "'slots'",
    "SECRET": "'secret'",
    "PLAIN": "'plain'",
    "CARRIED": "'carried'",
    "MINUS": "an operator",
    "ARROW": "'->'",
    "$END": "the end of the statement",
}
_COMPARISONS = {"GREATER", "LESS", "ATLEAST", "ATMOST"}
_EQUALITY = {"EQUALS": "abs(x - y) < gap", "DIFFERS": "abs(x - y) > gap"}
_EXPRESSION = {"NAME", "NUMBER", "STRING", "LPAR", "LSQB", "TRUE", "FALSE", "MINUS"}


def _expected(accepts: set[str]) -> str:
    names: list[str] = []
    if accepts >= _EXPRESSION:
        names.append("a value")
        accepts = accepts - _EXPRESSION
    names += [text for terminal, text in _TERMINALS.items() if terminal in accepts]
    return " or ".join(names)


def _syntax_fault(token: lark.Token, accepts: set[str], tokens: list[lark.Token]) -> Fault:
    span = span_of(token)
    if token.type == "$END":
        # The place after the last token is more informative than the token.
        end = span_of(tokens[-1]).end
        span = Span(end, end + 1)
    if token.type in _EQUALITY:
        return Fault(
            span,
            f"there is no operator {token}",
            note="run-time values are equal up to a gap only",
            hint=f"write {_EQUALITY[token.type]}",
        )
    if token.type in _COMPARISONS and "PLUS" in accepts:
        return Fault(
            span,
            "comparisons do not follow each other",
            expected="two sides of a comparison",
            hint="a < b < c is (a < b) * (b < c)",
        )
    hint = ""
    if token.type == "$END" and accepts >= _EXPRESSION:
        hint = "a statement ends with its line; put a longer one in parentheses"
    elif tokens[0].type == "NAME" and len(tokens) > 1 and tokens[1].type in ("NAME", "STRING"):
        hint = did_you_mean(str(tokens[0]), STARTERS)
        if hint:
            return Fault(
                span_of(tokens[0]), f"there is no statement {str(tokens[0])!r}", expected=_expected(accepts), hint=hint
            )
    elif token.type == "EQUAL" and not accepts & {"EQUAL"}:
        hint = "a value is given to a name: name = value"
    return Fault(span, f"{describe(token)} is not expected here", expected=_expected(accepts), hint=hint)


def _statement(tokens: list[lark.Token]) -> ast.Statement:
    """The tree of one statement; a Fault at the token of the error."""
    import lark

    reader = _grammar().parse_interactive("")
    try:
        for token in tokens:
            reader.feed_token(token)
        statement: ast.Statement = reader.feed_eof(tokens[-1])
    except lark.UnexpectedToken as error:
        raise _syntax_fault(error.token, set(reader.accepts()), tokens) from None
    return statement


def _broken(line: Line) -> ast.Broken:
    """A statement that cannot be read, with the names that it seems to define."""
    tokens = line.tokens
    kinds = [token.type for token in tokens]
    if kinds[0] in ("INPUT", "PARAM", "CONST", "FN", "FOR"):
        names = tuple(str(token) for token in tokens[1:2] if token.type == "NAME")
    else:
        until = kinds.index("EQUAL") if "EQUAL" in kinds else 0
        names = tuple(str(token) for token in tokens[:until] if token.type == "NAME")
    return ast.Broken(line.span, names, kinds[0])


def read_module(source: Source, report: Diagnostics) -> ast.Module:
    """The tree of the text; an unreadable statement is reported and becomes a `Broken`.

    Raises TooMany, after a report, when going on makes no sense.
    """
    top: list[ast.Statement] = []
    bodies: list[list[ast.Statement]] = [top]
    openers: list[Line] = []
    for line in split(source, report):
        if not line.tokens:
            continue
        if line.tokens[0].type == "RBRACE":
            if openers:
                openers.pop()
                bodies.pop()
            else:
                report.add(line.span, "'}' closes nothing", hint="remove it")
            continue
        statement: ast.Statement
        if line.broken:
            statement = _broken(line)
        else:
            try:
                statement = _statement(line.tokens)
            except Fault as fault:
                report.add_fault(fault)
                statement = _broken(line)
        bodies[-1].append(statement)
        if line.tokens[-1].type == "LBRACE":
            if len(openers) >= MAX_BLOCKS:
                report.add(line.span, f"blocks nest more than {MAX_BLOCKS} deep")
                raise TooMany
            openers.append(line)
            body = statement.body if isinstance(statement, ast.Function | ast.For | ast.Broken) else []
            bodies.append(body)
    for line in openers:
        report.add(span_of(line.tokens[-1]), "this '{' is never closed", expected="'}' on a line of its own")
    if openers:
        # Every statement after it would seem to stand in the wrong place.
        raise TooMany
    return ast.Module(top)


def open_source(text_or_path: str | Path) -> Source:
    """The text: read from a file if a path is given (a `Path`, or a string of one line that ends in .hg)."""
    if isinstance(text_or_path, Path):
        return Source.read(text_or_path)
    if not isinstance(text_or_path, str):
        raise ProgramError(
            f"parse takes text or a path, not {type(text_or_path).__name__}",
            hint='parse("model.hg"), parse(pathlib.Path(...)) or parse("program ...")',
        )
    if text_or_path.endswith(".hg") and "\n" not in text_or_path and len(text_or_path) < 4096:
        return Source.read(Path(text_or_path))
    size = len(text_or_path.encode("utf-8", errors="surrogatepass"))
    from heliograph.dsl.diagnostics import MAX_SOURCE_BYTES

    if size > MAX_SOURCE_BYTES:
        raise ProgramError(
            f"the text has {size} bytes; at most {MAX_SOURCE_BYTES} are read of a program",
            where="<text>",
            hint="keep large parameters in an .npz or .safetensors file and load() them",
        )
    return Source(text_or_path)


def parse_source(source: Source, parameters: Mapping[str, Any] | None = None) -> Program:
    """The program of a text in memory; a LanguageError with all errors in it."""
    from heliograph.dsl.check import check_module
    from heliograph.dsl.lower import lower_module

    report = Diagnostics(source)
    program: Program | None = None
    try:
        module = read_module(source, report)
        check_module(module, report)
        program = lower_module(module, source, report, parameters or {})
    except TooMany:
        pass
    except (RecursionError, MemoryError):
        report.add(Span(0, 1), "the program is too large or nests too deeply", hint="split it into smaller parts")
    if report or program is None:
        raise report.error()
    return program


def parse(text_or_path: str | Path, *, parameters: Mapping[str, Any] | None = None) -> Program:
    """The program that a text of the language describes: stage `tensor`, or `packed` if its inputs are slots.

    `text_or_path` is a path (a `pathlib.Path`, or a string that ends in `.hg`) or the text itself. `parameters` has the
    arrays, by name, of the `param` statements without a value in the text. Files that the text loads must be in the
    folder of the file (for a text, the working directory) or below it. Raises LanguageError, a ProgramError, with every
    error and its location; nothing is executed and nothing is written.
    """
    return parse_source(open_source(text_or_path), parameters)
