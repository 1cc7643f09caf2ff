"""Drawings of the report as SVG texts: level and scale along the program, intervals, bars, curves and points."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from heliograph.report import svg
from heliograph.report.depth import DepthRow
from heliograph.report.facts import range_name
from heliograph.report.figures import Allocation, LayerDegree, OutputPoint
from heliograph.report.layers import is_bootstrap, runs
from heliograph.report.text import (
    Report,
    curve_cells,
    degree_cells,
    degrees_text,
    largest_error_text,
    seconds_text,
    share_text,
)

# The width of the label of a bootstrap.
_LABEL = 54.0


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
            body.append(svg.rect(x, level_top, each.count * step, scale_top + scale_height - level_top, svg.BAND))

    def panel(label: str, top: float, height: float, most: float, least: float) -> Callable[[float], float]:
        body.append(svg.text(left, top - 7, label, 12, fill=svg.MUTED, more=svg.AXIS))

        def where(value: float) -> float:
            return top + height * (1 - (value - least) / (most - least))

        for tick in svg.ticks(most):
            if tick >= least:
                body.append(svg.line(left, where(tick), width - right, where(tick)))
                body.append(svg.text(left - 8, where(tick) + 4, f"{tick:g}", 11, "end", svg.MUTED, svg.AXIS))
        return where

    on_level = panel("level", level_top, level_height, float(max(levels, 1)), 0.0)
    path, last_end = "", -1e9
    for position, row in enumerate(rows):
        x, y = left + position * step, on_level(float(row.level))
        path += f"{'M' if not position else 'L'}{svg.number(x)} {svg.number(y)}H{svg.number(x + step)}"
        if is_bootstrap(row):
            about = f"bootstrap {row.name}, to level {row.level}\n{row.layer} {row.location}"
            body.append(svg.line(x, level_top, x, level_top + level_height, svg.BOOTSTRAP, 1.6, svg.title(about)))
            # At the right edge the label is before its line.
            start = x + 4 if x + 4 + _LABEL <= width else x - 4 - _LABEL
            if start >= last_end + 4:
                body.append(svg.text(start, level_top + 11, "bootstrap", 11, fill=svg.BOOTSTRAP, more=svg.AXIS))
                last_end = start + _LABEL
    body.append(f'<path d="{path}" fill="none" stroke="{svg.LEVEL}" stroke-width="1.8"/>')
    scales = [row.scale_bits for row in rows]
    on_scale = panel("scale, bits", scale_top, scale_height, max(scales, default=1.0) * 1.1, 0.0)
    # Points, not a line: values and products alternate, so a line would fill the plot.
    size = max(1.2, min(4.0, step))
    for position, value in enumerate(scales):
        x = left + position * step
        body.append(svg.rect(x, on_scale(value) - 1.2, max(size, step), 2.4, svg.SCALE))
    last_end = -1e9
    for each in runs(rows):
        x, room = left + (each.first + each.count / 2) * step, max(each.count * step, 60.0)
        text = svg.ending(each.layer, max(4, int(room / 6.5)))
        half = 3.3 * len(text)
        x = min(max(x, half), width - half)
        if x - half > last_end + 4:
            body.append(svg.text(x, scale_top + scale_height + 18, text, 11, "middle", svg.MUTED, svg.AXIS))
            last_end = x + half
    return svg.picture(width, scale_top + scale_height + 28, body, "level and scale along the program", "levels")


def _arrow(x: float, y: float, side: float, colour: str) -> str:
    """A tip that points to the left (side -1) or the right (1)."""
    points = ((x, y - 5), (x + 9 * side, y), (x, y + 5))
    return f'<polygon points="{" ".join(f"{svg.number(a)},{svg.number(b)}" for a, b in points)}" fill="{colour}"/>'


def ranges_svg(ranges: Sequence[Mapping[str, Any]]) -> str:
    """Each polynomial's interval with the proved and the observed range of its input, on one axis by layer."""
    width, left, right, row_height = 970.0, 230.0, 224.0, 46.0
    middle, half = left + (width - left - right) / 2, (width - left - right) / 2 / 1.6
    drawn = []
    for position, entry in enumerate(ranges):
        body = []
        y = 26 + position * row_height
        low, high = float(entry["low"]), float(entry["high"])
        centre, reach = (low + high) / 2, max((high - low) / 2, 1e-300)

        def where(value: float, centre: float = centre, reach: float = reach) -> float:
            # The bar is cut beyond 1.6 times the interval.
            return middle + half * max(-1.6, min(1.6, (value - centre) / reach))

        name = svg.shortened(str(entry["layer"] or entry["function"]), 26)
        body.append(svg.text(8, y + 12, name, 12))
        body.append(svg.text(8, y + 27, svg.shortened(str(entry["location"]), 34), 10, fill=svg.MUTED))
        body.append(svg.rect(where(low), y, where(high) - where(low), 20, svg.INTERVAL, f' stroke="{svg.PREDICTED}"'))
        for key, offset, colour in (("proved", 4.0, svg.PROVED), ("observed", 12.0, svg.MEASURED)):
            found = entry.get(key)
            if found:
                x1, x2 = where(float(found[0])), where(float(found[1]))
                title = svg.title(f"{key} [{float(found[0]):.5g}, {float(found[1]):.5g}]")
                body.append(svg.rect(x1, y + offset, max(x2 - x1, 1.0), 4, colour, inner=title))
                # Anything that reaches beyond the plot ends in an arrow.
                for beyond, x, side in (
                    (float(found[0]) < centre - 1.6 * reach, x1, -1.0),
                    (float(found[1]) > centre + 1.6 * reach, x2, 1.0),
                ):
                    if beyond:
                        body.append(_arrow(x, y + offset + 2, side, colour))
        body.append(svg.text(where(low), y + 34, f"{low:.4g}", 10, "middle", svg.MUTED))
        body.append(svg.text(where(high), y + 34, f"{high:.4g}", 10, "middle", svg.MUTED))
        body.append(
            svg.text(width - right + 14, y + 12, svg.shortened(f"{entry['source']}, {degrees_text(entry)}", 30), 11)
        )
        body.append(svg.text(width - right + 14, y + 27, largest_error_text(entry), 11, fill=svg.MUTED))
        drawn.append(f'<g id="{range_name(position)}">{"".join(body)}</g>')
    body = drawn
    legend = [("polynomial's interval", svg.INTERVAL), ("proved", svg.PROVED), ("observed", svg.MEASURED)]
    x = left
    for label, colour in legend:
        body += [
            svg.rect(x, 4, 14, 10, colour, f' stroke="{svg.GRID}"'),
            svg.text(x + 20, 13, label, 11, fill=svg.MUTED),
        ]
        x += 40 + 7 * len(label)
    return svg.picture(width, 36 + max(1, len(ranges)) * row_height, body, "ranges of polynomial inputs", "ranges")


def bars_svg(
    rows: Sequence[tuple[str, float, float | None, str, str]],
    label: str,
    name: str,
    legend: tuple[str, str] = ("predicted", "measured"),
    split: Mapping[str, Mapping[str, float]] | None = None,
) -> str:
    """Bars: (label, first value, second one or None, text of each); a legend if there is a second value.

    The text is before its bar, so that a narrow screen shows it without scrolling. `split` has the parts of first values
    by label and by the kinds in `_KINDS`; what is in none of them is "other".
    """
    width, left, right = 940.0, 330.0, 20.0
    most = max([max(p, m or 0.0) for _, p, m, _, _ in rows], default=0.0) or 1.0
    both = any(measured is not None for _, _, measured, _, _ in rows)
    parts = {row[0]: _parts(row[1], None if split is None else split.get(row[0], {})) for row in rows}
    kinds = {kind: colour for found in parts.values() for kind, colour, _ in found if kind}
    # In one order, whatever the layers begin with.
    entries = [(kind, colour) for kind, colour in _KINDS.items() if kind in kinds]
    if both:
        entries = [*(entries or [(legend[0], svg.PREDICTED)]), (legend[1], svg.MEASURED)]
    height, top = (34.0 if both else 22.0), (24.0 if entries else 4.0)
    body = []
    for position, (text, _, measured, predicted_text, measured_text) in enumerate(rows):
        y, x = top + position * height, left
        body.append(svg.text(left - 90, y + (19 if both else 13), svg.ending(text, 38), 12, "end"))
        for kind, colour, value in parts[text]:
            span = (width - left - right) * value / most
            inner = svg.title(f"{kind}: {seconds_text(value / 1e3)}") if kind else ""
            body.append(svg.rect(x, y + 2, span, 13, colour, inner=inner))
            x += span
        body.append(svg.text(left - 10, y + 13, predicted_text, 11, "end", svg.MUTED))
        if measured is not None:
            span = (width - left - right) * measured / most
            body.append(svg.rect(left, y + 16, span, 13, svg.MEASURED))
            body.append(svg.text(left - 10, y + 27, measured_text, 11, "end", svg.MUTED))
    x = left
    for text, colour in entries:
        body += [svg.rect(x, 4, 14, 10, colour), svg.text(x + 20, 13, text, 11, fill=svg.MUTED)]
        x += 40 + 7 * len(text)
    return svg.picture(width, top + 6 + max(1, len(rows)) * height, body, label, name)


# The kinds of work that a layer's time is split into.
_OTHER = "other"
_KINDS = {"linear": svg.PREDICTED, "activation": svg.PROVED, "bootstrap": svg.BOOTSTRAP, _OTHER: svg.MUTED}


def _parts(value: float, split: Mapping[str, float] | None) -> list[tuple[str, str, float]]:
    """The parts of a bar: kind, colour and value; one of no kind if it is not to be split."""
    if split is None:
        return [("", svg.PREDICTED, value)]
    rest = max(0.0, value - sum(split.values()))
    # What rounding leaves is no part.
    found = {**split, _OTHER: rest if rest > 1e-6 * value else 0.0}
    return [(kind, colour, found[kind]) for kind, colour in _KINDS.items() if found.get(kind)]


def times_svg(report: Report) -> str:
    """Bars of the layers' times, split by the kind of work where that is known, with measured ones if there was a run."""
    by_layer = report.measured.get("ms_by_layer") or {}
    predicted = report.predicted_ms_by_layer()
    split = {
        row.layer: {"linear": row.linear_ms, "activation": row.activation_ms, "bootstrap": row.bootstrap_ms}
        for row in report.figures.predicted_ms_by_layer
    }
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
    rows = [row for row in rows if max(row[1], row[2] or 0.0) > least]
    return bars_svg(rows, "time by layer", "times", split=split)


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
            svg.line(left, y, width - right, y),
            svg.text(left - 8, y + 4, f"1e{exponent}", 11, "end", svg.PREDICTED, svg.AXIS),
        ]
    for tick in svg.ticks(most):
        body.append(
            svg.text(width - right + 8, on_share(tick) + 4, share_text(tick), 11, fill=svg.MEASURED, more=svg.AXIS)
        )
    for tick in svg.ticks(longest / 1e3):
        body.append(
            svg.text(across(1e3 * tick), top + height + 18, seconds_text(tick), 11, "middle", svg.MUTED, svg.AXIS)
        )
    body.append(svg.line(left, on_share(found.allowed), width - right, on_share(found.allowed), svg.WARM))
    series = (
        ([(across(p.ms), on_log(math.log10(p.loss)), p) for p in found.curve if p.loss > 0], svg.PREDICTED),
        ([(across(p.ms), on_share(p.measured), p) for p in found.curve if p.measured is not None], svg.MEASURED),
    )
    for points, colour in series:
        path = "".join(
            f"{'L' if place else 'M'}{svg.number(x)} {svg.number(y)}" for place, (x, y, _) in enumerate(points)
        )
        if path:
            body.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        for x, y, point in points:
            time, loss, share, chosen = curve_cells(point)
            title = escape(f"{time}: predicted loss {loss}, classes changed {share}{' (chosen)' * bool(chosen)}")
            ring = f' stroke="{svg.INK}" stroke-width="2"' if chosen else ""
            body.append(
                f'<circle cx="{svg.number(x)}" cy="{svg.number(y)}" r="{6 if chosen else 3}" fill="{colour}"{ring}>'
                f"<title>{title}</title></circle>"
            )
    legend = (
        ("predicted loss", svg.PREDICTED),
        ("classes changed on the samples", svg.MEASURED),
        ("allowed", svg.WARM),
    )
    x = left
    for label, colour in legend:
        body += [svg.rect(x, 4, 14, 10, colour), svg.text(x + 20, 13, label, 11, fill=svg.MUTED)]
        x += 50 + 6 * len(label)
    body.append(svg.text(x, 13, "large: chosen", 11, fill=svg.MUTED))
    return svg.picture(width, top + height + 28, body, "loss against predicted time", "allocation")


def savings_svg(report: Report) -> str:
    """The largest error of the polynomials (logarithmic) against depth: the program, and each change that saves levels.

    A line joins the points of which none is better in both.
    """
    figures = report.figures
    width, left, right, top, height = 940.0, 76.0, 40.0, 34.0, 200.0
    present = (figures.depth, figures.approximation_error, f"as compiled: depth {figures.depth}, error "
               f"{figures.approximation_error:.2g}")  # fmt: skip
    points = [present]
    points += [
        (saving.depth, saving.approximation_error, said)
        for saving, said in zip(figures.savings, report.saving_texts(), strict=True)
    ]
    least, deepest = min(depth for depth, *_ in points), max(depth for depth, *_ in points)
    low, high = log_span([error for _, error, _ in points])

    def across(depth: float) -> float:
        return left + 30 + (width - left - right - 60) * (depth - least) / max(1, deepest - least)

    def up(error: float) -> float:
        exponent = math.log10(error) if error > 0 else low
        return top + height * (high - exponent) / (high - low)

    body = []
    for exponent in range(low, high + 1, max(1, (high - low) // 6)):
        y = up(10.0**exponent)
        body.append(svg.line(left, y, width - right, y))
        body.append(svg.text(left - 8, y + 4, f"1e{exponent}", 11, "end", svg.MUTED, svg.AXIS))
    for depth in range(least, deepest + 1, max(1, -(-(deepest - least) // 12))):
        body.append(svg.text(across(depth), top + height + 18, str(depth), 11, "middle", svg.MUTED, svg.AXIS))
    front = [p for p in points if not any(q[:2] != p[:2] and q[0] <= p[0] and q[1] <= p[1] for q in points)]
    line = [f"{svg.number(across(depth))} {svg.number(up(error))}" for depth, error in sorted({p[:2] for p in front})]
    body.append(f'<path d="M{"L".join(line)}" fill="none" stroke="{svg.PREDICTED}" stroke-width="1.6"/>')
    for place, (depth, error, said) in enumerate(points):
        frame = "" if place else f' stroke="{svg.INK}" stroke-width="2"'
        body.append(svg.circle(across(depth), up(error), 4 if place else 6, svg.PREDICTED, frame, svg.title(said)))
    body.append(svg.text(left, 13, "error of the polynomials against depth", 11, fill=svg.MUTED))
    body.append(svg.text(left + 260, 13, "large: as compiled", 11, fill=svg.MUTED))
    return svg.picture(width, top + height + 28, body, "error of the polynomials against depth", "savings")


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
        body.append(svg.text(left - 10, y + 13, svg.shortened(cells[0], 32), 12, "end"))
        body.append(svg.rect(left, y + 2, span, 13, svg.PREDICTED, inner=title))
        body.append(svg.text(left + span + 6, y + 13, f"{cells[1]}{share}", 11, fill=svg.MUTED))
    return svg.picture(width, 14 + max(1, len(rows)) * height, body, "degrees by layer", "degrees")


def scatter_svg(points: Sequence[OutputPoint]) -> str:
    """Each output of the polynomials against the network's; points on the diagonal are exact."""
    size, left, top = 340.0, 64.0, 16.0
    values = [value for point in points for value in (point.network, point.program)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = 0.04 * (high - low) or 1.0
    low, high = low - margin, high + margin

    def along(value: float) -> float:
        return size * (value - low) / (high - low)

    body = [svg.line(left, top + size, left + size, top, svg.WARM)]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value, place_ = low + share * (high - low), size * share
        text = f"{value:.3g}"
        body += [
            svg.line(left, top + size - place_, left + size, top + size - place_),
            svg.text(left - 8, top + size - place_ + 4, text, 11, "end", svg.MUTED, svg.AXIS),
            svg.text(left + place_, top + size + 18, text, 11, "middle", svg.MUTED, svg.AXIS),
        ]
    for point in points:
        title = svg.title(f"network {point.network:.5g}, polynomials {point.program:.5g}")
        x, y = left + along(point.network), top + size - along(point.program)
        body.append(svg.circle(x, y, 2.6, svg.PREDICTED, inner=title))
    body.append(svg.text(left + size / 2, top + size + 36, "the network", 12, "middle", svg.MUTED, svg.AXIS))
    body.append(svg.text(left + 6, top + 12, "the polynomials", 12, "start", svg.MUTED, svg.AXIS))
    return svg.picture(
        left + size + 24, top + size + 46, body, "outputs of the polynomials against the network's", "scatter"
    )


def columns_svg(columns: Sequence[tuple[str, int]], label: str) -> str:
    """A histogram: a column for each (label, number), with the number above it."""
    step, height, top = 74.0, 110.0, 18.0
    most = max((count for _, count in columns), default=0) or 1
    body = [svg.line(0, top + height, step * len(columns), top + height)]
    for place_, (text, count) in enumerate(columns):
        x, tall = step * place_, height * count / most
        body.append(svg.rect(x + 8, top + height - tall, step - 16, tall, svg.PREDICTED))
        if count:
            body.append(svg.text(x + step / 2, top + height - tall - 5, str(count), 11, "middle", svg.MUTED))
        body.append(svg.text(x + step / 2, top + height + 16, text, 11, "middle", svg.MUTED, svg.AXIS))
    return svg.picture(max(1.0, step * len(columns)), top + height + 24, body, label)
