"""Expansion of a bootstrap: ModRaise between two transforms, and the reduction by the first prime, in ops of the IR.

Slots become coefficients at the low end of the chain, the modulus is raised under an ephemeral sparse secret (Bossuat,
Troncoso-Pastoriza and Hubaux, "Bootstrapping for Approximate Homomorphic Encryption with Negligible
Failure-Probability", 2022), coefficients become slots, and the added multiples of the first prime are removed: by a
polynomial, three squarings and a sum (ckks/modular_reduction.py). In place of the sum a trigonometric polynomial may be
evaluated (ckks/trigonometric.py): an activation then takes two levels less than after the bootstrap.

With a sparse secret of weight h a coefficient is off by at most (h + 1) / 2 multiples: the reduction reaches that far,
and no bootstrap fails by chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from heliograph.ckks.fourier import transform
from heliograph.ckks.modular_reduction import DEGREE, SQUARINGS, Array, angle, exponential
from heliograph.ckks.noise import BOOTSTRAP_LIMIT, BOOTSTRAP_REACH
from heliograph.ckks.ring import REDUCTION_LEVELS, Ring
from heliograph.ckks.trigonometric import Series, series_levels
from heliograph.ir.builder import Builder
from heliograph.ir.location import Location
from heliograph.ir.node import Node
from heliograph.ir.ops.slots.runs import cipher
from heliograph.ir.writer import Writer


def write_bootstrap(
    builder: Builder, ring: Ring, x: Node, slots: int, paired: bool, loc: Location, series: Series | None = None
) -> Node:
    """x at the `bootstrap_level` of the ring, a chain of the program or a lower part of it, at the same true scale; or
    the `series` of x, some levels lower.

    x is at the ring's `bootstrap_input_level`; its slots repeat with period `slots`. Imaginary parts are kept if
    `paired`, and the series is that of each part; else they are dropped.
    """
    return _Bootstrap(builder, ring, slots, paired, loc, series).bootstrapped(x)


class _Bootstrap(Writer):
    """Writes bootstraps of one number of slots in one chain."""

    def __init__(
        self, builder: Builder, ring: Ring, slots: int, paired: bool, loc: Location, series: Series | None
    ) -> None:
        super().__init__(builder, loc)
        self.ring, self.slots, self.paired = ring, slots, paired
        self.logs, self.series = ring.log_primes, series
        self.share: float = ring.bootstrap_share
        # The largest raised coefficient, in units of the first prime: added multiples of it, and the message.
        self.reach = BOOTSTRAP_REACH + BOOTSTRAP_LIMIT / self.share
        if series is not None:
            # All of the period is used.
            self.share = 2 * series.half_period
        # The reduction starts at this scale and keeps it.
        self.reduction_scale = ring.scale_bits + 1.0

    def at(self, x: Node, level: int) -> Node:
        """x at that level, which is its own or a lower one."""
        above = cipher(x).level - level
        return self.op("level_drop", x, levels=above) if above else x

    def read_at(self, x: Node, log_scale: float) -> Node:
        """x reinterpreted at that scale, which changes its value."""
        bits = log_scale - cipher(x).log_scale
        return self.op("reread", x, bits=bits) if bits else x

    def bootstrapped(self, x: Node) -> Node:
        """The result of `write_bootstrap`."""
        ring, log_scale = self.ring, cipher(x).log_scale
        down, back = transform(ring, self.slots, inverse=False)
        x = self.at(x, len(down))
        # A value of one, at the nominal scale, becomes a coefficient of the first prime divided by the share. A series
        # is not linear in its value: its argument is the value at its true scale.
        lowered = math.log2(ring.primes[0] / self.share) - (ring.scale_bits if self.series is None else log_scale)
        for number, factor in enumerate(down):
            x = self._multiplied(x, factor, self.logs[cipher(x).level] + (lowered if number == len(down) - 1 else 0.0))
        x = self._turned(x, back)
        share = {} if self.series is None else {"share": self.share}
        x = self.op("raise_modulus", x, slots=self.slots, level=ring.levels, **share)
        # The reduction starts from twice the real part, and all replicas are summed before it; this scale allows for both.
        replicas = ring.slots // self.slots
        raised_scale = math.log2(ring.primes[0] * self.reach) + math.log2(replicas) + 1
        x = self._replicas_summed(self.read_at(x, raised_scale))
        up, back = transform(ring, self.slots, inverse=True)
        spare = cipher(x).level - len(up) > ring.bootstrap_level + REDUCTION_LEVELS
        shed = (raised_scale - self.reduction_scale) / (len(up) + spare)
        if spare:
            # A level that a transform of few slots leaves unused sheds bits too: the diagonals are more precise.
            x = self.combined([(x, 1.0)], 0.0, cipher(x).level - 1, raised_scale - shed)
        for factor in up:
            x = self._multiplied(x, factor, self.logs[cipher(x).level] - shed)
        x = self._turned(x, back)
        x = self.at(self.read_at(x, self.reduction_scale), ring.bootstrap_level + REDUCTION_LEVELS)
        mirrored = self.op("conjugate", x)
        target = ring.scale_bits if self.series is None else log_scale
        found = self._reduced(self.op("add_ct", x, mirrored), target)
        if self.paired:
            # Twice the imaginary part.
            imaginary = self._reduced(self.op("mul_i", self.op("sub_ct", mirrored, x)), target)
            found = self.op("add_ct", found, self.op("mul_i", imaginary))
        return self.read_at(found, log_scale)

    def _multiplied(self, x: Node, factor: object, plain_log_scale: float) -> Node:
        attrs = {name: getattr(factor, name) for name in ("slots", "inverse", "scale", "layers", "giant", "shift")}
        return self.op("rescale", self.op("fourier_factor", x, **attrs, plain_log_scale=plain_log_scale))

    def _turned(self, x: Node, amount: int) -> Node:
        return self.op("rotate", x, amount=amount) if amount else x

    def _replicas_summed(self, x: Node) -> Node:
        """The sum over all rotations by whole periods: coefficients known to the transforms remain, times the count."""
        step = self.slots
        while step < self.ring.slots:
            count = min(4, self.ring.slots // step)
            turned = [self.op("rotate", x, amount=step * i) for i in range(1, count)]
            x, step = self.sum("add_ct", [x, *turned]), step * count
        return x

    def _reduced(self, x: Node, target: float) -> Node:
        """u, or the series of u, at this scale and at the level left after the reduction, for real x of value
        (I + u / share) / reach with integer I.
        """
        w = self._exponential(x)
        if self.series is not None:
            return self._series(w, self.series, target)
        (a, _), level = angle(self.share), cipher(w).level - 1
        # Twice the imaginary part. A change of scale is enough to multiply the square by a number.
        square = self.read_at(self.squared(w), target)
        v = self.op("sub_ct", self.combined([(w, a / 2)], 0.0, level, target), square)
        return self.op("mul_i", self.op("sub_ct", self.op("conjugate", v), v))

    def _exponential(self, x: Node) -> Node:
        """exp(2 pi i (I + u / share)) of the same x: a polynomial in the Chebyshev basis, and squarings.

        Its scale is chosen so that the next step, back to the angle or to powers, arrives at the nominal scale.
        """
        powers = {1: x, 2: self._doubled(x)}
        powers |= {3: self._third(x, powers[2]), 4: self._doubled(powers[2])}
        while 4 * max(powers) <= DEGREE + 1:
            powers[2 * max(powers)] = self._doubled(powers[max(powers)])
        level = cipher(x).level - ((DEGREE + 1).bit_length() - 1 + SQUARINGS)
        log_scale = float(self.ring.scale_bits)
        if self.series is None:
            # The factor b / 2 is part of the last square's scale.
            log_scale = (log_scale + math.log2(angle(self.share)[1] / 2) + self.logs[level]) / 2
        for i in range(1, SQUARINGS + 1):
            log_scale = (log_scale + self.logs[level + i]) / 2
        w = _Polynomial(self, powers, chebyshev=True).at(exponential(self.reach), level + SQUARINGS, log_scale)
        for _ in range(SQUARINGS):
            w = self.squared(w)
        return w

    def _series(self, w: Node, series: Series, target: float) -> Node:
        """The trigonometric polynomial of the angle of w: a polynomial in w, and its conjugate."""
        a, b = series.coefficients
        powers = {1: w, 2: self.squared(w)}
        powers[3] = self.product(w, powers[2])
        while 2 * max(powers) < a.size:
            half = 1 << (max(powers).bit_length() - 1)
            powers[2 * half] = self.squared(powers[half])
        level = cipher(w).level - series_levels(series.degree)
        v = _Polynomial(self, powers, chebyshev=False).at((a - 1j * b) / 2, level, target)
        return self.op("add_ct", v, self.op("conjugate", v))

    def combined(self, terms: Sequence[tuple[Node, complex]], constant: complex, level: int, log_scale: float) -> Node:
        """A linear combination of values at least one level higher, plus a constant, at this level and scale."""
        parts = self.weighted(terms, constant, level + 1, log_scale + self.logs[level + 1])
        return self.op("rescale", self.sum("add_ct", parts))

    def weighted(
        self, terms: Sequence[tuple[Node, complex]], constant: complex, level: int, log_scale: float
    ) -> list[Node]:
        """The same before rescaling, in one or two parts: at the level of their products, and at this scale."""
        real = [(x, weight.real) for x, weight in terms if weight.real]
        imaginary = [(x, weight.imag) for x, weight in terms if weight.imag]
        # A constant without terms is added to a value times zero.
        if (constant.real and not real) or not (real or imaginary):
            real = [(terms[0][0], 0.0)]
        if constant.imag and not imaginary:
            imaginary = [(terms[0][0], 0.0)]
        parts = []
        for part, number in ((real, constant.real), (imaginary, constant.imag)):
            if part:
                made = self.op(
                    "lincomb",
                    *(self.at(x, level) for x, _ in part),
                    weights=tuple(weight for _, weight in part),
                    constant=float(number),
                    plain_log_scales=tuple(log_scale - cipher(x).log_scale for x, _ in part),
                )
                parts.append(self.op("mul_i", made) if part is imaginary else made)
        return parts

    def product(self, one: Node, other: Node) -> Node:
        """The product of two values, the first of which may be at a higher level."""
        made = self.op("mul_ct", self.at(one, cipher(other).level), other)
        return self.op("rescale", self.op("relinearize", made))

    def squared(self, t: Node) -> Node:
        return self.product(t, t)

    def _third(self, first: Node, second: Node) -> Node:
        """T_3 = 2 T_1 T_2 - T_1."""
        twice = self.op("reread", self.product(first, second), bits=-1.0)
        level = cipher(second).level - 1
        return self.op("sub_ct", twice, self.combined([(first, 1.0)], 0.0, level, cipher(twice).log_scale))

    def _doubled(self, t: Node) -> Node:
        """2 t^2 - 1: the square, read at half its scale. Scales of these polynomials stay slightly above the primes:
        the square needs no doubling, and its rounding counts half.
        """
        return self.op("add_scalar", self.op("reread", self.squared(t), bits=-1.0), value=-1.0)


class _Polynomial:
    """Evaluation of polynomials of one value from its powers 1, 2, 3, 4, 8, 16 and so on, or from the Chebyshev
    polynomials T_k of these degrees.
    """

    def __init__(self, writer: _Bootstrap, powers: Mapping[int, Node], chebyshev: bool) -> None:
        self._do, self._powers, self._chebyshev = writer, powers, chebyshev

    def at(self, c: Array, level: int, log_scale: float) -> Node:
        """The polynomial of these coefficients, 2^k of them, complex, at exactly this level and scale.

        It is a sum of products with powers and of powers times numbers, which is relinearized once and rescaled once.
        """
        do, powers, above = self._do, self._powers, log_scale + self._do.logs[level + 1]
        products = []
        while not all(k in powers and cipher(powers[k]).level > level for k in range(1, c.size)):
            half = c.size // 2
            quotient, rest = c[half:], c[:half]
            if self._chebyshev:
                # T_(half + k) = 2 T_half T_k - T_(half - k).
                quotient, rest = 2 * quotient, rest.copy()
                quotient[0] /= 2
                rest[1:] -= c[half + 1 :][::-1]
            power = powers[half]
            upper = self.at(quotient, level + 1, above - cipher(power).log_scale)
            products.append(do.op("mul_ct", do.at(power, level + 1), upper))
            c = rest
        terms = [(powers[k], complex(weight)) for k, weight in enumerate(c) if k and weight] or [(powers[1], 0j)]
        parts = do.weighted(terms, complex(c[0]), level + 1, above)
        if products:
            parts.append(do.op("relinearize", do.sum("add_ct", products)))
        return do.op("rescale", do.sum("add_ct", parts))
