"""A secret key: what is encrypted under it, and the evaluation keys that a server is given.

Ciphertexts are (b, a) with b + a s = m + e, where a is uniform. A key leads from the secret s' to s: for each digit of the
chain (b, a) with b + a s = P s' + e modulo the digit's primes and b + a s = e modulo all others, P the product of the
special primes (hybrid key switching: Han and Ki, "Better bootstrapping", 2020). These are OpenFHE's forms: a key of an
automorphism leads from s to what the automorphism's inverse makes of s, and the pair of bootstrapping to a sparse secret
and back.

Everything is written in the small form (runtime/seeded.py), with the seed of a in the place of a. What is secret comes from
a stream of its own for each object (randomness.py).
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from heliograph.ckks.embedding import coefficients_of
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.primes import largest_primes
from heliograph.ckks.ring import SPARSE_SPECIAL_BITS, Ring
from heliograph.ckks.security import SPARSE_WEIGHT
from heliograph.errors import InternalError, RangeError, SecurityError, WireError
from heliograph.ir import Array
from heliograph.runtime.cryptor.arithmetic import Arithmetic, arithmetic
from heliograph.runtime.cryptor.randomness import SecretStream, gaussian, sparse_ternary, ternary
from heliograph.runtime.expansion import fresh_seed
from heliograph.runtime.openfhe.process import note_use, require_own_process
from heliograph.runtime.residues import automorphism_places, centered, difference, residues, total
from heliograph.runtime.seeded import (
    SPARSE_BLOCKS,
    SeededForm,
    automorphism_key_form,
    ciphertext_form,
    pair_form,
    product_key_form,
)

# Larger than any error that the sampler draws.
_LARGEST_ERROR = 1 << 7
# A rounded coefficient of up to this many bits is exact both as a floating-point number and as a 64-bit integer.
_EXACT_BITS = 62


class Cryptor:
    """One secret key on one ring, by its coefficients (N, int64): -1, 0 and 1. `tag` names it.

    Its kernels run on threads: a forked child of a process that used them is refused (SecurityError).
    """

    def __init__(self, ring: Ring, coefficients: Array | None = None, tag: str | None = None) -> None:
        require_own_process("a secret key")
        note_use()
        self.ring = ring
        self._coefficients = ternary(SecretStream(), ring.ring_dim) if coefficients is None else coefficients
        self.tag = secrets.token_hex(16) if tag is None else tag
        self._basis = functools.lru_cache(maxsize=4)(self._made_basis)

    def __repr__(self) -> str:
        return f"<Cryptor {self.tag[:12]}>"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise SecurityError("a secret key is not pickled or copied", hint="use Client.save and Client.load")

    def encrypted_bytes(self, vector: Array, level: int, log_scale: float) -> bytes:
        """Slots encrypted under the secret key at a level and a scale; a RangeError where they do not fit the level."""
        require_own_process("encryption")
        ring, basis = self.ring, self._basis(self.ring)
        primes, places = ring.primes[: level + 1], np.arange(level + 1)
        form = ciphertext_form(ring.ring_dim, 2 * primes)
        header = form.header(fresh_seed(), self.tag)
        found = np.zeros(ring.slots)
        found[: np.size(vector)] = vector
        message = _scaled(coefficients_of(found, ring.slots), log_scale, primes)
        error = gaussian(SecretStream(), ring.ring_dim)
        rows = np.stack([total(m, residues(error, q), q) for m, q in zip(message, primes, strict=True)])
        values = basis.arithmetic.forward(rows, places)
        return form.write(header, _less_uniform(values, form, header, basis, places, primes))

    def evaluation_key_bytes(self, key: EvaluationKey) -> bytes:
        """A fresh key of that description: what is sent and stored."""
        require_own_process("making an evaluation key")
        ring, basis = key.ring, self._basis(key.ring)
        moduli = 2 * ring.digits * basis.arithmetic.primes
        if key.kind == "relinearization":
            form = product_key_form(ring.ring_dim, moduli)
            header = form.header(fresh_seed(), self.tag)
            return form.write(header, self._key(form, header, basis, basis.squares, basis.secret, 0))
        if key.kind == "encapsulation":
            return self._pair(ring, basis)
        index = pow(5, key.amount, 2 * ring.ring_dim) if key.kind == "rotation" else 2 * ring.ring_dim - 1
        form = automorphism_key_form(ring.ring_dim, moduli, index)
        header = form.header(fresh_seed(), self.tag)
        turned = basis.values[:, automorphism_places(ring.ring_dim, pow(index, -1, 2 * ring.ring_dim))]
        factors = basis.arithmetic.factors(np.ascontiguousarray(turned), basis.places)
        return form.write(header, self._key(form, header, basis, basis.values, factors, 0))

    def _pair(self, ring: Ring, basis: _Basis) -> bytes:
        """The key from the secret to a fresh sparse one, whole, and the one back, in the small form."""
        stream = SecretStream()
        sparse = sparse_ternary(stream, ring.ring_dim, SPARSE_WEIGHT)
        there = _Basis(ring.ring_dim, ring.primes[:1], sparse_primes(ring), 1, sparse)
        form = pair_form(ring.ring_dim, 2 * there.arithmetic.primes + 2 * ring.digits * basis.arithmetic.primes)
        header = form.header(fresh_seed(), self.tag)
        # Its uniform half has no seed in this form: what stands at its places is expanded from a seed that is thrown away.
        other = form.header(fresh_seed(), self.tag)
        uniform = np.empty((SPARSE_BLOCKS // 2, ring.ring_dim), dtype=np.uint64)
        for place, row in enumerate(uniform):
            form.expand(row, other, place)
        first = [*uniform, *self._digit(uniform, there, basis.values[:1], there.secret, 0)]
        target = basis.arithmetic.forward(
            np.stack([residues(sparse, q) for q in basis.arithmetic.primes]), basis.places
        )
        return form.write(header, [*first, *self._key(form, header, basis, target, basis.secret, SPARSE_BLOCKS)])

    def _key(
        self, form: SeededForm, header: bytes, basis: _Basis, target: Array, secret: Any, begin: int
    ) -> list[Array]:
        """The halves that are written of a key from `target` to `secret`, whose polynomials begin at a place of the form."""
        count, made = len(basis.places), []
        uniform = np.empty((count, form.ring_dim), dtype=np.uint64)
        for digit in range(basis.digits):
            for i, row in enumerate(uniform):
                form.expand(row, header, begin + digit * count + i)
            made += list(self._digit(uniform, basis, target, secret, digit))
        return made

    def _digit(self, uniform: Array, basis: _Basis, target: Array, secret: Any, digit: int) -> Array:
        """b of one digit: e - a secret, and P target modulo its primes."""
        primes, places = basis.arithmetic.primes, basis.places
        error = gaussian(SecretStream(), uniform.shape[1])
        errors = np.stack([residues(error, q) for q in primes])
        made = basis.arithmetic.forward(errors, places)
        product = basis.arithmetic.products(uniform, secret, places)
        for i in basis.towers_of(digit):
            made[i] = total(made[i], basis.lifted(target[i], i), primes[i])
        for i, q in enumerate(primes):
            made[i] = difference(made[i], product[i], q)
        self._check(made, uniform, basis, secret)
        return made

    @staticmethod
    def _check(made: Array, uniform: Array, basis: _Basis, secret: Any) -> None:
        """An InternalError unless b + a s is a small error modulo the last special prime."""
        last, q = basis.places[-1:], basis.arithmetic.primes[-1]
        product = basis.arithmetic.products(uniform[-1:], secret[-1:], last)
        rest = basis.arithmetic.backward(np.stack([total(made[-1], product[0], q)]), last)
        if np.abs(centered(rest[0], q)).max() > _LARGEST_ERROR:
            raise InternalError("with the secret key an evaluation key does not decrypt to a small error")

    def _made_basis(self, ring: Ring) -> _Basis:
        special = largest_primes(ring.log_ring, ring.special_bits, ring.special, ring.primes)
        return _Basis(ring.ring_dim, ring.primes, special, ring.digits, self._coefficients)

    def secret_bytes(self) -> bytes:
        """The secret key for the client's file: its values modulo each prime, 8 bytes each, in OpenFHE's order."""
        basis = self._basis(self.ring)
        return b"".join(row.astype("<u8").tobytes() for row in basis.values[: self.ring.towers])

    @staticmethod
    def from_secret_bytes(ring: Ring, data: bytes, tag: str) -> Cryptor:
        """The cryptor whose `secret_bytes` these are; a WireError where they are not a secret key of that ring and name."""
        expected = 8 * ring.ring_dim * ring.towers
        if len(data) != expected:
            raise WireError(f"the secret key has {len(data)} bytes, expected {expected}")
        if len(tag) != 32 or set(tag) - set("0123456789abcdef"):
            raise WireError("the secret key has no valid name")
        values = np.frombuffer(data, dtype="<u8").reshape(ring.towers, ring.ring_dim)
        first = np.array([0])
        row = arithmetic(ring.ring_dim, ring.primes[:1]).backward(values[:1] % np.uint64(ring.primes[0]), first)[0]
        coefficients = centered(row, ring.primes[0])
        cryptor = Cryptor(ring, coefficients, tag)
        if np.abs(coefficients).max() > 1 or cryptor.secret_bytes() != data:
            raise WireError("the secret key is none: it is not ternary, or not the same modulo each prime")
        return cryptor


class _Basis:
    """A chain with its special primes, and the secret key modulo all of them.

    `arithmetic` is over the primes of both; `values` (n, N) are those of the secret, `secret` the same as factors, `squares`
    the values of its square.
    """

    def __init__(
        self, ring_dim: int, primes: tuple[int, ...], special: tuple[int, ...], digits: int, coefficients: Array
    ) -> None:
        self.digits, self._towers, self._product = digits, len(primes), math.prod(special)
        self.arithmetic: Arithmetic = arithmetic(ring_dim, primes + special)
        self.places = np.arange(len(primes) + len(special))
        rows = np.stack([residues(coefficients, q) for q in self.arithmetic.primes])
        self.values = self.arithmetic.forward(rows, self.places)
        self.secret = self.arithmetic.factors(self.values, self.places)

    @functools.cached_property
    def squares(self) -> Array:
        return self.arithmetic.products(self.values, self.secret, self.places)

    def towers_of(self, digit: int) -> range:
        """The places of a digit's primes."""
        alpha = -(-self._towers // self.digits)
        return range(digit * alpha, min((digit + 1) * alpha, self._towers))

    def lifted(self, values: Array, place: int) -> Array:
        """Values modulo one prime times the product of the special primes."""
        prime = self.arithmetic.primes[place]
        constant = np.full((1, values.size), self._product % prime, dtype=np.uint64)
        one = self.places[place : place + 1]
        made: Array = self.arithmetic.products(values[np.newaxis], self.arithmetic.factors(constant, one), one)[0]
        return made


def sparse_primes(ring: Ring) -> tuple[int, ...]:
    """The special primes of the key that leads to the sparse secret; its chain is the first prime alone."""
    return largest_primes(ring.log_ring, SPARSE_SPECIAL_BITS, 2, ring.primes[:1])


def _less_uniform(
    values: Array, form: SeededForm, header: bytes, basis: _Basis, places: Array, primes: Sequence[int]
) -> list[Array]:
    """values - a s, where a is what the header of a ciphertext expands to."""
    uniform = np.empty_like(values)
    for place, row in zip(form.uniform, uniform, strict=True):
        form.expand(row, header, place)
    product = basis.arithmetic.products(uniform, basis.secret[: len(primes)], places)
    return [difference(row, less, q) for row, less, q in zip(values, product, primes, strict=True)]


def _scaled(coefficients: Array, log_scale: float, primes: Sequence[int]) -> list[Array]:
    """Real coefficients times 2^log_scale, rounded, modulo each prime; a RangeError where they fill the modulus."""
    largest = float(np.abs(coefficients).max(initial=0.0))
    if not math.isfinite(largest):
        raise RangeError("what is to be encrypted holds NaN or infinity")
    bits = log_scale + math.log2(largest) if largest else 0.0
    if bits >= math.log2(math.prod(primes)) - 1:
        raise RangeError(f"what is to be encrypted is too large for its level at scale 2^{log_scale:.1f}")
    shift = max(0, math.ceil(bits) + 1 - _EXACT_BITS)
    whole = np.rint(coefficients * 2.0 ** (log_scale - shift)).astype(np.int64)
    found = []
    for q in primes:
        rest = np.remainder(whole, q).astype(np.uint64)
        for _ in range(shift):
            rest = total(rest, rest, q)
        found.append(rest)
    return found
