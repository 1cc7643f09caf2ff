"""Write a `tree_ensemble` as products along the paths of its trees.

Down to some depth, a node is reached where the path takes all turns to it: their product, in log depth. From the leaves up
to that depth, the value below a node is turn * value(left) + (1 - turn) * value(right), where the lowest ones are linear in
the turn. Both meet in one product for each node of that depth, and these are added before they are relinearized. The depth
is that of the least price.

Each value is a product of its own, so this pays where every element of a tensor is a ciphertext of its own: with as many
samples as slots (ir/ops/slots/stacks.py). Elsewhere trees.py has fewer maps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from heliograph.ir import Array, Node, SparseMatrix
from heliograph.ir.ops.table import Attrs, Context
from heliograph.ir.ops.trees import entries
from heliograph.ir.writer import Writer

# Fewer levels are worth so much: ciphertexts are smaller, and the ring may be.
_NEARLY = 1.25


@dataclass(frozen=True, slots=True)
class Turns:
    """What the nodes of all trees decide: 1 where the path goes left, 0 where it goes right.

    `operands`, `matrices`, `constants`: the turns are the sum of the products of matrices (nodes, size of the operand)
        and operands, plus constants (nodes,).
    """

    operands: tuple[Node, ...]
    matrices: tuple[Any, ...]
    constants: Array


@dataclass(slots=True)
class Place:
    """A node of a tree, or a leaf.

    `number`: of the node in the op, or of the leaf.
    `children`: where the path goes if it turns left and right; none for leaves.
    `height`: the nodes on the longest path down from here, this one included; 0 for leaves.
    """

    number: int
    children: tuple[Place, ...] = ()
    height: int = 0


def trees_of(a: Attrs, context: Context) -> list[Place] | None:
    """The trees that the paths of the op form; None if they do not."""
    paths = entries(a, context, "paths")
    lefts = np.asarray((paths < 0).sum(axis=1)).ravel()
    if not (np.abs(paths.data) == 1.0).all() or not np.array_equal(lefts, context.array(a["offsets"])):
        return None
    conditions = [
        dict(zip(paths.indices[begin:end].tolist(), paths.data[begin:end].tolist(), strict=True))
        for begin, end in zip(paths.indptr[:-1], paths.indptr[1:], strict=True)
    ]
    # Leaves that share a condition are of one tree.
    sides = scipy.sparse.block_array([[None, paths], [paths.T, None]])
    _, tree = scipy.sparse.csgraph.connected_components(sides, directed=False)
    leaves: dict[int, list[int]] = {}
    for leaf, number in enumerate(tree[: paths.shape[0]].tolist()):
        leaves.setdefault(number, []).append(leaf)
    made = [_tree(own, conditions) for own in leaves.values()]
    return None if any(each is None for each in made) else [each for each in made if each is not None]


def _tree(leaves: Sequence[int], conditions: Sequence[dict[int, float]]) -> Place | None:
    """The tree of these leaves; None if there is none. It takes their conditions out of the lists."""
    if len(leaves) == 1:
        return None if conditions[leaves[0]] else Place(leaves[0])
    shared = set(conditions[leaves[0]]).intersection(*(conditions[leaf] for leaf in leaves[1:]))
    if len(shared) != 1:
        return None
    (root,) = shared
    sides: tuple[list[int], list[int]] = [], []
    for leaf in leaves:
        sides[conditions[leaf].pop(root) > 0].append(leaf)
    if not all(sides):
        return None
    left, right = (_tree(side, conditions) for side in sides)
    if left is None or right is None:
        return None
    return Place(root, (left, right), 1 + max(left.height, right.height))


@dataclass(frozen=True, slots=True)
class _Value:
    """A number that is a value of its own on the server, or known: the sum of elements of vectors, and a constant."""

    terms: tuple[tuple[Node, int, float], ...] = ()
    constant: float = 0.0

    def times(self, factor: float) -> _Value:
        return _Value(tuple((node, row, factor * weight) for node, row, weight in self.terms), factor * self.constant)

    def plus(self, other: _Value) -> _Value:
        return _Value(self.terms + other.terms, self.constant + other.constant)


_ONE = _Value(constant=1.0)
_SIDES = (True, False)


def _upper(depth: int) -> int:
    """The turns of the first factor where so many turns are multiplied: the largest power of two below their number."""
    return 1 << (depth - 1).bit_length() - 1


def _depths(trees: Sequence[Place]) -> Iterator[tuple[int, int, int]]:
    """Each depth at which both halves may meet, with the levels and the number of products that are relinearized."""
    deepest = max(tree.height for tree in trees)

    def along(place: Place, depth: int) -> int:
        """The products of turns to the nodes that far below."""
        if depth == 1 or not place.children:
            return 0
        upper = _upper(depth)
        below = [end for end in _ends(place, upper) if end.children]
        rest = depth - upper
        return along(place, upper) + sum(sum(1 for _ in _ends(end, rest)) + along(end, rest) for end in below)

    def values(place: Place) -> int:
        """The nodes below with a value that is a product: it has a node under it, which is no constant."""
        return sum(values(child) for child in place.children) + int(place.height > 1)

    for depth in range(1, max(1, deepest) + 1):
        products = sum(along(tree, depth) + sum(map(values, _ends(tree, depth))) for tree in trees)
        yield depth, max((depth - 1).bit_length(), deepest - depth) + 1, products


def _ends(place: Place, depth: int) -> Iterator[Place]:
    """The nodes that far below a place, and the leaves above them."""
    if depth and place.children:
        for child in place.children:
            yield from _ends(child, depth - 1)
    else:
        yield place


def meeting(trees: Sequence[Place]) -> int:
    """The depth with the fewest levels among those of nearly the least price."""

    def price(levels: int, products: int) -> float:
        """The products times the mean price of one: at level l, the built-in prices at N = 2^14 grow like
        0.5 + 0.2 l + 0.01 l^2.
        """
        return products * (0.5 + 0.1 * (levels + 1) + 0.01 * (levels + 1) * (2 * levels + 1) / 6)

    priced = [(price(levels, products), levels, depth) for depth, levels, products in _depths(trees)]
    most = _NEARLY * min(priced)[0]
    return min((levels, cost, depth) for cost, levels, depth in priced if cost <= most)[2]


class _Products:
    """Writes the products of all trees, level by level."""

    def __init__(self, w: Writer, turns: Turns, values: Array) -> None:
        self.w, self.turns, self.values = w, turns, values
        self.rows = [each.tocsr() for each in turns.matrices]

    def turn(self, number: int, left: bool) -> _Value:
        """1 where the path goes to that side."""
        terms: list[tuple[Node, int, float]] = []
        for operand, matrix in zip(self.turns.operands, self.rows, strict=True):
            part = slice(int(matrix.indptr[number]), int(matrix.indptr[number + 1]))
            terms += [
                (operand, int(column), float(weight))
                for column, weight in zip(matrix.indices[part], matrix.data[part], strict=True)
            ]
        value = _Value(tuple(terms), float(self.turns.constants[number]))
        return value if left else _ONE.plus(value.times(-1.0))

    def vector(self, values: Sequence[_Value]) -> Node:
        """The values as a tensor (values,)."""
        entries: dict[Node, tuple[list[float], list[int], list[int]]] = {}
        for row, value in enumerate(values):
            for node, column, weight in value.terms:
                data, rows, columns = entries.setdefault(node, ([], [], []))
                data.append(weight)
                rows.append(row)
                columns.append(column)
        if not entries:
            # Known numbers, of thresholds that 0 and 1 are on one side of.
            entries[self.turns.operands[0]] = [0.0], [0], [0]
        w, bias = self.w, np.array([value.constant for value in values])
        matrices = []
        for node, (data, rows, columns) in entries.items():
            shape = (len(values), node.type.size)  # type: ignore[union-attr]
            matrix = SparseMatrix.of(scipy.sparse.csr_array((data, (rows, columns)), shape=shape))
            matrices.append(w.builder.constant(matrix, "branches"))
        attrs: dict[str, Any] = {"bias": w.builder.constant(bias, "branches.bias")} if bias.any() else {}
        return w.op("affine", *entries, matrices=tuple(matrices), shape=(len(values),), **attrs)

    def products(self, pairs: Sequence[tuple[_Value, _Value]]) -> list[_Value]:
        """The products of pairs of values."""
        if not pairs:
            return []
        left, right = (self.vector(side) for side in zip(*pairs, strict=True))
        made = self.w.op("mul", left, right)
        return [_Value(((made, row, 1.0),)) for row in range(len(pairs))]

    def reached(self, places: Sequence[Place], depth: int) -> list[list[tuple[Place, _Value]]]:
        """For each place the nodes that far below and the leaves above them, each with 1 where the path leads to it."""
        if depth == 1:
            return [
                [(child, self.turn(place.number, left)) for child, left in zip(place.children, _SIDES, strict=True)]
                if place.children
                else [(place, _ONE)]
                for place in places
            ]
        upper = _upper(depth)
        above = self.reached(places, upper)
        middle = [(place, value) for found in above for place, value in found if place.children]
        below = self.reached([place for place, _ in middle], depth - upper)
        pairs = [(value, turn) for (_, value), found in zip(middle, below, strict=True) for _, turn in found]
        products, following = iter(self.products(pairs)), iter(below)

        def ends(place: Place, value: _Value) -> list[tuple[Place, _Value]]:
            return [(end, next(products)) for end, _ in next(following)] if place.children else [(place, value)]

        return [[end for each in found for end in ends(*each)] for found in above]

    def below(self, places: Sequence[tuple[Place, int]]) -> dict[tuple[int, int], _Value]:
        """The values below nodes, each for an output, by (number, output)."""
        found: dict[tuple[int, int], _Value] = {}

        def value(place: Place, output: int) -> _Value:
            if not place.children:
                return _Value(constant=float(self.values[output, place.number]))
            return found[place.number, output]

        levels: list[list[tuple[Place, int]]] = [[pair for pair in places if pair[0].children]]
        while levels[-1]:
            following = [(child, output) for place, output in levels[-1] for child in place.children if child.children]
            levels.append(following)
        for level in reversed(levels):
            pairs: list[tuple[_Value, _Value]] = []
            owners: list[tuple[int, int]] = []
            for place, output in level:
                key = place.number, output
                found[key] = _Value()
                for child, left in zip(place.children, _SIDES, strict=True):
                    turn, at = self.turn(place.number, left), value(child, output)
                    if not at.terms:
                        found[key] = found[key].plus(turn.times(at.constant))
                    else:
                        pairs.append((turn, at))
                        owners.append(key)
            for key, made in zip(owners, self.products(pairs), strict=True):
                found[key] = found[key].plus(made)
        return found


def written_products(w: Writer, node: Node, turns: Turns, trees: Sequence[Place]) -> Node:
    """The nodes of the ensemble of these trees."""
    values = w.builder.context.array(node.attrs["values"])
    products = _Products(w, turns, values)
    reached = products.reached(trees, meeting(trees))
    # Each with the outputs that get its value, and their signs.
    wanted: list[tuple[Place, _Value, int, list[tuple[int, float]]]] = []
    # The summands of each output.
    totals = [[_Value(constant=float(bias))] for bias in _bias(w, node, len(values))]
    for place, value in itertools.chain.from_iterable(reached):
        if not place.children:
            for output in np.flatnonzero(values[:, place.number]).tolist():
                totals[output].append(value.times(float(values[output, place.number])))
            continue
        leaves = [leaf.number for leaf in _ends(place, place.height)]
        for same in _alike(values[:, leaves]):
            wanted.append((place, value, same[0][0], same))
    below = products.below([(place, output) for place, _, output, _ in wanted])
    pairs = [(value, below[place.number, output]) for place, value, output, _ in wanted]
    for (*_, same), made in zip(wanted, products.products(pairs), strict=True):
        for output, sign in same:
            totals[output].append(made.times(sign))
    return products.vector([_total(summands) for summands in totals])


def _total(values: Sequence[_Value]) -> _Value:
    terms = tuple(term for value in values for term in value.terms)
    return _Value(terms, sum(value.constant for value in values))


def _alike(values: Array) -> list[list[tuple[int, float]]]:
    """The outputs with values, in groups of equal or opposite ones, each with its sign against the first."""
    found: list[list[tuple[int, float]]] = []
    for output in np.flatnonzero(values.any(axis=1)).tolist():
        for group in found:
            first = values[group[0][0]]
            sign = next((sign for sign in (1.0, -1.0) if np.array_equal(values[output], sign * first)), None)
            if sign is not None:
                group.append((output, sign))
                break
        else:
            found.append([(output, 1.0)])
    return found


def _bias(w: Writer, node: Node, outputs: int) -> Array:
    return w.builder.context.array(node.attrs["bias"]) if "bias" in node.attrs else np.zeros(outputs)
