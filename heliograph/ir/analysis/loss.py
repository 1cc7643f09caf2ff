"""The loss whose derivatives are the impacts of activations: one definition, for gradients and for finite differences.

OLA (section 2.2) takes the loss and the labels of the network's training. A program has neither. If its one output is a
row of logits, the loss is the cross entropy against the program's own class, its argmax: the same as with labels where
the network is right; where it is wrong, the loss keeps an approximation at the network's own answer, which is the goal.
Other outputs are added up with random signs, so that the derivative has the size of their own errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.interface import DECISION, PROBABILITY
from heliograph.ir.node import Array, size_of
from heliograph.ir.program import Program

# Outputs with more values than this do not count as class scores.
_MOST_CLASSES = 1000
_SEED = 20


def has_classes(program: Program) -> bool:
    """Whether the program has one output, of 2 to 1000 values along one axis: class scores; others have length 1.

    An output with the unit of an amount has no classes.
    """
    if len(program.outputs) != 1 or any(
        spec.unit not in (None, PROBABILITY, DECISION) for spec in program.interface.outputs
    ):
        return False
    (output,) = program.outputs
    shape = getattr(output.type, "shape", ())
    return 2 <= size_of(output) <= _MOST_CLASSES and sum(size > 1 for size in shape) == 1


def check_samples(program: Program, samples: Sequence[Array]) -> int:
    """The number of samples; a ProgramError if they do not fit the program's inputs."""
    wanted = [getattr(node.type, "shape", None) for node in program.inputs]
    given = [np.shape(array) for array in samples]
    counts = {shape[0] for shape in given if shape}
    if [shape[1:] for shape in given] != wanted or len(counts) != 1 or counts == {0} or () in given:
        raise ProgramError(
            f"samples of shapes {', '.join(map(str, given)) or 'none'} are not those of the inputs of {program.name}",
            why=f"its inputs have shapes {', '.join(map(str, wanted))}, and axis 0 counts the samples",
            hint="give one array for each input, in argument order, each with the same number of samples",
        )
    return int(counts.pop())


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one sample, a function of its outputs.

    `deviations` is None for the cross entropy. Otherwise it has each output's standard deviation over all samples
    and elements, and the loss is the sum over all elements of sign y / deviation, with signs of +-1 drawn from a fixed
    seed, different for each sample: the mean of its squared derivative over the signs is the sum over all elements of
    their squared derivatives.
    """

    deviations: tuple[float, ...] | None = None

    @staticmethod
    def of_outputs(outputs: Sequence[Array]) -> Loss:
        """The loss of a program without classes, from all outputs (one array each, with a leading sample axis)."""
        return Loss(tuple(_deviation(np.asarray(out, dtype=np.float64)) for out in outputs))

    def values(self, outputs: Sequence[Array], first: int) -> Array:
        """The loss of each sample; the first one has number `first` among all samples."""
        if self.deviations is None:
            gaps, _ = _gaps(outputs[0])
            return np.asarray(np.log1p(np.exp(gaps).sum(axis=1)))
        total = np.zeros(len(outputs[0]))
        for number, (out, deviation) in enumerate(zip(outputs, self.deviations, strict=True)):
            flat = np.asarray(out, dtype=np.float64).reshape(len(out), -1)
            total += (flat * _signs(number, first, flat.shape)).sum(axis=1) / deviation
        return total

    def slopes(self, outputs: Sequence[Array], first: int) -> list[Array]:
        """The derivative of each sample's loss by its outputs, one array for each output, in float64."""
        if self.deviations is None:
            return [_cross_entropy_slopes(outputs[0])]
        return [
            (_signs(number, first, (len(out), int(np.prod(np.shape(out)[1:])))) / deviation).reshape(np.shape(out))
            for number, (out, deviation) in enumerate(zip(outputs, self.deviations, strict=True))
        ]


def _deviation(out: Array) -> float:
    """The standard deviation of all values; if all values are equal, their absolute value, or one."""
    return float(out.std()) or float(abs(out).max(initial=0.0)) or 1.0


def _signs(output: int, first: int, shape: tuple[int, ...]) -> Array:
    """Signs of (samples, elements) of an output, the same for a sample in any chunk."""
    count, elements = shape
    drawn = [
        np.random.default_rng((_SEED, output, sample)).integers(0, 2, elements)
        for sample in range(first, first + count)
    ]
    return 2.0 * np.asarray(drawn, dtype=np.float64).reshape(count, elements) - 1.0


def _gaps(logits: Array) -> tuple[Array, Array]:
    """Logits less the largest one, which itself is -inf (samples by classes), and its index.

    The loss is log(1 + sum exp(gap)): without the class itself nothing cancels, however sure the network is.
    """
    flat = np.array(logits, dtype=np.float64).reshape(len(logits), -1)
    rows, best = np.arange(len(flat)), flat.argmax(axis=1)
    flat -= flat[rows, best][:, np.newaxis]
    flat[rows, best] = -np.inf
    return flat, best


def _cross_entropy_slopes(logits: Array) -> Array:
    gaps, best = _gaps(logits)
    odds = np.exp(gaps)
    slopes = odds / (1.0 + odds.sum(axis=1, keepdims=True))
    # For the class itself the slope is p - 1, which is minus the sum of the others.
    slopes[np.arange(len(slopes)), best] = -slopes.sum(axis=1)
    return np.asarray(slopes.reshape(np.shape(logits)))
