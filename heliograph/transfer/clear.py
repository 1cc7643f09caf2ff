"""Training in the clear, and the loop of every training: epochs, validation, early stopping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from heliograph.errors import RangeError
from heliograph.ir import Array
from heliograph.rounding import power_above
from heliograph.transfer.data import TransferData, columns, loss_of
from heliograph.transfer.layers import Layers, Seen
from heliograph.transfer.settings import TransferSettings, momentum


@dataclass(frozen=True, slots=True)
class State:
    """The weights (transfer/layers.py) after a number of steps, and Nesterov's look-ahead weights."""

    step: int
    weights: Array
    ahead: Array


@dataclass(frozen=True, slots=True)
class Epoch:
    """The client's view after an epoch: validation loss and accuracy, and the largest training logit so far."""

    number: int
    loss: float
    accuracy: float
    largest_logit: float


@dataclass(slots=True)
class History:
    """The epochs of a training; `best` is the epoch with the lowest validation loss, counted from 1 (0: none yet).

    A training with fixed epochs continues where another would end with an error: `spoiled` is the text of that error,
    and `unjudged` counts the epochs since then.
    """

    epochs: list[Epoch] = field(default_factory=list)
    stopped: str = ""
    spoiled: str = ""
    unjudged: int = 0

    @property
    def best(self) -> int:
        return min(self.epochs, key=lambda epoch: epoch.loss).number if self.epochs else 0

    @property
    def done(self) -> int:
        """The number of complete epochs."""
        return len(self.epochs) + self.unjudged

    def judge(self, epoch: Epoch, settings: TransferSettings) -> bool:
        """Record an epoch; returns whether training continues."""
        self.epochs.append(epoch)
        if epoch.number - self.best >= settings.patience and not settings.fixed_epochs:
            self.stopped = f"the validation loss has not fallen for {settings.patience} epochs"
        self._end(settings)
        return not self.stopped

    def pass_over(self, settings: TransferSettings) -> None:
        """Count an epoch whose results are invalid."""
        self.unjudged += 1
        self._end(settings)

    def _end(self, settings: TransferSettings) -> None:
        if self.done >= settings.most_epochs and not self.stopped:
            self.stopped = self.spoiled or f"it was to end after {settings.most_epochs} epochs"


# Weights may leave their range by this share of it, because of encryption's errors.
_SLACK = 2e-3
# Larger factors are not distinguished in error texts.
_MOST_TOLD = 1024.0

Watch: TypeAlias = "Callable[[Epoch], None]"


class Run(Protocol):
    """A training that proceeds step by step, wherever it runs."""

    @property
    def done(self) -> int:
        """The number of completed steps."""
        ...

    def step(self) -> Seen:
        """Take the next step; returns its largest values."""
        ...

    def validate(self) -> Array:
        """The logits of the validation samples, (classes, samples)."""
        ...

    def keep(self) -> None:
        """Keep the current weights, which are the best so far; a RangeError if they left their range."""
        ...


def train(
    run: Run,
    data: TransferData,
    settings: TransferSettings,
    history: History,
    watch: Watch | None = None,
    save: Callable[[], None] | None = None,
) -> History:
    """Train until the client stops it; a history that already has epochs is continued.

    `save` is called whenever the history has changed, `watch` after each judged epoch.

    Raises RangeError, once the history is complete, if a logit left the range of the softmax or weights left theirs:
    later results are invalid, and the weights of the best epoch are kept. With `fixed_epochs` all steps are taken
    first, as if nothing had happened.
    """
    steps, largest = data.steps(settings), max((epoch.largest_logit for epoch in history.epochs), default=0.0)
    keep_up = save or (lambda: None)

    def left(error: RangeError, stopped: str) -> None:
        """Handle a value that left its range: end the training, or only note it if the server must not see that."""
        if not settings.fixed_epochs:
            history.stopped = stopped
            raise error
        if not history.spoiled:
            history.spoiled = stopped
            keep_up()

    while not history.stopped:
        while run.done < (history.done + 1) * steps:
            seen = run.step()
            largest = max(largest, seen.logit)
            for bound in (
                _Bound("a logit", "the range of the softmax", "logit_range", settings.logit_range, largest),
                _Bound("a hidden value", "its range", "hidden_range", settings.hidden_range, seen.hidden),
            ):
                if bound.left:
                    left(bound.error(run, history), bound.stopped)
        epoch = None
        try:
            logits = run.validate()
        except RangeError as error:
            left(error, "a validation logit left its range")
        else:
            try:
                epoch = None if history.spoiled else _judged(run, logits, largest, data, settings, history)
            except RangeError as error:
                left(error, "a weight left its range")
        if epoch is None:
            history.pass_over(settings)
        keep_up()
        if watch is not None and epoch is not None:
            watch(epoch)
    if history.spoiled:
        raise RangeError(history.spoiled, why=_WORTHLESS, hint=_hint(history, "range"))
    return history


def _judged(
    run: Run, logits: Array, largest: float, data: TransferData, settings: TransferSettings, history: History
) -> Epoch:
    """Judge an epoch by its validation logits, and keep its weights if it is the best.

    A RangeError if the weights left their range: the epoch is then discarded, and the best epoch stays the earlier one.
    """
    right = float(np.mean(logits.argmax(axis=0) == data.y_val))
    epoch = Epoch(history.done + 1, loss_of(logits, data.y_val), right, largest)
    history.judge(epoch, settings)
    if history.best == epoch.number:
        try:
            run.keep()
        except RangeError:
            history.epochs.pop()
            history.stopped = ""
            raise
    return epoch


_WORTHLESS = "polynomials mean nothing there, and neither do the weights behind that step"


def _hint(history: History, name: str) -> str:
    return f"the weights of epoch {history.best} are kept; train with a wider {name}, or a smaller rate"


@dataclass(frozen=True, slots=True)
class _Bound:
    """The largest of some values, named `what`, and their bound, from the setting `name`."""

    what: str
    range: str
    name: str
    limit: float
    largest: float

    @property
    def left(self) -> bool:
        return not self.largest <= self.limit

    @property
    def stopped(self) -> str:
        return f"{self.what} left [-{self.limit:g}, {self.limit:g}]"

    def error(self, run: Run, history: History) -> RangeError:
        return RangeError(
            f"step {run.done}: {self.what} left {self.range}, [-{self.limit:g}, {self.limit:g}], "
            f"{by_factor(self.largest, self.limit)}",
            why=_WORTHLESS,
            hint=_hint(history, self.name),
        )


def by_factor(largest: float, limit: float) -> str:
    """How far a value exceeds its bound, as a power of two: errors end up in logs, so they omit the value itself."""
    factor = power_above(largest / limit)
    return f"by a factor of at most {factor:g}" if factor <= _MOST_TOLD else "by far"


def check_weights(state: State, settings: TransferSettings) -> None:
    """Raise a RangeError if weights left their range, as `Client.decrypt_carried` does."""
    largest, limit = max(float(np.abs(each).max()) for each in (state.weights, state.ahead)), settings.weight_range
    if not largest <= limit * (1 + _SLACK):
        raise RangeError(
            f"a weight left [-{limit:g}, {limit:g}], {by_factor(largest, limit)}",
            why="on ciphertexts a bootstrap gives nonsense for larger ones",
            hint="train with a wider weight_range, or a smaller rate",
        )


class ClearRun:
    """A training in the clear, the reference for an encrypted one."""

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
    """The accuracy of weights on samples (samples, features); `layers` defaults to one layer."""
    layers = layers or Layers(*weights.shape)
    return float(np.mean(layers.logits(weights, columns(x)).argmax(axis=0) == y))
