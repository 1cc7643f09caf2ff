"""An ensemble of trees as a node of a program, on features or on a client's comparisons of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from heliograph.errors import UnsupportedError, said
from heliograph.frontends.trees.ensemble import MOST_DEPTH, Ensemble, Tree
from heliograph.ir import Array, Builder, Location, Node, SparseMatrix
from heliograph.ir.encoding import Encoding
from heliograph.ir.interface import Interface, TensorSpec

# The leaves of all trees together.
_MOST = 1 << 17
# Values are equal within this share of their range.
_SAME = 1e-12


@dataclass(frozen=True, slots=True)
class Table:
    """The rows that clients have, before the program has an input.

    builder: of the program.
    rows: the samples, with NaN for what is missing.
    columns: the names of their columns.
    binned: whether clients compare features with thresholds; "shared" if equal comparisons are made once.
    """

    builder: Builder
    rows: Array
    columns: tuple[str, ...] | None
    binned: bool | str

    def plain(self, low: float, high: float) -> Node:
        """The input that is a row as it is, with this range of all its columns."""
        self.builder.calibration = (self.rows,)
        if self.columns is not None:
            self.builder.interface = Interface((TensorSpec("x", self.rows.shape[1:], columns=self.columns),))
        return self.builder.input("x", shape=self.rows.shape[1:], low=low, high=high, secret=True)

    def encoded(self, encoding: Encoding) -> Node:
        """The input that clients encode so; the program's calibration is that of the samples."""
        self.builder.calibration = (encoding.encoded(self.rows),)
        self.builder.interface = Interface(
            (TensorSpec("x", (encoding.elements,), columns=self.columns, encoding=encoding),)
        )
        low = -1.0 if encoding.numbers else 0.0
        return self.builder.input("x", shape=(encoding.elements,), low=low, high=1.0, secret=True)

    def clipped(self, low: Array, high: Array, rounded: Sequence[int], loc: Location) -> Node:
        """All columns, clipped by clients to these ranges, each as precise as its own range allows; `rounded` columns
        are made whole numbers.
        """
        centres, scales = (high + low) / 2, (high - low) / 2
        scales = np.where(scales > 0, scales, 1.0)
        width = self.rows.shape[1]
        own = tuple(range(width))
        encoding = Encoding(width, own, tuple(centres.tolist()), tuple(scales.tolist()), True, tuple(rounded))
        # Not dense: intervals are proved through it.
        matrix = SparseMatrix.of(scipy.sparse.diags_array(scales, shape=(width, encoding.elements)))
        return self.builder.op(
            "affine",
            (self.encoded(encoding),),
            loc,
            matrices=(self.builder.constant(matrix, f"{loc.layer}.scales"),),
            bias=self.builder.constant(centres, f"{loc.layer}.centres"),
            shape=(width,),
        )


@dataclass(frozen=True, slots=True)
class Form:
    """The constants of the op `tree_ensemble`: see ir/ops/trees.py."""

    features: Array
    thresholds: Array
    paths: SparseMatrix
    offsets: Array
    values: Array
    branches: SparseMatrix | None = None
    constants: Array | None = None

    def node(
        self,
        builder: Builder,
        value: Node,
        loc: Location,
        bias: Array | None = None,
        binary: Array | None = None,
        whole: Array | None = None,
    ) -> Node:
        """The op on features; `binary` is 1 for those that are 0 or 1, `whole` for those that are whole numbers."""
        names = {
            "features": builder.constant(self.features.astype(np.float64), f"{loc.layer}.features"),
            "thresholds": builder.constant(self.thresholds, f"{loc.layer}.thresholds"),
            "paths": builder.constant(self.paths, f"{loc.layer}.paths"),
            "offsets": builder.constant(self.offsets, f"{loc.layer}.offsets"),
            "values": builder.constant(self.values, f"{loc.layer}.values"),
        }
        if self.branches is not None:
            names["branches"] = builder.constant(self.branches, f"{loc.layer}.branches")
            names["constants"] = builder.constant(self.constants, f"{loc.layer}.constants")
        if bias is not None and np.any(bias):
            names["bias"] = builder.constant(np.asarray(bias, dtype=np.float64), f"{loc.layer}.bias")
        if binary is not None:
            names["binary"] = builder.constant(binary, f"{loc.layer}.binary")
        if whole is not None:
            names["whole"] = builder.constant(whole, f"{loc.layer}.whole")
        return builder.op("tree_ensemble", (value,), loc, **names)


@dataclass(frozen=True, slots=True)
class _Paths:
    """The paths of an ensemble.

    features, thresholds: of each split that is not by categories; zero for others.
    nodes: the tree and the number of each split.
    signs: (leaves, splits), -1 where a leaf's path goes left at a split, 1 where it goes right.
    lefts: (leaves,), how often the path goes left.
    values: (outputs, leaves).
    """

    features: Array
    thresholds: Array
    nodes: tuple[tuple[Tree, int], ...]
    signs: Any
    lefts: Array
    values: Array


def tree_node(builder: Builder, source: Node | Table, ensemble: Ensemble, seen: Array, loc: Location) -> Node:
    """The node of an ensemble of features, or of a table's rows; `seen` are the samples at this point."""
    if isinstance(source, Table) and source.binned:
        missing = np.flatnonzero(np.isnan(seen).any(axis=0)).tolist()
        form, encoding = compared_form(ensemble, missing, source.binned == "shared", loc)
        return form.node(builder, source.encoded(encoding), loc, ensemble.bias, np.ones(encoding.elements))
    form = form_of(ensemble, loc)
    form = replace(form, thresholds=_settled(form, seen))
    whole: Array | None = None
    if isinstance(source, Table):
        whole = (seen == np.round(seen)).all(axis=0).astype(np.float64)
        # Beyond all thresholds and samples no decision depends on a value.
        low, high = seen.min(axis=0), seen.max(axis=0)
        np.minimum.at(low, form.features, form.thresholds)
        np.maximum.at(high, form.features, form.thresholds)
        features = Location(loc.file, layer=f"{loc.layer}.features")
        source = source.clipped(low, high, np.flatnonzero(whole).tolist(), features)
    return form.node(builder, source, loc, ensemble.bias, _bits(builder, source), whole)


def _bits(builder: Builder, value: Node) -> Array | None:
    """1 for each element that is an element of the encoded input which clients make 0 or 1, else 0; None if no one is."""
    spec = next(iter(builder.interface.inputs), None)
    if spec is None or spec.encoding is None:
        return None
    bits = (np.arange(spec.encoding.elements) >= len(spec.encoding.numbers)).astype(np.float64)
    if value.op == "linear" and value.inputs[0].op == "input":
        weight, context = builder.context.array(value.attrs["weight"]), builder.context
        alone = (np.count_nonzero(weight, axis=1) == 1) & (weight.max(axis=1) == 1.0)
        bias = context.array(value.attrs["bias"]) if "bias" in value.attrs else np.zeros(len(weight))
        bits = np.where(alone & (bias == 0.0), bits[weight.argmax(axis=1)], 0.0)
    elif value.op != "input":
        return None
    return bits if bits.any() else None


def _settled(form: Form, seen: Array) -> Array:
    """The thresholds of encrypted comparisons, which decide nothing where a value equals one.

    Between two whole numbers any threshold is the same; halfway it is farthest from both. Where a sample's value is a
    threshold, but for rounding, that is moved halfway to the next larger value of the samples.
    """
    settled = np.array(form.thresholds)
    for feature in np.unique(form.features):
        own, values = form.features == feature, np.unique(seen[:, feature])
        if (values == np.round(values)).all():
            settled[own] = np.floor(settled[own]) + 0.5
            continue
        close = _SAME * np.ptp(values)
        above = np.searchsorted(values, settled[own] + close, side="right")
        between = (above > 0) & (above < values.size)
        lower, upper = values[np.maximum(above - 1, 0)], values[np.minimum(above, values.size - 1)]
        on = between & (np.abs(settled[own] - lower) <= close)
        settled[own] = np.where(on, (lower + upper) / 2, settled[own])
    return settled


def on_thresholds(ensemble: Ensemble, rows: Array) -> Array:
    """Whether a sample's value equals a threshold of its feature, but for rounding: (samples,) booleans."""
    close, found = _SAME * np.ptp(rows, axis=0), np.zeros(len(rows), dtype=bool)
    for tree in ensemble.trees:
        for node in np.flatnonzero(np.asarray(tree.feature) >= 0):
            feature = tree.feature[node]
            found |= np.abs(rows[:, feature] - tree.threshold[node]) <= close[feature]
    return found


def form_of(ensemble: Ensemble, loc: Location) -> Form:
    """The constants for features that are sent as they are. Raises UnsupportedError for splits by categories."""
    if any(tree.categories for tree in ensemble.trees):
        raise UnsupportedError(
            "splits by categories cannot be compared under encryption",
            where=loc,
            hint=said("let clients compare ({binned=True|--binned}), or train on one-hot columns"),
        )
    paths = _paths(ensemble, loc)
    return Form(paths.features, paths.thresholds, SparseMatrix.of(paths.signs), paths.lefts, paths.values)


def compared_form(ensemble: Ensemble, missing: Sequence[int], shared: bool, loc: Location) -> tuple[Form, Encoding]:
    """The constants for the comparisons of clients, and these; values may be missing in the columns `missing`.

    Every split has a comparison of its own, in the order of the trees, so that the map to the leaves has few diagonals;
    with `shared`, equal ones have one. A category has an element of its own in any case.
    """
    paths = _paths(ensemble, loc)
    count = len(paths.nodes)
    numeric = [split for split, (tree, node) in enumerate(paths.nodes) if node not in tree.categories]
    edges = [(int(paths.features[split]), float(paths.thresholds[split])) for split in numeric]
    compared = sorted(set(edges)) if shared else edges
    codes = sorted(
        {
            (int(paths.features[split]), code)
            for split, (tree, node) in enumerate(paths.nodes)
            for code in _named(tree, node)
        }
    )
    encoding = Encoding(
        ensemble.features,
        compared=tuple(column for column, _ in compared),
        edges=tuple(edge for _, edge in compared),
        coded=tuple(column for column, _ in codes),
        codes=tuple(code for _, code in codes),
        missing=tuple(missing),
    )
    place_of = {edge: place for place, edge in enumerate(compared)}
    element_of = {
        split: place_of[edge] if shared else place
        for place, (split, edge) in enumerate(zip(numeric, edges, strict=True))
    }
    code_of = {code: len(compared) + place for place, code in enumerate(codes)}
    missing_of = {column: len(compared) + len(codes) + place for place, column in enumerate(missing)}
    # A split goes left by an affine function of the elements: weights and constants.
    entries: list[tuple[int, int, float]] = []
    constants = np.zeros(count)
    for split, (tree, node) in enumerate(paths.nodes):
        column, default = int(paths.features[split]), tree.default_left(node)
        if node not in tree.categories:
            constants[split], unless = 1.0, 0.0 if default else -1.0
            entries.append((split, element_of[split], -1.0))
        elif node in tree.right_categories and default:
            constants[split], unless = 1.0, 0.0
            entries += [(split, code_of[column, code], -1.0) for code in tree.right_categories[node]]
        else:
            unless = 1.0 if default else 0.0
            entries += [(split, code_of[column, code], 1.0) for code in tree.categories[node]]
        if unless and column in missing_of:
            entries.append((split, missing_of[column], unless))
    rows, columns, weights = zip(*entries, strict=True)
    left = scipy.sparse.csr_array((weights, (rows, columns)), shape=(count, encoding.elements))
    # The op's splits are 1 where an element is 0.
    constants += np.asarray(left.sum(axis=1)).ravel()
    elements = np.arange(encoding.elements)
    form = Form(elements, np.full(elements.size, 0.5), SparseMatrix.of(paths.signs), paths.lefts, paths.values)
    if count == encoding.elements and not constants.any() and (left != -scipy.sparse.eye_array(count)).nnz == 0:
        return form, encoding
    return replace(form, branches=SparseMatrix.of(-left), constants=constants), encoding


def _named(tree: Tree, node: int) -> frozenset[float]:
    """The categories by which a node decides."""
    if node in tree.right_categories and tree.default_left(node):
        return tree.right_categories[node]
    return tree.categories.get(node, frozenset())


def _paths(ensemble: Ensemble, loc: Location) -> _Paths:
    """The paths of all trees, in the order of their leaves; a tree that is one leaf has a path without splits.

    Raises UnsupportedError for trees that are too deep or too many.
    """
    splits: list[tuple[Tree, int]] = []
    values: list[Array] = []
    rows: list[int] = []
    columns: list[int] = []
    signs: list[float] = []
    lefts: list[float] = []
    for tree in ensemble.trees:
        walk = list(_walk(tree, loc))
        inner = [node for node, _ in walk if tree.feature[node] >= 0]
        numbers = {node: len(splits) + place for place, node in enumerate(inner)}
        splits += [(tree, node) for node in inner]
        for node, path in walk:
            if tree.feature[node] >= 0:
                continue
            rows += [len(values)] * len(path)
            columns += [numbers[ancestor] for ancestor, _ in path]
            signs += [-1.0 if left else 1.0 for _, left in path]
            lefts.append(float(sum(left for _, left in path)))
            values.append(tree.value[node])
        if len(values) > _MOST:
            raise UnsupportedError(f"the trees have more than {_MOST} leaves", where=loc, hint="train fewer trees")
    if not splits:
        raise UnsupportedError("all trees are single leaves: they predict a constant", where=loc)
    return _Paths(
        np.array([tree.feature[node] for tree, node in splits], dtype=np.int64),
        np.array([tree.threshold[node] for tree, node in splits], dtype=np.float64),
        tuple(splits),
        scipy.sparse.csr_array((signs, (rows, columns)), shape=(len(values), len(splits))),
        np.array(lefts),
        np.array(values).T.copy(),
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
