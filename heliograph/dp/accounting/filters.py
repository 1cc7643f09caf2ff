"""Privacy filters and odometers: accounting for mechanisms that may be chosen after seeing the outputs of earlier ones.

With adaptively chosen mechanisms a composed bracket of the executed ones is not a guarantee: the parameters depend on
outcomes. The guarantee is a budget fixed beforehand: if Renyi divergences of one order, each computed for the mechanism
in its chosen form, never sum to more than rho, the whole is (order, rho)-Renyi private (Feldman and Zrnic 2021, theorem
3.1; Lecuyer 2021). So a filter fixes its order and budget on construction; `spend` refuses a charge beyond it, before
any noise is drawn. Its epsilon is its budget's, whenever the run stops: a run that stops at a time that depends on
outcomes may not report less. An odometer holds at all times at once, by a sequence of filters that share delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from heliograph.dp.accounting.accountant import check_delta, check_epsilon
from heliograph.dp.accounting.rdp import conversion, epsilon_bound, log_moment, lost_mass
from heliograph.dp.composition import Composition
from heliograph.dp.concentrated import Zcdp
from heliograph.dp.mechanisms import DIRECTIONS, Mechanism, Neighboring
from heliograph.errors import BudgetError, PlanningError, ProgramError

_ROUND = 1e-12
"""Relative slack that every comparison with a budget gives away, for the round-off of sums."""


def _charge(mechanism: Mechanism, count: int, neighboring: Neighboring) -> Mechanism:
    """The mechanism of a charge under a relation. Raises ProgramError if it is for another, or nothing is charged."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise ProgramError(f"a count must be a positive integer, not {count!r}", where="spend")
    if neighboring == "replace":
        return mechanism.replaced()
    if mechanism.relation == "replace":
        raise ProgramError(
            f"{mechanism.name} is accounted for under replace",
            where=mechanism.text(),
            why="one budget is for one neighbouring relation",
            hint="give the filter neighboring='replace', or charge pure(epsilon=...)",
        )
    return mechanism


def divergence(mechanism: Mechanism, order: float) -> float:
    """The Renyi divergence of an order > 1, the larger of both neighbouring directions; an upper bound."""
    theta = order - 1
    if isinstance(mechanism, Zcdp):
        return mechanism.xi + mechanism.rho * order
    parts = mechanism.bounded("above", 1, 1e-10)
    if parts is not None:
        return math.fsum(count * divergence(part, order) for part, count in parts)
    # Lost mass below 1e-200 is only the cut-off of a table, and negligible for every delta that is accepted here.
    if any(lost_mass(mechanism, direction) > 1e-200 for direction in DIRECTIONS):
        return math.inf
    return max(log_moment(mechanism, theta, direction) for direction in DIRECTIONS) / theta


def best_order(plan: Composition | Mechanism, delta: float) -> float:
    """The order at which a public plan has the least epsilon: a good choice for a filter, made before the data."""
    composition = Composition.of(plan).simplified()
    thetas = [epsilon_bound(composition, direction, delta) for direction in DIRECTIONS]
    return 1 + max(thetas)[1]


@dataclass
class RenyiFilter:
    """A filter of one Renyi order: (epsilon, delta) is the guarantee, fixed on construction, for fully adaptive runs.

    `spend` charges mechanisms or raises `BudgetError`; call it before drawing their noise. `epsilon` and `delta` may be
    reported, whatever the charges; `epsilon_spent` is for planning and progress only.
    """

    epsilon: float
    delta: float
    order: float
    budget: float = field(init=False)
    spent: float = field(default=0.0)
    steps: int = field(default=0)
    neighboring: Neighboring = "add_remove"

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        if not 1 < self.order < 1e6:
            raise ProgramError(f"order = {self.order!r} is not in (1, 1e6)", where="RenyiFilter")
        # What gives epsilon once the order's conversion term is added.
        self.budget = self.epsilon - conversion(self.order - 1, self.delta)
        if self.budget <= 0:
            raise PlanningError(
                f"order {self.order:g} leaves no budget for epsilon = {self.epsilon:g} at delta = {self.delta:g}",
                where="RenyiFilter",
                why=f"its conversion term alone is {self.epsilon - self.budget:.4g}",
                hint="use a larger order (best_order of a plan finds one)",
            )
        if not self.spent >= 0 or self.steps < 0:
            raise ProgramError("what was spent cannot be negative", where="RenyiFilter")

    @classmethod
    def for_plan(cls, plan: Composition | Mechanism, epsilon: float, delta: float) -> RenyiFilter:
        """A filter whose order suits a public plan."""
        return cls(epsilon, delta, best_order(plan, delta))

    def cost(self, mechanism: Mechanism, count: int = 1) -> float:
        """The charge for a mechanism. Raises ProgramError if it is not for the filter's neighbouring relation."""
        return count * divergence(_charge(mechanism, count, self.neighboring), self.order)

    def fits(self, mechanism: Mechanism, count: int = 1) -> bool:
        """Whether a mechanism could be charged now."""
        return (self.spent + self.cost(mechanism, count)) * (1 + _ROUND) <= self.budget

    def spend(self, mechanism: Mechanism, count: int = 1) -> None:
        """Charge a mechanism, or raise BudgetError and charge nothing."""
        if not self.fits(mechanism, count):
            raise BudgetError(
                f"the privacy budget does not admit {mechanism.text()} * {count}",
                where=f"filter (epsilon {self.epsilon:g}, delta {self.delta:g}), after {self.steps} steps",
                why=f"it costs {self.cost(mechanism, count):.6g}; of {self.budget:.6g} there is {self.remaining:.6g} left",
                hint="stop here: what was released so far is within the budget",
            )
        self.spent = (self.spent + self.cost(mechanism, count)) * (1 + 2.0**-50)
        self.steps += count

    @property
    def remaining(self) -> float:
        """The remaining budget, in Renyi divergence."""
        return self.budget - self.spent

    @property
    def committed(self) -> float:
        """The share of the budget that is charged, for progress bars; no guarantee follows from it."""
        return self.spent / self.budget

    @property
    def epsilon_spent(self) -> float:
        """The epsilon of the charges so far; no guarantee for a run that was stopped because of its outcomes."""
        return max(self.spent + conversion(self.order - 1, self.delta), 0.0) if self.steps else 0.0

    def steps_left(self, mechanism: Mechanism) -> int:
        """The number of further runs of a mechanism that the budget admits."""
        each = self.cost(mechanism)
        if each <= 0:
            return 10**9
        left = max(int((self.budget / (1 + _ROUND) - self.spent) / each) + 1, 0)
        while left and not self.fits(mechanism, left):
            left -= 1
        return left

    def to_json(self) -> dict[str, float | int | str]:
        """The state, for a checkpoint; `from_json` restores it."""
        return {"kind": "renyi_filter", **{name: each for name, each in vars(self).items() if name != "budget"}}

    @classmethod
    def from_json(cls, state: dict[str, object]) -> RenyiFilter:
        """The filter of a checkpoint. Raises ProgramError for any other value."""
        try:
            numbers = [float(state[key]) for key in ("epsilon", "delta", "order", "spent")]  # type: ignore[arg-type]
            steps = int(state["steps"])  # type: ignore[call-overload]
        except (KeyError, TypeError, ValueError) as error:
            raise ProgramError("no state of a Renyi filter", where="RenyiFilter.from_json", why=repr(error)) from None
        neighboring = state.get("neighboring", "add_remove")
        if neighboring not in ("add_remove", "replace"):
            raise ProgramError(f"no neighbouring relation {neighboring!r}", where="RenyiFilter.from_json")
        return cls(numbers[0], numbers[1], numbers[2], spent=numbers[3], steps=steps, neighboring=neighboring)


@dataclass
class RenyiOdometer:
    """A bound on epsilon that holds at all times at once, for fully adaptive runs without a budget.

    Filter j = 0, 1, 2, ... has budget `first * 2^j` in Renyi divergence at its own order, and the share
    `delta / ((j + 1)(j + 2))` of delta. The reading is the epsilon of the first filter that was never exceeded; by the
    union bound over filters it holds at every time of reading, and decisions may depend on it.
    """

    delta: float
    first: float = 0.01
    levels: int = 40
    spent: dict[int, float] = field(default_factory=dict)
    steps: int = 0
    neighboring: Neighboring = "add_remove"

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if not self.first > 0 or not 1 <= self.levels <= 60:
            raise ProgramError("first must be positive and levels in [1, 60]", where="RenyiOdometer")
        self.shares = [self.delta / ((j + 1) * (j + 2)) for j in range(self.levels)]
        # For a budget rho the best order is 1 + sqrt(log(1/delta) / rho), as for Gaussian noise of rho * order.
        self.orders = [1 + math.sqrt(-math.log(share) / (self.first * 2.0**j)) for j, share in enumerate(self.shares)]
        self.budgets = [self.first * 2.0**j * order for j, order in enumerate(self.orders)]

    def spend(self, mechanism: Mechanism, count: int = 1) -> None:
        """Charge a mechanism to every filter."""
        mechanism = _charge(mechanism, count, self.neighboring)
        for j, order in enumerate(self.orders):
            self.spent[j] = (self.spent.get(j, 0.0) + count * divergence(mechanism, order)) * (1 + 2.0**-50)
        self.steps += count

    @property
    def epsilon(self) -> float:
        """A bound on epsilon at delta that holds now and at all other times; infinite when every filter is exceeded."""
        for j, order in enumerate(self.orders):
            if self.spent.get(j, 0.0) * (1 + _ROUND) <= self.budgets[j]:
                return self.budgets[j] + conversion(order - 1, self.shares[j])
        return math.inf
