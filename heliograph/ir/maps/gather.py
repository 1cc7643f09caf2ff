"""Maps that take each element from one place, as sparse matrices: moves, repetitions and omissions of elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from heliograph.ir.maps.kronecker import moved
from heliograph.ir.node import Array


def gather_matrix(index: Array, columns: int, weights: Array | None = None) -> Any:
    """The sparse matrix (index.size, columns) whose result i is operand `index[i]`, times `weights[i]`; -1 gives zero.

    `index` may have any shape: rows are its elements in row-major order.
    """
    flat = np.asarray(index).ravel()
    rows = np.flatnonzero(flat >= 0)
    data = np.ones(rows.size) if weights is None else weights.ravel()[rows]
    return scipy.sparse.csr_array((data, (rows, flat[rows])), shape=(flat.size, columns))


def gather_map(index: Array, shape: Sequence[int], out_shape: Sequence[int]) -> Any:
    """The same for a tensor of that shape; in the small form if it moves channels and places independently."""
    columns = math.prod(shape)
    flat = np.asarray(index).ravel()
    if flat.size == columns and (flat == np.arange(columns)).all():
        return gather_matrix(flat, columns)
    found = moved(flat, shape, out_shape)
    return gather_matrix(flat, columns) if found is None else found
