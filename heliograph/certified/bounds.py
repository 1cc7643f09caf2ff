"""The range and the gap that a certificate relies on, and bounds on how often inputs violate them.

Phoenix (appendix A.1) takes the range of the logits from attacked training inputs with noise, plus a margin, and bounds
the rates with held-out inputs (section 7.2). We count an input as too near to ties unless its copies show that at most
a share zeta of all noise is, with an error that is part of the bound. Phoenix only takes the share among the drawn
copies, whatever their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heliograph import rounding
from heliograph.certified.certificate import Certificate
from heliograph.certified.sampling import Sampler, gradient_of, run_watched
from heliograph.certified.smooth import Range
from heliograph.certified.statistics import most_seen
from heliograph.compiler.reporting.held_out import CONFIDENCE, rate_bound
from heliograph.errors import ProgramError
from heliograph.ir import Array, Program

# As in Phoenix: two attacks of 100 steps on the inputs with the 50 largest, the 50 smallest and the 100 most spread logits,
# within four deviations of the noise. Each step is a fiftieth of a deviation.
_EXTREMES, _STEPS, _REACH, _STEP = 50, 100, 4.0, 0.02
_MARGIN = 0.1
# An input gets enough copies to show that the share stays below zeta: a share zeta of them is this many.
_AT_ZETA = 20
_ESCAPE = 1e-3
_MOST_TRAINING = 1000
_OF_ALLOWED = 0.75
# The share of training inputs that may have more copies near ties than allowed.
_NEAR_SHARE = 2e-3
# The share of training inputs that may be lost because the polynomials differ from the network.
_MOST_LOST = 0.1

Progress = Callable[[str, int, int], None]


def attacked(program: Program, inputs: Array, certificate: Certificate) -> Array:
    """The extreme inputs, pushed to larger and to smaller logits: projected gradient steps in l2 (Madry et al. 2018)."""
    import torch

    logits, _ = run_watched(program, inputs)
    top, bottom = logits.max(axis=1), logits.min(axis=1)
    chosen = np.unique(
        np.concatenate(
            [np.argsort(-top)[:_EXTREMES], np.argsort(bottom)[:_EXTREMES], np.argsort(bottom - top)[: 2 * _EXTREMES]]
        )
    )
    module = gradient_of(program)
    deviation = float(np.sqrt(np.mean(certificate.deviations(inputs.shape[1:]) ** 2)))
    start = torch.from_numpy(inputs[chosen].astype(np.float32))
    found = []
    for sign in (1.0, -1.0):
        moved = torch.zeros_like(start)
        for _ in range(_STEPS):
            moved.requires_grad_(True)
            out = module(start + moved)
            (gradient,) = torch.autograd.grad(sign * (sign * out).max(dim=1).values.sum(), moved)
            flat = (sign * gradient).flatten(1)
            step = flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-12)
            moved = moved.detach() + _STEP * deviation * step.view_as(moved)
            size = moved.flatten(1).norm(dim=1).clamp_min(1e-12)
            shrink = (_REACH * deviation / size).clamp_max(1.0)
            moved = moved * shrink.view(-1, *([1] * (moved.dim() - 1)))
        found.append((start + moved.detach()).double().numpy())
    return np.concatenate(found)


def range_of(sampler: Sampler, program: Program, training: Array, progress: Progress | None = None) -> Range:
    """The range of the logits from attacked training inputs, and a difference below which few copies fall.

    Phoenix bounds all logits by one interval; only the distance between the logits of one copy matters (appendix A.3).
    """
    certificate = sampler.certificate
    pushed = attacked(program, training, certificate)
    spread = 0.0
    for number, x in enumerate(pushed):
        found = sampler(x, certificate.n)
        spread = max(spread, float(found.spread.max()))
        if progress is not None:
            progress("range of the logits", number + 1, len(pushed))
    if not math.isfinite(spread):
        raise ProgramError(
            "the logits of training inputs that were attacked overflow",
            why="a polynomial's input left its interval by far",
            hint="train the network with noise (heliograph.certified.train), or give more calibration samples",
        )
    return Range(rounding.upward((1.0 + _MARGIN) * spread), _difference(sampler, training, progress))


def _difference(sampler: Sampler, training: Array, progress: Progress | None) -> float:
    """A difference such that for hardly any training input more than the allowed share of copies fall below it."""
    # Slightly fewer than the test on held-out inputs allows.
    copies, allowed = _copies(sampler.certificate)
    inputs = training[:: max(1, len(training) // _MOST_TRAINING)][:_MOST_TRAINING]
    smallest = []
    for number, x in enumerate(inputs):
        behind = np.sort(sampler(x, copies).behind, axis=0)
        smallest.append(float(behind[int(_OF_ALLOWED * allowed)].min()))
        if progress is not None:
            progress("difference of the logits", number + 1, len(inputs))
    # If the polynomials predict another class than the network for too many copies, no difference helps. Such inputs are
    # counted like inputs too close to ties.
    told = np.sort([each for each in smallest if each > 0.0])
    if len(told) < (1.0 - _MOST_LOST) * len(smallest):
        raise ProgramError(
            f"of {len(smallest) - len(told)} of {len(smallest)} training inputs more copies than zeta allows are classified "
            "differently by the polynomials, or tie",
            hint="a higher degree, or a larger zeta",
        )
    found = float(told[int(_NEAR_SHARE * len(told))])
    return 1.0 / rounding.upward(1.0 / found)


def _copies(certificate: Certificate) -> tuple[int, int]:
    """The number of copies of a held-out input that are checked, and how many of them may be too near to a tie."""
    copies = max(certificate.n + certificate.n0, math.ceil(_AT_ZETA / certificate.zeta) if certificate.zeta else 1000)
    return copies, max(0, most_seen(copies, certificate.zeta, _ESCAPE)) if certificate.zeta else 0


@dataclass(frozen=True, slots=True)
class Rates:
    """How often held-out inputs left the range or were too near to ties, and bounds on these rates."""

    held_out: int
    left: int
    near: int
    beta_range: float
    beta_difference: float

    @property
    def confidence(self) -> float:
        """The confidence of both bounds together; each has `CONFIDENCE`."""
        return 1.0 - 2.0 * (1.0 - CONFIDENCE)


def rates(sampler: Sampler, limits: Range, held_out: Array, progress: Progress | None = None) -> Rates:
    """Bounds on the rates for the range and the difference `limits.gap`, from held-out inputs.

    An input leaves the range if any of a run's number of copies does: its logits are further apart than the spread, or
    a polynomial's input is beyond its interval. A copy fails a class that the network does not choose if the class's
    evaluated logit is less than the gap behind the largest, because the copy may then count for it. (A chosen class
    with a close rival may count for less; that costs votes but does no harm.) Inputs that fail some class with more
    than a share zeta of their noise pass undetected with a probability of at most 0.001, by which the bound is raised.
    """
    certificate = sampler.certificate
    copies, allowed = _copies(certificate)
    run = certificate.n + certificate.n0
    left = near = 0
    for number, x in enumerate(held_out):
        found = sampler(x, copies)
        left += bool(found.left[:run].any() or not (found.spread[:run] <= limits.spread).all())
        near += int((~(found.behind >= limits.gap)).sum(axis=0).max()) > allowed
        if progress is not None:
            progress("held-out inputs", number + 1, len(held_out))
    count = len(held_out)
    return Rates(
        count,
        left,
        near,
        rate_bound(left, count),
        min(1.0, rate_bound(near, count) / (1.0 - _ESCAPE)),
    )
