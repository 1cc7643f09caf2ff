"""Two tiers of tests, by measured time: `make test` leaves out those that are marked `whole`, `make test-all` runs them too.

A test is `whole` if tests/durations.json has it and it is not marked `front`: one way through each room, from end to end, is
run always. `make durations` runs everything and writes the file anew; `pytest --store-durations FILE` measures the tests of
a file. The machine should have nothing else to do.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[1] / "durations.json"
# The file has the seconds of tests that take at least this long.
LEAST_S = 0.7
# A quick test that takes longer than this is named at the end of a run.
HINT_S = 3.0


def known() -> dict[str, float]:
    """Test -> its seconds on an idle machine, for those that take long."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store-durations", action="store_true", help="write what the tests took into tests/durations.json"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Hint(), "hint")
    if config.getoption("--store-durations"):
        config.pluginmanager.register(_Durations(config), "durations")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before tests are chosen by their marks."""
    long = known()
    for item in items:
        if item.nodeid in long and item.get_closest_marker("front") is None:
            item.add_marker("whole")


class _Hint:
    """Names the tests of the quick tier that take long."""

    def __init__(self) -> None:
        self.found: list[tuple[float, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        expected = {"slow", "whole", "front"} & set(report.keywords)
        if report.when == "call" and report.duration > HINT_S and not expected:
            self.found.append((report.duration, report.nodeid))

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if self.found and not config.getoption("--store-durations"):
            terminalreporter.section(f"tests of the quick tier that took more than {HINT_S:g} s")
            for seconds, name in sorted(self.found, reverse=True):
                terminalreporter.line(f"{seconds:6.1f} s  {name}")
            terminalreporter.line(
                f"Make them faster, or name them in {FILE.parent.name}/{FILE.name} (`make durations`)."
            )


class _Durations:
    """Writes the seconds of tests that take long; the time of a shared fixture is divided among the tests that take it."""

    def __init__(self, config: pytest.Config) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.fixtures: list[tuple[float, list[str]]] = []
        self.items: list[pytest.Item] = []
        self.everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        self.is_worker = hasattr(config, "workerinput")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        began = time.perf_counter()
        result = yield
        if fixturedef.scope != "function":
            # A conftest's fixture may have the name of another one's.
            takers = [
                item.nodeid
                for item in self.items
                if item.nodeid.startswith(fixturedef.baseid) and fixturedef.argname in item.fixturenames
            ]
            self.fixtures.append((time.perf_counter() - began, takers))
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.fixtures.clear()
        result = yield
        item.user_properties.append(("shared fixtures", list(self.fixtures)))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            return
        self.seconds[report.nodeid] += report.duration
        if report.when == "setup":
            for seconds, takers in dict(report.user_properties).get("shared fixtures", ()):
                self.seconds[report.nodeid] -= seconds
                for name in takers:
                    self.seconds[name] += seconds / len(takers)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        # One that was interrupted has not measured everything.
        if self.is_worker or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        before = {} if self.everything else known()
        kept = {name: seconds for name, seconds in before.items() if name not in self.seconds}
        long = {name: round(seconds, 1) for name, seconds in self.seconds.items() if seconds >= LEAST_S}
        FILE.write_text(json.dumps(kept | long, indent=0, sort_keys=True, ensure_ascii=False) + "\n")
