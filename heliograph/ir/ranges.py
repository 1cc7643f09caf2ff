"""The table of polynomial inputs: the interval of each, what it rests on, and how good the polynomial is there."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from heliograph.ir.maps.layout import Layout
from heliograph.ir.node import Array

# Fields that the report does not show; the passes and the range checks use them.
_INSIDE = ("unit_sizes", "layout", "frame")
# Fields that only some entries have; the report leaves them out of the others.
_OF_SOME = (
    "units", "smallest_unit", "degrees", "relative_error", "gap", "gap_source", "closeness_bits", "count",
    "rows", "squarings", "moved",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeEntry:
    """One polynomial, or one composition of several, with the interval that its input must stay in.

    `source` is proved, observed or declared. Of an observed one `samples` counts the samples and `margin` is the share of
    their width that was added on each side; `observed` is what they showed, and `proved` what interval arithmetic says.
    `max_error` is the largest absolute error of what stands for the function, and `proved_error` the same number where
    it is proved, else None; `rms_error` is under the distribution of the samples.

    By units: `units` counts them, `smallest_unit` is the smallest one's half range, and `unit_sizes`, until scaling is
    folded, what a unit of the input is in the values of the original program. Of compositions: the degrees of the parts,
    and what it rests on; `moved` is how far a comparison's threshold was moved away from
    values that can equal it. `layout` is that of the input, once it is packed. `frame` is
    (centre, radius) where a slot of it holds y and the input, in units in which the interval is [-1, 1], is
    centre + radius * y; without it the two are the same (passes/polynomials/squares.py).
    """

    layer: str
    location: str
    function: str
    low: float
    high: float
    source: str
    samples: int
    margin: float
    observed: tuple[float, float] | None = None
    proved: tuple[float, float] | None = None
    degree: int
    method: str
    max_error: float
    rms_error: float
    proved_error: float | None = None
    units: int | None = None
    smallest_unit: float | None = None
    degrees: tuple[int, ...] | None = None
    relative_error: float | None = None
    gap: float | None = None
    gap_source: str | None = None
    closeness_bits: float | None = None
    count: int | None = None
    rows: int | None = None
    squarings: int | None = None
    moved: float | None = None
    unit_sizes: tuple[float, ...] | None = None
    layout: Layout | None = None
    frame: tuple[float, float] | None = None

    def placed(self, slots: Array) -> Array:
        """What slots of the input hold, in units in which the interval is [-1, 1]."""
        if self.frame is None:
            return slots
        centre, radius = self.frame
        return centre + radius * slots

    def to_json(self) -> dict[str, Any]:
        """The entry as the report has it."""
        made: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in _INSIDE and not (field.name in _OF_SOME and value is None):
                made[field.name] = list(value) if isinstance(value, tuple) else value
        return made
