"""A secret key: encryption and decryption under it, and the evaluation keys that a server gets.

Ciphertexts are (b, a) with b + a s = m + e, where a is uniform. A key switches from the secret s' to s: for each digit
of the chain it holds (b, a) with b + a s = P s' + e modulo the digit's primes and b + a s = e modulo all others, where
P is the product of the special primes (hybrid key switching: Han and Ki, "Better bootstrapping", 2020). The forms are
OpenFHE's: the key of an automorphism leads from s to the image of s under the inverse automorphism, and the pair of
keys for bootstrapping leads to a sparse secret and back.

Everything is written in the form of runtime/wire/forms.py, with the seed of a in place of a. Secret randomness comes
from a separate stream for each object (randomness.py).
"""

from __future__ import annotations

import functools
import itertools
import math
import secrets
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from heliograph.ckks.embedding import coefficients_of, rounded_at, slots_of
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.noise import decryption_fails, decryption_std
from heliograph.ckks.ring import Ring
from heliograph.ckks.security import SPARSE_WEIGHT
from heliograph.errors import InternalError, RangeError, SecurityError, WireError
from heliograph.ir import Array
from heliograph.machine import in_threads
from heliograph.runtime.client.cryptor.arithmetic import Arithmetic, arithmetic, arrays_of
from heliograph.runtime.client.cryptor.randomness import gaussian, sparse_ternary, ternary
from heliograph.runtime.noise import SecretStream, secure_normal
from heliograph.runtime.process import note_use, require_own_process
from heliograph.runtime.residues import automorphism_places, centered, residues, signed, total
from heliograph.runtime.wire.expansion import fresh_seed
from heliograph.runtime.wire.forms import SPARSE_BLOCKS, SeededForm, fresh_form, key_form, sparse_primes
from heliograph.runtime.wire.messages import is_name

# Larger than any error that the sampler draws.
_LARGEST_ERROR = 1 << 7


class Cryptor:
    """One secret key on one ring, given by its coefficients (N, int64): -1, 0 and 1. `tag` is its name.

    Its copies of the secret are overwritten when it is deleted. Its kernels run on threads: a forked child of a process
    that used them is refused (SecurityError).
    """

    def __init__(self, ring: Ring, coefficients: Array | None = None, tag: str | None = None) -> None:
        require_own_process("a secret key")
        note_use()
        self.ring = ring
        self._coefficients = ternary(SecretStream(), ring.ring_dim) if coefficients is None else coefficients
        self.tag = secrets.token_hex(16) if tag is None else tag
        # Bound to no method of its own: a cycle would keep the secret until the garbage collector finds it.
        self._basis = functools.lru_cache(maxsize=4)(functools.partial(_basis_of, self._coefficients))
        weakref.finalize(self, _overwrite, [self._coefficients])

    def __repr__(self) -> str:
        return f"<Cryptor {self.tag[:12]}>"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise SecurityError("a secret key is not pickled or copied", hint="use Client.save and Client.load")

    def encrypted_bytes(self, vector: Array, level: int, log_scale: float) -> bytes:
        """Slots encrypted under the secret key at a level and a scale; a RangeError if they do not fit the level."""
        require_own_process("encryption")
        ring, basis = self.ring, self._basis(self.ring)
        primes, form = ring.primes[: level + 1], fresh_form(ring, level)
        header = form.header(fresh_seed(), self.tag)
        found = np.zeros(ring.slots)
        found[: np.size(vector)] = vector
        message = _scaled(coefficients_of(found, ring.slots), log_scale, primes)
        error = gaussian(SecretStream(), ring.ring_dim)
        uniform = list(form.uniform)

        def packed(place: int) -> bytes:
            q = primes[place]
            row = basis.arithmetic.forward(total(message[place], residues(error, q), q), place)
            other = _expanded(basis, place, form, header, uniform[place])
            basis.arithmetic.add_product(row, other, basis.secret[place], place, minus=True)
            return form.pack(row, place)

        try:
            return form.joined(header, in_threads(packed, len(primes), ring.ring_dim))
        finally:
            # With its error a ciphertext gives the secret key away.
            _overwrite([error, *message])

    def decrypted(self, residues: Array, log_scale: float, count: int | None = None) -> tuple[Array, float]:
        """The first `count` slots of a ciphertext (by default all), and an estimate of their error.

        `residues` are (parts, level + 1, N). The message is real, so the imaginary parts are pure error, and the error
        of the real parts is as large. Noise of the same size, from the system's generator, is added to the real parts so
        that they reveal less about the key; OpenFHE does so too. Raises RangeError if the message is destroyed or fills
        its modulus, in any slot: it is then not the computed result.
        """
        require_own_process("decryption")
        ring, basis = self.ring, self._basis(self.ring)
        towers, rows = residues.shape[1], []
        for place in range(towers):
            # Horner's rule: b + s (a + s ...).
            parts = [basis.arithmetic.row(part[place], place) for part in residues]
            for sums, values in itertools.pairwise(reversed(parts)):
                basis.arithmetic.add_product(values, sums, basis.secret[place], place)
            rows.append(basis.arithmetic.backward(parts[0], place))
        slots = slots_of(signed(rows, ring.primes[:towers]))
        real, imaginary_parts = slots.real, slots.imag
        imaginary = math.sqrt(float(np.dot(imaginary_parts, imaginary_parts)) / slots.size)
        largest = float(np.abs(real).max(initial=0.0))
        destroyed = decryption_fails(ring, log_scale, imaginary)
        if destroyed or (largest > 0 and math.log2(largest) > sum(ring.log_primes[:towers]) - 1):
            raise RangeError(
                "the result cannot be decrypted: its error is larger than its message"
                if destroyed
                else "the result does not fit the modulus: it is not what was computed",
                why="a value left the range that it was planned for",
                hint="run heliograph.simulate on this input: it names the layer that overflows",
            )
        # Slots that nobody reads need no noise.
        found = secure_normal(slots.size if count is None else count)
        found *= decryption_std(ring, imaginary)
        found += real[: found.size]
        found *= 2.0**-log_scale
        return found, math.sqrt(2.0) * imaginary * 2.0**-log_scale

    def evaluation_key_bytes(self, key: EvaluationKey) -> bytes:
        """A fresh evaluation key in the form in which it is sent and stored."""
        require_own_process("making an evaluation key")
        basis = self._basis(key.ring)
        form = key_form(key)
        header = form.header(fresh_seed(), self.tag)
        return form.joined(header, self._packed(key, basis, form, header))

    def _packed(self, key: EvaluationKey, basis: _Basis, form: SeededForm, header: bytes) -> list[bytes]:
        """The polynomials of a key that are written."""
        if key.kind == "encapsulation":
            return self._pair(key.ring, basis, form, header)
        if key.kind == "relinearization":
            return self._key(form, header, basis, basis.squares, basis.secret)
        turned = automorphism_places(form.ring_dim, pow(key.index, -1, 2 * form.ring_dim))
        factors = [basis.arithmetic.factor(row[turned], place) for place, row in enumerate(basis.values)]
        try:
            return self._key(form, header, basis, basis.values, factors)
        finally:
            _overwrite([array for factor in factors for array in arrays_of(factor)])

    def _pair(self, ring: Ring, basis: _Basis, form: SeededForm, header: bytes) -> list[bytes]:
        """The key from the secret to a fresh sparse one, written in full, and the key back, written with a seed."""
        sparse = sparse_ternary(SecretStream(), ring.ring_dim, SPARSE_WEIGHT)
        there = _Basis(ring.ring_dim, ring.primes[:1], sparse_primes(ring), 1, sparse)
        # The form has no seed for its uniform half, which is expanded here from a seed that is thrown away.
        unkept, half = form.header(fresh_seed(), self.tag), SPARSE_BLOCKS // 2
        uniform = [_expanded(there, place, form, unkept, place) for place in range(half)]
        error = gaussian(SecretStream(), ring.ring_dim)
        others = [
            self._row(there, basis.values, there.secret, 0, place, error, uniform[place]) for place in range(half)
        ]
        first = [form.pack(row, place) for place, row in enumerate((*uniform, *others))]
        values = basis.values_of(sparse)
        try:
            return [*first, *self._key(form, header, basis, values, basis.secret)]
        finally:
            _overwrite([sparse, error, *values])

    def _key(
        self, form: SeededForm, header: bytes, basis: _Basis, target: Sequence[Array], secret: Sequence[Any]
    ) -> list[bytes]:
        """The written halves of a key from `target` to `secret`, made row by row on all threads."""
        places = len(basis.values)
        errors = in_threads(lambda _: gaussian(SecretStream(), form.ring_dim), basis.digits, form.ring_dim)

        def packed(number: int) -> bytes:
            (digit, place), at = divmod(number, places), uniform[number]
            row = self._row(
                basis, target, secret, digit, place, errors[digit], _expanded(basis, place, form, header, at)
            )
            return form.pack(row, at)

        uniform = list(form.uniform)
        try:
            return in_threads(packed, len(uniform), form.ring_dim)
        finally:
            _overwrite(errors)

    @staticmethod
    def _row(
        basis: _Basis,
        target: Sequence[Array],
        secret: Sequence[Any],
        digit: int,
        place: int,
        error: Array,
        uniform: Array,
    ) -> Array:
        """b of one digit modulo one prime: e - a secret, plus P target if the prime is the digit's."""
        do = basis.arithmetic
        made = do.small(error, place)
        if place in basis.primes_of(digit):
            do.add_product(made, target[place], basis.lift[place], place)
        do.add_product(made, uniform, secret[place], place, minus=True)
        if place == len(basis.values) - 1:
            # An error, or a fault of ours, is seen modulo the last special prime: b + a s must be small.
            sums = made.copy()
            do.add_product(sums, uniform, secret[place], place)
            if np.abs(centered(do.backward(sums, place), do.primes[place])).max() > _LARGEST_ERROR:
                raise InternalError("with the secret key an evaluation key does not decrypt to a small error")
        return made

    def secret_bytes(self) -> bytes:
        """The secret key for the client's file: its values modulo each prime, 8 bytes each, in OpenFHE's order."""
        basis = self._basis(self.ring)
        return b"".join(row.astype("<u8").tobytes() for row in basis.values[: self.ring.towers])

    @staticmethod
    def from_secret_bytes(ring: Ring, data: bytes, tag: str) -> Cryptor:
        """The cryptor with these `secret_bytes`; a WireError unless they are a secret key on this ring."""
        expected = 8 * ring.ring_dim * ring.towers
        if len(data) != expected:
            raise WireError(f"the secret key has {len(data)} bytes, expected {expected}")
        if not is_name(tag):
            raise WireError("the secret key has no valid name")
        values = np.frombuffer(data, dtype="<u8").reshape(ring.towers, ring.ring_dim)
        do = arithmetic(ring.ring_dim, ring.primes[:1])
        reduced = values[0] % np.uint64(do.primes[0])
        row = do.row(reduced, 0)
        residues = do.backward(row, 0)
        coefficients = centered(residues, do.primes[0])
        _overwrite([reduced, row, residues])
        cryptor = Cryptor(ring, coefficients, tag)
        if np.abs(coefficients).max() > 1 or cryptor.secret_bytes() != data:
            raise WireError("the secret key is none: it is not ternary, or not the same modulo each prime")
        return cryptor


class _Basis:
    """A chain with its special primes, and the secret key modulo each of them.

    `arithmetic`: the arithmetic over these primes.
    `values`: the secret in evaluation form, a row for each prime.
    `secret`: the same rows as factors.
    `squares`: the secret's square in evaluation form.

    The arrays are overwritten when the basis is deleted.
    """

    def __init__(
        self, ring_dim: int, primes: tuple[int, ...], special: tuple[int, ...], digits: int, coefficients: Array
    ) -> None:
        self.digits, self._towers, self._product = digits, len(primes), math.prod(special)
        self.arithmetic: Arithmetic = arithmetic(ring_dim, primes + special)
        self.values = self.values_of(coefficients)
        self.secret = [self.arithmetic.factor(row, place) for place, row in enumerate(self.values)]
        self._kept = [*self.values, *(array for factor in self.secret for array in arrays_of(factor))]
        weakref.finalize(self, _overwrite, self._kept)

    def values_of(self, coefficients: Array) -> list[Array]:
        """The values, modulo each prime, of a polynomial with small coefficients."""
        return [self.arithmetic.small(coefficients, place) for place in range(len(self.arithmetic.primes))]

    @functools.cached_property
    def squares(self) -> list[Array]:
        made = [np.zeros_like(row) for row in self.values]
        for place, (row, values, factor) in enumerate(zip(made, self.values, self.secret, strict=True)):
            self.arithmetic.add_product(row, values, factor, place)
        self._kept += made
        return made

    def primes_of(self, digit: int) -> range:
        """The places of a digit's primes."""
        alpha = -(-self._towers // self.digits)
        return range(digit * alpha, min((digit + 1) * alpha, self._towers))

    @functools.cached_property
    def lift(self) -> list[Any]:
        """The product of the special primes modulo each prime of the chain, as factors."""
        made = []
        for place, q in enumerate(self.arithmetic.primes[: self._towers]):
            row = self.arithmetic.empty(place)
            row.fill(self._product % q)
            made.append(self.arithmetic.factor(row, place))
        return made


def _basis_of(coefficients: Array, ring: Ring) -> _Basis:
    return _Basis(ring.ring_dim, ring.primes, ring.special_primes, ring.digits, coefficients)


def _overwrite(arrays: Sequence[Array]) -> None:
    for array in arrays:
        array.fill(0)


def _expanded(basis: _Basis, place: int, form: SeededForm, header: bytes, at: int) -> Array:
    """The uniform polynomial of a form at a place of it, modulo the prime at `place` of a basis."""
    row = basis.arithmetic.empty(place)
    form.expand(row, header, at)
    return row


def _scaled(coefficients: Array, log_scale: float, primes: Sequence[int]) -> list[Array]:
    """Real coefficients times 2^log_scale, rounded, modulo each prime; a RangeError if they fill the modulus."""
    numbers, shift, bits = rounded_at(coefficients, log_scale, "what is to be encrypted")
    if bits >= math.log2(math.prod(primes)) - 1:
        raise RangeError(f"what is to be encrypted is too large for its level at scale 2^{log_scale:.1f}")
    whole = numbers.astype(np.int64)
    found = []
    for q in primes:
        rest = np.remainder(whole, q).astype(np.uint64)
        for _ in range(shift):
            rest = total(rest, rest, q)
        found.append(rest)
    return found
