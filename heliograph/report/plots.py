"""Figures for papers (matplotlib, the extra `plot`), and the graph for graphviz."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from heliograph.errors import HeliographError
from heliograph.files import write_file
from heliograph.report.compiled import Compiled
from heliograph.report.depth import artifact_depth
from heliograph.report.drawing import INK, MEASURED, PREDICTED, WARM, level_colour, shortened, text_colour
from heliograph.report.text import Report, degrees_text, largest_error_text

_WIDTH_INCHES = 7.0
_DPI = 200
# What `save_plots` may write, without the endings.
PLOTS = ("levels", "ranges", "times", "allocation")


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise HeliographError(
            "matplotlib is not installed", why=str(error), hint="pip install 'heliograph[plot]'"
        ) from None
    # Its object-oriented half alone: no window is opened and no global state is changed.
    from matplotlib.figure import Figure

    assert matplotlib is not None
    return Figure


def save_plots(artifact: Compiled, folder: str | Path, report: Report | None = None) -> list[Path]:
    """Write `levels.png`, `ranges.png`, `times.png` and `allocation.png` into a folder; the paths, without those that have
    nothing to show.
    """
    figure = _pyplot()
    report = report or artifact.report
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HeliographError(f"the folder {target} cannot be made", why=str(error)) from None
    drawings: tuple[tuple[str, Callable[[Any, Compiled, Report], Any]], ...] = (
        ("levels", _levels),
        ("ranges", _ranges),
        ("times", _times),
        ("allocation", _allocation),
    )
    made = []
    for name, draw in drawings:
        drawn = draw(figure, artifact, report)
        if drawn is None:
            continue
        path = target / f"{name}.png"
        drawn.savefig(path, dpi=_DPI)
        made.append(path)
    return made


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
    """Level and scale of each node in program order, layers marked."""
    rows = artifact_depth(artifact).rows
    drawn = figure(figsize=(_WIDTH_INCHES, 3.6), layout="constrained")
    upper, lower = drawn.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    positions = range(len(rows))
    upper.step(positions, [row.level for row in rows], where="post", color="#0b5394", linewidth=1.2)
    upper.set_ylabel("level")
    upper.set_ylim(bottom=-0.2)
    lower.step(positions, [row.scale_bits for row in rows], where="post", color="#2f7d5b", linewidth=1.0)
    lower.set_ylabel("scale, bits")
    lower.set_xlabel("operation, in program order")
    ticks, names, previous = [], [], None
    for position, row in enumerate(rows):
        layer = row.layer or row.op
        if layer != previous:
            ticks.append(position)
            names.append(shortened(layer, 16))
            previous = layer
    top = upper.secondary_xaxis("top")
    step = max(1, len(ticks) // 14)
    top.set_xticks(ticks[::step], names[::step], rotation=45, ha="left", fontsize=7)
    for axis in (upper, lower):
        axis.grid(axis="y", linewidth=0.4)
    return drawn


def _ranges(figure: Any, artifact: Compiled, report: Report) -> Any:
    """Each polynomial's interval with what was proved and observed; values in units of the interval."""
    ranges = report.figures.ranges
    if not ranges:
        return None
    drawn = figure(figsize=(_WIDTH_INCHES, 0.9 + 0.45 * len(ranges)), layout="constrained")
    axis = drawn.subplots()
    for position, entry in enumerate(ranges):
        middle, half = (entry["low"] + entry["high"]) / 2, max((entry["high"] - entry["low"]) / 2, 1e-300)
        axis.barh(
            position, 2, left=-1, height=0.62, color="#e4ecf5", edgecolor="#2c6fbb", label="polynomial" * (not position)
        )
        for key, shift, colour in (("proved", -0.14, "#2f7d5b"), ("observed", 0.14, "#d9822b")):
            if entry.get(key):
                low, high = ((value - middle) / half for value in entry[key])
                low, high = max(low, -1.6), min(high, 1.6)
                axis.barh(position + shift, high - low, left=low, height=0.14, color=colour)
        axis.text(
            1.68,
            position,
            f"{entry['source']}, {degrees_text(entry)}, {largest_error_text(entry)}",
            va="center",
            fontsize=7,
        )
    axis.set_yticks(
        range(len(ranges)), [shortened(entry["layer"] or entry["function"], 24) for entry in ranges], fontsize=8
    )
    axis.invert_yaxis()
    axis.set_xlim(-1.65, 3.2)
    axis.set_xticks([-1, 0, 1])
    axis.set_xlabel("input in units of the polynomial's interval (green: proved, orange: observed)", fontsize=8)
    return drawn


def _times(figure: Any, artifact: Compiled, report: Report) -> Any:
    """Predicted, and measured where a run was given, milliseconds of each layer."""
    predicted = report.predicted_ms_by_layer()
    measured = report.measured.get("ms_by_layer") or {}
    layers = [layer for layer in dict.fromkeys((*predicted, *measured)) if predicted.get(layer) or measured.get(layer)]
    if not layers:
        return None
    drawn = figure(figsize=(_WIDTH_INCHES, 1.0 + 0.32 * len(layers)), layout="constrained")
    axis = drawn.subplots()
    height = 0.38 if measured else 0.7
    shift = height / 2 if measured else 0.0
    positions = range(len(layers))
    axis.barh(
        [p - shift for p in positions],
        [predicted.get(layer, 0.0) for layer in layers],
        height,
        color="#2c6fbb",
        label="predicted",
    )
    if measured:
        axis.barh(
            [p + shift for p in positions],
            [measured.get(layer, 0.0) for layer in layers],
            height,
            color="#d9822b",
            label="measured",
        )
    axis.set_yticks(list(positions), [shortened(layer, 24) for layer in layers], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("milliseconds")
    axis.legend(fontsize=8)
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
    bars.set_yticks(range(len(rows)), [shortened(row.layer or row.function, 24) for row in rows], fontsize=7)
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
