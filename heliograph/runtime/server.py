"""The server: a compiled artifact and one client's evaluation keys. It cannot hold a secret key."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heliograph.compiler.artifact import Artifact
from heliograph.compiler.memory import memory_bytes
from heliograph.compiler.validate import check_transforms
from heliograph.errors import ProgramError, SecurityError, WireError
from heliograph.execution.backend import Progress, Trace, execute
from heliograph.interpret import check_input, check_range
from heliograph.ir import Array, CipherType, Node
from heliograph.runtime.memory import check_memory as require_memory
from heliograph.runtime.messages import EncryptedInput, EncryptedOutput, EvaluationKeys, key_names
from heliograph.runtime.openfhe import registry, serial
from heliograph.runtime.openfhe.evaluator import DEFAULT_CACHE_BYTES, OpenFHEEvaluator
from heliograph.runtime.openfhe.template import is_tag, normalized
from heliograph.runtime.outputs import secure_normal


class Server:
    """Evaluates one artifact on the ciphertexts of one client.

    `trace` describes the last run: seconds, seconds by layer, the homomorphic calls. `cache_bytes` bounds the encoded
    plaintexts that are kept between runs. `check_memory=False` skips the comparison of the plan with the free memory.
    Use it as a context manager, or call `close`, to take its keys out of the process; the garbage collector does it too.

    Raises WireError for keys of another artifact, missing, superfluous or malformed ones.
    """

    def __init__(
        self,
        artifact: Artifact,
        keys: EvaluationKeys,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        allow_insecure: bool = True,
        check_memory: bool = True,
    ) -> None:
        if not isinstance(keys, EvaluationKeys):
            raise WireError(f"a server takes evaluation keys, not {type(keys).__name__}")
        keys.check(artifact.fingerprint)
        if artifact.ring.security_bits is None and not allow_insecure:
            raise SecurityError(
                f"artifact {artifact.name!r} was compiled without security (security_bits=None)",
                hint="compile it with security_bits=128, or allow insecure artifacts for a test",
            )
        metadata = artifact.program.metadata
        amounts = tuple(int(amount) for amount in metadata["rotation_keys"])
        keys.check_names(key_names(amounts, bool(metadata["relinearization_key"])))
        if not is_tag(keys.client):
            raise WireError("the evaluation keys carry no usable name of a client")
        check_transforms(artifact.program, artifact.ring)
        if check_memory:
            require_memory(self._needed_bytes(artifact, keys), f"the server of {artifact.name!r}")
        self.artifact = artifact
        self.client = keys.client
        self._fingerprint = artifact.fingerprint
        self.trace = Trace()
        self.evaluator = OpenFHEEvaluator(artifact.program, cache_bytes)
        # OpenFHE finds keys by this name; it is the server's own, so that no two servers can meet in its tables.
        self._tag = secrets.token_hex(16)
        rotation = {amount: self._rotation_key(keys, amount, first=not i) for i, amount in enumerate(amounts)}
        relinearization = self._relinearization_key(keys) if metadata["relinearization_key"] else None
        self._close = weakref.finalize(self, registry.release, self._tag)
        self._close.atexit = False
        serial.install_keys(artifact.ring, self._tag, rotation, relinearization)

    @staticmethod
    def _needed_bytes(artifact: Artifact, keys: EvaluationKeys) -> int:
        """What the plan needs beside what is there already: this process, and keys that are in it."""
        planned = memory_bytes(artifact.program, artifact.ring)
        return planned["working"] + (0 if keys.live else planned["evaluation_keys"])

    def _rotation_key(self, keys: EvaluationKeys, amount: int, first: bool) -> Any:
        name = f"rotation/{amount}"
        if name in keys.live:
            return serial.copy_rotation_key(keys.live[name]) if first else keys.live[name]
        return serial.read_rotation_key(keys.blobs[name], self.artifact.ring, amount, self.client)

    def _relinearization_key(self, keys: EvaluationKeys) -> Any:
        name = "relinearization"
        if name in keys.live:
            return keys.live[name]
        return serial.read_relinearization_key(keys.blobs[name], self.artifact.ring, self.client)

    def __repr__(self) -> str:
        return f"<Server of {self.artifact.name!r} for client {self.client[:12]}>"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("a server is not pickled; make one from the artifact and the evaluation keys")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the evaluation keys and the encoded plaintexts; the server cannot run afterwards."""
        self._close()
        self.evaluator.cache.clear()

    def run(
        self,
        encrypted: EncryptedInput,
        progress: Progress | None = None,
        plain: Mapping[str, Any] | None = None,
    ) -> EncryptedOutput:
        """The encrypted outputs for one encrypted sample.

        `plain` has the arrays of the program's plain inputs, by name: the server's own values. `progress(stage, done,
        total)` is called after every operation. Raises WireError for inputs of another artifact or client, or malformed
        ones, ProgramError or RangeError for plain ones that are not what the program declares.
        """
        if not self._close.alive:
            raise ProgramError("this server is closed")
        inputs = self.inputs(encrypted, plain or {})
        program, ring = self.artifact.program, self.artifact.ring
        with registry.using():
            outputs, self.trace = execute(program, self.evaluator, inputs, progress)
            if program.metadata.get("flood") is not None:
                outputs = [self._flooded(output, node) for output, node in zip(outputs, program.outputs, strict=True)]
            live = {str(i): normalized(output, ring, 0, self.client) for i, output in enumerate(outputs)}
        return EncryptedOutput(self._fingerprint, self.client, live=live)

    def _flooded(self, output: Any, node: Node) -> Any:
        """The output with fresh noise in every slot."""
        assert isinstance(node.type, CipherType)
        noise = self.artifact.program.metadata["flood"] * secure_normal(self.artifact.ring.slots)
        return self.evaluator.add_vector(output, noise, node.type)

    def inputs(self, encrypted: EncryptedInput, plain: Mapping[str, Any]) -> dict[Node, Any]:
        """The ciphertexts of a message and the plain arrays by input node, checked, as `execute` takes them."""
        if not isinstance(encrypted, EncryptedInput):
            raise WireError(f"a server runs on encrypted inputs, not on {type(encrypted).__name__}")
        encrypted.check(self._fingerprint, self.client)
        nodes = self.artifact.program.inputs
        names = {node: f"{node.attrs['name']}/{node.attrs['chunk']}" for node in nodes if node.type.secret}
        encrypted.check_names(names.values())
        return {
            **{node: self._input(encrypted, name, node.attrs["level"]) for node, name in names.items()},
            **_plain_values([node for node in nodes if not node.type.secret], plain),
        }

    def _input(self, encrypted: EncryptedInput, name: str, level: int) -> Any:
        """One input ciphertext, under the server's own name of the key."""
        ring, what = self.artifact.ring, f"input ciphertext {name}"
        if name in encrypted.live:
            serial.check_ciphertext(encrypted.live[name], ring, level, self.client, what)
            return serial.retagged(encrypted.live[name], self._tag)
        ciphertext = serial.read_ciphertext(encrypted.blobs[name], ring, level, self.client, what)
        ciphertext.SetKeyTag(self._tag)
        return ciphertext


def _plain_values(nodes: Sequence[Node], plain: Mapping[str, Any]) -> dict[Node, Array]:
    """The server's own inputs by node, checked, with a leading axis of one sample."""
    names = [node.attrs["name"] for node in nodes]
    if set(plain) != set(names):
        raise ProgramError(
            f"the program's plain inputs are {', '.join(map(repr, names)) or 'none'}",
            where="Server.run",
            why=f"given were {', '.join(map(repr, plain)) or 'none'}",
            hint="pass them by name: server.run(encrypted, plain={'name': array})",
        )
    values = {}
    for node in nodes:
        tensor = check_input(node.attrs["name"], node.attrs["shape"], plain[node.attrs["name"]])
        check_range(node.attrs, tensor)
        values[node] = tensor[np.newaxis]
    return values
