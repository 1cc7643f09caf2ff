"""The table of polynomial inputs: the interval of each, its source, and the errors of the polynomial there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from heliograph.ir.maps.layout import MOST_ELEMENTS, Layout
from heliograph.ir.node import Array
from heliograph.records import bounds, to_json

# Fields that the report does not show; the passes and the range checks use them.
_INSIDE = ("unit_sizes", "layout", "frame")
# For fields that only some entries have.
_OF_SOME = bounds(optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeEntry:
    """One polynomial, or one composition of several, with the interval in which its input must stay.

    source: the origin of the interval: proved, observed or declared.
    samples, margin: for an observed interval, the number of samples, and the share of their width added on each side.
    observed, proved: the interval of the samples, and the one from interval arithmetic.
    max_error: the largest absolute error of the approximation.
    proved_error: the same number if it is proved, else None.
    rms_error: the error under the distribution of the samples.
    units, smallest_unit: for an input by units, their number, and half the range of the smallest one.
    unit_sizes: until scaling is folded, the size of a unit of the input in values of the original program.
    degrees, relative_error, gap, gap_source, closeness_bits, count, rows, squarings: for a composition, the degrees of
        its parts, and the quantities on which it rests.
    moved: the distance by which a comparison's threshold was moved away from values that can equal it.
    layout: the layout of the input, once it is packed.
    frame: (centre, radius) if a slot of the input holds y and the input, in units in which the interval is [-1, 1], is
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
        """The input from its slots, in units in which the interval is [-1, 1]."""
        if self.frame is None:
            return slots
        centre, radius = self.frame
        return centre + radius * slots

    def to_json(self) -> dict[str, Any]:
        """The entry in the form of the report."""
        return {key: value for key, value in to_json(self).items() if key not in _INSIDE}
