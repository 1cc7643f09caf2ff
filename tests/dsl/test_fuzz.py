"""Mutated texts: the parser of the language, the reader of the IR, the compiler and the simulator raise HeliographError or
succeed, nothing else.
"""

import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.fuzzing import fuzz

from heliograph.compiler.driver import compile as compile_program
from heliograph.compiler.options import Options
from heliograph.compiler.planning.plan import sample_inputs
from heliograph.dsl.format import format_text
from heliograph.dsl.parse import parse
from heliograph.errors import HeliographError, InternalError, VerifyError
from heliograph.ir.text import parse_program, print_program
from heliograph.ir.verify import verify
from heliograph.tools.simulate import simulate

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "language.md").read_text()
SEEDS = re.findall(r"^```hg(?:-error)?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SEEDS += [path.read_text() for path in sorted((ROOT / "examples").glob("*.hg"))]
IR_SEEDS = re.findall(r"^```ir\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
GIVEN = {"c": np.ones(2), "layer.0.weight": np.ones(2)}
INSECURE = Options(security_bits=None, bootstrap=False)
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


def try_language(text: str) -> int:
    """The length of the longest refusal, 0 for a program; both parser and formatter keep their promises on it."""
    words = 0
    try:
        formatted = format_text(text)
        assert format_text(formatted) == formatted
    except InternalError:
        raise
    except HeliographError as error:
        words = len(str(error))
    try:
        verify(parse(text, parameters=GIVEN))
    except InternalError:
        raise
    except HeliographError as error:
        words = max(words, len(str(error)))
    return words


def try_ir(text: str) -> int:
    """The length of the refusal, 0 for a program of the IR; what can be read prints to a text that reads equal."""
    try:
        program = parse_program(text)
    except HeliographError as error:
        return len(str(error))
    printed = print_program(program)
    assert print_program(parse_program(printed)) == printed
    try:
        verify(program)
    except HeliographError as error:
        return len(str(error))
    return 0


def try_compiled(text: str) -> int:
    """The length of the refusal, by whoever refuses first; 0 for a program that compiles and runs on the simulator."""
    try:
        program = parse(text, parameters=GIVEN)
    except HeliographError as error:
        return len(str(error))
    try:
        artifact = compile_program(program, INSECURE)
        simulate(artifact, *(samples[0] for samples in sample_inputs(program, 1)))
    except (InternalError, VerifyError):
        # What the parser has accepted is no program that a pass may break.
        raise
    except HeliographError as error:
        return len(str(error))
    return 0


def mutant_of(seeds: list[str]) -> Callable[[random.Random], str]:
    return lambda rng: mutate(rng, rng.choice(seeds), seeds)


def test_language_short() -> None:
    tally = fuzz(mutant_of(SEEDS), try_language, 400, seed=1)
    assert not tally.failures
    # The mutants are near enough to real programs to reach every layer.
    assert tally.accepted > 20
    assert tally.refused > 100


def test_ir_short() -> None:
    tally = fuzz(mutant_of(IR_SEEDS), try_ir, 400, seed=2)
    assert not tally.failures
    assert tally.accepted > 5
    assert tally.refused > 100


def test_compiler_short() -> None:
    tally = fuzz(mutant_of(SEEDS), try_compiled, 80, seed=3)
    assert not tally.failures
    assert tally.accepted > 5


def test_a_long_program_needs_no_deep_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums and rotations in a row: what recurses along them ends the process when there are enough of them."""

    def refuse(limit: int) -> None:
        raise AssertionError("Python's stack was to be made deeper than the processor's")

    rows = 600
    long = f"""program long

input x: secret slots[8] in [-1, 1]

y = x * 0.5
for k in 1..{rows} {{
  y = y + x * (0.5 + k / 100000)
}}
z = x
for k in 1..{rows} {{
  z = rotate(z, 1) - y
}}

output z, p = (y + z * 0.001) * x
"""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    try:
        monkeypatch.setattr(sys, "setrecursionlimit", refuse)
        artifact = compile_program(parse(long), INSECURE)
        simulate(artifact, np.zeros(8))
    finally:
        monkeypatch.undo()
        sys.setrecursionlimit(limit)
    assert len(artifact.program.nodes) > 4 * rows


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_compiler_long(seed: int) -> None:
    assert not fuzz(mutant_of(SEEDS), try_compiled, 2_000, seed=300 + seed).failures


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_language_long(seed: int) -> None:
    assert not fuzz(mutant_of(SEEDS), try_language, 20_000, seed=100 + seed).failures


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_ir_long(seed: int) -> None:
    assert not fuzz(mutant_of(IR_SEEDS), try_ir, 20_000, seed=200 + seed).failures
