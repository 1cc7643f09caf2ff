"""What the compiler makes of a softmax: the lowered program, to be evaluated in the clear and counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import front_passes
from heliograph.interpret import interpret_batch
from heliograph.ir import Array, Builder, Stage
from heliograph.ir.analysis.depth import program_depth


def lowered_softmax(
    columns: int, limit: float, method: str, max_error: float, rows: int
) -> tuple[int, Callable[[Array], Array]]:
    """The depth of the lowered softmax, and its value on (rows, columns); fewer rows are padded."""
    builder = Builder("softmax", Stage.TENSOR)
    x = builder.input("x", shape=(columns, rows), low=-limit, high=limit)
    source = builder.finish({"y": builder.op("softmax", (x,), axis=0, method=method)})
    program = front_passes(source, Options(target_error=max_error))[-1].program

    def evaluate(values: Array) -> Array:
        padded = np.zeros((rows, columns))
        padded[: len(values)] = values
        return np.asarray(interpret_batch(program, padded.T[np.newaxis])[0][0].T[: len(values)])

    return program_depth(program), evaluate
