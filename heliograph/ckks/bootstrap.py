"""The factors of a bootstrap's transforms, and what its keys and plaintexts take: for plans whose bootstraps are not written
out yet.

Bootstrapping multiplies with the matrices of a discrete Fourier transform, each split into a few sparse factors, and each
factor takes rotations. These are OpenFHE's: `FindBootstrapRotationIndices` and `GetCollapsedFFTParams` (ckksrns-fhe.cpp,
ckksrns-utils.cpp of 1.6.1), after Chen, Chillotti and Song, "Improved Bootstrapping for Approximate Homomorphic
Encryption" (2018).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from heliograph.ckks.ring import Ring


@dataclass(frozen=True, slots=True)
class Factor:
    """`2 * 2**layers - 1` diagonals that lie `scale` apart, taken in giant steps of `giant` of them.

    There are as many baby steps, with a key each; `babies` of them where that is asked for and OpenFHE lets it be.
    """

    scale: int
    layers: int
    babies: int = 0

    @property
    def giant(self) -> int:
        if 0 < self.babies <= self.diagonals:
            return self.babies
        return 1 << self.layers // 2 + (2 if self.layers > 2 else 1)

    @property
    def giant_steps(self) -> int:
        return (self.diagonals + 1) // self.giant

    @property
    def diagonals(self) -> int:
        return (2 << self.layers) - 1

    def rotations(self) -> Iterator[int]:
        # The sum so far is rotated once more before the products of the next giant step are added, so one amount serves all
        # giant steps.
        yield from (j * self.scale for j in range(self.giant + 1))


@functools.lru_cache(maxsize=1024)
def _factors(slots: int, budget: int, encoding: bool, babies: int) -> tuple[Factor, ...]:
    """The factors of the transform of `slots` points: at most `budget`, in the order of their scales.

    A fast Fourier transform of n points is a product of log2(n) sparse matrices (layers): layer j combines slots that lie
    2**j apart. Neighbouring layers are multiplied together until no more factors are left than the transform may take
    levels, `budget`. Each factor gets the same number of layers, and one gets the rest: 10 layers in 3 factors are
    4 + 4 + 2. Where equal numbers would leave a level unused, the rest is the larger part: 9 layers in 4 factors are not
    3 + 3 + 3, but 2 + 2 + 2 + 3. `encoding` is CoeffsToSlots, else SlotsToCoeffs; they differ in where the rest stands.
    `babies` is the ring's (`Ring.bootstrap_babies`).
    """
    log_slots = max(1, slots.bit_length() - 1)
    budget = max(1, min(budget, log_slots))
    layers = -(-log_slots // budget)
    rows, rest = divmod(log_slots, layers)
    if rows + (rest > 0) < budget:
        # A level would stay unused: give each factor one layer less, and the factor with the rest what is left.
        layers -= 1
        rows = min(log_slots // layers, budget)
        if log_slots - rows * layers and rows == budget:
            rows -= 1
        rest = log_slots - rows * layers
    # The rest takes the first layers in CoeffsToSlots (scale one), and the last layers in SlotsToCoeffs (the largest
    # scale).
    first = rest if encoding else 0
    factors = [Factor(1 << first + row * layers, layers, babies) for row in range(rows)]
    if rest:
        # OpenFHE chooses the baby steps of this factor itself.
        factors.insert(0 if encoding else rows, Factor(1 if encoding else 1 << rows * layers, rest))
    return tuple(factors)


def bootstrap_factors(ring: Ring, slots: int) -> tuple[tuple[Factor, ...], tuple[Factor, ...]]:
    """The factors of CoeffsToSlots and of SlotsToCoeffs."""
    assert ring.bootstrap is not None
    encode, decode = ring.bootstrap
    return _factors(slots, encode, True, ring.bootstrap_babies), _factors(slots, decode, False, ring.bootstrap_babies)


@functools.lru_cache(maxsize=256)
def bootstrap_rotations(ring: Ring, slots: int) -> tuple[int, ...]:
    """The rotations of a bootstrap of values with period `slots`, ascending."""
    assert ring.bootstrap is not None
    encode, decode = bootstrap_factors(ring, slots)
    if len(encode) == len(decode) == 1:
        # One product with the whole matrix in each direction.
        giant = encode[0].giant
        found = {*range(giant), *range(giant, slots, giant)}
    else:
        # All factors have diagonals on both sides of the main one. A single rotation at the end undoes their shifts.
        period = min(2 * slots, ring.slots)
        found = {amount % period for factor in (*encode, *decode) for amount in factor.rotations()}
        found.add((1 - slots) % period)
    # The sum over the replicas of a value that does not fill the slots, four replicas at a time.
    step = slots
    while step < ring.slots:
        count = min(4, ring.slots // step)
        found.update(step * i for i in range(1, count))
        step *= count
    return tuple(sorted(found - {0}))


def all_bootstrap_rotations(ring: Ring, slot_counts: Iterable[int]) -> tuple[int, ...]:
    """The rotations of bootstraps of all these slot counts together, ascending."""
    return tuple(sorted({amount for slots in slot_counts for amount in bootstrap_rotations(ring, slots)}))


def bootstrap_table_bytes(ring: Ring, slots: int) -> int:
    """What the plaintexts of the two transforms take on the server, for one number of slots.

    A plaintext for each diagonal, over the primes left at its factor and the special ones, and the numbers that it was
    encoded from. (Measured for rings from 2**12 to 2**16: within 4 %.)
    """
    assert ring.bootstrap is not None
    encode, decode = bootstrap_factors(ring, slots)
    # CoeffsToSlots applies its factors from the last to the first, SlotsToCoeffs from the first to the last.
    towers = [(factor, ring.towers - number) for number, factor in enumerate(reversed(encode))]
    towers += [(factor, ring.bootstrap_input_level + 1 - number) for number, factor in enumerate(decode)]
    polynomials = sum(factor.diagonals * (left + ring.special) for factor, left in towers)
    numbers = sum(factor.diagonals for factor, _ in towers) * slots
    return 8 * polynomials * ring.ring_dim + 16 * numbers
