"""What writes the lowering of a product of matrices: operations on slots, and the sums that all ways share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from heliograph.ir import Array, SparseMatrix


class Writer(Protocol):
    """What writes operations on slots; vectors repeat with the period of their layout."""

    def rotate(self, value: Any, amount: int) -> Any: ...

    def add(self, left: Any, right: Any) -> Any: ...

    def subtract(self, left: Any, right: Any) -> Any: ...

    def multiply(self, left: Any, right: Any) -> Any: ...

    def mask(self, value: Any, real: Array, imaginary: Array | None = None) -> Any:
        """The product with a plaintext: the slots of one sample, or a period of them."""
        ...

    def complex(self, real: Any, imaginary: Any) -> Any: ...

    def real(self, value: Any) -> Any: ...

    def imaginary(self, value: Any) -> Any: ...

    def transform(
        self, values: Sequence[Any], maps: Sequence[SparseMatrix], baby: Sequence[int], giant: Sequence[int]
    ) -> Any: ...


def summed(writer: Writer, values: Sequence[Any]) -> Any:
    """The sum of at least one value."""
    total = values[0]
    for value in values[1:]:
        total = writer.add(total, value)
    return total
