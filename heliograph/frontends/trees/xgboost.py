"""Models of XGBoost: from its objects, and from the files of `save_model` without XGBoost.

XGBoost compares numbers of 32 bits: a sample goes left where its feature, rounded to float32, is less than the threshold.
`Tree` compares with "at most" in float64, so its thresholds are the float32 numbers just below XGBoost's. For samples of
float32 numbers both decide alike; other samples must be rounded to float32 first, as XGBoost does.

A node's set of categories names what goes right; all others, those never seen and negative ones too, go left, and
missing values go by the node's default. `Tree` sends a set left, so such a node's children change places. XGBoost rounds
fractions of categories towards zero; here they are in no set. Categories are the codes of the training data: data frames
must be encoded as they were then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.errors import ProgramError, UnsupportedError, at
from heliograph.frontends.trees import boosted
from heliograph.frontends.trees.boosted import Boosted, Link, check_size, read_model
from heliograph.frontends.trees.ensemble import Ensemble, Tree, at_most_float32
from heliograph.frontends.trees.fields import entry, listed, reals, text, whole, wholes
from heliograph.frontends.trees.grown import grown
from heliograph.frontends.trees.ubjson import ubjson
from heliograph.ir.node import Array
from heliograph.strict_json import counted

_LINKS: dict[str, Link] = {
    "binary:logistic": "logistic",
    "reg:logistic": "logistic",
    "multi:softmax": "softmax",
    "multi:softprob": "softmax",
    "count:poisson": "exp",
    "reg:gamma": "exp",
    "reg:tweedie": "exp",
    "survival:cox": "exp",
    "survival:aft": "exp",
    **dict.fromkeys(
        (
            "binary:logitraw",
            "rank:map",
            "rank:ndcg",
            "rank:pairwise",
            "reg:absoluteerror",
            "reg:linear",
            "reg:pseudohubererror",
            "reg:quantileerror",
            "reg:squarederror",
            "reg:squaredlogerror",
        ),
        "identity",
    ),
}
# Numbers of nodes and features are those of 32 bits.
_MOST = 2**32 - 1
_MOST_CATEGORY = 1 << 24
_MOST_DIGITS = 40
_SAVE = "model.save_model('model.json')"


def is_xgboost(model: object) -> bool:
    """Whether an object is a model of XGBoost: a Booster, or an estimator that holds one."""
    ours = any(kind.__module__.partition(".")[0] == "xgboost" for kind in type(model).__mro__)
    return ours and (hasattr(model, "get_booster") or hasattr(model, "save_raw"))


def from_xgboost(model: Any) -> Boosted:
    """The trees of a Booster, XGBClassifier, XGBRegressor, XGBRanker, or one of their forests.

    As in XGBoost's own predictions, early stopping limits the trees of an estimator to those of the best round, and a
    Booster has all. Raises a ProgramError for an estimator that is not fitted, an UnsupportedError for what `Boosted` does
    not hold.
    """
    if not is_xgboost(model):
        raise ProgramError(
            f"{type(model).__name__} is no model of XGBoost", hint="a Booster, or XGBClassifier and others"
        )
    estimator = hasattr(model, "get_booster")
    with at(type(model).__name__):
        missing = getattr(model, "missing", None)
        if estimator and not (missing is None or missing != missing):
            raise UnsupportedError(
                f"the number {missing!r} stands for missing values",
                why="here NaN alone does",
                hint="train with NaN in its place and missing=numpy.nan",
            )
        try:
            raw = bytes((model.get_booster() if estimator else model).save_raw("json"))
        except Exception as error:
            # XGBoost raises errors of its own, or scikit-learn's, whose classes are not imported here.
            raise ProgramError("the model cannot be saved", why=str(error)[:200], hint="fit it first") from None
        return _model(_loaded(raw), best=estimator)


def read_xgboost(path: str | Path) -> Boosted:
    """The trees of a file that `save_model` wrote: JSON, or UBJSON, which the content tells.

    If an estimator wrote it, early stopping limits the trees to those of the best round; if a Booster did, all count.
    Raises a ProgramError for anything else, an UnsupportedError for what `Boosted` does not hold.
    """
    with at(path):
        return _model(_loaded(read_model(path)), best=None)


def _loaded(data: bytes) -> Any:
    if not data.lstrip()[:1] == b"{":
        raise ProgramError(
            "it is no model of XGBoost in JSON or UBJSON",
            why="pickles run code of whoever wrote them, and are not read" if data[:1] == b"\x80" else "",
            hint=f"load it with the library that wrote it, then {_SAVE}",
        )
    try:
        # A name follows the bracket: in UBJSON the type of its length.
        if data[1:2] in (b"i", b"U", b"I", b"l", b"L"):
            return ubjson(data, boosted.MOST_VALUES)
        if counted(data) > boosted.MOST_VALUES:
            raise ValueError(f"it has more than {boosted.MOST_VALUES} values")
        # Unlike strict JSON it may hold NaN, which XGBoost writes for thresholds that no node has.
        return json.loads(data.decode("utf-8"), parse_int=_whole)
    except RecursionError:
        raise ProgramError("it is no model of XGBoost", why="it is too deep", hint=_SAVE) from None
    except ValueError as error:
        raise ProgramError("it is no model of XGBoost", why=str(error)[:200], hint=_SAVE) from None


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("too many digits")
    return int(digits)


def _model(model: Any, best: bool | None) -> Boosted:
    """The record of a model; `best` says whether early stopping counts, None that the file says it."""
    learner = entry(model, "learner")
    booster = entry(learner, "gradient_booster")
    name = text(entry(booster, "name"), "the name of the booster")
    if name not in ("gbtree", "dart"):
        raise UnsupportedError(
            f"its booster is {name[:60]!r}",
            why="it has no trees" if name == "gblinear" else "",
            hint="booster='gbtree', or a linear model of scikit-learn",
        )
    objective = text(entry(learner, "objective", "name"), "the name of the objective")
    link = _link(objective, model)
    sizes = {
        key: whole(entry(learner, "learner_model_param", key), key, 0, boosted.MOST_FEATURES)
        for key in ("num_class", "num_target", "num_feature")
        # Versions before 1.6 have one target.
        if key != "num_target" or key in entry(learner, "learner_model_param")
    }
    outputs = max(sizes["num_class"], sizes.get("num_target", 1), 1)
    if link == "logistic" and outputs > 1:
        raise UnsupportedError(
            f"{objective} has {outputs} targets",
            why="each has two classes of its own",
            hint="train a model for each target",
        )
    grove = entry(booster, "gbtree", "model") if name == "dart" else entry(booster, "model")
    grown_trees = listed(entry(grove, "trees"), "trees")
    limit = _limit(learner, grove, len(grown_trees), outputs, best)
    weights = _float32(entry(booster, "weight_drop"), "weight_drop", len(grown_trees)) if name == "dart" else None
    trees = _trees(grown_trees, limit, entry(grove, "tree_info"), weights, outputs)
    bias = _bias(entry(learner, "learner_model_param", "base_score"), link, outputs)
    classifies = objective.startswith(("binary:", "multi:")) and link != "identity"
    return Boosted(
        Ensemble(tuple(trees), bias, sizes["num_feature"]),
        link,
        # XGBoost takes no other labels.
        labels=tuple(range(max(outputs, 2))) if classifies else None,
        features=_names(learner, sizes["num_feature"]),
    )


def _link(objective: str, model: Any) -> Link:
    if objective == "binary:hinge":
        raise UnsupportedError(
            "the objective binary:hinge predicts 0 or 1",
            why="its margins are no scores of classes with probabilities",
            hint="objective='binary:logistic'",
        )
    if objective not in _LINKS:
        raise UnsupportedError(
            f"the objective {objective[:60]!r} is not known", hint=f"known are {', '.join(sorted(_LINKS))}"
        )
    if objective == "binary:logitraw" and wholes(entry(model, "version"), "version", 0, 1 << 20)[:1].sum() < 2:
        raise UnsupportedError(
            "binary:logitraw of a version before 2",
            why="its base_score may be a probability or a margin",
            hint=f"load it with XGBoost 2 or later, then {_SAVE}",
        )
    return _LINKS[objective]


def _limit(learner: Any, grove: Any, trees: int, outputs: int, best: bool | None) -> int:
    """The number of trees that predictions use."""
    attributes = learner.get("attributes")
    if not isinstance(attributes, Mapping):
        attributes = {}
    if best is None:
        # Estimators leave this entry in their files.
        best = "scikit_learn" in attributes
    if not best or "best_iteration" not in attributes:
        return trees
    rounds = whole(attributes["best_iteration"], "best_iteration", 0, boosted.MOST_TREES) + 1
    if "iteration_indptr" in grove:
        ends = wholes(grove["iteration_indptr"], "iteration_indptr", 0, trees)
        limit = int(ends[min(rounds, len(ends) - 1)]) if len(ends) else 0
    else:
        together = whole(entry(grove, "gbtree_model_param", "num_parallel_tree"), "num_parallel_tree", 0, trees)
        limit = min(rounds * max(together, 1) * outputs, trees)
    return limit


def _trees(given: Any, limit: int, groups: object, weights: Array | None, outputs: int) -> list[Tree]:
    """The first `limit` trees, each with its summands in the column of its class."""
    columns = wholes(groups, "tree_info", 0, outputs - 1, len(given))
    nodes = sum(len(listed(entry(tree, "left_children"), "left_children")) for tree in given)
    check_size(trees=limit, nodes=nodes, outputs=outputs)
    trees = []
    categories = 0
    for place in range(limit):
        tree = given[place]
        sizes = wholes(tree.get("categories_sizes", []), "categories_sizes", 0, _MOST)
        categories += int(sizes.sum())
        check_size(categories=categories)
        factor = 1.0 if weights is None else float(weights[place])
        trees.append(_tree(tree, sizes, int(columns[place]), factor, outputs))
    return trees


def _tree(tree: Any, sizes: Array, column: int, factor: float, outputs: int) -> Tree:
    left = wholes(entry(tree, "left_children"), "left_children", -1, _MOST)
    nodes = len(left)
    right = wholes(entry(tree, "right_children"), "right_children", -1, _MOST, nodes)
    inner = left >= 0
    feature = np.where(inner, wholes(entry(tree, "split_indices"), "split_indices", 0, _MOST, nodes), -1)
    conditions = _float32(entry(tree, "split_conditions"), "split_conditions", nodes)
    missing_left = wholes(entry(tree, "default_left"), "default_left", 0, 1, nodes) == 1
    value = _summands(tree, conditions, right, column, outputs) * factor
    with np.errstate(over="ignore"):
        below = np.nextafter(conditions, np.float32(-np.inf)).astype(np.float64)
    sets = _sets(tree, inner, sizes)
    chosen = np.zeros(nodes, dtype=bool)
    chosen[list(sets)] = True
    return grown(
        feature,
        np.where(chosen, 0.0, at_most_float32(below)),
        np.where(chosen, right, left),
        np.where(chosen, left, right),
        value,
        missing_left ^ chosen,
        sets,
    )


def _float32(given: object, what: str, length: int | None = None) -> Array:
    # A number that is too large becomes infinite, and is refused where it matters.
    with np.errstate(over="ignore"):
        return reals(given, what, length).astype(np.float32)


def _summands(tree: Any, conditions: Array, right: Array, column: int, outputs: int) -> Array:
    """(nodes, outputs): what each leaf adds."""
    nodes = len(conditions)
    width = whole(entry(tree, "tree_param", "size_leaf_vector"), "size_leaf_vector", 0, boosted.MOST_OUTPUTS)
    # Versions before 2 write 0 for trees of one output.
    if width <= 1:
        value = np.zeros((nodes, outputs))
        value[:, column] = conditions
        return value
    if width != outputs:
        raise ProgramError(f"a tree of the model has {width} outputs, not {outputs}")
    if "leaf_weights" not in tree:
        return (
            _float32(entry(tree, "base_weights"), "base_weights", nodes * width)
            .astype(np.float64)
            .reshape(nodes, width)
        )
    # Since version 3.2 the right child of a leaf is its row among the leaves.
    rows = _float32(tree["leaf_weights"], "leaf_weights")
    if not rows.size or rows.size % width:
        raise ProgramError(f"leaf_weights of the model has {rows.size} entries, not {width} for each leaf")
    rows = rows.astype(np.float64).reshape(-1, width)
    leaves = wholes(tree["left_children"], "left_children", -1, _MOST) < 0
    if not ((right[leaves] >= 0) & (right[leaves] < len(rows))).all():
        raise ProgramError("a leaf of the model has no weights")
    return np.where(leaves[:, None], rows[np.where(leaves, right, 0)], 0.0)


def _sets(tree: Any, inner: Array, sizes: Array) -> dict[int, frozenset[float]]:
    """The categories of each node that reads some."""
    nodes = len(inner)
    if "split_type" not in tree:
        return {}
    kinds = wholes(tree["split_type"], "split_type", 0, 1, nodes)
    members = wholes(entry(tree, "categories"), "categories", 0, _MOST_CATEGORY)
    owners = wholes(entry(tree, "categories_nodes"), "categories_nodes", 0, nodes - 1, len(sizes))
    starts = wholes(entry(tree, "categories_segments"), "categories_segments", 0, len(members), len(sizes))
    if (starts + sizes > len(members)).any():
        raise ProgramError("a node of the model has categories beyond the end of their list")
    found = {
        int(owner): frozenset(members[start : start + size].tolist())
        for owner, start, size in zip(owners, starts, sizes, strict=True)
    }
    wanted = np.flatnonzero((kinds == 1) & inner).tolist()
    if not found.keys() >= set(wanted):
        raise ProgramError("a node of the model reads a category and has no set of them")
    return {node: found[node] for node in wanted}


def _bias(given: object, link: Link, outputs: int) -> Array:
    """The margins before any tree, from the predictions before any tree."""
    # A number, or since version 3.1 one in brackets for each output.
    digits = text(given, "base_score").strip().removeprefix("[").removesuffix("]").split(",")
    scores = _float32(digits, "base_score")
    if len(scores) not in (1, outputs):
        raise ProgramError(f"base_score of the model has {len(scores)} entries, not {outputs}")
    margin: dict[Link, Callable[[Array], Array]] = {
        # As XGBoost computes it, in 32 bits: near 1 its rounding is felt.
        "logistic": lambda score: -np.log(np.float32(1) / score - np.float32(1)),
        "exp": np.log,
    }
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        bias = margin.get(link, np.positive)(scores).astype(np.float64)
    if not np.isfinite(bias).all():
        raise ProgramError(
            f"base_score of the model is {str(given)[:60]}, which is no prediction",
            why="its margin is not finite",
            hint="between 0 and 1 for probabilities, above 0 for counts",
        )
    return np.broadcast_to(bias, (outputs,)).copy()


def _names(learner: Any, features: int) -> tuple[str, ...] | None:
    names = listed(learner.get("feature_names", []), "feature_names")
    if not len(names):
        return None
    if len(names) != features:
        raise ProgramError(f"the model names {len(names)} features of {features}")
    return tuple(text(name, "a name of a feature") for name in names)
