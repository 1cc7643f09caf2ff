"""What each way to lower a product of two encrypted matrices takes (passes/packing/products/matrix_products.py)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.ir import Array, SparseMatrix
from heliograph.passes.packing.products.matrix_products import MatrixProduct, steps_of


@dataclass(slots=True)
class Count:
    """A writer that writes nothing and counts: what a way to lower a product takes, without the rescales."""

    # `sharing` counts those of the rotations that are hoisted too.
    rotations: int = 0
    sharing: int = 0
    hoisted: int = 0
    decompositions: int = 0
    products: int = 0
    relinearizations: int = 0
    plain_products: int = 0
    # Those of them that are terms of sums.
    terms: int = 0
    sums: int = 0
    conjugations: int = 0
    _turned: dict[object, int] = field(default_factory=dict)
    _babies: dict[object, set[int]] = field(default_factory=dict)
    _three: set[object] = field(default_factory=set)

    def rotate(self, value: object, amount: int) -> object:
        self.rotations += 1
        # Rotations of the same value share its decomposition.
        self._turned[value] = self._turned.get(value, 0) + 1
        if self._turned[value] == 2:
            self.decompositions += 1
        self.sharing += {1: 0, 2: 2}.get(self._turned[value], 1)
        self._two_parts(value)
        return object()

    def add(self, left: object, right: object) -> object:
        self.sums += 1
        made = object()
        if left in self._three or right in self._three:
            self._three.add(made)
        return made

    def subtract(self, left: object, right: object) -> object:
        return self.add(left, right)

    def mask(self, value: object, real: Array, imaginary: Array | None = None) -> object:
        self.plain_products += 1
        self._two_parts(value)
        return object()

    def complex(self, real: object, imaginary: object) -> object:
        return self.add(real, imaginary)

    def real(self, value: object) -> object:
        self.conjugations += 1
        self._two_parts(value)
        return object()

    def imaginary(self, value: object) -> object:
        return self.real(value)

    def multiply(self, left: object, right: object) -> object:
        self.products += 1
        made = object()
        self._three.add(made)
        return made

    def transform(
        self, values: Sequence[object], maps: Sequence[SparseMatrix], baby: Sequence[int], giant: Sequence[int]
    ) -> object:
        for value, matrix in zip(values, maps, strict=True):
            self._two_parts(value)
            pairs = steps_of(matrix, baby, giant)
            used = {b for group in pairs.values() for b, _ in group} - {0}
            made = self._babies.setdefault(value, set())
            self.decompositions += bool(used) and not made
            self.hoisted += len(used - made)
            made |= used
            terms = sum(map(len, pairs.values()))
            self.plain_products += terms
            self.terms += terms
        self.rotations += sum(g != 0 for g in giant)
        return object()

    def _two_parts(self, value: object) -> None:
        if value in self._three:
            self._three.remove(value)
            self.relinearizations += 1

    def price_ms(self, ring: Ring, costs: CostTable, level: int) -> float:
        """Milliseconds, all at one level."""
        return (
            (self.rotations - self.sharing + self.conjugations) * costs.rotate_ms(ring, level)
            + (self.hoisted + self.sharing) * costs.rotate_ms(ring, level, hoisted=True)
            + self.decompositions * costs.decompose_ms(ring, level + 1)
            + self.products * costs.mul_ms(ring, level)
            + self.relinearizations * costs.relinearize_ms(ring, level)
            + (self.plain_products - self.terms) * costs.mul_plain_ms(ring, level)
            + self.terms * costs.summed_product_ms(ring, level)
            + self.sums * costs.add_ms(ring, level)
        )


def count(product: MatrixProduct) -> Count:
    """What it takes, whatever its scale is."""
    return _counted(replace(product, scale=1.0))


@functools.lru_cache(maxsize=1024)
def _counted(product: MatrixProduct) -> Count:
    counted = Count()
    left, right = ([object() for _ in range(layout.ciphertexts)] for layout in (product.left, product.right))
    product.write(counted, left, right)
    return counted
