"""The compiled program on numpy: values with the errors of CKKS, levels, scales, and every refusal.

It refuses calls that OpenFHE would refuse or answer with nonsense: a missing level, a missing rotation key, unequal
scales, a value too large for its modulus, a wrong number of parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heliograph.ckks import noise
from heliograph.ckks.chains import Chain
from heliograph.ckks.embedding import coefficients_of, slots_of
from heliograph.ckks.ring import Ring
from heliograph.errors import ProgramError, RangeError, said
from heliograph.execution.evaluation import Run
from heliograph.execution.evaluator import Evaluator
from heliograph.execution.protocol import Composed
from heliograph.execution.walk import Walk
from heliograph.ir import Array, CipherType, Node, Program
from heliograph.ir.ops.slots.bootstraps import fourier_factor
from heliograph.ir.ops.slots.runs import cipher
from heliograph.ir.ops.slots.types import SCALE_TOLERANCE


@dataclass(frozen=True, slots=True)
class SimulatedCiphertext:
    """The slots after decryption, with the bookkeeping of a ciphertext."""

    slots: Array
    level: int
    log_scale: float
    parts: int = 2


@dataclass(frozen=True, slots=True)
class SimulatedPlaintext:
    """The slots after encoding, or the number in all of them, and the scale."""

    slots: Array | float
    log_scale: float


class _Errors:
    """The errors of one simulation, from one random sequence for the client and all chains."""

    def __init__(self, ring: Ring, seed: int, noisy: bool, louder: float) -> None:
        self.ring, self.noisy, self._louder = ring, noisy, louder
        self.random = np.random.default_rng(seed)
        self.bias = noise.switch_bias(ring, self.random) if noisy else np.zeros(ring.slots)
        self._log_q = [sum(ring.log_primes[: level + 1]) for level in range(len(ring.log_primes))]

    def gaussian(self, shape: tuple[int, ...]) -> Array:
        """Complex noise with real and imaginary parts of standard deviation one, or of `louder`."""
        # Faster than `normal`, which shifts and scales the same numbers.
        made = np.asarray(self.random.standard_normal((*shape, 2)).view(np.complex128)[..., 0])
        return made if self._louder == 1.0 else made * self._louder

    def made(
        self, slots: Array, level: int, log_scale: float, parts: int, std: float, what: str
    ) -> SimulatedCiphertext:
        """A ciphertext with fresh error added. Raises RangeError if its values do not fit the modulus."""
        if self.noisy and std:
            slots = slots + self.gaussian(slots.shape) * (std * 2.0**-log_scale)
        size = _most(slots)
        if not math.isfinite(size):
            raise RangeError(f"{what} gives NaN or infinity")
        # One bit of the modulus is for the sign. The largest coefficient of a slot vector is at most its largest slot.
        room = self._log_q[level] - 1 - log_scale
        if size > 0 and math.log2(size) > room:
            size = float(np.abs(slots).max(initial=0.0))
        if size > 0 and math.log2(size) > room:
            size = float(np.abs(coefficients_of(slots, slots.size)).max())
        if size > 0 and math.log2(size) > room:
            raise RangeError(
                f"{what} gives a value of size {size:.3g}, too large for level {level}",
                why=f"scale 2^{log_scale:.1f} and modulus 2^{self._log_q[level]:.1f} leave room for {2.0**room:.3g}",
                hint="give calibration samples that reach the true range, or a larger first modulus",
            )
        return SimulatedCiphertext(slots, level, log_scale, parts)


def _most(slots: Array) -> float:
    """A bound on the size of the slots, exact for real ones: the sizes of complex numbers take much longer."""
    if not np.iscomplexobj(slots):
        return float(np.abs(slots).max(initial=0.0))
    parts = np.ascontiguousarray(slots).view(np.float64)
    return math.sqrt(2.0) * max(float(parts.max(initial=0.0)), -float(parts.min(initial=0.0)))


def _needs(holds: bool, what: str, need: str) -> None:
    if not holds:
        raise ProgramError(f"{what} needs {need}")


def _alike(x: SimulatedCiphertext, y: SimulatedCiphertext, what: str) -> None:
    """Refuse to add two operands of different levels or scales."""
    _needs(x.level == y.level, what, "operands at one level")
    _needs(abs(x.log_scale - y.log_scale) <= SCALE_TOLERANCE, what, "operands of one scale")


def _two_parts(x: SimulatedCiphertext, what: str) -> None:
    _needs(x.parts == 2, what, "a ciphertext of two parts")


class SimulatedPrimitives(Composed):
    """The primitives on numpy, in one part of the chain."""

    def __init__(self, errors: _Errors, chain: Chain) -> None:
        self._errors, self._chain = errors, chain
        self._keys = frozenset(chain.rotation_keys)

    @property
    def ring(self) -> Ring:
        return self._chain.ring

    def describe(self, x: SimulatedCiphertext) -> tuple[int, int]:
        return x.level, x.parts

    def encode(
        self, values: Array | float, log_scale: float, level: int, beside: SimulatedCiphertext | None = None
    ) -> SimulatedPlaintext:
        if not isinstance(values, float):
            values = np.resize(values, self._errors.ring.slots)
            if self._errors.noisy:
                std = noise.encoding_std(self._errors.ring) * 2.0**-log_scale
                values = np.asarray(values + self._errors.gaussian(values.shape) * std)
        return SimulatedPlaintext(values, log_scale)

    constant = diagonal = encode

    def add(self, x: SimulatedCiphertext, y: SimulatedCiphertext) -> SimulatedCiphertext:
        return self._sum(x, y, x.slots + y.slots, "add")

    def sub(self, x: SimulatedCiphertext, y: SimulatedCiphertext) -> SimulatedCiphertext:
        return self._sum(x, y, x.slots - y.slots, "sub")

    def accumulate(self, x: SimulatedCiphertext, y: SimulatedCiphertext) -> SimulatedCiphertext:
        return self._sum(x, y, x.slots + y.slots, "accumulate")

    def _sum(self, x: SimulatedCiphertext, y: SimulatedCiphertext, slots: Array, what: str) -> SimulatedCiphertext:
        _alike(x, y, what)
        return self._errors.made(slots, x.level, x.log_scale, max(x.parts, y.parts), 0.0, what)

    def negate(self, x: SimulatedCiphertext) -> SimulatedCiphertext:
        return replace(x, slots=-x.slots)

    def mul(self, x: SimulatedCiphertext, y: SimulatedCiphertext) -> SimulatedCiphertext:
        _two_parts(x, "mul")
        _two_parts(y, "mul")
        _needs(x.level == y.level, "mul", "operands at one level")
        with np.errstate(over="ignore", invalid="ignore"):
            product = x.slots * y.slots
        return self._errors.made(product, x.level, x.log_scale + y.log_scale, 3, 0.0, "mul")

    def relinearize(self, x: SimulatedCiphertext) -> SimulatedCiphertext:
        _needs(self._chain.relinearization_key, "relinearize", "a relinearization key")
        return self._switched(x.slots, x, "relinearize")

    def add_plain(self, x: SimulatedCiphertext, plain: SimulatedPlaintext) -> SimulatedCiphertext:
        return self._errors.made(x.slots + plain.slots, x.level, x.log_scale, x.parts, 0.0, "add_plain")

    def mul_plain(self, x: SimulatedCiphertext, plain: SimulatedPlaintext) -> SimulatedCiphertext:
        _two_parts(x, "mul_plain")
        scale = x.log_scale + plain.log_scale
        return self._errors.made(x.slots * plain.slots, x.level, scale, 2, 0.0, "mul_plain")

    def mul_scalar(self, x: SimulatedCiphertext, value: float, log_scale: float) -> SimulatedCiphertext:
        _two_parts(x, "mul_scalar")
        # A scalar is rounded to an integer at its scale, the same integer for all slots.
        error = self._errors.random.uniform(-0.5, 0.5) * 2.0**-log_scale if self._errors.noisy else 0.0
        return self._errors.made(x.slots * (value + error), x.level, x.log_scale + log_scale, 2, 0.0, "mul_scalar")

    def weighted_sums(
        self, values: Sequence[SimulatedCiphertext], weights: Any, log_scale: float
    ) -> list[SimulatedCiphertext]:
        first = values[0]
        for value in values:
            _two_parts(value, "weighted_sums")
            _alike(first, value, "weighted_sums")
        slots = np.stack([value.slots for value in values])
        scale = first.log_scale + log_scale
        made = []
        for row in weights:
            used, factors = row.indices, row.data
            if self._errors.noisy:
                factors = factors + self._errors.random.uniform(-0.5, 0.5, factors.size) * 2.0**-log_scale
            made.append(self._errors.made(factors @ slots[used], first.level, scale, 2, 0.0, "weighted_sums"))
        return made

    def times_i(self, x: SimulatedCiphertext) -> SimulatedCiphertext:
        return replace(x, slots=1j * x.slots)

    def rotate(self, x: SimulatedCiphertext, amount: int) -> SimulatedCiphertext:
        _two_parts(x, "rotate")
        if amount == 0:
            return x
        self.needs_key(amount, x.level)
        return self._switched(np.roll(x.slots, -amount), x, "rotate")

    def decompose(self, x: SimulatedCiphertext) -> None:
        """Nothing: rotations read the value itself."""

    def rotate_hoisted(self, x: SimulatedCiphertext, amount: int, digits: None) -> SimulatedCiphertext:
        return self.rotate(x, amount)

    def rotate_wide(
        self, x: SimulatedCiphertext, amount: int, digits: None, more: SimulatedCiphertext | None = None
    ) -> SimulatedCiphertext:
        """A rotation with the key's noise, but without the rounding of the division."""
        _two_parts(x, "rotate_wide")
        rotated = x
        if amount:
            self.needs_key(amount, x.level)
            std = noise.key_std(self._chain.ring, x.level)
            rotated = self._errors.made(np.roll(x.slots, -amount), x.level, x.log_scale, 2, std, "rotate_wide")
        return rotated if more is None else self._sum(more, rotated, more.slots + rotated.slots, "rotate_wide")

    def narrow(self, wide: SimulatedCiphertext) -> SimulatedCiphertext:
        biased = wide.slots + self._errors.bias * 2.0**-wide.log_scale
        return self._errors.made(biased, wide.level, wide.log_scale, 2, noise.division_std(self._chain.ring), "narrow")

    def conjugate(self, x: SimulatedCiphertext) -> SimulatedCiphertext:
        _two_parts(x, "conjugate")
        # A lower part of the chain has this key only if it bootstraps.
        _needs(self._chain.ring.chain_levels is None or self._chain.ring.bootstrap is not None, "conjugate", "its key")
        return self._switched(np.conj(x.slots), x, "conjugate")

    def rescale(self, x: SimulatedCiphertext) -> SimulatedCiphertext:
        _needs(x.level >= 1, "rescale", "a level to spend")
        ring = self._errors.ring
        scale = x.log_scale - ring.log_primes[x.level]
        return self._errors.made(x.slots, x.level - 1, scale, x.parts, noise.rescale_std(ring, x.parts), "rescale")

    def level_drop(self, x: SimulatedCiphertext, levels: int) -> SimulatedCiphertext:
        _needs(x.level >= levels, "level_drop", f"{levels} levels to drop")
        return self._errors.made(x.slots, x.level - levels, x.log_scale, x.parts, 0.0, "level_drop")

    def move(self, x: SimulatedCiphertext, level: int) -> SimulatedCiphertext:
        return x

    def reread(self, x: SimulatedCiphertext, log_scale: float) -> SimulatedCiphertext:
        return replace(x, slots=x.slots * 2.0 ** (x.log_scale - log_scale), log_scale=log_scale)

    def raise_modulus(self, x: SimulatedCiphertext, slots: int, share: float | None = None) -> SimulatedCiphertext:
        """Add a whole multiple of the first prime to every coefficient; the coefficients with values must be small
        enough.
        """
        ring, errors = self._chain.ring, self._errors
        if ring.bootstrap is None:
            raise ProgramError("this chain does not bootstrap")
        _two_parts(x, "raise_modulus")
        _needs(x.level == 0, "raise_modulus", "an operand at level 0")
        coefficients = coefficients_of(x.slots, ring.slots)
        # The size of a coefficient as the reduction sees it, where 1 is a value of one at the nominal scale.
        prime = float(ring.primes[0])
        nominal = 2.0**x.log_scale * (share or ring.bootstrap_share) / prime
        known = np.zeros(ring.ring_dim, dtype=bool)
        known[:: ring.slots // slots] = True
        real, imaginary = np.abs(np.where(known, coefficients, 0.0)).reshape(2, -1).max(axis=1) * nominal
        # Half of the share is half of the period of a series.
        self._small_enough(real, imaginary, nominal, noise.BOOTSTRAP_LIMIT if share is None else share / 2)
        self._repeats(float(np.abs(coefficients[~known]).max(initial=0.0)) * nominal, nominal, slots)
        if errors.noisy:
            # A sum of SPARSE_WEIGHT + 1 coefficients, each uniform within half of the prime.
            spread = errors.random.normal(scale=math.sqrt(noise.BOOTSTRAP_REACH / 6), size=ring.ring_dim)
            most = math.floor(noise.BOOTSTRAP_REACH)
            coefficients = coefficients + np.rint(spread).clip(-most, most) * (prime * 2.0**-x.log_scale)
        std = self.switch_std(ring.levels)
        return errors.made(slots_of(coefficients), ring.levels, x.log_scale, 2, std, "raise_modulus")

    def _small_enough(self, real: float, imaginary: float, nominal: float, most: float = noise.BOOTSTRAP_LIMIT) -> None:
        """Refuse values that the reduction cannot separate from its multiples; a value of one has the size `nominal` in
        the units of both parts.
        """
        largest = max(real, imaginary)
        if largest > most:
            # The values of a pair enter at half the allowed size. With a single value, the imaginary part holds only
            # errors.
            planned = 1.0 / nominal / (1 if imaginary < 2.0**-10 * largest else 2)
            raise RangeError(
                f"a value of size {largest / nominal:.4g} is bootstrapped, planned were {planned:.4g} at most",
                why="the modular reduction of bootstrapping is a polynomial too: beyond its range it gives nonsense",
                hint=said("give calibration samples like this input, or a larger {Options.margin}"),
            )

    def _repeats(self, apart: float, nominal: float, slots: int) -> None:
        """Refuse values whose copies differ too much."""
        if apart >= noise.BOOTSTRAP_LIMIT / 64:
            _needs(self._errors.noisy, "raise_modulus", f"slots that repeat with period {slots}")
            raise RangeError(
                f"copies of one value differ by {apart / nominal:.2g} where they are bootstrapped",
                why="the layers before have amplified the errors of encryption until they count",
                hint=said("compile with a larger {scale_bits} or {precision_bits}"),
            )

    def needs_key(self, amount: int, level: int) -> None:
        """Refuse a rotation without a key."""
        _needs(amount in self._keys, "rotate", f"a rotation key for {amount} at level {level}")

    def switch_std(self, level: int) -> float:
        """The standard deviation of the error of a key switch at a level, in units of one over the scale."""
        return noise.switch_std(self._chain.ring, level)

    def _switched(self, slots: Array, x: SimulatedCiphertext, what: str) -> SimulatedCiphertext:
        """Slots after a key switch of x."""
        if self._errors.noisy:
            slots = slots + self._errors.bias * 2.0**-x.log_scale
        return self._errors.made(slots, x.level, x.log_scale, 2, self.switch_std(x.level), what)


class Simulator(Evaluator[SimulatedCiphertext]):
    """Evaluates nodes of one executable program on `SimulatedCiphertext`s.

    `noisy=False` leaves the errors out: the result is then the exact meaning of the compiled program. Successive runs
    continue the same random sequence of errors. Errors are `louder` times as large as those of encryption.
    """

    def __init__(self, program: Program, seed: int = 0, noisy: bool = True, louder: float = 1.0) -> None:
        self.noisy = noisy
        self.errors = _Errors(program.ring, seed, noisy, louder)
        # No plaintexts are kept, because encoding them again costs little here.
        super().__init__(program, lambda chain: SimulatedPrimitives(self.errors, chain), 0)

    # ------------------------------------------------------------------------------------------ client's part

    def encrypt(self, vector: Array, level: int, log_scale: float) -> SimulatedCiphertext:
        """A simulated encryption under the secret key."""
        std = math.hypot(noise.encryption_std(self.ring), noise.encoding_std(self.ring))
        return self.errors.made(np.asarray(vector, dtype=np.float64), level, log_scale, 2, std, "encrypt")

    def encrypt_inputs(self, vectors: Mapping[Node, Array]) -> dict[Node, Any]:
        """The inputs for `execute` from the result of `pack_inputs` (execution/interface.py); plain inputs stay as they
        are.
        """
        return {
            node: self.encrypt(vector[0], node.attrs["level"], node.attrs["log_scale"]) if node.type.secret else vector
            for node, vector in vectors.items()
        }

    def decrypt(self, ciphertext: SimulatedCiphertext) -> Array:
        """A client's decryption, with the noise that it adds. Raises RangeError where decryption would fail."""
        slots = np.real(ciphertext.slots)
        if self.noisy:
            imaginary = float(np.sqrt(np.mean(np.imag(ciphertext.slots) ** 2))) * 2.0**ciphertext.log_scale
            if noise.decryption_fails(self.ring, ciphertext.log_scale, imaginary):
                raise RangeError(
                    "the result could not be decrypted: its error is larger than its message",
                    hint=said("compile with a larger {scale_bits} or {precision_bits}"),
                )
            std = noise.decryption_std(self.ring, imaginary) * 2.0**-ciphertext.log_scale
            slots = slots + self.errors.random.standard_normal(slots.shape) * std
        return np.asarray(slots)

    # ------------------------------------------------------------------------------------------ server's part

    def begin(self) -> SimulatedRun:
        return SimulatedRun(self)


class SimulatedRun(Run[SimulatedCiphertext]):
    """A run that computes each transform as a whole: thousands of products with their errors would take much longer."""

    def __init__(self, shared: Simulator) -> None:
        super().__init__(shared, None)
        self._errors = shared.errors
        self._walk = Walk(shared, self.calls)

    def transform(self, node: Node, operands: Sequence[SimulatedCiphertext]) -> SimulatedCiphertext:
        """`Run.transform` (hoisted baby steps, then giant steps), but with the errors of all products drawn at once."""
        self._walk.count(node)
        a, ring, paths, x = node.attrs, self.shared.ring, self.shared.paths, operands[0]
        for other in operands:
            _two_parts(other, node.op)
            _needs(x.level == other.level, node.op, "operands at one level")
        scales = [value.log_scale + plain for value, plain in zip(operands, a["plain_log_scales"], strict=True)]
        _needs(max(scales) - min(scales) <= SCALE_TOLERANCE, node.op, "terms of one scale")
        assert isinstance(node.type, CipherType)
        do = self.part(node.type.chain)
        assert isinstance(do, SimulatedPrimitives)
        transform = self.shared.transform(node)
        diagonals, groups = transform.diagonals, transform.groups
        rotated: dict[tuple[int, int], Array] = {}
        for position, b in dict.fromkeys((position, b) for terms in groups.values() for position, b, _ in terms):
            value = operands[position]
            for step in paths.get(b, (b,) if b else ()):
                if self._errors.noisy:
                    value = do.rotate(value, step % ring.slots)
                elif step % ring.slots:
                    do.needs_key(step % ring.slots, x.level)
            rotated[position, b] = value.slots
        giants = [paths.get(g, (g,) if g else ()) for g in groups]
        for step in itertools.chain.from_iterable(giants):
            do.needs_key(step, x.level)
        if not self._errors.noisy:
            # Without errors the order of the steps does not matter.
            total = np.asarray(sum(d.apply(value.slots) for d, value in zip(diagonals, operands, strict=True)))
            return self._errors.made(total, x.level, scales[0], 2, 0.0, node.op)
        # Real and imaginary part, each twice in a row: a rotation by a giant step is then a slice.
        slots = ring.slots
        parts = {key: np.tile(np.stack([value.real, value.imag]), 2) for key, value in rotated.items()}
        # The error from rounding the plaintexts is Gaussian, and its variances add up over the products.
        rounding = [noise.encoding_std(ring) * 2.0**-plain for plain in a["plain_log_scales"]]
        squares = {key: (value.real**2 + value.imag**2) * rounding[key[0]] ** 2 for key, value in rotated.items()}
        power: Array = np.zeros(slots)
        sums, product = np.zeros((2, slots)), np.empty((2, slots))
        # Groups with the same baby steps have the same power.
        powers: dict[tuple[tuple[int, int], ...], Any] = {}
        for g, terms in groups.items():
            for position, b, offset in terms:
                diagonal = diagonals[position].one_run(offset, g + b)
                of, shape = parts[position, b][:, g % slots :][:, :slots], (2, -1, diagonal.size)
                np.multiply(of.reshape(shape), diagonal, out=product.reshape(shape))
                sums += product
            steps = tuple((position, b) for position, b, _ in terms)
            if steps not in powers:
                powers[steps] = np.tile(sum(squares[step] for step in steps), 2)
            power += powers[steps][g % slots :][:slots]
        total = sums[0] + 1j * sums[1]
        total = total + self._errors.gaussian(total.shape) * np.sqrt(power)
        # Each step adds the noise of a key; last steps in the extended basis share one division.
        wide, taken = self.shared.adds_wide(node), sum(map(len, giants))
        divisions = taken - sum(map(bool, giants)) + 1 if wide else taken
        total = total + divisions * self._errors.bias * 2.0 ** -scales[0]
        std = math.hypot(
            math.sqrt(taken) * noise.key_std(do.ring, x.level), math.sqrt(divisions) * noise.division_std(do.ring)
        )
        return self._errors.made(total, x.level, scales[0], 2, std, node.op)

    def fourier_factor(self, node: Node, x: SimulatedCiphertext) -> SimulatedCiphertext:
        """`Run.fourier_factor`, but with the errors of all products drawn at once."""
        self._walk.count(node)
        _two_parts(x, node.op)
        ring, factor, kind = self.shared.ring, fourier_factor(node.attrs), cipher(node)
        do = self.part(kind.chain)
        assert isinstance(do, SimulatedPrimitives)
        plain = node.attrs["plain_log_scale"]
        wide = self.shared.is_wide(node)
        turn = do.rotate_wide if wide else do.rotate_hoisted
        rotated = [turn(x, amount % ring.slots, None).slots for amount in factor.babies]
        if factor.giant_step:
            do.needs_key(factor.giant_step % ring.slots, x.level)
        diagonals, copies = factor.values(), ring.slots // factor.slots
        total: Array = np.zeros(ring.slots, dtype=np.complex128)
        for group in reversed(factor.groups):
            total = np.roll(total, -factor.giant_step)
            for place, value in zip(group, rotated, strict=False):
                total += np.tile(diagonals[place], copies) * value
        scale, std = x.log_scale + plain, 0.0
        if self._errors.noisy:
            # Every product carries the rounding error of its plaintext, and all of them multiply the values of one
            # ciphertext.
            rounding = noise.encoding_std(ring) * 2.0**-plain
            power = sum(
                len(range(b, factor.diagonals, factor.giant)) * np.abs(value) ** 2 for b, value in enumerate(rotated)
            )
            mean = float(np.mean(power))
            total = total + self._errors.gaussian(total.shape) * (rounding * math.sqrt(mean))
            # With wide values, each giant step divides one part, and the end of the factor both parts: each adds about
            # as much noise as a key switch.
            divisions = len(factor.groups) - 1 + wide
            total = total + divisions * self._errors.bias * 2.0**-scale
            std = math.sqrt(divisions) * do.switch_std(x.level)
        return self._errors.made(total, x.level, scale, 2, std, node.op)
