"""`auto`: a proved bracket by the first method that gives one within the tolerance."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from heliograph.dp.accounting.exact import Exact
from heliograph.dp.accounting.inversion import Inversion
from heliograph.dp.accounting.pld import LossDistribution
from heliograph.dp.accounting.result import Estimate, Tolerance
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Direction
from heliograph.errors import ProgramError


class Auto:
    """Closed forms if there are any, else inversion if it is proved and steps are many, else the bracket by FFT."""

    name = "auto"
    proved = True
    remark = ""

    def __init__(self) -> None:
        self.used = ""

    def epsilon(self, composition: Composition, direction: Direction, delta: float, tolerance: Tolerance) -> Estimate:
        """Epsilon at delta by the first method that is proved and within the tolerance."""
        began = time.thread_time()
        for method in (Exact(), Inversion(least_steps=20_000)):
            if not method.suits(composition):
                continue
            try:
                found = method.epsilon(composition, direction, delta, tolerance)
            except ProgramError:
                continue
            if _width(found) <= tolerance.for_epsilon(found.lower or 0.0):
                self._note(method.name)
                return found
        self._note("pld")
        return LossDistribution().epsilon(composition, direction, delta, _left(tolerance, began))

    def delta(self, composition: Composition, direction: Direction, epsilon: float, tolerance: Tolerance) -> Estimate:
        """Delta at epsilon by the first method that is proved and within the tolerance."""
        began = time.thread_time()
        for method in (Exact(), Inversion(least_steps=20_000)):
            if not method.suits(composition):
                continue
            try:
                found = method.delta(composition, direction, epsilon, tolerance)
            except ProgramError:
                continue
            if _width(found) <= max(tolerance.delta_share * (found.lower or 0.0), 1e-300):
                self._note(method.name)
                return found
        self._note("pld")
        return LossDistribution().delta(composition, direction, epsilon, _left(tolerance, began))

    def _note(self, name: str) -> None:
        # The two directions may use different methods; both are named.
        if name not in self.used.split("+"):
            self.used = f"{self.used}+{name}" if self.used else name


def _left(tolerance: Tolerance, began: float) -> Tolerance:
    """The tolerance with its remaining seconds."""
    return replace(tolerance, seconds=max(tolerance.seconds - (time.thread_time() - began), 0.0))


def _width(found: Estimate) -> float:
    if found.lower is None or found.upper is None:
        return math.inf
    return 0.0 if found.lower == found.upper else found.upper - found.lower
