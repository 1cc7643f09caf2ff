"""Decision trees and sums of them, whichever library trained them, and their form as the op `tree_ensemble`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.node import Array
from heliograph.records import LARGEST

# Trees are walked with a stack of their own: no depth exceeds Python's. Deeper paths than this have no use under encryption.
MOST_DEPTH = 64
MOST_NODES = 1 << 20


def bounded(thresholds: Array) -> Array:
    """Thresholds of a split between values and missing ones are infinite in some libraries: the largest number here."""
    return np.asarray(np.clip(thresholds, -LARGEST, LARGEST))


def at_most_float32(thresholds: Array) -> Array:
    """The thresholds for numbers of 64 bits, where a library rounds them to 32 bits first and then compares `<=`.

    What is rounded is at most t where it is at most the largest number of 32 bits that is; all numbers below the middle
    between that one and the next are rounded to it or below.
    """
    rounded = thresholds.astype(np.float32)
    with np.errstate(over="ignore"):
        below = np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)
        above = np.nextafter(below, np.float32(np.inf))
        return bounded((below.astype(np.float64) + above.astype(np.float64)) / 2)


@dataclass(frozen=True, slots=True)
class Tree:
    """A binary decision tree; node 0 is the root.

    feature: (nodes,), the feature that a node reads; negative for a leaf.
    threshold: (nodes,), a sample goes left where its feature is at most this.
    left, right: (nodes,), the numbers of the two children.
    value: (nodes, outputs), the summands of a leaf.
    missing_left: (nodes,), whether a sample without a value goes left; None if no value may be missing.
    categories: for nodes that read a category, the numbers that go left; all others go right, missing ones by
        `missing_left`.
    right_categories: for some of these nodes, the numbers that go right; others go as missing ones do.
    """

    feature: Array
    threshold: Array
    left: Array
    right: Array
    value: Array
    missing_left: Array | None = None
    categories: Mapping[int, frozenset[float]] = field(default_factory=dict)
    right_categories: Mapping[int, frozenset[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = len(self.feature)
        inner = np.flatnonzero(np.asarray(self.feature) >= 0)
        children = np.concatenate([np.asarray(self.left)[inner], np.asarray(self.right)[inner]])
        others = [self.threshold, self.left, self.right, self.value]
        if not 0 < nodes <= MOST_NODES or any(len(each) != nodes for each in others) or np.ndim(self.value) != 2:
            raise ProgramError("a tree has no nodes, too many, or arrays of different lengths")
        # Each node but the root is the child of one node: the walk from the root ends.
        if np.unique(children).size != children.size or not ((children > 0) & (children < nodes)).all():
            raise ProgramError("a tree is none: a node is missing, or has two parents")
        if not (np.isfinite(self.value).all() and np.isfinite(np.asarray(self.threshold)[inner]).all()):
            raise ProgramError("a tree has a threshold or a value that is not finite")

    def goes_left(self, node: int, values: Array) -> Array:
        """Whether samples with these values of the node's feature go left: (samples,) booleans."""
        missing = np.isnan(values)
        if node in self.categories:
            left = np.isin(values, list(self.categories[node]))
            if node in self.right_categories:
                missing = missing | ~(left | np.isin(values, list(self.right_categories[node])))
            return np.where(missing, self.default_left(node), left)
        with np.errstate(invalid="ignore"):
            return np.where(missing, self.default_left(node), values <= self.threshold[node])

    def default_left(self, node: int) -> bool:
        """Whether a missing value goes left."""
        return self.missing_left is not None and bool(self.missing_left[node])

    def with_values(self, value: Array) -> Tree:
        """The same tree with other values of its nodes."""
        return replace(self, value=value)


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The sum of trees and a bias.

    trees: each with as many outputs as `bias`.
    bias: (outputs,).
    features: the number of features of a sample.
    """

    trees: tuple[Tree, ...]
    bias: Array
    features: int

    def __post_init__(self) -> None:
        if not self.trees:
            raise ProgramError("an ensemble has no tree")
        for tree in self.trees:
            if tree.value.shape[1] != len(self.bias):
                raise ProgramError(f"a tree has {tree.value.shape[1]} outputs, and the ensemble {len(self.bias)}")
            if np.max(tree.feature) >= self.features:
                raise ProgramError(f"a tree reads feature {np.max(tree.feature)} of {self.features}")

    def scores(self, samples: Array) -> Array:
        """The sums for samples (samples, features): (samples, outputs). NaN stands for a missing value."""
        total = np.tile(np.asarray(self.bias, dtype=np.float64), (len(samples), 1))
        for tree in self.trees:
            waiting: list[tuple[int, Array]] = [(0, np.arange(len(samples)))]
            while waiting:
                node, rows = waiting.pop()
                if not rows.size:
                    continue
                if tree.feature[node] < 0:
                    total[rows] += tree.value[node]
                    continue
                left = tree.goes_left(node, samples[rows, tree.feature[node]])
                waiting += [(int(tree.left[node]), rows[left]), (int(tree.right[node]), rows[~left])]
        return total

    def of_two_classes(self) -> Ensemble:
        """The scores -z/2 and z/2 in place of z: their softmax is the logistic of z."""
        halves = np.array([[-0.5, 0.5]])
        trees = tuple(tree.with_values(tree.value @ halves) for tree in self.trees)
        return Ensemble(trees, (np.asarray(self.bias) @ halves).ravel(), self.features)

    def scaled(self, factor: float, bias: Sequence[float] | Array | float = 0.0) -> Ensemble:
        """The same trees with all sums multiplied by a factor, and a bias added."""
        trees = tuple(tree.with_values(tree.value * factor) for tree in self.trees)
        return Ensemble(trees, np.asarray(self.bias) * factor + bias, self.features)
