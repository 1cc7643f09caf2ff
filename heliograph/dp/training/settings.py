"""The settings of a private training run: every parameter, checked before anything is drawn.

All of them are public: they must be chosen without looking at the training data, or that look is a release of its own.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from heliograph.dp.accounting.accountant import check_delta, check_whole
from heliograph.dp.mechanisms import Neighboring
from heliograph.dp.samplers import Sampler
from heliograph.errors import ProgramError

Method = Literal["dp_sgd", "dpis", "band_mf"]
Precision = Literal["full", "bfloat16"]

_MAX_SIZE = 10**10


@dataclass(frozen=True)
class ImportanceOptions:
    """The parameters of DPIS in addition to those of DP-SGD (Wei et al. 2022, table 2); none depends on the data.

    oversampling: k: a record is a candidate with k times the probability of its last known norm, so its norm may grow
        k-fold before it is clipped.
    norm_floor: g_L as a share of the clipping bound.
    norm_noise: sigma_K as a share of the number of records.
    worst_case_share: a_E: for this share of the epochs, later epochs are given noise as if all norms were at the bound.
    adapt_clipping: whether the bound of the next epoch is `clip_factor` times the mean norm, inside `clip_range`.
    clip_range: public, by default from a tenth of the first bound to four times it.
    clip_factor: lambda.
    planned_norm_share: the planned mode: norm sums are not released; this public share of N times C, or one such share
        for each epoch, takes their place. Its noise is the noise of DP-SGD with batches of batch_size / share.
    """

    oversampling: float = 2.0
    norm_floor: float = 0.01
    norm_noise: float = 0.02
    worst_case_share: float = 0.8
    adapt_clipping: bool = False
    clip_range: tuple[float, float] | None = None
    clip_factor: float = 1.0
    planned_norm_share: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _number(self.oversampling, "oversampling", 1.0, 1e3, "below 1 a record with an unchanged norm would be clipped")
        _number(self.norm_floor, "norm_floor", 0.0, 1.0, "it is a share of the clipping bound")
        _number(self.norm_noise, "norm_noise", 1e-6, 10.0, "it is noise as a share of the number of records")
        _number(self.worst_case_share, "worst_case_share", 0.0, 1.0, "it is a share of the epochs")
        _number(self.clip_factor, "clip_factor", 1e-3, 1e3, "it scales the mean norm")
        if self.clip_range is not None:
            low, high = self.clip_range
            _number(low, "clip_range", 1e-12, 1e12, "a clipping bound is positive")
            _number(high, "clip_range", low, 1e12, "the range ends at or above where it starts")
        for share in self.planned_shares(1) or ():
            _number(share, "planned_norm_share", 1e-9, 1.0, "it is a share of N times C")

    def planned_shares(self, epochs: int) -> tuple[float, ...] | None:
        """The planned share of each epoch; None if the norm sums are released."""
        given = self.planned_norm_share
        return given if given is None or isinstance(given, tuple) else (given,) * epochs


@dataclass(frozen=True)
class Settings:
    """A run's public parameters, as given; see `DPTrainer` for their meaning."""

    method: Method
    delta: float
    epochs: int
    batch_size: float
    max_grad_norm: float
    epsilon: float | None = None
    noise_multiplier: float | None = None
    public_size: int | None = None
    size_noise: float = 100.0
    seed: int | None = None
    secure_noise: bool = False
    physical_batch_size: int = 256
    dpis: ImportanceOptions = field(default_factory=ImportanceOptions)
    sampler: Sampler | None = None
    """Of DP-SGD; None: Poisson sampling with `batch_size` over the number of records."""

    bands: int | None = None
    """Of BandMF: how many steps share noise."""

    precision: Precision = "full"
    """Of forward and backward passes."""

    def __post_init__(self) -> None:
        if self.sampler is not None and (self.method != "dp_sgd" or self.public_size is None):
            raise ProgramError(
                f"the sampler {self.sampler.name} is for dp_sgd with a public number of records",
                where="sampler",
                why="importance sampling draws by norms, and other probabilities are not known before the number is",
                hint="use method='dp_sgd' and give public_size",
            )
        if self.method not in ("dp_sgd", "dpis", "band_mf"):
            raise ProgramError(f"no method {self.method!r}", where="method", hint="use dp_sgd, dpis or band_mf")
        if (self.bands is not None) != (self.method == "band_mf"):
            raise ProgramError("bands belong to band_mf", where="bands", hint="give both, or neither")
        if self.bands is not None:
            check_whole(self.bands, "bands", 1, 10**5)
        if self.precision not in ("full", "bfloat16"):
            raise ProgramError(
                f"no precision {self.precision!r}",
                where="precision",
                why="float16 needs scaled losses, or gradients of single records become zero or infinite",
                hint="use full, or bfloat16 for forward and backward passes",
            )
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ProgramError(
                "give either epsilon or noise_multiplier",
                where="epsilon, noise_multiplier",
                why="one of them follows from the other, delta and the schedule",
            )
        check_delta(self.delta)
        check_whole(self.epochs, "epochs", 1, 10**6)
        _number(self.batch_size, "batch_size", 1.0, float(_MAX_SIZE), "it is the expected number of records of a batch")
        _number(self.max_grad_norm, "max_grad_norm", 1e-12, 1e12, "the sensitivity of a step is this bound")
        if self.epsilon is not None:
            _number(self.epsilon, "epsilon", 1e-3, 1e4, "targets lie in this range")
        if self.noise_multiplier is not None:
            _number(
                self.noise_multiplier, "noise_multiplier", 1e-3, 1e9, "without noise (0) there is no privacy to account"
            )
        shares = self.dpis.planned_shares(self.epochs)
        if shares is not None and len(shares) != self.epochs:
            raise ProgramError(
                f"{len(shares)} planned shares for {self.epochs} epochs",
                where="planned_norm_share",
                hint="give one share, or one for each epoch",
            )
        _number(self.size_noise, "size_noise", 1e-2, 1e9, "it is the noise on the number of records")
        check_whole(self.physical_batch_size, "physical_batch_size", 1, 10**7)
        if self.public_size is not None:
            check_whole(self.public_size, "public_size", 1, _MAX_SIZE)
            check_size(float(self.public_size), self, "public_size")
        elif self.noise_multiplier is not None:
            raise ProgramError(
                "noise_multiplier is given, but the number of records is not public",
                where="noise_multiplier, public_size",
                why="probability and steps come from the released size, so that epsilon would depend on the data",
                hint="give epsilon (the noise is found after the size is released), or public_size if N is public",
            )
        if self.seed is not None and self.secure_noise:
            raise ProgramError(
                "a seed and secure noise exclude each other",
                where="seed, secure_noise",
                why="noise that can be drawn again from a seed is not secret",
                hint="leave the seed out",
            )

    @property
    def neighboring(self) -> Neighboring:
        """How the neighbours of the guarantee differ."""
        return "add_remove" if self.sampler is None else self.sampler.neighboring

    @property
    def mixed_rows(self) -> int | None:
        """The one size of physical batches in mixed precision; None in full precision."""
        return self.physical_batch_size if self.precision == "bfloat16" else None

    @property
    def clip_range(self) -> tuple[float, float]:
        """The public interval [C_min, C*] of clipping bounds."""
        if not self.dpis.adapt_clipping:
            return self.max_grad_norm, self.max_grad_norm
        low, high = self.dpis.clip_range or (self.max_grad_norm / 10, 4 * self.max_grad_norm)
        if not low <= self.max_grad_norm <= high:
            raise ProgramError(
                f"max_grad_norm = {self.max_grad_norm:g} is outside of clip_range [{low:g}, {high:g}]",
                where="clip_range",
            )
        return low, high

    def to_json(self) -> dict[str, Any]:
        """The parameters as a JSON object."""
        value = asdict(self)
        value["sampler"] = None if self.sampler is None else self.sampler.to_json()
        return value


def check_size(size: float, settings: Settings, where: str) -> None:
    """Raise ProgramError unless a number of records (public or released) suits the batch size and delta."""
    least = settings.batch_size * (settings.bands or 1)
    if size < least or (settings.method == "dpis" and size <= least):
        raise ProgramError(
            f"the number of records, {size:g}, is not above the batch size {settings.batch_size:g}"
            + (f" times {settings.bands} bands" if settings.bands else ""),
            where=where,
            why="a sampling probability would be 1 or more"
            + ("; norms that saturate it would pass the analysed bound" if settings.method == "dpis" else ""),
            hint="use a smaller batch_size",
        )
    if settings.delta * size > 1:
        raise ProgramError(
            f"delta = {settings.delta:g} is above 1/N = {1 / size:.3g}",
            where="delta",
            why="publishing one record at random has such a delta: it promises nothing to anybody",
            hint=f"use a delta well below 1/N, such as {10.0 ** math.floor(math.log10(0.1 / size)):g}",
        )


def _number(value: object, name: str, low: float, high: float, why: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ProgramError(f"{name} = {value!r} is not in [{low:g}, {high:g}]", where=name, why=why)
