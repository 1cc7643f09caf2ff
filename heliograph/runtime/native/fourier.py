"""The transforms between slots and coefficients as products of sparse matrices, by their diagonals.

The polynomial with coefficients m has slot j at sum_k c_k zeta^(5^j k), c_k = m_k + i m_(k + n), zeta of order 4n. Of c in
the order of reversed bits that is a product of log2(n) layers, each of which combines slots that lie h apart, h = 1, 2, 4
... (the fast Fourier transform of Cheon, Han, Kim, Kim and Song, "A Full RNS Variant of ...", 2018; collapsed into few
factors after Chen, Chillotti and Song, 2018). Nothing here is encrypted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.ckks.bootstrap import Factor
from heliograph.ir import Array

# Diagonals by their offset: (M v)_j = sum over offsets o of diagonal_o[j] v[j + o].
Diagonals = dict[int, Array]


@dataclass(frozen=True, slots=True)
class Step:
    """One factor as it is evaluated: for each giant step the diagonals by baby step, turned so that all steps go left.

    The sum over g of rotations by g * `giant` of the sums over b of diagonal (g, b) times the rotation by b * `scale`. The
    whole product of the factors comes out rotated by what `whole_shift` says.
    """

    scale: int
    giant: int
    groups: tuple[dict[int, Array], ...]


def slots_to_coefficients(factors: Sequence[Factor], slots: int) -> tuple[list[Step], int]:
    """The steps that make coefficients of slots, in the order in which they are done, and the shift that is left."""
    return _steps(factors, slots, inverse=False)


def coefficients_to_slots(factors: Sequence[Factor], slots: int) -> tuple[list[Step], int]:
    """The inverse of `slots_to_coefficients`."""
    return _steps(factors, slots, inverse=True)


def _steps(factors: Sequence[Factor], slots: int, inverse: bool) -> tuple[list[Step], int]:
    """The steps, and by how much their product is rotated to the left of what it should be."""
    made, shift = [], 0
    # A single factor has all rotations as they are; several share one rotation back at the end.
    shifted = len(factors) > 1
    for factor in reversed(factors) if inverse else factors:
        layers = range(factor.layers)
        heights = [factor.scale << layer for layer in (reversed(layers) if inverse else layers)]
        matrix: Diagonals | None = None
        for height in heights:
            layer = _layer(slots, height, inverse)
            matrix = layer if matrix is None else _product(layer, matrix)
        assert matrix is not None
        most = (1 << factor.layers) - 1 if shifted else 0
        shift += most * factor.scale
        count = slots // factor.scale
        merged: dict[int, Array] = {}
        for offset, diagonal in matrix.items():
            # Offsets that differ by all slots are one rotation.
            place = offset // factor.scale + most
            place = place % count if 2 * most >= count or not shifted else place
            turned = np.roll(diagonal, -shift)
            merged[place] = merged[place] + turned if place in merged else turned
        groups: list[dict[int, Array]] = [{} for _ in range(max(merged) // factor.giant + 1)]
        for place, diagonal in merged.items():
            g, b = divmod(place, factor.giant)
            groups[g][b] = np.roll(diagonal, g * factor.giant * factor.scale)
        made.append(Step(factor.scale, factor.giant * factor.scale, tuple(groups)))
    return made, shift


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
    """The diagonals of the matrix that does `right` first."""
    found: Diagonals = {}
    for p, a in left.items():
        for q, b in right.items():
            term = a * np.roll(b, -p)
            found[p + q] = found[p + q] + term if p + q in found else term
    return found
