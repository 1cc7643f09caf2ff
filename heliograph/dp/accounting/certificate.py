"""Certificates: a bracket as a file that another program can check, and the checker.

A certificate is a JSON object:

    {"format": "heliograph-privacy-certificate", "version": 1, "expression": "...", "event": {...} or null,
     "neighboring_relation": "add_remove", "delta": 1e-5, "directions": {"add": [lower, upper], "remove": [lower, upper]},
     "definition": "...", "pairs": {"above": [...], "below": [...]}}

`expression` is the composition in the expression language, `event` the same as dp-accounting's event if it has one.
`pairs` names the pairs of distributions that bound it from each side, with counts; `docs/privacy.md` and
`docs/samplers.md` have the proofs. The claim of a direction is that delta at `upper` is at most, and at `lower` at
least, the certificate's delta; so a checker needs one delta at each end, by any method that it trusts, and no search.
`check` computes these deltas anew from the expression alone, by the bracket on delta (closed forms if there are any),
which shares the definition of the pairs with the search for epsilon, but none of its steps.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heliograph.dp.accounting.accountant import delta as delta_of
from heliograph.dp.accounting.accountant import epsilon as epsilon_of
from heliograph.dp.accounting.exchange import to_event
from heliograph.dp.accounting.result import Bracket, Tolerance, json_number
from heliograph.dp.composition import Composition
from heliograph.dp.language import parse
from heliograph.dp.mechanisms import DIRECTIONS, Mechanism, Neighboring
from heliograph.errors import ProgramError, UnsupportedError, WireError
from heliograph.files import write_file

FORMAT = "heliograph-privacy-certificate"
VERSION = 1

_DEFINITION = (
    "Neighbours differ by one record. In direction remove the data set of A has it and that of B has not, in direction"
    " add the reverse; a claim about epsilon e at delta d in a direction is about the sup over events S of P_A(S)"
    " - exp(e) P_B(S), for the worst pair of data sets. A Gaussian's noise multiplier is its deviation over the bound on one"
    " record's vector."
)


@dataclass(frozen=True)
class Checked:
    """The result of a check of a certificate: each claim with the delta computed for it, and the claims that fail."""

    holds: bool
    claims: int
    delta: float
    problems: tuple[str, ...]
    undecided: tuple[str, ...] = ()
    """Claims that the check's own bracket was too wide to decide; they count as not holding."""


def certificate(
    composition: Composition | Mechanism,
    delta: float,
    *,
    neighboring: Neighboring = "add_remove",
    tolerance: Tolerance | None = None,
) -> dict[str, Any]:
    """The certificate of a composition's bracket on epsilon. Raises ProgramError for pairs whose masses are estimated."""
    whole = Composition.of(composition)
    found: Bracket = epsilon_of(whole, delta, neighboring=neighboring, tolerance=tolerance)
    if not found.proved:
        raise ProgramError(
            "this bracket is not proved", where="certificate", why=found.reason, hint="use mechanisms of a formula"
        )
    try:
        event: dict[str, Any] | None = to_event(whole)
    except UnsupportedError:
        event = None
    under = whole.under(neighboring).simplified()
    sides = {
        side: [{"pair": mechanism.text(), "count": count} for mechanism, count in under.bounded(side, delta)]
        for side in ("above", "below")
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "expression": whole.text(),
        "event": event,
        "neighboring_relation": neighboring,
        "delta": delta,
        "directions": {
            name: [json_number(found.directions[name].lower), json_number(found.directions[name].upper)]
            for name in DIRECTIONS
        },
        "pairs": sides,
        "distance": under.distance,
        "definition": _DEFINITION,
    }


def write_certificate(path: str | Path, value: dict[str, Any]) -> None:
    """Write a certificate as JSON."""
    write_file(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def is_certificate(value: object) -> bool:
    """Whether a JSON value declares itself a certificate."""
    return isinstance(value, dict) and value.get("format") == FORMAT


def check(value: object) -> Checked:
    """Check a certificate from its expression, relation and claims alone. Raises WireError for any other value."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise WireError("this is not a certificate", where="format")
    if value.get("version") != VERSION:
        raise WireError(f"version {value.get('version')!r} of a certificate is not known", where="version")
    expression, at, relation = value.get("expression"), value.get("delta"), value.get("neighboring_relation")
    if not isinstance(expression, str) or isinstance(at, bool) or not isinstance(at, int | float) or not 0 < at < 1:
        raise WireError("a certificate needs an expression and a delta", where="certificate")
    if relation not in ("add_remove", "replace"):
        raise WireError(f"neighboring_relation = {relation!r} is not known", where="neighboring_relation")
    composition = parse(expression)
    directions = value.get("directions")
    if not isinstance(directions, dict) or set(directions) != set(DIRECTIONS):
        raise WireError("a certificate has claims for both directions", where="directions")
    problems: list[str] = []
    undecided: list[str] = []
    claims = 0
    for name in DIRECTIONS:
        ends = directions[name]
        if not isinstance(ends, list) or len(ends) != 2:
            raise WireError("the claim of a direction is [lower, upper]", where=f"directions.{name}")
        for what, end in zip(("lower", "upper"), ends, strict=True):
            claims += 1
            number = _epsilon(end, f"directions.{name}")
            if (what == "lower" and number == 0) or (what == "upper" and math.isinf(number)):
                continue
            verdict = _verdict(composition, number, float(at), name, what, relation)
            if verdict:
                (undecided if verdict.startswith("undecided") else problems).append(f"{name}, {what}: {verdict}")
    return Checked(not problems and not undecided, claims, float(at), tuple(problems), tuple(undecided))


def _verdict(
    composition: Composition, epsilon: float, at: float, direction: Any, what: str, neighboring: Neighboring
) -> str:
    """The error in a claim; empty if the claim holds."""
    if math.isinf(epsilon):
        # A lower bound of infinity: delta at every finite epsilon is above the claim, so a large one is tested.
        epsilon = 1e5
    for share in (0.01, 1e-3, 1e-5, 1e-7):
        found = delta_of(
            composition, epsilon, neighboring=neighboring, tolerance=Tolerance(delta_share=share, seconds=12.0)
        ).directions[direction]
        assert found.lower is not None
        assert found.upper is not None
        # The ends of a bracket on epsilon are where a bound on delta crosses the claim, up to the rounding of both.
        slack = 1e-6
        if what == "upper":
            if found.upper <= at * (1 + slack):
                return ""
            if found.lower > at * (1 + slack):
                return f"delta at {epsilon!r} is at least {found.lower!r}, above {at!r}"
        else:
            if found.lower >= at * (1 - slack):
                return ""
            if found.upper < at * (1 - slack):
                return f"delta at {epsilon!r} is at most {found.upper!r}, below {at!r}"
    return f"undecided: delta at {epsilon!r} lies in [{found.lower!r}, {found.upper!r}]"


def _epsilon(value: object, where: str) -> float:
    if value == "inf":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0 or math.isinf(value):
        raise WireError(f"an epsilon of {value!r} is not a number", where=where)
    return float(value)


__all__ = ["FORMAT", "Checked", "certificate", "check", "is_certificate", "write_certificate"]
