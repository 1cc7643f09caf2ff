"""Observe the range of every value on the calibration samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heliograph.errors import ProgramError
from heliograph.interpret import run_nodes
from heliograph.ir import Array, Node, Program

_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Observed:
    """What the samples showed of one value: extremes, mean and standard deviation over all elements."""

    low: float
    high: float
    mean: float
    std: float
    samples: int


@dataclass(frozen=True, slots=True)
class Calibrate:
    """Run the program on its calibration samples; an empty table where it has none.

    Ranges are not widened here; `Approximate.margin` does that where it uses them.
    """

    name: ClassVar[str] = "calibrate"

    def run(self, program: Program) -> Mapping[Node, Observed]:
        if not program.calibration:
            return {}
        count = int(program.calibration[0].shape[0])
        low: dict[Node, float] = {}
        high: dict[Node, float] = {}
        total: dict[Node, float] = {}
        squares: dict[Node, float] = {}
        size: dict[Node, int] = {}

        def observe(node: Node, value: Array) -> None:
            if not np.isfinite(value).all():
                raise ProgramError(
                    f"{node.op} gives NaN or infinity on a calibration sample", where=node.loc, hint="check the samples"
                )
            low[node] = min(low.get(node, math.inf), float(value.min(initial=math.inf)))
            high[node] = max(high.get(node, -math.inf), float(value.max(initial=-math.inf)))
            total[node] = total.get(node, 0.0) + float(value.sum())
            squares[node] = squares.get(node, 0.0) + float(np.square(value).sum())
            size[node] = size.get(node, 0) + value.size

        for start in range(0, count, _CHUNK):
            chunk = [samples[start : start + _CHUNK] for samples in program.calibration]
            run_nodes(program, dict(zip(program.inputs, chunk, strict=True)), observe)
        table = {}
        for node in low:
            mean = total[node] / size[node]
            variance = max(0.0, squares[node] / size[node] - mean * mean)
            table[node] = Observed(low[node], high[node], mean, math.sqrt(variance), count)
        return table
