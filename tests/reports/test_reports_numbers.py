"""Every number of a report is right: one definition each, the same in a file, and none on the page from elsewhere."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from typing import Any

import kinds_of_programs
import numpy as np
import pytest
import torch
from reports_support import Net, TwoOutputs, artifact, program, samples, weighted

import heliograph as hg
from heliograph.compiler.pipeline import linear_passes
from heliograph.compiler.reporting.held_out import observe
from heliograph.interpret import interpret_many
from heliograph.report.depth import artifact_depth
from heliograph.report.html import html_report
from heliograph.report.parameters import ProgramParameters
from heliograph.report.plots import figures
from heliograph.report.text import error_text, seconds_text
from heliograph.rounding import upward_text
from heliograph.tools.demo import DemoResult
from heliograph.tools.measure import Measurement, measure

MEASURED = {
    "evaluate_ms": 61.25, "ms_by_layer": {"fc1": 20.0, "relu": 11.0}, "process_peak_bytes": 168_000_000,
    "max_abs_error": 0.0021, "load_average": 5.384765625,
}  # fmt: skip
REFRESHED = """program refresh
input x: secret slots[16] in [-1, 1]
y = bootstrap(3 * x * x)
output z = y * y - rotate(y, 1)
"""


@functools.cache
def refreshed() -> hg.Artifact:
    return hg.compile(hg.parse(REFRESHED), hg.Options(security_bits=None, log_ring=11))


# With a degree that is given nothing is raised because of the outputs, which the class and its scores would do differently.
CLOSE = hg.Options(security_bits=None, degree=15)


@functools.cache
def classifier(top1: bool = False, gap: float | None = None) -> tuple[hg.Program, hg.Artifact]:
    """A network whose logits lie so close together that its polynomials change a class, and its artifact."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)).eval()
    found = hg.trace(layers, torch.zeros(1, 16), calibration=torch.rand(64, 16), name="close")
    found = hg.top1(found, gap=gap) if top1 else found
    return found, hg.compile(found, CLOSE)


def artifacts() -> dict[str, Any]:
    makers = {kind: functools.partial(kinds_of_programs.artifact, kind) for kind in kinds_of_programs.KINDS}
    return {**makers, "net": artifact, "bootstrapped": refreshed, "top1": lambda: classifier(top1=True)[1]}


NAMES = list(artifacts())


# ------------------------------------------------------------------------------------------- the page


class _Shown(HTMLParser):
    """The text that a reader takes for figures: not the program, its drawing, or the axes of plots."""

    LEFT_OUT = ("style", "script", "h1", "nav", "button", "title")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("meta", "link", "input", "rect", "line", "path"):
            return
        hidden = tag == "svg" and given.get("id") == "graph"  # names of values
        hidden |= given.get("class") == "axis"
        hidden |= tag == "span" and given.get("class") == "muted"  # the fingerprint
        self.open.append("out" if hidden or tag in self.LEFT_OUT else tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and tag not in ("rect", "line", "path"):
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if "out" not in self.open:
            self.text.append(data)


_NUMBER = re.compile(r"(?<![\w.])(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?:\s?(B|kB|MB|GB|ms|s|%)(?!\w))?")
_BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def numbers(text: str) -> list[tuple[str, str]]:
    """The numbers of a text with their units; those of names and places are none."""
    bare = re.sub(r"\S+\.(?:py|hg):\d+", "", text)
    return [(number, unit or "") for number, unit in _NUMBER.findall(bare)]


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item, key)
    else:
        yield key, value


def _shown_as(value: float, number: str) -> bool:
    """Whether the number is the value, to the digits that it is written with."""
    digits, _, exponent = number.partition("e")
    last = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    if "." not in digits and len(digits.lstrip("-")) > 1:
        last *= 10.0 ** (len(digits) - len(digits.rstrip("0")))
    return abs(value - float(number)) <= 0.5000001 * last


def of_the_report(report: hg.Report, made: hg.Artifact) -> Any:
    """A predicate: whether a number with its unit is one of the report's."""
    values = {**report.to_dict(), "spent": [entry[2] for entry in artifact_depth(made).spent]}
    known: dict[str, set[float]] = {"B": set(), "ms": set(), "%": set(), "": set()}
    written: set[tuple[str, str]] = set()
    for key, value in leaves(values):
        if isinstance(value, str):
            written.update(numbers(value))
        elif value is not None and not isinstance(value, bool):
            known[""].add(float(value))
            if key.endswith("proved_error"):
                written.add((upward_text(value), ""))
                written.add((upward_text(value, 2), ""))
            known["B"] |= {float(value)} if "bytes" in key else set()
            known["ms"] |= {1e3 * value} if key.endswith("_s") else {value} if re.search(r"(_|\.)ms", key) else set()
            known["%"] |= {100.0 * value} if re.search("share|relative|margin", key) else set()
    written.update(numbers(str(ProgramParameters.of(made.program.planned.chains, made.evaluation_keys))))
    known["B"] |= {float(row["keys"] * row["key_bytes"]) for row in values["keys_by_kind"]}
    measured = report.measured.get("max_abs_error")
    if measured:
        known["%"].add(100.0 * measured / values["output_magnitude"])
    known[""] |= {float(row.level) for row in artifact_depth(made).rows}
    proved = sum(entry["source"] == "proved" for entry in values["ranges"])
    known[""].add(float(len(values.get("output_points", ()))))
    known[""] |= {math.log2(values["ring_dim"]), float(proved), float(len(values["ranges"])), 2.0}
    if values["bootstrapping"]:
        known[""].add(math.log2(values["bootstrapping"]["deviation"]))

    def known_number(number: str, unit: str) -> bool:
        if (number, unit) in written:
            return True
        if unit in _BYTES:
            return any(_shown_as(value / _BYTES[unit], number) for value in known["B"])
        if unit in ("ms", "s"):
            return any(_shown_as(value / (1.0 if unit == "ms" else 1e3), number) for value in known["ms"])
        return any(_shown_as(value, number) for value in known[unit])

    return known_number


@pytest.mark.parametrize("name", NAMES)
def test_every_number_on_the_page_is_one_of_the_report(name):
    made = artifacts()[name]()
    report = made.report.with_measured(MEASURED)
    known, reader = of_the_report(report, made), _Shown()
    reader.feed(html_report(made, report))
    found = [token for text in reader.text for token in numbers(text)]
    assert len(found) > 60
    assert [token for token in found if not known(*token)] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_number_in_a_plot_is_one_of_the_report(name):
    """What is drawn, and what is written beside it."""
    pytest.importorskip("matplotlib", reason="plots need matplotlib (the extra `plot`)")
    from matplotlib.text import Text

    made = artifacts()[name]()
    layers = [row["layer"] for row in made.report.values["predicted_ms_by_layer"]]
    report = made.report.with_measured(
        {**MEASURED, "ms_by_layer": {layer: 2.5 * (i + 1) for i, layer in enumerate(layers)}}
    )
    known, drawn, rows = of_the_report(report, made), figures(made, report), artifact_depth(made).rows
    assert {"levels", "times"} <= set(drawn)
    for figure in drawn.values():
        texts = [text.get_text() for text in figure.findobj(Text)]
        found = [token for text in texts if not _TICK.fullmatch(text) for token in numbers(text)]
        assert [token for token in found if not known(*token)] == []
    # A step for each operation, from level 0 at the lower end of the plot.
    (path,) = [shape.get_xy() for shape in drawn["levels"].axes[0].patches if len(shape.get_xy()) == 2 * len(rows)]
    most = max(made.ring.levels, 1)
    assert path[::2, 1] == pytest.approx([24 + 170 * (1 - row.level / most) for row in rows], abs=0.01)
    assert list(path[1::2, 1]) == list(path[::2, 1])
    widths = _lengths((box.get_y(), box.get_width(), box.get_height()) for box in _boxes(drawn["times"]))
    predicted, measured = report.predicted_ms_by_layer(), report.measured["ms_by_layer"]
    longest = max(*predicted.values(), *measured.values())
    both = [time for layer in predicted for time in (predicted[layer], measured[layer])]
    assert widths == pytest.approx([590 * time / longest for time in both if time], abs=0.03)
    if report.figures.ranges:
        _check_intervals(_boxes(drawn["ranges"]), report.figures.ranges)


_TICK = re.compile(r"[−-]?\d+(\.\d+)?|1e-?\d+")


def _lengths(boxes: Iterable[tuple[float, float, float]]) -> list[float]:
    """The lengths of the bars, one below the other, from the places, widths and heights of their parts."""
    found: dict[float, float] = {}
    for y, width, height in boxes:
        # Those of the legend are less high.
        if abs(height) == pytest.approx(13):
            found[round(y, 2)] = found.get(round(y, 2), 0.0) + width
    return list(found.values())


def _boxes(figure: Any) -> list[Any]:
    return [shape for shape in figure.axes[0].patches if hasattr(shape, "get_width")]


def _check_intervals(boxes: list[Any], ranges: Any) -> None:
    """The bars end where the intervals of the report do, in halves of that of the polynomial, cut at 1.6."""
    bars = iter(boxes)
    for entry in ranges:
        middle, half = (entry["low"] + entry["high"]) / 2, (entry["high"] - entry["low"]) / 2
        frame = next(bars)
        for key in ("proved", "observed"):
            if entry.get(key):
                bar = next(bars)
                ends = np.array([bar.get_x(), bar.get_x() + bar.get_width()])
                found = 2 * (ends - frame.get_x()) / frame.get_width() - 1
                # No bar is narrower than a pixel.
                assert found == pytest.approx(np.clip((np.array(entry[key]) - middle) / half, -1.6, 1.6), abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_bars_on_the_page_are_as_long_as_their_numbers(name):
    made = artifacts()[name]()
    (svg,) = re.findall(r'<svg [^>]*id="times".*?</svg>', html_report(made), re.DOTALL)
    parts = r'<rect x="[\d.]+" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"'
    widths = _lengths(tuple(map(float, found)) for found in re.findall(parts, svg))
    times = [row["ms"] for row in made.report.values["predicted_ms_by_layer"]]
    times = [time for time in times if time > 1e-3 * max(times)]
    assert widths == pytest.approx([max(widths) * time / max(times) for time in times], abs=0.03)


def test_a_wrong_number_on_the_page_would_be_found():
    made = artifact()
    known = of_the_report(made.report, made)
    total = made.report.values["evaluation_key_bytes"]
    assert known(f"{total / 1e6:.1f}", "MB")
    assert not known(f"{1.02 * total / 1e6:.1f}", "MB")
    assert not known(f"{made.report.values['predicted']['evaluate_ms'] + 3:.0f}", "ms")


@pytest.mark.parametrize("name", NAMES)
def test_the_keys_on_the_page_add_up_to_those_of_the_bill(name):
    values = artifacts()[name]().report.values
    rows = values["keys_by_kind"]
    assert sum(row["keys"] * row["key_bytes"] for row in rows) == values["evaluation_key_bytes"]
    assert sum(row["keys"] for row in rows if row["kind"] == "rotation") == values["rotation_keys"]
    if values["lower_chains"]:
        assert len({row["key_bytes"] for row in rows if row["kind"] == "rotation"}) > 1


# ------------------------------------------------------------------------------------------- one definition, one order


@pytest.mark.parametrize("name", NAMES)
def test_layers_stay_in_program_order_in_a_file(name):
    made = artifacts()[name]()
    loaded = hg.Artifact.from_bytes(made.to_bytes())
    assert list(loaded.report.predicted_ms_by_layer()) == list(made.report.predicted_ms_by_layer())
    assert loaded.report.full() == made.report.full()
    assert html_report(loaded) == html_report(made)


def test_the_layers_of_a_file_are_those_of_the_network():
    loaded = hg.Artifact.from_bytes(artifact().to_bytes())
    assert list(loaded.report.predicted_ms_by_layer()) == ["fc1", "relu", "fc2", "sigmoid", "fc3"]


@pytest.mark.parametrize("name", NAMES)
def test_the_layers_add_up_to_the_bill(name):
    values = artifacts()[name]().report.values
    for key in ("plaintext_products", "key_switches", "rotations", "bootstraps"):
        assert sum(row[key] for row in values["work_by_layer"]) == values[key]
    assert sum(row["ms"] for row in values["predicted_ms_by_layer"]) == pytest.approx(values["predicted_ms"], rel=1e-9)


@pytest.mark.parametrize("name", [*NAMES, "max"])
def test_what_was_observed_lies_in_the_interval_that_it_is_drawn_on(name):
    if name == "max":
        pool = hg.trace(
            torch.nn.Sequential(torch.nn.MaxPool1d(4), torch.nn.Flatten()).eval(),
            torch.zeros(1, 2, 8),
            calibration=samples((2, 8)) + 5.0,
        )
        made = hg.compile(pool, hg.Options(security_bits=None))
    else:
        made = artifacts()[name]()
    for entry in made.report.values["ranges"]:
        if entry["observed"]:
            assert entry["low"] <= entry["observed"][0] <= entry["observed"][1] <= entry["high"]


def test_the_measured_column_says_the_load_in_two_digits():
    text = artifact().report.with_measured(MEASURED).full()
    assert re.search(r"load average +5\.38\n", text)
    assert re.search(r"memory of one process +168\.0 MB\n", text)


def test_the_demonstration_predicts_what_its_table_predicts():
    found = artifact()
    outputs, labels = np.eye(3), np.arange(3)
    shown = DemoResult(
        found, labels, outputs, outputs, Measurement(keygen_s=0.5, peak_rss_bytes=10**9, max_abs_error=0.0)
    )
    figures = {
        name: (predicted, measured)
        for name, predicted, measured in found.report.with_measured(shown.measurement).figure_rows()
    }
    assert seconds_text(shown.to_dict()["predicted_ms"] / 1e3) == figures["evaluation"][0]
    assert figures["key generation"][1] == "500 ms"
    assert figures["memory of one process"] == ("", "1.0 GB")
    assert figures["output error"][1] == "0"


def test_a_measurement_has_the_error_against_what_was_expected():
    pytest.importorskip("openfhe")
    small = hg.compile(
        hg.parse("program a\ninput x: secret tensor[4] in [-1, 1]\noutput y = x * x"), hg.Options(security_bits=None)
    )
    given = [np.full(4, 0.5), np.full(4, -0.25)]
    expected = [np.full(4, 0.25), np.full(4, 0.5)]  # the second is wrong by 0.4375
    found = measure(small, given, expected=expected)
    assert found.max_abs_error == pytest.approx(0.4375, abs=1e-3)
    assert found.figures()["max_abs_error"] == found.max_abs_error
    assert "max_abs_error" not in measure(small, given).figures()


# ------------------------------------------------------------------------------------------- errors and classes


def test_an_error_is_a_share_of_the_largest_output():
    assert error_text(0.0, 1.0) == "0"
    assert error_text(3.6, 14.0) == "3.6 (26% of 14)"
    assert error_text(1.0, 1.01) == "1 (99% of 1.01)"
    assert error_text(3.0, 1.0) == "3 (300% of 1)"
    assert error_text(2e-6, 0.5) == "2e-06 (4e-06 of 0.5)"
    assert error_text(0.5) == error_text(0.5, 0.0) == "0.5"
    predicted = artifact().report.values["predicted"]
    assert predicted["relative_error"] == predicted["max_abs_error"] / artifact().report.values["output_magnitude"]
    assert "bits)" not in artifact().report.full().partition("ranges of polynomials")[0].partition("output error")[2]


@pytest.mark.parametrize("top1", [False, True])
def test_the_bill_says_on_how_many_samples_the_class_agrees(top1):
    """On samples that were kept apart, by the polynomials that were chosen without them."""
    source, made = classifier(top1=top1)
    observation = observe(linear_passes(source)[-1].program, CLOSE)
    assert observation.trial is not None
    (apart,) = observation.unseen.samples
    exact = interpret_many(source, [apart])[0].argmax(1)
    found = interpret_many(observation.trial.write(), [apart])[0].argmax(1)
    agree, count = int((exact == found).sum()), len(apart)
    assert 0 < agree < count, "the network has to be one whose class changes"
    assert made.report.values["class_agreement"] == {"samples": count, "agree": agree}
    assert f"agrees with the model on {agree} of {count} held-out samples" in made.report.full()


def test_the_number_of_a_class_is_compared_rounded():
    numbered = hg.top1(classifier()[0], index=True)
    made = hg.compile(numbered, CLOSE)
    assert made.report.values["class_agreement"] == classifier(top1=True)[1].report.values["class_agreement"]


def test_outputs_that_are_no_scores_have_no_class():
    assert artifact(TwoOutputs).report.values["class_agreement"] is None
    assert kinds_of_programs.artifact("slots").report.values["class_agreement"] is None
    assert refreshed().report.values["class_agreement"] is None
    wide = hg.trace(weighted(torch.nn.Linear(2, 1001)), torch.zeros(1, 2), calibration=samples((2,)))
    one = hg.trace(weighted(torch.nn.Linear(2, 1)), torch.zeros(1, 2), calibration=samples((2,)))
    for found in (wide, one):
        made = hg.compile(found, hg.Options(security_bits=None))
        assert made.report.values["class_agreement"] is None
        assert "  class " not in made.report.full()
    assert artifact(Net).report.values["class_agreement"]["samples"] == 32
    assert program(Net).calibration[0].shape[0] == 64


def test_the_gap_of_a_class_is_below_the_differences_that_the_polynomials_leave():
    source, made = classifier(top1=True)
    polynomial = hg.approximate(classifier()[0], CLOSE)
    smallest = math.inf
    for each in (polynomial, classifier()[0]):
        ordered = np.sort(interpret_many(each, source.calibration)[0], axis=1)
        smallest = min(smallest, (ordered[:, -1] - ordered[:, -2]).min())
    (entry,) = [entry for entry in made.report.values["ranges"] if entry["function"] == "argmax"]
    assert entry["gap_source"] == "observed"
    assert 0.9 * smallest < entry["gap"] <= smallest
    declared = classifier(top1=True, gap=0.01)[1].report.values["ranges"][-1]
    assert (declared["gap"], declared["gap_source"]) == (0.01, "declared")


def test_outputs_that_are_all_zero_have_no_relative_error():
    nil = hg.parse("program nil\ninput x: secret slots[4] in [-1, 1]\noutput y = x * [0, 0, 0, 0]\n")
    made = hg.compile(nil, hg.Options(security_bits=None))
    assert made.report.values["predicted"]["relative_error"] is None
    assert "output error" in hg.Artifact.from_bytes(made.to_bytes()).report.full()
