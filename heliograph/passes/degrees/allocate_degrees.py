"""The degree of each activation's polynomial, by the effect of its error on the loss and by its price in the plan.

The loss that polynomials add is predicted as in OLA (Lee et al., "Optimized Layerwise Approximation", 2024, section 2):
the sum over the layers of A_i E_i(d_i). A_i is the impact of an error in the activation's output
(passes/degrees/impacts.py), E_i(d) the mean square error of the polynomial of degree d under the distribution of the
layer's inputs.

Mode "paper" is section 3 of OLA: each layer has its own cost tau_i(d) = round(T_i(d) / nu) for the polynomial and the
bootstrap before it, and a dynamic program over (layer, budget) finds the least loss for each budget.

Mode "plan" has no such costs: the price of a level is its price in the whole plan, which is nothing, a longer chain or
one more bootstrap. The ways to evaluate each polynomial go into the search that places bootstraps (placement.py), which
returns the front of time against loss.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from heliograph.approx.compositions.sign import odd_multiplications, sign
from heliograph.approx.evaluate import plan_polynomial
from heliograph.approx.fits.hermite import errors as hermite_errors
from heliograph.ckks.trigonometric import series_levels
from heliograph.errors import ProgramError
from heliograph.ir import Array
from heliograph.passes.bootstraps.place_bootstraps import PolynomialWay
from heliograph.passes.bootstraps.placement import MOST_LOSS
from heliograph.passes.polynomials.approximation import Activation

# A plan chooses among the degrees up to this one: the best for each number of levels and products.
MOST_DEGREE = 127
# The errors of composed ReLUs are 2^-bits of their range, for these numbers of bits.
_COMPOSED_BITS = (9, 11, 13)
# The degrees of OLA's search: those that use up their levels, and three in between.
PAPER_DEGREES = (1, 3, 7, 15, 31, 63, 127, 88, 154, 210)
# The number of budget steps for each layer.
_BUDGET_STEPS = 40
Vector = npt.NDArray[np.float64]


@functools.lru_cache(maxsize=1024)
def products_of(degree: int, parity: int | None) -> int:
    """Products of two ciphertexts in a polynomial of that degree, where coefficients of the other parity vanish up to a
    line.
    """
    coefficients = np.ones(degree + 1)
    if parity is not None:
        coefficients[2 + (1 - parity) % 2 :: 2] = 0.0
    return plan_polynomial(tuple(coefficients)).products


@dataclass(frozen=True, slots=True)
class Composed:
    """A composition of polynomials that approximates a ReLU within `error`: its levels and products."""

    error: float
    depth: int
    products: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """An activation with the degrees to choose from.

    `impact`: its impact on the loss.
    `errors`: the mean square error of each degree that is worth its levels and products.
    `composed`: compositions by their overall degrees, which are higher than all others.
    `series`: the mean square errors of series by degree, where bootstraps may compute them.
    """

    activation: Activation
    impact: float
    errors: Mapping[int, float]
    composed: Mapping[int, Composed] = field(default_factory=dict)
    series: Mapping[int, float] = field(default_factory=dict)

    @property
    def layer(self) -> str:
        return self.activation.node.loc.layer

    def loss(self, degree: int) -> float:
        """The loss that a polynomial of that degree adds."""
        return self.impact * self.error(degree)

    def error(self, degree: int) -> float:
        """The mean square error of that degree; for a composition, its bound: the square of the largest error."""
        return self.composed[degree].error ** 2 if degree in self.composed else self.errors[degree]

    def having(self, degree: int) -> Candidate:
        """The candidate with this degree among those to choose from."""
        if degree in self.errors or degree in self.composed:
            return self
        return replace(self, errors={**self.errors, degree: float(self.activation.errors(degree)[degree])})

    @property
    def depths(self) -> tuple[int, ...]:
        """The levels of all ways."""
        return tuple(self.way(degree)[0] for degree in (*self.errors, *self.composed))

    def series_for(self, degree: int) -> int:
        """The lowest degree of a series as accurate as the polynomial of that degree; 0 for none, or if it saves no
        levels.
        """
        if degree in self.composed:
            return 0
        allowed = self.having(degree).errors[degree] if self.series else 0.0
        good = (each for each, error in self.series.items() if error <= allowed)
        found = min(good, default=0)
        return found if found and series_levels(found) < self.way(degree)[0] else 0

    def way(self, degree: int) -> tuple[int, int]:
        """(levels, products) of that degree."""
        if degree in self.composed:
            return self.composed[degree].depth, self.composed[degree].products
        return self.activation.depth(degree), products_of(degree, self.activation.parity)


def worthwhile(activation: Activation, most: int = MOST_DEGREE) -> dict[int, float]:
    """The errors of the degrees that no other degree beats in levels, products and error, the lowest degree first."""
    errors, parity = activation.errors(most), activation.parity
    found: dict[int, float] = {}
    kept: list[tuple[int, int, float]] = []
    # Lower degrees come first, so they win over higher ones with the same error, levels and products.
    for degree in range(1, most + 1):
        depth, products, error = activation.depth(degree), products_of(degree, parity), float(errors[degree])
        if any(d <= depth and p <= products and e <= error * (1 + 1e-9) for d, p, e in kept):
            continue
        # A degree with less error, and no more levels or products than a lower one, replaces it.
        for other, (d, p, _) in list(zip(found, kept, strict=True)):
            if d >= depth and p >= products:
                kept.remove((d, p, found.pop(other)))
        found[degree] = error
        kept.append((depth, products, error))
    return found


def compositions(activation: Activation) -> dict[int, Composed]:
    """Compositions for a ReLU, x (1 + sign(x)) / 2, by their overall degrees; their errors are shares of its range."""
    if activation.node.op != "relu":
        return {}
    # With unit sizes, the composition has the range of the largest unit.
    reach = max(abs(activation.low), abs(activation.high)) * activation.largest
    found = {}
    for bits in _COMPOSED_BITS:
        error = reach * 2.0**-bits
        plan = sign(2.0**-bits, float(bits))
        degree = math.prod(plan.degrees)
        if degree > MOST_DEGREE:
            products = sum(odd_multiplications(each) for each in plan.degrees)
            found[degree] = Composed(error, plan.depth + 1, products + 1)
    return found


@dataclass(frozen=True, slots=True)
class Table:
    """The candidates of a program by entry in the table of ranges, and the unit of loss.

    Activations with the same layer name take one degree (`Options.degrees` goes by names): they form a group.
    """

    candidates: Mapping[int, Candidate]
    unit: float = field(init=False)

    def __post_init__(self) -> None:
        largest = sum(max(map(each.loss, (*each.errors, *each.composed))) for each in self.candidates.values())
        object.__setattr__(self, "unit", largest / (MOST_LOSS >> 2) if largest > 0 else 1.0)

    def groups(self) -> dict[int, int]:
        """The group of each entry: the first entry of its layer."""
        first: dict[str, int] = {}
        return {entry: first.setdefault(each.layer, entry) for entry, each in self.candidates.items()}

    def ways(self) -> dict[int, tuple[PolynomialWay, ...]]:
        """The ways to evaluate each entry's polynomial, the lowest degree first; a group shares its degrees."""
        groups = self.groups()
        shared: dict[int, set[int]] = {}
        for entry, group in groups.items():
            degrees = {*self.candidates[entry].errors, *self.candidates[entry].composed}
            shared[group] = shared[group] & degrees if group in shared else degrees
        return {
            entry: tuple(
                PolynomialWay(
                    degree,
                    *each.way(degree),
                    # Rounded up, so that a bound on the sum of units is a bound on the loss.
                    math.ceil(each.loss(degree) / self.unit),
                    each.series_for(degree),
                )
                for degree in sorted(shared[groups[entry]])
            )
            for entry, each in self.candidates.items()
        }

    def fixed(self, degrees: Mapping[str, int]) -> dict[int, tuple[PolynomialWay, ...]]:
        """The single way of each entry under these degrees by layer, whether they are candidates or not."""
        return {
            entry: (
                PolynomialWay(
                    degrees[each.layer], *each.way(degrees[each.layer]), series=each.series_for(degrees[each.layer])
                ),
            )
            for entry, each in self.candidates.items()
        }

    def of(self, errors: Callable[[Activation], Mapping[int, float]]) -> Table:
        """The table with the degrees and errors that `errors` gives for each activation."""
        return Table({entry: replace(each, errors=errors(each.activation)) for entry, each in self.candidates.items()})

    def having(self, degrees: Mapping[str, int]) -> Table:
        """The table with these degrees by layer added to the candidates."""
        return Table({entry: each.having(degrees[each.layer]) for entry, each in self.candidates.items()})

    def loss(self, degrees: Mapping[str, int]) -> float:
        """The predicted loss of degrees by layer, all of them candidates."""
        return sum(each.loss(degrees[each.layer]) for each in self.candidates.values())

    def composed(self, degrees: Mapping[str, int]) -> dict[str, float]:
        """The error bounds of the composed layers, the smallest of each layer."""
        found: dict[str, float] = {}
        for each in self.candidates.values():
            if degrees[each.layer] in each.composed:
                error = each.composed[degrees[each.layer]].error
                found[each.layer] = min(error, found.get(each.layer, error))
        return found

    def composing(self) -> Table:
        """The table in which ReLUs may be composed."""
        return Table({e: replace(each, composed=compositions(each.activation)) for e, each in self.candidates.items()})

    @property
    def composable(self) -> bool:
        """Whether there are ReLUs, which can be composed from several polynomials."""
        return any(each.activation.node.op == "relu" for each in self.candidates.values())


@dataclass(frozen=True, slots=True)
class Point:
    """An allocation of degrees.

    `degrees`: by layer; for composed layers, the overall degree of the composition.
    `loss`: the predicted loss.
    `predicted_ms`: the time by which it was chosen.
    `errors`: the errors of the composed layers (`Options.errors`).
    """

    degrees: Mapping[str, int]
    loss: float
    predicted_ms: float
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def single(self) -> dict[str, int]:
        """The degrees of the layers with a single polynomial."""
        return {layer: degree for layer, degree in self.degrees.items() if layer not in self.errors}


def paper_errors(activation: Activation, degrees: Sequence[int] = PAPER_DEGREES) -> dict[int, float]:
    """E_i(d) by OLA's definition: under one normal on the whole line, fitted to all of the activation's inputs."""
    mean, std = activation.moments
    std = max(std, 1e-15)
    found = hermite_errors(activation.of.evaluate, mean, activation.spread * std, max(degrees), activation.of.kinks)
    return {degree: float(found[degree]) * activation.size**2 for degree in sorted(degrees)}


def paper_points(losses: Mapping[str, Mapping[int, float]], cost_ms: Callable[[str, int], float]) -> list[Point]:
    """OLA's allocations for every budget, the cheapest first; `losses` is A_i E_i(d) by layer and degree.

    `cost_ms(layer, degree)` is T, rounded to whole steps of nu = the dearest layer over `_BUDGET_STEPS`. Ties go to the
    lower degrees of the layers that come first by name.
    """
    names = sorted(losses)
    times = [{degree: cost_ms(name, degree) for degree in losses[name]} for name in names]
    nu = max(max(row.values()) for row in times) / _BUDGET_STEPS
    taus = [{degree: max(1, round(ms / nu)) for degree, ms in row.items()} for row in times]
    budget = sum(max(row.values()) for row in taus)
    best: Vector = np.zeros(budget + 1)
    picks: list[Array] = []
    for name, tau in zip(names, taus, strict=True):
        least: Vector = np.full(budget + 1, math.inf)
        pick: Array = np.zeros(budget + 1, dtype=np.int64)
        for degree, loss in sorted(losses[name].items()):
            moved: Vector = np.full(budget + 1, math.inf)
            moved[tau[degree] :] = best[: budget + 1 - tau[degree]] + loss
            better = moved < least
            least[better], pick[better] = moved[better], degree
        best = least
        picks.append(pick)
    points: list[Point] = []
    for total in range(budget + 1):
        if not best[total] < (points[-1].loss if points else math.inf):
            continue
        left, degrees = total, {}
        for name, tau, pick in zip(reversed(names), reversed(taus), reversed(picks), strict=True):
            degrees[name] = int(pick[left])
            left -= tau[degrees[name]]
        spent = sum(row[degrees[name]] for name, row in zip(names, times, strict=True))
        points.append(Point(degrees, float(best[total]), spent))
    return points


def require_candidates(table: Table, program: str) -> None:
    """Raise a ProgramError if there is nothing to allocate."""
    if not table.candidates:
        raise ProgramError(
            f"{program} has no activation whose degree could be chosen",
            where="Options.allocate",
            hint="leave allocate out: polynomials that are given, and compositions, keep their degrees",
        )
