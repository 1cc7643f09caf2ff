"""An ensemble of trees as a node of a program, on features or on a client's comparisons of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from heliograph.errors import UnsupportedError
from heliograph.frontends.trees.ensemble import MOST_DEPTH, Ensemble, Tree
from heliograph.ir import Array, Builder, Location, Node, SparseMatrix
from heliograph.ir.interface import Bins

# The splits and the leaves of all trees together.
_MOST = 1 << 17


@dataclass(frozen=True, slots=True)
class Form:
    """The constants of the op `tree_ensemble`: see ir/ops/trees.py."""

    features: Array
    thresholds: Array
    paths: SparseMatrix
    offsets: Array
    values: Array

    def node(
        self, builder: Builder, value: Node, loc: Location, bias: Array | None = None, binary: Array | None = None
    ) -> Node:
        """The op on features; `binary` is 1 for those that are 0 or 1."""
        names = {
            "features": builder.constant(self.features.astype(np.float64), f"{loc.layer}.features"),
            "thresholds": builder.constant(self.thresholds, f"{loc.layer}.thresholds"),
            "paths": builder.constant(self.paths, f"{loc.layer}.paths"),
            "offsets": builder.constant(self.offsets, f"{loc.layer}.offsets"),
            "values": builder.constant(self.values, f"{loc.layer}.values"),
        }
        if bias is not None and np.any(bias):
            names["bias"] = builder.constant(np.asarray(bias, dtype=np.float64), f"{loc.layer}.bias")
        if binary is not None:
            names["binary"] = builder.constant(binary, f"{loc.layer}.binary")
        return builder.op("tree_ensemble", (value,), loc, **names)

    def compared(self, width: int) -> tuple[Form, Bins]:
        """The same on the comparisons of a client, one for each split, and what the client does."""
        bins = Bins(width, tuple(map(int, self.features)), tuple(map(float, self.thresholds)))
        places = np.arange(self.features.size)
        # An element is 1 where a value is above the threshold, and the split is 1 where it is not.
        return Form(places, np.full(places.size, 0.5), self.paths, self.offsets, self.values), bins


def form_of(ensemble: Ensemble, loc: Location) -> Form:
    """The constants of an ensemble without missing values and categories, tree by tree, in the order of the features' axis.

    A tree that is one leaf has a leaf without conditions. Raises UnsupportedError for trees that are too deep or too many.
    """
    features: list[int] = []
    thresholds: list[float] = []
    values: list[Array] = []
    rows: list[int] = []
    columns: list[int] = []
    signs: list[float] = []
    offsets: list[float] = []
    for tree in ensemble.trees:
        if tree.categories:
            raise UnsupportedError(
                "a split by a set of categories cannot be compiled",
                where=loc,
                hint="train on one-hot columns, which the client makes",
            )
        walk = list(_walk(tree, loc))
        inner = [node for node, _ in walk if tree.feature[node] >= 0]
        numbers = {node: len(features) + place for place, node in enumerate(inner)}
        features += [int(tree.feature[node]) for node in inner]
        thresholds += [float(tree.threshold[node]) for node in inner]
        for node, path in walk:
            if tree.feature[node] >= 0:
                continue
            rows += [len(values)] * len(path)
            columns += [numbers[ancestor] for ancestor, _ in path]
            signs += [-1.0 if left else 1.0 for _, left in path]
            offsets.append(float(sum(left for _, left in path)))
            values.append(tree.value[node])
        if len(values) > _MOST:
            raise UnsupportedError(f"the trees have more than {_MOST} leaves", where=loc, hint="train fewer trees")
    paths = scipy.sparse.csr_array((signs, (rows, columns)), shape=(len(values), max(len(features), 1)))
    if not features:
        features, thresholds = [0], [0.0]
    return Form(
        np.array(features), np.array(thresholds), SparseMatrix.of(paths), np.array(offsets), np.array(values).T.copy()
    )


def _walk(tree: Tree, loc: Location) -> Iterator[tuple[int, tuple[tuple[int, bool], ...]]]:
    """The nodes in order from left to right, each with its path: (ancestor, whether the path goes left there)."""
    waiting: list[tuple[int, tuple[tuple[int, bool], ...], bool]] = [(0, (), False)]
    while waiting:
        node, path, entered = waiting.pop()
        if len(path) > MOST_DEPTH:
            raise UnsupportedError(f"a tree is deeper than {MOST_DEPTH}", where=loc, hint="train with max_depth")
        if entered or tree.feature[node] < 0:
            yield node, path
            continue
        left, right = int(tree.left[node]), int(tree.right[node])
        waiting += [(right, (*path, (node, False)), False), (node, path, True), (left, (*path, (node, True)), False)]
