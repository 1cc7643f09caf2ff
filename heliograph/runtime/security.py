"""The check that a ring has the required security, in one place for clients and servers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.public import PublicArtifact
from heliograph.ckks.ring import Ring
from heliograph.errors import InsecureWarning, SecurityError, said

REQUIRED_BITS = 128


def weakness(rings: Iterable[Ring]) -> str:
    """The reason why keys on these rings do not have 128 bits of security; an empty text if they do.

    A ring's own claim does not count: its modulus and its bootstraps' sparse secret are compared with the tables
    (`heliograph/ckks/security.py`).
    """
    for ring in rings:
        if ring.security_bits is None:
            return said("it was compiled without security ({security_bits=None})")
        if ring.security_bits < REQUIRED_BITS:
            return f"it was compiled for {ring.security_bits} bits, and {REQUIRED_BITS} are asked for"
        if why := ring.weakness:
            return f"it claims {ring.security_bits} bits, but {why}"
    return ""


def artifact_weakness(artifact: Artifact | PublicArtifact) -> str:
    """The weakness of an artifact: of its ring, and of the rings of all its evaluation keys."""
    return weakness((artifact.ring, *(key.ring for key in artifact.evaluation_keys)))


def require_security(artifact: Artifact | PublicArtifact, *, allow_insecure: bool, for_whom: str) -> None:
    """Raise a SecurityError for an artifact without 128 bits of security; with `allow_insecure` warn instead."""
    why = artifact_weakness(artifact)
    if not why:
        return
    name = artifact.name[:80]
    if not allow_insecure:
        raise SecurityError(
            f"artifact {name!r} has no security: anyone who sees the ciphertexts or evaluation keys can read everything",
            where=for_whom,
            why=why,
            hint=said(
                "use one that was compiled {with security_bits=128|without --insecure}; for a test without secrets, "
                "{allow_insecure=True (on the command line --insecure)|--insecure}"
            ),
        )
    warnings.warn(
        f"artifact {name!r} has no security, what is encrypted for it can be read by everyone: {why}",
        InsecureWarning,
        stacklevel=3,
    )
