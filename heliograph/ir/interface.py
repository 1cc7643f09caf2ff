"""A program's interface: its named inputs and outputs, and the slots of their elements."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.encoding import Encoding
from heliograph.ir.maps.layout import MOST_ELEMENTS, Layout
from heliograph.ir.node import Array
from heliograph.records import bounds

# Functions that a client applies to a decrypted output, along one axis: exact, and at no homomorphic cost.
FINISHES = ("softmax", "log_softmax")
# The types of class labels.
LABELS = ("text", "int", "float", "bool")
# The units of scores that are probabilities, and of values whose sign is the answer: 1 for inliers, -1 for outliers.
PROBABILITY, DECISION = "probability", "decision function"
# The largest factor by which a client multiplies an output.
LARGEST_SCALE = 2.0**100


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. Layout, range and errors describe the encrypted values.

    shape: the tensor's shape for its author.
    layout: with the same number of elements; None before packing.
    low, high: bounds of the elements: declared for an input, as far as known for an output.
    range_source: for an output with bounds, their origin ("proved" or "observed").
    classes: the length of the last axis, on which the input is one-hot; the client may give whole numbers in place of
        it.
    finish: "softmax" or "log_softmax" over the axis `finish_axis`: the output is that function of the encrypted values.
        The client multiplies them by `scale`, a power of two, if there is one, and computes the function after
        decryption.
    columns: names of the elements of the last axis: of an input's, from the data frame with which the program was made;
        of an output's, its classes.
    labels: for an output with a score for each class on its last axis, the type of the class labels, whose texts are
        `columns`.
    unit: for an output, what its values are: `PROBABILITY`, `DECISION`, or the unit of an amount.
    encoding: for an input (elements,), what makes it from a row of a table; `columns` names the row's columns then.
    """

    name: str = field(metadata=bounds(named=True))
    shape: tuple[int, ...] = field(metadata=bounds(1, MOST_ELEMENTS, most=8))
    layout: Layout | None = None
    low: float | None = field(default=None, metadata=bounds(optional=True))
    high: float | None = field(default=None, metadata=bounds(optional=True))
    range_source: str | None = field(default=None, metadata=bounds(choices=("proved", "observed"), optional=True))
    classes: int | None = field(default=None, metadata=bounds(1, MOST_ELEMENTS, optional=True))
    finish: str | None = field(default=None, metadata=bounds(choices=FINISHES, optional=True))
    finish_axis: int | None = field(default=None, metadata=bounds(0, 8, optional=True))
    scale: float | None = field(default=None, metadata=bounds(2.0, LARGEST_SCALE, optional=True))
    columns: tuple[str, ...] | None = field(default=None, metadata=bounds(named=True, optional=True))
    encoding: Encoding | None = field(default=None, metadata=bounds(optional=True))
    labels: str | None = field(default=None, metadata=bounds(choices=LABELS, optional=True))
    unit: str | None = field(default=None, metadata=bounds(named=True, optional=True))

    @property
    def placed(self) -> Layout:
        """The layout of a packed program's tensor."""
        assert self.layout is not None, f"{self.name} is not packed"
        return self.layout

    def described(self) -> str:
        """Shape, range, classes and unit in words."""
        parts = [f"shape {self.shape}"]
        if self.low is not None and self.high is not None:
            parts.append(f"in [{self.low:.4g}, {self.high:.4g}]")
        if self.columns is not None:
            names = ", ".join(self.columns[:8]) + (", ..." if len(self.columns) > 8 else "")
            parts.append(f"{'classes' if self.labels else 'columns'} {names}")
        if self.encoding is not None:
            parts.append(f"from a row of {self.encoding.width} columns")
        if self.unit is not None:
            parts.append(f"unit {self.unit}")
        return "; ".join(parts)

    def finished(self, value: Array, *, scores: bool = False) -> Array:
        """The program's output from the encrypted values; unchanged if the client has nothing to compute.

        With `scores`, the values before the softmax that is left to the client.
        """
        if self.scale is not None:
            value = value * self.scale
        if self.finish is None or scores:
            return value
        # There may be leading axes of samples.
        axis = value.ndim - len(self.shape) + (self.finish_axis or 0)
        shifted = value - value.max(axis=axis, keepdims=True)
        total = np.exp(shifted).sum(axis=axis, keepdims=True)
        return np.asarray(shifted - np.log(total) if self.finish == "log_softmax" else np.exp(shifted) / total)


@dataclass(frozen=True, slots=True)
class Interface:
    """The secret inputs and the outputs, in order; `carried` pairs an output with the input that it becomes in the next
    run.

    An output may become several inputs if all of them accept it unchanged; an input comes from one output. Before
    packing it may be empty, or know only the ranges of outputs. Plain inputs are nodes only: they have no layout.
    """

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    carried: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, count in Counter(name for _, name in self.carried).items():
            if count > 1:
                outputs = " and ".join(repr(output) for output, into in self.carried if into == name)
                raise ProgramError(
                    f"input {name!r} comes from {count} outputs of the run before: {outputs}",
                    why="a run takes one value for each input",
                    hint="carry one of them, or give each its own input",
                )

    @property
    def carried_inputs(self) -> dict[str, str]:
        """The inputs that come from the previous run, each with its output there."""
        return {name: output for output, name in self.carried}

    @property
    def batch(self) -> int:
        """The number of samples that the program takes at once."""
        return max((spec.layout.batch for spec in (*self.inputs, *self.outputs) if spec.layout), default=1)

    @property
    def scales(self) -> tuple[float, ...]:
        """The factor by which the client multiplies each output; empty if outputs are not described."""
        return tuple(spec.scale or 1.0 for spec in self.outputs)

    @property
    def packed(self) -> bool:
        """Whether the places of elements are known."""
        return any(spec.layout is not None for spec in self.outputs)
