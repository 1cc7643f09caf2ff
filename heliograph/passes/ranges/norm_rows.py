"""The sizes of the variances that layer norms divide by, row by row, on calibration samples.

A row has one mean and one variance: a token. The first token of a text may have a variance a hundred times that of all
others. Divided by its own size, each row needs an inverse root on a narrow interval only.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from heliograph.interpret import calibration_chunks, run_nodes
from heliograph.ir import Array, Node, Program

# So few samples suffice: a size need not hold all of them.
_SAMPLES = 64
# Rows whose sizes differ by less than this factor share an interval.
_APART = 2.0


def norm_rows(program: Program) -> Mapping[Node, Array]:
    """For each encrypted layer norm with rows of different sizes, the variance of each row: the geometric mean of the least
    and the greatest on the samples, in the shape of its means.
    """
    norms = {node for node in program.nodes if node.op == "layer_norm" and node.type.secret}
    operands = {node.inputs[0] for node in norms}
    if not norms or not program.calibration:
        return {}
    values: dict[Node, Array] = {}
    seen: dict[Node, tuple[Array, Array]] = {}

    def observe(node: Node, value: Array) -> None:
        if node in operands:
            values[node] = value
        if node in norms:
            axes = tuple(range(value.ndim - node.attrs["rank"], value.ndim))
            variance = values[node.inputs[0]].var(axis=axes, keepdims=True) + node.attrs["eps"]
            low, high = variance.min(axis=0), variance.max(axis=0)
            least, most = seen.get(node, (low, high))
            seen[node] = np.minimum(least, low), np.maximum(most, high)

    left = _SAMPLES
    for chunk in calibration_chunks(program):
        some = {node: samples[:left] for node, samples in chunk.items()}
        run_nodes(program, some, observe)
        values.clear()
        left -= len(next(iter(some.values())))
        if left <= 0:
            break
    sizes = {node: np.sqrt(least * most) for node, (least, most) in seen.items()}
    return {node: size for node, size in sizes.items() if size.min() > 0 and size.max() > _APART * size.min()}
