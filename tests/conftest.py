"""Shared fixtures: golden texts, real data, and the packages that some tests need."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.data import absent
from helpers.data import folder as data_folder

# Golden texts must not depend on what was measured on the machine that runs them.
os.environ["HELIOGRAPH_COSTS"] = "built-in"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what was produced")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with `golden/NAME` beside the test file, or write it with --update-golden."""
    folder = Path(request.path).parent / "golden"

    def check(name: str, text: str) -> None:
        path = folder / name
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing; run pytest --update-golden"
        assert text == path.read_text()

    return check


@pytest.fixture
def data() -> Callable[[str], Path]:
    """The path of a shared data file; the test is skipped, with the reason, where it is absent."""

    def find(name: str) -> Path:
        path = data_folder() / name
        if not path.exists():
            pytest.skip(absent(path))
        return path

    return find
