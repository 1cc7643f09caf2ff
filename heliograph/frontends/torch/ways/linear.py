"""The general way for ops that are linear in their encrypted operands: torch itself provides their matrix.

An op of `LINEAR` is run, with its other operands unchanged, on zeros (for its constant part), on numbers that identify
elements (one run is enough for an op that only moves elements), and otherwise on unit tensors. The
map keeps its small form (ir/maps/kronecker.py) where every channel is treated alike. Linearity is tested on
random numbers each time; an op that fails the test is refused.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch.utils import _pytree as pytree

from heliograph.frontends.torch.values import Call, NoRule, Value, rule
from heliograph.ir import Array, Node, SparseMatrix, shape_of
from heliograph.ir.maps.kronecker import KroneckerMatrix, gather_map
from heliograph.ir.node import Matrix

# Ops without a rule of their own that are linear in any one operand, or in all encrypted operands together.
LINEAR = (
    *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d"),
    *("replication_pad3d", "_pad_circular", "_pad_enum"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d"),
    *("_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d"),
    *("upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    *("im2col", "col2im", "unfold", "unfold_copy"),
    *("cumsum", "diff", "trapezoid", "cumulative_trapezoid", "gradient"),
    *("gather", "take", "take_along_dim", "scatter", "scatter_add", "index_add", "index_copy", "index_fill"),
    *("scatter_reduce", "_unsafe_index", "masked_scatter", "slice_backward"),
    *("diagonal", "diagonal_copy", "diag", "diag_embed", "trace", "tril", "triu", "diagonal_scatter", "block_diag"),
    *("rot90", "fliplr", "flipud", "repeat_interleave", "pixel_unshuffle", "channel_shuffle"),
    *("native_channel_shuffle", "hstack", "vstack", "dstack", "column_stack"),
    *("grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "max_unpool2d", "max_unpool3d"),
    *("kron", "tensordot", "linalg_cross", "cross", "nansum", "conv_tbc"),
)
# The most numbers in one run of an op on unit tensors.
_TOGETHER = 1 << 23
# The most numbers computed for one map: a few minutes.
_MOST_WORK = 1 << 36
# The error allowed for a linear op on random numbers, as a share of their size: it may use single precision inside.
_ROUNDING = 1e-5
# A gather in more pieces than this is written as one map.
MANY_PIECES = 4

Run = Callable[[Sequence[torch.Tensor]], torch.Tensor]


@rule(*(f"aten.{name}" for name in LINEAR))
def linear_by_units(call: Call, *args: Any, **kwargs: Any) -> Any:
    return by_matrix(call, args, kwargs)


@rule("aten.as_strided", "aten.as_strided_copy")
def as_strided(call: Call, x: Any, *args: Any, **kwargs: Any) -> Any:
    """A strided view reads memory: the program has torch's order of values only if torch holds them contiguously."""
    held = call.node.args[0].meta["val"]
    if not held.is_contiguous() or held.storage_offset():
        raise call.refuse(
            f"it reads the memory of a tensor of strides {tuple(held.stride())} that begins at element "
            f"{held.storage_offset()}, and a program has values without their memory",
            "slice, transpose and reshape instead",
        )
    return by_matrix(call, (x, *args), kwargs)


def by_matrix(call: Call, args: Sequence[Any], kwargs: dict[str, Any], run: Any = None) -> Any:
    """The value of a linear op on these arguments, some of which are `Value`s; `run` computes it (the op itself)."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Value)]
    values = [leaves[place] for place in places]
    if any(not value.dtype.is_floating_point for value in values):
        raise NoRule  # indices or truth values that depend on an input
    fixed = [_double(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def of(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        some = list(fixed)
        for place, operand in zip(places, operands, strict=True):
            some[place] = operand
        given, named = pytree.tree_unflatten(some, spec)
        with torch.no_grad():
            result = (run or call.target)(*given, **named)
        if not isinstance(result, torch.Tensor):
            raise call.refuse("it has several results", "take them one by one")
        return result.detach().double()

    return _Linear(call, values, of).value()


def _double(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.detach().to(torch.complex128)
    return tensor.detach().double() if tensor.is_floating_point() else tensor.detach()


def moved(call: Call, node: Node, index: Array, shape: Sequence[int]) -> Node:
    """Element `index[i]` of the flattened node at place i of a tensor of that shape, -1 for zero: one map."""
    matrix = gather_map(np.asarray(index), _without_ones(shape_of(node)), _without_ones(shape))
    return mapped(call, [node], [matrix], None, shape)


def mapped(call: Call, nodes: Sequence[Node], matrices: Sequence[Any], offset: Array | None, shape: Any) -> Node:
    """The sum of the matrices times the flattened nodes, and an offset, under that shape."""
    layer = call.loc.layer or call.op
    names = tuple(
        call.builder.constant(m if isinstance(m, Matrix) else SparseMatrix.of(m), f"{layer}.matrix") for m in matrices
    )
    bias = {} if offset is None else {"bias": call.builder.constant(offset.ravel(), f"{layer}.offset")}
    return call.emit("affine", *nodes, matrices=names, shape=tuple(int(size) for size in shape), **bias)


class _Linear:
    """One call of a linear op, as a function of its encrypted operands."""

    def __init__(self, call: Call, values: Sequence[Value], run: Run) -> None:
        self.call, self.values, self.one = call, values, run
        self.random = torch.Generator().manual_seed(0)

    def value(self) -> Value:
        start = self.one([torch.zeros(value.shape, dtype=torch.float64) for value in self.values])
        if not bool(torch.isfinite(start).all()):
            raise self.call.refuse("it writes an infinite value", "write a finite number")
        matrices = [self._matrix(number, start) for number in range(len(self.values))]
        self._check(matrices, start)
        offset = start.numpy().ravel() if bool(start.any()) else None
        return Value(mapped(self.call, [value.node for value in self.values], matrices, offset, start.shape))

    # ------------------------------------------------------------------ running

    def _noise(self) -> list[torch.Tensor]:
        return [torch.randn(1, *value.shape, generator=self.random, dtype=torch.float64) for value in self.values]

    def run(self, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        """The results of several operands, stacked along an axis in front of each."""
        if operands[0].shape[0] > 1:
            with contextlib.suppress(Exception), warnings.catch_warnings():
                # Not every op can be run so, and torch warns where it works one by one.
                warnings.simplefilter("ignore")
                return torch.vmap(lambda *some: self.one(some))(*operands)
        return torch.stack([self.one(some) for some in zip(*operands, strict=True)])

    # ------------------------------------------------------------------ the matrix

    def _on(self, number: int, samples: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """The op's results on samples of one operand, zeros in the others, without its constant part."""
        operands = [
            samples if place == number else torch.zeros(samples.shape[0], *value.shape, dtype=torch.float64)
            for place, value in enumerate(self.values)
        ]
        return self.run(operands) - start

    def _matrix(self, number: int, start: torch.Tensor) -> Any:
        shape, out = self.values[number].shape, tuple(start.shape)
        size = math.prod(shape)
        found = self._moves(number, start)
        if found is not None:
            return gather_map(found, _without_ones(shape), _without_ones(out))
        bare, made = (_without_ones(one) for one in (shape, out))
        if len(bare) > 1 and len(made) > 1 and bare[0] == made[0]:
            channel = self._by_channel(number, start, bare, made)
            if channel is not None:
                return channel
        return self._units(number, start, np.arange(size), math.prod(out))

    def _moves(self, number: int, start: torch.Tensor) -> Array | None:
        """For each element of the result, the operand's, -1 for zero; None if the op does more than move."""
        value = self.values[number]
        size = math.prod(value.shape)
        numbers = torch.arange(1, size + 1, dtype=torch.float64).reshape(1, *value.shape)
        noise = torch.randn(1, *value.shape, generator=self.random, dtype=torch.float64)
        # Separately: the constant part may be large beside numbers that must come out unchanged.
        index = self._on(number, numbers, start)[0].round()
        if float(index.min()) < 0 or float(index.max()) > size:
            return None
        places = index.long() - 1
        padded = torch.cat([noise.reshape(-1), torch.zeros(1, dtype=torch.float64)])
        same = torch.allclose(self._on(number, noise, start)[0], padded[places], rtol=0, atol=1e-12)
        return places.numpy() if same else None

    def _by_channel(self, number: int, start: torch.Tensor, shape: tuple[int, ...], out: tuple[int, ...]) -> Any | None:
        """The map of each channel's places, where the op treats channels apart and alike; else None.

        `shape` and `out` are the shapes of the operand and of the result, with channels first.
        """
        channels, places = shape[0], math.prod(shape[1:])
        noise = torch.randn(shape, generator=self.random, dtype=torch.float64)
        alone = torch.zeros_like(noise)
        alone[0] = noise[0]
        operands = torch.stack([noise, alone, noise.roll(1, 0)]).reshape(3, *self.values[number].shape)
        whole, first, turned = self._on(number, operands, start).reshape(3, *out)
        alike = torch.allclose(whole[0], first[0]) and not bool(first[1:].any())
        if not alike or not torch.allclose(whole.roll(1, 0), turned):
            return None
        matrix = self._units(number, start, np.arange(places), math.prod(out[1:]))
        return KroneckerMatrix.of(np.eye(channels)[np.newaxis], [SparseMatrix.of(matrix)])

    def _units(self, number: int, start: torch.Tensor, elements: Array, rows: int) -> Any:
        """The columns of the matrix for these elements of the operand, its first `rows` rows."""
        shape = self.values[number].shape
        size, made = math.prod(shape), start.numel()
        if len(elements) * max(size, made) > _MOST_WORK:
            raise self.call.refuse(
                f"its map of {size} to {made} numbers would be worked out element by element",
                "do it on the client, or on a smaller tensor",
            )
        step = max(1, min(len(elements), _TOGETHER // max(size, made)))
        columns = []
        for begin in range(0, len(elements), step):
            some = elements[begin : begin + step]
            units = torch.zeros(len(some), size, dtype=torch.float64)
            units[torch.arange(len(some)), torch.from_numpy(some)] = 1.0
            made_of = self._on(number, units.reshape(-1, *shape), start).reshape(len(some), -1)[:, :rows]
            columns.append(scipy.sparse.csr_array(made_of.numpy()))
        return scipy.sparse.csr_array(scipy.sparse.vstack(columns).T)

    def _check(self, matrices: Sequence[Any], start: torch.Tensor) -> None:
        """Refuse an op whose results differ from its matrices' on random numbers of two sizes."""
        for size in (1.0, 1e3):
            operands = [size * x for x in self._noise()]
            expected = (self.run(operands)[0] - start).numpy().ravel()
            made = np.zeros(expected.size)
            for matrix, operand in zip(matrices, operands, strict=True):
                flat = operand.numpy().reshape(1, -1)
                made += matrix.apply(flat)[0] if isinstance(matrix, Matrix) else matrix @ flat[0]
            scale = float(np.abs(expected).max(initial=0.0)) + size
            if not np.isfinite(expected).all() or float(np.abs(made - expected).max(initial=0.0)) > _ROUNDING * scale:
                raise self.call.refuse(
                    "in this form it is not linear in what is encrypted",
                    "use it with fixed places and weights, or do it on the client",
                )


def _without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape without axes of one in front."""
    first = next((axis for axis, size in enumerate(shape) if size > 1), len(shape))
    return tuple(shape[first:])
