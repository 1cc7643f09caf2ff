"""A bootstrap written out: ModRaise between two transforms, and the reduction by the first prime, in ops of the IR.

Slots become coefficients at the low end of the chain, the modulus is raised under an ephemeral sparse secret (Bossuat,
Troncoso-Pastoriza and Hubaux, "Bootstrapping for Approximate Homomorphic Encryption with Negligible Failure-Probability",
2022), coefficients become slots, and the multiples of the first prime that came in are taken off: by a polynomial, three
squarings and a sum (ckks/modular_reduction.py).

With a sparse secret of weight h a coefficient is off by at most (h + 1) / 2 multiples: the reduction reaches that far, and
no bootstrap fails by chance.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from heliograph.ckks.fourier import transform
from heliograph.ckks.modular_reduction import DEGREE, SQUARINGS, Array, angle, exponential
from heliograph.ckks.noise import BOOTSTRAP_LIMIT, BOOTSTRAP_REACH
from heliograph.ckks.ring import NATIVE_REDUCTION_LEVELS, Ring
from heliograph.ir.builder import Builder
from heliograph.ir.location import Location
from heliograph.ir.node import Attr, Node
from heliograph.ir.slot_runs import cipher

# After a first iteration the error of a value of size one is below 2^-17; it is scaled up by this many bits for the second.
_LEFT_BITS = 16
# In a chain that OpenFHE's bootstraps fit too, a value of one enters the modular reduction as the first prime divided by
# this. Our own rings choose their divisor (`Ring.bootstrap_share`): larger messages keep more of a coarse scale, smaller
# ones bend the sine less.
SHARE = 256


def write_bootstrap(builder: Builder, ring: Ring, x: Node, slots: int, paired: bool, loc: Location) -> Node:
    """x at the `bootstrap_level` of the ring, a chain of the program or a lower part of it, at the same true scale.

    x is at the ring's `bootstrap_input_level`; its slots repeat with period `slots`. Imaginary parts are kept where it is
    `paired`, else dropped. A second iteration bootstraps what the first left over (Bae, Cheon, Cho, Kim and Kim,
    "META-BTS", 2022).
    """
    writer = _Writer(builder, ring, slots, paired, loc)
    first = writer.once(x)
    if ring.bootstrap_iterations == 1:
        return first
    log_scale = cipher(x).log_scale
    left = writer.op("sub_ct", x, writer.at(first, cipher(x).level))
    left = writer.read_at(writer.times(left, 2.0**_LEFT_BITS, 0.0), log_scale)
    second = writer.once(left)
    log_prime = writer.logs[cipher(second).level]
    second = writer.op("rescale", writer.times(second, 2.0**-_LEFT_BITS, log_prime))
    return writer.op("add_ct", second, writer.at(first, cipher(second).level))


class _Writer:
    """Bootstraps of one number of slots in one chain."""

    def __init__(self, builder: Builder, ring: Ring, slots: int, paired: bool, loc: Location) -> None:
        self._builder, self.ring, self.slots, self.paired, self._loc = builder, ring, slots, paired, loc
        self.logs = ring.log_primes
        self.share = ring.bootstrap_share or SHARE
        # The largest raised coefficient, in units of the first prime: the multiples of it that were added, and the message.
        self.reach = BOOTSTRAP_REACH + BOOTSTRAP_LIMIT / self.share
        # The reduction starts at this scale and keeps it.
        self.reduction_scale = ring.scale_bits + 1.0

    def op(self, name: str, *operands: Node, **attrs: Attr) -> Node:
        return self._builder.op(name, operands, self._loc, **attrs)

    def at(self, x: Node, level: int) -> Node:
        """x at that level, which is its own or a lower one."""
        above = cipher(x).level - level
        return self.op("level_drop", x, levels=above) if above else x

    def times(self, x: Node, factor: float, plain_log_scale: float) -> Node:
        """x times a number, not rescaled."""
        return self.op("lincomb", x, weights=(factor,), constant=0.0, plain_log_scales=(plain_log_scale,))

    def read_at(self, x: Node, log_scale: float) -> Node:
        """x read at that scale: its value is another one then."""
        bits = log_scale - cipher(x).log_scale
        return self.op("reread", x, bits=bits) if bits else x

    def once(self, x: Node) -> Node:
        ring, log_scale = self.ring, cipher(x).log_scale
        down, back = transform(ring, self.slots, inverse=False)
        x = self.at(x, len(down))
        # A value of one, at the nominal scale, becomes a coefficient of the first prime divided by the share.
        lowered = math.log2(ring.primes[0] / self.share) - ring.scale_bits
        for number, factor in enumerate(down):
            x = self._multiplied(x, factor, self.logs[cipher(x).level] + (lowered if number == len(down) - 1 else 0.0))
        x = self._turned(x, back)
        x = self.op("raise_modulus", x, slots=self.slots, level=ring.levels)
        # The reduction starts from twice the real part, and all replicas are summed before it; this scale allows for both.
        replicas = ring.slots // self.slots
        raised_scale = math.log2(ring.primes[0] * self.reach) + math.log2(replicas) + 1
        x = self._replicas_summed(self.read_at(x, raised_scale))
        up, back = transform(ring, self.slots, inverse=True)
        shed = (raised_scale - self.reduction_scale) / len(up)
        for factor in up:
            x = self._multiplied(x, factor, self.logs[cipher(x).level] - shed)
        x = self._turned(x, back)
        spent = NATIVE_REDUCTION_LEVELS + ring.bootstrap_iterations - 1
        x = self.at(self.read_at(x, self.reduction_scale), ring.bootstrap_level + spent)
        mirrored = self.op("conjugate", x)
        real = self._reduced(self.op("add_ct", x, mirrored))
        if self.paired:
            # Twice the imaginary part.
            imaginary = self._reduced(self.op("mul_i", self.op("sub_ct", mirrored, x)))
            real = self.op("add_ct", real, self.op("mul_i", imaginary))
        return self.read_at(real, log_scale)

    def _multiplied(self, x: Node, factor: object, plain_log_scale: float) -> Node:
        attrs = {name: getattr(factor, name) for name in ("slots", "inverse", "scale", "layers", "giant", "shift")}
        return self.op("rescale", self.op("fourier_factor", x, **attrs, plain_log_scale=plain_log_scale))

    def _turned(self, x: Node, amount: int) -> Node:
        return self.op("rotate", x, amount=amount) if amount else x

    def _replicas_summed(self, x: Node) -> Node:
        """The sum over all rotations by whole periods: only coefficients that the transforms know are left, so often."""
        step = self.slots
        while step < self.ring.slots:
            count = min(4, self.ring.slots // step)
            turned = [self.op("rotate", x, amount=step * i) for i in range(1, count)]
            x, step = functools.reduce(lambda a, b: self.op("add_ct", a, b), [x, *turned]), step * count
        return x

    def _reduced(self, x: Node) -> Node:
        """u at the nominal scale, as many levels lower as the reduction takes, for real x of value (I + u / share) / reach,
        I whole and |u| up to 2.
        """
        return _Reduction(self, x).run(self.ring.scale_bits)


class _Reduction:
    """Chebyshev's polynomials T_1, T_2, T_3, T_4, T_8, T_16 of a value, and what is made of them.

    Scales of T_k stay a bit above the primes: 2 t^2 then needs no doubling, and its rounding counts half.
    """

    def __init__(self, writer: _Writer, x: Node) -> None:
        self._do, self._logs = writer, writer.logs
        second = self._doubled(x)
        self._powers = {1: x, 2: second, 3: self._third(x, second), 4: self._doubled(second)}
        while 4 * max(self._powers) <= DEGREE + 1:
            self._powers[2 * max(self._powers)] = self._doubled(self._powers[max(self._powers)])

    def run(self, target: float) -> Node:
        do, (a, b) = self._do, angle(self._do.share)
        level = cipher(self._powers[1]).level - NATIVE_REDUCTION_LEVELS
        # The scale from which the squarings arrive at the target. The factor b / 2 is part of the last square's scale.
        log_scale = target + math.log2(b / 2)
        for i in range(1, SQUARINGS + 2):
            log_scale = (log_scale + self._logs[level + i]) / 2
        w = self._polynomial(exponential(do.reach), level + SQUARINGS + 1, log_scale)
        for _ in range(SQUARINGS):
            w = self._squared(w)
        # Twice the imaginary part. Multiplying the square by b / 2 only takes reading it at another scale.
        square = do.read_at(self._squared(w), target)
        v = do.op("sub_ct", self._combined([(w, a / 2)], 0.0, level, target), square)
        return do.op("mul_i", do.op("sub_ct", do.op("conjugate", v), v))

    def _polynomial(self, c: Array, level: int, log_scale: float) -> Node:
        """A polynomial in Chebyshev's basis, at exactly this level and scale."""
        do = self._do
        if all(k in self._powers and cipher(self._powers[k]).level > level for k in range(1, c.size)):
            # Polynomials of even degree have real coefficients, those of odd degree imaginary ones.
            assert not c[0].imag
            parts = []
            for weights, constant in ((c.real, float(c[0].real)), (c.imag, 0.0)):
                terms = [(self._powers[k], float(w)) for k, w in enumerate(weights) if k and w]
                parts.append(self._combined(terms, constant, level, log_scale) if terms else None)
            real, imaginary = parts
            if imaginary is None:
                assert real is not None
                return real
            imaginary = do.op("mul_i", imaginary)
            if real is None:
                return do.op("add_scalar", imaginary, value=float(c[0].real)) if c[0].real else imaginary
            return do.op("add_ct", real, imaginary)
        # c = quotient T_half + rest: T_(half + k) = 2 T_half T_k - T_(half - k).
        half = c.size // 2
        quotient, rest = 2 * c[half:], c[:half].copy()
        quotient[0] /= 2
        rest[1:] -= c[half + 1 :][::-1]
        power = self._powers[half]
        upper = self._polynomial(quotient, level + 1, log_scale + self._logs[level + 1] - cipher(power).log_scale)
        lower = self._polynomial(rest, level, log_scale)
        product = do.op("relinearize", do.op("mul_ct", upper, do.at(power, level + 1)))
        return do.op("add_ct", do.op("rescale", product), lower)

    def _combined(self, terms: Sequence[tuple[Node, float]], constant: float, level: int, log_scale: float) -> Node:
        """A sum of values that are a level higher or more, times numbers, and a number, at this level and scale."""
        above = log_scale + self._logs[level + 1]
        made = self._do.op(
            "lincomb",
            *(self._do.at(x, level + 1) for x, _ in terms),
            weights=tuple(weight for _, weight in terms),
            constant=constant,
            plain_log_scales=tuple(above - cipher(x).log_scale for x, _ in terms),
        )
        return self._do.op("rescale", made)

    def _third(self, first: Node, second: Node) -> Node:
        """T_3 = 2 T_1 T_2 - T_1."""
        do, level = self._do, cipher(second).level
        product = do.op("rescale", do.op("relinearize", do.op("mul_ct", do.at(first, level), second)))
        twice = do.op("reread", product, bits=-1.0)
        return do.op("sub_ct", twice, self._combined([(first, 1.0)], 0.0, level - 1, cipher(twice).log_scale))

    def _doubled(self, t: Node) -> Node:
        """2 t^2 - 1: the square, read at half its scale."""
        return self._do.op("add_scalar", self._do.op("reread", self._squared(t), bits=-1.0), value=-1.0)

    def _squared(self, t: Node) -> Node:
        do = self._do
        return do.op("rescale", do.op("relinearize", do.op("mul_ct", t, t)))
