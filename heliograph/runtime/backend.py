"""What a server needs of a backend: keys in their place, ciphertexts in and out, an evaluator for each part of a program."""

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
    """A program on a backend's ciphertexts, and how those come out of it."""

    def prepare(self) -> None:
        """Make ready what the first evaluation would wait for; later calls cost nothing."""

    def example(self, level: int) -> Any:
        """A ciphertext of that level, of no meaning, for timing operations."""
        raise NotImplementedError

    def residues(self, x: Any) -> Array:
        """Any value of an evaluation, of two or three parts: (parts, level + 1, N), in evaluation."""
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

    def read(self, message: SentValues, node: Node, name: str) -> Any:
        """One input ciphertext from a client's message, checked; a WireError where it is not what the node asks for."""
        ...

    def written(self, values: Mapping[str, tuple[Any, int]]) -> dict[str, Bytes]:
        """Ciphertexts of two parts, each with its level, as they are sent to the client."""
        ...
