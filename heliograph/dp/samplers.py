"""Ways to draw the batches of an epoch. Each also gives its own accounting, so the two agree.

A sampler is a record of public parameters. `plan` gives, for a public number of records, the steps of an epoch and the
mechanism of a step (or of an epoch); `epoch` draws the batches of an epoch. A record adds a vector of norm at most 1 to
every batch that contains it, so the noise multiplier is the standard deviation of the noise divided by the clipping
bound.

The draws are secret: the indices and, for Poisson sampling, the sizes of batches too.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from heliograph.dp.batches import AllocatedGaussian, FixedSizeGaussian, TruncatedGaussian
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Mechanism, Neighboring, SampledGaussian
from heliograph.errors import ProgramError

Uniform = Callable[[int], npt.NDArray[np.float64]]
"""Uniform draws in (0, 1], multiples of 2^-53."""
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EpochPlan:
    """An epoch: its steps, and the mechanism of a step, or of the whole epoch (then `mechanism` runs once)."""

    steps: int
    mechanism: Mechanism
    by_epoch: bool = False

    def composition(self, epochs: int) -> Composition:
        """The mechanism of this many epochs."""
        return self.mechanism * (epochs if self.by_epoch else epochs * self.steps)


class Sampler(ABC):
    """A way to draw batches. Sums are divided by `expected_size`: public, never the size of a batch."""

    name: ClassVar[str] = ""
    neighboring: ClassVar[Neighboring] = "add_remove"
    """The neighbours of its accounting. Where the number of records is fixed, these have it too, or could not run."""

    @property
    def knows_count(self) -> bool:
        """Whether the analysis is for a public number of records: another number in the data is refused."""
        return self.neighboring != "add_remove"

    @property
    @abstractmethod
    def expected_size(self) -> float:
        """The public number by which a step's sum is divided."""

    @abstractmethod
    def plan(self, records: float, noise_multiplier: float) -> EpochPlan:
        """The mechanism of an epoch over a public number of records."""

    @abstractmethod
    def epoch(self, records: int, plan: EpochPlan, uniform: Uniform) -> Iterator[Indices]:
        """The batches of an epoch, as indices of records."""

    def to_json(self) -> dict[str, Any]:
        """The sampler as a JSON object."""
        return {"sampler": self.name, **asdict(self)}  # type: ignore[call-overload]


def epoch_steps(records: float, size: float) -> int:
    """The steps of an epoch: max(1, floor(records / size)), the number of records public or released."""
    return max(1, int(records // size))


@dataclass(frozen=True)
class _ByCoins(Sampler):
    """Each record sampled by its own coin, with the probability of the mechanism of a step."""

    batch_size: float

    def __post_init__(self) -> None:
        _positive(self.batch_size, "batch_size")

    @property
    def expected_size(self) -> float:
        return float(self.batch_size)

    def epoch(self, records: int, plan: EpochPlan, uniform: Uniform) -> Iterator[Indices]:
        for _ in range(plan.steps):
            yield np.flatnonzero(uniform(records) < plan.mechanism.arguments()["p"])


@dataclass(frozen=True)
class PoissonSampler(_ByCoins):
    """Each record sampled independently, with probability batch_size / records."""

    name = "poisson"

    def plan(self, records: float, noise_multiplier: float) -> EpochPlan:
        p = min(self.batch_size / records, 1.0)
        return EpochPlan(epoch_steps(records, self.batch_size), SampledGaussian(p, noise_multiplier))


@dataclass(frozen=True)
class TruncatedPoissonSampler(_ByCoins):
    """Poisson sampling that keeps at most `most` records, chosen at random: a bound on the physical batch."""

    most: int
    name = "truncated_poisson"
    neighboring = "zero_out"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < self.batch_size:
            raise ProgramError("most is below the expected batch size", where="TruncatedPoissonSampler")

    def plan(self, records: float, noise_multiplier: float) -> EpochPlan:
        p, size = min(self.batch_size / records, 1.0), int(records)
        return EpochPlan(
            epoch_steps(records, self.batch_size), TruncatedGaussian(p, noise_multiplier, min(self.most, size), size)
        )

    def epoch(self, records: int, plan: EpochPlan, uniform: Uniform) -> Iterator[Indices]:
        for taken in super().epoch(records, plan, uniform):
            yield taken if taken.size <= self.most else taken[_chosen(taken.size, self.most, uniform)]


@dataclass(frozen=True)
class FixedSizeSampler(Sampler):
    """Batches of fixed size, drawn without replacement, afresh for every step."""

    size: int
    name = "fixed_size"
    neighboring = "replace"

    def __post_init__(self) -> None:
        _positive(self.size, "size")

    @property
    def expected_size(self) -> float:
        return float(self.size)

    def plan(self, records: float, noise_multiplier: float) -> EpochPlan:
        return EpochPlan(epoch_steps(records, self.size), FixedSizeGaussian(self.size, int(records), noise_multiplier))

    def epoch(self, records: int, plan: EpochPlan, uniform: Uniform) -> Iterator[Indices]:
        for _ in range(plan.steps):
            yield _chosen(records, self.size, uniform)


@dataclass(frozen=True)
class AllocationSampler(Sampler):
    """Balls in bins: at the start of an epoch every record is put into `times` of its batches, chosen uniformly.

    An epoch has `batches` steps. Each record is in exactly `times` of them, so an epoch passes over the data that
    often.
    """

    batches: int
    records_expected: float
    times: int = 1
    name = "allocation"

    def __post_init__(self) -> None:
        _positive(self.batches, "batches")
        _positive(self.records_expected, "records_expected")

    @property
    def expected_size(self) -> float:
        return self.records_expected * self.times / self.batches

    def plan(self, records: float, noise_multiplier: float) -> EpochPlan:
        return EpochPlan(self.batches, AllocatedGaussian(self.batches, noise_multiplier, self.times), True)

    def epoch(self, records: int, plan: EpochPlan, uniform: Uniform) -> Iterator[Indices]:
        places = _allocated(records, self.batches, self.times, uniform)
        order = np.argsort(places.ravel(), kind="stable")
        ends = np.searchsorted(places.ravel()[order], np.arange(self.batches + 1))
        for start, end in itertools.pairwise(ends):
            yield np.sort(order[start:end] // self.times)


def _allocated(records: int, batches: int, times: int, uniform: Uniform) -> Indices:
    """For each record `times` different batches, [records, times], every choice equally likely."""
    if times == 1:
        return _uniform_integers(batches, records, uniform)[:, None]
    found = np.empty((records, times), dtype=np.int64)
    # Floyd's algorithm: draw from the batches up to `last`; if that one was drawn before, take `last` itself.
    for draw, last in enumerate(range(batches - times, batches)):
        new = _uniform_integers(last + 1, records, uniform)
        known = (found[:, :draw] == new[:, None]).any(axis=1)
        found[:, draw] = np.where(known, last, new)
    return found


def _uniform_integers(below: int, count: int, uniform: Uniform) -> Indices:
    """Uniform integers in [0, below), each with a probability within 2^-53 of equal."""
    return np.minimum(np.ceil(uniform(count) * below).astype(np.int64) - 1, below - 1).clip(0)


def _chosen(records: int, size: int, uniform: Uniform) -> Indices:
    """A uniformly drawn subset, ascending: the smallest of random keys of 106 bits."""
    if size > records:
        raise ProgramError("a batch is larger than the data", where="sampler")
    order = np.lexsort((uniform(records), uniform(records)))
    return np.sort(order[:size])


def _positive(value: float, name: str) -> None:
    if isinstance(value, bool) or not value >= 1 or not math.isfinite(value):
        raise ProgramError(f"{name} = {value!r} is below 1", where="sampler")


SAMPLERS: dict[str, type[Sampler]] = {
    kind.name: kind
    for kind in (
        PoissonSampler,
        TruncatedPoissonSampler,
        FixedSizeSampler,
        AllocationSampler,
    )
}


__all__ = [
    "AllocationSampler",
    "EpochPlan",
    "FixedSizeSampler",
    "PoissonSampler",
    "Sampler",
    "TruncatedPoissonSampler",
]
