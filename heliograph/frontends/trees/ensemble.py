"""Decision trees and sums of them, whichever library trained them, and their form as the op `tree_ensemble`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.node import Array

# Trees are walked with a stack of their own: no depth exceeds Python's. Deeper paths than this have no use under encryption.
MOST_DEPTH = 64
MOST_NODES = 1 << 20


def at_most_float32(thresholds: Array) -> Array:
    """The thresholds for numbers of 64 bits, where a library rounds them to 32 bits first and then compares `<=`.

    What is rounded is at most t where it is at most the largest number of 32 bits that is; all numbers below the middle
    between that one and the next are rounded to it or below.
    """
    rounded = thresholds.astype(np.float32)
    below = np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    above = np.nextafter(below, np.float32(np.inf))
    return np.asarray((below.astype(np.float64) + above.astype(np.float64)) / 2)


@dataclass(frozen=True, slots=True)
class Tree:
    """A binary decision tree; node 0 is the root.

    feature: (nodes,), the feature that a node reads; negative for a leaf.
    threshold: (nodes,), a sample goes left where its feature is at most this.
    left, right: (nodes,), the numbers of the two children.
    value: (nodes, outputs), the summands of a leaf.
    missing_left: (nodes,), whether a sample without a value goes left; None if no value may be missing.
    categories: for nodes that read a category, the whole numbers that go left; others and missing values go by
        `missing_left`, which is needed then.
    """

    feature: Array
    threshold: Array
    left: Array
    right: Array
    value: Array
    missing_left: Array | None = None
    categories: dict[int, frozenset[int]] | None = None

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
        if self.categories is not None and node in self.categories:
            known = np.isin(values, list(self.categories[node]))
            # A library's sets name what goes left; everything else, unknown and missing, goes by `missing_left`.
            return np.where(missing, self._by_default(node), known)
        with np.errstate(invalid="ignore"):
            return np.where(missing, self._by_default(node), values <= self.threshold[node])

    def _by_default(self, node: int) -> bool:
        return self.missing_left is not None and bool(self.missing_left[node])


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

    def scaled(self, factor: float, bias: Sequence[float] | Array | float = 0.0) -> Ensemble:
        """The same trees with all sums multiplied by a factor, and a bias added."""
        trees = tuple(
            Tree(t.feature, t.threshold, t.left, t.right, t.value * factor, t.missing_left, t.categories)
            for t in self.trees
        )
        return Ensemble(trees, np.asarray(self.bias) * factor + bias, self.features)
