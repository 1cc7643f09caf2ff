"""Programs from scikit-learn estimators.

A reader turns each estimator of a pipeline into nodes (`readers.py`). The finished program is compared with the whole
estimator on the samples.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator

from heliograph.errors import ProgramError, UnsupportedError, said
from heliograph.execution.interface import columns_of
from heliograph.frontends.sklearn.affine import TOLERANCE
from heliograph.frontends.sklearn.client import for_clients, read_table
from heliograph.frontends.sklearn.layer import Layer, output_of, unsupported, within
from heliograph.frontends.sklearn.reading import Steps, check_fitted, first_step, steps_of
from heliograph.frontends.sklearn.samples import (
    Named,
    applied,
    are_numbers,
    as_given,
    check_outputs,
    interval_of,
    named_rows,
    samples_of,
    table_of,
)
from heliograph.frontends.sklearn.trees import is_trees
from heliograph.frontends.trees.nodes import Table
from heliograph.interpret import interpret_many
from heliograph.ir import Array, Builder, Location, Program, Stage
from heliograph.ir.interface import DECISION, PROBABILITY, TensorSpec
from heliograph.ir.labels import with_labels
from heliograph.ir.program import Comparison

# The largest error of the whole program, as a share of the largest value.
_AGREES = 1e-5
# The pairs of samples between which probabilities are compared, and how closely the boundary between them is found.
_PAIRS, _HALVINGS = 8, 20


def from_sklearn(
    estimator: BaseEstimator,
    samples: Any,
    *,
    input_range: tuple[float, float] | None = None,
    name: str | None = None,
    outputs: Literal["probabilities", "scores"] = "probabilities",
    binned: bool | Literal["shared"] = False,
) -> Program:
    """The program of the tensor stage that computes what a fitted scikit-learn estimator computes for one sample.

    `estimator` is one of these, or a pipeline or the best estimator of a search of them. Affine: scalers, PCA, feature
    selection, linear models, linear support vector machines. Distributions: naive Bayes, discriminants, Gaussian
    mixtures. By distances: nearest centroids, k-means, nearest neighbours among few points. By kernels: support vector
    machines, kernel ridge regression, kernel PCA. Decision trees, forests, boosted or bagged trees. Multilayer
    perceptrons. Products, comparisons and norms of features. Votes, means and stacks of all these, one against the rest
    or another, calibrated ones, and several or transformed targets.

    `samples` is an array (samples, features), or a data frame, like the data on which it was fitted; they are the
    program's calibration. Features are in the order of the array's or the data frame's columns. Clients may pass data
    frames and their rows, which are read by column name. `input_range` is the interval (low, high) of all features, by
    default from the smallest to the largest number in `samples`. `name` is by default the estimator's class.

    The input `x` has shape (features,). The output `y` of a classifier has one score for each class, in the order of
    `classes_`; the largest one is the predicted class (for two classes, z of `decision_function` becomes -z/2 and z/2).
    If it has `predict_proba`, the scores are its probabilities, or the client computes these after decryption, as the
    softmax of the scores; where they are another function of the scores, only these are available, by outputs="scores".
    Clusters have scores as classes have. A regressor gives `predict`, with shape (targets,), a detector of outliers
    `decision_function`, a transformer `transform`.

    A pipeline may begin with steps that clients compute in the clear, before encryption, on tables with texts and missing
    values: SimpleImputer, MissingIndicator, OneHotEncoder, OrdinalEncoder, TargetEncoder, KBinsDiscretizer, alone or in
    a ColumnTransformer or FeatureUnion. Clients give rows of the table, and learn the known categories, what replaces
    missing values, the edges of bins, and each column's range. Each column has the range of its samples. With
    `input_range`, for samples that are numbers alone, discretizers are computed under encryption instead.

    With `binned`, clients compare the features with the thresholds of a tree model before encryption and send the
    results: exact and far faster, and values may be missing or categories, but clients learn the thresholds. With
    "shared", equal thresholds are compared once: that tells less of the trees and is less to send in large batches.

    Raises UnsupportedError for any other estimator, ProgramError for one that is not fitted or samples that do not fit,
    RangeError for samples outside `input_range`.
    """
    check_outputs(outputs)
    if not isinstance(estimator, BaseEstimator):
        raise ProgramError(
            f"from_sklearn takes an estimator of scikit-learn, not {type(estimator).__name__}",
            hint="PyTorch modules are traced: hg.trace(model, example_input, calibration=samples)",
        )
    _check_imputers(estimator)
    numeric = are_numbers(samples)
    if not (numeric and input_range is not None) and for_clients(estimator, numeric):
        return _of_table(estimator, samples, input_range, name, outputs, binned)
    given, frame = samples_of(samples, missing=bool(binned))
    builder = Builder(name or type(estimator).__name__, Stage.TENSOR)
    table = Table(builder, given, columns_of(samples), binned)
    by_column = binned or (input_range is None and is_trees(first_step(estimator)))
    source = table if by_column else table.plain(*interval_of(given, input_range))
    reading = Steps(builder, frame)
    layer = Layer(
        builder,
        source,
        given,
        estimator,
        Location(f"{type(estimator).__name__}()"),
        last=True,
        named=reading.named(estimator, True),
        reading=reading,
        first=True,
        scores=outputs == "scores",
    )
    value = reading.read(layer)
    program = builder.finish([value])
    return _agreed(program, estimator, given, outputs, named_rows(estimator, frame, first=True))


def _of_table(estimator: Any, samples: Any, input_range: Any, name: str | None, outputs: str, binned: Any) -> Program:
    """The program of an estimator whose first steps clients compute."""
    loc = Location(f"{type(estimator).__name__}()")
    if binned:
        raise unsupported(
            estimator,
            loc,
            "with binned=True clients compare features for decision trees only, and here they encode columns first",
            "leave out binned",
        )
    if input_range is not None:
        raise ProgramError(
            said("{input_range} is one interval for all features, and the samples hold texts or missing values"),
            hint=said("leave it out: each column has the range of its samples"),
        )
    rows, frame = table_of(samples)
    given = samples if frame is not None else np.asarray(samples)
    for _, step, _ in steps_of(estimator, "", True):
        check_fitted(step, Location(f"{type(step).__name__}()"))
    method = output_of(estimator)
    applied(getattr(estimator, "predict" if method == "scores" else method), loc, as_given, any_values=True)(given)
    builder = Builder(name or type(estimator).__name__, Stage.TENSOR)
    reading = Steps(builder, frame)
    layer = Layer(
        builder,
        # Replaced by the input that the first steps need.
        Table(builder, rows, columns_of(samples), False),
        rows,
        estimator,
        loc,
        last=True,
        named=as_given,
        reading=reading,
        scores=outputs == "scores",
    )
    value = read_table(layer, rows, None if frame is None else frame.columns, columns_of(samples))
    return _agreed(builder.finish([value]), estimator, given, outputs, as_given)


def _check_imputers(estimator: Any) -> None:
    """Refuse an imputer that replaces a number by others: at the probe points it would look like the identity."""
    for one in within(estimator):
        missing = getattr(one, "missing_values", None)
        if isinstance(missing, (int, float)) and not math.isnan(missing):
            raise unsupported(one, Location(f"{type(one).__name__}()"), f"it replaces the number {missing:g} by others")


def _agreed(program: Program, estimator: Any, given: Any, outputs: str, named: Named) -> Program:
    """The program with its finish, after a comparison with the estimator on the samples."""
    loc = Location(f"{type(estimator).__name__}()")
    (found,) = interpret_many(program, program.calibration)
    size = max(np.abs(found).max(initial=0.0), 1e-300)
    output = output_of(estimator)
    if output == "scores":
        predicted = applied(lambda rows: _places(estimator, rows), loc, named)(given)[:, 0]
        order = np.sort(found, axis=1)
        clear = order[:, -1] - order[:, -2] > TOLERANCE * size
        agrees = bool((found.argmax(axis=1) == predicted)[clear].all())
        difference, ties = 0.0, int((~clear).sum())
    else:
        expected = applied(getattr(estimator, output), loc, named)(given)
        same = expected.shape == found.reshape(len(found), -1).shape
        difference = float(np.abs(found.reshape(expected.shape) - expected).max(initial=0.0)) / size if same else np.inf
        agrees, ties = difference <= _AGREES, 0
    if not agrees:
        raise unsupported(
            estimator, loc, "its predictions are not those of its layers: it computes something else besides"
        )
    program = replace(program, comparison=Comparison.seen(len(given), difference, ties))
    spec = _described(estimator, output, found.shape[1:])
    compared = _with_output(program, spec)
    if outputs == "scores" or output != "scores" or not hasattr(estimator, "predict_proba"):
        return compared
    wanted = applied(estimator.predict_proba, loc, named)(given)
    # Scores may be the probabilities themselves: then there is nothing to compute after decryption.
    plain, softmax = replace(spec, unit=PROBABILITY), replace(spec, finish="softmax", finish_axis=0)
    # Where samples are far from all boundaries, probabilities of any kind are 0 and 1: others are compared too.
    compared_at = [(found, wanted)]
    between = _between(program, given, found)
    if len(between):
        (scores,) = interpret_many(program, (between,))
        compared_at.append((scores, applied(estimator.predict_proba, loc, named)(between)))
    for tried in (plain, softmax) if wanted.shape == found.shape else ():
        differences = [float(np.abs(tried.finished(ours) - theirs).max(initial=0.0)) for ours, theirs in compared_at]
        if max(differences) <= _AGREES:
            compared = _with_output(program, tried)
            return replace(compared, comparison=Comparison.seen(len(given), differences[0], ties))
    raise UnsupportedError(
        f"the probabilities of {type(estimator).__name__} cannot be compiled",
        where=loc,
        why="its predict_proba is not the softmax of its scores, which is all that the client computes",
        hint=said(
            'take the scores: {hg.from_sklearn(estimator, samples, outputs="scores")|give --scores}; the class has the '
            "largest"
        ),
    )


def _with_output(program: Program, spec: TensorSpec) -> Program:
    """The program with this description of its output, if there is anything to say of it."""
    if spec == TensorSpec(spec.name, spec.shape):
        return program
    return replace(program, interface=replace(program.interface, outputs=(spec,)))


def _described(estimator: Any, output: str, shape: tuple[int, ...]) -> TensorSpec:
    """The output with its classes: those of a classifier, or the numbers of clusters."""
    spec = TensorSpec("y", shape, unit=DECISION if output == "decision_function" else None)
    if output != "scores":
        return spec
    try:
        return with_labels(spec, getattr(estimator, "classes_", range(shape[-1])))
    except ProgramError:
        # Labels that no text holds, such as tuples: the scores remain.
        return spec


def _between(program: Program, given: Any, found: Array) -> Array:
    """Points near the boundaries between samples for which different classes have the largest score: (points, features).

    They have values of 32 bits, to which decision trees round. There are none for rows that clients encode: texts have
    nothing in between.
    """
    none: Array = np.empty((0, 0))
    encoded = any(spec.encoding is not None for spec in program.interface.inputs)
    if encoded or not isinstance(given, np.ndarray) or given.dtype.kind != "f" or not np.isfinite(given).all():
        return none
    classes = found.argmax(axis=1)
    others = np.flatnonzero(classes != classes[0])[:_PAIRS]
    if not others.size:
        return none

    def at(shares: Array) -> Array:
        rows = given[0] + shares[..., np.newaxis] * (given[others] - given[0])
        return np.asarray(rows.reshape(-1, given.shape[1]).astype(np.float32), dtype=np.float64)

    low: Array = np.zeros(others.size)
    high: Array = np.ones(others.size)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        same = interpret_many(program, (at(middle),))[0].argmax(axis=1) == classes[0]
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    away = 0.5 ** np.arange(1, _HALVINGS + 1)[:, np.newaxis]
    return at(np.clip(np.concatenate([low - away, high + away]), 0.0, 1.0))


def _places(estimator: Any, rows: Array) -> Array:
    """The predicted classes as indices into `classes_`; clusters are numbers from 0."""
    predicted = estimator.predict(rows)
    places: Array = np.searchsorted(estimator.classes_, predicted) if hasattr(estimator, "classes_") else predicted
    return places
