"""One entry of the table of ranges: the interval of a polynomial's input, its source, and the polynomial's errors
there.
"""

from __future__ import annotations

from typing import Any

from heliograph import rounding
from heliograph.ir import Node
from heliograph.ir.ranges import RangeEntry
from heliograph.passes.ranges.calibrate import Observed
from heliograph.passes.ranges.intervals import Interval


def range_entry(
    node: Node,
    function: str,
    interval: Interval,
    source: str,
    *,
    degree: int,
    method: str,
    error: tuple[float, bool],
    rms_error: float = 0.0,
    seen: Observed | None = None,
    margin: float = 0.0,
    proved: Interval | None = None,
    **more: Any,
) -> RangeEntry:
    """The entry for the approximation of a function of `node`.

    `source`: proved, observed or declared; `margin` applies to observed ranges only.
    `error`: the largest error of the approximation, and whether it is proved. A proved one becomes `max_error` and
    `proved_error`; otherwise `proved_error` is null and `max_error` the largest error found.
    """
    observed = source == "observed"
    largest = rounding.upward(error[0], rounding.FIGURE_BITS)
    more.setdefault("observed", rounding.outward(seen.low, seen.high) if seen else None)
    return RangeEntry(
        layer=node.loc.layer,
        location=node.loc.short,
        function=function,
        low=interval.low,
        high=interval.high,
        source=source,
        samples=seen.samples if observed and seen else 0,
        margin=margin if observed else 0.0,
        proved=rounding.outward(proved.low, proved.high) if proved else None,
        degree=degree,
        method=method,
        max_error=largest,
        proved_error=largest if error[1] else None,
        rms_error=rounding.nearest(rms_error),
        **more,
    )
