"""Decision trees of scikit-learn, alone and in ensembles, as one `tree_ensemble`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.ensemble._iforest import _average_path_length

from heliograph.frontends.sklearn.layer import Layer
from heliograph.frontends.trees.ensemble import Ensemble, Tree, at_most_float32, bounded
from heliograph.frontends.trees.lightgbm import from_lightgbm, is_lightgbm
from heliograph.frontends.trees.nodes import tree_node
from heliograph.frontends.trees.xgboost import from_xgboost, is_xgboost
from heliograph.ir import Array, Node

# A node of scikit-learn without children.
_LEAF = -1


def is_trees(step: Any) -> bool:
    """Whether an estimator is decision trees and nothing else."""
    kinds = {kind.__name__ for kind in type(step).__mro__}
    if kinds & {"BaseBagging", "BaseWeightBoosting"}:
        return all(hasattr(part, "tree_") for part in getattr(step, "estimators_", ()))
    return bool(kinds & {*_ENSEMBLES, "IsolationForest"}) or is_xgboost(step) or is_lightgbm(step)


def read_trees(layer: Layer) -> Node:
    """The value of trees: probabilities, scores or predictions."""
    step = layer.step
    for kind in type(step).__mro__:
        if kind.__name__ in _ENSEMBLES:
            return _node(layer, _ENSEMBLES[kind.__name__](layer, step))
    raise layer.unsupported("its trees are not known")


def read_boosted(layer: Layer) -> Node:
    """The value of an estimator of XGBoost or LightGBM."""
    model = (from_xgboost if is_xgboost(layer.step) else from_lightgbm)(layer.step)
    value = _node(layer, _scores(layer.step, model.ensemble))
    return layer.op("exp", value, name="exp") if model.link == "exp" else value


def _node(layer: Layer, ensemble: Ensemble) -> Node:
    return tree_node(layer.builder, layer.source, ensemble, layer.seen, layer.loc)


def _tree(tree: Any, value: Array, features: Array | None = None) -> Tree:
    """A tree of scikit-learn with these values of its nodes. `features` are the columns that its features are."""
    inner = tree.children_left != _LEAF
    own = tree.feature if features is None else np.asarray(features)[np.where(inner, tree.feature, 0)]
    return Tree(
        np.where(inner, own, -1),
        at_most_float32(bounded(np.where(inner, tree.threshold, 0.0))),
        tree.children_left,
        tree.children_right,
        np.asarray(value, dtype=np.float64).reshape(tree.node_count, -1),
        np.asarray(tree.missing_go_to_left, dtype=bool) if hasattr(tree, "missing_go_to_left") else None,
    )


def _values(layer: Layer, step: Any, tree: Any) -> Array:
    """The values of a tree's nodes; of a classifier the shares of the classes."""
    if not is_classifier(step):
        return np.asarray(tree.value)
    if tree.value.shape[1] > 1:
        raise layer.unsupported("it gives several labels to a sample")
    return np.asarray(tree.value / tree.value.sum(axis=-1, keepdims=True))


def _mean(layer: Layer, step: Any, features: Sequence[Array | None]) -> Ensemble:
    """The mean of trees, each on these features."""
    trees = []
    for each, columns in zip(step.estimators_, features, strict=True):
        if not hasattr(each, "tree_"):
            raise layer.unsupported("its estimators are not decision trees")
        if is_classifier(step) and each.tree_.value.shape[2] != step.n_classes_:
            raise layer.unsupported("some of its estimators know some of the classes only")
        trees.append(_tree(each.tree_, _values(layer, step, each.tree_) / len(step.estimators_), columns))
    return Ensemble(tuple(trees), np.zeros(trees[0].value.shape[1]), step.n_features_in_)


def _single(layer: Layer, step: Any) -> Ensemble:
    tree = _tree(step.tree_, _values(layer, step, step.tree_))
    return Ensemble((tree,), np.zeros(tree.value.shape[1]), step.n_features_in_)


def _forest(layer: Layer, step: Any) -> Ensemble:
    return _mean(layer, step, [None] * len(step.estimators_))


def _bagging(layer: Layer, step: Any) -> Ensemble:
    return _mean(layer, step, step.estimators_features_)


def _gradient_boosting(layer: Layer, step: Any) -> Ensemble:
    """The sum of trees, one for each class and round, and the prediction that boosting starts from."""
    classes = step.estimators_.shape[1]
    start = _constant(layer, step._raw_predict_init(layer.seen), classes)
    trees = tuple(
        _tree(each.tree_, step.learning_rate * _in_column(each.tree_.value, place, classes))
        for row in step.estimators_
        for place, each in enumerate(row)
    )
    return _scores(step, Ensemble(trees, start, step.n_features_in_))


def _histogram_boosting(layer: Layer, step: Any) -> Ensemble:
    """The trees of HistGradientBoosting, whose thresholds are bounds of bins."""
    classes = step.n_trees_per_iteration_
    if not is_classifier(step) and type(step._loss.link).__name__ != "IdentityLink":
        raise layer.unsupported(f"its predictions are no sums: its loss is {step.loss}")
    columns, known = _categorical(layer, step)
    trees = []
    for row in step._predictors:
        for place, each in enumerate(row):
            nodes = each.nodes
            inner, by_set = nodes["is_leaf"] == 0, nodes["is_categorical"] != 0
            sides: tuple[dict[int, frozenset[float]], dict[int, frozenset[float]]] = ({}, {})
            for node in np.flatnonzero(inner & by_set).tolist():
                codes = known[int(nodes["feature_idx"][node])]
                words = each.raw_left_cat_bitsets[nodes["bitset_idx"][node]]
                left = [bool(words[code >> 5] >> (code & 31) & 1) for code in range(len(codes))]
                for side, goes in zip(sides, (True, False), strict=True):
                    side[node] = frozenset(code for code, own in zip(codes, left, strict=True) if own is goes)
            trees.append(
                Tree(
                    np.where(inner, columns[np.where(inner, nodes["feature_idx"], 0)], -1),
                    bounded(np.where(inner & ~by_set, nodes["num_threshold"], 0.0)),
                    nodes["left"].astype(np.int64),
                    nodes["right"].astype(np.int64),
                    _in_column(nodes["value"], place, classes),
                    nodes["missing_go_to_left"].astype(bool),
                    *sides,
                )
            )
    start = np.asarray(step._baseline_prediction, dtype=np.float64).ravel()
    return _scores(step, Ensemble(tuple(trees), start, step.n_features_in_))


def _categorical(layer: Layer, step: Any) -> tuple[Array, dict[int, list[float]]]:
    """The column of each feature of the trees, and the categories of those that have them, by their codes.

    Categories come first, as an encoder makes them.
    """
    if step._preprocessor is None:
        return np.arange(step.n_features_in_), {}
    encoder = step._preprocessor.named_transformers_["encoder"]
    own = np.flatnonzero(step.is_categorical_)
    columns = np.concatenate([own, np.flatnonzero(~np.asarray(step.is_categorical_))])
    known = {}
    for feature, categories in enumerate(encoder.categories_):
        try:
            numbers = np.asarray(categories, dtype=np.float64)
        except (TypeError, ValueError):
            raise layer.unsupported("its categories are texts: give them numbers first") from None
        known[feature] = numbers[~np.isnan(numbers)].tolist()
    return columns, known


def _adaboost(layer: Layer, step: Any) -> Ensemble:
    """The weighted votes of trees. Their softmax is that of scikit-learn: it divides those of several classes by their
    number less one, and those of two by one.
    """
    if not is_classifier(step):
        raise layer.unsupported("it predicts a weighted median of its estimators")
    classes = step.n_classes_
    weights = step.estimator_weights_[: len(step.estimators_)] / step.estimator_weights_.sum() / (classes - 1)
    trees = []
    for each, weight in zip(step.estimators_, weights, strict=True):
        if not hasattr(each, "tree_") or each.n_classes_ != classes:
            raise layer.unsupported("its estimators are not decision trees that know all classes")
        nodes = each.tree_.node_count
        votes = np.full((nodes, classes), -weight / (classes - 1))
        votes[np.arange(nodes), each.tree_.value.reshape(nodes, -1).argmax(axis=1)] = weight
        trees.append(_tree(each.tree_, votes))
    return Ensemble(tuple(trees), np.zeros(classes), step.n_features_in_)


def read_isolation_forest(layer: Layer) -> Node:
    """The `decision_function`: 2^-(mean depth / usual depth), negative, minus the offset."""
    step = layer.step
    usual = len(step.estimators_) * _average_path_length([step._max_samples])[0]
    trees = []
    for each, columns in zip(step.estimators_, step.estimators_features_, strict=True):
        depths = each.tree_.compute_node_depths() - 1.0 + _average_path_length(each.tree_.n_node_samples)
        trees.append(_tree(each.tree_, -math.log(2.0) * depths / usual, columns))
    power = _node(layer, Ensemble(tuple(trees), np.zeros(1), step.n_features_in_))
    return layer.linear(layer.op("exp", power, name="exp"), -np.ones((1, 1)), np.array([-step.offset_]), "score")


def _constant(layer: Layer, rows: Array, outputs: int) -> Array:
    """The one row that all rows are."""
    rows = np.asarray(rows, dtype=np.float64).reshape(-1, outputs)
    if np.ptp(rows, axis=0).max() > 0:
        raise layer.unsupported("its boosting starts from another estimator's predictions")
    return np.asarray(rows[0])


def _in_column(value: Array, place: int, columns: int) -> Array:
    made = np.zeros((len(value), columns))
    made[:, place] = np.asarray(value, dtype=np.float64).reshape(len(value))
    return made


def _scores(step: Any, ensemble: Ensemble) -> Ensemble:
    return ensemble.of_two_classes() if is_classifier(step) and len(ensemble.bias) == 1 else ensemble


_ENSEMBLES: Mapping[str, Callable[[Layer, Any], Ensemble]] = {
    "BaseDecisionTree": _single,
    "BaseForest": _forest,
    "BaseGradientBoosting": _gradient_boosting,
    "BaseHistGradientBoosting": _histogram_boosting,
    "BaseWeightBoosting": _adaboost,
    "BaseBagging": _bagging,
}
