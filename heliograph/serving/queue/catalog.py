"""The artifacts of a server, with the figures of their bills about keys, inputs and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heliograph.array_files import read_by_name
from heliograph.artifact.artifact import Artifact
from heliograph.ckks.keys import EvaluationKey
from heliograph.errors import ProgramError, TooLittleMemoryError, said
from heliograph.execution.key_use import key_use
from heliograph.execution.memory import BASE_BYTES, PLAINTEXT_CACHE_BYTES, memory_bytes
from heliograph.runtime.security import require_security
from heliograph.runtime.server.server import given_inputs
from heliograph.runtime.wire.messages import EncryptedInput
from heliograph.serving.queue.plaintexts import require_plaintexts
from heliograph.serving.refusals import nothing_there
from heliograph.serving.remote.records import ArtifactRecord


@dataclass(frozen=True, slots=True)
class Room:
    """The memory of one client's server in a worker."""

    bytes: int
    # The most bytes of keys in memory; None if all keys stay.
    key_bytes: int | None
    # The least memory with which the server runs.
    least: int


def room(artifact: Artifact, worker_bytes: int) -> Room:
    """The memory of an artifact's server in a worker with `worker_bytes`: all keys if they fit, else fewer."""
    planned = memory_bytes(artifact.program, artifact.ring, cache_bytes(worker_bytes))
    fixed = BASE_BYTES + planned["working"] + planned["loading"]
    total = planned["evaluation_keys"]
    least = min(key_use(artifact.program).least_bytes, total)
    asked = artifact.program.planned.resident_key_bytes
    kept = total if asked is None else min(asked, total)
    kept = max(min(kept, worker_bytes - fixed), least)
    return Room(fixed + kept, None if kept >= total else kept, fixed + least)


def require_fit(name: str, taken: Room, worker_bytes: int, hint: str) -> None:
    """Raise a TooLittleMemoryError, with the figures, if no worker can hold a server of the artifact of that name."""
    if taken.least > worker_bytes:
        raise TooLittleMemoryError(
            f"a job of {name!r} needs {taken.least / 1e6:.0f} MB, and a worker has {worker_bytes / 1e6:.0f} MB",
            hint=said(f"{hint}, or compile with a lower {{memory_bytes}}"),
        )


def cache_bytes(worker_bytes: int) -> int:
    """The bound on a server's encoded plaintexts in a worker: at most a quarter of its memory."""
    return min(PLAINTEXT_CACHE_BYTES, worker_bytes // 4)


@dataclass(frozen=True, slots=True)
class Served:
    """One served artifact: its file, its public part as bytes, its evaluation keys, and its figures."""

    path: Path
    public: bytes
    keys: Mapping[str, EvaluationKey]
    record: ArtifactRecord
    room: Room
    # Whether a job is a step, whose inputs and result come with carried values (runtime/server/steps.py).
    steps: bool

    def require_fit(self) -> None:
        """Raise a TooLittleMemoryError, with the figures, if no worker can hold a server of the artifact."""
        require_fit(
            self.record.name,
            self.room,
            self.record.worker_bytes,
            "ask for a server with more memory (--memory-bytes, fewer --workers)",
        )


class Catalog:
    """The artifacts of a server by their fingerprints.

    Raises ProgramError if two artifacts are the same, if plain inputs of one are missing or do not fit its declaration,
    if plain or kept inputs are given for none, WireError if kept inputs are of another artifact; ProgramError too
    if its backend keeps no `plaintexts` in a folder; SecurityError for an artifact without security unless
    `allow_insecure` is given.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        worker_bytes: int,
        *,
        plain: Mapping[str, str] | None = None,
        kept: Mapping[str, str] | None = None,
        backend: str | None = None,
        plaintexts: Path | None = None,
        allow_insecure: bool = False,
    ) -> None:
        self._served: dict[str, Served] = {}
        given = dict(plain or {})
        names: set[str] = set()
        for path in paths:
            artifact = Artifact.load(path)
            require_security(artifact, allow_insecure=allow_insecure, for_whom=f"serving {path}")
            _require_servable(artifact, path, given)
            if kept is not None and artifact.name in kept:
                EncryptedInput.load(kept[artifact.name]).check(artifact.fingerprint)
            if plaintexts is not None:
                require_plaintexts(plaintexts, backend, artifact)
            if artifact.fingerprint in self._served:
                raise ProgramError(f"{path} is the same artifact as {self._served[artifact.fingerprint].path}")
            self._served[artifact.fingerprint] = _served(Path(path).resolve(), artifact, worker_bytes)
            names.add(artifact.name)
        for kind, of in (("plain", given), ("kept", kept or {})):
            if strange := sorted(set(of) - names):
                raise ProgramError(f"{kind} inputs are given for {strange[0]!r}, which is not served")

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def __getitem__(self, artifact: str) -> Served:
        """The artifact of that fingerprint; a refusal if it is not served."""
        if artifact not in self._served:
            raise nothing_there("artifact")
        return self._served[artifact]

    def __contains__(self, artifact: object) -> bool:
        return artifact in self._served

    @property
    def paths(self) -> dict[str, str]:
        """The file of each artifact by its fingerprint."""
        return {artifact: str(served.path) for artifact, served in self._served.items()}


def _require_servable(artifact: Artifact, path: str | Path, plain: Mapping[str, str]) -> None:
    if artifact.plain_inputs and artifact.name not in plain:
        raise ProgramError(
            f"{artifact.name} takes plain inputs of the server: {', '.join(artifact.plain_inputs)}",
            where=path,
            hint=f"give them: --plain {artifact.name}=FILE.npz",
        )
    if artifact.name in plain:
        given_inputs(artifact.program, read_by_name(plain[artifact.name], artifact.plain_inputs))


def _served(path: Path, artifact: Artifact, worker_bytes: int) -> Served:
    taken = room(artifact, worker_bytes)
    figures = artifact.report.figures
    keys = {key.name: key for key in artifact.evaluation_keys}
    planned = memory_bytes(artifact.program, artifact.ring)
    names = artifact.program.interface.carried_inputs
    carried = [node.attrs["level"] for node in artifact.program.inputs if node.attrs["name"] in names]
    record = ArtifactRecord(
        artifact=artifact.fingerprint,
        name=artifact.name,
        security_bits=artifact.ring.security_bits,
        ring_dim=artifact.ring.ring_dim,
        evaluation_keys=len(keys),
        evaluation_key_bytes=planned["evaluation_keys"],
        sent_key_bytes=planned["sent_keys"],
        input_bytes=planned["inputs"],
        sent_input_bytes=planned["sent_inputs"],
        output_bytes=planned["outputs"] + sum(map(artifact.ring.ciphertext_bytes, carried)),
        server_bytes=taken.bytes,
        worker_bytes=worker_bytes,
        fits=taken.least <= worker_bytes,
        predicted_ms=figures.predicted.evaluate_ms,
    )
    return Served(path, artifact.public().to_bytes(), keys, record, taken, steps=bool(carried))
