"""Where encrypted predictions are computed: in this process, or on a server at an address."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any, Protocol

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.public import PublicArtifact
from heliograph.errors import HeliographError, ProgramError
from heliograph.execution.loop import Progress
from heliograph.runtime.client.client import Client
from heliograph.runtime.server.server import Server, require_server
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput
from heliograph.serving.remote.server import RemoteServer

_LOG = logging.getLogger(__name__)
# The files of a client's folder.
PUBLIC, KEY, KEYS = "model.public", "client.key", "keys"
# The patience with a server that has never answered, in seconds: its address may be wrong.
FIRST_S = 10.0


class Place(Protocol):
    """A client with its secret key, and something that evaluates what it encrypted."""

    client: Client

    def run(self, encrypted: EncryptedInput, progress: Progress | None) -> EncryptedOutput: ...

    def close(self) -> None: ...


class Here:
    """Client and server in this process: nothing is hidden from anyone, as in a trial."""

    def __init__(self, artifact: Artifact, progress: Progress, *, allow_insecure: bool) -> None:
        require_server(artifact)
        self.client = Client(artifact.public(), allow_insecure=allow_insecure)
        keys = self.client.evaluation_keys(progress)
        self._server = Server(artifact, keys, allow_insecure=allow_insecure)

    def run(self, encrypted: EncryptedInput, progress: Progress | None) -> EncryptedOutput:
        return self._server.run(encrypted, progress)

    def close(self) -> None:
        self._server.close()


class There:
    """A server at an address, which has this client's evaluation keys.

    With `folder`, the client's key and its evaluation keys are kept there, and are made if they are not there yet;
    otherwise they last as long as this object, and the server forgets them when it is closed. The first request is
    retried for `first_s` seconds.
    """

    def __init__(
        self,
        public: PublicArtifact,
        remote: RemoteServer,
        progress: Progress,
        *,
        folder: Path | None,
        passphrase: str | None,
        allow_insecure: bool,
        first_s: float = FIRST_S,
    ) -> None:
        self._remote = remote
        try:
            progress("connecting", 0, 1)
            served = remote.artifacts(first_s)
            progress("connecting", 1, 1)
            if public.fingerprint not in served:
                names = ", ".join(f"{name!r} ({key[:12]})" for key, name in served.items()) or "nothing"
                raise ProgramError(
                    f"the server does not serve {public.name!r} ({public.fingerprint[:12]})",
                    why=f"it serves {names[:400]}",
                    hint="serve the artifact that this public part belongs to",
                )
            self._keys: Any
            if folder is None:
                self.client = Client(public, allow_insecure=allow_insecure)
                self._keys = self.client.evaluation_keys(progress)
            else:
                self.client = client_in(folder, public, passphrase, allow_insecure=allow_insecure)
                self._keys = self.client.write_evaluation_keys(folder / KEYS, progress)
            self._kept = folder is not None
            remote.register(self._keys, progress)
        except BaseException:
            remote.close()
            raise
        _LOG.info("%s: connected, keys of %d bytes are there", public.name, self.client.evaluation_key_bytes)

    def run(self, encrypted: EncryptedInput, progress: Progress | None) -> EncryptedOutput:
        return self._remote.run(encrypted, progress)

    def close(self) -> None:
        if not self._kept:
            # Nobody can use these keys any more; if the server cannot be told, it deletes them in time.
            with contextlib.suppress(HeliographError):
                self._remote.forget(self._keys)
        self._remote.close()


def client_in(folder: Path, public: PublicArtifact, passphrase: str | None, *, allow_insecure: bool) -> Client:
    """The client whose secret key lies in a folder; a new one, whose key is written there, if there is none."""
    path = folder / KEY
    if path.exists():
        return Client.load(path, passphrase, artifact=public, allow_insecure=allow_insecure)
    client = Client(public, allow_insecure=allow_insecure)
    client.save(path, passphrase)
    _LOG.info("%s: wrote a new secret key to %s", public.name, path)
    return client
