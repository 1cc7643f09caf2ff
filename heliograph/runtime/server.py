"""The server: a compiled artifact and one client's evaluation keys. It cannot hold a secret key."""

from __future__ import annotations

from typing import Any

from heliograph.compiler.artifact import Artifact
from heliograph.errors import SecurityError, WireError
from heliograph.execution.backend import Progress, Trace, execute
from heliograph.runtime.messages import EncryptedInput, EncryptedOutput, EvaluationKeys
from heliograph.runtime.openfhe import serial
from heliograph.runtime.openfhe.evaluator import DEFAULT_CACHE_BYTES, OpenFHEEvaluator


class Server:
    """Evaluates one artifact on the ciphertexts of one client.

    `trace` describes the last run: seconds, seconds by layer, the homomorphic calls. `cache_bytes` bounds the encoded
    plaintexts that are kept between runs.
    """

    def __init__(
        self,
        artifact: Artifact,
        keys: EvaluationKeys,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        allow_insecure: bool = True,
    ) -> None:
        keys.check(artifact.fingerprint)
        if artifact.ring.security_bits is None and not allow_insecure:
            raise SecurityError(
                f"artifact {artifact.name!r} was compiled without security (security_bits=None)",
                hint="compile it with security_bits=128, or allow insecure artifacts for a test",
            )
        self.artifact = artifact
        self.client = keys.client
        self.evaluator = OpenFHEEvaluator(artifact.program, cache_bytes)
        self.trace = Trace()
        metadata = artifact.program.metadata
        wanted = {"rotation"} if metadata["rotation_keys"] else set()
        wanted |= {"relinearization"} if metadata["relinearization_key"] else set()
        for name in sorted(wanted):
            if name not in keys.names():
                raise WireError(f"the evaluation keys lack the {name} key", hint="make them again with this artifact")
        rotation = self._key(keys, "rotation", serial.read_rotation_keys)
        relinearization = self._key(keys, "relinearization", serial.read_key)
        serial.install_keys(artifact.ring, self.client, rotation, relinearization)

    @staticmethod
    def _key(keys: EvaluationKeys, name: str, read: Any) -> Any:
        if name in keys.live:
            return keys.live[name]
        return read(keys.blobs[name]) if name in keys.blobs else None

    def run(self, encrypted: EncryptedInput, progress: Progress | None = None) -> EncryptedOutput:
        """The encrypted outputs for one encrypted sample.

        `progress(stage, done, total)` is called after every operation.
        """
        encrypted.check(self.artifact.fingerprint, self.client)
        inputs = {}
        for node in self.artifact.program.inputs:
            name = f"{node.attrs['name']}/{node.attrs['chunk']}"
            if name in encrypted.live:
                inputs[node] = encrypted.live[name]
                continue
            if name not in encrypted.blobs:
                raise WireError(f"the encrypted inputs lack {name}")
            level = node.attrs["level"]
            inputs[node] = serial.read_ciphertext(
                encrypted.blobs[name], self.artifact.ring, level, self.client, f"input ciphertext {name}"
            )
        if len(encrypted.names()) != len(inputs):
            raise WireError(f"the encrypted inputs hold {len(encrypted.names())} ciphertexts, expected {len(inputs)}")
        outputs, self.trace = execute(self.artifact.program, self.evaluator, inputs, progress)
        live = {str(number): output for number, output in enumerate(outputs)}
        return EncryptedOutput(self.artifact.fingerprint, self.client, live=live)
