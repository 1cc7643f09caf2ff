"""The certified procedure in the clear, on the original network: the reference for encrypted answers.

Votes are counted exactly. The guess is the class with the most votes or, as under encryption, with the largest mean
logit (Phoenix, section 6.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.certified.certificate import Certificate
from heliograph.certified.certify import exact_network
from heliograph.certified.sampling import Sampler, run_watched
from heliograph.certified.smooth import GUESS_NOISE, NOISE, columns_of
from heliograph.ir import Array, Program, shape_of

Guess = Callable[[Array], int]


@dataclass(frozen=True, slots=True)
class Clear:
    """The guessed class, its votes, and whether they reach the target."""

    label: int
    votes: int
    certified: bool


def by_votes(logits: Array) -> int:
    """The class with the most votes of copies."""
    return int(np.bincount(logits.argmax(axis=1), minlength=logits.shape[1]).argmax())


def by_mean(logits: Array) -> int:
    """The class with the largest mean logit: the soft preliminary count."""
    return int(logits.mean(axis=0).argmax())


class Smoothed:
    """A smoothed classifier in the clear; `program` and `certificate` are as for `certify`."""

    def __init__(self, program: Program, certificate: Certificate, *, seed: int = 0) -> None:
        self.certificate = certificate
        self.network = exact_network(program)
        (source,) = self.network.inputs
        self.shape = shape_of(source)
        self.deviations = certificate.deviations(self.shape)
        self._columns = columns_of(self.network, certificate)
        self._sampler = Sampler(self.network, self.network, certificate, np.random.default_rng(seed))

    def __call__(self, x: Any, guess: Guess = by_mean) -> Clear:
        """The answer for one input, with fresh noise."""
        known = self.certificate
        logits = self._sampler(np.asarray(x, dtype=np.float64).reshape(self.shape), known.n + known.n0).exact
        return self._answer(logits[: known.n], logits[known.n :], guess)

    def with_noise(self, x: Any, drawn: Mapping[str, Any], guess: Guess = by_mean) -> Clear:
        """The answer for given noise: the certified artifact's plain inputs, by name."""
        known, columns = self.certificate, self._columns
        votes = self._logits(x, np.asarray(drawn[NOISE])[..., : known.n])
        if GUESS_NOISE in drawn:
            others = np.asarray(drawn[GUESS_NOISE])
        else:
            others = np.asarray(drawn[NOISE])[..., columns.start : columns.start + known.n0]
        return self._answer(votes, self._logits(x, others), guess)

    def _logits(self, x: Any, noise: Array) -> Array:
        copies = np.asarray(x, dtype=np.float64).reshape(self.shape) + self.deviations * np.moveaxis(noise, -1, 0)
        return run_watched(self.network, copies)[0]

    def _answer(self, votes: Array, others: Array, guess: Guess) -> Clear:
        label = guess(others)
        count = int((votes.argmax(axis=1) == label).sum())
        return Clear(label, count, count >= self.certificate.target)
