"""The points of `heliograph tune` as one page: accuracy against a cost, with the options of each point."""

from __future__ import annotations

from html import escape

from heliograph.report.html import STYLE, safe_json
from heliograph.report.markup import Html, table
from heliograph.tools.tune import Tuning, cells, options_text

_TITLES = ("options", "class", "error", "a run", "a sample", "keys", "memory", "N", "levels")
_SCRIPT = """
const points = JSON.parse(document.getElementById("points").textContent).points;
const plot = document.getElementById("plot"), along = document.getElementById("along"), up = document.getElementById("up");
const make = (name, given, text) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return plot.appendChild(made);
};
const text = {
  ms: (v) => (v < 1000 ? `${v.toPrecision(3)} ms` : `${(v / 1000).toPrecision(3)} s`),
  bytes: (v) => (v < 1e9 ? `${(v / 1e6).toPrecision(3)} MB` : `${(v / 1e9).toPrecision(3)} GB`),
  share: (v) => `${(100 * v).toPrecision(3)} %`,
};
const kind = (name) => (name.endsWith("bytes") ? text.bytes : name.startsWith("ms") ? text.ms : text.share);
const width = 940, height = 420, left = 80, bottom = 40;
function draw() {
  plot.replaceChildren();
  const x = along.value, y = up.value, shown = points.filter((p) => p[y] !== null);
  const logs = shown.map((p) => Math.log10(Math.max(p[x], 1e-9))), ups = shown.map((p) => p[y]);
  // Points that are all equal stand at the upper end of a tenth.
  const lowX = Math.min(...logs), spanX = Math.max(...logs) - lowX || 1;
  const most = Math.max(...ups), lowY = Math.min(...ups) === most ? Math.max(0, most - 0.1) : Math.min(...ups);
  const spanY = most - lowY || 0.1;
  const atX = (v) => left + ((width - left - 30) * (Math.log10(Math.max(v, 1e-9)) - lowX)) / spanX;
  const atY = (v) => 20 + ((height - bottom - 20) * (lowY + spanY - v)) / spanY;
  for (let i = 0; i <= 4; i++) {
    const valueX = 10 ** (lowX + (spanX * i) / 4), valueY = lowY + (spanY * i) / 4;
    const small = { "font-size": 11, fill: "var(--muted)" };
    make("text", { ...small, x: atX(valueX), y: height - 8, "text-anchor": "middle" }, kind(x)(valueX));
    make("text", { ...small, x: left - 10, y: atY(valueY) + 4, "text-anchor": "end" }, kind(y)(valueY));
    make("line", { x1: left, x2: width, y1: atY(valueY), y2: atY(valueY), stroke: "var(--grid)" });
  }
  shown.forEach((p) => {
    const dot = make("circle", { cx: atX(p[x]), cy: atY(p[y]), r: p.front ? 7 : 4, tabindex: 0,
      fill: p.front ? "var(--predicted)" : "var(--muted)", "data-place": points.indexOf(p) });
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = `${p.text}: ${kind(x)(p[x])}, ${kind(y)(p[y])}`;
    dot.appendChild(title);
    dot.onclick = dot.onfocus = () => {
      document.getElementById("chosen").textContent = `hg.Options(${p.text})`;
    };
  });
}
along.onchange = up.onchange = draw;
draw();
"""


def tuning_page(tuning: Tuning) -> str:
    """One self-contained page, which loads nothing from elsewhere."""
    given = [{**point.to_dict(), "text": options_text(point.options)} for point in tuning.points]
    classes = any(point.same is not None for point in tuning.points)
    costs = (("ms", "time of a run"), ("ms_per_sample", "time of a sample"), ("evaluation_key_bytes", "keys"))
    gains = (*([("class_agreement", "class as the model's")] if classes else []), ("relative_error", "error"))

    def choices(entries: tuple[tuple[str, str], ...]) -> str:
        return "".join(f"<option value={name}>{escape(label)}</option>" for name, label in entries)

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
            "<div class=bar><label>across <select id=along>",
            choices((*costs, ("server_peak_bytes", "memory"))),
            f"</select></label><label>up <select id=up>{choices(gains)}</select></label></div>",
            '<div class=plot><svg id=plot viewBox="0 0 940 420" role=img aria-label="accuracy against cost"></svg></div>',
            "<p><code id=chosen></code></p>",
            table(_TITLES, rows, "tried"),
            f"<p>Not planned:</p><ul>{failed}</ul>" if failed else "",
            f'<script type="application/json" id="points">{safe_json({"points": given})}</script>',
            f"<script>{_SCRIPT}</script></body></html>\n",
        )
    )
