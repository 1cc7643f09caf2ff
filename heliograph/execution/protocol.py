"""The primitives as a protocol that backends implement. Their table is in execution/primitives.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from heliograph.ir import Array

C = TypeVar("C")


class Call(NamedTuple):
    """A kind of homomorphic call.

    `primitive`: its name.
    `level`: the level of its operand.
    `size`: its third number (execution/primitives.py).
    `chain`: the number of the chain for a conjugation or a raised modulus, which the level does not determine. It is 0
    for other calls: they happen in the lowest chain that holds the level.
    """

    primitive: str
    level: int
    size: int
    chain: int = 0


def sums_size(sums: int, ciphertexts: int) -> int:
    """The size of a call of `weighted_sums`."""
    return sums << 16 | ciphertexts


class Primitives(Protocol[C]):
    """The primitives of a backend in one part of the modulus chain, on ciphertexts of type C.

    A backend has an object for the whole chain and one for each sub-chain. Operands are ciphertexts of that chain; two
    operands are at one level and scale. They stay unchanged, except in `accumulate`. Several threads may call it.
    Plaintexts and digits are the backend's own; callers only pass them on.

    A backend may refuse calls for which the scheme would give nonsense: by a RangeError for values, by a ProgramError
    otherwise; neither needs a place. There is never a secret key here.
    """

    def describe(self, x: C) -> tuple[int, int]:
        """(level, parts) of a ciphertext of any part of the chain."""
        ...

    def encode(self, values: Array | float, log_scale: float, level: int, beside: C | None = None) -> Any:
        """A plaintext of that true scale (log2), for a product, or for a sum with the ciphertext `beside`.

        A vector shorter than the slots repeats; a number fills all slots.
        """
        ...

    def constant(self, values: Array | float, log_scale: float, level: int, beside: C | None = None) -> Any:
        """`encode` for values that belong to the program: a backend may have the plaintext from an earlier server."""
        ...

    def diagonal(self, values: Array, log_scale: float, level: int, beside: C | None = None) -> Any:
        """`constant` for a diagonal, used only in `sums_of_products`: a backend may keep it in a smaller form."""
        ...

    def add(self, x: C, y: C) -> C: ...

    def sub(self, x: C, y: C) -> C: ...

    def negate(self, x: C) -> C: ...

    def accumulate(self, x: C, y: C) -> C:
        """The sum; it may overwrite `x`, to which nobody else has a reference."""
        ...

    def mul(self, x: C, y: C) -> C:
        """The product, of three parts: neither relinearized nor rescaled."""
        ...

    def relinearize(self, x: C) -> C: ...

    def add_plain(self, x: C, plain: Any) -> C: ...

    def mul_plain(self, x: C, plain: Any) -> C: ...

    def mul_scalar(self, x: C, value: float, log_scale: float) -> C:
        """The product with one number, rounded at that scale (log2)."""
        ...

    def sums_of_products(
        self, values: Sequence[C], plains: Sequence[Any], groups: Sequence[Sequence[tuple[int, int]]]
    ) -> list[C]:
        """The sum of ciphertexts times plaintexts for each group of (value, plaintext), by their numbers.

        Plaintexts are read in the order of the groups, each as often as it occurs there: they may be made when read.
        """
        ...

    def weighted_sums(self, values: Sequence[C], weights: Any, log_scale: float) -> list[C]:
        """The sum of ciphertexts times weights for each row of a sparse matrix (sums, ciphertexts).

        Weights are rounded at that scale (log2); the ciphertexts have two parts.
        """
        ...

    def times_i(self, x: C) -> C:
        """The product with the imaginary unit: exact, at the same scale."""
        ...

    def rotate(self, x: C, amount: int) -> C:
        """Slot i + amount moves to slot i; 0 <= amount < slots."""
        ...

    def decompose(self, x: C) -> Any:
        """The digits of x, shared by all its hoisted rotations."""
        ...

    def rotate_hoisted(self, x: C, amount: int, digits: Any) -> C: ...

    # Wide values are key switches in the extended basis, before their division by the special primes. They are the
    # backend's own, with two parts; sums of their products with plaintexts are divided once ("double hoisting":
    # Bossuat, Mouchet, Troncoso-Pastoriza and Hubaux, "Efficient Bootstrapping for Approximate Homomorphic Encryption",
    # 2021).

    def wide_constant(self, values: Array, log_scale: float, level: int) -> Any:
        """`constant` for products with wide values only."""
        ...

    def rotate_wide(self, x: C, amount: int, digits: Any, more: Any = None) -> Any:
        """`rotate_hoisted` with a wide result; for amount 0, the value itself.

        Plus the wide value `more`, to which nobody else has a reference: it may be overwritten.
        """
        ...

    def wide_sums(
        self, values: Sequence[Any], plains: Sequence[Any], groups: Sequence[Sequence[tuple[int, int]]]
    ) -> list[Any]:
        """`sums_of_products` on wide values."""
        ...

    def step_wide(self, total: Any, amount: int, part: Any) -> Any:
        """A rotated wide value plus another one."""
        ...

    def narrow(self, wide: Any) -> C:
        """The ciphertext of a wide value: its division by the special primes."""
        ...

    def conjugate(self, x: C) -> C:
        """The complex conjugate of each slot; only in a chain with the key for it."""
        ...

    def rescale(self, x: C) -> C:
        """x divided by the prime of its level, one level lower."""
        ...

    def level_drop(self, x: C, levels: int) -> C: ...

    def move(self, x: C, level: int) -> C:
        """A ciphertext of another chain in this one, at the same level."""
        ...

    def reread(self, x: C, log_scale: float) -> C:
        """The same ciphertext with its slots read at another true scale (log2)."""
        ...

    def raise_modulus(self, x: C, slots: int, share: float | None = None) -> C:
        """A ciphertext of level 0 at the chain's highest level, off by whole multiples of the first prime.

        Only in a chain that bootstraps. The coefficients are values that repeat with period `slots`. `share` is the
        message ratio: the first prime over the size of a value of one (default: the chain's).
        """
        ...


class Composed:
    """Primitives that are composed of others, for backends without anything better.

    Ciphertexts are their own wide values.
    """

    def sums_of_products(
        self: Primitives[C], values: Sequence[C], plains: Sequence[Any], groups: Sequence[Sequence[tuple[int, int]]]
    ) -> list[C]:
        sums = []
        for (value, plain), *others in groups:
            total = self.mul_plain(values[value], plains[plain])
            for value, plain in others:
                total = self.accumulate(total, self.mul_plain(values[value], plains[plain]))
            sums.append(total)
        return sums

    def wide_constant(self: Primitives[C], values: Array, log_scale: float, level: int) -> Any:
        return self.constant(values, log_scale, level)

    def rotate_wide(self: Primitives[C], x: C, amount: int, digits: Any, more: Any = None) -> Any:
        rotated = self.rotate_hoisted(x, amount, digits) if amount else x
        return rotated if more is None else self.add(more, rotated)

    def wide_sums(
        self: Primitives[C],
        values: Sequence[Any],
        plains: Sequence[Any],
        groups: Sequence[Sequence[tuple[int, int]]],
    ) -> list[Any]:
        return self.sums_of_products(values, plains, groups)

    def step_wide(self: Primitives[C], total: Any, amount: int, part: Any) -> Any:
        return self.add(self.rotate(total, amount), part)

    def narrow(self, wide: Any) -> Any:
        return wide
