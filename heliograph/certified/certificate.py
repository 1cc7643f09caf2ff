"""The property to certify (robustness in l2 or l1, or individual fairness), and the required confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special

from heliograph.certified.statistics import target_count
from heliograph.errors import ProgramError
from heliograph.ir import Array
from heliograph.report.figures import CERTIFIED_KINDS, radius_of


@dataclass(frozen=True, slots=True)
class Certificate:
    """A smoothed classifier and its test (Cohen et al. 2019; Phoenix, section 6).

    `n` noisy copies of the input vote. The mean logits of `n0` others (a power of two) choose the class. It is
    certified if more than a share tau of all noise would vote for it, which the `n` votes show with an error of at most
    `alpha`.

        kind="l2": normal noise of deviation `sigma`; no change of the input shorter than sigma Phi^-1(tau - zeta) changes
            the class.
        kind="l1": noise uniform on [-eta, eta]; no change with an l1 norm below 2 eta (tau - zeta - 1/2) changes it.
        kind="fair": `theta` says, for each feature, how far apart two individuals must be to count as dissimilar; changes
            shorter than sqrt(1 / lipschitz), in features divided by theta, do not change the class. Noise is normal, with
            deviation theta times `scale`; by default `scale` is 1 and tau = Phi(sqrt(1 / lipschitz)) + zeta. If `tau` is
            given, the scale follows from it.

    `zeta` is the share of copies that may fail without harm: those closer to a tie than the argmax can resolve, or for
    which the polynomials differ from the network. It is subtracted from `tau` (Fischer et al. 2020, lemma 2). tau -
    zeta is above 1/2.

    Raises ProgramError if nothing can be certified, for instance because n is too small for alpha.
    """

    kind: str = "l2"
    sigma: float | None = None
    eta: float | None = None
    theta: Sequence[float] | None = None
    lipschitz: float = 1.0
    tau: float | None = None
    zeta: float = 0.01
    n: int = 128
    n0: int = 32
    alpha: float = 0.001

    def __post_init__(self) -> None:
        if self.kind not in CERTIFIED_KINDS:
            raise _refused(f"kind {self.kind!r}", "one of " + ", ".join(CERTIFIED_KINDS))
        own = {"l2": "sigma", "l1": "eta", "fair": "theta"}
        for kind, name in own.items():
            if (getattr(self, name) is None) == (kind == self.kind):
                needed = "needs" if kind == self.kind else "does not take"
                raise _refused(f"kind {self.kind!r} {needed} {name}")
        for name in ("sigma", "eta", "lipschitz"):
            value = getattr(self, name)
            if value is not None and not (_number(value) and 0 < value < math.inf):
                raise _refused(f"{name} {value!r}", "a number above 0")
        if self.theta is not None:
            theta = np.asarray(self.theta, dtype=np.float64)
            if theta.ndim != 1 or not theta.size or not (np.isfinite(theta) & (theta > 0)).all():
                raise _refused("theta", "a number above 0 for each feature")
            object.__setattr__(self, "theta", tuple(map(float, theta)))
        if not (_number(self.zeta) and 0 <= self.zeta < 0.5):
            raise _refused(f"zeta {self.zeta!r}", "from 0 to 1/2")
        for name in ("n", "n0"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 20:
                raise _refused(f"{name} {value!r}", "a whole number of copies")
        if self.n0 & (self.n0 - 1):
            raise _refused(f"n0 {self.n0}", "a power of two: their logits are added up by rotations")
        if not (_number(self.alpha) and 0 < self.alpha < 1):
            raise _refused(f"alpha {self.alpha!r}", "between 0 and 1")
        if self.tau is None and self.kind != "fair":
            raise _refused("tau", "the share of votes that is to be shown: 0.76 for a radius of 0.67 sigma")
        if self.tau is not None and not (_number(self.tau) and self.tau - self.zeta > 0.5 and self.tau < 1):
            raise _refused(f"tau {self.tau!r}", f"tau - zeta between 1/2 and {1 - self.zeta:g}")
        if self.threshold >= 1:
            raise _refused(f"lipschitz {self.lipschitz:g}", "a larger one, or tau")
        target_count(self.n, self.threshold, self.alpha)

    @property
    def threshold(self) -> float:
        """The share of votes that the test demonstrates, including zeta: the tau of the test."""
        if self.tau is not None:
            return self.tau
        return float(scipy.special.ndtr(math.sqrt(1.0 / self.lipschitz))) + self.zeta

    @property
    def scale(self) -> float:
        """The factor of theta that gives the deviation of the noise for fairness."""
        return math.sqrt(1.0 / self.lipschitz) / float(scipy.special.ndtri(self.threshold - self.zeta))

    @property
    def target(self) -> int:
        """The smallest count of votes that certifies."""
        return target_count(self.n, self.threshold, self.alpha)

    @property
    def radius(self) -> float:
        """How far an input may be changed: in l2 or l1, or, for fairness, in features divided by theta."""
        return self.radius_of(self.threshold - self.zeta)

    @property
    def deviation(self) -> float:
        """The factor of the drawn numbers; for fairness, in addition to theta."""
        for size in (self.sigma, self.eta):
            if size is not None:
                return size
        return self.scale

    def radius_of(self, share: float) -> float:
        """The radius if more than this share of all noise votes for the class."""
        return radius_of(self.kind, self.deviation, share)

    @property
    def drawn(self) -> str:
        """The distribution of the noise, before it is scaled."""
        return "uniform" if self.kind == "l1" else "normal"

    def deviations(self, shape: Sequence[int]) -> Array:
        """The factors of the drawn numbers, one for each element of an input of that shape."""
        if self.theta is None:
            return np.full(tuple(shape), self.deviation)
        if math.prod(shape) != len(self.theta):
            raise _refused(f"theta of {len(self.theta)} numbers", f"one for each of the {math.prod(shape)} features")
        return self.deviation * np.array(self.theta).reshape(tuple(shape))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _refused(what: str, hint: str = "") -> ProgramError:
    return ProgramError(f"a certificate cannot have {what}" if hint else f"a certificate of {what}", hint=hint)
