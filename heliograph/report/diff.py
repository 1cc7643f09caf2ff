"""The differences in cost between two artifacts, and where they arise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from heliograph.report.compiled import Compiled
from heliograph.report.depth import artifact_depth
from heliograph.report.figures import Figure, Figures, figure_of
from heliograph.report.text import figure_text

# The compared figures, in this order; names with a dot are figures in the report's `predicted`.
_COMPARED = (
    "security_bits", "ring_dim", "log_pq", "levels", "depth", "scale_bits", "digits", "rotations", "key_switches",
    "ciphertext_products", "plaintext_products", "rotation_keys", "evaluation_key_bytes", "ciphertext_bytes",
    "predicted.server_peak_bytes", "predicted.client_peak_bytes", "predicted.keygen_s", "predicted.evaluate_ms",
    "predicted.max_abs_error", "predicted.scheme_error", "proved_share", "costs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Diff:
    """Differing figures (label, before, after, and for numbers the ratio of after to before), and differing layers."""

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
        lines += [f"  {layer['layer']:<{width}}  {layer_changes(layer)}" for layer in self.layers]
        return "\n".join(lines)


def layer_changes(layer: Mapping[str, Any]) -> str:
    """What changed in one of a difference's layers, in words."""
    parts = []
    for key, unit in (("predicted_ms", " ms"), ("levels", " levels"), ("degree", " degree"), ("nodes", " nodes")):
        old, new = layer[f"{key}_before"], layer[f"{key}_after"]
        if old != new:
            parts.append(f"{_number(old)} -> {_number(new)}{unit}")
    return ", ".join(parts)


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _find(figures: Figures, path: str) -> tuple[Any, Figure]:
    """A figure's value and its description."""
    *before, name = path.split(".")
    record: Any = figures if not before else figures.predicted
    (entry,) = (entry for entry in fields(record) if entry.name == name)
    return getattr(record, name), figure_of(entry)


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
    for layer, ms in artifact.report.predicted_ms_by_layer().items():
        table.setdefault(layer, {"predicted_ms": None, "levels": 0, "degree": None, "nodes": 0})
        table[layer]["predicted_ms"] = round(ms, 3)
    for known in artifact.report.figures.ranges:
        layer = known["layer"] or known["function"]
        if layer in table:
            table[layer]["degree"] = known["degree"]
    return table


def diff(before: Compiled, after: Compiled) -> Diff:
    """The changes in cost from one artifact to another, in total and by layer."""
    figures: list[tuple[str, str, str, float | None]] = []
    for path in _COMPARED:
        (old, about), (new, _) = _find(before.report.figures, path), _find(after.report.figures, path)
        if old == new:
            continue
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (old, new))
        ratio = new / old if numbers and old else None
        texts = [figure_text(value, about.unit) or "-" for value in (old, new)]
        figures.append((about.label, texts[0], texts[1], ratio))
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
