"""The folder of encoded plaintexts that workers share, checked before workers start."""

from __future__ import annotations

from pathlib import Path

from heliograph.artifact.artifact import Artifact
from heliograph.runtime.native.plaintext_file import PlaintextFile
from heliograph.runtime.server.backends import refuse_plaintexts


def require_plaintexts(folder: Path, backend: str | None, artifact: Artifact) -> None:
    """Create a folder in which servers of the artifact can keep plaintexts.

    Raises ProgramError if the artifact's backend keeps none in files, WireError if the folder cannot hold them.
    """
    refuse_plaintexts(backend, "--plaintexts")
    PlaintextFile.of(folder, artifact.fingerprint)
