"""Mutated texts: the parser of the language and the reader of the IR raise HeliographError or succeed, nothing else."""

import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from heliograph.dsl.diagnostics import MAX_SOURCE_BYTES
from heliograph.dsl.format import format_text
from heliograph.dsl.parse import parse
from heliograph.errors import HeliographError, InternalError
from heliograph.ir.text import parse_program, print_program
from heliograph.ir.verify import verify

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "language.md").read_text()
SEEDS = re.findall(r"^```hg(?:-error)?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SEEDS += [path.read_text() for path in sorted((ROOT / "examples").glob("*.hg"))]
IR_SEEDS = re.findall(r"^```ir\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
GIVEN = {"c": np.ones(2), "layer.0.weight": np.ones(2)}
WORD = re.compile(r"[A-Za-z_.0-9]+|\s+|.", re.DOTALL)
SPICE = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "\n",
    '"',
    "#",
    "\0",
    "é",
    "999999999999",
    "-1",
    "0",
    "..",
    "**",
    "=",
    "1e308",
    ">",
    "<=",
    "==",
    "%",
]


def mutate(rng: random.Random, text: str, others: list[str]) -> str:
    """A few random edits: words dropped, doubled, swapped, or taken from another text."""
    words = WORD.findall(text)
    for _ in range(rng.randint(1, 6)):
        if not words:
            break
        place, choice = rng.randrange(len(words)), rng.random()
        if choice < 0.2:
            del words[place]
        elif choice < 0.35:
            words.insert(place, words[rng.randrange(len(words))])
        elif choice < 0.55:
            words[place] = words[rng.randrange(len(words))]
        elif choice < 0.75:
            words[place] = rng.choice(SPICE)
        elif choice < 0.9:
            words[place] = rng.choice(WORD.findall(rng.choice(others)))
        elif choice < 0.95:
            words = words[: place + 1]
        else:
            words[place:place] = words[place : place + rng.randint(1, 40)] * rng.randint(1, 20)
    return "".join(words)


def try_language(text: str) -> bool:
    """Whether the text is a program; both parser and formatter keep their promises on it."""
    start = time.monotonic()
    words, well = 0, False
    try:
        formatted = format_text(text)
        assert format_text(formatted) == formatted
    except InternalError:
        raise
    except HeliographError as error:
        words = len(str(error))
    try:
        verify(parse(text, parameters=GIVEN))
        well = True
    except InternalError:
        raise
    except HeliographError as error:
        words = max(words, len(str(error)))
    assert words <= 20_000
    assert time.monotonic() - start < 10
    return well


def try_ir(text: str) -> bool:
    """Whether the text is a program of the IR; what can be read prints to a text that reads equal."""
    try:
        program = parse_program(text)
    except HeliographError:
        return False
    printed = print_program(program)
    assert print_program(parse_program(printed)) == printed
    try:
        verify(program)
    except HeliographError:
        return False
    return True


def fuzz(attempt: Callable[[str], bool], seeds: list[str], rounds: int, seed: int) -> tuple[int, int]:
    """How many mutants were sound and how many were refused."""
    rng = random.Random(seed)
    sound = 0
    for _ in range(rounds):
        text = mutate(rng, rng.choice(seeds), seeds)
        try:
            sound += attempt(text)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} on {text[:MAX_SOURCE_BYTES]!r}: {error}") from error
    return sound, rounds - sound


def test_language_short() -> None:
    sound, refused = fuzz(try_language, SEEDS, 400, seed=1)
    # The mutants are near enough to real programs to reach every layer.
    assert sound > 20
    assert refused > 100


def test_ir_short() -> None:
    sound, refused = fuzz(try_ir, IR_SEEDS, 400, seed=2)
    assert sound > 5
    assert refused > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_language_long(seed: int) -> None:
    fuzz(try_language, SEEDS, 20_000, seed=100 + seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_ir_long(seed: int) -> None:
    fuzz(try_ir, IR_SEEDS, 20_000, seed=200 + seed)
