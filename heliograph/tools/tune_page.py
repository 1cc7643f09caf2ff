"""The points of `heliograph tune` as one page, and in a notebook: accuracy against a cost, with the options of each."""

from __future__ import annotations

import math
from html import escape

from heliograph.report import svg
from heliograph.report.html import STYLE, safe_json
from heliograph.report.markup import Html, fragment, table
from heliograph.report.text import bytes_text, seconds_text, share_text
from heliograph.tools.tune import TITLES, Point, Tuning, cells, options_text

# What a point may be compared by: its names in JSON, with labels.
_COSTS = {
    "ms": "time of a run",
    "ms_per_sample": "time of a sample",
    "evaluation_key_bytes": "keys",
    "server_peak_bytes": "memory",
}
_GAINS = {"class_agreement": "class as the model's", "relative_error": "error"}
_SCRIPT = """
const points = JSON.parse(document.getElementById("points").textContent).points;
const along = document.getElementById("along"), up = document.getElementById("up");
function show() {
  for (const plot of document.querySelectorAll(".points")) {
    plot.hidden = plot.dataset.along !== along.value || plot.dataset.up !== up.value;
  }
}
for (const dot of document.querySelectorAll("circle")) {
  dot.onclick = dot.onfocus = () => {
    document.getElementById("chosen").textContent = `hg.Options(${points[dot.dataset.place].text})`;
  };
}
along.onchange = up.onchange = show;
"""


def _gains(tuning: Tuning) -> dict[str, str]:
    """What accuracy is measured by: the class, where there are classes, and the error."""
    classes = any(point.same is not None for point in tuning.points)
    return {name: label for name, label in _GAINS.items() if classes or name != "class_agreement"}


def _value(point: Point, name: str) -> float | None:
    found: float | None = point.to_dict()[name]
    return found


def _text(name: str, value: float) -> str:
    if name.endswith("bytes"):
        return bytes_text(value)
    return seconds_text(value / 1e3) if name.startswith("ms") else share_text(value)


def points_svg(tuning: Tuning, cost: str, gain: str) -> str:
    """The points: a cost (logarithmic) against accuracy, by their names in JSON; those of the front are large."""
    width, height, left, right, bottom, top = 940.0, 420.0, 80.0, 30.0, 40.0, 20.0
    shown = [
        (place, point, math.log10(max(x, 1e-9)), y)
        for place, point in enumerate(tuning.points)
        if (x := _value(point, cost)) is not None and (y := _value(point, gain)) is not None
    ]
    low_x = min((x for *_, x, _ in shown), default=0.0)
    span_x = max((x for *_, x, _ in shown), default=0.0) - low_x or 1.0
    # Points that are all equal stand at the upper end of a tenth.
    most, low_y = max((y for *_, y in shown), default=0.0), min((y for *_, y in shown), default=0.0)
    low_y = max(0.0, most - 0.1) if low_y == most else low_y
    span_y = most - low_y or 0.1

    def across(x: float) -> float:
        return left + (width - left - right) * (x - low_x) / span_x

    def above(y: float) -> float:
        return top + (height - bottom - top) * (low_y + span_y - y) / span_y

    body = []
    for step in range(5):
        x, y = low_x + span_x * step / 4, low_y + span_y * step / 4
        body.append(svg.line(left, above(y), width, above(y)))
        body.append(svg.text(across(x), height - 8, _text(cost, 10.0**x), 11, "middle", svg.MUTED, svg.AXIS))
        body.append(svg.text(left - 10, above(y) + 4, _text(gain, y), 11, "end", svg.MUTED, svg.AXIS))
    # The front last, so that it is above the others.
    for place, point, x, y in sorted(shown, key=lambda each: each[1].front):
        said = f"{options_text(point.options)}: {_text(cost, _value(point, cost) or 0.0)}, {_text(gain, y)}"
        size, colour = (7, svg.PREDICTED) if point.front else (4, svg.MUTED)
        more = f' tabindex="0" data-place="{place}"'
        body.append(svg.circle(across(x), above(y), size, colour, more, svg.title(said)))
    label = f"{_GAINS[gain]} against {_COSTS[cost]}"
    return svg.picture(width, height, body, label, role="group")


def tuning_fragment(tuning: Tuning) -> str:
    """The view in a notebook: accuracy against the time of a run, and the table of the front."""
    gain = next(iter(_gains(tuning)))
    return fragment(
        f"{tuning.name}: what accuracy costs",
        (
            f"<p>{_GAINS[gain]} against {_COSTS['ms']}, predicted; large points are the front</p>",
            points_svg(tuning, "ms", gain),
            table(TITLES, [cells(point) for point in tuning.front]),
        ),
    )


def tuning_page(tuning: Tuning) -> str:
    """One self-contained page, which loads nothing from elsewhere."""
    given = [{**point.to_dict(), "text": options_text(point.options)} for point in tuning.points]
    gains = _gains(tuning)
    first = next(iter(_COSTS)), next(iter(gains))

    def choices(entries: dict[str, str]) -> str:
        return "".join(f"<option value={name}>{escape(label)}</option>" for name, label in entries.items())

    plots = (
        f"<div class='plot points' data-along={cost} data-up={gain}{'' if (cost, gain) == first else ' hidden'}>"
        f"{points_svg(tuning, cost, gain)}</div>"
        for cost in _COSTS
        for gain in gains
    )
    rows = [
        tuple(Html(f"<b>{escape(cell)}</b>") if point.front else cell for cell in cells(point))
        for point in tuning.points
    ]
    failed = "".join(f"<li>{escape(options_text(options))}: {escape(why)}</li>" for options, why in tuning.failed)
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return "".join(
        (
            "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>",
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name=viewport content="width=device-width, initial-scale=1"><link rel=icon href="data:,">',
            f"<title>{escape(tuning.name)}: what accuracy costs</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(tuning.name)}: what accuracy costs</h1>",
            "<p class=muted>Predicted for an idle machine; nothing was encrypted. Large points are the front: none of the "
            "others is as good in everything. Choose one to see its options.</p>",
            f"<div class=bar><label>across <select id=along>{choices(_COSTS)}</select></label>",
            f"<label>up <select id=up>{choices(gains)}</select></label></div>",
            *plots,
            "<p><code id=chosen></code></p>",
            table(TITLES, rows, "tried"),
            f"<p>Not planned:</p><ul>{failed}</ul>" if failed else "",
            f'<script type="application/json" id="points">{safe_json({"points": given})}</script>',
            f"<script>{_SCRIPT}</script></body></html>\n",
        )
    )
