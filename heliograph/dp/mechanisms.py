"""The mechanisms that can be accounted for, as records; every accountant works from these.

A record holds a mechanism's parameters and knows its dominating pair in each neighbouring direction. Conventions:
neighbours differ by one record added or removed (`add_remove`); sensitivity is 1, so a noise multiplier is noise
standard deviation over sensitivity, and `Laplace(epsilon)` has scale 1/epsilon. In direction `remove` the data set of
distribution A has one record more than the data set of B; in `add` one less. Records multiply by counts and add up to a
`Composition`: `SampledGaussian(0.01, 1.0) * 1000 + Laplace(0.1) * 5`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from heliograph.dp.pairs import NO_ATOMS, Atoms, Pair, atomic_pair, gaussian_pair, laplace_pair
from heliograph.dp.sampled_pairs import MixturePart, exchanged_pair
from heliograph.errors import ProgramError, UnsupportedError

if TYPE_CHECKING:
    from heliograph.dp.composition import Composition

Direction = Literal["add", "remove"]
Neighboring = Literal["add_remove", "replace", "zero_out"]
"""How neighbours differ: by a record added or removed, by one replaced, or by one that adds nothing in its place."""
NEIGHBORING: tuple[Neighboring, ...] = ("add_remove", "replace", "zero_out")
Side = Literal["above", "below"]
DIRECTIONS: tuple[Direction, Direction] = ("add", "remove")

_SMALLEST_P = 1e-12
_EPSILON_RANGE = (1e-9, 1e4)
_NOISE_RANGE = (1e-3, 1e9)
_MOST_COMPONENTS = 1000


@dataclass(frozen=True)
class Mechanism(ABC):
    """A mechanism: its parameters, checked on construction, and its dominating pairs."""

    name: ClassVar[str] = ""
    """What the expression language calls it."""
    symmetric: ClassVar[bool] = False
    """The pairs of the two directions are one pair (up to a name of outcomes)."""
    proved: ClassVar[bool] = True
    """The masses of its pair are bounded with their round-off; False where they are estimates."""
    relation: ClassVar[Neighboring | None] = "add_remove"
    """The neighbouring relation that its pair is for; None: the one that its parameters hold for."""

    absent_is_null: ClassVar[bool] = False
    """Leaving a record out and making it add nothing come to the same, so that zero_out has the pair of add_remove."""

    adds_up: ClassVar[bool] = False
    """Several of the kind are one of it (`added_up`)."""

    @abstractmethod
    def pair(self, direction: Direction) -> Pair:
        """The dominating pair (A, B) in a direction."""

    @classmethod
    def added_up(cls, items: Sequence[tuple[Any, int]]) -> Mechanism:
        """One mechanism of a kind that adds up for several, each with its count."""
        raise NotImplementedError(cls.name)

    def replaced(self) -> Mechanism:
        """The record of this mechanism for neighbours that differ by one replaced record.

        Raises UnsupportedError if no tight pair is known.
        """
        if self.relation == "replace":
            return self
        raise UnsupportedError(
            f"{self.name} has no pair for the neighbouring relation 'replace'",
            where=self.text(),
            why="a tight dominating pair is known for it under adding or removing a record only",
            hint="account under add_remove; a replacement is one removal and one addition (see group privacy)",
        )

    def nulled(self) -> Mechanism:
        """The record of this mechanism for neighbours in which one record is there, or adds nothing in its place.

        Raises UnsupportedError if no pair is known.
        """
        if self.absent_is_null or self.relation == "zero_out":
            return self
        raise UnsupportedError(
            f"{self.name} has no pair for the neighbouring relation 'zero_out'",
            where=self.text(),
            hint="account under replace, which covers a record that adds nothing",
        )

    def bounded(self, side: Side, count: int, delta: float) -> Composition | None:
        """Mechanisms with pairs whose composition bounds `count` runs of this one from a side.

        None if it has a pair itself. `delta` is the size of the relevant deltas: the mass of a truncated tail must be
        small compared to it.
        """
        return None

    def arguments(self) -> dict[str, Any]:
        """The parameters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def text(self) -> str:
        """The mechanism in the expression language; parsing it gives an equal record."""
        shown = {key: list(value) if isinstance(value, tuple) else value for key, value in self.arguments().items()}
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in shown.items())})"

    def __mul__(self, count: int) -> Composition:
        from heliograph.dp.composition import Composition

        return Composition.of(self) * count

    __rmul__ = __mul__

    def __add__(self, other: Mechanism | Composition) -> Composition:
        from heliograph.dp.composition import Composition

        return Composition.of(self) + other

    # Checks that a mechanism applies to its own parameters.

    def _check(self, name: str, low: float, high: float, why: str, hint: str = "") -> float:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise ProgramError(f"{name} must be a number, not {value!r}", where=self.name, why=why)
        number = float(value)
        if not low <= number <= high:
            raise ProgramError(f"{name} = {value!r} is out of range", where=self.name, why=why, hint=hint)
        object.__setattr__(self, name, number)
        return number

    def _check_probability(self, name: str) -> float:
        value = self._check(name, 0.0, 1.0, "a sampling probability lies in [0, 1]")
        if 0 < value < _SMALLEST_P:
            raise ProgramError(
                f"{name} = {value!r} is too small",
                where=self.name,
                why=f"below {_SMALLEST_P:g} double precision does not carry the loss of one step",
                hint="round it up: a larger probability only gives a larger epsilon",
            )
        return value

    def _check_noise(self, name: str = "noise_multiplier") -> float:
        low, high = _NOISE_RANGE
        return self._check(
            name,
            low,
            high,
            f"noise is accounted for between {low:g} and {high:g} times the sensitivity; no noise (0) has no privacy",
            "use a positive noise multiplier (noise standard deviation over sensitivity)",
        )

    def _check_epsilon(self) -> float:
        low, high = _EPSILON_RANGE
        return self._check(
            "epsilon", low, high, f"the epsilon of one mechanism is accounted for in [{low:g}, {high:g}]"
        )


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """The Gaussian mechanism: noise standard deviation is `noise_multiplier` times the l2 sensitivity."""

    noise_multiplier: float
    name = "gaussian"
    absent_is_null = True
    symmetric = True

    def __post_init__(self) -> None:
        self._check_noise()

    def pair(self, direction: Direction) -> Pair:
        return gaussian_pair(1 / self.noise_multiplier, 1.0, True)

    def replaced(self) -> Gaussian:
        return Gaussian(self.noise_multiplier / 2)


@dataclass(frozen=True)
class SampledGaussian(Mechanism):
    """A step of DP-SGD: each record taken with probability p (Poisson), Gaussian noise on the sum."""

    p: float
    noise_multiplier: float
    name = "sampled_gaussian"
    absent_is_null = True

    def __post_init__(self) -> None:
        self._check_probability("p")
        self._check_noise()

    def pair(self, direction: Direction) -> Pair:
        return gaussian_pair(1 / self.noise_multiplier, self.p, direction == "remove")

    def replaced(self) -> Mechanism:
        if 0 < self.p < 1:
            return SampledReplaced(self.p, self.noise_multiplier)
        return Gaussian(self.noise_multiplier / 2) if self.p else self


@dataclass(frozen=True)
class SampledReplaced(Mechanism):
    """A step of DP-SGD on a Poisson sample, for data sets with one record replaced by another (P24).

    The pair is (1-p) N(0) + p N(1) against (1-p) N(0) + p N(-1), in either direction: a record and its opposite.
    """

    p: float
    noise_multiplier: float
    name = "sampled_replaced"
    symmetric = True
    relation = "replace"

    def pair(self, direction: Direction) -> Pair:
        return exchanged_pair(self.p, 1 / self.noise_multiplier)


@dataclass(frozen=True)
class MixtureGaussian(Mechanism):
    """Gaussian noise on a sum to which a record adds a vector of random length (P20).

    `sensitivities` are the lengths (at least 0), `probabilities` theirs (adding up to 1 within 1e-9, by which they are
    divided), drawn whatever the data; the noise has standard deviation `standard_deviation`.
    """

    standard_deviation: float
    sensitivities: tuple[float, ...]
    probabilities: tuple[float, ...]
    name = "mixture_gaussian"
    absent_is_null = True

    def __post_init__(self) -> None:
        for name in ("sensitivities", "probabilities"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        self._check_noise("standard_deviation")
        sizes, shares = self.sensitivities, self.probabilities
        if len(sizes) != len(shares) or not 1 <= len(sizes) <= _MOST_COMPONENTS:
            raise ProgramError(f"sensitivities need as many probabilities, at most {_MOST_COMPONENTS}", where=self.name)
        if any(not 0 <= size <= 1e3 * self.standard_deviation for size in sizes) or any(not p >= 0 for p in shares):
            raise ProgramError("sensitivities lie in [0, 1000 deviations], probabilities in [0, 1]", where=self.name)
        if not abs(math.fsum(shares) - 1) <= 1e-9:
            raise ProgramError(
                f"probabilities add up to {math.fsum(shares)!r}", where=self.name, why="they are all there are"
            )

    def pair(self, direction: Direction) -> Pair:
        return _mixture_pair(self.standard_deviation, self.sensitivities, self.probabilities, direction == "remove")


@dataclass(frozen=True)
class Laplace(Mechanism):
    """The Laplace mechanism: scale 1/epsilon at l1 sensitivity 1."""

    epsilon: float
    name = "laplace"
    absent_is_null = True
    symmetric = True

    def __post_init__(self) -> None:
        self._check_epsilon()

    def pair(self, direction: Direction) -> Pair:
        return laplace_pair(self.epsilon, 1.0, True)

    def replaced(self) -> Laplace:
        return Laplace(self.epsilon * 2)


@dataclass(frozen=True)
class SampledLaplace(Mechanism):
    """The Laplace mechanism (scale 1/epsilon) on a Poisson sample with probability p."""

    p: float
    epsilon: float
    name = "sampled_laplace"
    absent_is_null = True

    def __post_init__(self) -> None:
        self._check_probability("p")
        self._check_epsilon()

    def pair(self, direction: Direction) -> Pair:
        return laplace_pair(self.epsilon, self.p, direction == "remove")


@dataclass(frozen=True)
class DiscreteGaussian(Mechanism):
    """Noise on integers with P(x) proportional to exp(-x^2 / (2 sigma^2)), integer sensitivity.

    `sigma` is the parameter of the law, close to its standard deviation for sigma > 1 (Canonne, Kamath, Steinke 2020).
    """

    sigma: float
    sensitivity: int = 1
    name = "discrete_gaussian"
    absent_is_null = True
    symmetric = True

    def __post_init__(self) -> None:
        self._check("sigma", 1e-2, 1e5, "the discrete Gaussian is tabulated: 0.01 <= sigma <= 100,000", "use gaussian")
        _check_integer(self, "sensitivity", 10**5)
        if self.sensitivity > 50 * self.sigma:
            raise ProgramError(
                f"sensitivity {self.sensitivity} is more than 50 sigma",
                where=self.name,
                why="the noise does not hide the difference: epsilon would be above 1,000",
                hint="use more noise",
            )

    def pair(self, direction: Direction) -> Pair:
        return _discrete_gaussian_pair(self.sigma, int(self.sensitivity))

    def replaced(self) -> DiscreteGaussian:
        return DiscreteGaussian(self.sigma, 2 * int(self.sensitivity))


@dataclass(frozen=True)
class DiscreteLaplace(Mechanism):
    """Noise on integers with P(x) proportional to exp(-epsilon |x|), integer sensitivity (the geometric mechanism)."""

    epsilon: float
    sensitivity: int = 1
    name = "discrete_laplace"
    absent_is_null = True
    symmetric = True

    def __post_init__(self) -> None:
        self._check_epsilon()
        _check_integer(self, "sensitivity", 10**5)

    def pair(self, direction: Direction) -> Pair:
        return _discrete_laplace_pair(self.epsilon, int(self.sensitivity))

    def replaced(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.epsilon, 2 * int(self.sensitivity))


@dataclass(frozen=True)
class RandomizedResponse(Mechanism):
    """The true one of `categories` answers with probability e^epsilon / (e^epsilon + categories - 1), else another one.

    The neighbour is the same person with a different answer: a replaced record. Alone it is accounted for in this way
    whatever relation is requested; together with mechanisms whose pair is for an added or removed record, only under
    `replace`.
    """

    epsilon: float
    categories: int = 2
    name = "randomized_response"
    symmetric = True
    relation = "replace"

    def __post_init__(self) -> None:
        self._check_epsilon()
        _check_integer(self, "categories", 10**9)
        if self.categories < 2:
            raise ProgramError("categories must be at least 2", where=self.name, why="one answer tells nothing")

    def pair(self, direction: Direction) -> Pair:
        return _response_pair(self.epsilon, float(self.categories - 2))


@dataclass(frozen=True)
class Pure(Mechanism):
    """Any mechanism that is (epsilon, 0)-private; the worst of them is randomized response (Kairouz et al. 2015)."""

    epsilon: float
    name = "pure"
    symmetric = True
    relation = None

    def __post_init__(self) -> None:
        self._check_epsilon()

    def pair(self, direction: Direction) -> Pair:
        return _response_pair(self.epsilon, 0.0)

    def replaced(self) -> Pure:
        raise UnsupportedError(
            "pure(epsilon) holds for the relation that it was proved for",
            where=self.text(),
            hint="state the epsilon of the relation 'replace' and account under it with add_remove left as it is",
        )


@dataclass(frozen=True)
class Approximate(Mechanism):
    """Any mechanism that is (epsilon, delta)-private; the worst of them (Kairouz, Oh, Viswanath 2015)."""

    epsilon: float
    delta: float
    name = "approximate"
    symmetric = True
    relation = None

    def __post_init__(self) -> None:
        self._check("epsilon", 0.0, _EPSILON_RANGE[1], f"epsilon lies in [0, {_EPSILON_RANGE[1]:g}]")
        if 0 < self.epsilon < _EPSILON_RANGE[0]:
            raise ProgramError("epsilon is too small", where=self.name, why="it is below 1e-9", hint="use 0 or 1e-9")
        self._check("delta", 0.0, 1.0, "delta is a probability")

    def pair(self, direction: Direction) -> Pair:
        response = _response_pair(max(self.epsilon, 1e-300), 0.0)
        atoms = Atoms(response.atoms.loss, response.atoms.a * (1 - self.delta), response.atoms.relative_error)
        return Pair(atoms, None, self.delta)

    def replaced(self) -> Mechanism:
        return Pure(max(self.epsilon, 1e-9)).replaced()


def _check_integer(record: Mechanism, name: str, high: int) -> None:
    value = getattr(record, name)
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not float(value).is_integer() or not 1 <= value <= high:
        raise ProgramError(f"{name} = {value!r} must be an integer in [1, {high:g}]", where=record.name)
    object.__setattr__(record, name, int(value))


@lru_cache(maxsize=256)
def _mixture_pair(deviation: float, sizes: tuple[float, ...], shares: tuple[float, ...], remove: bool) -> Pair:
    total, weights = math.fsum(shares), dict[float, float]()
    for size, share in sorted(zip(sizes, shares, strict=True)):
        weights[size / deviation] = weights.get(size / deviation, 0.0) + share / total
    shifts = np.array([shift for shift, weight in weights.items() if weight > 0])
    masses = np.array([weight for weight in weights.values() if weight > 0])
    if not shifts[-1] > 0:
        return Pair(Atoms(np.zeros(1), np.ones(1)), None)
    return Pair(NO_ATOMS, MixturePart(masses, shifts, remove))


@lru_cache(maxsize=8)
def _discrete_gaussian_pair(sigma: float, sensitivity: int) -> Pair:
    # Beyond 40 sigma, masses are below e^-800: too small for a double, and for any delta.
    reach = math.ceil(40 * sigma) + 2 * sensitivity + 1
    x = np.arange(-reach, reach + sensitivity + 1, dtype=np.float64)
    weights = -(x**2) / (2 * sigma**2)
    log_total = float(np.log(np.exp(weights).sum()))
    a = -((x - sensitivity) ** 2) / (2 * sigma**2) - log_total
    # The loss is linear in x. The formula gives it to within a rounding, even where the masses are less accurate.
    loss = (2 * x * sensitivity - sensitivity**2) / (2 * sigma**2)
    heavy = a > -700
    mass = np.exp(a[heavy])
    return Pair(Atoms(loss[heavy], mass, 2e-13), None, 0.0, 1e-280)


@lru_cache(maxsize=8)
def _discrete_laplace_pair(epsilon: float, sensitivity: int) -> Pair:
    # The loss is -epsilon * sensitivity at or below 0, and the opposite at or above `sensitivity`, the shifted centre.
    inner = np.arange(1, sensitivity, dtype=np.float64)
    top = -np.log1p(np.exp(-epsilon))  # log of the mass at or beyond the centre
    centre = np.log(-np.expm1(-epsilon)) + top  # log of the mass of the centre: tanh(epsilon / 2)
    loss = np.concatenate(([-epsilon * sensitivity], epsilon * (2 * inner - sensitivity), [epsilon * sensitivity]))
    log_a = np.concatenate(([top - epsilon * sensitivity], centre - epsilon * (sensitivity - inner), [top]))
    return Pair(Atoms(loss, np.exp(log_a), 1e-13), None, 0.0)


@lru_cache(maxsize=256)
def _response_pair(epsilon: float, others: float) -> Pair:
    log_total = epsilon + math.log1p((1 + others) * math.exp(-epsilon))
    loss = np.array([-epsilon, 0.0, epsilon])
    mass = np.exp(np.array([-log_total, (math.log(others) if others else -np.inf) - log_total, epsilon - log_total]))
    keep = mass > 0
    return Pair(Atoms(loss[keep], mass[keep], 32 * 2.0**-53 * (1 + epsilon)), None, 0.0)


__all__ = [
    "DIRECTIONS",
    "NEIGHBORING",
    "Approximate",
    "Direction",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "MixtureGaussian",
    "Neighboring",
    "Pure",
    "RandomizedResponse",
    "SampledGaussian",
    "SampledLaplace",
    "SampledReplaced",
    "Side",
    "atomic_pair",
]
