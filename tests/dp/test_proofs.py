"""Every proof has a number and a test, and a docstring that says "proved" names both."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import heliograph.dp

ROOT = Path(__file__).parents[2]
SOURCES = sorted(Path(heliograph.dp.__file__).parent.rglob("*.py"))
ROWS = re.findall(
    r"^\| (P\d+) \| (.+?) \| (.+?) \| (.+?) \|$", (ROOT / "docs/privacy_proofs.md").read_text(), re.MULTILINE
)
NUMBERS = [row[0] for row in ROWS]


def defined() -> set[str]:
    tests = "".join(path.read_text() for path in (ROOT / "tests/dp").glob("*.py"))
    return set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))


def unnumbered(text: str) -> bool:
    """Whether a docstring says "proved" without a number of the document and a test that there is."""
    if not re.search(r"\bproved\b", text, re.IGNORECASE):
        return False
    numbers, tests = set(re.findall(r"\bP\d+\b", text)), set(re.findall(r"\btest_\w+", text))
    return not numbers or not numbers <= set(NUMBERS) or not tests or not tests <= defined()


def test_the_numbers_are_a_list_and_every_test_is_there() -> None:
    assert [f"P{number}" for number in range(1, len(NUMBERS) + 1)] == NUMBERS
    assert len(NUMBERS) > 20
    for number, statement, _, tests in ROWS:
        assert len(re.findall(r"\.(?: |$)", statement)) == 1, number
        assert set(re.findall(r"`(test_\w+)`", tests)) <= defined(), number
        assert "`test_" in tests, number


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_docstring_that_says_proved_names_its_proof(path: Path) -> None:
    texts = [
        statement.value.value
        for node in ast.walk(ast.parse(path.read_text()))
        for statement in (node.body if isinstance(getattr(node, "body", None), list) else [])
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ]
    assert not [text for text in texts if unnumbered(text)]


def test_what_the_test_would_miss() -> None:
    assert unnumbered("Bounds that are proved.")
    assert unnumbered("Bounds that are proved (P1).")
    assert unnumbered("Bounds that are proved (P99, test_noise_is_the_smallest).")
    assert unnumbered("Bounds that are proved (P1, test_that_is_not_there).")
    assert not unnumbered("Bounds that are proved (P1, test_noise_is_the_smallest).")
    assert not unnumbered("Bounds.")
