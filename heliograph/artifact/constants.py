"""The constants of a program in its file: each array once, however many maps use it; compact forms stay compact."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from heliograph.artifact.container import Container
from heliograph.artifact.validate import MAX_CIPHERTEXTS, check_layout, record, refuse, whole
from heliograph.ir import Array, Constant, SparseMatrix
from heliograph.ir.maps.kronecker import KroneckerMatrix
from heliograph.ir.maps.layout import Layout
from heliograph.ir.maps.placed import PlacedMatrix, fits
from heliograph.records import to_json

_MOST_SIDE = 1 << 16
_MOST_TERMS = 1 << 12
# The most numbers in one vector that is stored in short form, and in all such vectors together.
_MOST_REPEATED = 1 << 20
_MOST_IN_ALL = 1 << 26
# The most entries in the places of all terms of all maps, which may share arrays.
_MOST_ENTRIES = 1 << 27


class ConstantWriter:
    """Collects arrays: `fields` describes each constant by the numbers of its arrays, `blobs` holds the arrays."""

    def __init__(self, constants: Mapping[str, Constant]) -> None:
        self.blobs: dict[str, Any] = {}
        self._numbers: dict[tuple[str, tuple[int, ...], bytes], int] = {}
        self._maps: dict[int, int] = {}
        self._kernels: list[dict[str, Any]] = []
        self._in_all = 0
        known = {name: self._constant(constant) for name, constant in constants.items()}
        self.fields: dict[str, Any] = {"constants": known, "maps": self._kernels}

    def _constant(self, constant: Constant) -> dict[str, Any]:
        if isinstance(constant, np.ndarray):
            times = _repeated(constant)
            if times > 1 and self._in_all + constant.size <= _MOST_IN_ALL:
                self._in_all += constant.size
                return {"array": self._number(constant[::times]), "times": times}
            return {"array": self._number(constant)}
        if isinstance(constant, SparseMatrix):
            return {"sparse": self._sparse(constant)}
        if isinstance(constant, KroneckerMatrix):
            return {"map": self._map(constant)}
        assert isinstance(constant, PlacedMatrix), f"{type(constant).__name__} in a compiled program"
        layouts = {"operand": to_json(constant.operand), "result": to_json(constant.result)}
        return {"map": self._map(constant.map), **layouts, "block": list(constant.block)}

    def _number(self, array: Array) -> int:
        array = np.ascontiguousarray(array)
        key = array.dtype.str, array.shape, hashlib.sha256(array.data).digest()
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self.blobs[f"constant/{self._numbers[key]}"] = array
        return self._numbers[key]

    def _sparse(self, matrix: SparseMatrix) -> list[int]:
        return [*matrix.shape, *(self._number(part) for part in matrix.numbers)]

    def _map(self, matrix: KroneckerMatrix) -> int:
        if id(matrix) not in self._maps:
            self._maps[id(matrix)] = len(self._kernels)
            places = [self._sparse(place) for place in matrix.places]
            self._kernels.append({"weights": self._number(matrix.weights), "places": places})
        return self._maps[id(matrix)]


def _repeated(array: Array) -> int:
    """How many times in a row each number of a vector occurs, a power of two: a channel's offset fills its places."""
    if array.ndim != 1 or array.size > _MOST_REPEATED:
        return 1
    times = 1
    while array.size % (2 * times) == 0:
        table = array.reshape(-1, 2 * times).view(f"i{array.dtype.itemsize}")
        if (table != table[:, :1]).any():
            break
        times *= 2
    return times


def read_constants(container: Container) -> dict[str, Constant]:
    """The constants of a program; a WireError if they are malformed."""
    reader = _Reader(container)
    return {
        str(name): reader.constant(f"the constant {str(name)[:60]!r}", given) for name, given in reader.given.items()
    }


class _Reader:
    def __init__(self, container: Container) -> None:
        self.container = container
        self.given = container.fields["constants"]
        maps = container.fields["maps"]
        if not isinstance(self.given, dict) or not isinstance(maps, list):
            raise refuse("its constants are malformed")
        self._in_all = self._entries = 0
        self.maps = [self._map(f"map {number}", each) for number, each in enumerate(maps)]

    def constant(self, what: str, given: Any) -> Constant:
        if not isinstance(given, dict):
            raise refuse(f"{what} is malformed")
        if set(given) == {"array"}:
            return self._floats(given["array"], what)
        if set(given) == {"array", "times"}:
            once = self._floats(given["array"], what)
            times = whole(given["times"], f"the repetitions in {what}", 2, max(2, _MOST_REPEATED // max(1, once.size)))
            if once.ndim != 1:
                raise refuse(f"{what} is malformed")
            self._in_all += once.size * times
            if self._in_all > _MOST_IN_ALL:
                raise refuse(f"its constants in short form have more than {_MOST_IN_ALL} numbers")
            return np.repeat(once, times)
        if set(given) == {"sparse"}:
            return self._sparse(given["sparse"], what)
        if "map" not in given:
            raise refuse(f"{what} is malformed")
        kernel = self.maps[whole(given["map"], f"the map of {what}", 0, len(self.maps) - 1)]
        if set(given) == {"map"}:
            return kernel
        if set(given) != {"map", "operand", "result", "block"} or len(given["block"]) != 2:
            raise refuse(f"{what} is malformed")
        layouts = []
        for side in ("operand", "result"):
            layout = record(Layout, given[side], f"the layout of {what} ({side})")
            layouts.append(check_layout(layout, layout.slots, f"{what} ({side})"))
        row, column = (whole(number, f"the block of {what}", 0, MAX_CIPHERTEXTS) for number in given["block"])
        if any(layout.shift for layout in layouts):
            raise refuse(f"{what} has moved copies")
        if (
            not fits(kernel, layouts[0], layouts[1])
            or row >= layouts[1].ciphertexts
            or column >= layouts[0].ciphertexts
        ):
            raise refuse(f"{what} does not fit its layouts")
        return PlacedMatrix(kernel, layouts[0], layouts[1], (row, column))

    def _number(self, number: Any, what: str) -> Array:
        return self.container.array(f"constant/{whole(number, f'an array of {what}', 0, 1 << 20)}")

    def _floats(self, number: Any, what: str) -> Array:
        array = self._number(number, what)
        if array.dtype not in (np.dtype(np.float64), np.dtype(np.float32)):
            raise refuse(f"{what} is not of floating-point numbers")
        return array

    def _sparse(self, given: Any, what: str) -> SparseMatrix:
        if not isinstance(given, list) or len(given) != 5:
            raise refuse(f"{what} is malformed")
        # Maps of plain tensors may be larger than a ciphertext.
        rows = whole(given[0], f"the rows of {what}", 1, _MOST_SIDE * MAX_CIPHERTEXTS)
        columns = whole(given[1], f"the columns of {what}", 1, _MOST_SIDE * MAX_CIPHERTEXTS)
        data, indices, indptr = (self._number(part, what) for part in given[2:])
        good = (
            data.dtype == np.float64
            and indices.dtype == indptr.dtype == np.int32
            and data.ndim == indices.ndim == indptr.ndim == 1
            and indptr.size == rows + 1
            and data.size == indices.size
            and (indptr[0] == 0 and indptr[-1] == data.size and (np.diff(indptr) >= 0).all())
            and (not indices.size or (indices.min() >= 0 and indices.max() < columns))
        )
        if not good:
            raise refuse(f"the sparse matrix of {what} is malformed")
        return SparseMatrix((rows, columns), data, indices, indptr)

    def _map(self, what: str, given: Any) -> KroneckerMatrix:
        if not isinstance(given, dict) or set(given) != {"weights", "places"} or not isinstance(given["places"], list):
            raise refuse(f"{what} is malformed")
        if not 0 < len(given["places"]) <= _MOST_TERMS:
            raise refuse(f"{what} has {len(given['places'])} terms")
        weights = self._floats(given["weights"], what)
        places = tuple(self._sparse(each, what) for each in given["places"])
        self._entries += sum(place.data.size for place in places)
        if self._entries > _MOST_ENTRIES:
            raise refuse(f"its maps have more than {_MOST_ENTRIES} places")
        good = (
            weights.dtype == np.float64
            and weights.ndim == 3
            and weights.shape[0] == len(places)
            and all(weights.shape)
            and len({place.shape for place in places}) == 1
        )
        if not good:
            raise refuse(f"{what} is malformed")
        matrix = KroneckerMatrix(weights, places)
        if max(matrix.shape) > _MOST_SIDE * MAX_CIPHERTEXTS or not matrix.disjoint:
            raise refuse(f"{what} is malformed")
        return matrix
