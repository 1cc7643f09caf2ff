"""What a server needs of a backend: keys in their place, ciphertexts in and out, an evaluator for each part of a program."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from heliograph.artifact.artifact import Artifact
from heliograph.errors import ProgramError
from heliograph.execution.evaluator import Evaluator
from heliograph.ir import Array, CipherType, Node, Program
from heliograph.ir.bootstraps import slots_by_chain
from heliograph.runtime.keyfolder import KeyFolder
from heliograph.runtime.keyloader import KeyLoader
from heliograph.runtime.messages import CarriedValues, EncryptedInput, EvaluationKeys

NATIVE, OPENFHE = "native", "openfhe"
# The encoded plaintexts that are kept between runs, by default.
DEFAULT_CACHE_BYTES = 1 << 30
# What a client sends of keys, and of values.
SentKeys = EvaluationKeys | KeyFolder
SentValues = EncryptedInput | CarriedValues


class ServerEvaluator(Evaluator[Any]):
    """A program on a backend's ciphertexts, and how those come out of it."""

    def prepare(self) -> None:
        """Make ready what the first evaluation would wait for; later calls cost nothing."""

    def example(self, level: int) -> Any:
        """A ciphertext of that level, of no meaning, for timing operations."""
        raise NotImplementedError

    def released(self, x: Any, log_scale: float, tag: str) -> Any:
        """Any value of an evaluation as OpenFHE's ciphertext of the whole chain under the key named `tag`, for its owner.

        `log_scale` is its true scale.
        """
        raise NotImplementedError

    def add_vector(self, x: Any, values: Array, kind: CipherType) -> Any:
        """The ciphertext of that type plus a vector; not one of the program's calls."""
        part = self.part(kind.chain)
        return part.add_plain(x, part.encode(values, kind.log_scale, kind.level, x))


class Backend(Protocol):
    """One server's keys on a backend. `loader` loads them by need, None where all of them stay.

    `release` lets go of everything outside of Python's own memory; it must not hold the backend itself, so that the garbage
    collector may call it.
    """

    @property
    def name(self) -> str: ...

    @property
    def loader(self) -> KeyLoader | None: ...

    @property
    def release(self) -> Callable[[], None]: ...

    def evaluator(self, program: Program, cache_bytes: int) -> ServerEvaluator:
        """The evaluator of the artifact's program, or of a part of it."""
        ...

    def using(self) -> AbstractContextManager[None]:
        """While something is evaluated: the keys stay in their place."""
        ...

    def read(self, message: SentValues, node: Node, name: str, evaluator: ServerEvaluator) -> Any:
        """One input ciphertext from a client's message, checked; a WireError where it is not what the node asks for."""
        ...

    def written(self, values: Mapping[str, tuple[Any, int]]) -> dict[str, dict[str, Any]]:
        """Ciphertexts of two parts, each with its level, as the arguments `live` or `blobs` of a message to the client."""
        ...


def make_backend(asked: str | None, artifact: Artifact, keys: SentKeys, key_bytes: int | None) -> Backend:
    """The backend of that name, or the best that can run the artifact; `key_bytes` bounds the keys in memory.

    Raises ProgramError for one that is not there or cannot run it.
    """
    bootstraps = any(slots_by_chain(artifact.program))
    name = asked or (NATIVE if importlib.util.find_spec("numba") and not bootstraps else OPENFHE)
    if name == OPENFHE:
        from heliograph.runtime.openfhe.backend import OpenFHEBackend

        return OpenFHEBackend(artifact, keys, key_bytes)
    if name != NATIVE:
        raise ProgramError(
            f"there is no backend {asked!r}", where="Server(backend=...)", why=f"{NATIVE} and {OPENFHE} are"
        )
    if bootstraps:
        raise ProgramError(
            "the native backend does not bootstrap yet", where="Server(backend=...)", hint=f"take {OPENFHE!r}, or None"
        )
    if importlib.util.find_spec("numba") is None:
        raise ProgramError(
            "the native backend needs numba, which is not installed",
            where="Server(backend=...)",
            hint="pip install numba",
        )
    from heliograph.runtime.native.backend import NativeBackend

    return NativeBackend(artifact, keys, key_bytes)
