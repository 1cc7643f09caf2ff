"""What a backend does: the primitives, as a protocol that it implements. What they are is in execution/primitives.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from heliograph.ir import Array

C = TypeVar("C")


class Call(NamedTuple):
    """What was called, at which level of its operand, and its third number (execution/primitives.py).

    `chain` is the number of the chain in which a conjugation or a raising of the modulus happens, for the level does not
    tell it. Of other calls it is 0: they happen in the lowest chain that holds it.
    """

    primitive: str
    level: int
    size: int
    chain: int = 0


def sums_size(sums: int, ciphertexts: int) -> int:
    """The third number of a call of `weighted_sums`."""
    return sums << 16 | ciphertexts


class Primitives(Protocol[C]):
    """What a backend computes, in one part of the modulus chain, on ciphertexts of type C.

    A backend has one of these for the whole chain and one for each lower part. Operands are ciphertexts of that part, at
    one level and scale where there are two. They stay as they are, except for `accumulate`. Several threads may call it.
    Plaintexts and digits are the backend's own; who calls only passes them on.

    What the scheme would answer with nonsense may be refused: a RangeError for values, a ProgramError for all else; neither
    needs to say where. No secret key is ever here.
    """

    def describe(self, x: C) -> tuple[int, int]:
        """(level, parts) of a ciphertext of any part of the chain."""
        ...

    def encode(self, values: Array | float, log_scale: float, level: int, beside: C | None = None) -> Any:
        """A plaintext of that true scale (log2), for a product, or for a sum with the ciphertext `beside` it.

        A vector may be shorter than the slots, and then repeats; a number stands in all of them.
        """
        ...

    def constant(self, values: Array | float, log_scale: float, level: int, beside: C | None = None) -> Any:
        """As `encode`, of what belongs to the program: a backend may have it from an earlier server."""
        ...

    def diagonal(self, values: Array, log_scale: float, level: int, beside: C | None = None) -> Any:
        """As `constant`, of a diagonal, for `sum_of_products` alone: a backend may keep it in a smaller form."""
        ...

    def add(self, x: C, y: C) -> C: ...

    def sub(self, x: C, y: C) -> C: ...

    def negate(self, x: C) -> C: ...

    def accumulate(self, x: C, y: C) -> C:
        """The sum; it may be made in `x`, which nobody else holds."""
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

    def sum_of_products(self, terms: Iterable[tuple[C, Any]]) -> C:
        """The sum of ciphertexts times plaintexts, of at least one; what it counts as is a product and a sum for each."""
        ...

    def sums_of_products(
        self, values: Sequence[C], plains: Sequence[Any], groups: Sequence[Sequence[tuple[int, int]]]
    ) -> list[C]:
        """For each group of (value, plaintext), by their numbers, the sum of these products; it counts as they do."""
        ...

    def weighted_sums(self, values: Sequence[C], weights: Any, log_scale: float) -> list[C]:
        """For each row of a sparse matrix (sums, ciphertexts) the sum of ciphertexts times their weights.

        Weights are rounded at that scale (log2); the ciphertexts are of two parts.
        """
        ...

    def times_i(self, x: C) -> C:
        """The product with the imaginary unit: exact, of the same scale."""
        ...

    def rotate(self, x: C, amount: int) -> C:
        """Slot i + amount moves to slot i; 0 <= amount < slots."""
        ...

    def decompose(self, x: C) -> Any:
        """The digits of x, which all its hoisted rotations read."""
        ...

    def rotate_hoisted(self, x: C, amount: int, digits: Any) -> C: ...

    # Wide values are key switches whose division by the special primes is put off. They are the backend's own, of two
    # parts; sums of their products with plaintexts are divided once ("double hoisting": Bossuat, Mouchet, Troncoso-Pastoriza
    # and Hubaux, "Efficient Bootstrapping for Approximate Homomorphic Encryption", 2021).

    def wide_constant(self, values: Array, log_scale: float, level: int) -> Any:
        """As `constant`, for products with wide values alone."""
        ...

    def rotate_wide(self, x: C, amount: int, digits: Any) -> Any:
        """As `rotate_hoisted`, wide; of an amount of 0 the value itself."""
        ...

    def wide_sums(
        self, values: Sequence[Any], plains: Sequence[Any], groups: Sequence[Sequence[tuple[int, int]]]
    ) -> list[Any]:
        """As `sums_of_products`, of wide values."""
        ...

    def step_wide(self, total: Any, amount: int, part: Any) -> Any:
        """A wide value rotated, and another one added."""
        ...

    def narrow(self, wide: Any) -> C:
        """The ciphertext that a wide value is."""
        ...

    def conjugate(self, x: C) -> C:
        """The complex conjugate of each slot. Only in a chain that has the key for it."""
        ...

    def rescale(self, x: C) -> C:
        """x divided by the prime of its level, a level lower."""
        ...

    def level_drop(self, x: C, levels: int) -> C: ...

    def move(self, x: C, level: int) -> C:
        """A ciphertext of another part of the chain in this one; its level stays."""
        ...

    def reread(self, x: C, log_scale: float) -> C:
        """The same ciphertext, of slots that are read at another true scale (log2)."""
        ...

    def raise_modulus(self, x: C, slots: int, share: float | None = None) -> C:
        """A ciphertext of level 0 at the chain's highest, off by whole multiples of the first prime. Only in a chain that
        bootstraps; its coefficients are values that repeat with that period. A value of one is the first prime divided by
        `share`, if that is not what the chain says.
        """
        ...


def grouped_products(
    do: Primitives[C], values: Sequence[C], plains: Sequence[Any], groups: Sequence[Sequence[tuple[int, int]]]
) -> list[C]:
    """`sums_of_products` by single sums, for backends that have nothing better."""
    return [do.sum_of_products((values[value], plains[plain]) for value, plain in group) for group in groups]


def summed_products(do: Primitives[C], terms: Iterable[tuple[C, Any]]) -> C:
    """`sum_of_products` by single products and sums, for backends that have nothing better."""
    total: C | None = None
    for x, plain in terms:
        term = do.mul_plain(x, plain)
        total = term if total is None else do.accumulate(total, term)
    assert total is not None
    return total


class NothingWide:
    """Wide values that are ciphertexts, for backends that divide each key switch."""

    def wide_constant(self: Primitives[C], values: Array, log_scale: float, level: int) -> Any:
        return self.constant(values, log_scale, level)

    def rotate_wide(self: Primitives[C], x: C, amount: int, digits: Any) -> Any:
        return self.rotate_hoisted(x, amount, digits) if amount else x

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
