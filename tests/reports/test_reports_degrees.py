"""The table of degrees, and how an allocation of degrees is told, drawn and kept."""

from __future__ import annotations

import dataclasses
import json
import re
from html import unescape
from typing import Any
from xml.etree import ElementTree

import kinds_of_programs
import pytest
from click.testing import CliRunner
from reports_support import artifact

import heliograph as hg
from heliograph.artifact.figures import complete, stored
from heliograph.artifact.report_fields import check_report, read_stored
from heliograph.cli.main import cli
from heliograph.ir import Builder, Location, Stage
from heliograph.report.drawing import curve_svg, degrees_svg, log_span
from heliograph.report.figures import Allocation, CurvePoint, LayerImpact, Stored
from heliograph.report.html import html_report
from heliograph.report.plots import save_plots
from heliograph.report.text import Report, allocation_text

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
CURVE = (
    CurvePoint(12.0, 0.5, None, False),
    CurvePoint(34.0, 0.0125, 1 / 256, True),
    CurvePoint(56.0, 0.0, 0.0, False),
)


def allocation(layers: tuple[str, str] = ("relu", "sigmoid")) -> Allocation:
    ranges = artifact().program.ranges
    return Allocation(
        mode="plan",
        allowed=0.005,
        measured=1 / 256,
        samples=256,
        layers=tuple(
            LayerImpact(
                layer=layer, location=entry.location, function=entry.function, degree=entry.degree + place, mean=0.25,
                std=0.5, impact=0.125 * (place + 1), error=entry.rms_error**2, share=0.75 - 0.5 * place,
            )
            for place, (layer, entry) in enumerate(zip(layers, ranges, strict=True))
        ),
        curve=CURVE,
    )  # fmt: skip


def allocated() -> Any:
    """The artifact as it would be if its degrees had been allocated."""
    made = artifact()
    figures = made.report.figures
    known = Stored(**{entry.name: getattr(figures, entry.name) for entry in dataclasses.fields(Stored)})
    return dataclasses.replace(
        made, report=Report(complete(made.program, dataclasses.replace(known, allocation=allocation())))
    )


# ------------------------------------------------------------------------------------------- the rows


def test_a_row_for_each_polynomial() -> None:
    made = artifact()
    figures = made.report.figures
    assert [row.layer for row in figures.degrees] == ["relu", "sigmoid"]
    by_layer = made.report.predicted_ms_by_layer()
    for row, entry in zip(figures.degrees, made.program.ranges, strict=True):
        assert (row.location, row.function, row.degree) == (entry.location, entry.function, 7)
        assert row.rms_error == entry.rms_error
        assert (row.levels, row.chain, row.impact, row.share) == (3, figures.levels, None, None)
        assert row.ms == pytest.approx(by_layer[row.layer])


def test_impacts_come_from_the_allocation() -> None:
    rows = allocated().report.figures.degrees
    assert [(row.impact, row.share) for row in rows] == [(0.125, 0.75), (0.25, 0.25)]
    assert [row.degree for row in rows] == [7, 7], "the degree is the program's, whatever a file says"
    # A layer that no row of the program has is not shown.
    other = dataclasses.replace(allocation(("nowhere", "sigmoid")))
    known = dataclasses.replace(allocated().report.figures, allocation=other)
    assert [row.impact for row in complete(artifact().program, known).degrees] == [None, 0.25]


def test_compositions_have_no_row() -> None:
    made = kinds_of_programs.artifact("decision")
    assert [entry.function for entry in made.program.ranges] == ["argmax", "softmax", "tanh"]
    assert [row.function for row in made.report.figures.degrees] == ["tanh"]
    for kind in kinds_of_programs.KINDS:
        found = kinds_of_programs.artifact(kind)
        assert all(row.ms > 0 for row in found.report.figures.degrees)
        check_report(found.report.figures)


def test_functions_of_one_line_share_its_time() -> None:
    builder, place = Builder("pair", Stage.TENSOR), Location("pair.py", 3, 0, "y")
    x = builder.input("x", shape=(4,), low=-1.0, high=1.0)
    y = builder.op("add", [builder.op(name, [x], place) for name in ("tanh", "sigmoid")], place)
    made = hg.compile(builder.finish([y]), hg.Options(security_bits=None, degree=5, precision_bits=10))
    first, second = made.report.figures.degrees
    assert (first.layer, first.location) == (second.layer, second.location)
    assert first.ms == second.ms
    assert first.ms + second.ms == pytest.approx(made.report.predicted_ms_by_layer()[first.layer])


def test_a_bootstrap_counts_where_it_is_read() -> None:
    text = (
        "program deep\ninput x: secret slots[256] in [-1, 1]\na = bootstrap(0.25 * x)\n"
        "output y = poly(a, [0, 1, 0, 0.5], low=-1, high=1), z = poly(a, [1, 0, 0.5], low=-1, high=1)\n"
    )
    options = hg.Options(security_bits=None, log_ring=12, bootstrap=True, precision_bits=6.0)
    made = hg.compile(hg.parse(text), options)
    by_layer = made.report.predicted_ms_by_layer()
    rows = made.report.figures.degrees
    whole = sum(ms for layer, ms in by_layer.items() if layer == "a")
    beside = sum(row.ms - by_layer[row.layer] for row in rows)
    assert 0.9 * whole < beside <= whole
    assert rows[0].ms - by_layer[rows[0].layer] == pytest.approx(rows[1].ms - by_layer[rows[1].layer])


# ------------------------------------------------------------------------------------------- files


def test_a_file_holds_the_allocation_and_no_degrees() -> None:
    made = allocated()
    held = json.loads(json.dumps(stored(made.report.figures)))
    assert "degrees" not in held
    assert read_stored(held).allocation == allocation()
    assert complete(made.program, read_stored(held)) == made.report.figures
    check_report(made.report.figures)
    held["degrees"] = []
    with pytest.raises(hg.HeliographError, match="'degrees', which follows from its program"):
        read_stored(held)


# ------------------------------------------------------------------------------------------- text


def test_the_bill_says_it() -> None:
    assert "  degrees  " not in artifact().report.full()
    (line,) = [line for line in allocated().report.full().splitlines() if line.startswith("  degrees ")]
    assert "allocated (plan): 7 by layer; the class changes on 1 of 256 samples (0.5% allowed)" in line


def test_the_command_prints_the_table(tmp_path: Any) -> None:
    path = tmp_path / "net.helio"
    artifact().save(path)
    done = CliRunner().invoke(cli, ["inspect", str(path), "--degrees"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    # No degrees were allocated: nothing is known of impacts and losses, and no column is empty.
    assert re.split(r" {2,}", lines[0]) == ["layer", "degree", "rms error", "levels", "chain", "time"]
    assert [line.split()[:3] for line in lines[1:]] == [["relu", "7", "0.014"], ["sigmoid", "7", "8.4e-09"]]
    values = json.loads(CliRunner().invoke(cli, ["inspect", str(path), "--degrees", "--json"]).output)
    assert [row["layer"] for row in values["degrees"]] == ["relu", "sigmoid"]
    assert "allocation" not in values
    public = tmp_path / "public.bin"
    artifact().public().save(public)
    with pytest.raises(hg.ProgramError, match="holds no program"):
        CliRunner().invoke(cli, ["inspect", str(public), "--degrees"], catch_exceptions=False)


def test_the_curve_stands_below() -> None:
    lines = allocated().report.degree_lines()
    assert re.split(r" {2,}", lines[0])[3:5] == ["impact", "share of the loss"]
    assert [line.split()[:5] for line in lines[1:3]] == [
        ["relu", "7", "0.014", "0.12", "75%"],
        ["sigmoid", "7", "8.4e-09", "0.25", "25%"],
    ]
    assert [line.split() for line in lines[-3:]] == [
        ["12", "ms", "0.5", "-"],
        ["34", "ms", "0.013", "0.39%", "chosen"],
        ["56", "ms", "0", "0"],
    ]
    empty = dataclasses.replace(artifact().report.figures, degrees=())
    assert Report(empty).degree_lines() == ["no single polynomial: there is no degree to choose"]


def test_the_words_are_of_the_program() -> None:
    figures = allocated().report.figures
    first, second = figures.degrees
    found = dataclasses.replace(figures, degrees=(first, dataclasses.replace(second, degree=31)))
    assert allocation_text(found).startswith("allocated (plan): 7 to 31 by layer;")
    assert allocation_text(dataclasses.replace(figures, degrees=())).startswith("allocated (plan): none;")
    assert allocation_text(artifact().report.figures) == ""


# ------------------------------------------------------------------------------------------- page and plots


def test_the_page_has_the_numbers_of_the_record() -> None:
    made = allocated()
    page = html_report(made)
    values = made.report.to_dict()
    section = page.partition("<h2 id=degrees-section>")[2].partition("<h2 ")[0]
    cells = [unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", section)]
    for row in values["degrees"]:
        place = cells.index(row["layer"])
        assert float(cells[place + 2]) == pytest.approx(row["rms_error"], rel=0.05)
        assert float(cells[place + 3]) == pytest.approx(row["impact"], rel=0.05)
        assert cells[place + 4] == f"{row['share']:.0%}"
        assert cells[place + 1 : place + 7 : 5] == [str(row["degree"]), str(row["chain"])]
    titles = re.findall(r"<circle [^>]*><title>(.*?)</title>", section)
    assert titles == [
        "12 ms: predicted loss 0.5, classes changed -",
        "34 ms: predicted loss 0.013, classes changed 0.39% (chosen)",
        "34 ms: predicted loss 0.013, classes changed 0.39% (chosen)",
        "56 ms: predicted loss 0, classes changed 0",
    ]
    assert len(values["allocation"]["curve"]) == 3


def test_no_allocation_is_drawn_where_there_is_none(tmp_path: Any) -> None:
    page = html_report(artifact())
    # The points are those of what would save a level.
    drawn = page.partition("<h2 id=degrees-section>")[2]
    assert drawn.count("<circle") == 1 + len(artifact().report.figures.savings)
    assert 'id="allocation"' not in page
    assert "Degrees by layer" in page
    pytest.importorskip("matplotlib", reason="plots need matplotlib (the extra `plot`)")
    assert "allocation.png" not in [path.name for path in save_plots(artifact(), tmp_path)]


def test_the_plot_is_a_picture(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib (the extra `plot`)")
    paths = save_plots(allocated(), tmp_path)
    assert [path.name for path in paths] == ["levels.png", "ranges.png", "times.png", "allocation.png"]
    assert paths[-1].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_names_are_escaped() -> None:
    made = allocated()
    rows = tuple(dataclasses.replace(row, layer=HOSTILE, location=HOSTILE) for row in made.report.figures.degrees)
    told = dataclasses.replace(allocation((HOSTILE, HOSTILE)), mode=HOSTILE)
    figures = dataclasses.replace(made.report.figures, degrees=rows, allocation=told)
    page = html_report(dataclasses.replace(made, report=Report(figures)))
    assert page.count("<script") == 2
    assert "<img" not in page
    assert HOSTILE in unescape(page)


@pytest.mark.parametrize("curve", [(), CURVE[:1], CURVE[2:], (CurvePoint(5e-324, 5e-324, 5e-324, True),) * 2,
                                   (CurvePoint(1e30, 1e30, 1e30, False), CurvePoint(0.0, 0.0, None, False))])  # fmt: skip
def test_any_numbers_are_drawn(curve: tuple[CurvePoint, ...]) -> None:
    for allowed in (0.0, 5e-324, 1.0):
        drawn = curve_svg(dataclasses.replace(allocation(), curve=curve, allowed=allowed))
        ElementTree.fromstring(drawn)
        assert "nan" not in drawn
        assert "inf" not in drawn


def test_bars_are_as_long_as_degrees_are_high() -> None:
    first, second = allocated().report.figures.degrees
    drawn = degrees_svg((first, dataclasses.replace(second, layer=HOSTILE, degree=28)))
    bars = [
        float(rect.get("width", 0)) for rect in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}rect")
    ]
    assert bars[1] == pytest.approx(4 * bars[0])
    ElementTree.fromstring(degrees_svg(()))


def test_the_logarithmic_axis_holds_all_values() -> None:
    assert log_span([0.5, 0.0125, 0.0]) == (-2, 0)
    assert log_span([]) == (0, 1)
    assert log_span([10.0]) == (1, 2)
