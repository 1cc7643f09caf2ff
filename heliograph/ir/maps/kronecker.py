"""Linear maps of (channels, places) tensors in a small form: a sum of Kronecker products.

A convolution multiplies each place's channels by one small matrix for each tap of its kernel, and a tap moves places: its
matrix on flattened tensors is the sum over the taps of weights (out channels, in channels) times places (out, in). Batch
norms, poolings, slices and linear layers have the same form, and so have their products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from heliograph.ir.maps.gather import gather_matrix
from heliograph.ir.node import Array, Matrix, SparseMatrix
from heliograph.machine import in_threads

# The numbers of values that are gathered at once, or multiplied by sparse matrices, when a map is applied.
_GATHERED, _MULTIPLIED = 1 << 18, 1 << 20
# With so few places, a product for each sample would be slow.
_FEW_PLACES = 32


@dataclass(frozen=True, slots=True, eq=False)
class KroneckerMatrix(Matrix):
    """The sum over t of weights[t] (out channels, in channels) kron places[t] (out places, in places).

    No two terms have entries at the same place: their places are disjoint. `weights` is read-only.
    """

    weights: Array
    places: tuple[SparseMatrix, ...]

    kind: ClassVar[str] = "kronecker"

    def __post_init__(self) -> None:
        view = self.weights.view()
        view.flags.writeable = False
        object.__setattr__(self, "weights", view)

    @staticmethod
    def of(weights: Array, places: Sequence[SparseMatrix]) -> Matrix:
        """The map; a general sparse matrix where terms overlap or the small form is not smaller."""
        kept: dict[bytes, tuple[Array, SparseMatrix]] = {}
        for weight, place in zip(weights, places, strict=True):
            if place.data.size and weight.any():
                key = place.data.tobytes() + place.indices.tobytes() + place.indptr.tobytes()
                kept[key] = (kept[key][0] + weight if key in kept else weight, place)
        if not kept:
            rows, columns = weights.shape[1] * places[0].shape[0], weights.shape[2] * places[0].shape[1]
            return SparseMatrix.of(scipy.sparse.csr_array((rows, columns)))
        made = KroneckerMatrix(
            np.ascontiguousarray([weight for weight, _ in kept.values()], dtype=np.float64),
            tuple(place for _, place in kept.values()),
        )
        return made if made.disjoint and made._smaller() else SparseMatrix.of(made.csr())

    @property
    def disjoint(self) -> bool:
        """Whether no two terms have entries at the same place, which holds for every matrix made here."""
        if len(self.places) == 1:
            return True
        shape = self.places[0].shape
        keys = [
            np.repeat(np.arange(shape[0], dtype=np.int64), np.diff(place.indptr)) * shape[1] + place.indices
            for place in self.places
        ]
        every = np.concatenate(keys)
        return bool(np.unique(every).size == every.size)

    @property
    def effort(self) -> tuple[int, int]:
        terms, out, own = self.weights.shape
        rows, columns = self.places[0].shape
        # Each term moves the operand's places, then one product adds up all of them.
        moved = terms * own * rows
        return 2 * moved + out * rows + own * columns + self.weights.size, moved * out

    def _smaller(self) -> bool:
        """Whether a list of the entries, with a column index for each, would be larger."""
        size = int(self.weights.size) + sum(place.data.size for place in self.places)
        # With a single place this is a dense matrix; it is kept in this form only if it is full.
        return 2 * size <= 3 * self.nnz if self.places[0].data.size > 1 else size <= self.nnz

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        _, out, own = self.weights.shape
        rows, columns = self.places[0].shape
        return out * rows, own * columns

    @property
    def nnz(self) -> int:
        counts = np.count_nonzero(self.weights, axis=(1, 2))
        return int(sum(int(count) * place.data.size for count, place in zip(counts, self.places, strict=True)))

    @property
    def numbers(self) -> tuple[Array, ...]:
        found = [self.weights]
        for place in self.places:
            found += [place.data, place.indices, place.indptr]
        return tuple(found)

    def csr(self) -> scipy.sparse.csr_array:
        taps = [_tap(place) for place in self.places]
        if all(tap is not None for tap in taps) and self.weights.all():
            return self._csr_of_taps(np.array(taps))
        _, columns = self.places[0].shape
        rows_of, columns_of, values = [], [], []
        for weight, place in zip(self.weights, self.places, strict=True):
            channel_out, channel_in = np.nonzero(weight)
            row = np.repeat(np.arange(place.shape[0]), np.diff(place.indptr))
            rows_of.append((channel_out[:, np.newaxis] * place.shape[0] + row).ravel().astype(np.int32))
            columns_of.append((channel_in[:, np.newaxis] * columns + place.indices).ravel().astype(np.int32))
            values.append((weight[channel_out, channel_in][:, np.newaxis] * place.data).ravel())
        entries = (np.concatenate(rows_of), np.concatenate(columns_of))
        made = scipy.sparse.coo_array((np.concatenate(values), entries), shape=self.shape).tocsr()
        made.sort_indices()
        return made

    def _csr_of_taps(self, taps: Array) -> scipy.sparse.csr_array:
        """The rows for taps that copy places unchanged, (terms, places), and for weights without zeros: row by row."""
        terms, out, own = self.weights.shape
        rows, columns = self.places[0].shape
        # Columns ascend within each row: by channel, and within a channel by tap if the taps are in order.
        order = np.argsort(taps, axis=0, kind="stable")
        taps = np.take_along_axis(taps, order, axis=0).T
        there = taps < columns
        shape = (rows, own, terms)
        kept = np.broadcast_to(there[:, np.newaxis], shape)
        one = (np.arange(own, dtype=np.int32)[:, np.newaxis] * columns + taps[:, np.newaxis].astype(np.int32))[kept]
        # (out, places, own, terms)
        each = self.weights.transpose(1, 2, 0)
        data = np.empty(out * one.size)
        straight = (order == order[:, :1]).all()
        for channel, part in zip(each, data.reshape(out, -1), strict=True):
            if straight:
                part[:] = np.broadcast_to(channel[:, order[:, 0]], shape)[kept]
            else:
                part[:] = channel[:, order.T].transpose(1, 0, 2)[kept]
        counts = np.tile(there.sum(axis=1) * own, out)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return scipy.sparse.csr_array((data, np.tile(one, out), indptr), shape=self.shape)

    def sparse(self) -> SparseMatrix:
        made = self.csr()
        return SparseMatrix(self.shape, made.data, made.indices.astype(np.int32), made.indptr.astype(np.int32))

    def apply(self, x: Array) -> Array:
        _, out, own = self.weights.shape
        rows, columns = self.places[0].shape
        terms, count = len(self.places), x.shape[0]
        # (terms, out, in) as (out, terms * in): one product for all taps.
        flat = np.ascontiguousarray(self.weights.transpose(1, 0, 2).reshape(out, terms * own))
        taps = [_tap(place) for place in self.places]
        if terms == 1 and rows <= _FEW_PLACES and taps[0] is not None and np.array_equal(taps[0], np.arange(columns)):
            return self._of_channels(x)
        others = {t: self.places[t].csr() for t, tap in enumerate(taps) if tap is None}
        result = np.empty((count, out, rows), dtype=np.result_type(x, np.float64))
        # Products with sparse matrices are dear to begin.
        together = _MULTIPLIED if others else _GATHERED
        step = max(1, together // (terms * own * max(rows, 1)))

        def some(number: int) -> None:
            start = number * step
            part = x[start : start + step].reshape(-1, own, columns)
            # A last column of zeros, for places that a tap does not reach.
            padded = np.zeros((len(part), own, columns + 1), dtype=result.dtype)
            padded[:, :, :columns] = part
            moved = np.empty((len(part), terms, own, rows), dtype=result.dtype)
            # Sparse products take columns, which are in order once for all taps.
            upright = np.ascontiguousarray(part.reshape(-1, columns).T) if others else part
            for t, tap in enumerate(taps):
                if tap is None:
                    moved[:, t] = (others[t] @ upright).T.reshape(len(part), own, rows)
                else:
                    # Places are within the columns; to clip them takes less time than to check them.
                    moved[:, t] = np.take(padded, tap, axis=2, mode="clip")
            np.matmul(flat, moved.reshape(len(part), terms * own, rows), out=result[start : start + step])

        in_threads(some, -(-count // step), step * terms * own * rows, blas=True)
        return result.reshape(count, out * rows)

    def _of_channels(self, x: Array) -> Array:
        """`apply` of a map that mixes channels alone: one product for many places of many samples."""
        _, out, own = self.weights.shape
        count, places = x.shape[0], self.places[0].shape[0]
        made = np.empty((count, out, places), dtype=np.result_type(x, np.float64))
        step = max(1, _MULTIPLIED // ((out + own) * places))

        def some(number: int) -> None:
            part = x[number * step : (number + 1) * step].reshape(-1, own, places)
            columns = part.transpose(1, 0, 2).reshape(own, -1)
            product = (self.weights[0] @ columns).reshape(out, -1, places)
            made[number * step : (number + 1) * step] = product.transpose(1, 0, 2)

        in_threads(some, -(-count // step), step * own * places, blas=True)
        return made.reshape(count, out * places)

    def apply_to_constant(self, x: Array) -> Array:
        """The map of one vector, (columns,) to (rows,), by sums whose order does not depend on the processor."""
        _, out, own = self.weights.shape
        rows, columns = self.places[0].shape
        total: Array = np.zeros((out, rows))
        for weight, place in zip(self.weights, self.places, strict=True):
            total += scipy.sparse.csr_array(weight) @ (place.csr() @ x.reshape(own, columns).T).T
        return total.ravel()

    def absolute(self) -> Matrix:
        places = [SparseMatrix(each.shape, np.abs(each.data), each.indices, each.indptr) for each in self.places]
        return KroneckerMatrix(np.abs(self.weights), tuple(places))

    def times(self, factor: float) -> Matrix:
        return KroneckerMatrix(self.weights * factor, self.places)

    def scaled(self, rows: Array | None = None, columns: Array | None = None) -> Matrix:
        _, out, own = self.weights.shape
        weights = self.weights
        for factors, channels, side in ((rows, out, (1, -1, 1)), (columns, own, (1, 1, -1))):
            if factors is None:
                continue
            table = factors.reshape(channels, -1)
            if not (table == table[:, :1]).all():
                return self.sparse().scaled(rows, columns)
            weights = weights * table[:, 0].reshape(side)
        return KroneckerMatrix(weights, self.places)

    @property
    def sign(self) -> int:
        """1 or -1 if the matrix is plus or minus the identity, else 0."""
        _, out, own = self.weights.shape
        rows, columns = self.places[0].shape
        if out != own or rows != columns or len(self.places) > 1 or self.nnz != out * rows:
            return 0
        place, first = self.places[0], self.weights[0, 0, 0] * self.places[0].data[0]
        identity = place.data.size == rows and np.array_equal(place.indices, np.arange(rows))
        if not identity or not (place.data == place.data[0]).all() or first not in (1.0, -1.0):
            return 0
        return int(first) if (self.weights[0] == np.eye(out) * self.weights[0, 0, 0]).all() else 0

    def rows_taken(self, index: Array, shape: Sequence[int]) -> KroneckerMatrix | None:
        """The map to element `index[i]` of its result at place i (-1 gives zero), if channels and places move
        independently after some axis of the new result's shape; else None.
        """
        _, out, _ = self.weights.shape
        rows = self.places[0].shape[0]
        for axes in range(1, len(shape)):
            found = _split(index, (out, rows), (math.prod(shape[:axes]), math.prod(shape[axes:])))
            if found is not None:
                channel, place = found
                weights = np.where((channel >= 0)[:, np.newaxis], self.weights[:, channel], 0.0)
                taken = _selection(place, rows).csr()
                return KroneckerMatrix(weights, tuple(SparseMatrix.of(taken @ each.csr()) for each in self.places))
        return None

    def columns_taken(self, index: Array) -> KroneckerMatrix | None:
        """The map of which column j is its column `index[j]`, for a permutation that moves channels and places
        independently; else None.
        """
        _, _, own = self.weights.shape
        columns = self.places[0].shape[1]
        found = _split(index, (own, columns), (own, columns))
        if found is None:
            return None
        channel, place = found
        taken = _selection(place, columns).csr().T
        return KroneckerMatrix(
            self.weights[:, :, channel], tuple(SparseMatrix.of(each.csr() @ taken) for each in self.places)
        )

    def after(self, inner: KroneckerMatrix) -> Matrix | None:
        """This map after another one; None if channels and places do not match or the product has too many terms."""
        if self.weights.shape[2] != inner.weights.shape[1] or self.places[0].shape[1] != inner.places[0].shape[0]:
            return None
        if len(self.places) * len(inner.places) > _MOST_TERMS:
            return None
        weights, places = [], []
        for own, place in zip(self.weights, self.places, strict=True):
            outer = place.csr()
            for theirs, other in zip(inner.weights, inner.places, strict=True):
                # Not by BLAS, whose sums depend on the processor.
                weights.append((scipy.sparse.csr_array(own) @ scipy.sparse.csr_array(theirs)).toarray())
                places.append(SparseMatrix.of(outer @ other.csr()))
        return KroneckerMatrix.of(np.array(weights), places)

    def plus(self, other: KroneckerMatrix) -> Matrix | None:
        """The sum; None if channels and places do not match."""
        if self.weights.shape[1:] != other.weights.shape[1:] or self.places[0].shape != other.places[0].shape:
            return None
        return KroneckerMatrix.of(np.concatenate([self.weights, other.weights]), self.places + other.places)


# With more pairs of taps than this, the product of two kernels becomes a general matrix.
_MOST_TERMS = 128


def _tap(place: SparseMatrix) -> Array | None:
    """For each place of the result the operand's place that it copies, or the number of places for none."""
    counts = np.diff(place.indptr)
    if counts.max(initial=0) > 1 or not (place.data == 1.0).all():
        return None
    taken = np.full(place.shape[0], place.shape[1], dtype=np.intp)
    taken[np.flatnonzero(counts)] = place.indices
    return taken


def identity_places(count: int) -> SparseMatrix:
    return SparseMatrix.of(scipy.sparse.eye_array(count, format="csr"))


def of_channels(factors: Array) -> Matrix | None:
    """The map that multiplies elements by their factors, (channels, *places), if each channel has one factor."""
    if factors.ndim < 2 or not factors.size:
        return None
    table = factors.reshape(factors.shape[0], -1)
    if (table != table[:, :1]).any():
        return None
    return KroneckerMatrix.of(np.diag(table[:, 0])[np.newaxis], [identity_places(table.shape[1])])


def moved(index: Array, shape: Sequence[int], out_shape: Sequence[int]) -> Matrix | None:
    """The map whose result i is operand `index[i]` (-1 gives zero), if it moves channels and places independently; else
    None.

    `shape` and `out_shape` start with the channels.
    """
    found = _split(index, shape, out_shape)
    if found is None:
        return None
    channel, place = found
    return KroneckerMatrix.of(
        _selection(channel, shape[0]).csr().toarray()[np.newaxis], [_selection(place, math.prod(shape[1:]))]
    )


def _split(index: Array, shape: Sequence[int], out_shape: Sequence[int]) -> tuple[Array, Array] | None:
    """The operand's channel of each channel of the result, and its place of each place (-1 for none); None if the index
    does not move them independently.
    """
    if len(shape) < 2 or len(out_shape) < 2 or not index.size:
        return None
    count, out_count = math.prod(shape[1:]), math.prod(out_shape[1:])
    table: Array = np.asarray(index).reshape(out_shape[0], out_count)
    there: Array = np.asarray(table >= 0)
    rows, columns = np.asarray(there.any(axis=1)), np.asarray(there.any(axis=0))
    if not rows.any() or not (there == rows[:, np.newaxis] & columns).all():
        return None
    first_row, first_column = int(np.argmax(rows)), int(np.argmax(columns))
    channel, place = table[:, first_column] // count, table[first_row] % count
    if not (table[there] == (channel[:, np.newaxis] * count + place)[there]).all():
        return None
    return np.where(rows, channel, -1), np.where(columns, place, -1)


def _selection(index: Array, columns: int) -> SparseMatrix:
    return SparseMatrix.of(gather_matrix(index, columns))


def gather_map(index: Array, shape: Sequence[int], out_shape: Sequence[int]) -> Any:
    """`gather_matrix` for a tensor of that shape; in the small form if it moves channels and places independently."""
    columns = math.prod(shape)
    flat = np.asarray(index).ravel()
    if flat.size == columns and (flat == np.arange(columns)).all():
        return gather_matrix(flat, columns)
    found = moved(flat, shape, out_shape)
    return gather_matrix(flat, columns) if found is None else found
