"""The servers of one worker, one for each key set, within the worker's memory."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

from heliograph.array_files import read_by_name
from heliograph.artifact.artifact import Artifact
from heliograph.errors import HeliographError, TooLittleDiskError, TooLittleMemoryError, WireError, raised_as
from heliograph.execution.memory import BASE_BYTES
from heliograph.runtime.backend import NATIVE
from heliograph.runtime.native.plaintext_file import PlaintextFileError
from heliograph.runtime.server.backends import backend_name
from heliograph.runtime.server.server import Server, given_inputs
from heliograph.runtime.wire.keyfolder import KeyFolder
from heliograph.runtime.wire.messages import EncryptedInput
from heliograph.serving.logs import log
from heliograph.serving.queue.catalog import Room, cache_bytes, room
from heliograph.serving.work.engine import Work


class OwnFilesError(HeliographError):
    """An artifact, or plain or kept inputs, cannot be used; the text is for the operator, not for clients."""


class Holding:
    """The servers of one worker, one for each key set; the least recently used one is dropped if memory is short.

    The memory of a server is taken from the bill (`room`); the memory of Python and libraries is counted once. Before a
    server is created, the machine's free memory is checked too.
    """

    def __init__(self, work: Work) -> None:
        self._paths, self._plain, self._kept, self._bytes = work.paths, work.plain, work.kept, work.worker_bytes
        self._backend, self._allow_insecure, self._plaintexts = work.backend, work.allow_insecure, work.plaintexts
        self._artifacts: dict[str, Artifact] = {}
        self._servers: OrderedDict[str, tuple[Server, int]] = OrderedDict()

    @property
    def held(self) -> dict[str, int]:
        """The bytes of each server according to its bill, by the name of its key folder."""
        return {folder: size for folder, (_, size) in self._servers.items()}

    def server(self, artifact: str, folder: str, path: Path) -> Server:
        """The server of an artifact on the keys in a folder, created unless it exists.

        Raises WireError for keys that are gone or belong to another artifact, TooLittleMemoryError if the machine has
        no room for it.
        """
        if folder in self._servers:
            self._servers.move_to_end(folder)
            return self._servers[folder][0]
        loaded = self.artifact(artifact)
        taken = room(loaded, self._bytes)
        size = taken.bytes - BASE_BYTES
        while self._servers and BASE_BYTES + sum(self.held.values()) + size > self._bytes:
            self._evict()
        server = self._made(loaded, path, taken)
        self._servers[folder] = server, size
        return server

    def plain(self, artifact: str) -> dict[str, object]:
        """The operator's plain inputs for the artifact; an OwnFilesError if they do not fit its declaration."""
        loaded = self.artifact(artifact)
        if loaded.name not in self._plain:
            return {}
        with raised_as(OwnFilesError):
            found: dict[str, Any] = dict(read_by_name(self._plain[loaded.name], loaded.plain_inputs))
            given_inputs(loaded.program, found)
        return found

    def drop(self, folder: str) -> None:
        """Drop one server, if it exists."""
        if folder in self._servers:
            server, _ = self._servers.pop(folder)
            server.close()

    def _made(self, artifact: Artifact, path: Path, taken: Room) -> Server:
        mapped = backend_name(self._backend) == NATIVE
        kept = None
        if artifact.name in self._kept:
            with raised_as(OwnFilesError):
                kept = EncryptedInput.load(self._kept[artifact.name])
        while True:
            try:
                return Server(
                    artifact,
                    KeyFolder(path),
                    backend=self._backend,
                    key_bytes=None if mapped else taken.key_bytes,
                    cache_bytes=cache_bytes(self._bytes),
                    allow_insecure=self._allow_insecure,
                    mapped=mapped,
                    plaintexts=self._plaintexts,
                    kept=kept,
                )
            except TooLittleDiskError as error:
                log("unmapped", text=error.what)
                mapped = False
            except PlaintextFileError as error:
                # The operator has to solve this; jobs go on without the file.
                log("no plaintexts", text=error.what)
                self._plaintexts = None
            except TooLittleMemoryError:
                if not self._servers:
                    raise
                self._evict()

    def _evict(self) -> None:
        self.drop(next(iter(self._servers)))

    def artifact(self, artifact: str) -> Artifact:
        """The artifact of that fingerprint; an OwnFilesError if its file meanwhile holds another artifact, or none."""
        if artifact not in self._artifacts:
            if artifact not in self._paths:
                raise WireError("the artifact is no longer served")
            with raised_as(OwnFilesError):
                loaded = Artifact.load(self._paths[artifact])
                if loaded.fingerprint != artifact:
                    raise WireError(f"{self._paths[artifact]} holds another artifact than when the server was started")
            self._artifacts[artifact] = loaded
        return self._artifacts[artifact]
