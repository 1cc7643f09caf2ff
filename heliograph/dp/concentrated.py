"""Zero-concentrated privacy as a mechanism: what is known of it is a bound on all Renyi divergences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from heliograph.dp.mechanisms import Direction, Gaussian, Mechanism, Side
from heliograph.dp.pairs import Pair
from heliograph.errors import ProgramError

if TYPE_CHECKING:
    from heliograph.dp.composition import Composition

_POINTS = 1500
"""Of the profile above: its chords lie above the curve by some (epsilon / points)^2."""
_LARGEST = 500.0
_THETAS = np.geomspace(1e-4, 1e6, 4000)
"""Orders less one; every one gives a bound."""


@dataclass(frozen=True)
class Zcdp(Mechanism):
    """Any mechanism whose Renyi divergence of every order a is at most xi + rho a, between all neighbours (P7).

    Several add up to one. Above stands the worst mechanism with the profile that follows from the divergences; below,
    the Gaussian mechanism with this rho, which is one of those meant.
    """

    rho: float
    xi: float = 0.0
    name = "zcdp"
    symmetric = True
    relation = None
    adds_up = True

    def __post_init__(self) -> None:
        self._check("rho", 1e-12, 1e4, "the rho of one mechanism lies in [1e-12, 10,000]")
        self._check("xi", 0.0, 1e4, "the xi of one mechanism lies in [0, 10,000]")

    @classmethod
    def added_up(cls, items: Sequence[tuple[Zcdp, int]]) -> Zcdp:
        """One for several, each with its count; rounded up."""
        rho, xi = (math.fsum(getattr(each, name) * count for each, count in items) for name in ("rho", "xi"))
        return cls(rho * (1 + 1e-15), xi * (1 + 1e-15))

    def pair(self, direction: Direction) -> Pair:
        raise ProgramError("zcdp has no one pair", where=self.text(), hint="ask for epsilon or delta, or use `bounded`")

    def bounded(self, side: Side, count: int, delta: float) -> Composition:
        if side == "below":
            return Gaussian(math.sqrt(1 / (2 * self.rho))) * count
        return _profile(self.rho * count, self.xi * count, math.log(delta) - 10.0) * 1


@lru_cache(maxsize=16)
def _profile(rho: float, xi: float, log_least: float) -> Mechanism:
    """The profile of (xi, rho)-zCDP, down to the least delta, by the conversion of Canonne, Kamath, Steinke 2020."""
    from heliograph.dp.custom import Profile

    constant = (xi + rho * (_THETAS + 1)) * _THETAS + _THETAS * np.log(_THETAS / (1 + _THETAS)) - np.log1p(_THETAS)
    largest = float(np.min((constant - log_least) / _THETAS))
    if not largest < _LARGEST:
        raise ProgramError(
            f"zcdp(rho={rho:g}) has an epsilon of {largest:.3g}",
            where="zcdp",
            why=f"its profile is tabulated up to {_LARGEST:g}",
            hint="epsilon_of_zcdp converts it alone",
        )
    epsilons = np.linspace(0.0, max(largest, 1e-9), _POINTS)
    log_deltas = np.array([float(np.min(constant - _THETAS * e)) for e in epsilons])
    return Profile(tuple(epsilons.tolist()), tuple(np.minimum(np.exp(log_deltas) * (1 + 1e-12), 1.0).tolist()))


__all__ = ["Zcdp"]
