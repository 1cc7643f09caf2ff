"""What changed between two artifacts: the cost, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from heliograph.report.compiled import Compiled
from heliograph.report.depth import artifact_depth
from heliograph.report.text import bytes_text, error_text, seconds_text

# (key of the report, or of its `predicted` after a dot; label; how it is written)
_FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("security_bits", "security bits", str),
    ("ring_dim", "ring dimension", str),
    ("log_pq", "log PQ", lambda v: f"{v:.1f}"),
    ("levels", "levels", str),
    ("depth", "depth", str),
    ("scale_bits", "scale bits", str),
    ("digits", "key-switching digits", str),
    ("rotations", "rotations", str),
    ("key_switches", "key switches", str),
    ("ciphertext_products", "ciphertext products", str),
    ("plaintext_products", "plaintext products", str),
    ("rotation_keys", "rotation keys", str),
    ("evaluation_key_bytes", "evaluation keys", bytes_text),
    ("ciphertext_bytes", "encrypted input", bytes_text),
    ("predicted.server_peak_bytes", "server's memory", bytes_text),
    ("predicted.client_peak_bytes", "client's memory", bytes_text),
    ("predicted.keygen_s", "key generation", seconds_text),
    ("predicted.evaluate_ms", "evaluation", lambda v: seconds_text(v / 1e3)),
    ("predicted.max_abs_error", "output error", error_text),
    ("predicted.scheme_error", "of it encryption's", error_text),
    ("proved_share", "proved share of ranges", lambda v: f"{v:.0%}"),
    ("costs", "cost table", str),
)


@dataclass(frozen=True, slots=True)
class Diff:
    """Figures that differ (label, before, after, and after over before where both are numbers), and layers that do."""

    before: str
    after: str
    figures: tuple[tuple[str, str, str, float | None], ...]
    layers: tuple[Mapping[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "before": self.before,
            "after": self.after,
            "figures": [
                {"name": name, "before": old, "after": new, "ratio": ratio} for name, old, new, ratio in self.figures
            ],
            "layers": [dict(layer) for layer in self.layers],
        }

    def __str__(self) -> str:
        if not self.figures and not self.layers:
            return f"{self.before} and {self.after} cost the same"
        lines = [f"{self.before} -> {self.after}"]
        width = max([len(name) for name, *_ in self.figures] + [len(layer["layer"]) for layer in self.layers])
        for name, old, new, ratio in self.figures:
            lines.append(f"  {name:<{width}}  {old} -> {new}" + (f"  (x{ratio:.2f})" if ratio is not None else ""))
        if self.layers:
            lines.append("by layer:")
        for layer in self.layers:
            parts = []
            for key, unit in (
                ("predicted_ms", " ms"),
                ("levels", " levels"),
                ("degree", " degree"),
                ("nodes", " nodes"),
            ):
                old, new = layer[f"{key}_before"], layer[f"{key}_after"]
                if old != new:
                    parts.append(f"{_number(old)} -> {_number(new)}{unit}")
            lines.append(f"  {layer['layer']:<{width}}  {', '.join(parts)}")
        return "\n".join(lines)


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _find(values: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        values = values.get(part, {}) if isinstance(values, Mapping) else {}
    return None if isinstance(values, Mapping) else values


def _layers(artifact: Compiled) -> dict[str, dict[str, Any]]:
    """Milliseconds, levels, degree and nodes of each layer.

    A layer spends the difference between its deepest value and the deepest that it reads from other layers.
    """
    rows = artifact_depth(artifact).rows
    by_name = {row.name: row for row in rows}
    table: dict[str, dict[str, Any]] = {}
    deepest: dict[str, int] = {}
    read: dict[str, int] = {}
    for row in rows:
        layer = row.layer or row.op
        entry = table.setdefault(layer, {"predicted_ms": None, "levels": 0, "degree": None, "nodes": 0})
        entry["nodes"] += 1
        deepest[layer] = max(deepest.get(layer, 0), row.depth)
        for operand in (by_name[name] for name in row.inputs):
            if (operand.layer or operand.op) != layer:
                read[layer] = max(read.get(layer, 0), operand.depth)
        entry["levels"] = deepest[layer] - read.get(layer, 0)
    for row in artifact.report.values["predicted_ms_by_layer"]:
        layer = row["layer"]
        table.setdefault(layer, {"predicted_ms": None, "levels": 0, "degree": None, "nodes": 0})
        table[layer]["predicted_ms"] = round(row["ms"], 3)
    for known in artifact.report.values.get("ranges", []):
        layer = known["layer"] or known["function"]
        if layer in table:
            table[layer]["degree"] = known["degree"]
    return table


def diff(before: Compiled, after: Compiled) -> Diff:
    """What changed in cost from one artifact to another, in all and by layer."""
    figures: list[tuple[str, str, str, float | None]] = []
    for key, label, text in _FIGURES:
        old, new = _find(before.report.values, key), _find(after.report.values, key)
        if old == new:
            continue
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (old, new))
        ratio = new / old if numbers and old else None
        figures.append((label, *("-" if v is None else text(v) for v in (old, new)), ratio))  # type: ignore[arg-type]
    left, right = _layers(before), _layers(after)
    empty = {"predicted_ms": None, "levels": None, "degree": None, "nodes": None}
    layers = []
    for layer in dict.fromkeys((*left, *right)):
        old, new = left.get(layer, empty), right.get(layer, empty)
        if old != new:
            entry: dict[str, Any] = {"layer": layer}
            for key in empty:
                entry[f"{key}_before"], entry[f"{key}_after"] = old[key], new[key]
            layers.append(entry)
    return Diff(before.name, after.name, tuple(figures), tuple(layers))
