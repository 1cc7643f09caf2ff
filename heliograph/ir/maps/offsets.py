"""The offsets of a sparse map's diagonals between two layouts, from the pairs that its entries connect along each axis.

The diagonals themselves are not built. A convolution connects every allowed pair of channels with every allowed pair of
rows and every allowed pair of columns, so its offsets are the sums of the distances along the three axes, which are
few. Maps without that structure are examined entry by entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from heliograph.ir import Array, Matrix, SparseMatrix
from heliograph.ir.maps.diagonals import MapGeometry
from heliograph.ir.maps.kronecker import KroneckerMatrix
from heliograph.ir.maps.layout import Layout

# The diagonals of each block: (ciphertext of the result, ciphertext of the operand) -> sorted offsets.
Blocks = Mapping[tuple[int, int], Array]


@dataclass(frozen=True, slots=True, eq=False)
class _Connections:
    """The pairs of indices that a matrix connects.

    `axes`: for each axis, the pairs as two arrays: indices in the operand and in the result.
    `whole`: whether every combination of pairs has an entry.
    """

    axes: tuple[tuple[Array, Array], ...]
    whole: bool


class MapOffsets:
    """The offsets of maps between many layouts; matrices with the same structure share the results."""

    def __init__(self) -> None:
        self._structures: dict[int, tuple[Matrix, str]] = {}
        self._connections: dict[tuple[str, tuple[int, ...], tuple[int, ...]], _Connections] = {}
        self._blocks: dict[tuple[str, Layout, Layout], Blocks] = {}

    def structure(self, matrix: Matrix) -> str:
        """A digest of the places of the entries: equal for matrices with entries at the same places."""
        known = self._structures.get(id(matrix))
        if known is None or known[0] is not matrix:
            digest = hashlib.blake2b(digest_size=16)
            if isinstance(matrix, KroneckerMatrix):
                digest.update(f"{matrix.weights.shape}".encode())
                digest.update(np.packbits(matrix.weights != 0).tobytes())
            for part in matrix.numbers:
                # Only the places of the entries matter, not their values.
                if part.dtype.kind == "i":
                    digest.update(part.tobytes())
            known = self._structures[id(matrix)] = (matrix, f"{matrix.shape}{digest.hexdigest()}")
        return known[1]

    def blocks(self, matrix: Matrix, layout: Layout, out: Layout) -> Blocks:
        """The offsets of the diagonals between layouts, by block, in [0, modulus) (see ir/maps/diagonals.py).

        With moved copies of the result, a few of the offsets may have no diagonal.
        """
        key = (self.structure(matrix), layout, out)
        if key not in self._blocks:
            geometry = MapGeometry.between(layout, out)
            modulus = geometry.modulus
            blocks = self._by_axes(matrix, layout, out, modulus)
            if blocks is None:
                blocks = self._by_entries(matrix, layout, out, modulus)
            if out.shift:
                changes = np.unique([change % modulus for *_, change in geometry.moves])
                blocks = {block: _sums(offsets, changes, modulus) for block, offsets in blocks.items()}
            self._blocks[key] = blocks
        return self._blocks[key]

    def _connected(self, matrix: Matrix, layout: Layout, out: Layout) -> _Connections:
        shapes = (layout.channels_rows_columns, out.channels_rows_columns)
        key = (self.structure(matrix), *shapes)
        if key not in self._connections:
            by_channel = isinstance(matrix, KroneckerMatrix) and matrix.weights.shape[1:] == (
                shapes[1][0],
                shapes[0][0],
            )
            if isinstance(matrix, KroneckerMatrix) and by_channel:
                self._connections[key] = _of_kernel(matrix, *shapes)
            else:
                self._connections[key] = _of_entries(matrix.sparse(), *shapes)
        return self._connections[key]

    def _by_axes(self, matrix: Matrix, layout: Layout, out: Layout, modulus: int) -> Blocks | None:
        connected, parts_in, parts_out = self._connected(matrix, layout, out), layout.parts, out.parts
        if not connected.whole or parts_in is None or parts_out is None:
            return None
        # Ciphertexts and positions are sums over the axes, and so are blocks and distances.
        blocks: Blocks = {(0, 0): np.zeros(1, dtype=np.int64)}
        for (index_in, index_out), part_in, part_out in reversed(
            list(zip(connected.axes, parts_in, parts_out, strict=True))
        ):
            (block_in, at_in), (block_out, at_out) = (
                [table[index] for table in part] for part, index in ((part_in, index_in), (part_out, index_out))
            )
            apart, block = (at_in - at_out) % modulus, block_out * layout.ciphertexts + block_in
            added: dict[tuple[int, int], list[Array]] = {}
            for number in np.unique(block).tolist():
                o, i = divmod(number, layout.ciphertexts)
                distances = distinct(apart[block == number], modulus)
                for (more_o, more_i), others in blocks.items():
                    added.setdefault((o + more_o, i + more_i), []).append(_sums(others, distances, modulus))
            blocks = {
                key: found[0] if len(found) == 1 else distinct(np.concatenate(found), modulus)
                for key, found in added.items()
            }
        return {key: blocks[key] for key in sorted(blocks)}

    def _by_entries(self, matrix: Matrix, layout: Layout, out: Layout, modulus: int) -> Blocks:
        matrix = matrix.sparse()
        places_in, places_out = layout.places(), out.places()
        rows = np.repeat(places_out, np.diff(matrix.indptr))
        columns = places_in[matrix.indices]
        count = layout.ciphertexts
        key = (columns - rows) % modulus
        if count > 1 or out.ciphertexts > 1:
            key += (rows // out.period * count + columns // layout.period) * modulus
        there = np.flatnonzero(np.bincount(key))
        block = there // modulus
        return {divmod(int(number), count): there[block == number] % modulus for number in np.unique(block)}


def _of_entries(matrix: SparseMatrix, shape: tuple[int, ...], out_shape: tuple[int, ...]) -> _Connections:
    """The connections of a matrix between tensors of channels, rows and columns."""
    shapes = (shape, out_shape)
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))
    axes, combinations = [], 1
    inner = [each[1] * each[2] for each in shapes], [each[2] for each in shapes], [1, 1]
    for axis, (step_in, step_out) in enumerate(inner):
        size_in, size_out = shapes[0][axis], shapes[1][axis]
        index_in = np.arange(matrix.shape[1], dtype=np.int64) // step_in % size_in
        index_out = np.arange(matrix.shape[0], dtype=np.int64) // step_out % size_out * size_in
        there = np.zeros(size_in * size_out, dtype=bool)
        there[index_in[matrix.indices] + index_out[rows]] = True
        pairs = np.flatnonzero(there)
        combinations *= pairs.size
        axes.append((pairs % size_in, pairs // size_in))
    return _Connections(tuple(axes), combinations == matrix.data.size)


def _of_kernel(matrix: KroneckerMatrix, shape: tuple[int, ...], out_shape: tuple[int, ...]) -> _Connections:
    """The connections of a matrix in Kronecker form with these channels."""
    there = (matrix.weights != 0).any(axis=0)
    channel_out, channel_in = np.nonzero(there)
    axes = [(channel_in, channel_out)]
    combinations = channel_in.size
    places = [
        (each.indices.astype(np.int64), np.repeat(np.arange(each.shape[0]), np.diff(each.indptr)))
        for each in matrix.places
    ]
    place_in, place_out = (np.concatenate(column) for column in zip(*places, strict=True))
    for step_in, step_out, size_in, size_out in (
        (shape[2], out_shape[2], shape[1], out_shape[1]),
        (1, 1, shape[2], out_shape[2]),
    ):
        pairs = distinct(place_out // step_out % size_out * size_in + place_in // step_in % size_in, size_in * size_out)
        combinations *= pairs.size
        axes.append((pairs % size_in, pairs // size_in))
    return _Connections(tuple(axes), combinations == matrix.nnz)


def distinct(values: Array, modulus: int) -> Array:
    """The distinct ones of values in [0, modulus), rising; many values go through a table, faster than sorting."""
    if values.size * 16 < modulus:
        return np.unique(values)
    there = np.zeros(modulus, dtype=bool)
    there[values] = True
    return np.flatnonzero(there)


def _sums(a: Array, b: Array, modulus: int) -> Array:
    return distinct(((a[:, np.newaxis] + b) % modulus).reshape(-1), modulus)
