"""OpenFHE's secret key, encryption and decryption: the reference for our own (runtime/client/cryptor/)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.errors import InternalError, RangeError, SecurityError, WireError
from heliograph.ir import Array
from heliograph.runtime.openfhe import registry
from heliograph.runtime.openfhe.context import library, make_context, refusal
from heliograph.runtime.openfhe.template import find_blocks, secret_key_template
from heliograph.runtime.process import require_own_process
from heliograph.runtime.wire.messages import is_name


class OpenFHECryptor:
    """One secret key on one ring.

    Methods that draw random numbers raise a SecurityError in a forked child of a process that used OpenFHE
    (runtime/process.py).
    """

    def __init__(self, ring: Ring, secret_key: Any = None) -> None:
        require_own_process("a secret key")
        self.ring = ring
        self.context = make_context(ring)
        self._secret = self.context.KeyGen().secretKey if secret_key is None else secret_key
        self._lower: dict[Ring, Any] = {}

    @property
    def tag(self) -> str:
        """OpenFHE's name of the key: evaluation keys and ciphertexts carry it."""
        return str(self._secret.GetKeyTag())

    def __repr__(self) -> str:
        return f"<OpenFHECryptor {self.tag[:12]}>"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise SecurityError("a secret key is not pickled or copied", hint="use Client.save and Client.load")

    def evaluation_key(self, key: EvaluationKey) -> Any:
        """A fresh evaluation key as OpenFHE's object; it leaves no trace elsewhere.

        A relinearization key is a single key; rotation and conjugation keys are maps from automorphism index to key.
        OpenFHE has no keys of the sparse secret.
        """
        require_own_process("making an evaluation key")
        secret = self._secret_in(key.ring)
        with registry.alone():
            try:
                return _fresh_key(key, secret)
            finally:
                registry.drop({self.tag})

    def _secret_in(self, ring: Ring) -> Any:
        """The secret key in a lower part of the chain: the same polynomial modulo fewer primes, with the same name."""
        if ring == self.ring:
            return self._secret
        if ring not in self._lower:
            whole, lower = secret_key_template(self.ring), secret_key_template(ring)
            if lower.blocks_moduli != whole.blocks_moduli[: ring.towers]:
                raise InternalError(f"{ring} is not a lower part of {self.ring}")
            data = lower.fill(self._secret_blocks()[: ring.towers], self.tag)
            self._lower[ring] = library().DeserializePrivateKeyString(data, library().BINARY)
        return self._lower[ring]

    def encrypt(self, vector: Array, level: int, log_scale: float) -> Any:
        """Encryption under the secret key (40 times less noisy than under a public key), at a level and true scale."""
        require_own_process("encryption")
        values = np.ascontiguousarray(np.asarray(vector, dtype=np.float64) * 2.0 ** (log_scale - self.ring.scale_bits))
        plaintext = self.context.MakeCKKSPackedPlaintext(values, 1, self.ring.levels - level, None, self.ring.slots)
        return self.context.Encrypt(self._secret, plaintext)

    def decrypt(self, ciphertext: Any, log_scale: float) -> Array:
        """The slots; a RangeError if the message is destroyed."""
        return self.decrypt_with_error(ciphertext, log_scale)[0]

    def decrypt_with_error(self, ciphertext: Any, log_scale: float) -> tuple[Array, float]:
        """The slots and OpenFHE's estimate of their error; a RangeError if the message is destroyed.

        OpenFHE detects this by the imaginary parts. But a real vector that outgrew its modulus stays real: its values
        are about sqrt(N) times the bound of the modulus, and we check for that.
        """
        require_own_process("decryption")
        try:
            plaintext = self.context.Decrypt(self._secret, ciphertext)
        except RuntimeError as error:
            raise RangeError(
                "the result cannot be decrypted: its error is larger than its message",
                why="a value left the range that it was planned for (" + refusal(error) + ")",
                hint="run heliograph.simulate on this input: it names the layer that overflows",
            ) from None
        plaintext.SetLength(self.ring.slots)
        values = np.array(plaintext.GetRealPackedValueArray(), dtype=np.float64)
        values = np.asarray(values * 2.0 ** (ciphertext.GetNoiseScaleDeg() * self.ring.scale_bits - log_scale))
        log_modulus = sum(self.ring.log_primes[: self.ring.towers - ciphertext.GetLevel()])
        largest = float(np.abs(values).max(initial=0.0))
        if largest > 0 and math.log2(largest) + log_scale > log_modulus - 1:
            raise RangeError(
                "the result does not fit the modulus: it is not what was computed",
                why="a value left the range that it was planned for",
                hint="run heliograph.simulate on this input: it names the layer that overflows",
            )
        return values, 2.0 ** (float(plaintext.GetLogError()) - log_scale)

    def secret_bytes(self) -> bytes:
        """The secret key for the client's file: its values modulo each prime, 8 bytes each, in OpenFHE's order.

        OpenFHE's bytes around the values may change between versions; the values do not.
        """
        return b"".join(self._secret_blocks())

    def _secret_blocks(self) -> list[bytes]:
        return _coefficients(self._secret, self.ring)

    @staticmethod
    def from_secret_bytes(ring: Ring, data: bytes, tag: str) -> OpenFHECryptor:
        """The cryptor with these `secret_bytes`; a WireError unless they are a secret key of that ring and name."""
        require_own_process("a secret key")
        expected, length = 8 * ring.ring_dim * ring.towers, 8 * ring.ring_dim
        if len(data) != expected:
            raise WireError(f"the secret key has {len(data)} bytes, expected {expected}")
        if not is_name(tag):
            raise WireError("the secret key has no valid name")
        form = secret_key_template(ring).fill(
            [data[begin : begin + length] for begin in range(0, expected, length)], tag
        )
        return OpenFHECryptor(ring, library().DeserializePrivateKeyString(form, library().BINARY))


def _fresh_key(key: EvaluationKey, secret: Any) -> Any:
    """A fresh relinearization key, or a map with the key of one automorphism, in the chain of `secret`."""
    context = make_context(key.ring)
    if key.kind == "relinearization":
        context.EvalMultKeyGen(secret)
        return context.GetEvalMultKeyVector(str(secret.GetKeyTag()))[0]
    return context.EvalAutomorphismKeyGen(secret, [key.index])


def _coefficients(secret: Any, ring: Ring) -> list[bytes]:
    """The coefficients of a secret modulo each prime.

    Their places have to be searched for: OpenFHE's gaps between them differ between a key that it read and one that it
    generated.
    """
    openfhe, length = library(), 8 * ring.ring_dim
    data = bytes(openfhe.Serialize(secret, openfhe.BINARY))
    found = list(find_blocks(data, ring.ring_dim))
    if tuple(modulus for _, modulus in found) != secret_key_template(ring).blocks_moduli:
        raise InternalError("OpenFHE writes a secret key in an unknown form")
    return [data[begin : begin + length] for begin, _ in found]
