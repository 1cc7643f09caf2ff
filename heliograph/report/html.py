"""The report as one self-contained page: it loads no file, font or script from elsewhere, and sends nothing."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from heliograph.ir.text import print_program
from heliograph.report.compiled import Compiled
from heliograph.report.depth import artifact_depth
from heliograph.report.drawing import (
    bars_svg,
    curve_svg,
    degrees_svg,
    levels_svg,
    ranges_svg,
    savings_svg,
    scatter_svg,
    times_svg,
)
from heliograph.report.facts import LayerFacts
from heliograph.report.figures import Figures, KeyRow
from heliograph.report.graphs import graph_svg, layers_svg, legend_svg
from heliograph.report.layers import is_bootstrap, layer_graph
from heliograph.report.markup import table, tiles
from heliograph.report.parameters import ProgramParameters
from heliograph.report.terms import hovering, named
from heliograph.report.text import (
    CURVE_TITLES,
    Report,
    allocation_text,
    bytes_text,
    curve_cells,
    degree_rows,
)
from heliograph.texts import number_of

# A graph with more nodes is drawn without the nodes that only add, drop levels or rescale.
_MAX_DRAWN = 2500
# Longer tables are collapsed.
_MOST_ROWS = 8
# The most characters of one stage's text in the page; the artifact has the rest.
_MAX_STAGE = 3_000_000

_LIGHT = """--page: #fff; --ink: #1f2933; --muted: #5c6b7a; --grid: #d8dee6; --row: #e8edf2; --link: #2c6fbb;
  --predicted: #2c6fbb; --measured: #d9822b; --proved: #2f7d5b; --warm: #b5452c; --interval: #e4ecf5; --bootstrap: #7b3fa0;
  --level: #0b5394; --scale: #2f7d5b; --band: #f4f6f9; --note: #fdf5ec; --good: #e3f1e8; --good-ink: #1c5c3c;"""
_DARK = """--page: #12171d; --ink: #e4e9ee; --muted: #9aa8b7; --grid: #36424e; --row: #29323c; --link: #7db3ea;
  --predicted: #5b9be0; --measured: #e59b52; --proved: #58b389; --warm: #e57a5e; --interval: #223447; --bootstrap: #a56bcc;
  --level: #6fb0ee; --scale: #58b389; --band: #1a2129; --note: #2d2318; --good: #1d3b2b; --good-ink: #a5dfbd;"""
STYLE = (
    f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
"""
    + """
body { margin: 0 auto; max-width: 1000px; padding: 28px 24px 80px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 18px; margin: 36px 0 10px; }
p { margin: 6px 0; overflow-wrap: anywhere; } .muted { color: var(--muted); }
.badge { display: inline-block; padding: 2px 10px; border-radius: 10px; background: var(--good);
  color: var(--good-ink); font-weight: 600; }
.badge.bad { background: #b5452c; color: #fff; }
.verdict { font-size: 17px; } .amber { color: var(--measured); font-weight: 600; }
.term { text-decoration: underline dotted var(--muted); cursor: help; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: 12px; margin: 18px 0; }
@media (max-width: 700px) { body { padding: 20px 14px 60px; } .tiles { grid-template-columns: repeat(2, 1fr); } }
.tile { border: 1px solid var(--grid); border-radius: 8px; padding: 10px 14px; }
.tile b { display: block; font-size: 20px; } .tile span { color: var(--muted); font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--row); vertical-align: top; }
th { color: var(--muted); font-weight: 600; white-space: nowrap; } td { overflow-wrap: break-word; }
.box { overflow: auto; border: 1px solid var(--grid); border-radius: 8px; max-height: 820px; }
.box svg { display: block; margin: 0 auto; } .plot { overflow-x: auto; }
.plot svg { width: 100%; min-width: 640px; height: auto; }
.scatter svg { max-width: 100%; height: auto; } svg text { font-family: inherit; }
.warn { border-left: 4px solid var(--measured); padding: 6px 14px; background: var(--note); }
.bar { display: flex; gap: 10px; align-items: center; margin: 8px 0; flex-wrap: wrap; overflow-x: auto; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--link); }
select, input, button { font: inherit; padding: 4px 10px; border: 1px solid var(--grid); border-radius: 6px;
  background: var(--page); color: inherit; }
input[type=search] { flex: 1; min-width: 200px; }
pre { margin: 0; padding: 10px 14px; font: 12.5px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; tab-size: 4; }
#ranges g:target text { font-weight: 700; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; } nav a { color: var(--link); text-decoration: none; }
"""
)

# The buttons before a graph.
_ZOOM = "<button>fit</button><button>100 %</button>"
_SCRIPT = """
"use strict";
const stages = JSON.parse(document.getElementById("stages").textContent);
const choice = document.getElementById("stage"), query = document.getElementById("query");
const view = document.getElementById("ir"), found = document.getElementById("found");
for (const name of Object.keys(stages)) {
  const option = document.createElement("option");
  option.value = name; option.textContent = name; choice.append(option);
}
const MOST = 4000;
function show() {
  const lines = (stages[choice.value] || "").split("\\n"), wanted = query.value.toLowerCase();
  const kept = [];
  let count = 0;
  lines.forEach((line, i) => {
    if (wanted && !line.toLowerCase().includes(wanted)) return;
    count += 1;
    if (kept.length < MOST) kept.push(String(i + 1).padStart(6) + "  " + line);
  });
  view.textContent = kept.join("\\n");
  found.textContent = count + " of " + lines.length + " lines" + (count > MOST ? ", the first " + MOST + " shown" : "");
}
choice.addEventListener("change", show);
query.addEventListener("input", show);
const names = Object.keys(stages);
choice.value = names[names.length - 1];
show();
for (const holder of document.querySelectorAll(".graph")) {
  const graph = holder.querySelector("svg"), folded = holder.closest("details");
  const size = [graph.width.baseVal.value, graph.height.baseVal.value];
  const zoom = (factor) => { ["width", "height"].forEach((name, i) => graph.setAttribute(name, size[i] * factor)); };
  // The box shrinks with what is in it: what counts is the height that it may have.
  const room = () => [holder.clientWidth - 4, parseFloat(getComputedStyle(holder).maxHeight) - 4];
  const [fit, full] = holder.previousElementSibling.querySelectorAll("button");
  fit.addEventListener("click", () => zoom(Math.min(1, ...room().map((most, i) => most / size[i]))));
  full.addEventListener("click", () => zoom(1));
  const narrow = () => { if (size[0] > holder.clientWidth) zoom(Math.max(0.55, room()[0] / size[0])); };
  if (folded) folded.addEventListener("toggle", () => { if (folded.open) narrow(); }); else narrow();
}
document.documentElement.dataset.ready = "yes";
"""


def safe_json(value: Any) -> str:
    """JSON that cannot end the script element that contains it."""
    text = json.dumps(value)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _folded(inner: str, rows: int, title: str) -> str:
    """The piece itself if it is short, otherwise collapsed under its title."""
    return inner if rows <= _MOST_ROWS else f"<details><summary>{escape(title)}</summary>{inner}</details>"


def _stages(artifact: Compiled) -> dict[str, str]:
    stages = {**artifact.stages, "executable": print_program(artifact.program)}
    cut = "\n... the text continues; print it with `heliograph inspect --stage`"
    return {name: text if len(text) <= _MAX_STAGE else text[:_MAX_STAGE] + cut for name, text in stages.items()}


def _keys(figures: Figures) -> str:
    rows = [
        *((_key_label(row), row.keys * row.key_bytes) for row in figures.keys_by_kind),
        ("encrypted input", figures.ciphertext_bytes),
        ("keys as sent", figures.sent_key_bytes),
        ("input as sent", figures.sent_input_bytes),
        ("encrypted output", figures.output_bytes),
    ]
    return bars_svg([(name, float(size), None, bytes_text(size), "") for name, size in rows], "keys and bytes", "keys")


def _key_label(row: KeyRow) -> str:
    secret = "of the sparse secret" if row.kind == "encapsulation" else ""
    kind = "key" if secret else f"{row.kind} key"
    return " ".join(filter(None, (number_of(row.keys, kind), secret, f"of {bytes_text(row.key_bytes)}")))


def _degrees(report: Report) -> str:
    """The degrees as bars and as a table, and a curve: the one behind their choice, or else what would save levels."""
    figures, parts = report.figures, []
    if figures.degrees:
        titles, *rows = degree_rows(figures.degrees)
        degrees = f"<div class=plot>{table(titles, rows)}</div>"
        parts = [f"<div class=plot>{degrees_svg(figures.degrees)}</div>"] if len(figures.degrees) > 1 else []
        parts.append(_folded(degrees, len(figures.degrees), "degrees by layer"))
    else:
        parts.append("<p>There is no single polynomial.</p>")
    if figures.allocation is not None:
        parts += [
            f"<p>{escape(allocation_text(figures))}</p>",
            f"<div class=plot>{curve_svg(figures.allocation)}</div>",
            table(CURVE_TITLES, [curve_cells(point) for point in figures.allocation.curve]),
        ]
    elif figures.savings:
        parts.append(f"<div class=plot>{savings_svg(report)}</div>")
    else:
        parts.append("<p>No lower degree and no fusion saves a level: there is no curve to draw.</p>")
    return "".join(parts)


def _outputs(figures: Figures) -> str:
    """The scatter plot of outputs, and what its points are."""
    if not figures.output_points:
        return "<p>There are no samples.</p>"
    samples = number_of(figures.error_samples, "sample")
    if figures.calibrated:
        samples += " that set no range" if figures.errors_apart else " that also set the ranges"
    return (
        f"<p class=muted>{number_of(len(figures.output_points), 'value')} of {samples}, without encryption; "
        f"points on the line are exact</p><div class=scatter>{scatter_svg(figures.output_points)}</div>"
    )


def html_report(artifact: Compiled, report: Report | None = None) -> str:
    """The report as an HTML page; `report` replaces the artifact's own (for instance one with a measured column)."""
    report = report or artifact.report
    f, depth = report.figures, artifact_depth(artifact)
    rows = depth.rows
    parameters = str(ProgramParameters.of(artifact.program.planned.chains, artifact.evaluation_keys))
    drawn = rows if len(rows) <= _MAX_DRAWN else ()
    levels = artifact.ring.levels
    spent = [(layer, place, str(levels_)) for place, layer, levels_ in depth.spent]
    legend = legend_svg(levels, any(map(is_bootstrap, rows)))
    ranges = "".join(f"<li>{escape(line)}</li>" for line in report.range_lines())
    savings = "".join(f"<li>{escape(text)}</li>" for text in report.saving_texts())
    graph = (
        graph_svg(drawn, levels)
        if drawn
        else '<svg id="graph" width="600" height="40" xmlns="http://www.w3.org/2000/svg">'
        f'<text x="10" y="24">{len(rows)} nodes are too many to draw; see the text below, or --dot</text></svg>'
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    parts = [
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>",
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name=viewport content="width=device-width, initial-scale=1"><link rel=icon href="data:,">',
        f"<title>{escape(artifact.name)}: the bill</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(artifact.name)}</h1>",
        f"<p>{report.badge()} <span class=muted>artifact {escape(artifact.fingerprint)}</span></p>",
        "<nav>",
        *(
            f"<a href='#{name}-section'>{title}</a>"
            for name, title in (
                ("bill", "bill"),
                ("graph", "layers"),
                ("levels", "levels"),
                ("ranges", "ranges"),
                ("outputs", "outputs"),
                ("degrees", "degrees"),
                ("keys", "keys"),
                ("times", "time"),
                ("ir", "program"),
                ("assumed", "assumptions"),
            )
        ),
        "</nav>",
        report.sentence(),
        tiles([(value, named(label)) for value, label in report.tiles()]),
        "<h2 id=bill-section>The bill</h2>",
        report.figures_table(),
        "<p></p>",
        table(("what the compiler chose", ""), hovering(report.rows())),
        f"<h2 id=graph-section>The program by layers</h2><div class=bar>{legend}{_ZOOM}</div>",
        f"<div class='box graph'>{layers_svg(layer_graph(rows), levels, LayerFacts(report))}</div>",
        f"<details id=operations><summary>every operation</summary><div class=bar>{legend}{_ZOOM}</div>",
        f"<div class='box graph'>{graph}</div></details>",
        "<h2 id=levels-section>Level and scale along the program</h2>",
        f"<div class=plot>{levels_svg(rows, levels)}</div>",
        _folded(table(("layer", "line", "levels spent"), spent), len(spent), "levels spent by layer"),
        f"<p>What would save a level:</p><ul>{savings}</ul>" if savings else "<p>Nothing simple saves a level.</p>",
        "<h2 id=ranges-section>Ranges of polynomials</h2>",
        *(
            (
                f"<p class=muted>{float(f.proved_share):.0%} of the intervals are proved</p>",
                f"<div class=plot>{ranges_svg(f.ranges)}</div>",
                _folded(f"<ul>{ranges}</ul>", len(f.ranges), "ranges in words"),
            )
            if f.ranges
            else ("<p>There is no polynomial.</p>",)
        ),
        "<h2 id=outputs-section>Outputs of the polynomials against the network's</h2>",
        _outputs(f),
        "<h2 id=degrees-section>Degrees by layer</h2>",
        _degrees(report),
        f"<h2 id=keys-section>Keys and bytes</h2><div class=plot>{_keys(f)}</div>",
        f"<details><summary>all primes and keys</summary><div class=box><pre>{escape(parameters)}</pre></div></details>",
        f"<h2 id=times-section>Time by layer</h2><p class=muted>costs: {escape(str(f.costs))}</p>",
        f"<div class=plot>{times_svg(report)}</div>",
        "<h2 id=ir-section>The program at each stage</h2><div class=bar>",
        "<select id=stage aria-label=stage></select><input id=query type=search placeholder='search lines' "
        "aria-label=search><span id=found class=muted></span></div><div class=box><pre id=ir></pre></div>",
        "<h2 id=assumed-section>What the figures assume</h2><ul>",
        *(f"<li>{escape(str(line))}</li>" for line in f.assumed),
        f"</ul><p class=warn>{escape(report.sharing())}</p>",
        f'<script type="application/json" id="stages">{safe_json(_stages(artifact))}</script>',
        f"<script>{_SCRIPT}</script></body></html>\n",
    ]
    return "".join(parts)
