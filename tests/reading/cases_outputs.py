"""Outputs: logarithms of sums of exponentials, whatever the size of the scores, and outputs that are large."""

from __future__ import annotations

import torch
from reading import Case, Fn, randn

# Twice what encryption may add, by the usual precision.
PRECISION = 2.0**-9
_W = torch.tensor([1.0, -2.0, 3.0, -1.0])


def _large(factor: float, offset: float = 0.0) -> Fn:
    return Fn(lambda x: x @ _W * factor + offset)


CASES: tuple[Case, ...] = (
    Case(
        "logsumexp of scores to 100",
        "F18",
        lambda: Fn(lambda x: torch.logsumexp(30 * x, 1)),
        lambda: randn(64, 4),
        right=(-7.51328,),
        compiled=0.07,
    ),
    Case(
        "logsumexp that keeps its axis, of an odd number of scores to 60",
        "F18",
        lambda: Fn(lambda x: torch.logsumexp(x, 1, keepdim=True)),
        lambda: randn(64, 5) * 20,
        right=(16.97421,),
        compiled=0.03,
    ),
    Case(
        "logsumexp over two axes",
        "F18",
        lambda: Fn(lambda x: torch.logsumexp(x, (1, 2))),
        lambda: randn(64, 2, 3) * 10,
        right=(8.67664,),
        compiled=0.03,
    ),
    Case(
        "logsumexp of one score",
        "F18",
        lambda: Fn(lambda x: torch.logsumexp(x, 1)),
        lambda: randn(64, 1) * 10,
        right=(-11.2584,),
        compiled=1e-4,
    ),
    Case(
        "logsumexp of scores around 200",
        "F18",
        lambda: Fn(lambda x: torch.logsumexp(x, 1)),
        lambda: randn(64, 4) + 200,
        right=(200.72591,),
        compiled=PRECISION,
    ),
    Case(
        "logsumexp of small scores",
        "F18",
        lambda: Fn(lambda x: torch.logsumexp(x, 1)),
        lambda: randn(64, 7),
        right=(1.96431,),
        compiled=PRECISION,
    ),
    Case(
        "log_softmax that is not at the end, of scores to 45",
        "F18",
        lambda: Fn(lambda x: torch.log_softmax(x * 15, 1) * 2),
        lambda: randn(64, 4),
        right=(-26.38184, -27.17745, -0.124, -5.62301),
        compiled=0.03,
    ),
    Case(
        "the loss of one class",
        "F18",
        lambda: Fn(lambda x: -torch.log_softmax(x * 15, -1)[:, 2]),
        lambda: randn(64, 4),
        right=(0.062,),
        compiled=0.03,
    ),
    Case(
        "outputs to a hundred million",
        "F18",
        lambda: _large(1e7),
        lambda: randn(64, 4),
        # Worked out by torch, as the next.
        right=(8610237.0,),
        compiled=PRECISION,
    ),
    Case(
        "outputs to three hundred million, far from zero",
        "F18",
        lambda: _large(1e7, 3e8),
        lambda: randn(64, 4),
        right=(3e8 + 8610237.0,),
        compiled=PRECISION,
    ),
    Case(
        "the same, divided by the model",
        "F18",
        lambda: _large(1e7 / 2**28, 3e8 / 2**28),
        lambda: randn(64, 4),
        right=((3e8 + 8610237.0) / 2**28,),
        compiled=1e-4,
    ),
)
