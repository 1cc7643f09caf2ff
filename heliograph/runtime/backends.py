"""The backends by name, and which one a server takes where none is named."""

from __future__ import annotations

import importlib.util

from heliograph.artifact.artifact import Artifact
from heliograph.errors import ProgramError
from heliograph.runtime.backend import NATIVE, OPENFHE, Backend, SentKeys
from heliograph.runtime.openfhe.backend import OpenFHEBackend


def make_backend(asked: str | None, artifact: Artifact, keys: SentKeys, key_bytes: int | None) -> Backend:
    """The backend of that name, or the native one where numba is installed; `key_bytes` bounds the keys in memory.

    Raises ProgramError for one that is not there, or that cannot run the program.
    """
    ours = artifact.ring.bootstrap is not None and artifact.ring.bootstrap_by == NATIVE
    name = asked or (NATIVE if ours or importlib.util.find_spec("numba") else OPENFHE)
    if name == OPENFHE:
        if ours:
            raise ProgramError(
                f"{artifact.program.name!r} was compiled for the native backend's bootstraps",
                where="Server(backend=...)",
                why="OpenFHE has none for its chain",
                hint='compile it with Options(bootstrap_by="openfhe"), for chains on which both run',
            )
        return OpenFHEBackend(artifact, keys, key_bytes)
    if name != NATIVE:
        raise ProgramError(
            f"there is no backend {asked!r}", where="Server(backend=...)", why=f"{NATIVE} and {OPENFHE} are"
        )
    if importlib.util.find_spec("numba") is None:
        raise ProgramError(
            "the native backend needs numba, which is not installed",
            where="Server(backend=...)",
            hint="pip install numba",
        )
    # numba takes a second and a hundred megabytes: it is loaded where it is used.
    from heliograph.runtime.native.backend import NativeBackend

    return NativeBackend(artifact, keys, key_bytes)
