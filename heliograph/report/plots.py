"""Figures for papers (matplotlib, the extra `plot`), and the graph for graphviz."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from heliograph.errors import HeliographError
from heliograph.files import write_file
from heliograph.report.compiled import Compiled
from heliograph.report.depth import artifact_depth
from heliograph.report.drawing import (
    BOOTSTRAP,
    INK,
    INTERVAL,
    LEVEL,
    MEASURED,
    PREDICTED,
    PROVED,
    SCALE,
    WARM,
    ending,
    level_colour,
    text_colour,
)
from heliograph.report.layers import is_bootstrap, runs
from heliograph.report.text import Report, degrees_text, largest_error_text, seconds_text

_WIDTH_INCHES = 7.0
_DPI = 200
# How far around an interval the plot reaches, in half widths of the interval.
_REACH = 1.6
# Places an annotation from the top of the axes, in points.
_ABOVE = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
# The plots that `save_plots` may write, without file endings.
PLOTS = ("levels", "ranges", "times", "allocation")


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise HeliographError(
            "matplotlib is not installed", why=str(error), hint="pip install 'heliograph[plot]'"
        ) from None
    # Only matplotlib's object-oriented half: no window is opened and no global state is changed.
    from matplotlib.figure import Figure

    assert matplotlib is not None
    return Figure


def figures(artifact: Compiled, report: Report | None = None) -> dict[str, Any]:
    """The plots as figures of matplotlib, by name, without those that have nothing to show."""
    figure = _pyplot()
    report = report or artifact.report
    drawings: tuple[tuple[str, Callable[[Any, Compiled, Report], Any]], ...] = (
        ("levels", _levels),
        ("ranges", _ranges),
        ("times", _times),
        ("allocation", _allocation),
    )
    drawn = {name: draw(figure, artifact, report) for name, draw in drawings}
    return {name: made for name, made in drawn.items() if made is not None}


def save_plots(artifact: Compiled, folder: str | Path, report: Report | None = None) -> list[Path]:
    """Write `levels.png`, `ranges.png`, `times.png` and `allocation.png` into a folder; returns their paths.

    Plots that would be empty are left out.
    """
    drawn = figures(artifact, report)
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HeliographError(f"the folder {target} cannot be made", why=str(error)) from None
    written = []
    for name, figure in drawn.items():
        path = target / f"{name}.png"
        figure.savefig(path, dpi=_DPI)
        written.append(path)
    return written


def save_certified_curve(
    path: str | Path, radii: Sequence[float], correct: Sequence[bool] | None, unit: str, tested: float
) -> Path:
    """Draw the share of inputs that are certified (and, where labels are known, rightly classified) within each radius.

    `radii` are those that the votes of each input show, 0 where it abstained; `tested` is the certificate's own.
    """
    figure = _pyplot()(figsize=(_WIDTH_INCHES, _WIDTH_INCHES / 1.8), layout="constrained")
    axes = figure.subplots()
    good = [radius if right else 0.0 for radius, right in zip(radii, correct or [True] * len(radii), strict=True)]
    ends = sorted({radius for radius in good if radius > 0.0})
    shares = [sum(radius >= end for radius in good) / max(1, len(good)) for end in ends]
    if ends:
        axes.step([0.0, *ends], [shares[0], *shares], where="pre", color=PREDICTED)
    axes.axvline(tested, color=WARM, linewidth=1.0, linestyle="--")
    axes.annotate("the radius that is tested", (tested, 1.0), (4, -12), textcoords="offset points", color=WARM)
    axes.set(xlabel=f"radius, {unit}", ylabel="certified accuracy" if correct else "certified", ylim=(0.0, 1.02))
    axes.set_xlim(left=0.0)
    axes.spines[["top", "right"]].set_visible(False)
    target = Path(path)
    figure.savefig(target, dpi=_DPI)
    return target


def _levels(figure: Any, artifact: Compiled, report: Report) -> Any:
    """Level and scale of each operation in program order; layers are bands, bootstraps lines."""
    rows = artifact_depth(artifact).rows
    drawn = figure(figsize=(_WIDTH_INCHES, 4.2), layout="constrained")
    upper, lower = drawn.subplots(2, 1, sharex=True, height_ratios=(3, 1.3))
    # Gives the last value a width too.
    levels = [row.level for row in rows]
    upper.step(range(len(rows) + 1), [*levels, *levels[-1:]], where="post", color=LEVEL, linewidth=1.3)
    upper.set_ylabel("level", fontsize=8)
    upper.locator_params(axis="y", integer=True)
    upper.set_ylim(-0.04 * max(levels, default=1), 1.04 * max(levels, default=1) + 0.1)
    # Points, not a line: values and products alternate, so a line would fill the plot.
    lower.plot(
        [place + 0.5 for place in range(len(rows))], [row.scale_bits for row in rows], ".", color=SCALE, markersize=2
    )
    lower.set_ylabel("scale, bits", fontsize=8)
    lower.set_ylim(0, 1.15 * max((row.scale_bits for row in rows), default=1.0))
    lower.set_xlabel("operation, in program order", fontsize=8)
    for place, row in enumerate(rows):
        if is_bootstrap(row):
            upper.axvline(place, color=BOOTSTRAP, linewidth=1.0)
            upper.annotate("bootstrap", (place, 1.0), (3, -9), **_ABOVE, color=BOOTSTRAP, fontsize=7)
    ticks, names, last = [], [], -math.inf
    for place, run in enumerate(runs(rows)):
        if place % 2:
            for axis in (upper, lower):
                axis.axvspan(run.first, run.first + run.count, color="#f1f4f8", zorder=0, linewidth=0)
        # Only if it does not overprint the previous one.
        middle = run.first + run.count / 2
        if middle - last >= 0.032 * len(rows):
            ticks.append(middle)
            names.append(ending(run.layer, 18))
            last = middle
    top = upper.secondary_xaxis("top")
    top.set_xticks(ticks, names, rotation=40, ha="left", fontsize=7)
    top.tick_params(length=0, pad=1)
    upper.set_xlim(0, max(1, len(rows)))
    for axis in (upper, lower):
        axis.tick_params(labelsize=8)
        axis.grid(axis="y", linewidth=0.4)
    return drawn


def _ranges(figure: Any, artifact: Compiled, report: Report) -> Any:
    """Each polynomial's interval with what was proved and observed; values in units of the interval."""
    ranges = report.figures.ranges
    if not ranges:
        return None
    drawn = figure(figsize=(_WIDTH_INCHES, 1.2 + 0.42 * len(ranges)), layout="constrained")
    axis = drawn.subplots()
    shown: dict[str, Any] = {}
    for position, entry in enumerate(ranges):
        middle, half = (entry["low"] + entry["high"]) / 2, max((entry["high"] - entry["low"]) / 2, 1e-300)
        shown["polynomial's interval"] = axis.barh(
            position, 2, left=-1, height=0.62, color=INTERVAL, edgecolor=PREDICTED, linewidth=0.8
        )
        for key, shift, colour in (("proved", -0.14, PROVED), ("observed", 0.14, MEASURED)):
            if entry.get(key):
                low, high = ((value - middle) / half for value in entry[key])
                cut_low, cut_high = max(low, -_REACH), min(high, _REACH)
                shown[key] = axis.barh(position + shift, cut_high - cut_low, left=cut_low, height=0.14, color=colour)
                # Anything that reaches beyond the plot ends in an arrow.
                for beyond, place, marker in ((low < -_REACH, -_REACH, "<"), (high > _REACH, _REACH, ">")):
                    if beyond:
                        axis.plot([place], [position + shift], marker, color=colour, markersize=5, clip_on=False)
    names = [ending(entry["layer"] or entry["function"], 26) for entry in ranges]
    axis.set_yticks(range(len(ranges)), names, fontsize=8)
    axis.set_ylim(len(ranges) - 0.5, -0.5)
    texts = [f"{entry['source']}, {degrees_text(entry)}\n{largest_error_text(entry)}" for entry in ranges]
    right = axis.secondary_yaxis("right")
    right.set_yticks(range(len(ranges)), texts, fontsize=7)
    right.tick_params(length=0)
    axis.set_xlim(-_REACH - 0.05, _REACH + 0.05)
    axis.set_xticks([-1, 0, 1])
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel("input, in units of the polynomial's interval", fontsize=8)
    drawn.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return drawn


def _times(figure: Any, artifact: Compiled, report: Report) -> Any:
    """Predicted, and measured where a run was given, milliseconds of each layer."""
    predicted = report.predicted_ms_by_layer()
    measured = report.measured.get("ms_by_layer") or {}
    longest = max([0.0, *predicted.values(), *measured.values()])
    layers = [
        layer
        for layer in dict.fromkeys((*predicted, *measured))
        if max(predicted.get(layer, 0.0), measured.get(layer, 0.0)) > 1e-3 * longest
    ]
    if not layers:
        return None
    drawn = figure(figsize=(_WIDTH_INCHES, 0.9 + (0.36 if measured else 0.24) * len(layers)), layout="constrained")
    axis = drawn.subplots()
    height = 0.4 if measured else 0.7
    shift = height / 2 if measured else 0.0
    for label, times, colour, side in (("predicted", predicted, PREDICTED, -1), ("measured", measured, MEASURED, 1)):
        if times:
            values = [times.get(layer, 0.0) for layer in layers]
            places = [place + side * shift for place in range(len(layers))]
            bars = axis.barh(places, values, height, color=colour, label=label)
            axis.bar_label(bars, [seconds_text(value / 1e3) for value in values], padding=3, fontsize=7)
    axis.set_yticks(range(len(layers)), [ending(layer, 26) for layer in layers], fontsize=8)
    axis.set_ylim(len(layers) - 0.5, -0.5)
    axis.set_xlim(0, 1.12 * longest)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel("milliseconds" if measured else "predicted milliseconds", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    if measured:
        drawn.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return drawn


def _allocation(figure: Any, artifact: Compiled, report: Report) -> Any:
    """Predicted loss and measured share of changed classes against predicted time, and the degrees by layer."""
    found, rows = report.figures.allocation, report.figures.degrees
    if found is None:
        return None
    drawn = figure(figsize=(_WIDTH_INCHES, 3.4 + 0.22 * len(rows)), layout="constrained")
    curve, bars = drawn.subplots(2, 1, height_ratios=(2.6, 0.8 + 0.22 * len(rows)))
    shares = curve.twinx()
    for axis, colour, points in (
        (curve, PREDICTED, [(p.ms / 1e3, p.loss, p.chosen) for p in found.curve if p.loss > 0]),
        (shares, MEASURED, [(p.ms / 1e3, 100 * p.measured, p.chosen) for p in found.curve if p.measured is not None]),
    ):
        axis.plot([x for x, _, _ in points], [y for _, y, _ in points], color=colour, marker="o", markersize=3)
        chosen = [(x, y) for x, y, is_chosen in points if is_chosen]
        axis.plot([x for x, _ in chosen], [y for _, y in chosen], "o", color=colour, markeredgecolor=INK, markersize=8)
    curve.set_yscale("log")
    curve.set_xlabel("predicted seconds (large: chosen)")
    curve.set_ylabel("predicted loss", color=PREDICTED)
    shares.set_ylabel("classes changed, %", color=MEASURED)
    shares.axhline(100 * found.allowed, color=WARM, linewidth=0.8)
    shares.set_ylim(bottom=0)
    bars.barh(range(len(rows)), [row.degree for row in rows], 0.7, color=PREDICTED)
    bars.set_yticks(range(len(rows)), [ending(row.layer or row.function, 24) for row in rows], fontsize=7)
    bars.invert_yaxis()
    bars.set_xlabel("degree")
    return drawn


def dot_text(artifact: Compiled) -> str:
    """The managed program in graphviz's language, levels as colour; the critical path is drawn thick."""
    rows, levels = artifact_depth(artifact).rows, artifact.ring.levels
    critical = {row.name for row in rows if row.critical}
    lines = [
        f"digraph {_quoted(artifact.name)} {{",
        '  node [shape=box, style=filled, fontname="Helvetica", fontsize=10];',
    ]
    for row in rows:
        label = f"{row.name} {row.op}\nlevel {row.level}, 2^{row.scale_bits:.1f}\n{row.layer or row.location}"
        lines.append(
            f"  {_quoted(row.name)} [label={_quoted(label)}, fillcolor={_quoted(level_colour(row.level, levels))}, "
            f"fontcolor={_quoted(text_colour(row.level, levels))}, penwidth={2 if row.critical else 1}];"
        )
        for operand in row.inputs:
            thick = " [penwidth=2]" if operand in critical and row.name in critical else ""
            lines.append(f"  {_quoted(operand)} -> {_quoted(row.name)}{thick};")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    """A string of graphviz: quotes and backslashes escaped, line breaks as \\n."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def write_text(path: str | Path, text: str) -> None:
    """Write a report's text whole or not at all."""
    write_file(path, text.encode())
