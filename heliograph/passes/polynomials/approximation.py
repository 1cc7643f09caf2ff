"""The table of approximations: one record for each activation, from which the polynomial program is written.

`Approximate` (approximate.py) makes the table. Whoever wants other polynomials asks the table for another table, and
writes that: other degrees on the same intervals (`with_degrees`), a trigonometric series beside each polynomial, which a
bootstrap may compute instead (`offered`), the series that bootstraps do compute (`merged`), or everything made anew
with other statistics, room, degrees or corrections (`anew`, `corrected`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from heliograph import rounding
from heliograph.approx.fits.fit import FLOOR, Fit, Moments, density, fit, symmetry
from heliograph.approx.fits.trigonometric import SeriesFit, as_polynomial, fit_series, mean_square_errors
from heliograph.approx.proofs.fit_proof import largest_error
from heliograph.functions import Function
from heliograph.ir import Array, Attr, Builder, Node, Program, Stage
from heliograph.ir.analysis.depth import depth_of_degree
from heliograph.ir.bootstraps.asked import bootstraps
from heliograph.ir.ranges import RangeEntry
from heliograph.passes.polynomials.corrections import Correction, Linear, corrections
from heliograph.passes.polynomials.squares import fits_a_square
from heliograph.passes.ranges.margins import Normals

# By layer name, or one degree per activation in program order.
Degrees: TypeAlias = "Mapping[str, int] | Sequence[int]"
# The method of a series in the table of ranges.
METHOD = "trigonometric"
# An error below this share of a polynomial's size is smaller than the error of encryption; its exact size does not
# matter.
_NEGLIGIBLE = 2.0**-36
_GRID = 2001
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """One activation with its polynomial. With unit sizes, all values are in multiples of these.

    `node`: its node in the fused program.
    `of`: its function.
    `low`, `high`: the polynomial's interval.
    `method`: the method of its fits.
    `mean`, `std`, `shares`: the distribution by which fits are weighted: one normal, or a mixture with these shares.
    `spread`: the factor on `std` in that weight.
    `normals`: the distribution of the inputs by unit; None without samples.
    `sizes`: the unit sizes, one for each element; None without units.
    `asked`: whether the degree was requested.
    `chosen`: the polynomial.
    `series`: the series that a bootstrap may compute in place of the polynomial.
    `merged`: whether a bootstrap does.
    """

    node: Node
    of: Function
    low: float
    high: float
    method: str
    mean: Moments | None = None
    std: Moments | None = None
    shares: Array | None = None
    spread: float = 1.0
    normals: Normals | None = None
    sizes: Array | None = None
    asked: bool = False
    chosen: Fit | None = None
    series: SeriesFit | None = None
    merged: bool = False

    def fit(self, degree: int) -> Fit:
        """The polynomial of that degree."""
        return fit(
            self.of.evaluate, self.low, self.high, degree, self.method, self.mean, self.std, self.of.kinks, self.spread,
            shares=self.shares, coarse=True,
        )  # fmt: skip

    def bound(self, made: Fit) -> tuple[float, bool]:
        """A bound on the largest error of a polynomial, and whether it is proved."""
        size = sum(map(abs, made.coefficients))
        return largest_error(made.coefficients, made.low, made.high, self.of, _NEGLIGIBLE * size)

    @property
    def polynomial(self) -> Fit:
        """The chosen polynomial, once there is one."""
        assert self.chosen is not None
        return self.chosen

    def fit_series(self, degree: int | None = None) -> SeriesFit | None:
        """The series as accurate as the polynomial, or that of a given degree; None where there is none."""
        weight = (self.mean, self.std, self.shares) if self.method == "gaussian" else (None, None, None)
        return fit_series(self.of, self.polynomial, *weight, spread=self.spread, degree=degree)

    @property
    def size(self) -> float:
        """The root mean square of the unit sizes."""
        return 1.0 if self.sizes is None else float(np.sqrt(np.mean(self.sizes**2)))

    @property
    def largest(self) -> float:
        """The largest of the unit sizes."""
        return 1.0 if self.sizes is None else float(self.sizes.max())

    def written(self, builder: Builder, name: str) -> dict[str, Attr]:
        """The attributes of the `poly` node, with its coefficients called `name`."""
        if self.series is None:
            return {"coefficients": builder.constant(np.array(self.polynomial.coefficients), name)}
        series, half_period = self.series.coefficients, self.series.half_period
        found: dict[str, Attr] = {
            "series": builder.constant(series, f"{self.node.loc.layer or self.node.op}.series"),
            "half_period": half_period,
        }
        if not self.merged:
            return {"coefficients": builder.constant(np.array(self.polynomial.coefficients), name), **found}
        return {"coefficients": builder.constant(as_polynomial(series, half_period), name), **found, "merged": 1}

    def entry(self, first: RangeEntry) -> RangeEntry:
        """The entry in the table of ranges, from that of the polynomial that was chosen first."""
        if self.merged and self.series is not None:
            error = rounding.upward(self.series.max_error * self.largest, rounding.FIGURE_BITS)
            return replace(
                first,
                degree=self.series.degree,
                method=METHOD,
                max_error=error,
                proved_error=error if self.series.proved else None,
                rms_error=rounding.nearest(self.series.rms_error * self.size),
            )
        return first

    # What OLA asks (passes/degrees/allocate_degrees.py).

    @property
    def inputs(self) -> Normals:
        """The distribution of the inputs by unit, which activations that samples reach have."""
        assert self.normals is not None
        return self.normals

    @property
    def parity(self) -> int | None:
        """0 or 1 where the function on its interval is even or odd up to a line, else None."""
        return self._symmetry()[0]

    @property
    def moments(self) -> tuple[float, float]:
        """(mean, standard deviation) of all inputs together, in multiples of the sizes."""
        share = self.inputs.shares / self.inputs.shares.sum()
        mean = float(share @ self.inputs.mean)
        return mean, math.sqrt(max(float(share @ (self.inputs.std**2 + self.inputs.mean**2)) - mean**2, 0.0))

    def _symmetry(self) -> tuple[int | None, Vector]:
        """The parity of the function minus a line, and the line's two coefficients on [-1, 1]."""
        if self.low != -self.high:
            return None, np.zeros(2)
        return symmetry(lambda t: np.asarray(self.of.evaluate(self.high * t)))

    def errors(self, most: int) -> Vector:
        """E(0), ..., E(most): the mean square error of the weighted least squares fit of each degree, in the values'
        own units.

        Fits of rising degrees are nested: one orthogonal basis serves all.
        """
        inputs = self.inputs
        t, x, measure, weight = self._weighted()
        true = density(x, inputs.mean, np.maximum(inputs.std, (self.high - self.low) * 1e-3), inputs.shares) * measure
        parity, line = self._symmetry()
        # A function that is even or odd up to a line is fitted as such (approx/fits/fit.py): the line is its other
        # parity.
        kept = np.arange(most + 1) if parity is None else np.arange(parity, most + 1, 2)
        target = np.asarray(self.of.evaluate(x), dtype=np.float64) - line[0] - line[1] * t
        basis, _ = np.linalg.qr(np.polynomial.chebyshev.chebvander(t, most)[:, kept] * weight[:, None])
        values = np.cumsum(basis * (basis.T @ (target * weight)), axis=1) / weight[:, None]
        squares = np.empty(most + 1)
        squares[kept] = true @ (values - target[:, None]) ** 2 / true.sum()
        if parity is not None:
            # A degree of the other parity has the coefficients of the degree below; degree 0 of an odd function is the
            # line.
            lowest = float(true @ target**2 / true.sum())
            others = np.arange(1 - parity, most + 1, 2)
            squares[others] = [squares[d - 1] if d else lowest for d in others]
        return np.asarray(squares * self.size**2)

    def series_errors(self) -> dict[int, float]:
        """The mean square errors of the series that bootstraps may compute, by their degrees."""
        inputs = self.inputs
        made = mean_square_errors(
            self.of.evaluate, self.low, self.high, inputs.mean, inputs.std, inputs.shares, self.spread
        )
        return {degree: error * self.size**2 for degree, error in made.items()}

    def depth(self, degree: int) -> int:
        """Levels of that degree's polynomial; 1 where degree 2 becomes a square (passes/polynomials/squares.py)."""
        if degree == 2:
            t, x, _, weight = self._weighted()
            basis = np.polynomial.chebyshev.chebvander(t, 2) * weight[:, None]
            fit = np.linalg.lstsq(basis, np.asarray(self.of.evaluate(x), dtype=np.float64) * weight, rcond=None)[0]
            if fits_a_square(fit):
                return 1
        return depth_of_degree(degree)

    def _weighted(self) -> tuple[Vector, Vector, Vector, Vector]:
        """Points of [-1, 1] and of the interval, the measure of each point and the root of its weight in the fit."""
        t = np.cos(np.linspace(math.pi, 0.0, _GRID))
        x = (self.high + self.low) / 2 + (self.high - self.low) / 2 * t
        width = np.maximum(self.spread * self.inputs.std, (self.high - self.low) * 1e-3)
        measure = np.gradient(x)
        return t, x, measure, np.sqrt((density(x, self.inputs.mean, width, self.inputs.shares) + FLOOR) * measure)


class Choice(Protocol):
    """What chooses approximations: `Approximate`, a dataclass with more fields than these."""

    @property
    def degrees(self) -> Degrees: ...

    @property
    def room(self) -> Mapping[Node, float]: ...

    @property
    def corrections(self) -> Mapping[Node, Correction]: ...

    def table(self, fused: Program) -> Approximations: ...


@dataclass(frozen=True)
class Approximations:
    """The approximations of a fused program.

    `choice`: what chose them.
    `fused`: the program.
    `frame`: the polynomial program with the polynomials that were chosen first.
    `activations`: the activations with a single polynomial, by entry in the table of ranges.
    `maxima`: the degrees of the maxima over rows that samples decided.
    `linear`: the linear maps of secret values.
    """

    choice: Choice
    fused: Program
    frame: Program
    activations: Mapping[int, Activation]
    maxima: Mapping[Node, int]
    linear: tuple[Linear, ...] = ()

    @property
    def degrees(self) -> dict[Node, int]:
        """The degree of each node of the fused program that has one."""
        return {each.node: each.polynomial.degree for each in self.activations.values()} | dict(self.maxima)

    @property
    def free(self) -> dict[int, Activation]:
        """The activations that samples reach and whose degree was not requested."""
        return {entry: each for entry, each in self.activations.items() if not each.asked and each.normals is not None}

    def anew(self, **choice: Any) -> Approximations:
        """The table made anew with these fields of `Approximate` changed: intervals may change too."""
        chosen: Choice = replace(self.choice, **choice)  # type: ignore[type-var]
        return chosen.table(self.fused)

    def corrected(self, samples: Sequence[Array], merged: Collection[int] = ()) -> Approximations:
        """The table with linear maps corrected on these samples (corrections.py), on the same degrees; for the
        activations of these entries, the samples run through the series that bootstraps compute.
        """
        raw = self.anew(corrections={}, fixed=self.degrees) if self.choice.corrections else self
        found = corrections(raw.offered.merged(merged) if merged else raw, samples)
        return raw.anew(corrections=found, fixed=self.degrees) if found else raw

    def with_degrees(self, degrees: Mapping[str, int]) -> Approximations:
        """The table with polynomials of these degrees, by layer, on the same intervals; for the activations that are
        free. The figures of the range table stay those of the first polynomials.
        """
        return self._changed({
            entry: replace(each, chosen=each.fit(degrees[each.node.loc.layer]))
            for entry, each in self.free.items()
            if each.node.loc.layer in degrees
        })  # fmt: skip

    @functools.cached_property
    def offered(self) -> Approximations:
        """The table with a series beside each polynomial that has one."""
        return self._changed(
            {entry: replace(each, series=each.fit_series()) for entry, each in self.activations.items()}
        )

    def merged(self, entries: Collection[int]) -> Approximations:
        """The table in which bootstraps compute the offered series of these entries; all other series go."""
        return self._changed({
            entry: replace(each, merged=True) if entry in entries else replace(each, series=None)
            for entry, each in self.activations.items()
        })  # fmt: skip

    def merged_like(self, other: Approximations) -> Approximations:
        """The table in which bootstraps compute the same activations as in another table of the same program, by series
        of the same degrees.
        """
        known = {each.node: each.series.degree for each in other.activations.values() if each.merged and each.series}
        return self._changed({
            entry: replace(each, series=each.fit_series(known[each.node]), merged=True)
            for entry, each in self.activations.items()
            if each.node in known
        })  # fmt: skip

    def _changed(self, activations: Mapping[int, Activation]) -> Approximations:
        return replace(self, activations={**self.activations, **activations})

    @property
    def ranges(self) -> tuple[RangeEntry, ...]:
        """The table of ranges."""
        return self.ranges_of(self.frame)

    def ranges_of(self, program: Program) -> tuple[RangeEntry, ...]:
        """The table of ranges of a program that was made from this table's."""
        known = self.activations
        return tuple(known[i].entry(each) if i in known else each for i, each in enumerate(program.ranges))

    def write(self) -> Program:
        """The polynomial program."""
        builder = Builder(self.frame.name, Stage.POLYNOMIAL, self.frame)
        builder.ranges = list(self.ranges)

        def emit(node: Node, operands: list[Node]) -> Node:
            found = self.activations.get(node.attrs.get("range", -1)) if node.op == "poly" else None
            if found is None:
                return builder.copy(node, operands)
            attrs = {**node.attrs, **found.written(builder, node.attrs["coefficients"])}
            return (
                builder.copy(node, operands) if attrs == node.attrs else builder.op("poly", operands, node.loc, **attrs)
            )

        return builder.rewrite(self.frame, emit)


def merged_entries(program: Program) -> frozenset[int]:
    """The entries in the table of ranges of the activations that a program's bootstraps compute."""
    return frozenset(
        entry
        for node in bootstraps(program)
        if node.attrs.get("series") is not None
        for entry in node.attrs.get("ranges", ())
    )
