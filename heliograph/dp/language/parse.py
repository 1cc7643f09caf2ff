"""Reads an expression into a `Composition`; every error names the position (line and column) and the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from importlib import resources
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from heliograph.dp.batches import AllocatedGaussian, FixedSizeGaussian, TruncatedGaussian, WithReplacementGaussian
from heliograph.dp.composition import MAX_STEPS, Composition
from heliograph.dp.concentrated import Zcdp
from heliograph.dp.custom import Profile, Table
from heliograph.dp.mechanisms import (
    Approximate,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Mechanism,
    MixtureGaussian,
    Pure,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
)
from heliograph.errors import ProgramError

MAX_LENGTH = 20_000
MAX_DEPTH = 32
MAX_TERMS = 500
_MAX_LIST = 4_000

MECHANISMS: dict[str, type[Mechanism]] = {
    kind.name: kind
    for kind in (
        AllocatedGaussian,
        Approximate,
        DiscreteGaussian,
        DiscreteLaplace,
        FixedSizeGaussian,
        Gaussian,
        Laplace,
        MixtureGaussian,
        Profile,
        Pure,
        RandomizedResponse,
        SampledGaussian,
        SampledLaplace,
        Table,
        TruncatedGaussian,
        WithReplacementGaussian,
        Zcdp,
    )
}


def parse(text: str) -> Composition:
    """The composition that an expression describes.

    Raises ProgramError with line and column if the expression is too long or too deep, does not parse, names an
    unknown mechanism or parameter, or gives a value out of range.
    """
    if len(text) > MAX_LENGTH:
        raise ProgramError(
            f"the expression has {len(text):,} characters",
            where="expression",
            why=f"at most {MAX_LENGTH:,} are read",
            hint="use counts (mechanism * 1000) instead of repeating a mechanism",
        )
    _check_depth(text)
    if not text.strip():
        raise ProgramError(
            "the expression is empty", where="line 1, column 1", hint="write gaussian(noise_multiplier=1)"
        )
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        raise _syntax_error(error, text) from None
    value = _composed(tree.children[0])
    if isinstance(value, int):
        raise ProgramError("a number alone is not a mechanism", where="line 1, column 1")
    return value


@lru_cache(maxsize=1)
def _parser() -> Lark:
    grammar = resources.files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", propagate_positions=True, maybe_placeholders=False)


def _check_depth(text: str) -> None:
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth > MAX_DEPTH:
            line, column = text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
            raise ProgramError(
                "parentheses are nested too deep",
                where=f"line {line}, column {column}",
                why=f"at most {MAX_DEPTH} levels",
            )


def _syntax_error(error: UnexpectedInput, text: str) -> ProgramError:
    if isinstance(error, UnexpectedEOF) or (isinstance(error, UnexpectedToken) and error.token.type == "$END"):
        lines = text.rstrip().split("\n")
        where = f"line {len(lines)}, column {len(lines[-1]) + 1}"
        what = "the expression ends too early"
    else:
        where = f"line {error.line}, column {error.column}"
        if isinstance(error, UnexpectedToken):
            what = f"unexpected {_short(str(error.token))}"
            if unnamed := _unnamed_argument(text, error.token):
                return ProgramError(
                    f"{_short(str(error.token))} has no name",
                    where=where,
                    why="the parameters of a mechanism are given by name",
                    hint=unnamed,
                )
        elif isinstance(error, UnexpectedCharacters):
            what = f"unexpected character {error.char!r}"
        else:
            what = "unexpected text"
    return ProgramError(
        what,
        where=where,
        why="an expression is a sum of mechanisms with counts",
        hint="for example: sampled_gaussian(p=0.01, noise_multiplier=1.0) * 1000 + laplace(epsilon=0.1) * 5",
    )


def _unnamed_argument(text: str, token: Token) -> str:
    """The correct text where a number is the first argument of a known mechanism; empty if it is not."""
    before = text[: token.start_pos].rstrip() if token.start_pos is not None else ""
    name = re.search(r"(\w+)\s*\($", before)
    kind = MECHANISMS.get(name[1]) if name else None
    try:
        float(token)
    except ValueError:
        return ""
    return "" if kind is None else f"{kind.name}({fields(kind)[0].name}={str(token)[:20]})"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _where(node: Tree[Token] | Token) -> str:
    place = node if isinstance(node, Token) else node.meta
    return f"line {place.line}, column {place.column}"


def _composed(node: Any) -> Composition | int:
    if node.data == "mechanism":
        return Composition.of(_mechanism(node))
    if node.data == "count":
        return _count(node.children[0])
    values = [_composed(child) for child in node.children]
    if node.data == "sum":
        if len(values) > MAX_TERMS:
            raise ProgramError(f"a sum of {len(values)} terms", where=_where(node), why=f"at most {MAX_TERMS} are read")
        items: list[tuple[Mechanism, int]] = []
        for child, value in zip(node.children, values, strict=True):
            if isinstance(value, int):
                raise ProgramError("a number is not a mechanism, so it cannot be added", where=_where(child))
            items.extend(value.items)
        return _placed(node, lambda: Composition(tuple(items)))
    count = 1
    composition: Composition | None = None
    for child, value in zip(node.children, values, strict=True):
        if isinstance(value, int):
            count *= value
            if count > MAX_STEPS:
                raise _too_many(child, count)
        elif composition is None:
            composition = value
        else:
            raise ProgramError(
                "two mechanisms cannot be multiplied",
                where=_where(child),
                why="* repeats a mechanism a number of times",
            )
    if composition is None:
        return count
    found = composition
    return _placed(node, lambda: found * count)


def _placed(node: Tree[Token] | Token, make: Callable[[], Composition]) -> Composition:
    try:
        return make()
    except ProgramError as error:
        raise type(error)(error.what, where=f"{_where(node)}: {error.where}", why=error.why, hint=error.hint) from None


def _too_many(node: Tree[Token] | Token, count: float) -> ProgramError:
    shown = f"{float(count):.3g}" if count < 10**300 else "more than 1e300"
    return ProgramError(
        f"a count of {shown} is too large",
        where=_where(node),
        why=f"at most {MAX_STEPS:,} steps are accounted for",
    )


def _count(token: Token) -> int:
    text = str(token)
    value = _float(token)
    if not value.is_integer():
        raise ProgramError(f"a count must be a whole number, not {_short(text)}", where=_where(token))
    if value > MAX_STEPS:
        raise _too_many(token, value)
    return int(value)


def _float(token: Token) -> float:
    value = float(token)
    if value != value or value in (float("inf"), float("-inf")):
        raise ProgramError(f"{_short(str(token))} is not a usable number", where=_where(token), why="it is not finite")
    return value


def _mechanism(node: Tree[Token]) -> Mechanism:
    name = node.children[0]
    kind = MECHANISMS.get(str(name))
    if kind is None:
        raise ProgramError(
            f"no mechanism {_short(str(name))}",
            where=_where(name),
            hint=f"use one of {', '.join(sorted(MECHANISMS))}",
        )
    known = {field.name: field for field in fields(kind)}
    given: dict[str, Any] = {}
    places: dict[str, Token] = {}
    for argument in node.children[1:]:
        assert isinstance(argument, Tree)
        key, value = argument.children
        assert isinstance(key, Token)
        if str(key) not in known:
            raise ProgramError(
                f"{kind.name} has no parameter {_short(str(key))}",
                where=_where(key),
                hint=f"it has {', '.join(known)}",
            )
        if str(key) in given:
            raise ProgramError(f"the parameter {key} is given twice", where=_where(key))
        given[str(key)] = _value(kind, str(known[str(key)].type).startswith("tuple"), value)
        places[str(key)] = key
    missing = [key for key, field in known.items() if key not in given and field.default is field.default_factory]
    if missing:
        raise ProgramError(f"{kind.name} needs {', '.join(missing)}", where=_where(node))
    try:
        return kind(**given)
    except ProgramError as error:
        # The record names the parameter first; point at it.
        place = next((token for key, token in places.items() if error.what.startswith(key)), None)
        raise ProgramError(
            f"{kind.name}: {error.what}",
            where=_where(place if place is not None else node),
            why=error.why,
            hint=error.hint,
        ) from None


def _value(kind: type[Mechanism], listed: bool, node: Any) -> Any:
    child = node.children[0]
    if isinstance(child, Token):
        if listed:
            raise ProgramError(f"a {kind.name} takes lists of numbers", where=_where(child), hint="upper=[0.6, 0.4]")
        value = _float(child)
        return (
            int(value) if value.is_integer() and abs(value) < 1e15 and "." not in child and "e" not in child else value
        )
    if not listed:
        raise ProgramError("a list where a number belongs", where=_where(node))
    if len(child.children) > _MAX_LIST:
        raise ProgramError(f"a list of {len(child.children)}", where=_where(node), why=f"at most {_MAX_LIST} entries")
    return tuple(_float(token) for token in child.children)
