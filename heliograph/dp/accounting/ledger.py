"""The ledger of releases, privacy reports, and their verification; histories of other libraries.

A report is a JSON object with the releases and the claims about them:

    {"format": "heliograph-privacy-report", "version": 1, "neighboring_relation": "add_remove", "delta": 1e-5,
     "epsilon_upper": 1.83, "epsilon_lower": 1.82, "accounting": "fixed",
     "releases": [{"name": "steps", "mechanism": "sampled_gaussian(p=0.01, noise_multiplier=1.0)", "count": 1000}]}

`accounting` is "fixed" if all parameters were fixed before the data: then epsilon is recomputed by the bracket; or
"filter" if they were chosen adaptively under a Renyi filter, with `"filter": {"epsilon", "delta", "order"}`: then the
releases must fit the filter, and epsilon is its budget. If the first release (of the number of records) decided the
parameters of all others, `"size_stage": {"epsilon", "delta"}` is the guarantee of that release alone: the rest has the
remaining epsilon and delta, and the two are added. `verify` trusts nothing but the releases (and delta). A claim holds
if it is proved, is refuted if its opposite is, and is undecided else, which is not holding (P9,
test_a_claim_inside_the_bracket_does_not_hold).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heliograph.dp.accounting.accountant import epsilon_at
from heliograph.dp.accounting.certificate import Verification, check, epsilon_number, is_certificate, judge
from heliograph.dp.accounting.exchange import read_history
from heliograph.dp.accounting.filters import RenyiFilter
from heliograph.dp.accounting.result import Tolerance
from heliograph.dp.composition import Composition
from heliograph.dp.language import parse
from heliograph.dp.mechanisms import NEIGHBORING, Mechanism, Neighboring
from heliograph.errors import BudgetError, ProgramError, WireError
from heliograph.files import open_file

FORMAT = "heliograph-privacy-report"
VERSION = 1
_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Release:
    """One kind of release: the mechanism, its number of runs, and a description in words."""

    name: str
    mechanism: Mechanism
    count: int = 1
    sensitivity: float | None = None
    noise_std: float | None = None
    sampling_probability: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The release as a JSON object."""
        return vars(self) | {"mechanism": self.mechanism.text()}


@dataclass
class Ledger:
    """The releases so far. Charge it before drawing the noise: a release that a crash repeats is then charged twice."""

    releases: list[Release] = field(default_factory=list)

    def charge(self, release: Release) -> None:
        """Enter a release; runs of the same name and mechanism are counted together."""
        Composition(((release.mechanism, release.count),))
        for i, known in enumerate(self.releases):
            if replace(known, count=release.count) == release:
                self.releases[i] = replace(known, count=known.count + release.count)
                return
        self.releases.append(release)

    @property
    def composition(self) -> Composition:
        """The composition of all releases."""
        return Composition(tuple((release.mechanism, release.count) for release in self.releases))

    def to_json(self) -> list[dict[str, Any]]:
        """The releases as JSON objects."""
        return [release.to_json() for release in self.releases]

    @classmethod
    def from_json(cls, entries: object) -> Ledger:
        """The ledger of a report's `releases`. Raises WireError or ProgramError that names the entry."""
        if not isinstance(entries, list) or len(entries) > 100_000:
            raise WireError("releases must be a list", where="releases")
        ledger = cls()
        for number, entry in enumerate(entries):
            where = f"releases[{number}]"
            if not isinstance(entry, dict) or not isinstance(entry.get("mechanism"), str):
                raise WireError("a release needs a mechanism in the expression language", where=where)
            count = entry.get("count", 1)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise WireError(f"count = {count!r} is not a positive integer", where=where)
            try:
                items = (parse(entry["mechanism"]) * count).items
            except ProgramError as error:
                raise ProgramError(
                    error.what, where=f"{where}: {error.where}", why=error.why, hint=error.hint
                ) from None
            if len(items) != 1 or items[0][1] < 1:
                raise WireError("a release is one mechanism, run at least once", where=where)
            numbers = []
            for key in ("sensitivity", "noise_std", "sampling_probability"):
                value = entry.get(key)
                if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                    raise WireError(f"{key} = {value!r} is not a number", where=where)
                numbers.append(value)
            release = Release(str(entry.get("name", "")), items[0][0], items[0][1], *numbers)
            _check_stated(release, where)
            ledger.releases.append(release)
        return ledger


def _check_stated(release: Release, where: str) -> None:
    """Raise WireError if a release's stated noise, sensitivity or sampling contradicts its mechanism."""
    mechanism = release.mechanism
    parameters = mechanism.arguments()
    p = parameters.get("p")
    stated_p = release.sampling_probability
    if stated_p is not None and abs(stated_p - (1.0 if p is None else p)) > 1e-9 * max(stated_p, 1e-12):
        raise WireError(f"sampling_probability {stated_p} is not that of {mechanism.text()}", where=where)
    multiplier = parameters.get("noise_multiplier")
    if multiplier is not None and release.noise_std is not None and release.sensitivity:
        stated = release.noise_std / release.sensitivity
        if abs(stated - multiplier) > 1e-6 * multiplier:
            raise WireError(f"noise_std / sensitivity = {stated:.9g} is not that of {mechanism.text()}", where=where)


def verify(path: str | Path, delta: float | None = None, tolerance: Tolerance | None = None) -> Verification:
    """Epsilon recomputed from the releases of a report alone, and whether the report's claims hold.

    Reads privacy reports, certificates, histories of Opacus accountants and events of dp-accounting (as JSON). `delta`
    is required if the file has none. Raises WireError for any other file.
    """
    data = load_json(path)
    if is_certificate(data):
        return check(data)
    if isinstance(data, dict) and data.get("format") == FORMAT:
        return _verify_report(data, delta, tolerance)
    composition = read_history(data)
    stated = data if isinstance(data, dict) else {}
    at = _need_delta(delta if delta is not None else stated.get("delta"))
    checks = _Checks(composition, at, "add_remove", tolerance)
    checks.claim(stated.get("epsilon"), "upper")
    return checks.verified("fixed", len(composition))


class _Checks:
    """The claims of a file about a composition, checked one by one."""

    def __init__(
        self, composition: Composition, delta: float, neighboring: Neighboring, tolerance: Tolerance | None
    ) -> None:
        self.composition, self.delta, self.neighboring = composition, delta, neighboring
        self.bracket = epsilon_at(composition, delta, tolerance=tolerance, neighboring=neighboring)
        self.claims = 0
        self.claimed: float | None = None
        self.problems: list[str] = []
        self.undecided: list[str] = []

    def claim(self, value: object, end: str) -> None:
        """Check a claimed bound on the epsilon of the composition, if there is one."""
        if value is None:
            return
        claimed = epsilon_number(value, f"epsilon_{end}")
        self.claims += 1
        if end == "upper":
            self.claimed = claimed
        lower, upper = self.bracket.lower, self.bracket.upper
        assert lower is not None
        assert upper is not None
        # Numbers of a report are printed; that is what the slack is for.
        slack = 1e-9
        high, low = claimed * (1 + slack) + slack, claimed * (1 - slack) - slack
        if (end == "upper" and high >= upper) or (end == "lower" and low <= lower):
            return
        if end == "upper" and high < lower:
            self.problems.append(f"the claimed epsilon {claimed:.9g} is below the proved lower bound {lower:.9g}")
        elif end == "lower" and low > upper:
            self.problems.append(f"the claimed lower bound {claimed:.9g} is above the proved upper bound {upper:.9g}")
        else:
            self.judged(self.composition, claimed, self.delta, end, f"the claimed {end} bound {claimed:.9g}")

    def judged(self, composition: Composition, claimed: float, delta: float, end: str, what: str) -> None:
        """Check a bound on the epsilon of some composition."""
        verdict, why = judge(composition, max(claimed, 0.0), delta, end, neighboring=self.neighboring)
        if verdict != "holds":
            (self.undecided if verdict == "undecided" else self.problems).append(f"{what}: {why}")

    def verified(self, accounting: str, releases: int) -> Verification:
        """The result."""
        if self.bracket.neighboring != self.neighboring:
            self.problems.append(f"the releases are about neighbours by {self.bracket.neighboring}")
        return Verification(
            self.claims,
            self.delta,
            tuple(self.problems),
            tuple(self.undecided),
            self.bracket,
            self.claimed,
            accounting,
            releases,
        )


def _verify_report(data: dict[str, Any], delta: float | None, tolerance: Tolerance | None) -> Verification:
    if data.get("version") != VERSION:
        raise WireError(f"version {data.get('version')!r} of a report is not known", where="version")
    neighboring = data.get("neighboring_relation", "add_remove")
    if neighboring not in NEIGHBORING:
        raise WireError(f"neighboring_relation = {neighboring!r} is not known", where="neighboring_relation")
    accounting = data.get("accounting", "fixed")
    if accounting not in ("fixed", "filter"):
        raise WireError(f"accounting = {accounting!r} is not known", where="accounting")
    ledger = Ledger.from_json(data.get("releases"))
    at = _need_delta(delta if delta is not None else data.get("delta"))
    checks = _Checks(ledger.composition, at, neighboring, tolerance)
    checks.claim(data.get("epsilon_lower"), "lower")
    stated = data.get("epsilon_upper")
    if accounting == "fixed" and data.get("size_stage") is None:
        checks.claim(stated, "upper")
        return checks.verified("fixed", len(ledger.releases))
    releases, first, rest = ledger.composition, 0.0, at
    if data.get("size_stage") is not None:
        releases, first, rest = _second_stage(data["size_stage"], ledger, at, checks)
    if stated is None:
        checks.problems.append("a report of stages or of a filter states its epsilon_upper")
        return checks.verified(accounting, len(ledger.releases))
    claimed = checks.claimed = epsilon_number(stated, "epsilon_upper")
    checks.claims += 1
    if accounting == "filter":
        state = data.get("filter")
        if not isinstance(state, dict):
            raise WireError("an adaptive report needs its filter", where="filter")
        budget = RenyiFilter.from_json({**state, "spent": 0.0, "steps": 0, "neighboring": neighboring})
        if budget.delta > rest * (1 + 1e-12):
            checks.problems.append(f"the filter's delta {budget.delta:g} is above the {rest:g} that is left for it")
        try:
            for mechanism, count in releases:
                budget.spend(mechanism, count)
        except BudgetError as error:
            checks.problems.append(str(error).replace("\n", " "))
        guarantee = budget.epsilon + first
        if claimed < guarantee * (1 - 1e-9):
            checks.problems.append(
                f"an adaptive run is private at its filter's budget {guarantee:g}, not at {claimed!r}"
            )
    elif claimed < first:
        checks.problems.append(f"the first stage alone has {first:g}, more than {claimed:g}")
    else:
        checks.judged(releases, (claimed - first) * (1 + 1e-9), rest, "upper", f"{claimed:.9g} less the first stage")
    return checks.verified(accounting, len(ledger.releases))


def _second_stage(stage: object, ledger: Ledger, delta: float, checks: _Checks) -> tuple[Composition, float, float]:
    """The part after the first release: its composition, the first release's epsilon, and the remaining delta."""
    if not isinstance(stage, dict) or not ledger.releases:
        raise WireError("a size stage needs its epsilon, its delta and its release", where="size_stage")
    if stage.get("epsilon") is None or not 0 < (share := _need_delta(stage.get("delta"))) < delta:
        raise WireError("a size stage needs an epsilon, and a delta below the report's", where="size_stage")
    first, size = epsilon_number(stage["epsilon"], "size_stage"), ledger.releases[0]
    checks.judged(
        Composition(((size.mechanism, size.count),)), first, share, "upper", f"epsilon {first:g} of the first release"
    )
    return Ledger(ledger.releases[1:]).composition, first, delta - share


def _need_delta(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WireError("the file names no delta", where="delta", hint="give one with --delta")
    return float(value)


def load_json(path: str | Path) -> Any:
    """The JSON value of a file. Raises WireError if it cannot be read, is too large, or is not JSON."""
    path = Path(path)
    try:
        with open_file(path) as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise WireError(f"the file is larger than {_MAX_BYTES:,} bytes", where=path)
        return json.loads(data.decode())
    except OSError as error:
        raise WireError(f"{path} cannot be read", why=error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        raise WireError("the file is not JSON", where=path, why=str(error)[:200]) from None


__all__ = ["FORMAT", "VERSION", "Ledger", "Release", "Verification", "load_json", "read_history", "verify"]
