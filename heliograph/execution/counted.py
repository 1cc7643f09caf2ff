"""The primitives with counting: each call is counted once, here, as it goes to the backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic

from heliograph.execution.primitives import COUNTED, Primitive
from heliograph.execution.protocol import C, Call, Primitives, sums_size
from heliograph.ir import Array


class Counted(Generic[C]):
    """The primitives of one chain on ciphertexts of one level, with counting.

    `chain` is the number of the chain. Calls are counted as the table says (execution/primitives.py). The methods that
    are not written here take the operands of the backend's own, and the number of `parts` of the ciphertexts where that
    is not two.
    """

    __slots__ = ("_calls", "_chain", "_do", "level")

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., C]: ...

    def __init__(self, do: Primitives[C], level: int, calls: Counter[Call], chain: int = 0) -> None:
        self._do, self.level, self._calls, self._chain = do, level, calls, chain

    def constant(self, values: Array | float, log_scale: float, beside: C | None = None) -> Any:
        return self._do.constant(values, log_scale, self.level, beside)

    def add_pt(self, x: C, values: Array, log_scale: float, parts: int = 2) -> C:
        """The sum with values, which are encoded here."""
        self._calls[Call("add_pt", self.level, parts)] += 1
        return self._do.add_plain(x, self._do.encode(values, log_scale, self.level, x))

    def sums_of_products(
        self, values: Sequence[C], plains: Sequence[Any], groups: Sequence[Sequence[tuple[int, int]]]
    ) -> list[C]:
        self._calls[Call("summed_product", self.level, 2)] += sum(map(len, groups))
        return self._do.sums_of_products(values, plains, groups)

    def mul_pt(self, x: C, values: Array, log_scale: float) -> C:
        """The product with values, which are encoded here."""
        self._calls[Call("mul_pt", self.level, 2)] += 1
        return self._do.mul_plain(x, self._do.encode(values, log_scale, self.level))

    def weighted_sums(self, values: Sequence[C], weights: Any, log_scale: float) -> list[C]:
        self._calls[Call("weighted_sums", self.level, sums_size(*weights.shape))] += 1
        return self._do.weighted_sums(values, weights, log_scale)

    def rotate_wide(self, x: C, amount: int, digits: Any, more: Any = None) -> Any:
        """A wide rotation; for amount 0 it is no rotation, costs next to nothing and is not counted."""
        if amount:
            self._calls[Call("rotate_wide", self.level, 2)] += 1
        return self._do.rotate_wide(x, amount, digits, more)

    def wide_sums(
        self, values: Sequence[Any], plains: Sequence[Any], groups: Sequence[Sequence[tuple[int, int]]]
    ) -> list[Any]:
        self._calls[Call("wide_product", self.level, 2)] += sum(map(len, groups))
        return self._do.wide_sums(values, plains, groups)

    def relinearize(self, x: C, parts: int = 2, divided: bool = True) -> C:
        """See `Run.divides`."""
        self._calls[Call("relinearize" if divided else "relinearize_wide", self.level, parts)] += 1
        return self._do.relinearize(x)

    def narrow(self, wide: Any, divided: bool = True) -> C:
        """See `Run.divides`; a value that is not divided costs nothing here and is not counted."""
        if divided:
            self._calls[Call("narrow", self.level, 2)] += 1
        return self._do.narrow(wide)

    def rescale(self, x: C, parts: int = 2, divided: bool = True) -> C:
        """See `Run.divides`; `divided` is that of the operand."""
        self._calls[Call("rescale" if divided else "narrow_rescale", self.level, parts)] += 1
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


def _counting(method: str, primitive: Primitive) -> Callable[..., Any]:
    """The backend's method of that name, with counting."""

    def call(self: Counted[Any], *operands: Any, parts: int = 2) -> Any:
        chain = self._chain if primitive.own_chain else 0
        self._calls[Call(primitive.name, self.level, parts, chain)] += 1
        return getattr(self._do, method)(*operands)

    return call


for _method, _primitive in COUNTED.items():
    if _method not in vars(Counted):
        setattr(Counted, _method, _counting(_method, _primitive))
