"""Costs of the primitives: milliseconds by a linear model of their transforms and products."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.ckks.ring import Ring

# Copying one coefficient modulo one prime.
_COPY_NS = 15.0
# A product and its addition in weighted sums; and moving a coefficient out of a ciphertext or into one.
_SUM_NS = 0.2
_PIECE_NS = 15.0


@dataclass(frozen=True, slots=True)
class CostTable:
    """Milliseconds of the primitives, by a linear model of their transforms and products.

    `machine`: the machine of the measurements; the numbers are fitted to their medians.
    `ntt_ns`: one butterfly layer for one coefficient.
    `mul_ns`: one modular product of one coefficient.
    `conv_ns`: one product in a base conversion.
    `add_ns`: one sum.
    `encode_ns`: one layer of the encoder's complex transform.
    `call_us`: the overhead of a call.
    `switch_us`: the overhead of each half of a key switch.
    `sample_ns`: one random coefficient of a key.
    `term_ns`: one coefficient of one term of a sum of products.
    `word_share`: the time of a row of 32-bit words, as a share of that of a row of 64-bit numbers (ckks/primes.py).
    """

    machine: str
    ntt_ns: float
    mul_ns: float
    conv_ns: float
    add_ns: float
    encode_ns: float
    call_us: float
    switch_us: float
    sample_ns: float = 12.3
    term_ns: float = 0.44
    word_share: float = 0.385

    def _ms(self, ring: Ring, ntts: float, muls: float, convs: float) -> float:
        n = ring.ring_dim
        return (
            ntts * n * ring.log_ring * self.ntt_ns + muls * n * self.mul_ns + convs * n * self.conv_ns
        ) * 1e-6 + self.call_us * 1e-3

    def _rows(self, ring: Ring, level: int) -> float:
        """The primes of a level, those of one word as a share."""
        short = 2 * (level + 1) - ring.words(level)
        return level + 1 - (1.0 - self.word_share) * short

    def _specials(self, ring: Ring) -> float:
        """The special primes, in the same way."""
        return ring.special * (self.word_share if ring.special_words == ring.special else 1.0)

    def decompose_ms(self, ring: Ring, towers: int) -> float:
        """Splitting a ciphertext into digits and raising each of them (once for all hoisted rotations)."""
        digits, alpha = ring.digits_at(towers), ring.alpha
        rows = self._rows(ring, towers - 1)
        # A digit is raised to the primes outside of it. All digits have alpha primes, except the last, which has the
        # rest.
        rest = towers % alpha
        squares = towers // alpha * alpha * alpha + rest * rest
        every = rows + self._specials(ring)
        return self._ms(ring, digits * every, 0.0, towers * every - squares * rows / towers) + self.switch_us * 1e-3

    def switch_ms(self, ring: Ring, towers: int) -> float:
        """The product with a key and the division by the special primes."""
        rows = self._rows(ring, towers - 1)
        every = rows + self._specials(ring)
        ms = self._ms(ring, 2 * every, 2 * ring.digits_at(towers) * every, 2 * ring.special * rows)
        return ms + self.switch_us * 1e-3

    def rotate_ms(self, ring: Ring, level: int, hoisted: bool = False) -> float:
        """One rotation; a hoisted one shares the decomposition, which is priced separately."""
        towers = level + 1
        ms = self.switch_ms(ring, towers) + self._ms(ring, 0, 2 * self._rows(ring, level), 0)
        return ms if hoisted else ms + self.decompose_ms(ring, towers)

    def rotate_wide_ms(self, ring: Ring, level: int) -> float:
        """A hoisted rotation in the extended basis, without the division by the special primes: the product with a key,
        and its permutation.
        """
        rows = self._rows(ring, level) + self._specials(ring)
        return self._ms(ring, 0, 2 * (ring.digits_at(level + 1) + 1) * rows, 0)

    def narrow_ms(self, ring: Ring, level: int, parts: int = 2) -> float:
        """The division by the special primes."""
        rows = self._rows(ring, level)
        ntts = parts * (rows + self._specials(ring))
        return self._ms(ring, ntts, 0, parts * ring.special * rows) + self.switch_us * 1e-3

    def step_wide_ms(self, ring: Ring, level: int) -> float:
        """A giant step in the extended basis: one of two parts is divided, and split into digits again."""
        rotated = self.decompose_ms(ring, level + 1) + self.rotate_wide_ms(ring, level)
        return rotated + self.narrow_ms(ring, level, parts=1)

    def wide_product_ms(self, ring: Ring, level: int) -> float:
        """One term of a sum of products with plaintexts in the extended basis, over the special primes too."""
        return 2 * (self._rows(ring, level) + self._specials(ring)) * ring.ring_dim * self.term_ns * 1e-6

    def relinearize_ms(self, ring: Ring, level: int) -> float:
        return self.switch_ms(ring, level + 1) + self.decompose_ms(ring, level + 1)

    def relinearize_wide_ms(self, ring: Ring, level: int) -> float:
        """A relinearization that is not divided by the special primes."""
        return self.relinearize_ms(ring, level) - self.narrow_ms(ring, level)

    def narrow_rescale_ms(self, ring: Ring, level: int) -> float:
        """The division by the special primes and the prime of the level at once: one more source, one row less."""
        return self.narrow_ms(ring, level) + self._ms(ring, 0, 0, 2 * self._rows(ring, level))

    def mul_plain_ms(self, ring: Ring, level: int, parts: int = 2) -> float:
        return self._ms(ring, 0, parts * self._rows(ring, level), 0)

    def summed_product_ms(self, ring: Ring, level: int) -> float:
        """One term of a sum of products with plaintexts: the product and its addition."""
        return 2 * self._rows(ring, level) * ring.ring_dim * self.term_ns * 1e-6

    def weighted_sums_ms(self, ring: Ring, level: int, sums: int, ciphertexts: int) -> float:
        """Sums of ciphertexts times numbers, by products of matrices of floating-point numbers."""
        numbers = 2 * (level + 1) * ring.ring_dim
        # Each ciphertext is taken apart and each sum put together; products come in two or three pieces.
        return numbers * (_SUM_NS * sums * ciphertexts + _PIECE_NS * (sums + ciphertexts)) * 1e-6 + self.call_us * 1e-3

    def mul_ms(self, ring: Ring, level: int) -> float:
        """A product of two ciphertexts, not relinearized."""
        return self._ms(ring, 0, 4 * self._rows(ring, level), 0)

    def raise_modulus_ms(self, ring: Ring) -> float:
        """The switch to the sparse secret (a small cost), the raised modulus, and the switch back."""
        return self.relinearize_ms(ring, ring.levels) + self._ms(ring, 2 * self._rows(ring, ring.levels), 0, 0)

    def rescale_ms(self, ring: Ring, level: int, parts: int = 2) -> float:
        rows = self._rows(ring, level)
        return self._ms(ring, parts * rows, parts * rows * level / (level + 1), 0)

    def add_ms(self, ring: Ring, level: int, parts: int = 2) -> float:
        return parts * self._rows(ring, level) * ring.ring_dim * self.add_ns * 1e-6 + self.call_us * 1e-3

    def switch_chain_ms(self, ring: Ring, level: int, parts: int = 2) -> float:
        """Passing a ciphertext's polynomials to another chain: a copy, not in the table (2 ms a prime at N = 2^16)."""
        return parts * self._rows(ring, level) * ring.ring_dim * _COPY_NS * 1e-6

    def encode_ms(self, ring: Ring, level: int) -> float:
        """Encoding one vector of all slots at a level: a complex transform and one transform per prime."""
        rows = self._rows(ring, level)
        return self._ms(ring, rows, 0, 0) + ring.ring_dim * ring.log_ring * self.encode_ns * 1e-6

    def key_ms(self, ring: Ring) -> float:
        """Generating one evaluation key: an encryption of zero for each digit, over all primes."""
        parts = ring.digits * (ring.towers + ring.special)
        return parts * ring.ring_dim * (ring.log_ring * self.ntt_ns + self.sample_ns) * 1e-6

    def encrypt_ms(self, ring: Ring, level: int) -> float:
        """Encoding and encrypting one vector under the secret key."""
        towers = level + 1
        fresh = towers * ring.ring_dim * (ring.log_ring * self.ntt_ns + self.sample_ns) * 1e-6
        return self.encode_ms(ring, level) + fresh

    def decrypt_ms(self, ring: Ring) -> float:
        """Decrypting and decoding one ciphertext at level 0."""
        # Decoding, the estimate of the error and the noise take about twice as long as encoding.
        return self._ms(ring, 1, 2, 0) + 2.2 * ring.ring_dim * ring.log_ring * self.encode_ns * 1e-6


# Medians of three runs of `heliograph doctor --calibrate` on a quiet virtual machine: our own kernels with two threads.
BUILT_IN = CostTable(
    "built in (two cores of an AMD EPYC with AVX-512)",
    ntt_ns=0.14,
    mul_ns=0.29,
    conv_ns=0.31,
    add_ns=0.18,
    encode_ns=1.0,
    call_us=64.0,
    switch_us=102.0,
    sample_ns=12.3,
)
