"""The client: makes and keeps the secret key, encrypts samples, decrypts results."""

from __future__ import annotations

from typing import Any

import numpy as np

from heliograph.compiler.artifact import Artifact, PublicArtifact
from heliograph.errors import ProgramError, RangeError, WireError
from heliograph.interpret import check_input
from heliograph.ir import Array
from heliograph.ir.layout import Layout
from heliograph.runtime.messages import EncryptedInput, EncryptedOutput, EvaluationKeys
from heliograph.runtime.openfhe.cryptor import OpenFHECryptor
from heliograph.runtime.openfhe.serial import read_ciphertext


class Client:
    """Holds one secret key for one artifact; made from its public part, which has no weights.

    A whole `Artifact` is accepted too; only its public part is taken.
    """

    def __init__(self, artifact: Artifact | PublicArtifact, *, cryptor: OpenFHECryptor | None = None) -> None:
        self.public = artifact.public()
        self._cryptor = OpenFHECryptor(self.public.ring) if cryptor is None else cryptor

    def __repr__(self) -> str:
        return f"<Client {self.id[:12]} of {self.public.name!r}>"

    @property
    def id(self) -> str:
        """The name of this client's key; evaluation keys and ciphertexts carry it."""
        return self._cryptor.tag

    def evaluation_keys(self) -> EvaluationKeys:
        """The keys that the server needs: rotations and relinearization. They tell nothing of the secret key."""
        live: dict[str, Any] = {}
        if self.public.rotation_keys:
            live["rotation"] = self._cryptor.rotation_keys(self.public.rotation_keys)
        if self.public.relinearization_key:
            live["relinearization"] = self._cryptor.relinearization_key()[0]
        return EvaluationKeys(self.public.fingerprint, self.id, live=live)

    def encrypt(self, *samples: Any) -> EncryptedInput:
        """One sample, encrypted: one array per input, without a batch axis.

        Raises ProgramError for a wrong shape or NaN, RangeError for a value outside the declared range, naming it.
        """
        specs = self.public.inputs
        if len(samples) != len(specs):
            raise ProgramError(f"{self.public.name} takes {len(specs)} inputs, not {len(samples)}")
        live: dict[str, Any] = {}
        for spec, sample in zip(specs, samples, strict=True):
            tensor = check_input(spec["name"], spec["shape"], sample)
            check_range(spec, tensor)
            layout = Layout.from_json(dict(spec["layout"]))
            for chunk, vector in enumerate(layout.pack(tensor.reshape(layout.shape))):
                level, log_scale = spec["levels"][chunk], spec["log_scales"][chunk]
                live[f"{spec['name']}/{chunk}"] = self._cryptor.encrypt(vector, level, log_scale)
        return EncryptedInput(self.public.fingerprint, self.id, live=live)

    def decrypt(self, output: EncryptedOutput) -> Any:
        """The result: one array, or a tuple where the program has several outputs.

        Raises RangeError where the result shows that a value overflowed on the way. The values are approximate, and
        their error depends on the key: do not pass them on to strangers.
        """
        output.check(self.public.fingerprint, self.id)
        tensors, number = [], 0
        for spec in self.public.outputs:
            layout = Layout.from_json(dict(spec["layout"]))
            vectors = []
            for log_scale in spec["log_scales"]:
                vectors.append(self._cryptor.decrypt(self._output(output, number), log_scale))
                number += 1
            tensor = layout.unpack(vectors).reshape(spec["shape"])
            if not np.isfinite(tensor).all():
                raise RangeError(f"output {spec['name']!r} holds NaN or infinity: a value overflowed on the way")
            tensors.append(tensor)
        if len(output.names()) != number:
            raise WireError(f"these encrypted outputs hold {len(output.names())} ciphertexts, expected {number}")
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def _output(self, output: EncryptedOutput, number: int) -> Any:
        name = str(number)
        if name in output.live:
            return output.live[name]
        if name not in output.blobs:
            raise WireError(f"these encrypted outputs have no ciphertext {number}")
        return read_ciphertext(output.blobs[name], self.public.ring, 0, self.id, f"output ciphertext {number}")


def check_range(spec: Any, tensor: Array) -> None:
    """Raise a RangeError that names the first element outside the declared range."""
    low, high = spec.get("low"), spec.get("high")
    if low is None or high is None:
        return
    # Values computed in float32 may stick out by their rounding.
    slack = 1e-6 * max(abs(low), abs(high), high - low)
    bad = np.flatnonzero((tensor < low - slack) | (tensor > high + slack))
    if bad.size:
        index = tuple(int(i) for i in np.unravel_index(bad[0], tensor.shape))
        raise RangeError(
            f"input {spec['name']!r} holds {tensor[index]:.6g} at index {index}, outside its range [{low:g}, {high:g}]",
            why="the polynomials are only good for inputs in the range that was declared when the model was traced",
            hint="scale the input, or trace again with an input_range that holds it",
        )
