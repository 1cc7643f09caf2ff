"""What a report knows of each layer, for the graph of the layers: time, keys that are read, ranges and errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heliograph.report.layers import Box
from heliograph.report.text import Report, degrees_text, largest_error_text, seconds_text


def range_name(place: int) -> str:
    """The id of a row of the drawing of ranges."""
    return f"range-{place}"


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """The facts of a report by layer.

    report: its figures, and measured times if there are any.
    """

    report: Report

    def lines(self, box: Box) -> list[str]:
        """A line for each thing that is known of a box; times and counts are those of its layers in the whole run."""
        figures, found = self.report.figures, []
        times = [row for row in figures.predicted_ms_by_layer if row.layer in box.layers]
        ms = sum(row.bootstrap_ms if box.bootstraps else row.ms for row in times)
        what = "bootstraps" if box.bootstraps else "layer"
        if ms:
            found.append(f"{seconds_text(ms / 1e3)} predicted for the {what} in a run")
        measured = self.report.measured.get("ms_by_layer") or {}
        seen = [float(measured[layer]) for layer in box.layers if layer in measured]
        if seen and not box.bootstraps:
            found.append(f"{seconds_text(sum(seen) / 1e3)} measured")
        work = [row for row in figures.work_by_layer if row.layer in box.layers]
        if work and not box.bootstraps:
            switches, rotations = sum(row.key_switches for row in work), sum(row.rotations for row in work)
            found.append(f"keys are read {switches} times, {rotations} of them for rotations")
        for _, entry in self._ranges(box):
            found.append(
                f"{entry['function']} on [{float(entry['low']):.4g}, {float(entry['high']):.4g}] ({entry['source']}), "
                f"{degrees_text(entry)}, {largest_error_text(entry)}"
            )
        return found

    def link(self, box: Box) -> str:
        """The address of the row of the box's first range; empty if it has none."""
        places = [place for place, _ in self._ranges(box)]
        return f"#{range_name(places[0])}" if places else ""

    def _ranges(self, box: Box) -> list[tuple[int, Mapping[str, Any]]]:
        """The rows of the table of ranges that belong to a box, with their places."""
        if box.bootstraps:
            return []
        return [
            (place, entry)
            for place, entry in enumerate(self.report.figures.ranges)
            if (entry["layer"] in box.layers if entry["layer"] else entry["location"] == box.location)
        ]
