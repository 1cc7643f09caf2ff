"""The trained classifier in the clear: one layer, or two with a polynomial between them; logits, gradients, sizes.

Weights are one array: for one layer (classes, features + 1), the bias last; for two layers a vector of both matrices
one after the other, (hidden, features + 1) and (classes, hidden). `matrices` separates them.

The activation is a / 2 + a^2 / 4, the Taylor polynomial of 2 log(1 + e^(a / 2)) without its constant. It equals b^2 -
1/4 for b = (a + 1) / 2, and b is its derivative. A hidden unit that depends only on the bias acts as the bias of the
second layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir import Array
from heliograph.transfer.data import TransferData, softmax
from heliograph.transfer.settings import TransferSettings

# The names of each carried matrix and of its Nesterov look-ahead point.
_OUTPUT, _HIDDEN = ("w", "v"), ("hidden_w", "hidden_v")
# Values that a step releases to the client, where they exist.
WATCHED = ("logits", "hidden")


@dataclass(frozen=True, slots=True)
class Seen:
    """The largest absolute values in a step: of a logit, and of the activation's input (0 without a hidden layer)."""

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
        """The shapes of the matrices, the hidden layer's first."""
        if not self.hidden:
            return ((self.classes, self.inputs),)
        return (self.hidden, self.inputs), (self.classes, self.hidden)

    @property
    def carried(self) -> tuple[tuple[str, str], ...]:
        """For each matrix, its name in a step and the name of its look-ahead point."""
        return (_HIDDEN, _OUTPUT) if self.hidden else (_OUTPUT,)

    def matrices(self, weights: Array) -> list[Array]:
        """The matrices in a weights array; a ProgramError if its size belongs to another classifier."""
        sizes = [rows * columns for rows, columns in self.shapes]
        if weights.size != sum(sizes) or (not self.hidden and weights.shape != self.shapes[0]):
            raise ProgramError(f"weights of shape {weights.shape} are not those of layers {self.shapes}")
        parts = np.split(weights.ravel(), np.cumsum(sizes)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def joined(self, matrices: list[Array]) -> Array:
        """The weights array of these matrices."""
        return np.concatenate([matrix.ravel() for matrix in matrices]) if self.hidden else matrices[0]

    def start(self, seed: int) -> Array:
        """The initial weights: zeros, but random for a hidden layer, which no gradient would reach otherwise."""
        first: list[Array] = [np.zeros(shape) for shape in self.shapes]
        if self.hidden:
            first[0] = np.random.default_rng(seed).normal(0.0, self.inputs**-0.5, self.shapes[0])
        return self.joined(first)

    def logits(self, weights: Array, x: Array) -> Array:
        """The logits (classes, samples) of columns (inputs, samples)."""
        return self._forward(weights, x)[-1]

    def _forward(self, weights: Array, x: Array) -> tuple[Array, Array, Array]:
        """The activation's inputs, the last layer's inputs, and the logits."""
        *first, last = self.matrices(weights)
        if not first:
            return np.zeros(1), x, last @ x
        read = first[0] @ x
        held = read / 2 + read**2 / 4
        return read, held, last @ held

    def step(self, weights: Array, x: Array, y: Array) -> tuple[Array, Array, Seen]:
        """The gradient of the mean loss on x (inputs, samples) and y (classes, samples); logits; largest values."""
        read, held, logits = self._forward(weights, x)
        away = (softmax(logits) - y) / x.shape[1]
        gradients = [away @ held.T]
        if self.hidden:
            back = self.matrices(weights)[-1].T @ away * (read + 1) / 2
            gradients.insert(0, back @ x.T)
        seen = Seen(float(np.abs(logits).max()), float(np.abs(read).max()) if self.hidden else 0.0)
        return self.joined(gradients), logits, seen
