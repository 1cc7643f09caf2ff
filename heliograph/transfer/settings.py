"""The settings of a training: sizes, learning rate, ranges, stopping."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from heliograph.errors import ProgramError


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """The settings of a classifier's training.

    batch: samples in a step; a smaller last minibatch is left out, because its mean would weigh more.
    rate: the learning rate.
    logit_range: softmax is accurate for logits within [-logit_range, logit_range]. The client sees the logits of every
        step: if one leaves the range, training stops.
    weight_range: weights and bias must stay within [-weight_range, weight_range]; the client checks it in the same way.
    hidden: units of a trained hidden layer with the activation a / 2 + a^2 / 4; 0 for none.
    hidden_range: the activation's inputs must stay within [-hidden_range, hidden_range]. The client sees them in every
        step.
    softmax_error: the largest error of a probability.
    patience: training ends when the validation loss has not fallen for this many epochs.
    most_epochs: it ends after this many epochs at the latest.
    fixed_epochs: training ends after exactly most_epochs, whatever the client sees; the client keeps the best weights
        and does not reveal which they are. Otherwise the server learns after each epoch whether it was the best, and
        when a value left its range.
    seed: the seed for the order of the samples, which is the same in every epoch.
    """

    batch: int = 1024
    rate: float = 1.0
    logit_range: float = 20.0
    weight_range: float = 8.0
    hidden: int = 0
    hidden_range: float = 4.0
    softmax_error: float = 1e-4
    patience: int = 3
    most_epochs: int = 100
    fixed_epochs: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("hidden", 0), ("patience", 1), ("most_epochs", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ProgramError(
                    f"{name} = {value!r} is not a whole number of at least {least}", where="TransferSettings"
                )
        if type(self.fixed_epochs) is not bool:
            raise ProgramError(f"fixed_epochs = {self.fixed_epochs!r} is not True or False", where="TransferSettings")
        for name in ("rate", "logit_range", "weight_range", "hidden_range", "softmax_error"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise ProgramError(f"{name} = {value!r} is not a number above zero", where="TransferSettings")


def momenta() -> Iterator[float]:
    """Nesterov's gamma_t = (1 - l_t) / l_(t+1) for t = 1, 2, ..., with l_0 = 0 and l_(t+1) = (1 + sqrt(1 + 4 l_t^2)) / 2.

    HETAL, section 2.1. It is 0 for the first step, and below zero from then on.
    """
    last = 1.0
    while True:
        following = (1.0 + math.sqrt(1.0 + 4.0 * last * last)) / 2.0
        yield (1.0 - last) / following
        last = following


def momentum(step: int) -> float:
    """Nesterov's gamma for one step, counted from 0."""
    return next(itertools.islice(momenta(), step, None))
