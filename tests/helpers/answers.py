"""What the toy network answers, and how near an encrypted answer is to it."""

from __future__ import annotations

import numpy as np
from runtime.support import sample, toy_artifact

from heliograph.interpret import interpret

TOLERANCE = 1e-3


def expected(seed: int) -> np.ndarray:
    return np.asarray(interpret(toy_artifact().program, sample(seed)))
