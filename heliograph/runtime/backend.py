"""The interface between a server and a backend: keys, reading and writing ciphertexts, evaluators for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from heliograph.execution.evaluator import Evaluator
from heliograph.files import Bytes
from heliograph.ir import Array, CipherType, Node, Program
from heliograph.runtime.keyloader import KeyLoader
from heliograph.runtime.wire.keyfolder import KeyFolder
from heliograph.runtime.wire.messages import CarriedValues, EncryptedInput, EvaluationKeys

NATIVE, OPENFHE = "native", "openfhe"
# The forms in which a client sends keys, and values.
SentKeys = EvaluationKeys | KeyFolder
SentValues = EncryptedInput | CarriedValues


class ServerEvaluator(Evaluator[Any]):
    """An evaluator of a program on a backend's ciphertexts, with access to their residues."""

    def prepare(self) -> None:
        """Do the setup that the first evaluation would wait for; later calls cost nothing."""

    def example(self, level: int) -> Any:
        """A meaningless ciphertext at this level, for timing operations."""
        raise NotImplementedError

    def residues(self, x: Any) -> Array:
        """The residues of a ciphertext of two or three parts: (parts, level + 1, N), in evaluation form."""
        raise NotImplementedError

    def add_vector(self, x: Any, values: Array, kind: CipherType) -> Any:
        """A ciphertext of type `kind` plus a vector; not counted among the program's calls."""
        part = self.part(kind.chain)
        return part.add_plain(x, part.encode(values, kind.log_scale, kind.level, x))


class Backend(Protocol):
    """One server's keys on a backend.

    `loader` loads keys on demand; it is None if all keys stay in memory. `release` frees everything outside of Python's
    own memory. It must not refer to the backend itself, so that the garbage collector can call it.
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
        """A context in which the keys stay in place, for the time of an evaluation."""
        ...

    def read(self, message: SentValues, node: Node, name: str) -> Any:
        """One input ciphertext from a client's message, checked; a WireError if it does not fit the node."""
        ...

    def written(self, values: Mapping[str, tuple[Any, int]]) -> dict[str, Bytes]:
        """The wire form of two-part ciphertexts; `values` maps a name to (ciphertext, level)."""
        ...
