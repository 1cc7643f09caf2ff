"""Shared fixtures: golden texts, real data, and the packages that some tests need."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers.data import absent
from helpers.data import folder as data_folder

from heliograph.errors import MissingPackageError

pytest_plugins = ["helpers.tiers", "helpers.workers"]

# Golden texts must not depend on what was measured on the machine that runs them.
os.environ["HELIOGRAPH_COSTS"] = "built-in"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what was produced")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A test that needs OpenFHE is skipped, with that reason, where OpenFHE is not installed."""
    report = yield
    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, MissingPackageError) and "OpenFHE" in error.what and find_spec("openfhe") is None:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, "Skipped: OpenFHE is not installed")
    return report


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
