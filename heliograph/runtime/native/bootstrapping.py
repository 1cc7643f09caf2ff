"""A bootstrap on the native backend, with OpenFHE's keys and at OpenFHE's levels.

Slots become coefficients at the low end of the chain, the modulus is raised under an ephemeral sparse secret (Bossuat,
Troncoso-Pastoriza and Hubaux, "Bootstrapping for Approximate Homomorphic Encryption with Negligible Failure-Probability",
2022), coefficients become slots, and the multiples of the first prime that came in are taken off (modular_reduction.py).

With a sparse secret of weight h a coefficient is off by at most (h + 1) / 2 multiples: the reduction reaches that far, and
no bootstrap fails by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heliograph.ckks.bootstrap import bootstrap_factors
from heliograph.ckks.noise import BOOTSTRAP_LIMIT, BOOTSTRAP_REACH
from heliograph.ckks.ring import NATIVE_REDUCTION_LEVELS, Ring
from heliograph.ir import Array
from heliograph.runtime.native import elementwise, keyswitch, modular_reduction
from heliograph.runtime.native.ciphertext import Ciphertext, SparseKeys, SwitchingKey
from heliograph.runtime.native.encoding import encode
from heliograph.runtime.native.fourier import Step, coefficients_to_slots, slots_to_coefficients
from heliograph.runtime.native.primitives import KeyOf, NativePrimitives
from heliograph.runtime.native.shared import Shared
from heliograph.runtime.native.tables import ChainTables

# What a first iteration leaves over is below 2^-17 of a value of size one; it is made larger by so many bits for the second.
_LEFT_BITS = 16
# In a chain that OpenFHE's bootstraps fit too, messages enter the reduction at this share of the first prime. Rings of
# our own choose theirs (`Ring.bootstrap_share`): large ones leave more of a coarse scale, small ones bend the sine less.
_SHARE = 256

assert modular_reduction.LEVELS == NATIVE_REDUCTION_LEVELS


@dataclass(frozen=True, slots=True, eq=False)
class EncodedStep:
    """A factor with encoded diagonals: `plains` of (towers, N); the terms as `sums_of_products` takes them."""

    scale: int
    giant: int
    babies: tuple[int, ...]
    plains: tuple[Array, ...]
    terms: Array
    begins: Array


class Transforms:
    """The encoded factors of both transforms in one chain, for one number of slots: gigabytes at full size."""

    def __init__(self, ring: Ring, tables: ChainTables, slots: int) -> None:
        self.ring, self.slots = ring, slots
        logs = [math.log2(prime) for prime in tables.primes]
        encode, decode = bootstrap_factors(ring, slots)
        first, self.share = ring.primes[0], ring.bootstrap_share or _SHARE
        # Multiples of the first prime that a coefficient may be off by, and the message.
        self.reach = BOOTSTRAP_REACH + BOOTSTRAP_LIMIT / self.share
        # What a coefficient stands for: u 2^scale_bits becomes u q0 / share.
        lowered = math.log2(first / self.share) - ring.scale_bits
        steps, shift = slots_to_coefficients(decode, slots)
        level = len(steps)
        self.input_level = level
        scales = [logs[level - i] for i in range(len(steps))]
        scales[-1] += lowered
        self.down = [_encoded(step, tables, level - i, scales[i]) for i, step in enumerate(steps)]
        # Twice the real part and all replicas are added up before the scale is what the reduction begins with.
        self.replicas = ring.slots // slots
        self.raised_scale = math.log2(first * self.reach) + math.log2(self.replicas) + 1
        steps, up_shift = coefficients_to_slots(encode, slots)
        assert up_shift == shift
        # The scale at which the reduction begins, and stays.
        self.reduction_scale = ring.scale_bits + 1.0
        shed = (self.raised_scale - self.reduction_scale) / len(steps)
        # Levels that OpenFHE's bootstraps would take besides.
        self.spare = ring.levels - len(steps) - modular_reduction.LEVELS
        self.spare -= ring.bootstrap_level + ring.bootstrap_iterations - 1
        self.up = [
            _encoded(step, tables, ring.levels - i, logs[ring.levels - i] - shed) for i, step in enumerate(steps)
        ]
        period = min(2 * slots, ring.slots)
        self.back = -shift % period if shift else 0


def _encoded(step: Step, tables: ChainTables, level: int, log_scale: float) -> EncodedStep:
    babies = sorted({b for group in step.groups for b in group})
    plains: list[Array] = []
    terms, begins = [], [0]
    for group in step.groups:
        for b, diagonal in sorted(group.items()):
            terms.append((babies.index(b), len(plains)))
            plains.append(encode(diagonal, log_scale, level, tables))
        begins.append(len(terms))
    return EncodedStep(
        step.scale,
        step.giant,
        tuple(babies),
        tuple(plains),
        np.array(terms, dtype=np.int64),
        np.array(begins, dtype=np.int64),
    )


_TRANSFORMS: Shared[Transforms] = Shared()


def transforms_of(ring: Ring, tables: ChainTables, slots: int) -> Transforms:
    """The transforms of a chain, made unless somebody has them."""
    return _TRANSFORMS.get((ring, slots), lambda: Transforms(ring, tables, slots))


def bootstrap(
    do: NativePrimitives, x: Ciphertext, transforms: Transforms, keys: SparseKeys, paired: bool
) -> Ciphertext:
    """x, whose slots repeat with the transforms' period, at the chain's `bootstrap_level`, at the same true scale.

    Imaginary parts are kept where it is `paired`, else dropped. A second iteration bootstraps what the first left over
    (Bae, Cheon, Cho, Kim and Kim, "META-BTS", 2022).
    """
    first = _once(do, x, transforms, keys, paired)
    if transforms.ring.bootstrap_iterations == 1:
        return first
    left = do.sub(x, do.level_drop(first, first.level - x.level))
    second = _once(do, do.mul_scalar(left, 2.0**_LEFT_BITS, 0.0), transforms, keys, paired)
    log_prime = math.log2(do.tables.primes[second.level])
    return do.add(do.rescale(do.mul_scalar(second, 2.0**-_LEFT_BITS, log_prime)), do.level_drop(first, 1))


def _once(do: NativePrimitives, x: Ciphertext, transforms: Transforms, keys: SparseKeys, paired: bool) -> Ciphertext:
    x = do.level_drop(x, x.level - transforms.input_level)
    for step in transforms.down:
        x = _step(do, x, step)
    x = _turned_back(do, x, transforms.back)
    x = _raised(do, x, keys)
    x = _replicas_summed(do, x, transforms)
    for step in transforms.up:
        x = _step(do, x, step)
    x = _turned_back(do, x, transforms.back)
    x = do.level_drop(x, transforms.spare)
    mirrored = do.conjugate(x)
    real = _reduced(do, do.add(x, mirrored), transforms)
    if not paired:
        return real
    # Twice the imaginary part.
    imaginary = _reduced(do, do.times_i(do.sub(mirrored, x)), transforms)
    return do.add(real, do.times_i(imaginary))


def _reduced(do: NativePrimitives, x: Ciphertext, transforms: Transforms) -> Ciphertext:
    scale, target = transforms.reduction_scale, float(transforms.ring.scale_bits)
    return modular_reduction.reduced(do, x, scale, transforms.reach, transforms.share, target)


def _step(do: NativePrimitives, x: Ciphertext, step: EncodedStep) -> Ciphertext:
    """One factor: all sums of products with baby steps at once, then giant steps, from the farthest on."""
    digits = do.decompose(x)
    rotated = [do.rotate_hoisted(x, b * step.scale, digits) if b else x for b in step.babies]
    *sums, total = do.sums_of_products(rotated, step.plains, step.terms, step.begins)
    for part in reversed(sums):
        total = do.accumulate(do.rotate(total, step.giant), part)
    return do.rescale(total)


def _turned_back(do: NativePrimitives, x: Ciphertext, amount: int) -> Ciphertext:
    return do.rotate(x, amount) if amount else x


def _replicas_summed(do: NativePrimitives, x: Ciphertext, transforms: Transforms) -> Ciphertext:
    """The sum over all rotations by whole periods: only coefficients that the transforms know are left, so often."""
    step, slots = transforms.slots, transforms.ring.slots
    while step < slots:
        count = min(4, slots // step)
        digits, total = do.decompose(x), x
        for i in range(1, count):
            total = do.add(total, do.rotate_hoisted(x, step * i, digits))
        x, step = total, step * count
    return x


def _raised(do: NativePrimitives, x: Ciphertext, keys: SparseKeys) -> Ciphertext:
    """A ciphertext modulo the first prime as one modulo all of them, of the message and multiples of that prime."""
    tables, known = do.tables, do.tables.known
    sparse = _switched(NativePrimitives(keys.tables, _no_key), x.residues, keys.there)
    scaled = np.empty((2, tables.ring_dim), dtype=np.uint64)
    first = np.repeat(tables.rows[:1], 2)
    keyswitch.coefficients(sparse[:, 0], scaled, first, known.last[first], known.moduli, known.outer, known.inner)
    raised = np.empty((2, len(tables.primes), tables.ring_dim), dtype=np.uint64)
    prime = np.uint64(tables.primes[0])
    keyswitch.raise_modulus(scaled, prime, raised, tables.rows, known.moduli, known.outer, known.inner)
    return Ciphertext(_switched(do, raised, keys.back))


def _switched(do: NativePrimitives, residues: Array, key: SwitchingKey) -> Array:
    """A ciphertext under the secret that a key leads to."""
    made = do.switched(residues[1], key)
    elementwise.add(made, residues[:1], made, do.tables.rows[: residues.shape[1]], do.tables.known.moduli)
    return made


def _no_key(kind: str, amount: int) -> SwitchingKey:
    raise AssertionError("the chain of the sparse secret has one key, which is given")


class BootstrappingPrimitives(NativePrimitives):
    """All primitives in one chain; `transforms` finds what bootstraps of so many slots take."""

    def __init__(self, tables: ChainTables, key_of: KeyOf, transforms: Callable[[int], Transforms]) -> None:
        super().__init__(tables, key_of)
        self._transforms = transforms

    def bootstrap(self, x: Ciphertext, slots: int) -> Ciphertext:
        return bootstrap(self, x, self._transforms(slots), self._key_of("encapsulation", 0), paired=False)

    def bootstrap_pair(self, x: Ciphertext, slots: int) -> Ciphertext:
        return bootstrap(self, x, self._transforms(slots), self._key_of("encapsulation", 0), paired=True)
