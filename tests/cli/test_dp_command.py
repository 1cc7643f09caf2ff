"""`heliograph dp`: what it prints and how it refuses."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import commands

STEP = "sampled_gaussian(p=0.01, noise_multiplier=1.0) * 1000"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return commands.run(capsys, "dp", *arguments)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return commands.run_json(capsys, "dp", *arguments)


def test_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "epsilon", STEP, "--delta", "1e-5")
    wanted = {"lower", "estimate", "upper", "delta", "method", "direction", "directions", "seconds"}
    assert wanted <= found.keys()
    assert found["lower"] <= 1.82824 <= found["upper"]
    assert found["direction"] == "remove"
    assert set(found["directions"]) == {"add", "remove"}
    assert found["directions"]["add"][1] < found["directions"]["remove"][0]
    narrow = run_json(capsys, "epsilon", STEP, "--delta", "1e-5", "--tolerance", "2e-5", "--method", "pld")
    assert narrow["upper"] - narrow["lower"] <= 2e-5
    assert found["lower"] <= narrow["upper"]
    assert "epsilon in [1.82" in run(capsys, "epsilon", STEP, "--delta", "1e-5")[1]


def test_delta(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "delta", STEP, "--epsilon", "1.82824")
    assert found["lower"] <= 1.0001e-5
    assert found["upper"] >= 0.9999e-5
    assert found["epsilon"] == 1.82824


def test_infinite_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "epsilon", "approximate(epsilon=1, delta=1e-3)", "--delta", "1e-5")
    assert math.isinf(float(found["upper"]))
    assert "no finite epsilon" in found["reason"]


def test_noise(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "noise", "--p", "0.01", "--steps", "1000", "--epsilon", "2", "--delta", "1e-5")
    assert {"noise_multiplier", "lower", "estimate", "upper"} <= found.keys()
    assert found["upper"] <= 2
    assert found["within_0.1_percent"]
    assert 0.9 < found["noise_multiplier"] < 1.0


def test_compare(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "compare", "gaussian(noise_multiplier=2) * 3", "--delta", "1e-6")
    rows = {row["method"]: row for row in found["accountants"]}
    assert set(rows) == {"auto", "pld", "exact", "rdp"}
    assert rows["exact"]["upper"] <= rows["rdp"]["upper"]
    code, out, _ = run(capsys, "compare", "laplace(epsilon=0.5)", "--delta", "1e-6")
    assert code == 0
    assert "pld" in out


def test_curve(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    png = tmp_path / "curve.png"
    found = run_json(capsys, "curve", "gaussian(noise_multiplier=1)", "--png", str(png), "--points", "5")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert len(found["curve"]) == 5
    for row in found["curve"]:
        bound = run_json(
            capsys, "epsilon", "gaussian(noise_multiplier=1)", "--delta", str(row["delta"]), "--method", "rdp"
        )
        assert row["renyi"] == pytest.approx(bound["upper"])
        assert row["renyi"] > row["upper"]
    assert run(capsys, "curve", "gaussian(noise_multiplier=1)", "--png", str(tmp_path / "no" / "x.png"))[0] == 2


def test_verify(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = {
        "format": "heliograph-privacy-report",
        "version": 1,
        "delta": 1e-5,
        "epsilon_upper": 1.9,
        "releases": [{"name": "steps", "mechanism": "sampled_gaussian(p=0.01, noise_multiplier=1.0)", "count": 1000}],
    }
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data))
    found = run_json(capsys, "verify", str(path))
    assert found["holds"]
    assert found["lower"] <= 1.82824 <= found["upper"]
    path.write_text(json.dumps(data | {"epsilon_upper": 1.0}))
    code, out, _ = run(capsys, "verify", str(path))
    assert code == 1
    assert "DOES NOT STAND" in out
    wide = {"name": "steps", "mechanism": "truncated_gaussian(p=0.01, noise_multiplier=1, most=600, records=60000)"}
    path.write_text(json.dumps(data | {"epsilon_upper": 5.0, "releases": [wide | {"count": 1000}]}))
    code, out, _ = run(capsys, "verify", str(path))
    assert code == 1
    assert "NOT PROVED, NOT REFUTED" in out
    path.write_text(json.dumps({key: value for key, value in data.items() if key != "epsilon_upper"}))
    code, out, _ = run(capsys, "verify", str(path))
    assert (code, "claimed: nothing; so nothing was verified" in out) == (1, True)
    assert run(capsys, "verify", str(tmp_path / "none.json"))[0] == 2


def test_verify_ends_in_time_with_a_hostile_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """20,000 kinds of mechanism would take minutes and gigabytes."""
    kinds = [f"sampled_gaussian(p={0.001 + n * 1e-7!r}, noise_multiplier={0.8 + n * 1e-5!r})" for n in range(20_000)]
    data = {
        "format": "heliograph-privacy-report",
        "version": 1,
        "delta": 1e-6,
        "epsilon_upper": 3.0,
        "releases": [{"name": str(n), "mechanism": kind, "count": 10} for n, kind in enumerate(kinds)],
    }
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data))
    began = time.process_time()
    code, _, printed = run(capsys, "verify", str(path), "--seconds", "1.5")
    assert code == 2
    assert "asks for more than 1.5 s of the processor" in printed
    assert time.process_time() - began < 6
    assert run(capsys, "verify", str(path), "--seconds", "0")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("epsilon", "gaussian(noise_multiplier=0)", "--delta", "1e-5"), "line 1, column 10"),
        (("epsilon", "gaussian(noise_multiplier=-2)", "--delta", "1e-5"), "out of range"),
        (("epsilon", "sampled_gaussian(p=2, noise_multiplier=1)", "--delta", "1e-5"), "[0, 1]"),
        (("epsilon", "gaussian(noise_multiplier=nan)", "--delta", "1e-5"), "not a usable number"),
        (("epsilon", "gaussian(noise_multiplier=1) * 1e30", "--delta", "1e-5"), "too large"),
        (("epsilon", "gaussian(noise_multiplier=1)", "--delta", "0"), "(0, 1)"),
        (("epsilon", "gaussian(noise_multiplier=1)", "--delta", "1"), "(0, 1)"),
        (("epsilon", "gaussian(noise_multiplier=1)", "--delta", "nan"), "(0, 1)"),
        (("epsilon", "gaussian(noise_multiplier=1)", "--delta", "x"), "not a number"),
        (("epsilon", "gaussian(noise_multiplier=1)", "--delta", "1e-5", "--method", "magic"), "no method"),
        (("epsilon", "gaussian(noise_multiplier=1)", "--delta", "1e-5", "--tolerance", "-1"), "tolerance"),
        (("delta", "gaussian(noise_multiplier=1)", "--epsilon", "-1"), "epsilon"),
        (("delta", "gaussian(noise_multiplier=1)", "--epsilon", "inf"), "epsilon"),
        (("noise", "--steps", "1e30", "--epsilon", "1", "--delta", "1e-5"), "steps"),
        (("noise", "--steps", "0", "--epsilon", "1", "--delta", "1e-5"), "steps"),
        (("noise", "--p", "0", "--steps", "1", "--epsilon", "1", "--delta", "1e-5"), "nothing"),
        (("noise", "--p", "1.5", "--steps", "1", "--epsilon", "1", "--delta", "1e-5"), "[0, 1]"),
        (("noise", "--steps", "1", "--epsilon", "-1", "--delta", "1e-5"), "epsilon"),
        (("epsilon", "laplace(epsilon=1)"), "--delta"),
    ],
)
def test_bad_input_has_exit_code_2_and_a_reason(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], text: str
) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert text in err
    assert "Traceback" not in err


def test_compare_has_a_line_for_each_accountant(capsys: pytest.CaptureFixture[str]) -> None:
    """Remarks stand below the figures at full width, not in a column of a few letters."""
    lines = run(capsys, "compare", "laplace(epsilon=0.5) * 3", "--delta", "1e-6")[1].splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["method", "auto", "pld", "exact", "rdp"]
    assert len({len(line) for line in lines[:5]}) == 1
    assert lines[5:]
    assert all(":" in line for line in lines[5:])


def test_a_parameter_without_its_name_is_said_to_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "epsilon", "gaussian(1.0)", "--delta", "1e-5")
    assert (code, "try: gaussian(noise_multiplier=1.0)" in err) == (2, True)


def test_every_command_can_be_quiet(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments in (
        ("epsilon", STEP, "--delta", "1e-5"),
        ("delta", STEP, "--epsilon", "1"),
        ("noise", "--steps", "1", "--epsilon", "1", "--delta", "1e-5"),
        ("compare", "laplace(epsilon=1)", "--delta", "1e-5"),
        ("shuffle", "--batches", "10", "--noise", "1", "--delta", "1e-5"),
    ):
        assert run(capsys, *arguments, "--quiet") == (0, "", ""), arguments


def test_a_bracket_is_a_line_and_a_table_in_a_notebook() -> None:
    from heliograph.dp import accounting
    from heliograph.dp.language import parse

    bracket = accounting.epsilon_at(parse("gaussian(noise_multiplier=1)"), 1e-5)
    assert repr(bracket).count("\n") == 0
    assert repr(bracket).startswith("<Bracket: epsilon in [4.37")
    page = bracket._repr_html_()
    assert page.count("<tr>") == page.count("</tr>") >= 4
    assert "proved" in page
