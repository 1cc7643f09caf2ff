"""The primitives on arrays of residues, in one part of the modulus chain. No secret key is ever here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heliograph.ckks.keys import conjugation_index, rotation_index
from heliograph.errors import InternalError, ProgramError, RangeError
from heliograph.ir import Array
from heliograph.runtime.native import keyswitch
from heliograph.runtime.native.ciphertext import Ciphertext, SwitchingKey, Undivided, in_words, residues_of
from heliograph.runtime.native.encoding import Coefficients, Plaintext, Residues, encode, rounded, row_size
from heliograph.runtime.native.kernels import elementwise
from heliograph.runtime.native.kernels.pointers import addresses
from heliograph.runtime.native.kernels.rows import SHORT
from heliograph.runtime.native.plaintext_file import PlaintextFile
from heliograph.runtime.native.tables import ChainTables, Division, with_ratio
from heliograph.runtime.sums import weighted_sums

# The bytes of plaintexts that one step of a sum of products reads, about.
_ROOM = 1 << 24
# Empty `lift` and `more` for `keyswitch.rotated`: no factor for `base`, and nothing to add.
_NO_LIFT = np.empty((0, 2), dtype=np.uint64)
_NO_SUMMAND = np.empty((0, 0, 0), dtype=np.uint32)
# (kind, amount) -> the key of the chain; kinds are those of ckks.keys.EvaluationKey.
KeyOf = Callable[[str, int], Any]


class NativePrimitives:
    """All primitives except bootstraps, in the chain of `tables`.

    `key_of` looks up evaluation keys; `kept` is a file of encoded plaintexts. Ciphertexts of all chains have the same
    form: their primes are the first ones of the whole chain.
    """

    def __init__(self, tables: ChainTables, key_of: KeyOf, kept: PlaintextFile | None = None) -> None:
        self.tables, self._key_of, self._kept = tables, key_of, kept
        self._known = tables.known
        # Whether the plaintexts of diagonals are stored as coefficients.
        self.compact = False

    def describe(self, x: Ciphertext) -> tuple[int, int]:
        return x.level, x.parts

    def encode(self, values: Array | float, log_scale: float, level: int, beside: Any = None) -> Array:
        """See `encoding.encode`. `beside` is not needed: the scale is `log_scale`."""
        vector = np.full(1, values) if isinstance(values, float) else values
        return encode(vector, log_scale, level, self.tables)

    def constant(self, values: Array | float, log_scale: float, level: int, beside: Any = None) -> Array:
        """Like `encode`, but taken from the server's file of plaintexts if it has one."""
        vector = np.full(1, values) if isinstance(values, float) else values
        return self._constant(vector, log_scale, level, False)

    def wide_constant(self, values: Array, log_scale: float, level: int) -> Array:
        return self._constant(values, log_scale, level, True)

    def _constant(self, values: Array, log_scale: float, level: int, wide: bool) -> Array:
        if self._kept is None:
            return encode(values, log_scale, level, self.tables, wide)
        primes = self.tables.basis(level, wide)[0]
        return self._kept.get(values, log_scale, primes, lambda: encode(values, log_scale, level, self.tables, wide))

    def diagonal(self, values: Array, log_scale: float, level: int, beside: Any = None) -> Plaintext:
        """Like `constant`, but as coefficients if `compact` is set."""
        return (
            rounded(values, log_scale, level, self.tables) if self.compact else self.constant(values, log_scale, level)
        )

    def add(self, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        if x.parts < y.parts:
            x, y = y, x
        _check_alike(x.residues, y.residues)
        return self._elementwise(elementwise.add, x, y.residues)

    def sub(self, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        if x.parts != y.parts:
            return self.add(x, self.negate(y))
        _check_alike(x.residues, y.residues)
        return self._elementwise(elementwise.subtract, x, y.residues)

    def negate(self, x: Ciphertext) -> Ciphertext:
        return self._elementwise(elementwise.subtract, Ciphertext(np.zeros_like(x.residues), x.level), x.residues)

    def accumulate(self, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        if x.parts < y.parts:
            return self.add(x, y)
        _check_alike(x.residues, y.residues)
        elementwise.add(x.residues, y.residues, x.residues, self._rows(x), self._known)
        return x

    def mul(self, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        _check_alike(x.residues, y.residues)
        if x.parts != 2 or y.parts != 2:
            raise InternalError(f"a product of ciphertexts with {x.parts} and {y.parts} parts")
        out = np.empty((3, *x.residues.shape[1:]), dtype=np.uint32)
        elementwise.multiply(x.residues, y.residues, out, self._rows(x), self._known)
        return Ciphertext(out, x.level)

    def add_plain(self, x: Ciphertext, plain: Array) -> Ciphertext:
        _check_plain(x.residues, plain)
        return self._elementwise(elementwise.add_plain, x, plain)

    def mul_plain(self, x: Ciphertext, plain: Array) -> Ciphertext:
        _check_plain(x.residues, plain)
        return self._elementwise(elementwise.multiply_plain, x, plain)

    def sums_of_products(
        self, values: Sequence[Ciphertext], plains: Sequence[Plaintext], groups: Sequence[Sequence[tuple[int, int]]]
    ) -> list[Ciphertext]:
        """Several sums of products in one pass over memory; the ciphertexts have two parts."""
        found = self._sums_of_products([x.residues for x in values], plains, groups, self._rows(values[0]))
        return [Ciphertext(each, values[0].level) for each in found]

    def wide_sums(
        self, values: Sequence[Array], plains: Sequence[Plaintext], groups: Sequence[Sequence[tuple[int, int]]]
    ) -> list[Array]:
        level = self.tables.level_of(values[0].shape[1], wide=True)
        return list(self._sums_of_products(values, plains, groups, self.tables.basis(level, True)[1]))

    def _sums_of_products(
        self,
        values: Sequence[Array],
        plains: Sequence[Plaintext],
        groups: Sequence[Sequence[tuple[int, int]]],
        rows: Array,
    ) -> Array:
        """The sums, (groups, 2, words / N, N), from values (2, words / N, N).

        Some groups at a time, so that not all plaintexts are in memory; of those that are coefficients, the residues of
        some rows at a time. The values are read from memory for each of these steps.
        """
        for x in values:
            _check_alike(x, values[0])
        sums = np.empty((len(groups), *values[0].shape), dtype=np.uint32)
        begin = size = 0
        found: list[Plaintext] = []
        for end, group in enumerate(groups, 1):
            found += [plains[plain] for _, plain in group]
            size = sum(plain.nbytes for plain in found)
            if size >= _ROOM or end == len(groups):
                self._sum(values, found, groups[begin:end], rows, sums[begin:end])
                begin, found = end, []
        return sums

    def _sum(
        self,
        values: Sequence[Array],
        plains: Sequence[Plaintext],
        groups: Sequence[Sequence[tuple[int, int]]],
        rows: Array,
        sums: Array,
    ) -> None:
        """Some of the sums; the plaintexts are those of their terms, in order."""
        for plain in plains:
            _check_shape(values[0], *self._shape(plain))
        factors = [value for group in groups for value, _ in group]
        terms = np.stack([factors, np.arange(len(factors))], axis=1)
        begins = np.cumsum([0, *map(len, groups)])
        whole, words = addresses(values), values[0].shape[1]
        residues, step = Residues(plains, self.tables), rows.shape[0]
        if any(isinstance(plain, Coefficients) for plain in plains):
            step = max(1, _ROOM * step // (4 * words * int(residues.sizes.sum())))
        for first in range(0, rows.shape[0], step):
            some = rows[first : first + step]
            where, made = residues.at(some)
            elementwise.sums_of_products(whole, where, residues.sizes, terms, begins, sums, some, self._known)
            del made

    def _shape(self, plain: Plaintext) -> tuple[int, int]:
        """The shape of a plaintext's residues."""
        if isinstance(plain, np.ndarray):
            return plain.shape[0], plain.shape[1]
        return self.tables.words(plain.level, plain.wide), row_size(plain, self.tables.ring_dim)

    def mul_scalar(self, x: Ciphertext, value: float, log_scale: float) -> Ciphertext:
        return self._times(x, [[_whole(value, log_scale)] * (x.level + 1)])

    def times_i(self, x: Ciphertext) -> Ciphertext:
        """A product with X^(N/2), which costs neither scale nor level; its second half of values is negated."""
        roots = [self.tables.imaginary(row) for row in range(x.level + 1)]
        return self._times(x, [roots, [-root for root in roots]])

    def weighted_sums(self, values: Sequence[Ciphertext], weights: Any, log_scale: float) -> list[Ciphertext]:
        level, parts, primes = values[0].level, values[0].parts, self.tables.primes
        size, towers = self.tables.ring_dim, level + 1
        blocks = [list(residues_of(value, primes).reshape(-1, size)) for value in values]
        return [
            Ciphertext(in_words(each.reshape(parts, towers, size), primes), level)
            for each in weighted_sums(blocks, weights, log_scale, primes[:towers] * parts)
        ]

    def rotate(self, x: Ciphertext, amount: int) -> Ciphertext:
        return self.rotate_hoisted(x, amount, self.decompose(x))

    def decompose(self, x: Ciphertext) -> Array:
        return self._digits(x.residues[1])

    def rotate_hoisted(self, x: Ciphertext, amount: int, digits: Array) -> Ciphertext:
        # Multiples of the special primes' product divide without a remainder, so the sum may come before the division.
        return self._narrowed(self.rotate_wide(x, amount, digits))

    def rotate_wide(self, x: Ciphertext, amount: int, digits: Any, more: Array | None = None) -> Array:
        """A rotation in the extended basis: (2, words / N, N), with the special primes."""
        lift = self.tables.lift(x.level + 1)
        if amount:
            return self._turned(digits, x.residues[0], lift, _NO_SUMMAND if more is None else more, amount)
        if more is not None:
            return self._widened(x.residues, lift, more, onto=True)
        out = np.empty((2, self.tables.words(x.level, True), self.tables.ring_dim), dtype=np.uint32)
        return self._widened(x.residues, lift, out)

    def step_wide(self, total: Array, amount: int, part: Array) -> Array:
        (second,) = self._divided(total[1:])
        return self._turned(self._digits(second), total[0], _NO_LIFT, part, amount)

    def narrow(self, wide: Array) -> Ciphertext:
        return Undivided(wide, self.tables.level_of(wide.shape[1], wide=True), self.tables, self._divided)

    def conjugate(self, x: Ciphertext) -> Ciphertext:
        key, index = self._key_of("conjugation", 0), conjugation_index(self.tables.ring_dim)
        lift = self.tables.lift(x.level + 1)
        return self._narrowed(self._switched_wide(self.decompose(x), key, x.residues[0], lift, _NO_SUMMAND, index))

    def relinearize(self, x: Ciphertext) -> Ciphertext:
        wide = self._key_product(x.residues[2], self._key_of("relinearization", 0))
        return self.narrow(self._widened(x.residues[:2], self.tables.lift(x.level + 1), wide, onto=True))

    def rescale(self, x: Ciphertext) -> Ciphertext:
        if not x.level:
            raise ProgramError("a ciphertext at level 0 has no prime left to be rescaled by")
        wide = x.wide if isinstance(x, Undivided) and x.tables is self.tables else None
        if wide is not None:
            return Ciphertext(self._quotient(wide, self.tables.special_rescaling(x.level + 1)), x.level - 1)
        division = self.tables.rescaling(x.level + 1)
        scaled = self._coefficients(x.residues, division.rows[x.level :], division.own)
        out = np.empty((x.parts, self.tables.words(x.level - 1), self.tables.ring_dim), dtype=np.uint32)
        keyswitch.divide_by_last(x.residues, scaled, out, division.rows, division.inverse, self._known)
        return Ciphertext(out, x.level - 1)

    def level_drop(self, x: Ciphertext, levels: int) -> Ciphertext:
        if levels > x.level:
            raise InternalError(f"a ciphertext at level {x.level} cannot drop {levels}")
        level = x.level - levels
        return Ciphertext(np.ascontiguousarray(x.residues[:, : self.tables.words(level)]), level)

    def move(self, x: Ciphertext, level: int) -> Ciphertext:
        """The ciphertext itself: chains differ only in their keys."""
        return x

    def reread(self, x: Ciphertext, log_scale: float) -> Ciphertext:
        return x

    def _rows(self, x: Ciphertext) -> Array:
        return self.tables.rows[: x.level + 1]

    def _elementwise(self, kernel: Any, x: Ciphertext, other: Array) -> Ciphertext:
        out = np.empty(x.residues.shape, dtype=np.uint32)
        kernel(x.residues, other, out, self._rows(x), self._known)
        return Ciphertext(out, x.level)

    def _times(self, x: Ciphertext, constants: Sequence[Sequence[int]]) -> Ciphertext:
        primes = self.tables.primes[: x.level + 1]
        numbers = np.stack([with_ratio(each, primes) for each in constants])
        return self._elementwise(elementwise.multiply_constants, x, numbers)

    def _coefficients(self, values: Array, rows: Array, own: Array, one_more: bool = False) -> Array:
        """Some rows of values, (parts, words / N, N), as coefficients times constants; with one more row of words if
        `one_more`.
        """
        last = 1 if self._known.moduli[rows[-1, 0], SHORT] else 2
        words = int(rows[-1, 1] - rows[0, 1]) + last
        scaled = np.empty((values.shape[0], words + one_more, values.shape[2]), dtype=np.uint32)
        keyswitch.coefficients(values, scaled, rows, own, self._known)
        return scaled

    def _digits(self, values: Array) -> Array:
        """The digits of a polynomial (words / N, N) in the extended basis: (digits, words / N, N)."""
        level = self.tables.level_of(values.shape[0])
        plan, towers = self.tables.digits(level + 1), level + 1
        scaled = self._coefficients(values[np.newaxis], plan.rows[:towers], plan.own)[0]
        shape = -(-towers // plan.alpha), self.tables.words(level, wide=True), self.tables.ring_dim
        digits = np.empty(shape, dtype=np.uint32)
        keyswitch.raise_digits(values, scaled, digits, plan.alpha, towers, plan.rows, plan.up, self._known)
        return digits

    def switched(self, values: Array, key: SwitchingKey) -> Array:
        """A polynomial (words / N, N) times the source secret of a key, encrypted under the key's target secret."""
        return self._divided(self._key_product(values, key))

    def _key_product(self, values: Array, key: SwitchingKey) -> Array:
        """`switched` in the extended basis: (2, words / N, N)."""
        digits = self._digits(values)
        rows = self._wide_rows(digits)
        wide = np.empty((2, *digits.shape[1:]), dtype=np.uint32)
        keyswitch.key_product(digits, key.residues, self._key_places(rows, digits, key), wide, rows, self._known)
        return wide

    def _widened(self, values: Array, lift: Array, out: Array, onto: bool = False) -> Array:
        """See `keyswitch.widened`; returns `out`."""
        rows = self._wide_rows(out)
        keyswitch.widened(values, lift, onto, out, rows[: len(lift)] if onto else rows, self._known)
        return out

    def _turned(self, digits: Array, base: Array, lift: Array, more: Array, amount: int) -> Array:
        amount %= self.tables.slots
        index = rotation_index(self.tables.ring_dim, amount)
        return self._switched_wide(digits, self._key_of("rotation", amount), base, lift, more, index)

    def _switched_wide(
        self, digits: Array, key: SwitchingKey, base: Array, lift: Array, more: Array, index: int
    ) -> Array:
        """See `keyswitch.rotated`; the automorphism is X -> X^index."""
        rows = self._wide_rows(digits)
        targets, lanes = self.tables.automorphism(index)
        out = np.empty((2, *digits.shape[1:]), dtype=np.uint32)
        places = self._key_places(rows, digits, key)
        keyswitch.rotated(digits, key.residues, places, base, lift, more, targets, lanes, out, rows, self._known)
        return out

    def _wide_rows(self, digits: Array) -> Array:
        """The rows of digits: those of their level, and of the special primes."""
        return self.tables.basis(self.tables.level_of(digits.shape[1], wide=True), True)[1]

    def _key_places(self, rows: Array, digits: Array, key: SwitchingKey) -> Array:
        """The places of the digits' rows in a key, whose special primes come last too."""
        places = rows[:, 1].copy()
        places[len(rows) - len(self.tables.special) :] += key.residues.shape[2] - digits.shape[1]
        return places

    def _narrowed(self, wide: Array) -> Ciphertext:
        """`narrow`, divided at once."""
        return Ciphertext(self._divided(wide), self.tables.level_of(wide.shape[1], wide=True))

    def _divided(self, wide: Array) -> Array:
        """(parts, words / N, N) divided by the special primes."""
        return self._quotient(wide, self.tables.special_division(self.tables.level_of(wide.shape[1], wide=True) + 1))

    def _quotient(self, wide: Array, division: Division) -> Array:
        kept, rows = division.kept, division.rows
        scaled = self._coefficients(wide, rows[kept:], division.own, division.nearest)
        if division.nearest:
            keyswitch.wholes(scaled, rows[kept:], self._known)
        out = np.empty((wide.shape[0], int(rows[kept, 1]), self.tables.ring_dim), dtype=np.uint32)
        keyswitch.divide(wide, scaled, out, kept, rows, division.down, division.inverse, self._known)
        return out


def _check_alike(x: Array, y: Array) -> None:
    """Raise an error unless both have the same rows and size: kernels do not check bounds."""
    if x.shape[-2:] != y.shape[-2:]:
        raise InternalError(
            f"operands have {x.shape[-2]} and {y.shape[-2]} rows, {x.shape[-1]} and {y.shape[-1]} values"
        )


def _check_plain(x: Array, plain: Array) -> None:
    _check_shape(x, plain.shape[0], plain.shape[1])


def _check_shape(x: Array, rows: int, size: int) -> None:
    """Raise an error unless a plaintext, of which only half may be stored, fits the ciphertext."""
    if rows != x.shape[-2] or size not in (x.shape[-1], x.shape[-1] // 2):
        raise InternalError(f"a plaintext has {rows} rows and {size} values beside {x.shape[-2]} and {x.shape[-1]}")


def _whole(value: float, log_scale: float) -> int:
    """The value times 2^log_scale, rounded exactly, even beyond the range of a float."""
    if not np.isfinite(value):
        raise RangeError(f"a product with {value}")
    whole = int(log_scale)
    mantissa, exponent = np.frexp(value * 2.0 ** (log_scale - whole))
    shift = int(exponent) - 53 + whole
    exact = int(mantissa * 2.0**53)
    if shift >= 0:
        return exact << shift
    return exact + (1 << -shift - 1) >> -shift
