"""The client's reading of a certified program's decrypted answer: a class, and whether it is certified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.public import PublicArtifact
from heliograph.errors import ProgramError, said
from heliograph.report.figures import CERTIFIED_KINDS, Certified, radius_of

# If an output is further than this from an integer, some value left its range.
_NEAR_WHOLE = 0.4


@dataclass(frozen=True, slots=True)
class Answer:
    """The class with the largest mean of noisy logits, its votes, and whether it is certified.

    If it is certified, no change of the input within `radius` changes the class of the smoothed network, except with a
    probability of at most `error` (xi), which covers sampling, inputs outside the ranges and our approximations. If it
    is not certified, the network abstains. `withdrawn` says why an answer cannot be read: a value left its range, or
    the guess was a tie.
    """

    label: int | None
    votes: int | None
    certified: bool
    certificate: Certified
    withdrawn: str = ""

    @property
    def radius(self) -> float:
        """How far the input may be changed; 0 if nothing is certified."""
        return self.certificate.radius if self.certified else 0.0

    @property
    def error(self) -> float:
        """The probability that a certified answer is wrong."""
        return self.certificate.xi

    @property
    def widest_radius(self) -> float:
        """The radius that these votes show, with the same error: at least `radius` (Cohen et al. 2019, section 3.2.2)."""
        if not self.certified or self.votes is None:
            return 0.0
        known = self.certificate
        share = share_shown(self.votes, known.n, known.alpha) - known.zeta
        return max(self.radius, radius_of(known.kind, known.deviation, share))

    def __str__(self) -> str:
        if self.withdrawn:
            return f"no answer: {self.withdrawn}"
        unit = CERTIFIED_KINDS[self.certificate.kind]
        if self.certified:
            return f"class {self.label}, certified within {self.radius:.3g} {unit} (error at most {self.error:.2g})"
        return f"abstained: {self.votes} of {self.certificate.n} votes for class {self.label}"


def share_shown(votes: int, n: int, alpha: float) -> float:
    """The share of all noise that this many votes of n show, with an error of alpha (Clopper and Pearson)."""
    return float(scipy.special.betaincinv(votes, n - votes + 1, alpha)) if votes else 0.0


def certificate_of(artifact: Artifact | PublicArtifact) -> Certified:
    """The certificate of an artifact's answers; a ProgramError if the artifact has none."""
    found = artifact.public().certificate
    if found is None:
        raise ProgramError(
            f"{artifact.name!r} certifies nothing", hint=said("compile it with {hg.certify|heliograph certify}")
        )
    return found


def read_answer(artifact: Artifact | PublicArtifact, decrypted: Any) -> Answer:
    """The answer in the decrypted output of a certified program, (classes,).

    It has (votes - (target - 1)) at the guessed class and 0 elsewhere. If it differs from this by more than the error
    of encryption, a value left its range, or two classes tied for the guess; then nothing is certified.
    """
    known = certificate_of(artifact)
    values = np.asarray(decrypted, dtype=np.float64)
    if values.ndim != 1:
        raise ProgramError(f"an answer has one number for each class, not shape {values.shape}")
    if not np.isfinite(values).all():
        return _withdrawn(known, "a value overflowed on the way: the input left the ranges of the program")
    whole = np.rint(values)
    if (np.abs(values - whole) > _NEAR_WHOLE).any() or np.count_nonzero(whole) > 1:
        return _withdrawn(known, "the guess is not a single class, or the input left the ranges of the program")
    label = int(np.abs(whole).argmax())
    votes = int(whole[label]) + known.target - 1
    if not 0 <= votes <= known.n:
        return _withdrawn(known, f"it counts {votes} of {known.n} votes: the input left the ranges of the program")
    if not whole.any():
        # The count is one below the target, and nothing says which class the votes are for.
        return Answer(None, known.target - 1, False, known)
    return Answer(label, votes, votes >= known.target, known)


def _withdrawn(known: Certified, why: str) -> Answer:
    return Answer(None, None, False, known, why)
