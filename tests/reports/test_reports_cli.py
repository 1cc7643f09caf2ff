"""The commands that print and write reports."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from reports_support import artifact, samples

from heliograph.cli.main import cli, main


@pytest.fixture
def files(tmp_path):
    artifact().save(tmp_path / "a.helio")
    artifact(sigmoid=3).save(tmp_path / "b.helio")
    return tmp_path


def run(*arguments) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_inspect_prints_the_bill(files):
    assert artifact().report.full() in run("inspect", files / "a.helio", "--full")


def test_inspect_prints_the_work_of_each_layer(files):
    head, *rows, whole = run("inspect", files / "a.helio", "--layers").splitlines()
    assert "key switches" in head
    report = artifact().report.values
    assert whole.split()[1:3] == [str(report["rotations"]), str(report["key_switches"])]
    assert len(rows) == len(report["work_by_layer"])


@pytest.mark.front
def test_inspect_writes_page_graph_and_plots(files):
    pytest.importorskip("matplotlib", reason="plots need matplotlib (the extra `plot`)")
    run(
        "inspect", files / "a.helio", "--html", files / "r.html", "--dot", files / "g.dot", "--png", files / "plots", "-q"
    )  # fmt: skip
    assert (files / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert (files / "g.dot").read_text().startswith("digraph")
    assert sorted(p.name for p in (files / "plots").iterdir()) == ["levels.png", "ranges.png", "times.png"]


def test_inspect_json_is_one_object(files):
    found = json.loads(run("inspect", files / "a.helio", "--json"))
    assert found["fingerprint"] == artifact().fingerprint
    assert {"nodes", "critical_path", "predicted", "measured", "savings", "assumed", "warning"} <= set(found)


def test_diff(files):
    text = run("diff", files / "a.helio", files / "b.helio")
    assert f"{files / 'a.helio'} -> {files / 'b.helio'}" in text
    assert "levels" in text
    found = json.loads(run("diff", files / "a.helio", files / "b.helio", "--json"))
    assert any(layer["layer"] == "sigmoid" for layer in found["layers"])


def test_diff_writes_a_page(files, capsys):
    page = files / "d.html"
    run("diff", files / "a.helio", files / "b.helio", "--html", page)
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "After against before: evaluation " in text
    with pytest.raises(SystemExit):
        main(["diff", str(files / "a.helio"), str(files / "b.helio"), "--html", str(page)])
    assert "already exists" in capsys.readouterr().err
    assert page.read_text() == text


def test_diff_of_something_else_is_an_error(files, capsys):
    (files / "x.helio").write_bytes(b"nothing")
    with pytest.raises(SystemExit) as caught:
        main(["diff", str(files / "a.helio"), str(files / "x.helio")])
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


MODEL = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
"""


def test_compile_explains_a_pass_and_dumps_all(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    np.save(tmp_path / "x.npy", samples())
    text = run(
        "compile", f"{tmp_path / 'model.py'}:make", "-o", tmp_path / "m.helio", "--calibration", tmp_path / "x.npy",
        "--input-range", 0, 1, "--degree", 3, "--insecure", "--explain", "pack", "--dump-ir", tmp_path / "ir",
    )  # fmt: skip
    assert "pack: from stage polynomial to packed" in text
    assert "rotations" in text
    dumped = sorted(path.name for path in (tmp_path / "ir").iterdir())
    assert dumped[0] == "01-simplify.ir"
    assert dumped[-1].endswith("-schedule.ir")


def test_doctor_names_the_cost_table():
    found = json.loads(run("doctor", "--json"))
    costs = next(check for check in found["checks"] if check["name"] == "costs")
    assert costs["detail"].startswith("built in")


@pytest.mark.slow
def test_doctor_calibrates_in_under_a_minute(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = json.loads(run("doctor", "--calibrate", "--json"))
    assert found["seconds"] < 60
    assert (tmp_path / "heliograph" / "costs.json").is_file()
    assert found["path"] == str(tmp_path / "heliograph" / "costs.json")
