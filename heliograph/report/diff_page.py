"""Two artifacts side by side as one self-contained page: what changed, and in which layers."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from heliograph.report.compiled import Compiled
from heliograph.report.depth import artifact_depth
from heliograph.report.diff import Diff, diff, layer_changes
from heliograph.report.drawing import bars_svg, degrees_svg, levels_svg, scatter_svg
from heliograph.report.html import STYLE
from heliograph.report.markup import table
from heliograph.report.text import seconds_text, share_text

_STYLE = """
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 24px; }
@media (max-width: 700px) { .sides { grid-template-columns: 1fr; } }
.sides svg { max-width: 100%; height: auto; }
"""
# The figures of the first sentence, by their labels in the table.
_FIRST = ("evaluation", "server's memory", "evaluation keys", "output error")


def _sentence(found: Diff) -> str:
    """The changes that decide, in one sentence."""
    if not found.figures and not found.layers:
        return "Both cost the same."
    ratios = {name: ratio for name, _, _, ratio in found.figures}
    parts = [
        f"{name} the same" if name not in ratios else f"{name} {ratios[name]:.2f} times"
        for name in _FIRST
        if ratios.get(name, 1.0) is not None
    ]
    return f"After against before: {', '.join(parts)}."


def _time_bars(layers: tuple[Mapping[str, Any], ...]) -> str:
    rows = []
    for layer in layers:
        before, after = layer["predicted_ms_before"] or 0.0, layer["predicted_ms_after"] or 0.0
        if before != after:
            rows.append((str(layer["layer"]), before, after, seconds_text(before / 1e3), seconds_text(after / 1e3)))
    if not rows:
        return "<p>No layer takes another time.</p>"
    return f"<div class=plot>{bars_svg(rows, 'time by layer', 'times', ('before', 'after'))}</div>"


def _classes(artifact: Compiled) -> str:
    agreement = artifact.report.figures.class_agreement
    if agreement is None:
        return "-"
    return f"{share_text(agreement.agree / max(1, agreement.samples))} of {agreement.samples}"


def diff_page(before: Compiled, after: Compiled, names: tuple[str, str] | None = None) -> str:
    """The page; `names` are the artifacts' names on it, by default their own."""
    found = diff(before, after)
    titles = names or (before.name, after.name)
    sides = (before, after)
    rows = [(name, old, new, "" if ratio is None else f"{ratio:.2f}") for name, old, new, ratio in found.figures]
    if _classes(before) != _classes(after):
        rows.append(("samples keep their class", _classes(before), _classes(after), ""))
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

    def pair(name: str, drawn: list[str], missing: str) -> str:
        """Two drawings, each under its artifact's name."""
        inner = "".join(
            f"<div><p class=muted>{escape(title)}</p>{drawing or f'<p>{missing}</p>'}</div>"
            for title, drawing in zip(titles, drawn, strict=True)
        )
        return f"<h2>{name}</h2><div class=sides>{inner}</div>"

    return "".join(
        (
            "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>",
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name=viewport content="width=device-width, initial-scale=1"><link rel=icon href="data:,">',
            f"<title>{escape(titles[0])} and {escape(titles[1])}</title><style>{STYLE}{_STYLE}</style></head><body>",
            f"<h1>{escape(titles[0])} and {escape(titles[1])}</h1>",
            f"<p class=verdict>{escape(_sentence(found))}</p>",
            "<p class=muted>Predicted for an idle machine; figures that are equal are left out.</p>",
            "<h2>Figures</h2>",
            f"<div class=plot>{table(('', 'before', 'after', 'ratio'), rows)}</div>"
            if rows
            else "<p>All are equal.</p>",
            "<h2>Time by layer</h2>",
            _time_bars(found.layers),
            "<h2>Layers</h2>",
            table(("layer", "changes"), [(str(layer["layer"]), layer_changes(layer)) for layer in found.layers])
            if found.layers
            else "<p>No layer changed.</p>",
            *(
                f"<h2>Level and scale, {when}: {escape(title)}</h2>"
                f"<div class=plot>{levels_svg(artifact_depth(side).rows, side.ring.levels)}</div>"
                for when, title, side in zip(("before", "after"), titles, sides, strict=True)
            ),
            *(
                f"<h2>Degrees by layer, {when}: {escape(title)}</h2>"
                + (f"<div class=plot>{degrees_svg(rows)}</div>" if rows else "<p>There is no single polynomial.</p>")
                for when, title, rows in zip(
                    ("before", "after"), titles, (side.report.figures.degrees for side in sides), strict=True
                )
            ),
            pair(
                "Outputs of the polynomials against the network's",
                [
                    scatter_svg(side.report.figures.output_points) if side.report.figures.output_points else ""
                    for side in sides
                ],
                "There are no samples.",
            ),
            "</body></html>\n",
        )
    )
