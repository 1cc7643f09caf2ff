"""Figures for papers (matplotlib, the extra `plot`): the page's drawings as PNG; and the graph for graphviz."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from heliograph.errors import HeliographError
from heliograph.files import write_file
from heliograph.report.compiled import Compiled
from heliograph.report.depth import artifact_depth
from heliograph.report.drawing import curve_svg, degrees_svg, levels_svg, ranges_svg, times_svg
from heliograph.report.graphs import level_colour, text_colour
from heliograph.report.svg import PREDICTED, WARM
from heliograph.report.text import Report

_WIDTH_INCHES = 7.0
_DPI = 200
# Pixels of a drawing per inch of paper, and points per pixel of text: matplotlib's letters are wider than a page's.
_PIXELS_PER_INCH = 100.0
_POINTS = 0.62
_ALIGNMENTS = {"start": "left", "middle": "center", "end": "right"}
# The plots that `save_plots` may write, without file endings.
PLOTS = ("levels", "ranges", "times", "allocation")


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Any:
    """An empty figure of matplotlib, in inches; `layout` places its axes."""
    try:
        # Only matplotlib's object-oriented half: no window is opened and no global state is changed.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise HeliographError(
            "matplotlib is not installed", why=str(error), hint="pip install 'heliograph[plot]'"
        ) from None
    return Figure(figsize=(width, height), layout=layout)


def figures(artifact: Compiled, report: Report | None = None) -> dict[str, Any]:
    """The page's drawings as matplotlib figures, by name, without empty ones."""
    report = report or artifact.report
    found = report.figures
    drawings = {"levels": [levels_svg(artifact_depth(artifact).rows, artifact.ring.levels)]}
    if found.ranges:
        drawings["ranges"] = [ranges_svg(found.ranges)]
    if max([*report.predicted_ms_by_layer().values(), *(report.measured.get("ms_by_layer") or {}).values()], default=0):
        drawings["times"] = [times_svg(report)]
    if found.allocation is not None:
        drawings["allocation"] = [curve_svg(found.allocation), degrees_svg(found.degrees)]
    return {name: _drawn(parts) for name, parts in drawings.items()}


def _drawn(svgs: Sequence[str]) -> Any:
    """Drawings, one below the other, as a figure of matplotlib.

    It handles the elements that report/drawing.py writes: rectangles, lines, circles, polygons, texts, straight-line
    paths, and groups of them.
    """
    roots = [ElementTree.fromstring(svg) for svg in svgs]
    width = max(float(root.attrib["width"]) for root in roots)
    height = sum(float(root.attrib["height"]) for root in roots)
    figure = new_figure(width / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH, None)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    top = 0.0
    for root in roots:
        # A group only carries a name.
        for element in root.iter():
            if element is root or element.tag.endswith(("}g", "}title")):
                continue
            _draw(axes, element.tag.rpartition("}")[2], dict(element.attrib), element.text or "", top)
        top += float(root.attrib["height"])
    return figure


def _draw(axes: Any, tag: str, given: dict[str, str], text: str, top: float) -> None:
    """Draw an element of SVG, moved down by `top`."""
    from matplotlib import patches

    def at(x: str, y: str) -> tuple[float, float]:
        return float(given[x]), float(given[y]) + top

    style: dict[str, Any] = {
        "facecolor": _colour(given.get("fill", "none")),
        "edgecolor": _colour(given.get("stroke", "none")),
        "linewidth": 0.72 * float(given.get("stroke-width", 1)),
    }
    if tag == "text":
        size, align = _POINTS * float(given["font-size"]), _ALIGNMENTS[given["text-anchor"]]
        axes.text(*at("x", "y"), text, fontsize=size, ha=align, color=style["facecolor"], parse_math=False)
        return
    if tag == "rect":
        shape: Any = patches.Rectangle(at("x", "y"), float(given["width"]), float(given["height"]), **style)
    elif tag == "circle":
        shape = patches.Circle(at("cx", "cy"), float(given["r"]), **style)
    elif tag == "polygon":
        shape = patches.Polygon([(x, y + top) for x, y in _corners(given["points"])], **style)
    elif tag == "line":
        shape = patches.Polygon([at("x1", "y1"), at("x2", "y2")], closed=False, **style)
    else:
        assert tag == "path", tag
        shape = patches.Polygon([(x, y + top) for x, y in _path(given["d"])], closed=False, **style)
    axes.add_patch(shape)


def _corners(text: str) -> list[tuple[float, float]]:
    """The points of a polygon: x,y x,y ..."""
    pairs = (pair.split(",") for pair in text.split())
    return [(float(x), float(y)) for x, y in pairs]


def _path(text: str) -> list[tuple[float, float]]:
    """The points of a path of straight lines: Mx y, Lx y, Hx ..."""
    points: list[tuple[float, float]] = []
    for command, numbers in re.findall(r"([MLH])([-\d. ]+)", text):
        x, *y = map(float, numbers.split())
        points.append((x, points[-1][1] if command == "H" else y[0]))
    return points


def _colour(text: str) -> str:
    """A drawing's colour, which may be `var(--name, #rrggbb)`, for matplotlib."""
    return text.rpartition(" ")[2].rstrip(")")


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

    `radii`: the radius that the votes of each input show, 0 if it abstained.
    `tested`: the certificate's own radius.
    """
    figure = new_figure(_WIDTH_INCHES, _WIDTH_INCHES / 1.8)
    axes = figure.subplots()
    good = [radius if right else 0.0 for radius, right in zip(radii, correct or [True] * len(radii), strict=True)]
    ends = sorted({radius for radius in good if radius > 0.0})
    shares = [sum(radius >= end for radius in good) / max(1, len(good)) for end in ends]
    if ends:
        axes.step([0.0, *ends], [shares[0], *shares], where="pre", color=_colour(PREDICTED))
    axes.axvline(tested, color=_colour(WARM), linewidth=1.0, linestyle="--")
    axes.annotate("the radius that is tested", (tested, 1.0), (4, -12), textcoords="offset points", color=_colour(WARM))
    axes.set(xlabel=f"radius, {unit}", ylabel="certified accuracy" if correct else "certified", ylim=(0.0, 1.02))
    axes.set_xlim(left=0.0)
    axes.spines[["top", "right"]].set_visible(False)
    target = Path(path)
    figure.savefig(target, dpi=_DPI)
    return target


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
