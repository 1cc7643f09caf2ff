"""The table of polynomial inputs: the interval of each, what it rests on, and how good the polynomial is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from heliograph.ir.maps.layout import MOST_ELEMENTS, Layout
from heliograph.ir.node import Array
from heliograph.records import bounds, to_json

# Fields that the report does not show; the passes and the range checks use them.
_INSIDE = ("unit_sizes", "layout", "frame")
# Of fields that only some entries have.
_OF_SOME = bounds(optional=True)


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
    source: str = field(metadata=bounds(choices=("proved", "observed", "declared")))
    samples: int
    margin: float
    observed: tuple[float, float] | None = None
    proved: tuple[float, float] | None = None
    degree: int
    method: str
    max_error: float
    rms_error: float
    proved_error: float | None = None
    units: int | None = field(default=None, metadata=_OF_SOME)
    smallest_unit: float | None = field(default=None, metadata=_OF_SOME)
    degrees: tuple[int, ...] | None = field(default=None, metadata=bounds(0, 1 << 20, optional=True))
    relative_error: float | None = field(default=None, metadata=_OF_SOME)
    gap: float | None = field(default=None, metadata=_OF_SOME)
    gap_source: str | None = field(default=None, metadata=_OF_SOME)
    closeness_bits: float | None = field(default=None, metadata=_OF_SOME)
    count: int | None = field(default=None, metadata=_OF_SOME)
    rows: int | None = field(default=None, metadata=_OF_SOME)
    squarings: int | None = field(default=None, metadata=_OF_SOME)
    moved: float | None = field(default=None, metadata=_OF_SOME)
    unit_sizes: tuple[float, ...] | None = field(default=None, metadata=bounds(most=MOST_ELEMENTS))
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
        return {key: value for key, value in to_json(self).items() if key not in _INSIDE}
