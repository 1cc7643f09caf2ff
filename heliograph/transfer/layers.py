"""What is trained: one layer, or two with a polynomial between them. Its meaning in the clear: logits, gradients, sizes.

Weights are one array: of one layer (classes, features + 1), the bias last; of two layers a vector that holds both matrices
one after the other, (hidden, features + 1) and (classes, hidden). `matrices` gives them apart.

The activation is a / 2 + a^2 / 4, the beginning of 2 log(1 + e^(a / 2)) without its constant: b^2 - 1/4 for b = (a + 1) / 2,
and b is its derivative. A unit that the bias alone moves is the bias of the second layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir import Array
from heliograph.transfer.data import TransferData, softmax
from heliograph.transfer.settings import TransferSettings

# The names under which a step carries each matrix and its look-ahead point of Nesterov's momentum.
_OUTPUT, _HIDDEN = ("w", "v"), ("hidden_w", "hidden_v")
# Values that a step releases to the client, where they exist.
WATCHED = ("logits", "hidden")


@dataclass(frozen=True, slots=True)
class Seen:
    """The largest absolute values of a step: of a logit, and of what the activation reads (0 where there is none)."""

    logit: float
    hidden: float = 0.0


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a classifier: `hidden` units (0: one layer), `inputs` with the bias."""

    classes: int
    inputs: int
    hidden: int = 0

    @staticmethod
    def of(data: TransferData, settings: TransferSettings) -> Layers:
        return Layers(data.classes, data.features + 1, settings.hidden)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Of the matrices, the hidden layer's first."""
        if not self.hidden:
            return ((self.classes, self.inputs),)
        return (self.hidden, self.inputs), (self.classes, self.hidden)

    @property
    def carried(self) -> tuple[tuple[str, str], ...]:
        """For each matrix its name in a step, and that of the one that is looked ahead to."""
        return (_HIDDEN, _OUTPUT) if self.hidden else (_OUTPUT,)

    def matrices(self, weights: Array) -> list[Array]:
        """Those of weights; a ProgramError where they are of another classifier."""
        sizes = [rows * columns for rows, columns in self.shapes]
        if weights.size != sum(sizes) or (not self.hidden and weights.shape != self.shapes[0]):
            raise ProgramError(f"weights of shape {weights.shape} are not those of layers {self.shapes}")
        parts = np.split(weights.ravel(), np.cumsum(sizes)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def joined(self, matrices: list[Array]) -> Array:
        """The weights of matrices."""
        return np.concatenate([matrix.ravel() for matrix in matrices]) if self.hidden else matrices[0]

    def start(self, seed: int) -> Array:
        """The weights that training begins with: zeros; of a hidden layer random ones, or no gradient would reach it."""
        first: list[Array] = [np.zeros(shape) for shape in self.shapes]
        if self.hidden:
            first[0] = np.random.default_rng(seed).normal(0.0, self.inputs**-0.5, self.shapes[0])
        return self.joined(first)

    def logits(self, weights: Array, x: Array) -> Array:
        """(classes, samples) of columns (inputs, samples)."""
        return self._forward(weights, x)[-1]

    def _forward(self, weights: Array, x: Array) -> tuple[Array, Array, Array]:
        """What the activation reads, what the last layer reads, and the logits."""
        *first, last = self.matrices(weights)
        if not first:
            return np.zeros(1), x, last @ x
        read = first[0] @ x
        held = read / 2 + read**2 / 4
        return read, held, last @ held

    def step(self, weights: Array, x: Array, y: Array) -> tuple[Array, Array, Seen]:
        """The gradient of the mean loss of samples x (inputs, samples) and y (classes, samples); the logits; their sizes."""
        read, held, logits = self._forward(weights, x)
        away = (softmax(logits) - y) / x.shape[1]
        gradients = [away @ held.T]
        if self.hidden:
            back = self.matrices(weights)[-1].T @ away * (read + 1) / 2
            gradients.insert(0, back @ x.T)
        seen = Seen(float(np.abs(logits).max()), float(np.abs(read).max()) if self.hidden else 0.0)
        return self.joined(gradients), logits, seen
