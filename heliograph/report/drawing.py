"""Drawings of the report as SVG texts: the graph by levels, level and scale along the program, intervals, bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Protocol

from heliograph.report.depth import DepthRow
from heliograph.report.figures import Allocation, LayerDegree, OutputPoint
from heliograph.report.layers import Box, is_bootstrap, runs
from heliograph.report.text import (
    Report,
    curve_cells,
    degree_cells,
    degrees_text,
    largest_error_text,
    seconds_text,
    share_text,
)
from heliograph.texts import number_of

_BOX_WIDTH, _BOX_HEIGHT, _COLUMN, _RANK = 128, 30, 146, 50
# From few levels left (light) to many (dark), in one hue, so that the order is clear without the legend.
_LIGHT, _DARK = (222, 235, 247), (8, 64, 129)
# Colours for standalone pictures; for dark screens the page redefines the same names (html.py).
INK, MUTED, GRID = "#1f2933", "#5c6b7a", "#d8dee6"
PREDICTED, MEASURED, WARM = "#2c6fbb", "#d9822b", "#b5452c"
PROVED, INTERVAL, BOOTSTRAP, LEVEL, SCALE = "#2f7d5b", "#e4ecf5", "#7b3fa0", "#0b5394", "#2f7d5b"


def _themed(name: str, colour: str) -> str:
    return f"var(--{name}, {colour})"


_INK, _MUTED, _GRID = _themed("ink", INK), _themed("muted", MUTED), _themed("grid", GRID)
_PREDICTED, _MEASURED, _WARM = _themed("predicted", PREDICTED), _themed("measured", MEASURED), _themed("warm", WARM)
_PROVED, _INTERVAL, _BOOTSTRAP = (
    _themed("proved", PROVED),
    _themed("interval", INTERVAL),
    _themed("bootstrap", BOOTSTRAP),
)
_LEVEL, _SCALE, _BAND = _themed("level", LEVEL), _themed("scale", SCALE), _themed("band", "#f4f6f9")
# Marks text on an axis, which is not a figure of the report.
_AXIS = ' class="axis"'


def number(value: float) -> str:
    """A coordinate as a short text."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def level_colour(level: int, levels: int) -> str:
    """The fill of a node at a level."""
    share = level / levels if levels else 0.0
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(_LIGHT, _DARK, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"


def text_colour(level: int, levels: int) -> str:
    """Dark ink on light boxes, white on dark ones."""
    return "#ffffff" if levels and level / levels > 0.5 else INK


def _text(
    x: float, y: float, text: str, size: int = 12, anchor: str = "start", fill: str = _INK, more: str = ""
) -> str:
    return (
        f'<text x="{number(x)}" y="{number(y)}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{more}>'
        f"{escape(text)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str = _GRID, width: float = 1.0) -> str:
    return (
        f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" '
        f'stroke="{stroke}" stroke-width="{number(width)}"/>'
    )


def _rect(x: float, y: float, width: float, height: float, fill: str, more: str = "", inner: str = "") -> str:
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(max(width, 0.0))}" height="{number(height)}" '
        f'fill="{fill}"{more}>{inner}</rect>'
    )


def _svg(width: float, height: float, body: Sequence[str], label: str, name: str = "") -> str:
    identity = f' id="{escape(name)}"' if name else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg"{identity} width="{number(width)}" height="{number(height)}" '
        f'viewBox="0 0 {number(width)} {number(height)}" role="img" aria-label="{escape(label)}">'
        + "".join(body)
        + "</svg>"
    )


def ending(text: str, most: int) -> str:
    """The text, without its beginning if it is too long: the end of a layer's path says more."""
    return text if len(text) <= most else f"…{text[len(text) - most + 1 :]}"


def shortened(text: str, most: int) -> str:
    """The text, without its middle if it is too long."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


class Placed(Protocol):
    """An item of a graph: its name, and the names of the items that it reads."""

    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> tuple[str, ...]: ...


def place(rows: Sequence[Placed]) -> dict[str, tuple[int, float]]:
    """Rank (longest path from an input) and column of each node; columns follow the mean of the operands' columns."""
    rank: dict[str, int] = {}
    for row in rows:
        rank[row.name] = max((rank[name] + 1 for name in row.inputs), default=0)
    by_rank: dict[int, list[Placed]] = {}
    for row in rows:
        by_rank.setdefault(rank[row.name], []).append(row)
    column: dict[str, float] = {}
    for level in sorted(by_rank):
        members = by_rank[level]
        wanted = {
            row.name: sum(column[name] for name in row.inputs) / len(row.inputs) if row.inputs else 0.0
            for row in members
        }
        members.sort(key=lambda row: wanted[row.name])
        centre = sum(wanted.values()) / len(wanted)
        for position, row in enumerate(members):
            column[row.name] = centre + position - (len(members) - 1) / 2
    return {row.name: (rank[row.name], column[row.name]) for row in rows}


def graph_svg(rows: Sequence[DepthRow], levels: int) -> str:
    """The graph, top to bottom; the fill shows the level, a thick frame the critical path."""
    if not rows:
        return _svg(200, 40, [_text(10, 24, "no nodes")], "empty graph", "graph")
    places = place(rows)
    left = min(column for _, column in places.values())
    width = (max(column for _, column in places.values()) - left) * _COLUMN + _BOX_WIDTH + 40
    height = max(rank for rank, _ in places.values()) * _RANK + _BOX_HEIGHT + 40

    def corner(name: str) -> tuple[float, float]:
        rank, column = places[name]
        return 20 + (column - left) * _COLUMN, 20 + rank * _RANK

    critical = {row.name for row in rows if row.critical}
    edges, boxes = [], []
    for row in rows:
        x, y = corner(row.name)
        for operand in row.inputs:
            ox, oy = corner(operand)
            x1, y1, x2, y2 = ox + _BOX_WIDTH / 2, oy + _BOX_HEIGHT, x + _BOX_WIDTH / 2, y
            bend = (y2 - y1) / 2
            thick = operand in critical and row.name in critical
            edges.append(
                f'<path d="M{number(x1)} {number(y1)}C{number(x1)} {number(y1 + bend)} {number(x2)} {number(y2 - bend)} '
                f'{number(x2)} {number(y2)}" fill="none" stroke="{_WARM if thick else _MUTED}" '
                f'stroke-width="{2 if thick else 1}"/>'
            )
        frame = f' rx="4" stroke="{_WARM if row.critical else _MUTED}" stroke-width="{2 if row.critical else 1}"'
        fill, ink = level_colour(row.level, levels), text_colour(row.level, levels)
        if is_bootstrap(row):
            fill, ink = _BOOTSTRAP, "#ffffff"
        title = (
            f"<title>{escape(row.name)} = {escape(row.op)}: level {row.level}, scale {row.scale_bits:.2f} bits, depth "
            f"{row.depth}\n{escape(row.layer)} {escape(row.location)}</title>"
        )
        boxes.append(
            f"<g>{title}{_rect(x, y, _BOX_WIDTH, _BOX_HEIGHT, fill, frame)}"
            + _text(x + _BOX_WIDTH / 2, y + 13, f"{row.name} {row.op}", 11, "middle", ink)
            + _text(
                x + _BOX_WIDTH / 2, y + 25, shortened(f"L{row.level} {row.layer or row.location}", 20), 9, "middle", ink
            )
            + "</g>"
        )
    return _svg(width, height, [*edges, *boxes], "graph of the program, levels as colour", "graph")


def layers_svg(boxes: Sequence[Box], levels: int) -> str:
    """The graph with a box for each layer, top to bottom: its name, and the levels at which it begins and ends."""
    if not boxes:
        return _svg(200, 40, [_text(10, 24, "no layers")], "empty graph", "layers")
    box_width, box_height, column_width, rank_height = 290.0, 28.0, 340.0, 44.0
    places = place(boxes)
    left = min(column for _, column in places.values())
    width = (max(column for _, column in places.values()) - left) * column_width + box_width + 80
    height = max(rank for rank, _ in places.values()) * rank_height + box_height + 40

    def corner(name: str) -> tuple[float, float]:
        rank, column = places[name]
        return 40 + (column - left) * column_width, 20 + rank * rank_height

    edges, drawn = [], []
    for box in boxes:
        x, y = corner(box.name)
        for operand in box.inputs:
            ox, oy = corner(operand)
            thick = operand in box.critical_inputs
            x1, y1, x2, y2 = ox + box_width / 2, oy + box_height, x + box_width / 2, y
            bend = (y2 - y1) / 2
            if x1 == x2 and places[box.name][0] > places[operand][0] + 1:
                # Go around the boxes between them.
                x1 = x2 = x + box_width
                y1, y2 = oy + box_height / 2, y + box_height / 2
                path = f"M{number(x1)} {number(y1)}C{number(x1 + 36)} {number(y1)} {number(x2 + 36)} {number(y2)}"
            else:
                path = f"M{number(x1)} {number(y1)}C{number(x1)} {number(y1 + bend)} {number(x2)} {number(y2 - bend)}"
            edges.append(
                f'<path d="{path} {number(x2)} {number(y2)}" fill="none" stroke="{_WARM if thick else _MUTED}" '
                f'stroke-width="{2 if thick else 1}"/>'
            )
        fill, ink = level_colour(box.high, levels), text_colour(box.high, levels)
        name = box.layer
        if box.bootstraps:
            fill, ink = _BOOTSTRAP, "#ffffff"
            name = number_of(box.bootstraps, "bootstrap")
        spent = f"level {box.high}" if box.high == box.low else f"level {box.high} to {box.low}"
        what = f"{name}: {spent}, {box.operations} operations"
        title = f"<title>{escape(what)}\n{escape(box.location)}</title>"
        frame = f' rx="4" stroke="{_WARM if box.critical else _MUTED}" stroke-width="{2 if box.critical else 1}"'
        drawn.append(
            f"<g>{title}{_rect(x, y, box_width, box_height, fill, frame)}"
            + _text(x + 10, y + 18, ending(name, 28), 12, "start", ink)
            + _text(x + box_width - 10, y + 18, spent, 11, "end", ink)
            + "</g>"
        )
    return _svg(width, height, [*edges, *drawn], "graph of the layers, levels as colour", "layers")


def legend_svg(levels: int, bootstraps: bool = False) -> str:
    """The legend: the colours of the levels, and the colour of bootstraps if there are any."""
    shown = range(levels, -1, -1) if levels <= 12 else range(levels, -1, -max(1, -(-levels // 10)))
    body = [_text(0, 15, "level", 12, fill=_MUTED, more=_AXIS)]
    x = 44.0
    for level in shown:
        body.append(_rect(x, 2, 26, 18, level_colour(level, levels), f' stroke="{_GRID}"'))
        body.append(_text(x + 13, 15, str(level), 11, "middle", text_colour(level, levels), more=_AXIS))
        x += 28
    body.append(_rect(x + 14, 3, 24, 16, "none", f' rx="3" stroke="{_WARM}" stroke-width="2"'))
    body.append(_text(x + 44, 15, "critical path", 12, fill=_MUTED, more=_AXIS))
    x += 130
    if bootstraps:
        body.append(_rect(x, 3, 24, 16, _BOOTSTRAP, ' rx="3"'))
        body.append(_text(x + 30, 15, "bootstrap", 12, fill=_MUTED, more=_AXIS))
        x += 100
    return _svg(x, 22, body, "colours of the levels")


def levels_svg(rows: Sequence[DepthRow], levels: int) -> str:
    """Level and scale of each operation in program order, two plots over one axis; layers are bands, bootstraps lines."""
    width, left, right = 940.0, 56.0, 16.0
    span = width - left - right
    step = span / max(1, len(rows))
    body = []
    level_top, level_height, scale_top, scale_height = 24.0, 170.0, 226.0, 80.0
    for place_, each in enumerate(runs(rows)):
        if place_ % 2:
            x = left + each.first * step
            body.append(_rect(x, level_top, each.count * step, scale_top + scale_height - level_top, _BAND))

    def panel(label: str, top: float, height: float, most: float, least: float) -> Callable[[float], float]:
        body.append(_text(left, top - 7, label, 12, fill=_MUTED, more=_AXIS))

        def where(value: float) -> float:
            return top + height * (1 - (value - least) / (most - least))

        for tick in _ticks(most):
            if tick >= least:
                body.append(_line(left, where(tick), width - right, where(tick)))
                body.append(_text(left - 8, where(tick) + 4, f"{tick:g}", 11, "end", _MUTED, _AXIS))
        return where

    on_level = panel("level", level_top, level_height, float(max(levels, 1)), 0.0)
    path = ""
    for position, row in enumerate(rows):
        x, y = left + position * step, on_level(float(row.level))
        path += f"{'M' if not position else 'L'}{number(x)} {number(y)}H{number(x + step)}"
        if is_bootstrap(row):
            body.append(_line(x, level_top, x, level_top + level_height, _BOOTSTRAP, 1.6))
            body.append(_text(x + 4, level_top + 11, "bootstrap", 11, fill=_BOOTSTRAP, more=_AXIS))
    body.append(f'<path d="{path}" fill="none" stroke="{_LEVEL}" stroke-width="1.8"/>')
    scales = [row.scale_bits for row in rows]
    on_scale = panel("scale, bits", scale_top, scale_height, max(scales, default=1.0) * 1.1, 0.0)
    # Points, not a line: values and products alternate, so a line would fill the plot.
    size = max(1.2, min(4.0, step))
    for position, value in enumerate(scales):
        x = left + position * step
        body.append(_rect(x, on_scale(value) - 1.2, max(size, step), 2.4, _SCALE))
    last_end = -1e9
    for each in runs(rows):
        x, room = left + (each.first + each.count / 2) * step, max(each.count * step, 60.0)
        text = ending(each.layer, max(4, int(room / 6.5)))
        half = 3.3 * len(text)
        x = min(max(x, half), width - half)
        if x - half > last_end + 4:
            body.append(_text(x, scale_top + scale_height + 18, text, 11, "middle", _MUTED, _AXIS))
            last_end = x + half
    return _svg(width, scale_top + scale_height + 28, body, "level and scale along the program", "levels")


def _ticks(most: float) -> list[float]:
    """At most six round numbers from 0."""
    if most <= 0:
        return [0.0]
    step = 10.0 ** math.floor(math.log10(most))
    for factor in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0):
        if most / (step * factor) <= 6:
            step *= factor
            break
    return [i * step for i in range(int(most / step + 1e-9) + 1)]


def _arrow(x: float, y: float, side: float, colour: str) -> str:
    """A tip that points to the left (side -1) or the right (1)."""
    points = ((x, y - 5), (x + 9 * side, y), (x, y + 5))
    return f'<polygon points="{" ".join(f"{number(a)},{number(b)}" for a, b in points)}" fill="{colour}"/>'


def ranges_svg(ranges: Sequence[Mapping[str, Any]]) -> str:
    """Each polynomial's interval with the proved and the observed range of its input, on one axis by layer."""
    width, left, right, row_height = 970.0, 230.0, 224.0, 46.0
    middle, half = left + (width - left - right) / 2, (width - left - right) / 2 / 1.6
    body = []
    for position, entry in enumerate(ranges):
        y = 26 + position * row_height
        low, high = float(entry["low"]), float(entry["high"])
        centre, reach = (low + high) / 2, max((high - low) / 2, 1e-300)

        def where(value: float, centre: float = centre, reach: float = reach) -> float:
            # The bar is cut beyond 1.6 times the interval.
            return middle + half * max(-1.6, min(1.6, (value - centre) / reach))

        name = shortened(str(entry["layer"] or entry["function"]), 26)
        body.append(_text(8, y + 12, name, 12))
        body.append(_text(8, y + 27, shortened(str(entry["location"]), 34), 10, fill=_MUTED))
        body.append(_rect(where(low), y, where(high) - where(low), 20, _INTERVAL, f' stroke="{_PREDICTED}"'))
        for key, offset, colour in (("proved", 4.0, _PROVED), ("observed", 12.0, _MEASURED)):
            found = entry.get(key)
            if found:
                x1, x2 = where(float(found[0])), where(float(found[1]))
                title = f"<title>{key} [{float(found[0]):.5g}, {float(found[1]):.5g}]</title>"
                body.append(_rect(x1, y + offset, max(x2 - x1, 1.0), 4, colour, inner=title))
                # Anything that reaches beyond the plot ends in an arrow.
                for beyond, x, side in (
                    (float(found[0]) < centre - 1.6 * reach, x1, -1.0),
                    (float(found[1]) > centre + 1.6 * reach, x2, 1.0),
                ):
                    if beyond:
                        body.append(_arrow(x, y + offset + 2, side, colour))
        body.append(_text(where(low), y + 34, f"{low:.4g}", 10, "middle", _MUTED))
        body.append(_text(where(high), y + 34, f"{high:.4g}", 10, "middle", _MUTED))
        body.append(_text(width - right + 14, y + 12, shortened(f"{entry['source']}, {degrees_text(entry)}", 30), 11))
        body.append(_text(width - right + 14, y + 27, largest_error_text(entry), 11, fill=_MUTED))
    legend = [("polynomial's interval", _INTERVAL), ("proved", _PROVED), ("observed", _MEASURED)]
    x = left
    for label, colour in legend:
        body += [_rect(x, 4, 14, 10, colour, f' stroke="{_GRID}"'), _text(x + 20, 13, label, 11, fill=_MUTED)]
        x += 40 + 7 * len(label)
    return _svg(width, 36 + max(1, len(ranges)) * row_height, body, "ranges of polynomial inputs", "ranges")


def bars_svg(
    rows: Sequence[tuple[str, float, float | None, str, str]],
    label: str,
    name: str,
    legend: tuple[str, str] = ("predicted", "measured"),
) -> str:
    """Bars: (label, first value, second one or None, text of each); a legend if there is a second value.

    The text is before its bar, so that a narrow screen shows it without scrolling.
    """
    width, left, right = 940.0, 330.0, 20.0
    most = max([max(p, m or 0.0) for _, p, m, _, _ in rows], default=0.0) or 1.0
    both = any(measured is not None for _, _, measured, _, _ in rows)
    height, top = (34.0, 24.0) if both else (22.0, 4.0)
    body = []
    for position, (text, predicted, measured, predicted_text, measured_text) in enumerate(rows):
        y = top + position * height
        body.append(_text(left - 90, y + (19 if both else 13), ending(text, 38), 12, "end"))
        span = (width - left - right) * predicted / most
        body.append(_rect(left, y + 2, span, 13, _PREDICTED))
        body.append(_text(left - 10, y + 13, predicted_text, 11, "end", _MUTED))
        if measured is not None:
            span = (width - left - right) * measured / most
            body.append(_rect(left, y + 16, span, 13, _MEASURED))
            body.append(_text(left - 10, y + 27, measured_text, 11, "end", _MUTED))
    if both:
        body += [_rect(left, 4, 14, 10, _PREDICTED), _text(left + 20, 13, legend[0], 11, fill=_MUTED)]
        body += [_rect(left + 100, 4, 14, 10, _MEASURED), _text(left + 120, 13, legend[1], 11, fill=_MUTED)]
    return _svg(width, top + 6 + max(1, len(rows)) * height, body, label, name)


def times_svg(report: Report) -> str:
    """Bars of the layers' times, with measured ones if the report has a run."""
    by_layer = report.measured.get("ms_by_layer") or {}
    predicted = report.predicted_ms_by_layer()
    rows = [
        (
            layer,
            float(predicted.get(layer, 0.0)),
            float(by_layer[layer]) if layer in by_layer else None,
            seconds_text(predicted.get(layer, 0.0) / 1e3),
            seconds_text(by_layer[layer] / 1e3) if layer in by_layer else "",
        )
        for layer in dict.fromkeys((*predicted, *by_layer))
    ]
    # Anything too short to be seen has no bar.
    least = 1e-3 * max((max(row[1], row[2] or 0.0) for row in rows), default=0.0)
    return bars_svg([row for row in rows if max(row[1], row[2] or 0.0) > least], "time by layer", "times")


def log_span(values: Sequence[float]) -> tuple[int, int]:
    """The exponents of the powers of ten around the positive values, at least one apart; other values are ignored."""
    positive = [value for value in values if value > 0]
    low = math.floor(math.log10(min(positive, default=1.0)))
    return low, max(low + 1, math.ceil(math.log10(max(positive, default=1.0))))


def curve_svg(found: Allocation) -> str:
    """Predicted loss (left axis, logarithmic) and measured share of changed classes (right) against predicted time."""
    width, left, right, top, height = 940.0, 76.0, 76.0, 34.0, 240.0
    span = width - left - right
    # An untrusted file may hold any number: no axis is shorter than a microsecond, or a millionth.
    longest = max([1e-3, *(point.ms for point in found.curve)])
    low, high = log_span([point.loss for point in found.curve])
    changed = [found.allowed, *(point.measured for point in found.curve if point.measured is not None)]
    most = 1.1 * max(1e-6, *changed)

    def across(ms: float) -> float:
        return left + span * ms / longest

    def on_log(exponent: float) -> float:
        return top + height * (high - exponent) / (high - low)

    def on_share(value: float) -> float:
        return top + height * (1 - value / most)

    body = []
    for exponent in range(low, high + 1, max(1, (high - low) // 6)):
        y = on_log(exponent)
        body += [
            _line(left, y, width - right, y),
            _text(left - 8, y + 4, f"1e{exponent}", 11, "end", _PREDICTED, _AXIS),
        ]
    for tick in _ticks(most):
        body.append(_text(width - right + 8, on_share(tick) + 4, share_text(tick), 11, fill=_MEASURED, more=_AXIS))
    for tick in _ticks(longest / 1e3):
        body.append(_text(across(1e3 * tick), top + height + 18, seconds_text(tick), 11, "middle", _MUTED, _AXIS))
    body.append(_line(left, on_share(found.allowed), width - right, on_share(found.allowed), _WARM))
    series = (
        ([(across(p.ms), on_log(math.log10(p.loss)), p) for p in found.curve if p.loss > 0], _PREDICTED),
        ([(across(p.ms), on_share(p.measured), p) for p in found.curve if p.measured is not None], _MEASURED),
    )
    for points, colour in series:
        path = "".join(f"{'L' if place else 'M'}{number(x)} {number(y)}" for place, (x, y, _) in enumerate(points))
        if path:
            body.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        for x, y, point in points:
            time, loss, share, chosen = curve_cells(point)
            title = escape(f"{time}: predicted loss {loss}, classes changed {share}{' (chosen)' * bool(chosen)}")
            ring = f' stroke="{_INK}" stroke-width="2"' if chosen else ""
            body.append(
                f'<circle cx="{number(x)}" cy="{number(y)}" r="{6 if chosen else 3}" fill="{colour}"{ring}>'
                f"<title>{title}</title></circle>"
            )
    legend = (("predicted loss", _PREDICTED), ("classes changed on the samples", _MEASURED), ("allowed", _WARM))
    x = left
    for label, colour in legend:
        body += [_rect(x, 4, 14, 10, colour), _text(x + 20, 13, label, 11, fill=_MUTED)]
        x += 50 + 6 * len(label)
    body.append(_text(x, 13, "large: chosen", 11, fill=_MUTED))
    return _svg(width, top + height + 28, body, "loss against predicted time", "allocation")


def degrees_svg(rows: Sequence[LayerDegree]) -> str:
    """The degree of each layer as a bar, with its share of the predicted loss."""
    width, left, right, height = 940.0, 230.0, 200.0, 22.0
    most = max((row.degree for row in rows), default=0) or 1
    body = []
    for position, row in enumerate(rows):
        y = 8 + position * height
        cells = degree_cells(row)
        span = (width - left - right) * row.degree / most
        share = "" if row.share is None else f", {cells[4]} of the loss"
        title = f"<title>{escape(f'{cells[0]} ({row.location}): degree {cells[1]}, error {cells[2]}')}</title>"
        body.append(_text(left - 10, y + 13, shortened(cells[0], 32), 12, "end"))
        body.append(_rect(left, y + 2, span, 13, _PREDICTED, inner=title))
        body.append(_text(left + span + 6, y + 13, f"{cells[1]}{share}", 11, fill=_MUTED))
    return _svg(width, 14 + max(1, len(rows)) * height, body, "degrees by layer", "degrees")


def scatter_svg(points: Sequence[OutputPoint]) -> str:
    """Each output of the polynomials against the network's; points on the diagonal are exact."""
    size, left, top = 340.0, 64.0, 16.0
    values = [value for point in points for value in (point.network, point.program)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = 0.04 * (high - low) or 1.0
    low, high = low - margin, high + margin

    def along(value: float) -> float:
        return size * (value - low) / (high - low)

    body = [_line(left, top + size, left + size, top, _WARM)]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value, place_ = low + share * (high - low), size * share
        text = f"{value:.3g}"
        body += [
            _line(left, top + size - place_, left + size, top + size - place_),
            _text(left - 8, top + size - place_ + 4, text, 11, "end", _MUTED, _AXIS),
            _text(left + place_, top + size + 18, text, 11, "middle", _MUTED, _AXIS),
        ]
    for point in points:
        title = f"<title>network {point.network:.5g}, polynomials {point.program:.5g}</title>"
        body.append(
            f'<circle cx="{number(left + along(point.network))}" cy="{number(top + size - along(point.program))}" r="2.6" '
            f'fill="{_PREDICTED}">{title}</circle>'
        )
    body.append(_text(left + size / 2, top + size + 36, "the network", 12, "middle", _MUTED, _AXIS))
    body.append(_text(left + 6, top + 12, "the polynomials", 12, "start", _MUTED, _AXIS))
    return _svg(left + size + 24, top + size + 46, body, "outputs of the polynomials against the network's", "scatter")


def columns_svg(columns: Sequence[tuple[str, int]], label: str) -> str:
    """A histogram: a column for each (label, number), with the number above it."""
    step, height, top = 74.0, 110.0, 18.0
    most = max((count for _, count in columns), default=0) or 1
    body = [_line(0, top + height, step * len(columns), top + height)]
    for place_, (text, count) in enumerate(columns):
        x, tall = step * place_, height * count / most
        body.append(_rect(x + 8, top + height - tall, step - 16, tall, _PREDICTED))
        if count:
            body.append(_text(x + step / 2, top + height - tall - 5, str(count), 11, "middle", _MUTED))
        body.append(_text(x + step / 2, top + height + 16, text, 11, "middle", _MUTED, _AXIS))
    return _svg(max(1.0, step * len(columns)), top + height + 24, body, label)
