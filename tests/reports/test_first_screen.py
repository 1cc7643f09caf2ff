"""The first screen: ten lines and a verdict, every name of a report in one line, all parameters."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import heliograph as hg
from heliograph.ckks.security import max_log_pq
from heliograph.cli.main import cli
from heliograph.execution.primitives import PRIMITIVES
from heliograph.ir.ops.table import OPS
from heliograph.report import text
from heliograph.report.markup import titled
from heliograph.report.parameters import ProgramParameters
from heliograph.report.terms import CALLS, TERMS, WORDS, explained, worded
from heliograph.report.text import Report

SOURCE = "program net\ninput x: secret tensor[8] in [-1, 1]\noutput y = relu(x) with degree = 15\n"


@functools.cache
def artifact() -> hg.Artifact:
    return hg.compile(hg.parse(SOURCE))


@pytest.mark.parametrize(
    ("free", "words"), [(10**10, "runs here, in about"), (10**6, "does NOT run here"), (None, "; ")]
)
def test_the_first_screen_has_ten_lines_and_a_verdict(
    free: int | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "available_bytes", lambda: free)
    lines = str(artifact().report).splitlines()
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 118
    assert lines[0].startswith("net: 128 bits of security")
    assert words in lines[0]
    assert ("10.0 GB are free here" in "\n".join(lines)) == (free == 10**10)
    assert "INSECURE" in str(hg.compile(hg.parse(SOURCE), hg.Options(security_bits=None)).report)


def test_measured_seconds_stand_beside_the_predicted_ones() -> None:
    assert "1.23 s measured" in str(artifact().report.with_measured({"evaluate_ms": 1234.0}))


def test_every_name_of_a_report_has_a_line() -> None:
    report = artifact().report
    named = [*report.rows(), *report.short_rows(10**10), *report.figure_rows()]
    assert {name for name, *_ in named} <= set(TERMS)
    assert set(PRIMITIVES) == set(CALLS)
    # The rows that only some programs have, and the sections.
    source = Path(text.__file__).read_text()
    assert set(re.findall(r"^\s*(?:\*\(?\[?)?\(\"([a-z\' ]+)\", ", source, re.MULTILINE)) <= set(TERMS)
    sections = [line.strip() for line in report.full().splitlines() if re.fullmatch(r"  [a-z]+(,? [a-z]+)*", line)]
    assert sections
    assert set(sections) <= set(TERMS)


@pytest.mark.parametrize("word", ["N", "levels", "held-out samples"])
def test_words_of_the_first_screen_are_explained(word: str) -> None:
    calibrated = replace(hg.parse(SOURCE), calibration=(np.random.default_rng(0).uniform(-1, 1, (64, 8)),))
    made = hg.compile(calibrated, hg.Options(security_bits=None))
    assert word in str(made.report)
    assert explained(word) == WORDS[word]
    assert f'<span class="term" title="{escape(WORDS[word])}">{word}</span>' in made.report._repr_html_()


def test_words_of_the_whole_report_are_explained() -> None:
    """Those that are printed, in the singular and the plural, and those of options."""
    whole = artifact().report.full() + str(ProgramParameters.of(artifact().program.planned.chains, ()))
    for word in ("slots", "digits", "scale", "first modulus", "special prime", "log PQ", "proved", "levels"):
        assert word in whole
        assert explained(word) in WORDS.values()
    for word in ("margin", "gap", "confidence", "per-unit ranges", "approximation error", "ring dimension"):
        assert explained(word) == WORDS[word]
    for word, line in WORDS.items():
        assert explained(word) == line, f"{word} is hidden by another name"
        assert line.endswith(".")
        assert len(line) <= 120
        assert "<" not in worded(word).replace(str(titled(word, line)), "")


def test_words_are_found_whole_and_escaped() -> None:
    assert worded("1 level of 10 <slots>") == (
        f"1 {titled('level', WORDS['levels'])} of 10 &lt;{titled('slots', WORDS['slots'])}&gt;"
    )
    assert "span" not in worded("rescale, NaN, multi-levels, Nothing")


def test_the_names_are_explained_on_pages_and_by_a_command() -> None:
    page = hg.html_report(artifact())
    assert f'title="{TERMS["output error"]}"' in page
    assert page.index("class=verdict") < page.index("The bill</h2>") < page.index("What the figures assume")
    assert "class=verdict" in artifact().report._repr_html_()
    run = CliRunner().invoke
    assert run(cli, ["explain", "Output", "error"]).output == f"Output error: {TERMS['output error']}\n"
    assert json.loads(run(cli, ["explain", "--json"]).output) == TERMS
    assert "rotate_hoisted" in run(cli, ["explain"]).output
    assert run(cli, ["explain", "level_drop"]).output == f"level_drop: {OPS['level_drop'].doc}\n"
    with pytest.raises(hg.ProgramError, match="neither a report nor a program has") as caught:
        explained("otput error")
    assert "perhaps 'output error'" in caught.value.hint


def test_all_parameters_are_shown(tmp_path: Path) -> None:
    made = artifact()
    found = ProgramParameters.of(made.program.planned.chains, made.evaluation_keys)
    (chain,) = found.chains
    primes = chain.primes + chain.special_primes
    assert len(set(primes)) == len(primes)
    assert all(prime % (2 * chain.ring_dim) == 1 for prime in primes)
    assert sum(np.log2(float(prime)) for prime in primes) == pytest.approx(chain.log_pq, abs=0.01)
    assert chain.log_pq <= chain.most_log_pq == max_log_pq(made.ring.log_ring, 128)
    assert sum(key.bytes for key in found.keys) == made.report.figures.predicted.evaluation_key_bytes
    path, public = f"{tmp_path}/net.helio", f"{tmp_path}/net.public"
    made.save(path)
    made.public().save(public)
    run = CliRunner().invoke
    for name in (path, public):
        shown = run(cli, ["inspect", name, "--parameters"]).output
        assert all(str(prime) in shown for prime in primes)
        assert all(key.name in shown for key in found.keys)
        values = json.loads(run(cli, ["inspect", name, "--parameters", "--json"]).output)["parameters"]
        assert tuple(values["chains"][0]["primes"]) == chain.primes


def test_every_error_is_in_one_module() -> None:
    import importlib
    import pkgutil

    for found in pkgutil.walk_packages(hg.__path__, "heliograph."):
        if found.name.startswith(("heliograph.runtime.openfhe", "heliograph.serving.work.ray", "heliograph.cli")):
            continue
        if found.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(found.name)
        except ImportError:
            continue
        for name in getattr(module, "__all__", ()):
            kind = getattr(module, name)
            if isinstance(kind, type) and issubclass(kind, hg.HeliographError):
                assert getattr(hg.errors, kind.__name__) is kind
    for name in ("StatusError", "BudgetError", "LanguageError", "TooLittleMemoryError", "TooLittleDiskError"):
        assert issubclass(getattr(hg.errors, name), hg.HeliographError)


def test_reports_in_notebooks() -> None:
    public = artifact().public()
    shown = public._repr_html_()
    assert public.fingerprint in shown
    assert "128 bits" in shown
    measurement = hg.Measurement(measured_ms=12.0, floor_ms=10.0, max_abs_error=0.5)
    assert "0.5" in measurement._repr_html_()
    assert isinstance(artifact().report, Report)
