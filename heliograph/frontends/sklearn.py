"""Programs from scikit-learn estimators.

Scalers, PCA and linear models are affine maps. Such a map is known from its values at the samples' mean and at one step
along each feature, and must extend the same way far from the samples. An estimator that does not is refused, so there
is no list of supported classes. Multilayer perceptrons are read layer by layer.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.neural_network._multilayer_perceptron import BaseMultilayerPerceptron
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from heliograph.errors import ProgramError, RangeError, UnsupportedError, said
from heliograph.execution.interface import columns_of, real_numbers
from heliograph.interpret import interpret_many
from heliograph.ir import Array, Builder, Location, Node, Program, Stage
from heliograph.ir.interface import Interface, TensorSpec
from heliograph.ir.program import Comparison

# An affine map must agree with its estimator to this share of the largest value; long sums err less.
_TOLERANCE = 1e-7
# The affine map must also hold this many times as far from the samples' mean as the samples themselves lie.
_FAR = 8.0
_MOST_CHECKED = 256
# The largest error of the whole program, as a share of the largest value.
_AGREES = 1e-5
_ACTIVATIONS = {"identity": None, "logistic": "sigmoid", "tanh": "tanh", "relu": "relu"}


def from_sklearn(
    estimator: BaseEstimator,
    samples: Any,
    *,
    input_range: tuple[float, float] | None = None,
    name: str | None = None,
    outputs: Literal["probabilities", "scores"] = "probabilities",
) -> Program:
    """The program of the tensor stage that computes what a fitted scikit-learn estimator computes for one sample.

    `estimator` is affine in its inputs (scalers, PCA, feature selection, linear models, linear support vector
    machines), a multilayer perceptron, or a pipeline (or the best estimator of a search) of these. `samples` is an
    array (samples, features), or a data frame, like the data on which it was fitted; they are the program's
    calibration. Features are in the order of the array's or the data frame's columns. Clients may pass data frames and
    their rows, which are read by column name. `input_range` is the interval (low, high) of all features, by default
    from the smallest to the largest number in `samples`. `name` is by default the estimator's class.

    The input `x` has shape (features,). The output `y` of a classifier has one score for each class, in the order of
    `classes_`; the largest one is the predicted class (for two classes, z of `decision_function` becomes -z/2 and z/2).
    If it has `predict_proba`, the client computes that after decryption, as the softmax of the scores, unless
    outputs="scores"; where the probabilities are another function of the scores, only the scores are available. A
    regressor gives `predict`, with shape (targets,), a transformer `transform`.

    Raises UnsupportedError for any other estimator, ProgramError for one that is not fitted or samples that do not fit,
    RangeError for samples outside `input_range`.
    """
    if outputs not in ("probabilities", "scores"):
        raise ProgramError(f"outputs is {outputs!r}", hint='outputs="probabilities" or outputs="scores"')
    if not isinstance(estimator, BaseEstimator):
        raise ProgramError(
            f"from_sklearn takes an estimator of scikit-learn, not {type(estimator).__name__}",
            hint="PyTorch modules are traced: hg.trace(model, example_input, calibration=samples)",
        )
    _check_imputers(estimator)
    given, frame = _samples(samples)
    low, high = _interval(given, input_range)
    builder = Builder(name or type(estimator).__name__, Stage.TENSOR)
    value = builder.input("x", shape=given.shape[1:], low=low, high=high, secret=True)
    seen = given
    for place, (layer, step, last) in enumerate(_steps(estimator)):
        named = _named(step, frame, first=place == 0)
        value, seen = _layer(builder, value, seen, layer, step, last, named)
    builder.calibration = (given,)
    columns = columns_of(samples)
    if columns is not None:
        builder.interface = Interface((TensorSpec("x", given.shape[1:], columns=columns),))
    program = builder.finish([value])
    return _agreed(program, estimator, given, outputs, frame)


@dataclass(frozen=True)
class _Frame:
    """The form of the samples' data frame: its class and its columns."""

    kind: Callable[..., Any]
    columns: tuple[Any, ...]


# Rows of numbers in the form that an estimator takes.
_Named = Callable[[Array], Any]


def _samples(samples: Any) -> tuple[Array, _Frame | None]:
    """The samples as an array, and the form of their data frame; None where they are not in one."""
    frame = None
    if hasattr(samples, "columns") and hasattr(samples, "iloc"):
        names = tuple(samples.columns)
        frame = _Frame(type(samples), names)
        parts = [
            _numbers(samples.iloc[:, place], f"column {name!r} of the samples") for place, name in enumerate(names)
        ]
        given = np.stack(parts, axis=1) if parts else np.empty((len(samples), 0))
    else:
        given = _numbers(samples, "the samples")
    if given.ndim != 2 or not all(given.shape):
        raise ProgramError(f"the samples have shape {given.shape}, expected (samples, features)")
    bad = np.argwhere(~np.isfinite(given))
    if len(bad):
        row, column = (int(place) for place in bad[0])
        where = f"column {frame.columns[column]!r}" if frame is not None else f"feature {column}"
        raise ProgramError(
            f"the samples hold NaN or infinity: {given[row, column]} in sample {row}, {where}",
            hint="missing values are filled in on the client, before encryption: give samples as they are after that, and "
            "the estimator without its imputer",
        )
    return given, frame


def _numbers(values: Any, what: str) -> Array:
    """The values as float64."""
    try:
        return real_numbers(values)
    except ValueError as error:
        column = what.startswith("column")
        raise ProgramError(
            f"{what} {'is' if column else 'are'} not an array of real numbers",
            why=f"its dtype is {values.dtype}" if column else str(error),
            hint="encode it on the client, for example by an OrdinalEncoder or OneHotEncoder of its own, or leave it out",
        ) from None


def _interval(given: Array, declared: tuple[float, float] | None) -> tuple[float, float]:
    """The interval of the input: the declared one, or the interval of the samples."""
    smallest, largest = float(given.min()), float(given.max())
    if declared is None:
        if smallest == largest:
            raise ProgramError(
                f"all samples hold the one number {smallest:g}",
                why="the range of the input cannot be told from them",
                hint=said("give {input_range=(low, high)}"),
            )
        return smallest, largest
    low, high = (float(bound) for bound in declared)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ProgramError(said(f"{{input_range}} is ({low:g}, {high:g})"), why="low must be below high, both finite")
    if smallest < low or largest > high:
        raise RangeError(
            said(f"the samples reach from {smallest:g} to {largest:g}, outside of {{input_range}} ({low:g}, {high:g})"),
            hint=f"declare ({smallest:g}, {largest:g})",
        )
    return low, high


def _steps(estimator: Any, prefix: str = "", last: bool = True) -> Iterator[tuple[str, Any, bool]]:
    """The estimators of a pipeline, nested ones included, in order: name, estimator, and whether it is the last."""
    best = getattr(estimator, "best_estimator_", None)
    if best is not None:
        yield from _steps(best, prefix, last)
    elif isinstance(estimator, Pipeline):
        steps = [(called, step) for called, step in estimator.steps if step not in (None, "passthrough")]
        for place, (called, step) in enumerate(steps):
            yield from _steps(step, f"{prefix}{called}.", last and place == len(steps) - 1)
    else:
        yield prefix.rstrip(".") or type(estimator).__name__.lower(), estimator, last


def _layer(
    builder: Builder, value: Node, seen: Array, layer: str, step: Any, last: bool, named: _Named
) -> tuple[Node, Array]:
    """The result of one estimator for a value, and for the samples seen at that point."""
    loc = Location(f"{type(step).__name__}()", layer=layer)
    try:
        check_is_fitted(step)
    except NotFittedError:
        raise ProgramError(f"{type(step).__name__} is not fitted", where=loc, hint="call fit first") from None
    if isinstance(step, BaseMultilayerPerceptron):
        if not last:
            raise UnsupportedError("a multilayer perceptron is the last step of a pipeline", where=loc)
        return _perceptron(builder, value, step, loc), seen
    method = "transform"
    if last and is_classifier(step):
        method = "decision_function"
    elif last and (is_regressor(step) or not hasattr(step, "transform")):
        method = "predict"
    if not hasattr(step, method):
        raise _unsupported(step, loc, f"it has no {method}")
    apply = _applied(getattr(step, method), loc, named)
    weight, bias = _affine(apply, seen, step, method, loc)
    if method == "decision_function" and len(weight) == 1:
        weight, bias = _two_classes(weight, bias)
    return _linear(builder, value, weight, bias, loc), apply(seen)


def _named(estimator: Any, frame: _Frame | None, first: bool) -> _Named:
    """A function that gives rows to an estimator in the form in which it was fitted: a data frame with names.

    Samples keep the names of their own columns, whatever their order: the estimator finds its own by name, or refuses
    them. The output of an earlier step gets the names that it had when the estimator was fitted.
    """
    fitted = getattr(estimator, "feature_names_in_", None)
    if frame is None or fitted is None:
        return lambda rows: rows
    kind, names = frame.kind, list(frame.columns if first else fitted)
    return lambda rows: kind(rows, columns=names) if rows.shape[1] == len(names) else rows


def _applied(method: Callable[[Any], Any], loc: Location, named: _Named) -> Callable[[Array], Array]:
    """The method on samples in rows, as an array (samples, values); an error that it raises is the user's."""

    def apply(rows: Array) -> Array:
        try:
            with warnings.catch_warnings():
                # Warnings about the feature names with which an estimator was fitted.
                warnings.simplefilter("ignore")
                found = method(named(rows))
            dense = found.toarray() if hasattr(found, "toarray") else found
            return np.asarray(dense, dtype=np.float64).reshape(len(rows), -1)
        except Exception as error:
            raise ProgramError(
                f"the estimator does not take samples of shape {rows.shape}",
                where=loc,
                why=f"{type(error).__name__}: {error}"[:300],
                hint="give the data frame that it was fitted on" if "dataframe" in str(error) else "",
            ) from None

    return apply


def _affine(apply: Callable[[Array], Array], seen: Array, step: Any, method: str, loc: Location) -> tuple[Array, Array]:
    """Weight (values, features) and bias of an affine map; an UnsupportedError where the method is not one."""
    centre = seen.mean(axis=0)
    width = np.ptp(seen, axis=0)
    width[width == 0] = 1.0
    checked = seen[:: max(1, len(seen) // _MOST_CHECKED)]
    apply(checked)
    try:
        origin = apply(centre[np.newaxis])[0]
        weight = ((apply(centre + np.diag(width)) - origin) / width[:, np.newaxis]).T
    except ProgramError:
        # The estimator accepted the samples themselves.
        raise _unsupported(step, loc, "it knows the values of its samples only, and nothing between them") from None
    bias = origin - weight @ centre
    for rows in (checked, centre + _FAR * (checked - centre), centre - _FAR * (checked - centre)):
        found = apply(rows)
        size = max(np.abs(found).max(initial=0.0), np.abs(weight).max(initial=0.0) * np.abs(rows).max(initial=0.0))
        if not np.abs(rows @ weight.T + bias - found).max(initial=0.0) <= _TOLERANCE * max(size, 1e-300):
            raise _unsupported(step, loc, f"its {method} is not an affine function of its input")
    return weight, bias


_AFFINE = "use affine estimators (scalers, PCA, linear models, linear SVMs) and multilayer perceptrons"
_ENCODED = "encode categories on the client: give what the encoder makes of them, and the steps behind it"
# Estimators that are refused -> supported ones for the same task.
_INSTEAD = {
    "OneHotEncoder": _ENCODED,
    "OrdinalEncoder": _ENCODED,
    "TargetEncoder": _ENCODED,
    "SVC": 'LinearSVC has one affine score for each class; SVC(kernel="linear") has one for two classes only',
    "NuSVC": 'LinearSVC has one affine score for each class; NuSVC(kernel="linear") has one for two classes only',
}


def _unsupported(step: Any, loc: Location, why: str) -> UnsupportedError:
    hints = [_INSTEAD[name] for one in _within(step) if (name := type(one).__name__) in _INSTEAD]
    return UnsupportedError(
        f"{type(step).__name__} cannot be compiled", where=loc, why=why, hint=hints[0] if hints else _AFFINE
    )


def _within(estimator: Any) -> Iterator[Any]:
    """The estimator and all estimators inside it."""
    yield estimator
    for _, part, *_ in (
        *getattr(estimator, "transformers_", ()),
        *getattr(estimator, "transformer_list", ()),
        *getattr(estimator, "steps", ()),
    ):
        yield from _within(part)
    best = getattr(estimator, "best_estimator_", None)
    if best is not None:
        yield from _within(best)


def _check_imputers(estimator: Any) -> None:
    """Refuse an imputer that replaces a number by others: at the probe points it would look like the identity."""
    for one in _within(estimator):
        missing = getattr(one, "missing_values", None)
        if isinstance(missing, (int, float)) and not math.isnan(missing):
            raise _unsupported(
                one, Location(f"{type(one).__name__}()"), f"it replaces the number {missing:g} by others"
            )


def _two_classes(weight: Array, bias: Array) -> tuple[Array, Array]:
    """Scores of both classes in place of z: their difference is z, and their softmax the logistic of z."""
    halves = np.array([[-0.5], [0.5]])
    return halves @ weight, halves[:, 0] * bias


def _linear(builder: Builder, value: Node, weight: Array, bias: Array, loc: Location) -> Node:
    names = {
        "weight": builder.constant(weight, f"{loc.layer}.weight"),
        "bias": builder.constant(bias, f"{loc.layer}.bias"),
    }
    return builder.op("linear", (value,), loc, **names)


def _perceptron(builder: Builder, value: Node, step: Any, loc: Location) -> Node:
    """A linear map and an activation for each layer; for a classifier, without the last activation."""
    if step.out_activation_ not in (("softmax", "logistic") if is_classifier(step) else ("identity",)):
        raise _unsupported(step, loc, f"its output is {step.out_activation_}")
    if step.out_activation_ == "logistic" and step.n_outputs_ > 1:
        raise _unsupported(step, loc, "it gives several labels to a sample")
    activation, depth = _ACTIVATIONS[step.activation], len(step.coefs_)
    for place, (coefficients, intercepts) in enumerate(zip(step.coefs_, step.intercepts_, strict=True), 1):
        weight, bias = np.asarray(coefficients.T, dtype=np.float64), np.asarray(intercepts, dtype=np.float64)
        if place == depth and step.out_activation_ == "logistic":
            weight, bias = _two_classes(weight, bias)
        value = _linear(builder, value, weight, bias, Location(loc.file, layer=f"{loc.layer}.linear{place}"))
        if place < depth and activation is not None:
            value = builder.op(activation, (value,), Location(loc.file, layer=f"{loc.layer}.{activation}{place}"))
    return value


def _agreed(program: Program, estimator: Any, given: Array, outputs: str, frame: _Frame | None) -> Program:
    """The program with its finish, after a comparison with the estimator on the samples."""
    loc, named = Location(f"{type(estimator).__name__}()"), _named(estimator, frame, first=True)
    (found,) = interpret_many(program, [given])
    size = max(np.abs(found).max(initial=0.0), 1e-300)
    if is_classifier(estimator):
        predicted = _applied(lambda rows: _places(estimator, rows), loc, named)(given)[:, 0]
        order = np.sort(found, axis=1)
        clear = order[:, -1] - order[:, -2] > _TOLERANCE * size
        agrees = bool((found.argmax(axis=1) == predicted)[clear].all())
        difference, ties = 0.0, int((~clear).sum())
    else:
        method = "predict" if is_regressor(estimator) or not hasattr(estimator, "transform") else "transform"
        expected = _applied(getattr(estimator, method), loc, named)(given)
        same = expected.shape == found.reshape(len(found), -1).shape
        difference = float(np.abs(found.reshape(expected.shape) - expected).max(initial=0.0)) / size if same else np.inf
        agrees, ties = difference <= _AGREES, 0
    if not agrees:
        raise _unsupported(
            estimator, loc, "its predictions are not those of its layers: it computes something else besides"
        )
    compared = replace(program, comparison=Comparison.seen(len(given), difference, ties))
    if outputs == "scores" or not is_classifier(estimator) or not hasattr(estimator, "predict_proba"):
        return compared
    spec = TensorSpec("y", found.shape[1:], finish="softmax", finish_axis=0)
    wanted = _applied(estimator.predict_proba, loc, named)(given)
    if wanted.shape != found.shape or not np.allclose(spec.finished(found), wanted, rtol=0.0, atol=_AGREES):
        raise UnsupportedError(
            f"the probabilities of {type(estimator).__name__} cannot be compiled",
            where=loc,
            why="its predict_proba is not the softmax of its scores, which is all that the client computes",
            hint=said(
                'take the scores: {hg.from_sklearn(estimator, samples, outputs="scores")|give --scores}; the class has the '
                "largest"
            ),
        )
    difference = float(np.abs(spec.finished(found) - wanted).max(initial=0.0))
    return replace(
        program,
        interface=replace(program.interface, outputs=(spec,)),
        comparison=Comparison.seen(len(given), difference, ties),
    )


def _places(estimator: Any, rows: Array) -> Array:
    """The predicted classes as indices into `classes_`."""
    places: Array = np.searchsorted(estimator.classes_, estimator.predict(rows))
    return places
