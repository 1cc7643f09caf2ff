"""The transforms between slots and coefficients as products of sparse matrices, by their diagonals.

The polynomial with coefficients m has slot j = sum_k c_k zeta^(5^j k), c_k = m_k + i m_(k + n), zeta of order 4n. With
c in bit-reversed order, this is a product of log2(n) layers, each of which combines slots h apart, h = 1, 2, 4 ... (the
fast Fourier transform of Cheon, Han, Kim, Kim and Song, "A Full RNS Variant of ...", 2018; collapsed into few factors
after Chen, Chillotti and Song, 2018). Nothing here is encrypted.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heliograph.ckks.ring import Ring

Array = npt.NDArray[Any]
# Diagonals by their offset: (M v)_j = sum over offsets o of diagonal_o[j] v[j + o].
Diagonals = dict[int, Array]


@dataclass(frozen=True, slots=True)
class FourierFactor:
    """One factor of the transform between `slots` slots and coefficients, in the form in which it is evaluated.

    Its diagonals lie `scale` apart: diagonal g * giant + b is the b-th baby step of giant step g. All steps go to the
    left, so the result is rotated.

    `slots`: the number of slots.
    `inverse`: whether it belongs to CoeffsToSlots, else to SlotsToCoeffs.
    `scale`, `layers`: it is the product of `layers` layers, from the one that combines slots `scale` apart on.
    `giant`: the number of baby steps of a giant step.
    `shift`: the slots by which its operand is rotated to the left; `turned` is the same for its result.
    """

    slots: int
    inverse: bool
    scale: int
    layers: int
    giant: int
    shift: int

    @property
    def turned(self) -> int:
        """The slots by which its result is rotated to the left."""
        # A single factor needs no rotation back; several share one at the end.
        return self.shift + (self._most * self.scale)

    @property
    def _most(self) -> int:
        return (1 << self.layers) - 1 if 1 << self.layers < self.slots else 0

    @property
    def diagonals(self) -> int:
        """The number of its diagonals: offsets that differ by all slots are one rotation."""
        return min((2 << self.layers) - 1, self.slots // self.scale)

    @property
    def babies(self) -> tuple[int, ...]:
        """The amounts of its baby steps, the first of which is 0."""
        return tuple(b * self.scale for b in range(min(self.giant, self.diagonals)))

    @property
    def giant_step(self) -> int:
        """The amount of a giant step; 0 if there is only one group of baby steps."""
        return self.giant * self.scale if self.diagonals > self.giant else 0

    @property
    def groups(self) -> tuple[range, ...]:
        """The numbers of the diagonals of each giant step."""
        return tuple(
            range(begin, min(begin + self.giant, self.diagonals)) for begin in range(0, self.diagonals, self.giant)
        )

    @property
    def rotations(self) -> tuple[int, ...]:
        """The rotation amounts of its evaluation, each once."""
        return tuple(dict.fromkeys(amount for amount in (*self.babies, self.giant_step) if amount))

    def values(self) -> list[Array]:
        """The diagonals, each rotated for its giant step: (slots,), complex."""
        return _values(self)


# A bootstrap has at most six factors.
@functools.lru_cache(maxsize=8)
def _values(factor: FourierFactor) -> list[Array]:
    slots, scale = factor.slots, factor.scale
    heights = [scale << layer for layer in range(factor.layers)]
    matrix: Diagonals | None = None
    for height in reversed(heights) if factor.inverse else heights:
        layer = _layer(slots, height, factor.inverse)
        matrix = layer if matrix is None else _product(layer, matrix)
    assert matrix is not None
    found: Diagonals = {}
    for offset, diagonal in matrix.items():
        place = (offset + factor.turned - factor.shift) % slots // scale
        turned = np.roll(diagonal, -factor.turned + place // factor.giant * factor.giant * scale)
        found[place] = found[place] + turned if place in found else turned
    return [found[place] for place in range(factor.diagonals)]


def transform(ring: Ring, slots: int, inverse: bool) -> tuple[tuple[FourierFactor, ...], int]:
    """The factors of SlotsToCoeffs (or, with `inverse`, of CoeffsToSlots), in the order of evaluation, and the final
    rotation that brings all values back to their places (0 for none).
    """
    assert ring.bootstrap is not None
    encode, decode = ring.bootstrap
    made = _factors(slots, encode if inverse else decode, inverse, ring.bootstrap_babies)
    shift, period = made[-1].turned, min(2 * slots, ring.slots)
    return made, -shift % period if shift else 0


@functools.lru_cache(maxsize=1024)
def _factors(slots: int, budget: int, inverse: bool, babies: int) -> tuple[FourierFactor, ...]:
    """The factors of the transform of `slots` points: at most `budget`.

    A fast Fourier transform of n points is a product of log2(n) sparse matrices (layers): layer j combines slots 2**j
    apart. Neighbouring layers are multiplied together until there are at most `budget` factors, one for each level of
    the transform. Each factor gets the same number of layers, and one gets the rest: 10 layers in 3 factors are 4 + 4 +
    2. If equal numbers would leave a level unused, the rest is the larger part: 9 layers in 4 factors are not 3 + 3 +
    3, but 2 + 2 + 2 + 3. `inverse` is CoeffsToSlots, else SlotsToCoeffs; they differ in the place of the rest. This is
    OpenFHE's split (`GetCollapsedFFTParams`, ckksrns-utils.cpp of 1.6.1). `babies` comes from the ring
    (`Ring.bootstrap_babies`).
    """
    log_slots = max(1, slots.bit_length() - 1)
    budget = max(1, min(budget, log_slots))
    layers = -(-log_slots // budget)
    rows, rest = divmod(log_slots, layers)
    if rows + (rest > 0) < budget:
        # A level would stay unused: each factor gets one layer less, and the factor with the rest gets the others.
        layers -= 1
        rows = min(log_slots // layers, budget)
        if log_slots - rows * layers and rows == budget:
            rows -= 1
        rest = log_slots - rows * layers
    # The rest takes the first layers in CoeffsToSlots (scale one), and the last layers in SlotsToCoeffs (the largest
    # scale).
    first = rest if inverse else 0
    parts = [(1 << first + row * layers, layers, babies) for row in range(rows)]
    if rest:
        # OpenFHE chooses the baby steps of this factor itself.
        parts.insert(0 if inverse else rows, (1 if inverse else 1 << rows * layers, rest, 0))
    made: list[FourierFactor] = []
    for scale, count, wanted in reversed(parts) if inverse else parts:
        giant = wanted if 0 < wanted < 2 << count else 1 << count // 2 + (2 if count > 2 else 1)
        made.append(FourierFactor(slots, inverse, scale, count, giant, made[-1].turned if made else 0))
    return tuple(made)


def _layer(slots: int, height: int, inverse: bool) -> Diagonals:
    """One layer of the transform, or of its inverse."""
    order, power = 8 * height, 1
    exponents = np.empty(height)
    for j in range(height):
        exponents[j] = power
        power = power * 5 % order
    roots = np.exp(2j * np.pi * exponents / order)
    repeats = slots // (2 * height)
    upper = np.tile(np.repeat([1.0, 0.0], height), repeats)
    roots = np.tile(np.concatenate([roots, roots]), repeats)
    lower = 1.0 - upper
    if inverse:
        return {0: (upper - lower * roots.conj()) / 2, height: upper / 2, -height: lower * roots.conj() / 2}
    return {0: upper - lower * roots, height: upper * roots, -height: lower}


def _product(left: Diagonals, right: Diagonals) -> Diagonals:
    """The diagonals of the product left @ right."""
    found: Diagonals = {}
    for p, a in left.items():
        for q, b in right.items():
            term = a * np.roll(b, -p)
            found[p + q] = found[p + q] + term if p + q in found else term
    return found
