"""The backends by name, and the default backend of a server."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from heliograph.artifact.artifact import Artifact
from heliograph.errors import ProgramError
from heliograph.runtime.backend import NATIVE, OPENFHE, Backend, SentKeys


def backend_name(asked: str | None) -> str:
    """The requested backend; by default the native one if numba is installed, else OpenFHE."""
    return asked or (NATIVE if importlib.util.find_spec("numba") else OPENFHE)


def refuse_plaintexts(asked: str | None, where: str) -> None:
    """Raise a ProgramError if the backend of that name keeps no plaintexts in files."""
    if backend_name(asked) == OPENFHE:
        raise _in_memory("plaintexts", "kept in a file", where)


def loads_keys(asked: str | None, key_bytes: int | None) -> bool:
    """Whether the backend of that name can load keys on demand; a ProgramError if it cannot and a bound is given."""
    if backend_name(asked) == OPENFHE and key_bytes is not None:
        raise _in_memory("keys", "loaded by need", "Server(key_bytes=...)")
    return backend_name(asked) != OPENFHE


def _in_memory(what: str, cannot: str, where: str) -> ProgramError:
    return ProgramError(
        f"OpenFHE's {what} are objects in the memory of a process, and cannot be {cannot}",
        where=where,
        hint="take the native backend (pip install numba), or leave this out",
    )


def make_backend(
    asked: str | None,
    artifact: Artifact,
    keys: SentKeys,
    key_bytes: int | None,
    mapped: bool = False,
    plaintexts: str | Path | None = None,
) -> Backend:
    """The backend of that name; `key_bytes` bounds the keys in memory, and `mapped` ones are in a file (`Server`).

    Raises ProgramError for a backend that is not installed, or that cannot run the program or map keys.
    """
    name = backend_name(asked)
    if name == OPENFHE:
        if mapped:
            raise _in_memory("keys", "mapped", "Server(mapped=True)")
        if plaintexts is not None:
            refuse_plaintexts(asked, "Server(plaintexts=...)")
        # OpenFHE is an optional dependency, and its import takes half a second.
        from heliograph.runtime.openfhe.backend import OpenFHEBackend

        return OpenFHEBackend(artifact, keys)
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
    # Importing numba takes a second and a hundred megabytes, so it is imported only where it is used.
    from heliograph.runtime.native.backend import NativeBackend

    return NativeBackend(artifact, keys, key_bytes, mapped, plaintexts)
