"""Activations that bootstraps compute: which may be, and the program that means those that are.

A trigonometric polynomial is fitted beside the polynomial of an activation (approx/fits/trigonometric.py).
`OfferSeries` writes it to the polynomial, where placing bootstraps may take it up; `MergeActivations` makes the
polynomial mean it.
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

# How the table of ranges calls a series.
METHOD = "trigonometric"


@dataclass(frozen=True, slots=True)
class Offer:
    """A series for the activation of an entry of the table of ranges: its errors are in units of `size` and, the largest, of
    `largest` (those of its polynomial).
    """

    series: SeriesFit
    size: float = 1.0
    largest: float = 1.0

    def entry(self, of: RangeEntry) -> RangeEntry:
        """The entry of an activation that is computed so."""
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
    """Polynomials get the series that a bootstrap may compute in their place, by their entries in the table of ranges."""

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
    """Of the series that are offered those of these `entries` are what their polynomials mean; the others are dropped."""

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
    """The table of ranges with the figures of the series of these entries."""
    known = {place: offer for place, offer in offers.items() if place in entries}
    return [known[place].entry(each) if place in known else each for place, each in enumerate(ranges)]


def merged_entries(program: Program) -> frozenset[int]:
    """The entries of the table of ranges whose activations the bootstraps of a program compute."""
    return frozenset(
        entry
        for node in bootstraps(program)
        if node.attrs.get("series") is not None
        for entry in node.attrs.get("ranges", ())
    )
