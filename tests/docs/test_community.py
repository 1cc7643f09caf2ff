"""The files that a public host reads agree with the project: versions, Pythons, what continuous integration runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from helpers.pages import ROOT
from helpers.tiers import known

import heliograph as hg

yaml = pytest.importorskip("yaml", reason="reading YAML needs PyYAML (the extra `docs`)")


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_citation_names_the_version_and_the_licence() -> None:
    citation = load("CITATION.cff")
    assert citation["version"] == hg.__version__
    assert citation["license"] in (ROOT / "pyproject.toml").read_text()
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_the_changes_name_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert hg.__version__ in text
    assert re.search(r"^## (Unreleased|\[?\d)", text, re.MULTILINE)


def test_continuous_integration_has_every_python_and_runs_what_the_readme_says() -> None:
    jobs = load(".github/workflows/tests.yml")["jobs"]
    job = jobs["test"]
    versions = {entry["python"] for entry in job["strategy"]["matrix"]["include"]}
    classifiers = re.findall(r"Programming Language :: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert versions | set(jobs["demo"]["strategy"]["matrix"]["python"]) == set(classifiers)
    assert any("make demo" in step.get("run", "") for step in jobs["demo"]["steps"])
    commands = " ".join(step.get("run", "") for step in job["steps"])
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", commands):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert "make test" in commands
    assert "make docs" in commands


def test_templates_have_what_a_host_asks_for() -> None:
    folder = ROOT / ".github/ISSUE_TEMPLATE"
    for path in folder.glob("*.md"):
        _, head, body = path.read_text().split("---\n", 2)
        assert {"name", "about"} <= set(yaml.safe_load(head))
        assert body.strip()
    assert len(list(folder.glob("*.md"))) >= 2


def test_durations_are_those_of_tests_that_are_there() -> None:
    texts = {name: (ROOT / name).read_text() for name in {test.partition("::")[0] for test in known()}}
    gone = [test for test in known() if f"def {function(test)}(" not in texts[test.partition("::")[0]]]
    assert gone == [], "`make durations` measures anew; a test with another name keeps its line under the new one"


def function(test: str) -> str:
    return test.partition("[")[0].rpartition("::")[2]
