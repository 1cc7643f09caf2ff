"""`hg.tune`: the front of accuracy against time, keys and memory."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from pages_support import browse, parsed

import heliograph as hg
from heliograph.cli.main import cli
from heliograph.tools.tune_page import tuning_page

SOURCE = """program net

input x: secret tensor[6] in [-1, 1]

param weight = [[0.5, -1, 0.25, 1, -0.5, 0.75], [1, 0.5, -0.25, -1, 0.5, 0.125], [-0.5, 1, 1, 0.25, -1, 0.5]]

output y = relu(weight @ x)
"""
SAMPLES = np.random.default_rng(0).uniform(-1, 1, (64, 6))
TOY = hg.Options(security_bits=None)


@functools.cache
def tuning() -> hg.Tuning:
    program = replace(hg.parse(SOURCE), calibration=(SAMPLES,))
    return hg.tune(program, TOY, degrees=(3, 31), precisions=(8, 14), batches=(1, 4))


def test_each_point_is_what_its_options_compile_to() -> None:
    found = tuning()
    program = replace(hg.parse(SOURCE), calibration=(SAMPLES,))
    for point in found.front[:2]:
        predicted = hg.compile(program, found.options(point)).report.figures.predicted
        assert (point.ms, point.key_bytes) == (predicted.evaluate_ms, predicted.evaluation_key_bytes)
    # The first points by degree, then precisions and batches of the best of them.
    tried = [dict(point.options) for point in found.points]
    assert {"degree": 3} in tried
    assert {"degree": 31} in tried
    assert any(options.get("precision_bits") == 14 for options in tried)
    assert any(options.get("batch") == 4 for options in tried)
    assert [point.ms for point in found.points] == sorted(point.ms for point in found.points)


def test_the_front_has_no_point_that_is_beaten() -> None:
    found = tuning()
    assert found.front
    for point in found.front:
        for other in found.points:
            better = [a <= b for a, b in zip(other.costs, point.costs, strict=True)]
            assert not all(better) or other.costs == point.costs
    costs = [point.costs for point in found.front]
    assert len(set(costs)) == len(costs)
    for point in found.points:
        if not point.front:
            assert any(all(a <= b for a, b in zip(other.costs, point.costs, strict=True)) for other in found.front), (
                point
            )


def test_the_front_as_table_json_and_page() -> None:
    found = tuning()
    assert "what accuracy costs" in str(found)
    assert len(str(found).splitlines()) >= 2 + len(found.front)
    assert json.loads(json.dumps(found.to_dict()))["points"][0]["ms"] == found.points[0].ms
    page = tuning_page(found)
    assert page.count("<tr>") == 1 + len(found.points)
    for source in ("http://", "https://", "src="):
        assert source not in page.replace("http://www.w3.org/2000/svg", "")
    told: list[tuple[str, int, int]] = []
    program = replace(hg.parse(SOURCE), calibration=(SAMPLES,))
    hg.tune(program, TOY, degrees=(3,), precisions=(), batches=(), progress=lambda *at: told.append(at))
    assert told[-1] == ("tuning", 1, 1)
    assert {stage for stage, *_ in told} >= {"tuning", "compiling"}


PROBE = """<script>
const visible = () => [...document.querySelectorAll(".points")].filter((plot) => plot.getClientRects().length > 0);
const told = [];
for (const [x, y, place] of [["ms", "class_agreement", 1], ["server_peak_bytes", "relative_error", 0]]) {
  along.value = x; up.value = y; along.dispatchEvent(new Event("change"));
  const [plot, ...others] = visible();
  plot.querySelector(`[data-place="${place}"]`).dispatchEvent(new MouseEvent("click", { bubbles: true }));
  told.push([plot.dataset.along, plot.dataset.up, others.length, document.getElementById("chosen").textContent]);
}
const plot = visible()[0].querySelector('[data-place="2"]');
plot.focus();
told.push(document.getElementById("chosen").textContent);
document.body.dataset.told = JSON.stringify(told);
</script></body>"""


def test_a_click_on_a_dot_shows_its_options(chromium: str, tmp_path: Path) -> None:
    found = tuning()
    page = tuning_page(found).replace("</body>", PROBE)
    dom, console = browse(chromium, tmp_path, page, "--dump-dom")
    assert console == ""
    body = next(attributes for tag, attributes in parsed(dom).tags if tag == "body")
    first, second, focused = json.loads(body["data-told"] or "")
    assert first[:3] == ["ms", "class_agreement", 0]
    assert second[:3] == ["server_peak_bytes", "relative_error", 0]
    for text, place in ((first[3], 1), (second[3], 0), (focused, 2)):
        chosen = eval(text, {"hg": hg})
        assert replace(TOY, **found.points[place].options) == replace(chosen, security_bits=None)


def test_a_notebook_shows_the_front() -> None:
    found = tuning()
    shown = found._repr_html_()
    assert shown.count("<tr>") == 1 + len(found.front)
    drawn = ElementTree.fromstring(shown[shown.index("<svg") : shown.index("</svg>") + 6])
    dots = {dot.attrib["data-place"]: dot for dot in drawn.iter("{http://www.w3.org/2000/svg}circle")}
    assert len(dots) == len(found.points)
    # From left to right in the order of time, and large if on the front.
    assert [float(dots[str(place)].attrib["cx"]) for place in range(len(dots))] == sorted(
        float(dot.attrib["cx"]) for dot in dots.values()
    )
    large = [int(place) for place, dot in dots.items() if dot.attrib["r"] == "7"]
    assert sorted(large) == [place for place, point in enumerate(found.points) if point.front]
    assert "<script" not in shown


def test_programs_in_notebooks() -> None:
    program = hg.parse(SOURCE.replace("program net", 'program "<b>net"'))
    shown = program._repr_html_()
    assert "&lt;b&gt;net" in shown
    assert "<b>" not in shown
    assert shown.count("%") >= len(program.nodes)
    x = hg.parse("program long\ninput x: secret tensor[4] in [-1, 1]\ny = x\n" + "y = y + x\n" * 60 + "output y\n")
    assert f"... {len(x.nodes) - 40} more" in x._repr_html_()


def test_models_are_tuned_as_they_are_compiled() -> None:
    """A module or an estimator with samples gives the points of its program."""
    from sklearn.linear_model import LogisticRegression

    few: dict[str, Any] = {"degrees": (3,), "precisions": (10.0,), "batches": (1,)}
    model = LogisticRegression().fit(SAMPLES, SAMPLES[:, 0] > 0)
    found = hg.tune(model, TOY, calibration=SAMPLES, **few)
    assert found.points == hg.tune(hg.from_sklearn(model, SAMPLES), TOY, **few).points
    layer = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.ReLU()).eval()
    traced = hg.tune(layer, TOY, example_input=torch.zeros(1, 6), calibration=SAMPLES, input_range=(-1, 1), **few)
    predicted = hg.compile(
        layer, replace(TOY, degree=3), example_input=torch.zeros(1, 6), calibration=SAMPLES, input_range=(-1, 1)
    ).report.figures.predicted
    assert [point.ms for point in traced.points] == [predicted.evaluate_ms]
    with pytest.raises(hg.ProgramError, match="calibration cannot be used here"):
        hg.tune(hg.parse(SOURCE), TOY, calibration=SAMPLES)
    with pytest.raises(hg.ProgramError, match="an estimator is compiled with samples"):
        hg.tune(model)


def test_mistakes_are_named() -> None:
    program = hg.parse(SOURCE)
    with pytest.raises(hg.ProgramError, match="needs calibration samples"):
        hg.tune(program)
    program = replace(program, calibration=(SAMPLES,))
    with pytest.raises(hg.ProgramError, match="degree is tried with several values"):
        hg.tune(program, replace(TOY, degree=7))
    with pytest.raises(hg.PlanningError, match="none of the options could be planned"):
        hg.tune(program, hg.Options(log_ring=12), degrees=(31,), batches=())


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.hg").write_text(SOURCE)
    np.save("x.npy", SAMPLES)
    common = ["tune", "net.hg", "--calibration", "x.npy", "--insecure", "--try-degrees", "3, 7", "--try-batches", "1"]
    done = CliRunner().invoke(cli, [*common, "--try-precisions", "10", "--html", "front.html", "--json"])
    assert done.exit_code == 0, done.output
    assert [point["options"]["degree"] for point in json.loads(done.stdout)["points"]] == [3, 7]
    assert "circle" in Path("front.html").read_text()
    assert CliRunner().invoke(cli, [*common, "--try-losses", "few"]).exit_code == 2
