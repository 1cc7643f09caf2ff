"""Features and labels for a training: minibatches in a fixed order, with ones for the bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heliograph.array_files import one_per_name, read_arrays
from heliograph.errors import ProgramError
from heliograph.ir import Array
from heliograph.rounding import power_above
from heliograph.transfer.settings import TransferSettings

_PARTS = ("train", "val")


@dataclass(frozen=True, slots=True)
class TransferData:
    """Features (samples, features) and labels (samples,) of training and validation."""

    x_train: Array
    y_train: Array
    x_val: Array
    y_val: Array

    def __post_init__(self) -> None:
        for part in _PARTS:
            _check_samples(part, getattr(self, f"x_{part}"), getattr(self, f"y_{part}"))
        if self.x_train.shape[1] != self.x_val.shape[1]:
            raise ProgramError(
                f"training samples have {self.x_train.shape[1]} features, validation samples {self.x_val.shape[1]}"
            )
        if self.classes < 2:
            raise ProgramError("all labels are 0: there is nothing to classify")
        if self.classes > len(self.x_train):
            raise ProgramError(
                f"a label is {self.classes - 1}, and there are {len(self.x_train)} samples to train on",
                hint="number the classes from 0, without gaps",
            )

    @property
    def classes(self) -> int:
        return int(max(self.y_train.max(), self.y_val.max())) + 1

    @property
    def features(self) -> int:
        """The number of features of a sample, without the bias."""
        return int(self.x_train.shape[1])

    @property
    def size(self) -> float:
        """A power of two that bounds the absolute values of all features, at least 1 (for the bias).

        A step's program contains it, so the server sees it.
        """
        return power_above(max(1.0, float(np.abs(self.x_train).max()), float(np.abs(self.x_val).max())))

    def steps(self, settings: TransferSettings) -> int:
        """The number of minibatches in an epoch; a ProgramError if there are fewer samples than in a minibatch."""
        count = len(self.x_train) // settings.batch
        if not count:
            raise ProgramError(
                f"{len(self.x_train)} samples do not fill a minibatch of {settings.batch}", hint="use a smaller batch"
            )
        return count

    def batches(self, settings: TransferSettings) -> list[tuple[Array, Array]]:
        """The minibatches of an epoch, (features + 1, batch) and (classes, batch): columns are samples."""
        count = self.steps(settings)
        order = np.random.default_rng(settings.seed).permutation(len(self.x_train))
        every = (order[start * settings.batch : (start + 1) * settings.batch] for start in range(count))
        return [(columns(self.x_train[own]), one_hot(self.y_train[own], self.classes)) for own in every]

    def validation(self, settings: TransferSettings) -> list[Array]:
        """The validation samples in groups of a minibatch's size, padded with zeros: (features + 1, batch)."""
        return in_minibatches(self.x_val, settings.batch)

    def held_logits(self, parts: Sequence[Array]) -> Array:
        """The logits of the validation samples, (classes, samples), from the logits of the groups of `validation`."""
        return np.asarray(np.concatenate(parts, axis=1)[:, : len(self.y_val)])

    @staticmethod
    def load(path: str | Path) -> TransferData:
        """The data in an `.npz` file with x_train, y_train, x_val and y_val; nothing in it is executed.

        A ProgramError if the file is not valid, or its arrays are not features and labels.
        """
        try:
            train, val = _samples(path, *_PARTS)
        except ProgramError as error:
            raise ProgramError(
                f"{path} has no data to train on",
                why=": ".join(filter(None, (error.what, error.why))),
                hint="an .npz file with the arrays x_train, y_train, x_val and y_val",
            ) from None
        return TransferData(*train, *val)


def load_test(path: str | Path) -> tuple[Array, Array]:
    """The test set in an `.npz` file: features x_test (samples, features) and labels y_test (samples,)."""
    ((x, y),) = _samples(path, "test")
    _check_samples("test", x, y)
    return x, y


def _samples(path: str | Path, *parts: str) -> list[tuple[Array, Array]]:
    """Features and labels of each part of a file."""
    names = [f"{kind}_{part}" for part in parts for kind in ("x", "y")]
    found = one_per_name(read_arrays(path, names), names, path)
    # Labels that are not integers are left unchanged, and refused later.
    return [
        (x.astype(np.float64), y.astype(np.int64) if np.issubdtype(y.dtype, np.integer) else y)
        for x, y in zip(found[::2], found[1::2], strict=True)
    ]


def _check_samples(part: str, x: Array, y: Array) -> None:
    """Raise a ProgramError unless these are features and labels."""
    where = f"the {part} data"
    if x.dtype.kind not in "biuf":
        raise ProgramError(f"features have dtype {x.dtype}; real numbers are needed", where=where)
    if x.ndim != 2 or y.shape != x.shape[:1] or not len(x):
        raise ProgramError(
            f"features of shape {x.shape} and labels of shape {y.shape} do not fit",
            where=where,
            hint="features are (samples, features), labels whole numbers (samples,)",
        )
    if not np.isfinite(x).all():
        raise ProgramError("a feature is NaN or infinite", where=where)
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
        raise ProgramError("labels are not whole numbers from 0", where=where)


def columns(x: Array) -> Array:
    """Samples (samples, features) as columns, with a row of ones: (features + 1, samples)."""
    return np.asarray(np.concatenate([x, np.ones((len(x), 1))], axis=1).T)


def in_minibatches(x: Array, batch: int) -> list[Array]:
    """Samples (samples, features) as columns in groups of `batch`, the last group padded with zeros."""
    found = []
    for start in range(0, len(x), batch):
        own = columns(x[start : start + batch])
        found.append(np.pad(own, [(0, 0), (0, batch - own.shape[1])]))
    return found


def one_hot(y: Array, classes: int) -> Array:
    """Labels as one-hot columns, (classes, samples)."""
    return np.asarray(np.eye(classes)[:, y])


def softmax(logits: Array) -> Array:
    """The softmax along the first axis."""
    weights = np.exp(logits - logits.max(axis=0))
    return np.asarray(weights / weights.sum(axis=0))


def loss_of(logits: Array, y: Array) -> float:
    """The mean cross entropy of logits (classes, samples)."""
    shifted = logits - logits.max(axis=0)
    return float(np.mean(np.log(np.exp(shifted).sum(axis=0)) - shifted[y, np.arange(len(y))]))
