"""Certificates: a bracket as a file that another program can check, and the checker.

A certificate is a JSON object:

    {"format": "heliograph-privacy-certificate", "version": 1, "expression": "...", "event": {...} or null,
     "neighboring_relation": "add_remove", "delta": 1e-5, "directions": {"add": [lower, upper], "remove": [lower, upper]},
     "definition": "...", "pairs": {"above": [...], "below": [...]}}

`expression` is the composition in the expression language, `event` the same as dp-accounting's event if it has one.
`pairs` names the pairs of distributions that bound it from each side, with counts; `docs/privacy_proofs.md` and
`docs/samplers.md` have the proofs. The claim of a direction is that delta at `upper` is at most, and at `lower` at
least, the certificate's delta; so a checker needs one delta at each end, by any method that it trusts, and no search.
`judge` computes such a delta anew from the expression alone, by the bracket on delta (closed forms if there are any),
which shares the definition of the pairs with the search for epsilon, but none of its steps. It is the one checker: of
certificates here, and of reports in `ledger`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from heliograph.dp.accounting.accountant import delta_at, epsilon_at
from heliograph.dp.accounting.exchange import to_event
from heliograph.dp.accounting.result import Bracket, Tolerance, json_number
from heliograph.dp.composition import Composition
from heliograph.dp.language import parse
from heliograph.dp.mechanisms import DIRECTIONS, NEIGHBORING, Direction, Mechanism, Neighboring
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


Verdict = Literal["holds", "refuted", "undecided"]


@dataclass(frozen=True)
class Verification:
    """What was found of a file's claims. They hold only if every one does: what is undecided does not hold."""

    claims: int
    delta: float
    problems: tuple[str, ...]
    """Claims that are refuted, and statements that contradict the releases."""
    undecided: tuple[str, ...] = ()
    """Claims that no bracket here was narrow enough to decide."""
    bracket: Bracket | None = None
    """Epsilon recomputed from the releases; None for a certificate, whose claims are checked one by one."""
    epsilon_claimed: float | None = None
    accounting: str = "certificate"
    releases: int = 0

    @property
    def verdict(self) -> Literal["holds", "refuted", "undecided", "nothing claimed"]:
        """The worst verdict of all claims."""
        if self.problems:
            return "refuted"
        return "undecided" if self.undecided else "holds" if self.claims else "nothing claimed"

    @property
    def holds(self) -> bool:
        """Whether there are claims, and all of them hold."""
        return self.verdict == "holds"

    def to_json(self) -> dict[str, Any]:
        """The verification as a JSON object."""
        return {
            "holds": self.holds,
            "verdict": self.verdict,
            "claims": self.claims,
            "delta": self.delta,
            "accounting": self.accounting,
            "epsilon_claimed": json_number(self.epsilon_claimed),
            "releases": self.releases,
            "problems": list(self.problems),
            "undecided": list(self.undecided),
            **({} if self.bracket is None else self.bracket.to_json()),
        }

    def __str__(self) -> str:
        """The text on the command line."""
        lines = [f"  problem: {each}" for each in self.problems] + [f"  undecided: {each}" for each in self.undecided]
        if self.bracket is None:
            said = {"holds": "they stand", "refuted": "NOT ALL STAND"}.get(self.verdict, "NOT ALL ARE PROVED")
            return "\n".join([*lines, f"{self.claims} claims at delta {self.delta:g}: {said}"])
        claimed = "nothing" if self.epsilon_claimed is None else f"epsilon {self.epsilon_claimed:g}"
        said = {
            "holds": "it stands",
            "refuted": "IT DOES NOT STAND",
            "undecided": "NOT PROVED, NOT REFUTED",
            "nothing claimed": "so nothing was verified",
        }[self.verdict]
        kinds = f"{self.releases} kinds of release, accounting: {self.accounting}"
        return "\n".join([str(self.bracket), kinds, *lines, f"claimed: {claimed}; {said}"])


def certificate(
    composition: Composition | Mechanism,
    delta: float,
    *,
    neighboring: Neighboring = "add_remove",
    tolerance: Tolerance | None = None,
    bracket: Bracket | None = None,
) -> dict[str, Any]:
    """The certificate of a composition's bracket on epsilon; `bracket` is that bracket if it is known already.

    Raises ProgramError if its ends are estimates.
    """
    whole = Composition.of(composition)
    found = bracket or epsilon_at(whole, delta, neighboring=neighboring, tolerance=tolerance)
    if not found.proved:
        raise ProgramError(
            "this bracket is not proved", where="certificate", why=found.reason, hint="use mechanisms of a formula"
        )
    return {
        "format": FORMAT,
        "version": VERSION,
        "expression": whole.text(),
        "neighboring_relation": found.neighboring,
        "delta": delta,
        "directions": found.to_json()["directions"],
        **_described(whole, whole.relation(neighboring), delta),
    }


def _described(whole: Composition, neighboring: Neighboring, delta: float) -> dict[str, Any]:
    """What a certificate says for other programs; all of it follows from the expression, the relation and delta."""
    try:
        event: dict[str, Any] | None = to_event(whole)
    except UnsupportedError:
        event = None
    under = whole.under(neighboring).simplified()
    sides = {
        side: [{"pair": mechanism.text(), "count": count} for mechanism, count in under.bounded(side, delta)]
        for side in ("above", "below")
    }
    return {"event": event, "pairs": sides, "definition": _DEFINITION}


def write_certificate(path: str | Path, value: dict[str, Any]) -> None:
    """Write a certificate as JSON."""
    write_file(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def is_certificate(value: object) -> bool:
    """Whether a JSON value declares itself a certificate."""
    return isinstance(value, dict) and value.get("format") == FORMAT


def check(value: object) -> Verification:
    """Check a certificate from its expression, relation and delta. Raises WireError for any other value."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise WireError("this is not a certificate", where="format")
    if value.get("version") != VERSION:
        raise WireError(f"version {value.get('version')!r} of a certificate is not known", where="version")
    expression, at, relation = value.get("expression"), value.get("delta"), value.get("neighboring_relation")
    if not isinstance(expression, str) or isinstance(at, bool) or not isinstance(at, int | float) or not 0 < at < 1:
        raise WireError("a certificate needs an expression and a delta", where="certificate")
    if relation not in NEIGHBORING:
        raise WireError(f"neighboring_relation = {relation!r} is not known", where="neighboring_relation")
    composition = parse(expression)
    directions = value.get("directions")
    if not isinstance(directions, dict) or set(directions) != set(DIRECTIONS):
        raise WireError("a certificate has claims for both directions", where="directions")
    problems = [
        f"{key} is not that of the expression"
        for key, expected in _described(composition, relation, float(at)).items()
        if not _equal(value.get(key), expected)
    ]
    if composition.relation(relation) != relation:
        problems.append(f"the expression is about neighbours by {composition.relation(relation)}, not by {relation}")
    undecided: list[str] = []
    claims = 0
    for name in DIRECTIONS:
        ends = directions[name]
        if not isinstance(ends, list) or len(ends) != 2:
            raise WireError("the claim of a direction is [lower, upper]", where=f"directions.{name}")
        for end, given in zip(("lower", "upper"), ends, strict=True):
            claims += 1
            claimed = epsilon_number(given, f"directions.{name}")
            verdict, why = judge(composition, claimed, float(at), end, neighboring=relation, direction=name)
            if verdict != "holds":
                (undecided if verdict == "undecided" else problems).append(f"{name}, {end}: {why}")
    return Verification(claims, float(at), tuple(problems), tuple(undecided))


def judge(
    composition: Composition,
    claimed: float,
    at: float,
    end: str,
    *,
    neighboring: Neighboring = "add_remove",
    direction: Direction | None = None,
) -> tuple[Verdict, str]:
    """Whether `claimed` is a bound ("upper" or "lower") on epsilon at delta `at`, and why not.

    By delta at the claimed epsilon: an upper bound holds if delta there is proved to be at most `at`, and is refuted if
    it is proved to be more (P9, test_a_claim_finer_than_the_bracket_is_decided).

    `direction` is the one that the claim is about; both if it is None.
    """
    if (end == "lower" and claimed <= 0) or (end == "upper" and math.isinf(claimed)):
        return "holds", ""
    if claimed > 1e6 and end == "lower":
        # Delta at one epsilon proves nothing of larger ones.
        whole = epsilon_at(composition, at, neighboring=neighboring)
        lower = (whole if direction is None else whole.directions[direction]).lower
        proved = lower is not None and lower >= claimed
        return ("holds", "") if proved else ("undecided", f"epsilon is at least {lower!r}; {claimed!r} is claimed")
    epsilon = min(claimed, 1e6)
    for share in (0.01, 1e-3, 1e-5, 1e-7):
        bracket = delta_at(
            composition, epsilon, neighboring=neighboring, tolerance=Tolerance(delta_share=share, seconds=12.0)
        )
        found = bracket if direction is None else bracket.directions[direction]
        assert found.lower is not None
        assert found.upper is not None
        # The ends of a bracket on epsilon are where a bound on delta crosses the claim, up to the rounding of both.
        slack = 1e-6
        if end == "upper":
            if found.upper <= at * (1 + slack):
                return "holds", ""
            if found.lower > at * (1 + slack):
                return "refuted", f"delta at {epsilon!r} is at least {found.lower!r}, above {at!r}"
        else:
            if found.lower >= at * (1 - slack):
                return "holds", ""
            if found.upper < at * (1 - slack):
                return "refuted", f"delta at {epsilon!r} is at most {found.upper!r}, below {at!r}"
    return "undecided", f"delta at {epsilon!r} lies in [{found.lower!r}, {found.upper!r}]; {at!r} is claimed"


def _equal(given: object, expected: object) -> bool:
    """Equal as JSON values, with numbers equal to 1e-9 of them."""
    if isinstance(expected, dict):
        keys = isinstance(given, dict) and given.keys() == expected.keys()
        return keys and all(_equal(given[key], each) for key, each in expected.items())  # type: ignore[index]
    if isinstance(expected, list):
        long = isinstance(given, list) and len(given) == len(expected)
        return long and all(map(_equal, given, expected))  # type: ignore[call-overload]
    if isinstance(expected, float) and isinstance(given, int | float) and not isinstance(given, bool):
        return math.isclose(given, expected, rel_tol=1e-9)
    return type(given) is type(expected) and given == expected


def epsilon_number(value: object, where: str) -> float:
    """An epsilon of a file. Raises WireError if it is none."""
    if value in ("inf", "Infinity"):
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise WireError(f"an epsilon of {value!r} is not a number of at least 0", where=where)
    return float(value)


__all__ = [
    "FORMAT",
    "Verification",
    "certificate",
    "check",
    "epsilon_number",
    "is_certificate",
    "judge",
    "write_certificate",
]
