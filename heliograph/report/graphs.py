"""Drawings of the report's graphs as SVG texts: every operation, or a box for each layer, levels as colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Protocol

from heliograph.report import svg
from heliograph.report.depth import DepthRow
from heliograph.report.facts import LayerFacts
from heliograph.report.layers import Box, is_bootstrap
from heliograph.texts import number_of

_BOX_WIDTH, _BOX_HEIGHT, _COLUMN, _RANK = 128, 30, 146, 50
# From few levels left (light) to many (dark), in one hue, so that the order is clear without the legend.
_LIGHT, _DARK = (222, 235, 247), (8, 64, 129)


def level_colour(level: int, levels: int) -> str:
    """The fill of a node at a level."""
    share = level / levels if levels else 0.0
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(_LIGHT, _DARK, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"


def text_colour(level: int, levels: int) -> str:
    """Dark ink on light boxes, white on dark ones."""
    return "#ffffff" if levels and level / levels > 0.5 else svg.DARK_INK


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


def _edge(start: tuple[float, float], end: tuple[float, float], thick: bool, around: float = 0.0) -> str:
    """A curve from one point down to another, or one that passes on the right at this distance."""
    (x1, y1), (x2, y2) = start, end
    bend = 0.0 if around else (y2 - y1) / 2
    points = ((x1 + around, y1 + bend), (x2 + around, y2 - bend), (x2, y2))
    curve = " ".join(f"{svg.number(x)} {svg.number(y)}" for x, y in points)
    return (
        f'<path d="M{svg.number(x1)} {svg.number(y1)}C{curve}" fill="none" '
        f'stroke="{svg.WARM if thick else svg.MUTED}" stroke-width="{2 if thick else 1}"/>'
    )


def _corners(
    places: Mapping[str, tuple[int, float]], box: tuple[float, float], step: tuple[float, float], side: float
) -> tuple[dict[str, tuple[float, float]], float, float]:
    """The left upper corner of each box, and the width and height of the picture.

    places: rank and column of each. box: width and height of one. step: from column to column, and from rank to rank.
    side: the margin at the left and at the right; above and below it is 20.
    """
    ranks, columns = zip(*places.values(), strict=True)
    left = min(columns)
    corners = {name: (side + (column - left) * step[0], 20 + rank * step[1]) for name, (rank, column) in places.items()}
    return corners, (max(columns) - left) * step[0] + box[0] + 2 * side, max(ranks) * step[1] + box[1] + 40


def graph_svg(rows: Sequence[DepthRow], levels: int) -> str:
    """The graph, top to bottom; the fill shows the level, a thick frame the critical path."""
    if not rows:
        return svg.picture(200, 40, [svg.text(10, 24, "no nodes")], "empty graph", "graph")
    corners, width, height = _corners(place(rows), (_BOX_WIDTH, _BOX_HEIGHT), (_COLUMN, _RANK), 20)
    critical = {row.name for row in rows if row.critical}
    edges, boxes = [], []
    for row in rows:
        x, y = corners[row.name]
        for operand in row.inputs:
            ox, oy = corners[operand]
            x1, y1, x2, y2 = ox + _BOX_WIDTH / 2, oy + _BOX_HEIGHT, x + _BOX_WIDTH / 2, y
            edges.append(_edge((x1, y1), (x2, y2), operand in critical and row.name in critical))
        frame = f' rx="4" stroke="{svg.WARM if row.critical else svg.MUTED}" stroke-width="{2 if row.critical else 1}"'
        fill, ink = level_colour(row.level, levels), text_colour(row.level, levels)
        if is_bootstrap(row):
            fill, ink = svg.BOOTSTRAP, "#ffffff"
        title = svg.title(
            f"{row.name} = {row.op}: level {row.level}, scale {row.scale_bits:.2f} bits, depth {row.depth}\n"
            f"{row.layer} {row.location}"
        )
        middle, about = x + _BOX_WIDTH / 2, svg.shortened(f"L{row.level} {row.layer or row.location}", 20)
        boxes.append(
            f"<g>{title}{svg.rect(x, y, _BOX_WIDTH, _BOX_HEIGHT, fill, frame)}"
            + svg.text(middle, y + 13, f"{row.name} {row.op}", 11, "middle", ink)
            + svg.text(middle, y + 25, about, 9, "middle", ink)
            + "</g>"
        )
    return svg.picture(width, height, [*edges, *boxes], "graph of the program, levels as colour", "graph")


def layers_svg(boxes: Sequence[Box], levels: int, facts: LayerFacts | None = None) -> str:
    """The graph with a box for each layer, top to bottom: its name, and the levels at which it begins and ends.

    With `facts`, what is known of a layer is shown where the pointer rests on it, and it links to the row of its range.
    """
    if not boxes:
        return svg.picture(200, 40, [svg.text(10, 24, "no layers")], "empty graph", "layers")
    box_width, box_height, column_width, rank_height = 290.0, 28.0, 340.0, 44.0
    corners, width, height = _corners(place(boxes), (box_width, box_height), (column_width, rank_height), 40)
    edges, drawn = [], []
    for box in boxes:
        x, y = corners[box.name]
        for operand in box.inputs:
            ox, oy = corners[operand]
            start, end, around = (ox + box_width / 2, oy + box_height), (x + box_width / 2, y), 0.0
            if ox == x and y > oy + rank_height:
                # Go around the boxes between them.
                start, end, around = (x + box_width, oy + box_height / 2), (x + box_width, y + box_height / 2), 36.0
            edges.append(_edge(start, end, operand in box.critical_inputs, around))
        fill, ink = level_colour(box.high, levels), text_colour(box.high, levels)
        name = box.layer
        if box.bootstraps:
            fill, ink = svg.BOOTSTRAP, "#ffffff"
            name = number_of(box.bootstraps, "bootstrap")
        spent = f"level {box.high}" if box.high == box.low else f"level {box.high} to {box.low}"
        what, link = [f"{name}: {spent}, {number_of(box.operations, 'operation')}", box.location], ""
        if facts is not None:
            what += facts.lines(box)
            link = facts.link(box)
        frame = f' rx="4" stroke="{svg.WARM if box.critical else svg.MUTED}" stroke-width="{2 if box.critical else 1}"'
        about = "\n".join(what)
        shown = (
            f"<g>{svg.title(about)}{svg.rect(x, y, box_width, box_height, fill, frame)}"
            + svg.text(x + 10, y + 18, svg.ending(name, 28), 12, "start", ink)
            + svg.text(x + box_width - 10, y + 18, spent, 11, "end", ink)
            + "</g>"
        )
        drawn.append(f'<a href="{link}" aria-label="{escape(what[0])}; its range">{shown}</a>' if link else shown)
    return svg.picture(width, height, [*edges, *drawn], "graph of the layers, levels as colour", "layers", "group")


def legend_svg(levels: int, bootstraps: bool = False) -> str:
    """The legend: the colours of the levels, and the colour of bootstraps if there are any."""
    shown = range(levels, -1, -1) if levels <= 12 else range(levels, -1, -max(1, -(-levels // 10)))
    body = [svg.text(0, 15, "level", 12, fill=svg.MUTED, more=svg.AXIS)]
    x = 44.0
    for level in shown:
        body.append(svg.rect(x, 2, 26, 18, level_colour(level, levels), f' stroke="{svg.GRID}"'))
        body.append(svg.text(x + 13, 15, str(level), 11, "middle", text_colour(level, levels), more=svg.AXIS))
        x += 28
    body.append(svg.rect(x + 14, 3, 24, 16, "none", f' rx="3" stroke="{svg.WARM}" stroke-width="2"'))
    body.append(svg.text(x + 44, 15, "critical path", 12, fill=svg.MUTED, more=svg.AXIS))
    x += 130
    if bootstraps:
        body.append(svg.rect(x, 3, 24, 16, svg.BOOTSTRAP, ' rx="3"'))
        body.append(svg.text(x + 30, 15, "bootstrap", 12, fill=svg.MUTED, more=svg.AXIS))
        x += 100
    return svg.picture(x, 22, body, "colours of the levels")
