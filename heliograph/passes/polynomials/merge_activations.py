"""Activations computed by bootstraps: the series that are offered, and the program with the chosen ones.

A trigonometric series is fitted beside the polynomial of an activation (approx/fits/trigonometric.py). `OfferSeries`
attaches it to the `poly` node, so that the placement of bootstraps may choose it. `MergeActivations` then replaces the
polynomial by it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from heliograph import rounding
from heliograph.approx.fits.trigonometric import SeriesFit, as_polynomial
from heliograph.ir import Builder, Node, Program, Stage
from heliograph.ir.bootstraps.asked import bootstraps
from heliograph.ir.bootstraps.series import NAMES
from heliograph.ir.ranges import RangeEntry

# The method of a series in the table of ranges.
METHOD = "trigonometric"


@dataclass(frozen=True, slots=True)
class Offer:
    """A series offered for the activation of an entry in the table of ranges.

    `series`: the series.
    `size`: the unit of its root mean square error, the same as for the activation's polynomial.
    `largest`: the unit of its largest error.
    """

    series: SeriesFit
    size: float = 1.0
    largest: float = 1.0

    def entry(self, of: RangeEntry) -> RangeEntry:
        """The entry of the activation if its series is used."""
        error = rounding.upward(self.series.max_error * self.largest, rounding.FIGURE_BITS)
        return replace(
            of,
            degree=self.series.degree,
            method=METHOD,
            max_error=error,
            proved_error=error if self.series.proved else None,
            rms_error=rounding.nearest(self.series.rms_error * self.size),
        )


@dataclass(frozen=True, slots=True)
class OfferSeries:
    """Attaches to polynomials the series that a bootstrap may compute instead, by entry in the table of ranges."""

    offers: Mapping[int, Offer]

    name: ClassVar[str] = "offer-series"
    needs: ClassVar[Stage] = Stage.POLYNOMIAL
    makes: ClassVar[Stage] = Stage.POLYNOMIAL

    def run(self, program: Program) -> Program:
        builder = Builder(program.name, Stage.POLYNOMIAL, program)

        def emit(node: Node, operands: list[Node]) -> Node:
            offer = self.offers.get(node.attrs.get("range", -1)) if node.op == "poly" else None
            if offer is None:
                return builder.copy(node, operands)
            found = offer.series
            name = builder.constant(found.coefficients, f"{node.loc.layer or node.op}.series")
            attrs = {**node.attrs, "series": name, "half_period": found.half_period}
            return builder.op("poly", operands, node.loc, **attrs)

        return builder.rewrite(program, emit)


@dataclass(frozen=True, slots=True)
class MergeActivations:
    """Replaces the polynomials of the `entries` by their offered series; drops all other offers."""

    offers: Mapping[int, Offer]
    entries: Collection[int]

    name: ClassVar[str] = "merge-activations"
    needs: ClassVar[Stage] = Stage.POLYNOMIAL
    makes: ClassVar[Stage] = Stage.POLYNOMIAL

    def run(self, program: Program) -> Program:
        builder = Builder(program.name, Stage.POLYNOMIAL, program)
        builder.ranges = merged_ranges(program.ranges, self.offers, self.entries)

        def emit(node: Node, operands: list[Node]) -> Node:
            if node.op != "poly" or node.attrs.get("series") is None:
                return builder.copy(node, operands)
            if node.attrs["range"] not in self.entries:
                attrs = {name: value for name, value in node.attrs.items() if name not in NAMES}
                return builder.op("poly", operands, node.loc, **attrs)
            values = as_polynomial(program.array(node.attrs["series"]), node.attrs["half_period"])
            coefficients = builder.constant(values, node.attrs["coefficients"])
            attrs = {**node.attrs, "coefficients": coefficients, "merged": 1}
            return builder.op("poly", operands, node.loc, **attrs)

        return builder.rewrite(program, emit)


def merged_ranges(
    ranges: Collection[RangeEntry], offers: Mapping[int, Offer], entries: Collection[int]
) -> list[RangeEntry]:
    """The table of ranges, with the figures of the series for these entries."""
    known = {place: offer for place, offer in offers.items() if place in entries}
    return [known[place].entry(each) if place in known else each for place, each in enumerate(ranges)]


def merged_entries(program: Program) -> frozenset[int]:
    """The entries in the table of ranges of the activations that a program's bootstraps compute."""
    return frozenset(
        entry
        for node in bootstraps(program)
        if node.attrs.get("series") is not None
        for entry in node.attrs.get("ranges", ())
    )
