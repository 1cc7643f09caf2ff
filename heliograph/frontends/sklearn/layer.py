"""One estimator of a pipeline, as its reader gets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.errors import UnsupportedError
from heliograph.frontends.sklearn.samples import Named, applied
from heliograph.frontends.trees.nodes import Compare
from heliograph.ir import Array, Builder, Location, Node


@dataclass(frozen=True, slots=True)
class Layer:
    """A fitted estimator and the value that it reads.

    builder: of the program.
    source: the node of one sample's features at this point; None if clients compare.
    seen: the samples at this point: (samples, features).
    step: the estimator.
    loc: its place in the pipeline.
    last: whether its output is the program's.
    named: gives rows the form in which the estimator was fitted.
    compare: makes the input of a program whose clients compare the features with thresholds; None if they send them.
    """

    builder: Builder
    source: Node | None
    seen: Array
    step: Any
    loc: Location
    last: bool
    named: Named
    compare: Compare | None = None

    @property
    def value(self) -> Node:
        """The node of one sample's features."""
        if self.source is None:
            raise self.unsupported("clients compare features for decision trees only")
        return self.source

    def method(self, name: str) -> Callable[[Array], Array]:
        """A method of the estimator on samples in rows, as an array (samples, values)."""
        if not hasattr(self.step, name):
            raise self.unsupported(f"it has no {name}")
        return applied(getattr(self.step, name), self.loc, self.named)

    def linear(self, value: Node, weight: Array, bias: Array, name: str = "") -> Node:
        """The affine map of a value; `name` is added to the layer's."""
        loc = Location(self.loc.file, layer=f"{self.loc.layer}.{name}") if name else self.loc
        names = {
            "weight": self.builder.constant(weight, f"{loc.layer}.weight"),
            "bias": self.builder.constant(bias, f"{loc.layer}.bias"),
        }
        return self.builder.op("linear", (value,), loc, **names)

    def unsupported(self, why: str) -> UnsupportedError:
        return unsupported(self.step, self.loc, why)


def two_classes(weight: Array, bias: Array) -> tuple[Array, Array]:
    """Scores of both classes in place of z: their difference is z, and their softmax the logistic of z."""
    halves = np.array([[-0.5], [0.5]])
    return halves @ weight, halves[:, 0] * bias


_AFFINE = "use affine estimators (scalers, PCA, linear models, linear SVMs), multilayer perceptrons, and decision trees"
_ENCODED = "encode categories on the client: give what the encoder makes of them, and the steps behind it"
# Estimators that are refused -> supported ones for the same task.
_INSTEAD = {
    "OneHotEncoder": _ENCODED,
    "OrdinalEncoder": _ENCODED,
    "TargetEncoder": _ENCODED,
    "SVC": 'LinearSVC has one affine score for each class; SVC(kernel="linear") has one for two classes only',
    "NuSVC": 'LinearSVC has one affine score for each class; NuSVC(kernel="linear") has one for two classes only',
}


def unsupported(step: Any, loc: Location, why: str) -> UnsupportedError:
    hints = [_INSTEAD[name] for one in within(step) if (name := type(one).__name__) in _INSTEAD]
    return UnsupportedError(
        f"{type(step).__name__} cannot be compiled", where=loc, why=why, hint=hints[0] if hints else _AFFINE
    )


def within(estimator: Any) -> Iterator[Any]:
    """The estimator and all estimators inside it."""
    yield estimator
    for _, part, *_ in (
        *getattr(estimator, "transformers_", ()),
        *getattr(estimator, "transformer_list", ()),
        *getattr(estimator, "steps", ()),
    ):
        yield from within(part)
    best = getattr(estimator, "best_estimator_", None)
    if best is not None:
        yield from within(best)
