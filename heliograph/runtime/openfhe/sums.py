"""Weighted sums (runtime/sums.py) of OpenFHE's ciphertexts.

They come and go as their coefficients, and into OpenFHE as the bytes that it would write of them (template.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import scipy.sparse

from heliograph.ckks.ring import Ring
from heliograph.ir import Array
from heliograph.runtime import sums
from heliograph.runtime.openfhe.context import library
from heliograph.runtime.openfhe.serial import residues_of
from heliograph.runtime.openfhe.template import TAG_LENGTH, ciphertext_template, moved

# The tag of keys in bytes that only pass through. Tags of lower parts of a chain are longer than a client's.
_UNNAMED = "0" * TAG_LENGTH


@dataclass(frozen=True, slots=True)
class Coefficients:
    """A ciphertext of two parts as its coefficients: for inputs that only weighted sums read.

    `blocks` are (2 (level + 1), ring_dim) numbers below their primes, part by part.
    """

    blocks: tuple[Array, ...]
    level: int
    tag: str

    @staticmethod
    def of(residues: Array, tag: str) -> Coefficients:
        """From the residues (2, level + 1, N) of a ciphertext."""
        return Coefficients(tuple(residues.reshape(-1, residues.shape[-1])), residues.shape[1] - 1, tag)

    def dropped(self, levels: int) -> Coefficients:
        """The same, fewer primes."""
        half, kept = self.level + 1, self.level + 1 - levels
        return Coefficients((*self.blocks[:kept], *self.blocks[half : half + kept]), self.level - levels, self.tag)


def weighted_sums(
    values: Sequence[Any], weights: scipy.sparse.csr_array, log_scale: float, ring: Ring, level: int, tag: str
) -> list[Any]:
    """For each row of the weights the sum of ciphertexts times them: products, not yet rescaled."""
    form = ciphertext_template(ring, level)
    # The same ciphertext may occur in several positions.
    taken_apart = {id(value): _coefficients(value, ring, level) for value in values}
    known = [taken_apart[id(value)].blocks for value in values]
    made = []
    for row in sums.weighted_sums(known, weights, log_scale, form.blocks_moduli):
        data = form.fill((block.data for block in row), _UNNAMED)
        ciphertext = moved(library().DeserializeCiphertextString(data, library().BINARY), ring, level, tag)
        ciphertext.SetNoiseScaleDeg(2)
        ciphertext.SetScalingFactor(ciphertext.GetScalingFactor() ** 2)
        made.append(ciphertext)
    return made


def _coefficients(value: Any, ring: Ring, level: int) -> Coefficients:
    if isinstance(value, Coefficients):
        return value
    return Coefficients.of(residues_of(value, ring, level), _UNNAMED)
