"""The page: self-contained, safe against hostile names, and rendered by a real browser; plots and graphviz."""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
import struct
import subprocess

import kinds_of_programs
import numpy as np
import pytest
from pages_support import bootstrapped, browse, parsed
from reports_support import SmallConv, artifact

from heliograph.compiler.reporting.bill import output_points
from heliograph.report.depth import DepthRow, artifact_depth
from heliograph.report.diff import diff
from heliograph.report.diff_page import diff_page
from heliograph.report.figures import LayerTime
from heliograph.report.graphs import graph_svg, layers_svg, place
from heliograph.report.html import html_report
from heliograph.report.layers import layer_graph, runs
from heliograph.report.plots import dot_text, save_plots

MEASURED = {"evaluate_ms": 61.25, "ms_by_layer": {"fc1": 20.0, "relu": 11.0}, "server_peak_bytes": 168_000_000}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


@functools.cache
def page() -> str:
    made = artifact()
    return html_report(made, made.report.with_measured(MEASURED))


def test_the_page_fetches_nothing():
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'<]*", page()))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of SVG is no address that is fetched"
    for _, attributes in parsed(page()).tags:
        assert not attributes.get("src")
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))
    assert "default-src 'none'" in page()


def test_the_page_shows_everything():
    reader = parsed(page())
    text = " ".join(reader.text)
    for words in (
        "The bill", "predicted", "measured", "INSECURE", "What the figures assume", "What would save a level",
        "Ranges of polynomials",
        "Keys and bytes", "Time by layer", "do not share them with people you do not trust", "sigmoid", "61 ms",
    ):  # fmt: skip
        assert words in text
    assert {attributes.get("id") for tag, attributes in reader.tags if tag == "svg"} >= {
        "graph", "levels", "ranges", "keys", "times",
    }  # fmt: skip
    rows = artifact_depth(artifact()).rows
    boxes = re.findall(r"<g><title>(%\d+) = ", page())
    assert sorted(boxes) == sorted(row.name for row in rows)


def test_outputs_are_points_beside_a_diagonal():
    """Each point is an output value of a sample, the network's across and the polynomials' upwards."""
    found = artifact().report.figures
    points = found.output_points
    assert 0 < len(points) <= 240
    gaps = [abs(point.network - point.program) for point in points]
    assert 0 < max(gaps) <= found.approximation_error + 2.0**-11 * max(abs(point.network) for point in points)
    assert page().count("<title>network ") == len(points)
    assert max(point.network for point in points) > min(point.network for point in points)


def test_points_are_those_of_the_client():
    exact = [np.arange(1000.0).reshape(100, 10), np.full((100, 1), np.nan)]
    near = [exact[0] + 1.0, exact[1]]
    points = output_points(exact, near, (2.0, 1.0))
    assert len(points) == 240
    assert (points[0].network, points[0].program) == (0.0, 2.0)
    assert (points[-1].network, points[-1].program) == (
        pytest.approx(1998.0, rel=1e-3),
        pytest.approx(2000.0, rel=1e-3),
    )
    assert output_points([], [], ()) == ()


def test_two_artifacts_on_a_page():
    one, other = artifact(), artifact(sigmoid=3)
    made = diff_page(one, other, (HOSTILE, "b"))
    reader = parsed(made)
    assert "script" not in {tag for tag, _ in reader.tags}
    assert not any(attributes.get("src") for _, attributes in reader.tags)
    text = " ".join(reader.text)
    assert "After against before: evaluation " in text
    for name, old, new, _ in diff(one, other).figures:
        assert name in text
        assert old in text
        assert new in text
    shown = [attributes.get("id") for tag, attributes in reader.tags if tag == "svg"]
    assert shown.count("levels") == 2
    assert shown.count("scatter") == 2
    assert "Both cost the same." in diff_page(one, one)


def test_the_graph_puts_every_node_below_its_operands():
    for made in (artifact(), artifact(SmallConv, (1, 8, 8))):
        rows = artifact_depth(made).rows
        places = place(rows)
        assert len(set(places.values())) == len(rows), "two nodes share a place"
        for row in rows:
            assert all(places[name][0] < places[row.name][0] for name in row.inputs)
        assert graph_svg(rows, made.ring.levels) == graph_svg(rows, made.ring.levels)


def test_the_layers_are_a_graph_of_their_own():
    """Each box follows those that it reads, and the operations of all boxes are those of the program."""
    for kind in ("decision", "plain"):
        made = kinds_of_programs.artifact(kind)
        rows = artifact_depth(made).rows
        boxes = layer_graph(rows)
        seen = set()
        for box in boxes:
            assert seen >= set(box.inputs) >= set(box.critical_inputs)
            seen.add(box.name)
        assert sum(box.operations for box in boxes) == len(rows)
        shown = [part for box in boxes for part in box.layer.split(", ")]
        assert set(shown) == {row.layer or row.op for row in rows}
        drawn = layers_svg(boxes, made.ring.levels)
        assert drawn.count("<g>") == len(boxes)


def test_what_only_carries_a_value_ties_no_layers_together():
    """A switch of chains stands at its reader, a level drop at what made the value: neither is work of theirs."""

    def row(name, op, layer, *inputs):
        return DepthRow(name, op, inputs, "managed", 0, 1, 30.0, f"net.py ({layer})", layer, False)

    rows = [
        row("%0", "input", "x"), row("%1", "mul_ct", "relu", "%0"), row("%2", "switch_chain", "conv", "%1"),
        row("%3", "linear_transform", "conv", "%2"), row("%4", "level_drop", "relu", "%2"),
        row("%5", "add_ct", "sum", "%3", "%4"),
    ]  # fmt: skip
    assert [box.layer for box in layer_graph(rows)] == ["x", "relu", "conv", "sum"]
    assert [run.layer for run in runs(rows)] == ["x", "relu", "conv", "sum"]
    # Behind a bootstrap it has a box, which is named like any other.
    rows = [
        row("%0", "input", "x"), row("%1", "bootstrap", "y", "%0"), row("%2", "level_drop", "y", "%1"),
        row("%3", "rotate", "z", "%2"),
    ]  # fmt: skip
    assert [box.layer for box in layer_graph(rows)] == ["x", "bootstrap", "y", "z"]


def test_bootstraps_have_boxes_and_a_colour_of_their_own():
    made = bootstrapped()
    (box,) = [box for box in layer_graph(artifact_depth(made).rows) if box.bootstraps]
    assert (box.layer, box.bootstraps) == ("bootstrap", 1)
    assert box.low > box.high, "it raises the level"
    shown = html_report(made)
    assert shown.count("var(--bootstrap, #7b3fa0)") >= 4  # both graphs, their legends, and the plot of levels
    assert "1 bootstrap<" in shown
    assert "<p>There is no polynomial.</p>" in shown
    assert "intervals are proved" not in shown
    assert "--bootstrap, " not in page()


def test_the_page_has_colours_for_dark_screens():
    """Every colour that the drawings take by its name is there twice."""
    used = set(re.findall(r"var\((--[\w-]+)", page()))
    light, dark = re.findall(r":root \{ (?:color-scheme: light dark; )?(--page.*?) \}", page(), re.DOTALL)
    for colours in (light, dark):
        assert used <= set(re.findall(r"(--[\w-]+):", colours))


def hostile():
    """An artifact whose names would be script and markup if they were not escaped."""
    made = artifact()
    figures = made.report.figures
    hostile = dataclasses.replace(
        figures,
        ranges=tuple({**entry, "layer": HOSTILE, "location": HOSTILE, "source": HOSTILE} for entry in figures.ranges),
        predicted_ms_by_layer=(LayerTime(HOSTILE, 3.0),),
        assumed=(HOSTILE,),
        costs=HOSTILE,
        savings=tuple(dataclasses.replace(saving, change=HOSTILE) for saving in figures.savings),
    )
    managed = made.stages["managed"].replace('"relu"', '"</script><b>"')
    program = dataclasses.replace(made.program, name=HOSTILE)
    report = dataclasses.replace(made.report, figures=hostile)
    return dataclasses.replace(made, program=program, report=report, stages={**made.stages, "managed": managed})


def test_names_are_escaped():
    reader = parsed(html_report(hostile()))
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert not [tag for tag, _ in reader.tags if tag in ("img", "b") and tag == "img"]
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert any(HOSTILE in text for text in reader.text)


# ------------------------------------------------------------------------------------------- a real browser


def test_a_browser_renders_the_page_and_logs_nothing(chromium, tmp_path):
    dom, console = browse(chromium, tmp_path, page(), "--dump-dom")
    assert console == ""
    assert 'data-ready="yes"' in dom, "the script of the page stopped"
    reader = parsed(dom)
    shown = " ".join(reader.text)
    assert re.search(r"\d+ of \d+ lines", shown)
    assert [a.get("value") for tag, a in reader.tags if tag == "option"] == [
        "tensor", "polynomial", "packed", "managed", "executable",
    ]  # fmt: skip


def test_the_console_would_show_an_error(chromium, tmp_path):
    """The check above can fail: a broken page is noticed."""
    dom, console = browse(chromium, tmp_path, page().replace('"use strict";', '"use strict"; nowhere();'), "--dump-dom")
    assert "nowhere is not defined" in console
    assert 'data-ready="yes"' not in dom


def test_the_search_keeps_the_lines_that_hold_the_words(chromium, tmp_path):
    probe = (
        "<script>query.value = 'RELINEARIZE'; query.dispatchEvent(new Event('input'));"
        "document.body.dataset.found = found.textContent; document.body.dataset.all = view.textContent;</script></body>"
    )
    dom, console = browse(chromium, tmp_path, page().replace("</body>", probe), "--dump-dom")
    assert console == ""
    body = next(attributes for tag, attributes in parsed(dom).tags if tag == "body")
    lines = artifact().stages["managed"].split("\n")
    wanted = [line for line in lines if "relinearize" in line]
    assert body["data-found"] == f"{len(wanted)} of {len(lines)} lines"
    assert [line[8:] for line in body["data-all"].split("\n")] == wanted


def test_hostile_names_run_nothing_in_a_browser(chromium, tmp_path):
    dom, console = browse(chromium, tmp_path, html_report(hostile()), "--dump-dom")
    assert console == ""
    assert 'data-ready="yes"' in dom
    assert "onerror=alert(2)&gt;" in dom


def test_the_screenshot_is_not_empty(chromium, tmp_path):
    picture = tmp_path / "shot.png"
    browse(chromium, tmp_path, page(), f"--screenshot={picture}", "--window-size=1100,3600")
    image = pytest.importorskip("matplotlib.image", reason="reading the picture needs matplotlib (the extra `plot`)")
    pixels = (image.imread(picture)[..., :3] * 255).round().astype(int).reshape(-1, 3)
    colours = set(map(tuple, np.unique(pixels, axis=0).tolist()))
    for colour in ("#2c6fbb", "#d9822b", "#b5452c", "#084081"):  # bars, frames, the darkest level
        wanted = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
        assert wanted in colours, colour


@pytest.mark.parametrize("kind", kinds_of_programs.KINDS)
def test_a_browser_renders_each_kind_of_program(kind, chromium, tmp_path):
    made = kinds_of_programs.artifact(kind)
    dom, console = browse(chromium, tmp_path, html_report(made), "--dump-dom")
    assert console == ""
    assert 'data-ready="yes"' in dom
    reader = parsed(dom)
    shown = " ".join(reader.text)
    stages = ["packed", "managed"] if kind == "slots" else ["tensor", "polynomial", "packed", "managed"]
    assert [a.get("value") for tag, a in reader.tags if tag == "option"] == [*stages, "executable"]
    assert {a.get("id") for tag, a in reader.tags if tag == "svg"} >= {"graph", "levels", "ranges", "keys", "times"}
    for node in made.program.outputs:
        assert node.loc.short in shown
    if kind == "decision":
        assert "argmax by degrees 31, 7, gap 0.25 (declared)" in shown
        assert "proved, degrees 31, 7" in shown


# ------------------------------------------------------------------------------------------- plots and graphviz


def test_plots_are_pictures(tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib (the extra `plot`)")
    made = artifact()
    paths = save_plots(made, tmp_path / "new" / "plots", made.report.with_measured(MEASURED))
    assert [path.name for path in paths] == ["levels.png", "ranges.png", "times.png"]
    for path in paths:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert struct.unpack(">I", data[16:20])[0] >= 1000


def test_the_graph_for_graphviz():
    text = dot_text(artifact())
    rows = artifact_depth(artifact()).rows
    assert text.startswith('digraph "net" {\n')
    assert len(re.findall(r"\[label=", text)) == len(rows)
    assert len(re.findall(r" -> ", text)) == sum(len(row.inputs) for row in rows)
    assert '\\"' in dot_text(hostile())
    assert text.count("{") == text.count("}") == 1


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed (apt-get install graphviz)")
def test_graphviz_draws_it():
    done = subprocess.run(["dot", "-Tsvg"], input=dot_text(hostile()), capture_output=True, text=True, check=True)
    assert "<svg" in done.stdout
