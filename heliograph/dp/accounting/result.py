"""An accountant's results: a bracket on epsilon or delta, with facts about its quality."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import Any

from heliograph.dp.mechanisms import Direction


@dataclass(frozen=True)
class Tolerance:
    """The allowed width of a bracket: on epsilon the larger of `absolute` and `relative` times it; on delta a share of
    it.

    No refinement begins that, judging by the one before, would take both directions together past `seconds` of the
    processor: the bracket is then wider, and says so.
    """

    absolute: float = 1e-3
    relative: float = 1e-4
    delta_share: float = 0.01
    seconds: float = 20.0

    def for_epsilon(self, epsilon: float) -> float:
        """The allowed width at an epsilon."""
        return max(self.absolute, self.relative * epsilon) if math.isfinite(epsilon) else math.inf


@dataclass(frozen=True)
class Estimate:
    """One number in one direction: two bounds (None: this method has none) and the best guess between them."""

    lower: float | None
    estimate: float
    upper: float | None

    @classmethod
    def between(cls, lower: float, upper: float) -> Estimate:
        """Two bounds and their middle: bounds from above and from below err by nearly the same amount."""
        return cls(lower, upper if math.isinf(upper) else (lower + upper) / 2, upper)


@dataclass(frozen=True)
class Bracket:
    """Bounds on the epsilon (or delta) of a composition, the larger of both neighbouring directions.

    `proved` means that lower and upper are bounds with floating-point error included (P1 to P5,
    test_both_directions_below_the_renyi_bound). `reached` means that the bracket
    is within the requested tolerance. `reason` is why a value is infinite, or a remark on the method.
    """

    quantity: str
    lower: float | None
    estimate: float
    upper: float | None
    epsilon: float | None
    delta: float | None
    method: str
    direction: Direction
    directions: dict[Direction, Estimate]
    seconds: float
    proved: bool
    reached: bool
    neighboring: str = "add_remove"
    reason: str = ""
    composition: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for lower, upper in (
            (self.lower, self.upper),
            *((each.lower, each.upper) for each in self.directions.values()),
        ):
            if lower is not None and upper is not None and not lower <= upper:
                raise AssertionError(f"a lower bound {lower!r} is above the upper bound {upper!r}")

    @property
    def width(self) -> float:
        """upper - lower; infinite where either is missing."""
        if self.lower is None or self.upper is None:
            return math.inf
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    def __repr__(self) -> str:
        return f"<Bracket: {self._sentence()}, {self.method}, {'proved' if self.proved else 'not proved'}>"

    def __str__(self) -> str:
        """The text on the command line: a line for the bracket, for each direction, and for its computation."""
        lines = [self._sentence()]
        if self._bounded:
            lines += [f"  {name}: {_interval(each)}" for name, each in self.directions.items()]
        kind = "proved" if self.proved else "not proved"
        milliseconds = 1000 * self.seconds
        lines.append(f"  method {self.method} ({kind}), neighbours by {self.neighboring}, {milliseconds:.1f} ms")
        if self.reason:
            lines.append(f"  {self.reason}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        rows = [(self.quantity, self._sentence())]
        if self._bounded:
            rows += [(name, _interval(each)) for name, each in self.directions.items()]
        rows += [("method", f"{self.method}, {'proved' if self.proved else 'not proved'}")]
        rows += [("composition", self.composition)] if self.composition else []
        rows += [("remark", self.reason)] if self.reason else []
        body = "".join(f"<tr><th>{escape(title)}</th><td>{escape(text)}</td></tr>" for title, text in rows)
        return f"<table>{body}</table>"

    @property
    def _bounded(self) -> bool:
        return self.lower is not None or self.upper is not None

    def _sentence(self) -> str:
        """The bracket with its delta or epsilon; an estimate alone is not shown as a bracket."""
        given = f"delta {self.delta:.3g}" if self.quantity == "epsilon" else f"epsilon {self.epsilon:.6g}"
        if not self._bounded:
            return f"{self.quantity} is about {shown_number(self.estimate)} at {given}: an estimate, not a bound"
        bounds = _interval(Estimate(self.lower, self.estimate, self.upper))
        return f"{self.quantity} in {bounds}, about {shown_number(self.estimate)}, at {given}"

    def to_json(self) -> dict[str, Any]:
        """The bracket as a JSON object; infinity is the string "inf", which float() reads in most languages."""
        given = {"delta": self.delta} if self.quantity == "epsilon" else {"epsilon": self.epsilon}
        return {
            "lower": json_number(self.lower),
            "estimate": json_number(self.estimate),
            "upper": json_number(self.upper),
            **{key: json_number(value) for key, value in given.items()},
            "method": self.method,
            "direction": self.direction,
            "directions": {
                name: [json_number(each.lower), json_number(each.upper)] for name, each in self.directions.items()
            },
            "seconds": round(self.seconds, 6),
            "proved": self.proved,
            "tolerance_reached": self.reached,
            "neighboring_relation": self.neighboring,
            "reason": self.reason,
        }


def shown_number(value: float | str | None) -> str:
    """A bound in a readable form: six digits, "none" if a method has none."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else f"{value:.6g}"


def _interval(each: Estimate) -> str:
    return f"[{shown_number(each.lower)}, {shown_number(each.upper)}]"


def json_number(value: float | None) -> float | str | None:
    """A number in a form that JSON can hold."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
