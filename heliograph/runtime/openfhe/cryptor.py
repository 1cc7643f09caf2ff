"""Keys, encryption and decryption with OpenFHE: the client's half. The secret key lives here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heliograph.errors import RangeError
from heliograph.ir import Array
from heliograph.runtime.openfhe.context import library, make_context
from heliograph.target import Ring


class OpenFHECryptor:
    """One secret key on one ring."""

    def __init__(self, ring: Ring, secret_key: Any = None) -> None:
        self.ring = ring
        self.context = make_context(ring)
        self._secret = self.context.KeyGen().secretKey if secret_key is None else secret_key

    @property
    def tag(self) -> str:
        """OpenFHE's name of the key: evaluation keys and ciphertexts carry it."""
        return str(self._secret.GetKeyTag())

    def rotation_keys(self, amounts: Sequence[int]) -> Any:
        """The keys of these rotations, as OpenFHE's map from automorphism index to key."""
        indices = [self.context.FindAutomorphismIndex(amount) for amount in amounts]
        return self.context.EvalAutomorphismKeyGen(self._secret, indices)

    def relinearization_key(self) -> list[Any]:
        """The key that brings products back to two parts."""
        self.context.EvalMultKeyGen(self._secret)
        return list(self.context.GetEvalMultKeyVector(self.tag))

    def encrypt(self, vector: Array, level: int, log_scale: float) -> Any:
        """Encryption under the secret key (40 times less noisy than under a public key), at a level and true scale."""
        values = np.ascontiguousarray(np.asarray(vector, dtype=np.float64) * 2.0 ** (log_scale - self.ring.scale_bits))
        plaintext = self.context.MakeCKKSPackedPlaintext(values, 1, self.ring.levels - level, None, self.ring.slots)
        return self.context.Encrypt(self._secret, plaintext)

    def decrypt(self, ciphertext: Any, log_scale: float) -> Array:
        """The slots; a RangeError where OpenFHE sees that the message is destroyed."""
        try:
            plaintext = self.context.Decrypt(self._secret, ciphertext)
        except RuntimeError as error:
            raise RangeError(
                "the result cannot be decrypted: its error is larger than its message",
                why="a value left the range that it was planned for (" + str(error).splitlines()[-1][-120:] + ")",
                hint="simulate the artifact on this input with check_ranges=True to see which layer overflows",
            ) from None
        plaintext.SetLength(self.ring.slots)
        values = np.array(plaintext.GetRealPackedValueArray(), dtype=np.float64)
        return np.asarray(values * 2.0 ** (ciphertext.GetNoiseScaleDeg() * self.ring.scale_bits - log_scale))

    def secret_bytes(self) -> bytes:
        """The secret key for the client's own file."""
        openfhe = library()
        return bytes(openfhe.Serialize(self._secret, openfhe.BINARY))

    @staticmethod
    def from_secret_bytes(ring: Ring, data: bytes) -> OpenFHECryptor:
        openfhe = library()
        make_context(ring)
        return OpenFHECryptor(ring, openfhe.DeserializePrivateKeyString(data, openfhe.BINARY))
