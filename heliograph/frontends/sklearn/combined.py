"""Estimators that combine others: votes, means, stacks, several targets, transformed targets, calibration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from heliograph.errors import UnsupportedError
from heliograph.frontends.sklearn.affine import affine_map, read_affine
from heliograph.frontends.sklearn.features import known_function
from heliograph.frontends.sklearn.layer import Layer, two_classes
from heliograph.frontends.sklearn.outcomes import both, choices, decisions, mean, predictions, probabilities, second
from heliograph.frontends.sklearn.samples import applied
from heliograph.frontends.sklearn.trees import read_trees
from heliograph.frontends.sklearn.votes import order_of, pair_votes
from heliograph.ir import Node, shape_of


def _or_parts(layer: Layer, parts: Callable[[], Node]) -> Node:
    """One affine map where all together are one, else what is made of parts."""
    if not layer.last:
        return read_affine(layer)
    if not is_classifier(layer.step):
        try:
            return read_affine(layer)
        except UnsupportedError:
            pass
    return parts()


def _kept(step: Any) -> list[tuple[str, Any]]:
    """The names and the fitted estimators of a vote or stack."""
    names = [name for name, one in step.estimators if not (isinstance(one, str) and one == "drop")]
    return list(zip(names, step.estimators_, strict=True))


def read_vote(layer: Layer) -> Node:
    """The mean of probabilities or predictions, or the number of votes for each class."""
    step = layer.step

    def parts() -> Node:
        weights = step._weights_not_none
        inner = [layer.inner(one, name) for name, one in _kept(step)]
        if not is_classifier(step):
            return mean(layer, [predictions(one) for one in inner], weights)
        if step.voting == "soft":
            # Each has a softmax of its own: their scores may have ranges that differ by far.
            return mean(layer, [probabilities(one, [one])[0] for one in inner], weights)
        votes = mean(layer, [choices(one, [one])[0] for one in inner], weights)
        # Equal votes differ by no less than the smallest weight's share, unless weights are chosen to cancel.
        shares = np.ones(len(inner)) if weights is None else np.asarray(weights, dtype=np.float64)
        first = order_of(len(step.classes_)) * shares[shares > 0].min() / shares.sum()
        return layer.op("add", votes, layer.constant(first, "order"))

    return _or_parts(layer, parts)


def read_bagging(layer: Layer) -> Node:
    """The mean over estimators, each of some of the features."""
    step = layer.step
    if all(hasattr(one, "tree_") for one in step.estimators_):
        return read_trees(layer)

    def parts() -> Node:
        inner = []
        for place, (one, features) in enumerate(zip(step.estimators_, step.estimators_features_, strict=True)):
            if np.array_equal(features, np.arange(layer.seen.shape[1])):
                inner.append(layer.inner(one, f"estimator{place}"))
            else:
                value = layer.linear(layer.value, np.eye(layer.seen.shape[1])[features])
                inner.append(layer.inner(one, f"estimator{place}", value, layer.seen[:, features]))
        if not is_classifier(step):
            return mean(layer, [predictions(one) for one in inner])
        if any(len(one.classes_) < len(step.classes_) for one in step.estimators_):
            raise layer.unsupported("some of its estimators know some of the classes only", "fit it with more samples")
        soft = all(hasattr(one, "predict_proba") for one in step.estimators_)
        made = probabilities(layer, inner) if soft else choices(layer, inner)
        return mean(layer, made)

    return _or_parts(layer, parts)


def read_boosting(layer: Layer) -> Node:
    """Votes of AdaBoost, with its weights. Each takes from other classes what it gives to one."""
    step, classes = layer.step, len(layer.step.classes_)
    if all(hasattr(one, "tree_") for one in step.estimators_):
        return read_trees(layer)
    votes = choices(layer, [layer.inner(one, f"estimator{place}") for place, one in enumerate(step.estimators_)])
    shares = step.estimator_weights_[: len(votes)] / step.estimator_weights_.sum() / (classes - 1)
    given = np.eye(classes) - (1.0 - np.eye(classes)) / (classes - 1)
    return layer.linear(layer.joined(votes), np.kron(shares, given))


def read_stack(layer: Layer) -> Node:
    """A last estimator on what others give."""
    step = layer.step

    def parts() -> Node:
        given = []
        for (name, one), method in zip(_kept(step), step.stack_method_, strict=True):
            inner = layer.inner(one, name)
            if method == "predict_proba":
                (found,) = probabilities(inner, [inner])
                # The second of two adds nothing to the first.
                found = layer.linear(found, np.array([[0.0, 1.0]])) if shape_of(found) == (2,) else found
            elif method == "decision_function":
                found = decisions(inner)
            elif is_classifier(one):
                found = layer.linear(
                    choices(inner, [inner])[0], np.arange(len(one.classes_), dtype=np.float64)[np.newaxis]
                )
            else:
                found = predictions(inner)
            given.append(found)
        if step.passthrough:
            given.append(layer.value)
        seen = layer.method("transform")(layer.seen)
        last = layer.inner(step.final_estimator_, "final", layer.joined(given), seen)
        return layer.reading.read(last)

    return _or_parts(layer, parts)


def read_targets(layer: Layer) -> Node:
    """An estimator for each target."""
    if is_classifier(layer.step):
        raise layer.unsupported("it gives several labels to a sample", "give its estimators_ one by one")

    def parts() -> Node:
        return layer.joined(
            [predictions(layer.inner(one, f"target{place}")) for place, one in enumerate(layer.step.estimators_)]
        )

    return _or_parts(layer, parts)


def read_transformed_target(layer: Layer) -> Node:
    """A regressor, and the inverse of what was done to its targets."""
    step = layer.step

    def parts() -> Node:
        inner = layer.inner(step.regressor_, "regressor")
        found, seen = predictions(inner), inner.method("predict")(layer.seen)
        transformer = step.transformer_
        known = known_function(layer, found, getattr(transformer, "inverse_func", None))
        if known is not None:
            return known
        back = layer.inner(transformer, "target", found, seen)
        weight, bias = affine_map(
            back, applied(transformer.inverse_transform, back.loc, lambda rows: rows), "inverse_transform"
        )
        return back.linear(found, weight, bias)

    return _or_parts(layer, parts)


def read_calibration(layer: Layer) -> Node:
    """The mean of logistic functions of decisions; scores of two classes where it is one such function."""
    calibrated, classes = layer.step.calibrated_classifiers_, len(layer.step.classes_)
    if any(one.method != "sigmoid" for one in calibrated):
        raise layer.unsupported(f"its method is {calibrated[0].method}", 'CalibratedClassifierCV(method="sigmoid")')
    values: list[Node] = []
    slopes: list[float] = []
    shifts: list[float] = []
    for place, one in enumerate(calibrated):
        inner = layer.inner(one.estimator, f"estimator{place}")
        if hasattr(one.estimator, "decision_function"):
            values.append(decisions(inner))
        else:
            (found,) = probabilities(inner, [inner])
            values.append(second(inner, [found]) if classes == 2 else found)
        slopes.extend(-own.a_ for own in one.calibrators)
        shifts.extend(-own.b_ for own in one.calibrators)
    slope, shift = np.array(slopes), np.array(shifts)
    if len(slope) == 1:
        return layer.linear(values[0], *two_classes(slope[:, np.newaxis], shift))
    logistic = layer.op("sigmoid", layer.linear(layer.joined(values), np.diag(slope), shift), name="calibrated")
    if classes == 2:
        return both(layer, layer.op("mean", logistic, axes=(0,), keepdims=True))
    each = _shares(layer, layer.op("reshape", logistic, shape=(len(calibrated), classes)))
    return layer.op("mean", each, axes=(0,), keepdims=False)


def _shares(layer: Layer, values: Node) -> Node:
    """Numbers divided by their sum along the last axis."""
    total = layer.op("sum", values, axes=(len(shape_of(values)) - 1,), keepdims=True)
    return layer.op("div", values, total, name="shares")


def read_one_vs_rest(layer: Layer) -> Node:
    """A decision for each class, or its share of all probabilities."""
    step = layer.step
    if step.multilabel_:
        raise layer.unsupported("it gives several labels to a sample")
    inner = [layer.inner(one, f"class{place}") for place, one in enumerate(step.estimators_)]
    if len(inner) == 1:
        return layer.reading.read(inner[0])
    decided = all(hasattr(one.step, "decision_function") for one in inner)
    if decided and (layer.scores or not hasattr(step, "predict_proba")):
        return layer.joined([decisions(one) for one in inner])
    return _shares(layer, second(layer, probabilities(layer, inner)))


def read_one_vs_one(layer: Layer) -> Node:
    """Votes of pairs of classes; confidences decide ties."""
    step, classes = layer.step, len(layer.step.classes_)
    inner = [layer.inner(one, f"pair{place}") for place, one in enumerate(step.estimators_)]
    if step.pairwise_indices_ is not None:
        raise layer.unsupported("its kernel is computed elsewhere")
    if all(hasattr(one.step, "decision_function") for one in inner):
        confidences = won = layer.joined([decisions(one) for one in inner])
    else:
        confidences = second(layer, probabilities(layer, inner))
        won = layer.op("sub", confidences, layer.constant(0.5, "half"))
    if classes == 2:
        return layer.linear(won, np.array([[-0.5], [0.5]]))
    # The second class of a pair is the one that its estimator calls 1.
    return pair_votes(layer, layer.op("neg", won), layer.op("neg", confidences), classes)
