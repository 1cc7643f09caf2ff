"""The constants of a program by name, each with its digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from heliograph.ir.node import Array, Attr, Constant, ConstantName, Matrix, Node, OpaqueConstant, constant_digest


class _Digest:
    """The digest of one constant: computed on first use."""

    __slots__ = ("_text",)

    def __init__(self) -> None:
        self._text = ""

    def of(self, constant: Constant) -> str:
        if not self._text:
            self._text = constant_digest(constant)
        return self._text


class Constants(dict[str, Constant]):
    """Constants by name. A copy shares the digests of the original, so that a digest is computed once for all programs
    that hold the constant.

    The arrays are read-only, because a digest has to stay true: `put` copies a writable one.
    """

    __slots__ = ("_digests",)

    def __init__(self, source: Mapping[str, Constant] | None = None) -> None:
        super().__init__()
        self._digests: dict[str, _Digest] = {}
        if isinstance(source, Constants):
            self.update(source)
            self._digests.update(source._digests)
        elif source is not None:
            for name, constant in source.items():
                self.put(name, constant)

    def put(self, name: str, constant: Constant) -> None:
        """Add a constant, or replace another."""
        if isinstance(constant, np.ndarray) and constant.flags.writeable:
            constant = constant.copy()
            constant.flags.writeable = False
        self[name] = constant
        self._digests[name] = _Digest()

    def digest(self, name: str) -> str:
        """The digest of the constant of that name (see `constant_digest`)."""
        return self._digests[name].of(self[name])

    def used_by(self, nodes: Sequence[Node]) -> Constants:
        """The constants that attributes of the nodes name, in name order."""
        names: set[str] = set()

        def collect(attr: Attr) -> None:
            if isinstance(attr, ConstantName):
                names.add(str(attr))
            elif isinstance(attr, tuple):
                for item in attr:
                    collect(item)

        for node in nodes:
            for attr in node.attrs.values():
                collect(attr)
        used = Constants()
        for name in sorted(names):
            used[name], used._digests[name] = self[name], self._digests[name]
        return used


def resemblance(constant: Array | Matrix) -> tuple[object, ...]:
    """A key that equal constants share, and others rarely: kind, shape, and the bytes of both ends of each part."""
    parts = [part.reshape(-1) for part in _parts(constant)]
    ends = [(part.dtype, part.size, part[:8].tobytes(), part[-8:].tobytes()) for part in parts]
    return type(constant), _heading(constant), *ends


def same(left: Constant, right: Constant) -> bool:
    """Whether two constants are equal bit by bit: as certain as equal digests, in less time."""
    if left is right:
        return True
    if isinstance(left, OpaqueConstant) or isinstance(right, OpaqueConstant):
        return constant_digest(left) == constant_digest(right)
    return (
        type(left) is type(right)
        and _heading(left) == _heading(right)
        and len(_parts(left)) == len(_parts(right))
        and all(
            a.dtype == b.dtype and np.array_equal(_bits(a), _bits(b))
            for a, b in zip(_parts(left), _parts(right), strict=True)
        )
    )


def _heading(constant: Array | Matrix) -> str:
    return constant.heading if isinstance(constant, Matrix) else str(constant.shape)


def _parts(constant: Array | Matrix) -> tuple[Array, ...]:
    if isinstance(constant, Matrix):
        return constant.numbers
    return (constant.reshape(-1),)


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"i{array.dtype.itemsize}")
