"""The primitives with counting: each call is counted once, here, as it goes to the backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic

from heliograph.execution.protocol import C, Call, Primitives, sums_size
from heliograph.ir import Array


class Counted(Generic[C]):
    """The primitives of one chain on ciphertexts of one level, with counting; operands have two `parts` by default.

    `chain` is the number of the chain. Calls are counted under the names in execution/primitives.py, except for
    `UNCOUNTED` there.
    """

    __slots__ = ("_calls", "_chain", "_do", "level")

    def __init__(self, do: Primitives[C], level: int, calls: Counter[Call], chain: int = 0) -> None:
        self._do, self.level, self._calls, self._chain = do, level, calls, chain

    def constant(self, values: Array | float, log_scale: float, beside: C | None = None) -> Any:
        return self._do.constant(values, log_scale, self.level, beside)

    def add(self, x: C, y: C, parts: int = 2) -> C:
        self._calls[Call("add", self.level, parts)] += 1
        return self._do.add(x, y)

    def sub(self, x: C, y: C, parts: int = 2) -> C:
        self._calls[Call("add", self.level, parts)] += 1
        return self._do.sub(x, y)

    def negate(self, x: C, parts: int = 2) -> C:
        self._calls[Call("add", self.level, parts)] += 1
        return self._do.negate(x)

    def accumulate(self, x: C, y: C) -> C:
        self._calls[Call("accumulate", self.level, 2)] += 1
        return self._do.accumulate(x, y)

    def mul(self, x: C, y: C) -> C:
        self._calls[Call("mul", self.level, 2)] += 1
        return self._do.mul(x, y)

    def relinearize(self, x: C, parts: int) -> C:
        self._calls[Call("relinearize", self.level, parts)] += 1
        return self._do.relinearize(x)

    def add_plain(self, x: C, plain: Any, parts: int = 2) -> C:
        self._calls[Call("add_plain", self.level, parts)] += 1
        return self._do.add_plain(x, plain)

    def add_pt(self, x: C, values: Array, log_scale: float, parts: int = 2) -> C:
        """The sum with values, which are encoded here."""
        self._calls[Call("add_pt", self.level, parts)] += 1
        return self._do.add_plain(x, self._do.encode(values, log_scale, self.level, x))

    def mul_plain(self, x: C, plain: Any) -> C:
        self._calls[Call("mul_plain", self.level, 2)] += 1
        return self._do.mul_plain(x, plain)

    def sum_of_products(self, terms: Iterable[tuple[C, Any]]) -> C:
        def counted() -> Iterator[tuple[C, Any]]:
            for term in terms:
                self._calls[Call("summed_product", self.level, 2)] += 1
                yield term

        return self._do.sum_of_products(counted())

    def sums_of_products(
        self, values: Sequence[C], plains: Sequence[Any], groups: Sequence[Sequence[tuple[int, int]]]
    ) -> list[C]:
        self._calls[Call("summed_product", self.level, 2)] += sum(map(len, groups))
        return self._do.sums_of_products(values, plains, groups)

    def mul_pt(self, x: C, values: Array, log_scale: float) -> C:
        """The product with values, which are encoded here."""
        self._calls[Call("mul_pt", self.level, 2)] += 1
        return self._do.mul_plain(x, self._do.encode(values, log_scale, self.level))

    def mul_scalar(self, x: C, value: float, log_scale: float) -> C:
        self._calls[Call("mul_scalar", self.level, 2)] += 1
        return self._do.mul_scalar(x, value, log_scale)

    def weighted_sums(self, values: Sequence[C], weights: Any, log_scale: float) -> list[C]:
        self._calls[Call("weighted_sums", self.level, sums_size(*weights.shape))] += 1
        return self._do.weighted_sums(values, weights, log_scale)

    def times_i(self, x: C, parts: int = 2) -> C:
        self._calls[Call("mul_scalar", self.level, parts)] += 1
        return self._do.times_i(x)

    def rotate(self, x: C, amount: int) -> C:
        self._calls[Call("rotate", self.level, 2)] += 1
        return self._do.rotate(x, amount)

    def decompose(self, x: C) -> Any:
        self._calls[Call("decompose", self.level, 2)] += 1
        return self._do.decompose(x)

    def rotate_hoisted(self, x: C, amount: int, digits: Any) -> C:
        self._calls[Call("rotate_hoisted", self.level, 2)] += 1
        return self._do.rotate_hoisted(x, amount, digits)

    def rotate_wide(self, x: C, amount: int, digits: Any) -> Any:
        """A wide rotation; for amount 0 it is no rotation, costs next to nothing and is not counted."""
        if amount:
            self._calls[Call("rotate_wide", self.level, 2)] += 1
        return self._do.rotate_wide(x, amount, digits)

    def wide_sums(
        self, values: Sequence[Any], plains: Sequence[Any], groups: Sequence[Sequence[tuple[int, int]]]
    ) -> list[Any]:
        self._calls[Call("wide_product", self.level, 2)] += sum(map(len, groups))
        return self._do.wide_sums(values, plains, groups)

    def step_wide(self, total: Any, amount: int, part: Any) -> Any:
        self._calls[Call("step_wide", self.level, 2)] += 1
        return self._do.step_wide(total, amount, part)

    def narrow(self, wide: Any) -> C:
        self._calls[Call("narrow", self.level, 2)] += 1
        return self._do.narrow(wide)

    def conjugate(self, x: C) -> C:
        self._calls[Call("conjugate", self.level, 2, self._chain)] += 1
        return self._do.conjugate(x)

    def rescale(self, x: C, parts: int) -> C:
        self._calls[Call("rescale", self.level, parts)] += 1
        return self._do.rescale(x)

    def level_drop(self, x: C, levels: int) -> C:
        return self._do.level_drop(x, levels)

    def move(self, x: C, parts: int = 2) -> C:
        self._calls[Call("switch_chain", self.level, parts)] += 1
        return self._do.move(x, self.level)

    def reread(self, x: C, log_scale: float) -> C:
        return self._do.reread(x, log_scale)

    def raise_modulus(self, x: C, slots: int, share: float | None = None) -> C:
        self._calls[Call("raise_modulus", self.level, slots, self._chain)] += 1
        return self._do.raise_modulus(x, slots, share)
