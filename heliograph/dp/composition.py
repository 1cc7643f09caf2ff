"""Compositions: the mechanisms that run on the same data, with their counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from heliograph.dp.mechanisms import (
    Gaussian,
    Laplace,
    Mechanism,
    Neighboring,
    SampledGaussian,
    SampledLaplace,
    Side,
)
from heliograph.errors import ProgramError

MAX_STEPS = 10**9
"""More steps than this are refused: round-off is bounded per step, and the bounds would say nothing."""


@dataclass(frozen=True)
class Composition:
    """Mechanisms with counts, in the order of their first mention; order does not change any result."""

    items: tuple[tuple[Mechanism, int], ...] = ()

    def __post_init__(self) -> None:
        merged: dict[Mechanism, int] = {}
        for mechanism, count in self.items:
            merged[mechanism] = merged.get(mechanism, 0) + _checked_count(count, mechanism)
        object.__setattr__(self, "items", tuple(merged.items()))
        if self.steps > MAX_STEPS:
            raise ProgramError(
                f"{float(self.steps):.3g} steps in all",
                where="composition",
                why=f"more than {MAX_STEPS:.0e} steps are not accounted for: round-off is bounded per step",
                hint="account for a part, or use a larger noise multiplier and fewer steps",
            )

    @classmethod
    def of(cls, mechanisms: Mechanism | Composition | Iterable[tuple[Mechanism, int]]) -> Composition:
        """A composition from a mechanism, a composition, or pairs of mechanism and count."""
        if isinstance(mechanisms, Composition):
            return mechanisms
        if isinstance(mechanisms, Mechanism):
            return cls(((mechanisms, 1),))
        return cls(tuple(mechanisms))

    @property
    def steps(self) -> int:
        """The number of mechanism runs in all."""
        return sum(count for _, count in self.items)

    def __iter__(self) -> Iterator[tuple[Mechanism, int]]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __add__(self, other: Mechanism | Composition) -> Composition:
        return Composition(self.items + Composition.of(other).items)

    __radd__ = __add__

    def __mul__(self, count: int) -> Composition:
        count = _checked_count(count, self)
        return Composition(tuple((mechanism, each * count) for mechanism, each in self.items))

    __rmul__ = __mul__

    def text(self) -> str:
        """The composition in the expression language."""
        parts = (m.text() if count == 1 else f"{m.text()} * {count}" for m, count in self.items)
        return " + ".join(parts) or "nothing"

    def under(self, neighboring: Neighboring) -> Composition:
        """The composition that accounts for another neighbouring relation under the conventions of `add_remove`.

        Raises ProgramError if no single relation applies to all mechanisms.
        """
        if neighboring == "add_remove":
            relations = {mechanism.relation for mechanism, _ in self.items}
            if {"add_remove", "replace"} <= relations:
                raise ProgramError(
                    "randomized_response cannot be combined with mechanisms for an added or removed record",
                    where=self.text(),
                    why="its neighbour gives another answer; one number for both would be for no neighbouring relation",
                    hint="account under replace, or state what it is for an added or removed record: pure(epsilon=...)",
                )
            return self
        if neighboring == "zero_out":
            return Composition(tuple((mechanism.nulled(), count) for mechanism, count in self.items))
        if neighboring != "replace":
            raise ProgramError(
                f"no neighbouring relation {neighboring!r}",
                where="neighboring",
                hint="use add_remove, replace or zero_out",
            )
        return Composition(tuple((mechanism.replaced(), count) for mechanism, count in self.items))

    def relation(self, asked: Neighboring) -> Neighboring:
        """The neighbouring relation to which a number for the composition refers, if `asked` was requested."""
        known = {mechanism.relation for mechanism, _ in self.items} - {None}
        return "replace" if known == {"replace"} else asked

    def simplified(self) -> Composition:
        """The same composition with p = 0 left out, p = 1 not sampled, and what adds up (zCDP) added up."""
        items: list[tuple[Mechanism, int]] = []
        together: dict[type[Mechanism], list[tuple[Mechanism, int]]] = {}
        for mechanism, count in self.items:
            if isinstance(mechanism, SampledGaussian) and mechanism.p == 1.0:
                mechanism = Gaussian(mechanism.noise_multiplier)
            elif isinstance(mechanism, SampledLaplace) and mechanism.p == 1.0:
                mechanism = Laplace(mechanism.epsilon)
            sampled = isinstance(mechanism, SampledGaussian | SampledLaplace)
            if not count or (sampled and mechanism.arguments()["p"] == 0.0):
                continue
            if mechanism.adds_up:
                together.setdefault(type(mechanism), []).append((mechanism, count))
            else:
                items.append((mechanism, count))
        for kind, found in together.items():
            # Of equal ones, the count says as much.
            items += found if len(found) == 1 else [(kind.added_up(found), 1)]
        return Composition(tuple(items))

    def bounded(self, side: Side, delta: float) -> Composition:
        """A composition of mechanisms with pairs that bounds this one from a side; itself if all have pairs."""
        whole = Composition()
        for mechanism, count in self.items:
            found = mechanism.bounded(side, count, delta)
            whole = whole + (Composition(((mechanism, count),)) if found is None else found)
        return whole.simplified()

    def with_sensitivity(self, factor: float) -> Composition:
        """The composition of Gaussians whose sensitivity is `factor` times as large, with counts kept.

        Multipliers are rounded down, so that the result is no more private than it should be.
        """
        items: list[tuple[Mechanism, int]] = []
        for mechanism, count in self.items:
            assert isinstance(mechanism, Gaussian)
            items.append((_bare_gaussian(math.nextafter(mechanism.noise_multiplier / factor, 0.0)), count))
        return Composition(tuple(items))

    def merged(self) -> Composition:
        """An equivalent composition with all Gaussians merged into one.

        Its multiplier is right to a few units of round-off; callers that need a bound widen it by that.
        """
        gaussians = [(m.noise_multiplier, count) for m, count in self.items if isinstance(m, Gaussian)]
        if sum(count for _, count in gaussians) < 2:
            return self
        precision = math.fsum(count / multiplier**2 for multiplier, count in gaussians)
        rest = tuple((m, count) for m, count in self.items if not isinstance(m, Gaussian))
        return Composition(((_bare_gaussian(1 / math.sqrt(precision)), 1), *rest))


def _bare_gaussian(multiplier: float) -> Gaussian:
    """A Gaussian that replaces many: its multiplier may be below the least one allowed for one mechanism."""
    record = object.__new__(Gaussian)
    object.__setattr__(record, "noise_multiplier", multiplier)
    return record


def _checked_count(count: object, where: object) -> int:
    place = where.text() if isinstance(where, Mechanism | Composition) else "composition"
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
        raise ProgramError(
            f"a count must be an integer of at least 0, not {count!r}",
            where=place,
        )
    if count > MAX_STEPS:
        raise ProgramError(
            f"a count of {float(count):.3g} is too large" if count < 10**300 else "a count is too large",
            where=place,
            why=f"more than {MAX_STEPS:.0e} steps are not accounted for: round-off is bounded per step",
        )
    return int(count)
