"""`auto`: closed forms if there are any, else the bracket by FFT."""

from __future__ import annotations

from heliograph.dp.accounting.exact import Exact
from heliograph.dp.accounting.pld import LossDistribution
from heliograph.dp.accounting.result import Estimate, Tolerance
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Direction


class Auto:
    """The closed form of a composition, or its bracket."""

    name = "auto"
    proved = True
    remark = ""

    def __init__(self) -> None:
        self.used = ""

    def epsilon(self, composition: Composition, direction: Direction, delta: float, tolerance: Tolerance) -> Estimate:
        """Epsilon at delta."""
        return self._chosen(composition).epsilon(composition, direction, delta, tolerance)

    def delta(self, composition: Composition, direction: Direction, epsilon: float, tolerance: Tolerance) -> Estimate:
        """Delta at epsilon."""
        return self._chosen(composition).delta(composition, direction, epsilon, tolerance)

    def _chosen(self, composition: Composition) -> Exact | LossDistribution:
        exact = Exact()
        method = exact if exact.suits(composition) else LossDistribution()
        # The two directions may use different methods; both are named.
        if method.name not in self.used.split("+"):
            self.used = f"{self.used}+{method.name}" if self.used else method.name
        return method
