"""Maps between positions in ciphertexts. Small forms are kept: the entries of each diagonal are computed on demand.

In the layouts of convolutional networks the position of an element is its channel's plus its place's. The distance of
an entry of a Kronecker product from the diagonal is then the distance of its channels plus the distance of its places:
each diagonal is a few outer products of places and channels, and none has to be listed before it is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import scipy.sparse

from heliograph.errors import InternalError
from heliograph.ir.maps.kronecker import KroneckerMatrix
from heliograph.ir.maps.layout import Layout
from heliograph.ir.node import Array, Distances, Matrix, SparseMatrix
from heliograph.records import to_json

# With more pairs of channels than this, the bound on outer products does not distinguish distances.
_PAIRS_SORTED = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class PlacedMatrix(Matrix):
    """The part of a map that leads from one ciphertext of the operand to one of the result, in positions.

    `operand` and `result` are layouts with all copies alike; `block` is (ciphertext of the result, of the operand).
    """

    map: KroneckerMatrix
    operand: Layout
    result: Layout
    block: tuple[int, int]

    kind: ClassVar[str] = "placed"

    @property
    def heading(self) -> str:
        return f"{to_json(self.operand)} {to_json(self.result)} {self.block}"

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        return self.result.period, self.operand.period

    @property
    def numbers(self) -> tuple[Array, ...]:
        return self.map.numbers

    @property
    def effort(self) -> tuple[int, int]:
        return self.map.effort

    @property
    def _sides(self) -> tuple[_Side, _Side]:
        """The result's side and the operand's."""
        _, out, own = self.map.weights.shape
        rows, columns = self.map.places[0].shape
        sides = _side(self.result, out, rows), _side(self.operand, own, columns)
        if sides[0] is None or sides[1] is None:
            raise InternalError("positions do not add up: made without `fits`")
        return sides[0], sides[1]

    def _part(self) -> _Part:
        """The map's part between the two ciphertexts."""
        result, operand = (side.within(k) for side, k in zip(self._sides, self.block, strict=True))
        weights = self.map.weights[:, result.channels][:, :, operand.channels]
        return _Part(weights, _between(self.map, result.spots, operand.spots), result, operand)

    @property
    def nnz(self) -> int:
        part = self._part()
        counts = np.count_nonzero(part.weights, axis=(1, 2))
        return int(sum(int(count) * place.nnz for count, place in zip(counts, part.places, strict=True)))

    @property
    def most_terms(self) -> int:
        """An upper bound on the outer products in its diagonals: for each term of the map, pairs of channels times
        pairs of places at equal distances. Unlike `by_distance`, this takes no room for them.
        """
        part = self._part()
        result, operand = part.result, part.operand
        pairs = (part.weights != 0).any(axis=0)
        channels = int(operand.channels_at.max(initial=0) + result.channels_at.max(initial=0)) + 1
        if pairs.size <= _PAIRS_SORTED:
            out, own = np.nonzero(pairs)
            channels = np.unique(operand.channels_at[own] - result.channels_at[out]).size
        places = 0
        for place in part.places:
            rows = result.spots.at[np.repeat(np.arange(place.shape[0]), np.diff(place.indptr))]
            places += np.unique(operand.spots.at[place.indices] - rows).size
        return channels * places

    def csr(self) -> scipy.sparse.csr_array:
        part = self._part()
        result, operand = part.result, part.operand
        rows_of, columns_of, values = [], [], []
        for weight, place in zip(part.weights, part.places, strict=True):
            out, own = np.nonzero(weight)
            rows = result.spots.at[np.repeat(np.arange(place.shape[0]), np.diff(place.indptr))]
            rows_of.append((result.channels_at[out][:, np.newaxis] + rows).ravel())
            columns_of.append((operand.channels_at[own][:, np.newaxis] + operand.spots.at[place.indices]).ravel())
            values.append((weight[out, own][:, np.newaxis] * place.data).ravel())
        entries = np.concatenate(rows_of), np.concatenate(columns_of)
        return scipy.sparse.csr_array((np.concatenate(values), entries), shape=self.shape)

    def sparse(self) -> SparseMatrix:
        return SparseMatrix.of(self.csr())

    def apply(self, x: Array) -> Array:
        part = self._part()
        result, operand = part.result, part.operand
        taken = (operand.channels_at[:, np.newaxis] + operand.spots.at).ravel()
        found = KroneckerMatrix(part.weights, part.places).apply(np.ascontiguousarray(x[:, taken]))
        made = np.zeros((x.shape[0], self.result.period), dtype=found.dtype)
        made[:, (result.channels_at[:, np.newaxis] + result.spots.at).ravel()] = found
        return made

    def absolute(self) -> Matrix:
        return self._of(self.map.absolute())

    def times(self, factor: float) -> Matrix:
        return self._of(self.map.times(factor))

    def scaled(self, rows: Array | None = None, columns: Array | None = None) -> Matrix:
        return self.sparse().scaled(rows, columns)

    def _of(self, map: Matrix) -> Matrix:
        assert isinstance(map, KroneckerMatrix)
        return PlacedMatrix(map, self.operand, self.result, self.block)

    def by_distance(self, modulus: int) -> Distances:
        return _Kernel(self, modulus)


def blocks_of(matrix: Matrix, operand: Layout, result: Layout) -> Mapping[tuple[int, int], Matrix]:
    """The blocks that hold entries, by (ciphertext of the result, of the operand), each between positions. They are in a
    small form if the matrix is and if positions add up.
    """
    if not isinstance(matrix, KroneckerMatrix) or not fits(matrix, operand, result):
        return _listed(matrix.sparse(), operand, result)
    made = (
        PlacedMatrix(matrix, operand, result, (o, i))
        for o in range(result.ciphertexts)
        for i in range(operand.ciphertexts)
    )
    return {block.block: block for block in made if block.nnz}


def in_places(matrix: SparseMatrix, layout: Layout, out: Layout) -> SparseMatrix:
    """The matrix between places: rows and columns in the order of the layouts, all ciphertexts one after the other."""
    shape = (out.ciphertexts * out.period, layout.ciphertexts * layout.period)
    places_in, places_out = layout.places(), out.places()
    if shape == matrix.shape and (np.diff(places_in) == 1).all() and (np.diff(places_out) == 1).all():
        return matrix
    # Rows are moved unchanged; columns are renumbered.
    order = np.argsort(places_out, kind="stable")
    lengths = np.diff(matrix.indptr)[order].astype(np.int64)
    indptr: Array = np.zeros(shape[0] + 1, dtype=np.int64)
    indptr[places_out[order] + 1] = lengths
    indptr = np.cumsum(indptr)
    starts = np.cumsum(lengths) - lengths
    gather = np.repeat(matrix.indptr[order] - starts, lengths) + np.arange(matrix.data.size)
    columns = places_in.astype(np.int32)[matrix.indices[gather]]
    csr = scipy.sparse.csr_array((matrix.data[gather], columns, indptr.astype(np.int32)), shape=shape)
    csr.sort_indices()
    return SparseMatrix(shape, csr.data, csr.indices, csr.indptr)


def _listed(matrix: SparseMatrix, layout: Layout, out: Layout) -> dict[tuple[int, int], SparseMatrix]:
    """The blocks with entries, by (ciphertext of the result, ciphertext of the operand), each between positions."""
    whole = in_places(matrix, layout, out)
    if out.ciphertexts == layout.ciphertexts == 1:
        return {(0, 0): whole} if whole.data.size else {}
    blocks = {}
    csr = whole.csr()
    for o in range(out.ciphertexts):
        rows = csr[o * out.period : (o + 1) * out.period]
        for i in range(layout.ciphertexts):
            block = rows[:, i * layout.period : (i + 1) * layout.period]
            if block.nnz:
                blocks[o, i] = SparseMatrix.of(block)
    return blocks


def fits(matrix: KroneckerMatrix, operand: Layout, result: Layout) -> bool:
    """Whether the positions of both layouts are sums over the map's channels and places."""
    _, out, own = matrix.weights.shape
    rows, columns = matrix.places[0].shape
    return _side(result, out, rows) is not None and _side(operand, own, columns) is not None


@dataclass(frozen=True, slots=True, eq=False)
class _Spots:
    """The places in one ciphertext, their contributions to a position, and whether they are all places."""

    places: Array
    at: Array
    whole: bool


class _Within(NamedTuple):
    """The channels in one ciphertext, their contributions to a position, and the places."""

    channels: Array
    channels_at: Array
    spots: _Spots


class _Part(NamedTuple):
    """The part of a map between two ciphertexts: weights between their channels, and each term's map of places."""

    weights: Array
    places: tuple[SparseMatrix, ...]
    result: _Within
    operand: _Within


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """The positions of channels and places in one layout. An element's ciphertext and position are the sums of its
    channel's and its place's.
    """

    # (ciphertext, position) of each channel, and of each place.
    channels: tuple[Array, Array]
    places: tuple[Array, Array]

    def within(self, ciphertext: int) -> _Within:
        of, at = self.channels
        # One sum gives this ciphertext, or it holds nothing.
        base = next((base for base in np.unique(self.places[0]).tolist() if (of == ciphertext - base).any()), 0)
        channels = np.flatnonzero(of == ciphertext - base)
        return _Within(channels, at[channels], _spots(self, base))


@functools.lru_cache(maxsize=256)
def _spots(side: _Side, ciphertext: int) -> _Spots:
    of, at = side.places
    places = np.flatnonzero(of == ciphertext)
    return _Spots(places, at[places], places.size == of.size)


@functools.lru_cache(maxsize=64)
def _side(layout: Layout, channels: int, places: int) -> _Side | None:
    """The side of a layout; None if positions are not sums, or if two sums give one ciphertext."""
    if layout.size != channels * places:
        return None
    table = layout.places().reshape(channels, places)
    channel, place = table[:, 0], table[0] - table[0, 0]
    (of_channel, at_channel), (of_place, at_place) = (np.divmod(each, layout.period) for each in (channel, place))
    if (table != channel[:, np.newaxis] + place).any() or at_channel.max() + at_place.max() >= layout.period:
        return None
    sums = np.unique(of_channel)[:, np.newaxis] + np.unique(of_place)
    if np.unique(sums).size != sums.size:
        return None
    return _Side((of_channel, at_channel), (of_place, at_place))


@functools.lru_cache(maxsize=256)
def _between(map: KroneckerMatrix, result: _Spots, operand: _Spots) -> tuple[SparseMatrix, ...]:
    """Each term's map between the places of two ciphertexts."""
    if result.whole and operand.whole:
        return map.places
    return tuple(SparseMatrix.of(place.csr()[result.places][:, operand.places]) for place in map.places)


class _Channels(NamedTuple):
    """Pairs of channels at equal distance: their indices, and their positions as a column."""

    out: Array
    own: Array
    rows: Array
    columns: Array
    apart: int


class _Places(NamedTuple):
    """Pairs of places at equal distance, as a row, and their factors."""

    rows: Array
    columns: Array
    values: Array
    apart: int


class _Term(NamedTuple):
    """An outer product: rows and columns add up, values multiply."""

    weight: Array
    channels: _Channels
    places: _Places

    @property
    def rows(self) -> Array:
        return self.channels.rows + self.places.rows

    @property
    def columns(self) -> Array:
        return self.channels.columns + self.places.columns

    @property
    def values(self) -> Array:
        factors = self.weight[self.channels.out, self.channels.own]
        return np.asarray(factors[:, np.newaxis] * self.places.values)

    def edges(self) -> tuple[int, int]:
        """The least and the greatest row."""
        channels, places = self.channels.rows, self.places.rows
        return int(channels.min() + places.min()), int(channels.max() + places.max())


@functools.lru_cache(maxsize=64)
def _places(map: KroneckerMatrix, result: _Spots, operand: _Spots, modulus: int) -> list[list[_Places]]:
    """The pairs of places of each term of a map. All blocks that connect the same places share them."""
    made = []
    for place in _between(map, result, operand):
        rows = result.at[np.repeat(np.arange(place.shape[0]), np.diff(place.indptr))].astype(np.int32)
        columns = operand.at[place.indices].astype(np.int32)
        groups = _groups((columns - rows) % modulus)
        made.append([_Places(rows[here], columns[here], place.data[here], apart) for here, apart in groups])
    return made


class _Kernel:
    """The entries of one block by the distance from row to column, modulo a power of two."""

    def __init__(self, matrix: PlacedMatrix, modulus: int) -> None:
        part = matrix._part()
        weights, result, operand = part.weights, part.result, part.operand
        out, own = np.nonzero((weights != 0).any(axis=0))
        rows, columns = result.channels_at[out].astype(np.int32), operand.channels_at[own].astype(np.int32)
        pairs = [
            _Channels(out[here], own[here], rows[here, np.newaxis], columns[here, np.newaxis], apart)
            for here, apart in _groups((columns - rows) % modulus)
        ]
        self._terms: dict[int, list[_Term]] = {}
        self.held = weights.size + 4 * out.size
        for weight, groups in zip(weights, _places(matrix.map, result.spots, operand.spots, modulus), strict=True):
            there = pairs if weight[out, own].all() else _there(pairs, weight)
            for places in groups:
                for channels in there:
                    term = _Term(weight, channels, places)
                    self._terms.setdefault((channels.apart + places.apart) % modulus, []).append(term)
                    # A tuple in a list takes as much as sixteen numbers.
                    self.held += 16
        self.distances = tuple(sorted(self._terms))

    def edges(self, distance: int) -> tuple[int, int]:
        edges = [term.edges() for term in self._terms[distance]]
        return min(least for least, _ in edges), max(most for _, most in edges)

    def rows(self, distance: int) -> Array:
        return _joined([term.rows for term in self._terms[distance]])

    def columns(self, distance: int) -> Array:
        return _joined([term.columns for term in self._terms[distance]])

    def values(self, distance: int) -> Array:
        return _joined([term.values for term in self._terms[distance]])


def _there(pairs: list[_Channels], weight: Array) -> list[_Channels]:
    """The pairs of channels with nonzero weights."""
    found = []
    for pair in pairs:
        kept = np.flatnonzero(weight[pair.out, pair.own])
        if kept.size:
            found.append(_Channels(pair.out[kept], pair.own[kept], pair.rows[kept], pair.columns[kept], pair.apart))
    return found


def _joined(tables: list[Array]) -> Array:
    return tables[0].ravel() if len(tables) == 1 else np.concatenate([table.ravel() for table in tables])


def _groups(values: Array) -> list[tuple[Array, int]]:
    """The indices of each distinct value, and the value."""
    if not values.size:
        return []
    order = np.argsort(values, kind="stable")
    there, starts = np.unique(values[order], return_index=True)
    return list(zip(np.split(order, starts[1:]), (int(value) for value in there), strict=True))
