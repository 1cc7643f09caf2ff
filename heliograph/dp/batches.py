"""Gaussian sums over batches that are not Poisson samples: fixed sizes, bounds on the size, random allocation.

Everywhere a record adds a vector of norm at most 1 to its batch and the noise multiplier is noise standard deviation
over that norm. `samplers` has the objects that draw such batches. Each mechanism gives the compositions of pairs that
bound it from above and from below (`bounded`), and their proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from heliograph.dp.allocation import allocated_pair
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Direction, Gaussian, Mechanism, SampledGaussian, Side, _check_integer
from heliograph.dp.pairs import NO_ATOMS, Atoms, GaussianBase, Pair, SampledPart
from heliograph.dp.sampled_pairs import EitherPart, MixturePart, joined_pair
from heliograph.errors import ProgramError

_MOST = 10**9
_MOST_DRAWS = 64
"""Of one record in a batch with replacement: each is a component of its pair."""


class _Bounded(Mechanism):
    """A mechanism without a pair of its own."""

    def pair(self, direction: Direction) -> Pair:
        raise ProgramError(
            f"{self.name} has no one pair",
            where=self.text(),
            why="its bounds from above and from below are of different pairs",
            hint="ask for epsilon or delta, or use `bounded`",
        )

    def _sizes(self, size: str, records: str) -> None:
        for name in (size, records):
            _check_integer(self, name, _MOST)
        if not getattr(self, size) <= getattr(self, records):
            raise ProgramError(f"{size} is above {records}", where=self.name)


@dataclass(frozen=True)
class TruncatedGaussian(_Bounded):
    """A step of DP-SGD on a Poisson sample cut to at most `most` records: a batch never outgrows its memory.

    From a larger sample some records are left out, chosen without looking at them. `records` is the number of records of
    the larger data set. Above, the pair is that of an observer who also sees whether `most` or more of the others were
    sampled (P18, test_no_data_set_is_above_the_bound); below, that of records of which all but one add nothing.
    """

    p: float
    noise_multiplier: float
    most: int
    records: int
    name = "truncated_gaussian"

    def __post_init__(self) -> None:
        self._check_probability("p")
        self._check_noise()
        self._sizes("most", "records")

    def bounded(self, side: Side, count: int, delta: float) -> Composition:
        # Cut samples of all records, of all but one, and those others' samples that leave a place.
        cut = float(binom.sf(self.most, self.records, self.p))
        full = float(binom.sf(self.most - 1, self.records - 1, self.p))
        free = float(binom.cdf(self.most - 1, self.records - 1, self.p))
        if side == "below":
            kept = self.p * free + cut * self.most / self.records
            return SampledGaussian(min(kept * (1 - 1e-9), self.p), self.noise_multiplier) * count
        if not full:
            return SampledGaussian(self.p, self.noise_multiplier) * count
        taken = min(cut * self.most / self.records / full * (1 + 1e-9), self.p)
        if not free:
            return self._moved(taken) * count
        return TruncatedPair(self.p, self.noise_multiplier, free, full, taken, self.relation == "zero_out") * count

    def _moved(self, taken: float) -> Mechanism:
        """The pair of a record that takes another's place, with a probability."""
        return _sampled(taken, self.noise_multiplier / 2)

    def nulled(self) -> TruncatedNulled:
        return TruncatedNulled(self.p, self.noise_multiplier, self.most, self.records)


@dataclass(frozen=True)
class TruncatedNulled(TruncatedGaussian):
    """A step on a cut Poisson sample of `records` records, where one of them may add nothing in its place.

    Where a place is left, a record that adds nothing is one that is not sampled. Where none is, the record, or its null,
    takes the place of a known one: all three sums are within 2 of each other, as of a replaced record of batches of one
    size (P18, test_no_record_that_adds_nothing_is_above_the_bound).
    """

    name = "truncated_nulled"
    relation = "zero_out"

    def _moved(self, taken: float) -> Mechanism:
        return _joined(taken, self.noise_multiplier / 2)


@dataclass(frozen=True)
class _FixedSize(_Bounded):
    """A step on `size` of `records` records."""

    size: int
    records: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        self._check_noise()
        self._sizes("size", "records")


@dataclass(frozen=True)
class FixedSizeGaussian(_FixedSize):
    """A step on `size` of `records` records, drawn without replacement; a record added or removed.

    `records` is the number of records in the larger data set. If the record is not drawn, the batch is one of the
    smaller data set; if it is drawn, it takes another's place: sensitivity 2. By joint convexity the pair from above is
    the pair of the Poisson-sampled Gaussian with probability size / records and half the noise multiplier (Balle,
    Barthe, Gaboardi 2018, theorem 9); it is reached if all other gradients are opposite to the record's, so it is
    tight.
    """

    name = "fixed_size_gaussian"

    def bounded(self, side: Side, count: int, delta: float) -> Composition:
        return _sampled(self.size / self.records, self.noise_multiplier / 2) * count

    def replaced(self) -> FixedSizeReplaced:
        return FixedSizeReplaced(self.size, self.records, self.noise_multiplier)


@dataclass(frozen=True)
class FixedSizeReplaced(_FixedSize):
    """A step on `size` of `records` records, drawn without replacement, for data sets with one record replaced by
    another.

    From above: delta at epsilon >= 0 is at most the delta of the sampled pair in direction remove with half the
    multiplier, at epsilon < 0 the delta in direction add (Zhu, Dong, Wang 2022, theorem 11; Balle, Barthe, Gaboardi
    2018, theorem 10), a pair that composes. From below: the sampled pair itself, in either direction, which two data
    sets have. For one step both are the same number; over many they differ.
    """

    name = "fixed_size_replaced"
    relation = "replace"

    def bounded(self, side: Side, count: int, delta: float) -> Composition:
        p, half = self.size / self.records, self.noise_multiplier / 2
        return (_sampled(p, half) if side == "below" else _joined(p, half)) * count


@dataclass(frozen=True)
class WithReplacementGaussian(_Bounded):
    """A step on `size` draws, with replacement, from `records` records; a record added or removed.

    A record is drawn k times with the binomial law of 1 / records and takes the places of k others: sensitivity 2 k.
    Given these others, the ratio of the outputs' densities is a mixture of lognormals; its convex order is the largest
    if all shifts are parallel and of maximal length (comonotone sums), so that the pair is the mixture of N(2 k / s, 1)
    against N(0, 1), and data sets with opposite gradients reach it. More than some dozen draws of one record have a
    mass below 1e-40, which counts as infinite loss above, and as the largest kept number of draws below.
    """

    size: int
    records: int
    noise_multiplier: float
    name = "with_replacement_gaussian"

    def __post_init__(self) -> None:
        self._check_noise()
        _check_integer(self, "size", 10**7)
        _check_integer(self, "records", _MOST)

    def bounded(self, side: Side, count: int, delta: float) -> Composition:
        return _RepeatedGaussian(self.size, self.records, self.noise_multiplier, side) * count


@dataclass(frozen=True)
class AllocatedGaussian(_Bounded):
    """An epoch of random allocation: every record in `times` of `batches` batches, chosen uniformly (balls in bins).

    One run is one epoch of `batches` steps. For `times` = 1 both bounds are from the pair itself (see `allocation`).
    For more: a uniform choice is one from each part of a random partition into `times` parts, and given the partition
    the parts are epochs of their own; by convexity their composition bounds it from above (Feldman, Shenfeld 2025).
    From below: the sum of all batches alone is a Gaussian with multiplier s sqrt(batches) / times, which is far from
    tight.
    """

    batches: int
    noise_multiplier: float
    times: int = 1
    name = "allocated_gaussian"
    absent_is_null = True

    def __post_init__(self) -> None:
        self._check("noise_multiplier", 0.3, 1e6, "the ratios of an epoch spread too far for a lattice below 0.3")
        _check_integer(self, "batches", 10**7)
        _check_integer(self, "times", 10**5)
        if self.times > self.batches:
            raise ProgramError("times is above batches", where=self.name)

    def bounded(self, side: Side, count: int, delta: float) -> Composition:
        if side == "below" and self.times > 1:
            return Gaussian(self.noise_multiplier * math.sqrt(self.batches) / self.times) * count
        # Truncation may contribute a thousandth of delta over all epochs; rounded down to a power of ten, for the cache.
        tail = max(min(delta, 0.1) * 1e-3 / (count * self.times), 1e-15)
        tail = 10.0 ** math.floor(math.log10(tail))
        fewer, more = divmod(self.batches, self.times)
        parts = Composition()
        for batches, parts_of_it in ((fewer, self.times - more), (fewer + 1, more)):
            if parts_of_it:
                part = (
                    Gaussian(self.noise_multiplier)
                    if batches == 1
                    else _Allocation(batches, self.noise_multiplier, side, tail)
                )
                parts = parts + part * (parts_of_it * count)
        return parts


# Building blocks of the bounds: mechanisms with pairs, which no expression names.


def _sampled(p: float, noise_multiplier: float) -> Mechanism:
    if p >= 1.0:
        return Gaussian(noise_multiplier)
    return SampledGaussian(math.nextafter(p, 1.0), noise_multiplier)


def _joined(p: float, noise_multiplier: float) -> Mechanism:
    return _sampled(p, noise_multiplier) if p >= 1.0 else _JoinedGaussian(math.nextafter(p, 1.0), noise_multiplier)


@dataclass(frozen=True)
class TruncatedPair(Mechanism):
    """Above a cut Poisson sample: one sees whether the others leave a place for the record.

    With a place, with probability `free`, it joins with probability p; else, with probability `full`, it takes another's
    with probability `taken`, a sensitivity of 2.
    """

    p: float
    noise_multiplier: float
    free: float
    full: float
    taken: float
    nulled_record: bool
    name: ClassVar[str] = "truncated_pair"

    def pair(self, direction: Direction) -> Pair:
        base = GaussianBase(1 / self.noise_multiplier)
        free = SampledPart(base, self.p, direction == "remove")
        moved = (_joined if self.nulled_record else _sampled)(self.taken, self.noise_multiplier / 2).pair(direction)
        assert moved.part is not None
        # Probabilities of scipy's binomial law are right to 1e-9. Unseen mass is that of numbers below any double.
        atoms = Atoms(moved.atoms.loss, moved.atoms.a * self.full, 2e-9)
        return Pair(atoms, EitherPart((free, moved.part), (self.free, self.full), 1e-9), 0.0, 1e-300)


@dataclass(frozen=True)
class _JoinedGaussian(Mechanism):
    """Losses above 0 of the sampled Gaussian in direction remove, below 0 in direction add."""

    p: float
    noise_multiplier: float
    name: ClassVar[str] = "joined_gaussian"
    symmetric = True
    relation = "replace"

    def pair(self, direction: Direction) -> Pair:
        base = GaussianBase(1 / self.noise_multiplier)
        return joined_pair(SampledPart(base, self.p, True), SampledPart(base, self.p, False))


@dataclass(frozen=True)
class _RepeatedGaussian(Mechanism):
    """A mixture of Gaussians over the number of draws of a record."""

    size: int
    records: int
    noise_multiplier: float
    side: Side
    name: ClassVar[str] = "repeated_gaussian"

    def pair(self, direction: Direction) -> Pair:
        return _repeated_gaussian(self.size, self.records, self.noise_multiplier, self.side, direction)


@lru_cache(maxsize=64)
def _repeated_gaussian(size: int, records: int, noise_multiplier: float, side: Side, direction: Direction) -> Pair:
    # Draws have 53 bits: a record's probability may be larger by 2^-53.
    p = min((1 / records) * (1 + 1e-12) + 2.0**-53, 1.0)
    k: npt.NDArray[np.int64] = np.arange(min(size, _MOST_DRAWS) + 1)
    weights = binom.pmf(k, size, p)
    most = int(np.flatnonzero(binom.sf(k, size, p) < 1e-40)[0]) if binom.sf(k[-1], size, p) < 1e-40 else -1
    if most < 0:
        raise ProgramError(
            f"a record may be drawn more than {_MOST_DRAWS} times",
            where="with_replacement_gaussian",
            why=f"{size} draws are from {records} records only",
            hint="use fewer draws",
        )
    weights, k = weights[: most + 1], k[: most + 1]
    lost = 1e-40 if most < size else 0.0
    if side == "below":
        weights = np.append(weights[:-1], weights[-1] + lost)
    # scipy's probabilities are accurate to about 1e-13; the ones of k > 0 are rounded up (remove) for the upper bound.
    slack = 1e-12 if side == "above" else -1e-12
    weights = weights.copy()
    weights[1:] *= 1 + slack
    weights[0] = 1 - float(weights[1:].sum()) - (lost if side == "above" else 0.0)
    some = weights > 0
    part = MixturePart(weights[some], 2 * k[some] / noise_multiplier, direction == "remove")
    infinite = lost if side == "above" and direction == "remove" else 0.0
    return Pair(NO_ATOMS, part, infinite)


@dataclass(frozen=True)
class _Allocation(Mechanism):
    """One epoch of random allocation with each record once, bounded from one side."""

    batches: int
    noise_multiplier: float
    side: Side
    tail: float
    name: ClassVar[str] = "allocation"

    def pair(self, direction: Direction) -> Pair:
        return allocated_pair(self.batches, self.noise_multiplier, direction, self.side, math.log(self.tail))


__all__ = [
    "AllocatedGaussian",
    "FixedSizeGaussian",
    "FixedSizeReplaced",
    "TruncatedGaussian",
    "TruncatedNulled",
    "TruncatedPair",
    "WithReplacementGaussian",
]
