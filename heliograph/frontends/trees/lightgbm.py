"""Models of LightGBM: from its objects, and from the text files of `save_model` without LightGBM.

LightGBM compares with "at most" in float64, as `Tree` does. What it does with missing values (NaN) is written at each
node: they go by the node's default, or count as 0. Numbers up to 1e-35 count as 0 too: thresholds among them move to
where 0 parts from other numbers. Infinite thresholds, which part missing values from all numbers, become the largest
number. Nodes for which 0 is missing too are read if 0 goes the way of the
default anyway, and refused otherwise.

A node's set of categories names what goes left; all others, those never seen, negative and missing ones too, go right.
LightGBM rounds fractions of categories towards zero; here they are in no set. Categories are the codes of the training
data: data frames must be encoded as they were then.

Margins are what the link takes: multiplied by the parameter sigmoid, and averaged over the rounds of a random forest,
unlike LightGBM's raw scores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from heliograph.errors import ProgramError, UnsupportedError, at
from heliograph.frontends.trees import boosted
from heliograph.frontends.trees.boosted import Boosted, Link, check_size, read_model
from heliograph.frontends.trees.ensemble import Ensemble, Tree, bounded
from heliograph.frontends.trees.fields import entry, reals, whole, wholes
from heliograph.frontends.trees.grown import grown
from heliograph.ir.node import Array
from heliograph.records import LARGEST

_LINKS: dict[str, Link] = {
    "binary": "logistic",
    "cross_entropy": "logistic",
    "multiclass": "softmax",
    "poisson": "exp",
    "gamma": "exp",
    "tweedie": "exp",
    **dict.fromkeys(
        (
            "fair",
            "huber",
            "lambdarank",
            "mape",
            "quantile",
            "rank_xendcg",
            "regression",
            "regression_l1",
        ),
        "identity",
    ),
}
# The bits of a node's decision_type.
_CATEGORY = 1
_DEFAULT_LEFT = 2
# The two bits above them: what counts as missing.
_NOTHING, _ZERO, _NAN = range(3)
# The largest number that counts as 0: 1e-35, which has 32 bits.
_TINY = float(np.float32(1e-35))
_SAVE = "model.save_model('model.txt')"


def is_lightgbm(model: object) -> bool:
    """Whether an object is a model of LightGBM: a Booster, or an estimator that holds one."""
    ours = any(kind.__module__.partition(".")[0] == "lightgbm" for kind in type(model).__mro__)
    return ours and any(hasattr(type(model), name) for name in ("booster_", "model_to_string"))


def from_lightgbm(model: Any) -> Boosted:
    """The trees of a Booster, LGBMClassifier, LGBMRegressor or LGBMRanker; after early stopping those of the best round.

    Raises a ProgramError for an estimator that is not fitted, an UnsupportedError for what `Boosted` does not hold.
    """
    if not is_lightgbm(model):
        raise ProgramError(
            f"{type(model).__name__} is no model of LightGBM", hint="a Booster, or LGBMClassifier and others"
        )
    estimator = hasattr(type(model), "booster_")
    with at(type(model).__name__):
        try:
            written = (model.booster_ if estimator else model).model_to_string()
            labels = tuple(np.asarray(model.classes_).tolist()) if hasattr(model, "classes_") else None
        except Exception as error:
            # LightGBM raises errors of its own, or scikit-learn's, whose classes are not imported here.
            raise ProgramError("the model cannot be saved", why=str(error)[:200], hint="fit it first") from None
        return _model(written, labels)


def read_lightgbm(path: str | Path) -> Boosted:
    """The trees of a text file that `save_model` wrote; it does not hold the labels of classes.

    Raises a ProgramError for anything else, an UnsupportedError for what `Boosted` does not hold.
    """
    with at(path):
        data = read_model(path)
        try:
            written = data.decode("utf-8")
        except UnicodeDecodeError:
            raise _none("pickles run code of whoever wrote them, and are not read" * (data[:1] == b"\x80")) from None
        return _model(written, None)


def _none(why: str = "") -> ProgramError:
    return ProgramError(
        "it is no model of LightGBM in its text form",
        why=why,
        hint=f"load it with the library that wrote it, then {_SAVE}",
    )


def _model(written: str, labels: tuple[object, ...] | None) -> Boosted:
    if written.count(" ") + written.count("\n") > boosted.MOST_VALUES:
        raise _none(f"it has more than {boosted.MOST_VALUES} words")
    written = written.replace("\r\n", "\n")
    if written.partition("\n")[0].strip() != "tree":
        raise _none("its first line is not 'tree'")
    body, end, _ = written.partition("\nend of trees")
    if not end:
        raise _none("its end is missing")
    head, *blocks = body.split("\nTree=")
    fields = _fields(head)
    outputs = whole(entry(fields, "num_tree_per_iteration"), "num_tree_per_iteration", 1, boosted.MOST_OUTPUTS)
    if whole(fields.get("num_class", outputs), "num_class", 1, boosted.MOST_OUTPUTS) != outputs:
        raise ProgramError("the model has not one tree in each round for each class")
    features = whole(entry(fields, "max_feature_idx"), "max_feature_idx", 0, boosted.MOST_FEATURES - 1) + 1
    if len(_words(entry(fields, "tree_sizes"))) != len(blocks) or not blocks or len(blocks) % outputs:
        raise ProgramError(f"the model has {len(blocks)} trees, and its head says another number of them")
    link, factor = _link(fields.get("objective", ""))
    trees = _trees([_fields(block) for block in blocks], outputs)
    # Random forests write this word, and average their rounds before the link.
    factor /= len(blocks) // outputs if "average_output" in fields else 1
    ensemble = Ensemble(tuple(trees), np.zeros(outputs), features)
    names = tuple(_words(entry(fields, "feature_names")))
    return Boosted(
        ensemble if factor == 1 else ensemble.scaled(factor),
        link,
        labels if link in ("logistic", "softmax") else None,
        # The names that LightGBM gives where there are none.
        features=None if names == tuple(f"Column_{place}" for place in range(features)) else names,
    )


def _fields(block: str) -> dict[str, str]:
    """The lines "name=value" of a block, by name; a line without a value has an empty one."""
    fields = {}
    for line in block.split("\n"):
        name, _, value = line.partition("=")
        fields[name.strip()] = value
    return fields


def _words(line: str) -> list[str]:
    # Spaces alone part words: they have been counted.
    return [word for word in line.split(" ") if word]


def _link(objective: str) -> tuple[Link, float]:
    """The link of an objective, and the factor of the sums before it."""
    # A model whose objective was the user's own function has none: its predictions are the sums.
    name, *settings = _words(objective) or ["regression"]
    if "sqrt" in settings:
        raise UnsupportedError(
            "the model predicts the squares of its sums (reg_sqrt)",
            why="it was trained on square roots",
            hint="train on the labels themselves: reg_sqrt=False",
        )
    if name == "multiclassova":
        raise UnsupportedError(
            "the objective multiclassova has a sigmoid for each class",
            why="its probabilities are no softmax, and do not sum to 1",
            hint="objective='multiclass'",
        )
    if name not in _LINKS:
        raise UnsupportedError(
            f"the objective {name[:60]!r} is not supported", hint=f"supported are {', '.join(sorted(_LINKS))}"
        )
    factor = 1.0
    for setting in settings:
        key, _, value = setting.partition(":")
        if key == "sigmoid" and name == "binary":
            factor = float(reals([value], "sigmoid")[0])
    if not 0 < factor < 1e30:
        raise ProgramError(f"sigmoid of the model is {factor}, not a positive number")
    return _LINKS[name], factor


def _trees(given: list[dict[str, str]], outputs: int) -> list[Tree]:
    """The trees, each with its summands in the column of its class."""
    leaves = [whole(entry(tree, "num_leaves"), "num_leaves", 1, boosted.MOST_SUMMANDS) for tree in given]
    words = sum(tree.get("cat_threshold", "").count(" ") + 1 for tree in given if "cat_threshold" in tree)
    check_size(trees=len(given), nodes=2 * sum(leaves), outputs=outputs, categories=words)
    trees = []
    categories = 0
    for place, (tree, count) in enumerate(zip(given, leaves, strict=True)):
        if tree.get("is_linear", "0").strip() not in ("", "0"):
            raise UnsupportedError(
                "the leaves of the model are linear functions",
                why="a tree here has a number at each leaf",
                hint="linear_tree=False",
            )
        trees.append(_tree(tree, count, place % outputs, outputs))
        categories += sum(map(len, (trees[-1].categories or {}).values()))
        check_size(categories=categories)
    return trees


def _numbers(tree: dict[str, str], name: str, low: int, high: int, length: int) -> Array:
    return wholes(_words(entry(tree, name)), name, low, high, length)


def _tree(tree: dict[str, str], leaves: int, column: int, outputs: int) -> Tree:
    """The tree of a block: its decisions, then its leaves, which children name by -1, -2, ..."""
    inner = leaves - 1
    none = np.zeros(leaves, dtype=np.int64)
    value = np.zeros((inner + leaves, outputs))
    value[inner:, column] = reals(_words(entry(tree, "leaf_value")), "leaf_value", leaves)
    if not inner:
        return grown(none - 1, none.astype(np.float64), none - 1, none - 1, value, none > 0)
    feature = _numbers(tree, "split_feature", 0, boosted.MOST_FEATURES, inner)
    threshold = reals(_words(entry(tree, "threshold")), "threshold", inner).clip(-LARGEST, LARGEST)
    kinds = _numbers(tree, "decision_type", 0, 255, inner)
    children = [_numbers(tree, name, -leaves, inner - 1, inner) for name in ("left_child", "right_child")]
    left, right = (np.where(child >= 0, child, inner + ~child) for child in children)
    category = (kinds & _CATEGORY) > 0
    missing_left = _missing_left(kinds, threshold, category)
    sets = _sets(tree, np.flatnonzero(category), threshold)
    return grown(
        np.concatenate([feature, none - 1]),
        np.concatenate([np.where(category, 0.0, bounded(_beside_zero(threshold))), none]),
        np.concatenate([left, none - 1]),
        np.concatenate([right, none - 1]),
        value,
        np.concatenate([missing_left, none > 0]),
        sets,
    )


def _beside_zero(threshold: Array) -> Array:
    """The thresholds that decide without rounding as these do of samples whose tiny numbers became 0."""
    moved = np.where(threshold < 0, np.nextafter(-_TINY, -np.inf), _TINY)
    return np.where(np.abs(threshold) <= _TINY, moved, threshold)


def _missing_left(kinds: Array, threshold: Array, category: Array) -> Array:
    """Whether NaN goes left at each decision."""
    missing = (kinds >> 2) & 3
    if (missing > _NAN).any():
        raise ProgramError("a decision_type of the model says of missing values what LightGBM does not know")
    default = (kinds & _DEFAULT_LEFT) > 0
    zero = threshold >= 0
    if ((missing == _ZERO) & (default != zero) & ~category).any():
        raise UnsupportedError(
            "a node sends 0 where neither smaller nor larger numbers go",
            why="the model was trained with zero_as_missing=True",
            hint="train with NaN for missing values, and zero_as_missing=False",
        )
    return np.where(missing == _NOTHING, zero, default) & ~category


def _sets(tree: dict[str, str], nodes: Array, threshold: Array) -> dict[int, frozenset[float]]:
    """The categories of each node that reads some; the node's threshold is the number of its set."""
    if not nodes.size:
        return {}
    count = whole(entry(tree, "num_cat"), "num_cat", 1, boosted.MOST_CATEGORIES)
    words = wholes(_words(entry(tree, "cat_threshold")), "cat_threshold", 0, 2**32 - 1)
    ends = _numbers(tree, "cat_boundaries", 0, len(words), count + 1)
    chosen = wholes(threshold[nodes], "threshold", 0, count - 1)
    if (np.diff(ends) < 0).any() or np.unique(chosen).size != chosen.size:
        raise ProgramError("the sets of categories of the model overlap")
    # The lowest bit of the first word stands for category 0.
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")
    check_size(categories=int(bits.sum()))
    return {
        int(node): frozenset(np.flatnonzero(bits[32 * ends[place] : 32 * ends[place + 1]]).tolist())
        for node, place in zip(nodes, chosen, strict=True)
    }
