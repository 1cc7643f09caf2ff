"""Maps that take each element from one place, as sparse matrices: moves, repetitions and omissions of elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from heliograph.ir.node import Array


def gather_matrix(index: Array, columns: int, weights: Array | None = None) -> Any:
    """The sparse matrix (index.size, columns) whose result i is operand `index[i]`, times `weights[i]`; -1 gives zero.

    `index` may have any shape: rows are its elements in row-major order.
    """
    flat = np.asarray(index).ravel()
    rows = np.flatnonzero(flat >= 0)
    data = np.ones(rows.size) if weights is None else weights.ravel()[rows]
    return scipy.sparse.csr_array((data, (rows, flat[rows])), shape=(flat.size, columns))
