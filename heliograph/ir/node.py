"""Nodes, constants and stages: the parts of programs."""

from __future__ import annotations

import enum
import functools
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from heliograph.errors import InternalError
from heliograph.ir.location import UNKNOWN, Location
from heliograph.ir.types import TensorType, Type


class Stage(str, enum.Enum):
    """How far a program has been lowered; each stage has its own contract in `ir/verify.py`."""

    TENSOR = "tensor"
    POLYNOMIAL = "polynomial"
    PACKED = "packed"
    MANAGED = "managed"
    EXECUTABLE = "executable"

    @property
    def order(self) -> int:
        return list(Stage).index(self)


class ConstantName(str):
    """An attribute that names an entry of `Program.constants`; printed as `@name`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"@{self!s}"


# A frozen record is one of those that `ir/ops/spec.py` names.
Attr: TypeAlias = "None | bool | int | float | str | ConstantName | tuple[Attr, ...] | Any"
Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation. Equality is identity: two nodes that look alike are still two values.

    `attrs` holds numbers, strings, tuples of these, frozen records, and names of constants; never arrays, modules or
    callables.
    """

    op: str
    inputs: tuple[Node, ...]
    attrs: Mapping[str, Any]
    type: Type
    loc: Location = UNKNOWN

    def __repr__(self) -> str:
        return f"<{self.op} : {self.type} at {self.loc}>"


def shape_of(node: Node) -> tuple[int, ...]:
    """The shape of a node whose value is a tensor; an InternalError for slot vectors and ciphertexts."""
    if not isinstance(node.type, TensorType):
        raise InternalError(f"{node!r} is not a tensor")
    return node.type.shape


def size_of(node: Node) -> int:
    """The number of elements of a node whose value is a tensor; an InternalError for slot vectors and ciphertexts."""
    return math.prod(shape_of(node))


def freeze_attrs(attrs: Mapping[str, Attr]) -> Mapping[str, Any]:
    """Attributes in name order, without those that are None, read-only."""
    return MappingProxyType({key: attrs[key] for key in sorted(attrs) if attrs[key] is not None})


class Distances(Protocol):
    """The entries of a matrix by the distance (column - row) modulo some number."""

    # The distances that have entries, ascending.
    distances: tuple[int, ...]

    # Approximately how many numbers it keeps in memory.
    held: int

    def edges(self, distance: int) -> tuple[int, int]:
        """The least and the greatest row of the entries at a distance."""

    def rows(self, distance: int) -> Array:
        """The rows of these entries; `columns` and `values` are in the same order."""

    def columns(self, distance: int) -> Array: ...

    def values(self, distance: int) -> Array: ...


class Matrix:
    """A matrix as a constant: a sparse one, or a smaller form of one (ir/maps/kronecker.py). Its arrays are read-only."""

    __slots__ = ()
    shape: tuple[int, int]
    # Its name in program texts.
    kind: ClassVar[str]

    @property
    def heading(self) -> str:
        """The description of the matrix apart from its arrays."""
        return str(self.shape)

    @property
    def nnz(self) -> int:
        """The number of entries that are not zero."""
        raise NotImplementedError

    @property
    def numbers(self) -> tuple[Array, ...]:
        """The arrays of the matrix."""
        raise NotImplementedError

    @property
    def effort(self) -> tuple[int, int]:
        """The effort of a product with one vector: (numbers held beside both vectors, operations)."""
        return 0, self.nnz

    def csr(self) -> Any:
        """As a `scipy.sparse.csr_array`."""
        raise NotImplementedError

    def sparse(self) -> SparseMatrix:
        """The same as a sparse matrix."""
        raise NotImplementedError

    def apply(self, x: Array) -> Array:
        """The map of each row: (samples, columns) to (samples, rows)."""
        raise NotImplementedError

    def absolute(self) -> Matrix:
        """The map with the absolute values of these entries."""
        raise NotImplementedError

    def times(self, factor: float) -> Matrix:
        raise NotImplementedError

    def scaled(self, rows: Array | None = None, columns: Array | None = None) -> Matrix:
        """Each row and each column times its factor."""
        raise NotImplementedError

    def by_distance(self, modulus: int) -> Distances:
        """The entries by distance."""
        return ListedDistances(self.sparse(), modulus)


@dataclass(frozen=True, slots=True)
class SparseMatrix(Matrix):
    """A sparse matrix as a constant: compressed rows, canonical (sorted columns, no explicit zero).

    Its arrays are read-only views of the arguments, which nobody may change from then on.
    """

    shape: tuple[int, int]
    data: Array
    indices: Array
    indptr: Array

    kind: ClassVar[str] = "sparse"

    def __post_init__(self) -> None:
        for name in ("data", "indices", "indptr"):
            view = getattr(self, name).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @staticmethod
    def of(matrix: Any) -> SparseMatrix:
        """From any argument of `scipy.sparse.csr_array`, which is not changed."""
        csr = scipy.sparse.csr_array(matrix, dtype=np.float64, copy=getattr(matrix, "format", "") == "csr")
        csr.sum_duplicates()
        csr.eliminate_zeros()
        csr.sort_indices()
        rows, cols = csr.shape
        return SparseMatrix((int(rows), int(cols)), csr.data, csr.indices.astype(np.int32), csr.indptr.astype(np.int32))

    @property
    def nnz(self) -> int:
        return int(self.data.size)

    @property
    def numbers(self) -> tuple[Array, ...]:
        return self.data, self.indices, self.indptr

    def sparse(self) -> SparseMatrix:
        return self

    def apply(self, x: Array) -> Array:
        return np.asarray((self.csr() @ x.T).T)

    def absolute(self) -> Matrix:
        return SparseMatrix(self.shape, np.abs(self.data), self.indices, self.indptr)

    def times(self, factor: float) -> Matrix:
        return SparseMatrix(self.shape, self.data * factor, self.indices, self.indptr)

    def scaled(self, rows: Array | None = None, columns: Array | None = None) -> Matrix:
        data = self.data
        if columns is not None:
            data = data * columns[self.indices]
        if rows is not None:
            data = data * np.repeat(rows, np.diff(self.indptr))
        return SparseMatrix(self.shape, data, self.indices, self.indptr)

    def csr(self) -> Any:
        return scipy.sparse.csr_array((self.data, self.indices, self.indptr), shape=self.shape)


class ListedDistances:
    """The entries of a sparse matrix by distance; they are sorted when one is read for the first time."""

    def __init__(self, matrix: SparseMatrix, modulus: int) -> None:
        self._matrix, self._modulus = matrix, modulus
        self._counts = np.bincount((matrix.indices - self._rows_of_entries()) % modulus)
        self.distances = tuple(np.flatnonzero(self._counts).tolist())
        self.held = matrix.nnz

    def _rows_of_entries(self) -> Array:
        return np.repeat(np.arange(self._matrix.shape[0], dtype=np.int32), np.diff(self._matrix.indptr))

    @functools.cached_property
    def _sorted(self) -> tuple[Array, Array, dict[int, slice]]:
        """The entries' indices and rows, in the order of their distances, and where each distance has its entries."""
        rows = self._rows_of_entries()
        distance = (self._matrix.indices - rows) % self._modulus
        # For 16-bit integers numpy uses a radix sort.
        order = np.argsort(distance.astype(np.uint16) if self._modulus <= 1 << 16 else distance, kind="stable")
        counts = self._counts[list(self.distances)]
        ends = np.cumsum(counts)
        slices = map(slice, (ends - counts).tolist(), ends.tolist())
        return order.astype(np.int32), rows[order], dict(zip(self.distances, slices, strict=True))

    def edges(self, distance: int) -> tuple[int, int]:
        rows = self.rows(distance)
        return int(rows.min()), int(rows.max())

    def rows(self, distance: int) -> Array:
        _, rows, slices = self._sorted
        return np.asarray(rows[slices[distance]])

    def columns(self, distance: int) -> Array:
        order, _, slices = self._sorted
        return np.asarray(self._matrix.indices[order[slices[distance]]])

    def values(self, distance: int) -> Array:
        order, _, slices = self._sorted
        return np.asarray(self._matrix.data[order[slices[distance]]])


@dataclass(frozen=True, slots=True)
class OpaqueConstant:
    """A constant with only its text form known: shape, kind and digest. It cannot be run."""

    kind: str
    shape: tuple[int, ...]
    digest: str


Constant: TypeAlias = "Array | Matrix | OpaqueConstant"


def constant_digest(constant: Constant) -> str:
    """SHA-256 over kind, shape and little-endian contents, in hexadecimal digits."""
    if isinstance(constant, OpaqueConstant):
        return constant.digest
    sha = hashlib.sha256()
    parts: tuple[Array, ...]
    if isinstance(constant, Matrix):
        sha.update(f"{constant.kind}{constant.heading}".encode())
        parts = constant.numbers
    else:
        sha.update(f"{constant.dtype.str}{constant.shape}".encode())
        parts = (constant,)
    for part in parts:
        sha.update(np.ascontiguousarray(part).data)
    return sha.hexdigest()


def live_nodes(outputs: tuple[Node, ...], inputs: tuple[Node, ...] = ()) -> tuple[Node, ...]:
    """The nodes that the outputs need, operands first, in a deterministic order; inputs stand first even if unused."""
    order: list[Node] = []
    seen: set[Node] = set()
    for start in (*inputs, *outputs):
        stack: list[tuple[Node, int]] = [(start, 0)]
        while stack:
            node, position = stack.pop()
            if node in seen:
                continue
            if position < len(node.inputs):
                stack.append((node, position + 1))
                stack.append((node.inputs[position], 0))
            else:
                seen.add(node)
                order.append(node)
    return tuple(order)


@functools.cache
def next_power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value`."""
    return 1 << max(0, value - 1).bit_length()
