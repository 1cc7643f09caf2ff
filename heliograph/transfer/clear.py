"""A training in the clear, and the loop that every training runs: epochs, validation, the early stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from heliograph.errors import RangeError
from heliograph.ir import Array
from heliograph.transfer.data import TransferData, columns, loss_of
from heliograph.transfer.layers import Layers, Seen
from heliograph.transfer.settings import TransferSettings, momentum


@dataclass(frozen=True, slots=True)
class State:
    """Weights (transfer/layers.py) after this many steps, and those that Nesterov's momentum looks ahead to."""

    step: int
    weights: Array
    ahead: Array


@dataclass(frozen=True, slots=True)
class Epoch:
    """What the client knows after an epoch: the validation loss and accuracy, the largest logit of training so far."""

    number: int
    loss: float
    accuracy: float
    largest_logit: float


@dataclass(slots=True)
class History:
    """The epochs of a training; `best` is the one of least validation loss, counted from 1 (0: none yet)."""

    epochs: list[Epoch] = field(default_factory=list)
    stopped: str = ""

    @property
    def best(self) -> int:
        return min(self.epochs, key=lambda epoch: epoch.loss).number if self.epochs else 0

    def judge(self, epoch: Epoch, settings: TransferSettings) -> bool:
        """Record an epoch; returns whether training continues."""
        self.epochs.append(epoch)
        if epoch.number - self.best >= settings.patience:
            self.stopped = f"the validation loss has not fallen for {settings.patience} epochs"
        elif epoch.number >= settings.most_epochs:
            self.stopped = f"it was to end after {settings.most_epochs} epochs"
        return not self.stopped


# Weights may leave their range by this share of it, since encryption has errors.
_SLACK = 2e-3

Watch: TypeAlias = "Callable[[Epoch], None]"


class Run(Protocol):
    """A training that proceeds step by step, wherever it runs."""

    @property
    def done(self) -> int:
        """Steps that are done."""
        ...

    def step(self) -> Seen:
        """The next step; the largest values that it saw."""
        ...

    def validate(self) -> Array:
        """The logits of the validation samples, (classes, samples)."""
        ...

    def keep(self) -> None:
        """Keep the weights as they are now: they are the best so far. A RangeError where they left their range."""
        ...


def train(
    run: Run, data: TransferData, settings: TransferSettings, history: History, watch: Watch | None = None
) -> History:
    """Train until the client stops it; a history that already has epochs is continued.

    Raises RangeError, after the history is complete, where a logit left the range of the softmax, or weights theirs: what
    follows from such a step is worth nothing, and the weights of the best epoch are kept.
    """
    steps, largest = data.steps(settings), max((epoch.largest_logit for epoch in history.epochs), default=0.0)
    while not history.stopped:
        while run.done < (len(history.epochs) + 1) * steps:
            seen = run.step()
            largest = max(largest, seen.logit)
            _check("a logit", "the range of the softmax", "logit_range", largest, settings.logit_range, run, history)
            _check("a hidden value", "its range", "hidden_range", seen.hidden, settings.hidden_range, run, history)
        logits = run.validate()
        right = float(np.mean(logits.argmax(axis=0) == data.y_val))
        epoch = Epoch(len(history.epochs) + 1, loss_of(logits, data.y_val), right, largest)
        history.judge(epoch, settings)
        if history.best == epoch.number:
            try:
                run.keep()
            except RangeError:
                # Nothing was kept: the best epoch is still the earlier one.
                history.epochs.pop()
                history.stopped = "a weight left its range"
                raise
        if watch is not None:
            watch(epoch)
    return history


def _check(what: str, left: str, name: str, largest: float, limit: float, run: Run, history: History) -> None:
    """Stop the training, with a RangeError, where a value left its range."""
    if not largest <= limit:
        history.stopped = f"{what} left [-{limit:g}, {limit:g}]"
        raise RangeError(
            f"step {run.done}: {what} of {largest:.4g} left {left}, [-{limit:g}, {limit:g}]",
            why="polynomials mean nothing there, and neither do the weights behind that step",
            hint=f"the weights of epoch {history.best} are kept; train with a wider {name}, or a smaller rate",
        )


def check_weights(state: State, settings: TransferSettings) -> None:
    """Raise a RangeError where weights left their range, as decrypting them does (`Client.decrypt_carried`)."""
    largest = max(float(np.abs(weights).max()) for weights in (state.weights, state.ahead))
    if not largest <= settings.weight_range * (1 + _SLACK):
        raise RangeError(
            f"a weight of {largest:.4g} left [-{settings.weight_range:g}, {settings.weight_range:g}]",
            why="on ciphertexts a bootstrap gives nonsense for larger ones",
            hint="train with a wider weight_range, or a smaller rate",
        )


class ClearRun:
    """A training in the clear: what an encrypted one is compared with."""

    def __init__(self, data: TransferData, settings: TransferSettings, state: State | None = None) -> None:
        self._data, self._settings = data, settings
        self._batches, self._held = data.batches(settings), data.validation(settings)
        self.layers = Layers.of(data, settings)
        start = self.layers.start(settings.seed)
        self.state = state or State(0, start, start)
        self.best = self.state
        self.logits: Array = np.zeros((data.classes, settings.batch))

    @property
    def done(self) -> int:
        return self.state.step

    def step(self) -> Seen:
        number, rate, gamma = self.state.step, self._settings.rate, momentum(self.state.step)
        x, y = self._batches[number % len(self._batches)]
        gradient, self.logits, seen = self.layers.step(self.state.ahead, x, y)
        weights = self.state.ahead - rate * gradient
        self.state = State(number + 1, weights, (1.0 - gamma) * weights + gamma * self.state.weights)
        return seen

    def validate(self) -> Array:
        return self._data.held_logits([self.layers.logits(self.state.weights, held) for held in self._held])

    def keep(self) -> None:
        check_weights(self.state, self._settings)
        self.best = self.state


def accuracy(weights: Array, x: Array, y: Array, layers: Layers | None = None) -> float:
    """Of weights on samples (samples, features); of one layer where `layers` does not say otherwise."""
    layers = layers or Layers(*weights.shape)
    return float(np.mean(layers.logits(weights, columns(x)).argmax(axis=0) == y))
