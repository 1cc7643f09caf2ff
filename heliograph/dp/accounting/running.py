"""Accounting step by step in a loop, for mechanisms that are fixed before the data (a plan).

A reading costs one bracket of the steps so far, by the one driver with all its checks; it does not grow with their
number. For mechanisms chosen after seeing outcomes use `filters`.
"""

from __future__ import annotations

from heliograph.dp.accounting.accountant import check_delta, epsilon_at
from heliograph.dp.accounting.result import Bracket, Tolerance
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Mechanism, Neighboring


class RunningAccountant:
    """An accountant that records steps during a run and gives epsilon at one delta at any time."""

    def __init__(
        self, delta: float, tolerance: Tolerance | None = None, *, neighboring: Neighboring = "add_remove"
    ) -> None:
        check_delta(delta)
        self.delta, self.tolerance, self.neighboring = delta, tolerance, neighboring
        self.composition = Composition()

    def step(self, mechanism: Mechanism, count: int = 1) -> None:
        """Record `count` runs of a mechanism. Raises ProgramError where no relation is that of all steps."""
        more = self.composition + mechanism * count
        more.under(self.neighboring)
        self.composition = more

    def epsilon(self) -> Bracket:
        """The bracket on epsilon now."""
        return epsilon_at(self.composition, self.delta, tolerance=self.tolerance, neighboring=self.neighboring)
