"""The layers on the page: boxes that fit, what is known of each, times by kind of work, and the curve of degrees."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import kinds_of_programs
import pytest
from pages_support import bootstrapped, browse, parsed
from reports_support import artifact
from test_reports_degrees import allocated

from heliograph.report import html
from heliograph.report.depth import DepthRow
from heliograph.report.drawing import levels_svg, ranges_svg, savings_svg, times_svg
from heliograph.report.facts import LayerFacts
from heliograph.report.figures import LayerTime
from heliograph.report.graphs import layers_svg
from heliograph.report.html import html_report
from heliograph.report.layers import layer_graph


def row(name: str, op: str, *inputs: str, layer: str = "") -> DepthRow:
    return DepthRow(name, op, inputs, "managed", 0, 1, 30.0, "net.py:1", layer, False)


def chain(*ops: str) -> list[DepthRow]:
    rows = [row("%0", "input")]
    for place, op in enumerate(ops):
        rows.append(row(f"%{place + 1}", op, f"%{place}", layer="net"))
    return rows


@pytest.mark.parametrize(
    ("ops", "labels"),
    [
        (("bootstrap",) * 3 + ("rotate",) * 97, 1),
        (("rotate",) * 97 + ("bootstrap",) * 3, 1),
        ((*["rotate"] * 20, "bootstrap") * 3, 3),
        (("bootstrap", *["rotate"] * 5, "bootstrap", *["rotate"] * 94), 1),
    ],
)
def test_labels_of_bootstraps_do_not_overprint(ops: tuple[str, ...], labels: int) -> None:
    """Each bootstrap has a line that says what it is; a label is drawn only where there is room."""
    drawn = ElementTree.fromstring(levels_svg(chain(*ops), 1))
    space = "{http://www.w3.org/2000/svg}"
    starts = [float(text.attrib["x"]) for text in drawn.iter(f"{space}text") if text.text == "bootstrap"]
    assert len(starts) == labels
    # Eleven pixels a letter's height: nine letters take at most 54 pixels.
    assert all(after - before >= 54 for before, after in itertools.pairwise(starts))
    assert all(0 <= start <= float(drawn.attrib["width"]) - 54 for start in starts)
    titles = [title.text for line in drawn.iter(f"{space}line") for title in line.iter(f"{space}title")]
    assert len(titles) == ops.count("bootstrap")
    assert all(text is not None and re.match(r"bootstrap %\d+, to level 1\n", text) for text in titles)


def branches(depth: int) -> list[DepthRow]:
    """Three branches side by side, each of many layers."""
    rows = [row("%x", "input", layer="x")]
    for name in "abc":
        before = "%x"
        for place in range(depth):
            rows.append(row(f"%{name}{place}", "rotate", before, layer=f"{name}{place}"))
            before = f"%{name}{place}"
    return [*rows, row("%y", "add_ct", *(f"%{name}{depth - 1}" for name in "abc"), layer="y")]


PROBE = """<script>
const box = document.querySelector(".graph"), drawn = box.querySelector("svg");
const [fit, full] = box.previousElementSibling.querySelectorAll("button"), told = [];
const tell = () => told.push([drawn.width.baseVal.value, drawn.height.baseVal.value, box.clientWidth,
  box.scrollWidth - box.clientWidth, box.scrollHeight - box.clientHeight].map(Math.round));
tell(); fit.click(); tell(); fit.click(); tell(); full.click(); tell();
document.body.dataset.told = JSON.stringify(told);
</script></body>"""


def test_a_graph_of_three_branches_fits_its_box(chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At first it is as wide as its box if it can be read so; "fit" shows the whole height too, and stays what it is."""
    rows = branches(30)
    monkeypatch.setattr(html, "layer_graph", lambda _: layer_graph(rows))
    page = html_report(artifact()).replace("</body>", PROBE)
    dom, console = browse(chromium, tmp_path, page, "--dump-dom", "--window-size=900,900")
    assert console == ""
    body = next(attributes for tag, attributes in parsed(dom).tags if tag == "body")
    first, fitted, again, full = json.loads(body["data-told"] or "")
    assert full[:2] == [1050, 1432]
    assert full[3] > 0, "the box is too narrow for the whole drawing"
    assert first[0] == first[2] - 4, "as wide as the box"
    assert first[3] == 0
    assert first[4] > 0, "but not as high"
    assert fitted == again
    assert fitted[3:] == [0, 0]
    assert 800 < fitted[1] <= 820
    assert fitted[0] == pytest.approx(fitted[1] * 1050 / 1432, abs=1)


# ------------------------------------------------------------------------------------------- facts of layers


def test_a_layer_says_what_is_known_of_it_and_links_to_its_range() -> None:
    made = artifact()
    report = made.report.with_measured({"ms_by_layer": {"relu": 11.0}})
    drawn = ElementTree.fromstring(layers_svg(layer_graph(html.artifact_depth(made).rows), 9, LayerFacts(report)))
    space = "{http://www.w3.org/2000/svg}"
    links = {link.attrib["href"]: link.find(f"{space}g/{space}title") for link in drawn.iter(f"{space}a")}
    assert list(links) == ["#range-0", "#range-1"]
    relu = links["#range-0"]
    assert relu is not None
    assert relu.text is not None
    work = next(row for row in report.figures.work_by_layer if row.layer == "relu")
    assert relu.text.split("\n") == [
        "relu: level 8 to 5, 18 operations",
        "reports_support.py:21",
        "3.3 ms predicted for the layer in a run",
        "11 ms measured",
        f"keys are read {work.key_switches} times, {work.rotations} of them for rotations",
        "relu on [-2.096, 2.096] (proved), degree 7, error at most 0.207 (proved)",
    ]
    # A layer without a polynomial has a time and reads keys, and no link.
    shown = [title.text or "" for title in drawn.iter(f"{space}title")]
    linear = next(text for text in shown if text.startswith("fc1:"))
    assert "keys are read 4 times, 4 of them for rotations" in linear
    assert "fc1" not in {text[:3] for link in drawn.iter(f"{space}a") for text in [link.attrib["aria-label"]]}
    # Links are read out only if the drawing is no picture.
    assert drawn.attrib["role"] == "group"
    rows = ElementTree.fromstring(ranges_svg(made.report.figures.ranges))
    assert {f"#{group.attrib['id']}" for group in rows.iter(f"{space}g")} == set(links)


def test_links_of_layers_lead_somewhere_in_a_browser(chromium: str, tmp_path: Path) -> None:
    probe = (
        '<script>const link = document.querySelectorAll("#layers a")[1]; link.focus();'
        "document.body.dataset.focused = document.activeElement === link;"
        'link.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));'
        'document.body.dataset.at = location.hash + " " + document.querySelector(":target").textContent;</script></body>'
    )
    dom, console = browse(chromium, tmp_path, html_report(artifact()).replace("</body>", probe), "--dump-dom")
    assert console == ""
    body = next(attributes for tag, attributes in parsed(dom).tags if tag == "body")
    assert body["data-focused"] == "true"
    assert (body["data-at"] or "").startswith("#range-1 sigmoid")


def test_bootstraps_have_a_time_of_their_own() -> None:
    made = bootstrapped()
    report = made.report
    rows = {row.layer: row for row in report.figures.predicted_ms_by_layer}
    assert 0.9 * rows["y"].ms < rows["y"].bootstrap_ms < rows["y"].ms
    (box,) = [box for box in layer_graph(html.artifact_depth(made).rows) if box.bootstraps]
    assert box.layers == ("y",)
    assert LayerFacts(report).lines(box)[0].endswith(" predicted for the bootstraps in a run")
    assert LayerFacts(report).link(box) == ""
    # Products of two values of the program are neither linear nor a polynomial's.
    assert (rows["z"].linear_ms, rows["z"].activation_ms, rows["z"].bootstrap_ms) == (0.0, 0.0, 0.0)
    assert rows["z"].ms > 0
    titles = re.findall(r"<title>(\w+): [\d.]+ m?s</title>", times_svg(report))
    assert sorted(titles) == ["bootstrap", "other", "other"]
    assert ">linear<" not in times_svg(report)


def test_times_are_split_by_the_kind_of_work() -> None:
    rows = {row.layer: row for row in artifact().report.figures.predicted_ms_by_layer}
    for layer in ("fc1", "fc2", "fc3"):
        assert rows[layer].linear_ms == pytest.approx(rows[layer].ms)
    for layer in ("relu", "sigmoid"):
        assert rows[layer].activation_ms == pytest.approx(rows[layer].ms)
    # A decision begins with a linear map: the differences of all pairs.
    decision = {row.layer: row for row in kinds_of_programs.artifact("decision").report.figures.predicted_ms_by_layer}
    assert 0 < decision["a"].linear_ms < decision["a"].activation_ms
    for kind in kinds_of_programs.KINDS:
        for found in kinds_of_programs.artifact(kind).report.figures.predicted_ms_by_layer:
            assert found.linear_ms + found.activation_ms + found.bootstrap_ms <= found.ms * (1 + 1e-9)


def test_the_parts_of_a_bar_are_as_long_as_the_bar() -> None:
    report = artifact().report
    figures = dataclasses.replace(
        report.figures, predicted_ms_by_layer=(LayerTime("mixed", 100.0, 50.0, 25.0, 15.0), LayerTime("whole", 40.0))
    )
    drawn = ElementTree.fromstring(times_svg(dataclasses.replace(report, figures=figures)))
    space = "{http://www.w3.org/2000/svg}"
    parts = [rect for rect in drawn.iter(f"{space}rect") if rect.find(f"{space}title") is not None]
    widths = [float(rect.attrib["width"]) for rect in parts]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 0.5, 0.3, 0.2, 0.8], abs=1e-3)
    for before, after in itertools.pairwise(parts[:4]):
        end = float(before.attrib["x"]) + float(before.attrib["width"])
        assert float(after.attrib["x"]) == pytest.approx(end, abs=0.02)
    assert len({rect.attrib["fill"] for rect in parts}) == 4
    legend = [text.text for text in drawn.iter(f"{space}text")]
    assert {"linear", "activation", "bootstrap", "other"} <= set(legend)


# ------------------------------------------------------------------------------------------- the curve of degrees


def test_the_curve_of_degrees_without_an_allocation() -> None:
    """The program and each change that saves a level, with the numbers of the list."""
    report = artifact().report
    drawn = savings_svg(report)
    assert 'id="savings"' in html_report(artifact())
    titles = list(map(unescape, re.findall(r"<title>(.*?)</title>", drawn)))
    assert titles[1:] == report.saving_texts()
    assert len(titles) == 1 + len(report.figures.savings) == 3
    assert titles[0].startswith(f"as compiled: depth {report.figures.depth}, error ")
    # Fewer levels stand further to the left, larger errors higher.
    dots = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)]
    points = [(report.figures.depth, report.figures.approximation_error)]
    points += [(saving.depth, saving.approximation_error) for saving in report.figures.savings]
    for (x, y), (depth, error) in zip(dots, points, strict=True):
        for (other_x, other_y), (other_depth, other_error) in zip(dots, points, strict=True):
            assert (x < other_x) == (depth < other_depth)
            assert error <= other_error or y <= other_y
    allocated_page = html_report(allocated())
    assert 'id="savings"' not in allocated_page
    assert 'id="allocation"' in allocated_page


def test_no_curve_is_said_in_words() -> None:
    made = kinds_of_programs.artifact("decision")
    assert not made.report.figures.savings
    page = html_report(made)
    assert 'id="savings"' not in page
    assert "there is no curve to draw" in page


def test_the_assumptions_are_last() -> None:
    page = html_report(artifact())
    titles = re.findall(r"<h2 id=(\w+)-section>", page)
    assert titles[-1] == "assumed"
    assert titles[0] == "bill"
    assert re.findall(r"<a href='#(\w+)-section'>", page) == titles
