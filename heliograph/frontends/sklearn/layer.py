"""One estimator of a pipeline, as its reader gets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from sklearn.base import BaseEstimator, is_classifier, is_outlier_detector, is_regressor

from heliograph.errors import UnsupportedError
from heliograph.frontends.sklearn.samples import Named, applied
from heliograph.frontends.trees.nodes import Table
from heliograph.ir import Array, Builder, Location, Node


class Reading(Protocol):
    """What a reader of an estimator that is made of others needs (`reading.py`)."""

    def read(self, layer: Layer) -> Node:
        """The value of the estimator, which may be a pipeline."""
        ...

    def values(self, node: Node) -> Array:
        """What a node means on the program's samples."""
        ...

    def named(self, step: Any, first: bool) -> Named:
        """What gives rows the form in which an estimator was fitted."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """A fitted estimator and the value that it reads.

    builder: of the program.
    source: the node of one sample's features at this point, or the table whose rows are the input.
    seen: the samples at this point: (samples, features).
    step: the estimator.
    loc: its place in the pipeline.
    last: whether its output is the program's.
    named: gives rows the form in which the estimator was fitted.
    reading: reads the estimators of which this one is made.
    first: whether its features are the program's input.
    scores: whether scores are asked for even where there are probabilities.
    """

    builder: Builder
    source: Node | Table
    seen: Array
    step: Any
    loc: Location
    last: bool
    named: Named
    reading: Reading
    first: bool = False
    scores: bool = False

    @property
    def value(self) -> Node:
        """The node of one sample's features."""
        if isinstance(self.source, Table):
            raise self.unsupported("clients compare features for decision trees only")
        return self.source

    def method(self, name: str) -> Callable[[Array], Array]:
        """A method of the estimator on samples in rows, as an array (samples, values)."""
        if not hasattr(self.step, name):
            raise self.unsupported(f"it has no {name}")
        return applied(getattr(self.step, name), self.loc, self.named)

    def linear(self, value: Node, weight: Array, bias: Array | None = None, name: str = "") -> Node:
        """The affine map of a value; `name` is added to the layer's."""
        loc = self.place(name)
        names = {"weight": self.builder.constant(weight, f"{loc.layer}.weight")}
        if bias is not None:
            names["bias"] = self.builder.constant(bias, f"{loc.layer}.bias")
        return self.builder.op("linear", (value,), loc, **names)

    def op(self, op: str, *operands: Node, name: str = "", **attrs: Any) -> Node:
        """A node of that op; `name` is added to the layer's."""
        return self.builder.op(op, operands, self.place(name), **attrs)

    def constant(self, value: Any, name: str) -> Node:
        """Numbers that are known."""
        return self.op(
            "constant", value=self.builder.constant(np.asarray(value, np.float64), f"{self.loc.layer}.{name}")
        )

    def joined(self, values: Sequence[Node]) -> Node:
        """Vectors, one behind the other."""
        return values[0] if len(values) == 1 else self.op("concat", *values, axis=0)

    def place(self, name: str) -> Location:
        """The location of a part of the estimator."""
        return Location(self.loc.file, layer=f"{self.loc.layer}.{name}") if name else self.loc

    def inner(
        self, step: Any, name: str, value: Node | None = None, seen: Array | None = None, *, last: bool = True
    ) -> Layer:
        """An estimator of which this one is made: on the same features, or on others that this one makes of them."""
        first = self.first and value is None
        return replace(
            self,
            step=step,
            loc=Location(f"{type(step).__name__}()", layer=f"{self.loc.layer}.{name}"),
            source=self.value if value is None else value,
            seen=self.seen if seen is None else seen,
            named=self.reading.named(step, first),
            first=first,
            last=last,
            scores=False,
        )

    def unsupported(self, why: str, hint: str = "") -> UnsupportedError:
        return unsupported(self.step, self.loc, why, hint)


def output_of(step: Any) -> str:
    """What an estimator gives at the end of a program.

    `scores` stands for one number for each class or cluster, of which the largest is that of `predict`; else it is the
    name of a method.
    """
    if is_classifier(step) or (_kind(step) in ("clusterer", "density_estimator") and hasattr(step, "predict")):
        return "scores"
    if is_outlier_detector(step):
        return "decision_function"
    return "predict" if is_regressor(step) or not hasattr(step, "transform") else "transform"


def _kind(step: Any) -> Any:
    """The kind that an estimator says it is."""
    tags = getattr(step, "__sklearn_tags__", None)
    # Releases of scikit-learn without tags have another name for one kind.
    kind = tags().estimator_type if tags is not None else getattr(step, "_estimator_type", None)
    return "density_estimator" if kind == "DensityEstimator" else kind


def two_classes(weight: Array, bias: Array) -> tuple[Array, Array]:
    """Scores of both classes in place of z: their difference is z, and their softmax the logistic of z."""
    halves = np.array([[-0.5], [0.5]])
    return halves @ weight, halves[:, 0] * bias


_AFFINE = (
    "use affine estimators (scalers, PCA, linear models), support vector machines, naive Bayes, nearest centroids or "
    "neighbours, multilayer perceptrons, decision trees, and votes and stacks of these"
)
_ENCODED = (
    "encode categories on the client: put the encoder first in the pipeline, or in its ColumnTransformer, before scalers "
    "and others"
)
_CLIENT = "transform the features on the client: give what it makes of them, and the steps behind it"
# Estimators that are refused -> supported ones for the same task.
_INSTEAD = {
    "OneHotEncoder": _ENCODED,
    "OrdinalEncoder": _ENCODED,
    "TargetEncoder": _ENCODED,
    "CategoricalNB": "encode categories on the client as bits, and take BernoulliNB(binarize=None)",
    "PowerTransformer": _CLIENT,
    "QuantileTransformer": _CLIENT,
    "SplineTransformer": "PolynomialFeatures, or " + _CLIENT,
    "RadiusNeighborsClassifier": "KNeighborsClassifier of few points",
    "RadiusNeighborsRegressor": "KNeighborsRegressor of few points",
    "LocalOutlierFactor": "OneClassSVM or EllipticEnvelope",
    "GaussianProcessClassifier": 'SVC(kernel="rbf")',
    "GaussianProcessRegressor": 'KernelRidge(kernel="rbf")',
}


def unsupported(step: Any, loc: Location, why: str, hint: str = "") -> UnsupportedError:
    hints = [_INSTEAD[name] for one in within(step) if (name := type(one).__name__) in _INSTEAD]
    return UnsupportedError(
        f"{type(step).__name__} cannot be compiled",
        where=loc,
        why=why,
        hint=hint or (hints[0] if hints else _AFFINE),
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
    for name in ("best_estimator_", "estimator_", "final_estimator_", "regressor_"):
        inner = getattr(estimator, name, None)
        if isinstance(inner, BaseEstimator):
            yield from within(inner)
    for part in np.ravel(np.asarray(getattr(estimator, "estimators_", ()), dtype=object)):
        if isinstance(part, BaseEstimator):
            yield from within(part)
