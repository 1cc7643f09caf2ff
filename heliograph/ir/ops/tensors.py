"""Operations on tensors, in which models are expressed, up to polynomials. Part of `ir/ops/table.py`.

Shapes have no batch axis; a program works on one sample. `evaluate` sees arrays with a leading axis of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from heliograph.errors import ProgramError
from heliograph.ir.bootstraps.series import check_series
from heliograph.ir.maps.kronecker import KroneckerMatrix, gather_map, identity_places
from heliograph.ir.node import Array, Matrix, Node, SparseMatrix, Stage, shape_of, size_of
from heliograph.ir.ops.bounds import WIDEN, product_bounds, square_bounds
from heliograph.ir.ops.slots.rules import slotwise
from heliograph.ir.ops.spec import (
    ARITHMETIC,
    EVERYWHERE,
    TENSOR,
    Attrs,
    Bounds,
    Context,
    ElementBounds,
    OpSpec,
    Role,
    check_constant,
    define,
    flat_indices,
)
from heliograph.ir.types import CipherType, SlotsType, TensorType, Type
from heliograph.machine import in_threads

# ---------------------------------------------------------------------------------------------- helpers


def _secret(operands: Sequence[TensorType]) -> bool:
    return any(operand.secret for operand in operands)


def _structural(
    name: str,
    attrs: dict[str, str],
    infer: Callable[[TensorType, Attrs], tuple[int, ...]],
    move: Callable[[Array, Attrs], Array],
    doc: str,
    stages: frozenset[Stage] = TENSOR,
    bounds: ElementBounds | None = None,
) -> None:
    """Define an op that only moves, repeats or drops elements; `move` works on values and on indices alike."""

    def infer_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
        return TensorType(infer(operands[0], a), operands[0].secret)

    def linear(operands: Sequence[TensorType], a: Attrs, context: Context) -> tuple[list[Any], None]:
        # Shifted by one, so that an element that `move` pads with zero becomes -1, "none".
        index = move(flat_indices(operands[0].shape) + 1, a)[0] - 1
        return [gather_map(index, operands[0].shape, index.shape)], None

    define(
        OpSpec(
            name,
            stages,
            (1, 1),
            attrs,
            infer_type,
            lambda values, a, context: move(values[0], a),
            doc,
            linear=linear,
            role=Role.MOVE,
            bounds=bounds,
        )
    )


def _axes(axes: Sequence[int], rank: int, op: str) -> tuple[int, ...]:
    """Axes as non-negative numbers, sorted."""
    out = []
    for axis in axes:
        if not -rank <= axis < rank:
            raise ProgramError(f"{op}: axis {axis} is out of range for a tensor of rank {rank}")
        out.append(axis % rank)
    if len(set(out)) != len(out):
        raise ProgramError(f"{op}: axes {tuple(axes)} name one axis twice")
    return tuple(sorted(out))


# ---------------------------------------------------------------------------------------------- inputs, constants

# Distributions from which the server may draw a plain input, anew for each run: independent numbers, normal with mean 0 and
# deviation 1, or uniform on [-1, 1].
DISTRIBUTIONS = ("normal", "uniform")


def _input_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    # An input of a packed program is one ciphertext of the named tensor; in a managed program it also has its level and
    # scale.
    secret = a.get("secret", True)
    if "level" in a:
        return CipherType(a["slots"], a["level"], a["log_scale"])
    if "slots" in a:
        return SlotsType(a["slots"], secret)
    if "shape" not in a:
        raise ProgramError(f"input {a['name']!r} has no shape")
    low, high = a.get("low"), a.get("high")
    for bound in (low, high):
        if bound is not None and not math.isfinite(bound):
            raise ProgramError(f"input {a['name']!r}: a range ends at {bound}", hint="leave the range out instead")
    if low is not None and high is not None and low > high:
        raise ProgramError(f"input {a['name']!r}: the range [{low:g}, {high:g}] is empty")
    if "drawn" in a and (secret or a["drawn"] not in DISTRIBUTIONS):
        raise ProgramError(
            f"input {a['name']!r} cannot be drawn: {a['drawn']!r}",
            why="the server draws plain inputs, " + " or ".join(DISTRIBUTIONS),
        )
    if a.get("classes", tuple(a["shape"])[-1:]) not in (tuple(a["shape"])[-1:], *a["shape"][-1:]):
        raise ProgramError(f"input {a['name']!r} of shape {tuple(a['shape'])} does not end in {a['classes']} classes")
    return TensorType(tuple(a["shape"]), secret)


def _no_value(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    raise ProgramError(f"input {a.get('name')!r} has no value")


def _input_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds | None:
    low, high = node.attrs.get("low"), node.attrs.get("high")
    return None if low is None or high is None else (np.full(size_of(node), low), np.full(size_of(node), high))


def _constant_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    value = context.array(node.attrs["value"]).astype(np.float64).ravel()
    return value, value


define(
    OpSpec(
        "input",
        EVERYWHERE,
        (0, 0),
        {
            "name": "str",
            "shape": "ints?",
            "slots": "int?",
            "low": "float?",
            "high": "float?",
            "secret": "bool?",
            "drawn": "str?",
            "classes": "int?",
            "chunk": "int?",
            "level": "int?",
            "log_scale": "float?",
        },
        _input_type,
        _no_value,
        "A value given at run time: a tensor in [low, high], or ciphertext `chunk` of a packed one. A plain one may be "
        "`drawn` by the server, from normal or uniform. One with `classes` is one-hot on its last axis.",
        bounds=_input_bounds,
    )
)
define(
    OpSpec(
        "constant",
        ARITHMETIC,
        (0, 0),
        {"value": "constant"},
        lambda operands, a, context: TensorType(context.shape(a["value"]), secret=False),
        lambda values, a, context: context.array(a["value"])[np.newaxis],
        "A tensor known at compile time.",
        bounds=_constant_bounds,
    )
)

# ---------------------------------------------------------------------------------------------- arithmetic


def broadcast_type(name: str) -> Callable[[Sequence[TensorType], Attrs, Context], Type]:
    def infer(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
        shapes = [operand.shape for operand in operands]
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError:
            raise ProgramError(
                f"{name}: shapes {' and '.join(map(str, shapes))} do not match",
                why="each axis must be equal or 1, counted from the last",
            ) from None
        return TensorType(tuple(shape), _secret(operands))

    return infer


def align(values: Sequence[Array]) -> list[Array]:
    """Give all values one rank, new axes behind the axis of samples."""
    rank = max(value.ndim for value in values)
    return [value.reshape(value.shape[:1] + (1,) * (rank - value.ndim) + value.shape[1:]) for value in values]


def _broadcast_index(shape: tuple[int, ...], target: tuple[int, ...]) -> Array:
    return np.broadcast_to(flat_indices(shape)[0], target)


def _sum_linear(signs: Sequence[float]) -> Any:
    def linear(operands: Sequence[TensorType], a: Attrs, context: Context) -> tuple[list[Any], Array | None]:
        target = tuple(np.broadcast_shapes(*(operand.shape for operand in operands)))
        return [_spread(operand.shape, target, sign) for operand, sign in zip(operands, signs, strict=True)], None

    def _spread(shape: tuple[int, ...], target: tuple[int, ...], sign: float) -> Any:
        made = gather_map(_broadcast_index(shape, target), shape, target)
        return made.times(sign) if isinstance(made, Matrix) else made * sign

    return linear


def _broadcast(operands: Sequence[Bounds], node: Node) -> list[Bounds]:
    """The bounds of operands for each element of the result."""
    shape = shape_of(node)
    spread = []
    for (low, high), operand in zip(operands, node.inputs, strict=True):
        own = shape_of(operand)
        ends = (np.broadcast_to(end.reshape(own), shape).ravel() if own != shape else end for end in (low, high))
        spread.append((next(ends), next(ends)))
    return spread


def _add_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    (a, b), (c, d) = _broadcast(operands, node)
    return a + c, b + d


def _sub_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    (a, b), (c, d) = _broadcast(operands, node)
    return a - d, b - c


def _mul_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds | None:
    x, y = _broadcast(operands, node)
    made = square_bounds(x) if node.inputs[0] is node.inputs[1] else product_bounds(x, y)
    return made if all(np.isfinite(end).all() for end in made) else None


define(
    OpSpec(
        "add",
        ARITHMETIC,
        (2, 2),
        {},
        broadcast_type("add"),
        lambda values, a, context: np.add(*align(values)),
        "Elementwise sum, with broadcasting.",
        linear=_sum_linear((1.0, 1.0)),
        role=Role.SUM,
        bounds=_add_bounds,
    )
)
define(
    OpSpec(
        "sub",
        ARITHMETIC,
        (2, 2),
        {},
        broadcast_type("sub"),
        lambda values, a, context: np.subtract(*align(values)),
        "Elementwise difference, with broadcasting.",
        linear=_sum_linear((1.0, -1.0)),
        role=Role.SUM,
        bounds=_sub_bounds,
    )
)
define(
    OpSpec(
        "neg",
        TENSOR,
        (1, 1),
        {},
        lambda operands, a, context: operands[0],
        lambda values, a, context: -values[0],
        "The negative.",
        linear=_sum_linear((-1.0,)),
    )
)
define(
    OpSpec(
        "mul",
        ARITHMETIC,
        (2, 2),
        {},
        broadcast_type("mul"),
        lambda values, a, context: np.multiply(*align(values)),
        "Elementwise product, with broadcasting; of two secrets it is a ciphertext product.",
        depth=1,
        role=Role.PRODUCT,
        word="product",
        bounds=_mul_bounds,
    )
)


def _power_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    if a["exponent"] < 1:
        raise ProgramError(f"power: exponent {a['exponent']} is not a whole number of at least 1")
    return operands[0]


define(
    OpSpec(
        "power",
        TENSOR,
        (1, 1),
        {"exponent": "int"},
        _power_type,
        lambda values, a, context: values[0] ** a["exponent"],
        "A whole power, exponent at least 1.",
    )
)


def _matmul_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    left, right = operands
    if not left.shape or not right.shape:
        raise ProgramError("matmul: both operands need at least one axis")
    inner = right.shape[-2] if len(right.shape) > 1 else right.shape[0]
    if left.shape[-1] != inner:
        raise ProgramError(
            f"matmul: shapes {left.shape} and {right.shape} do not match",
            why=f"the last axis of the left ({left.shape[-1]}) must equal the rows of the right ({inner})",
        )
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise ProgramError(
            f"matmul: shapes {left.shape} and {right.shape} do not match",
            why="each axis before the last two must be equal or 1, counted from the last",
        ) from None
    rows = left.shape[-2:-1] if len(left.shape) > 1 else ()
    columns = right.shape[-1:] if len(right.shape) > 1 else ()
    return TensorType((*batch, *rows, *columns), _secret(operands))


def _matmul(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    left, right = values
    # numpy reads a one-dimensional operand as a row or column; a sample axis must not change that reading.
    row, column = left.ndim == 2, right.ndim == 2
    left = left[:, np.newaxis, :] if row else left
    right = right[:, :, np.newaxis] if column else right
    left, right = align([left, right])
    out = np.matmul(left, right)
    if column:
        out = out[..., 0]
    if row:
        out = out[..., 0] if column else out[..., 0, :]
    return np.asarray(out)


define(
    OpSpec(
        "matmul",
        TENSOR,
        (2, 2),
        {},
        _matmul_type,
        _matmul,
        "Matrix product as numpy's `@`; one side must be known at compile time.",
        effort=lambda node, context: (
            sum(map(size_of, node.inputs)),
            size_of(node) * shape_of(node.inputs[0])[-1],
        ),
    )
)

# ---------------------------------------------------------------------------------------------- reductions


def _reduced(shape: tuple[int, ...], a: Attrs, op: str) -> tuple[int, ...]:
    axes = _axes(a["axes"], len(shape), op)
    if a["keepdims"]:
        return tuple(1 if i in axes else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes)


def _define_reduction(name: str, mean: bool, doc: str) -> None:
    def infer(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
        return TensorType(_reduced(operands[0].shape, a, name), operands[0].secret)

    def factor(shape: tuple[int, ...], a: Attrs) -> float:
        return 1.0 / math.prod(shape[i] for i in _axes(a["axes"], len(shape), name)) if mean else 1.0

    def evaluate(values: Sequence[Array], a: Attrs, context: Context) -> Array:
        shape = values[0].shape[1:]
        axes = tuple(axis + 1 for axis in _axes(a["axes"], len(shape), name))
        return np.asarray(values[0].sum(axis=axes, keepdims=a["keepdims"]) * factor(shape, a))

    def linear(operands: Sequence[TensorType], a: Attrs, context: Context) -> tuple[list[Any], None]:
        shape = operands[0].shape
        kept = _reduced(shape, {**a, "keepdims": True}, name)
        if len(shape) > 1 and kept == (shape[0], *(1,) * (len(shape) - 1)):
            # Over all positions of each channel.
            row = SparseMatrix.of(np.full((1, math.prod(shape[1:])), factor(shape, a)))
            return [KroneckerMatrix.of(np.eye(shape[0])[np.newaxis], [row])], None
        if len(shape) > 1 and kept == (1, *shape[1:]):
            # Over all channels of each position.
            weights = np.full((1, 1, shape[0]), factor(shape, a))
            return [KroneckerMatrix.of(weights, [identity_places(math.prod(shape[1:]))])], None
        rows = np.broadcast_to(flat_indices(kept)[0], shape).ravel()
        data = np.full(rows.size, factor(shape, a))
        return [scipy.sparse.csr_array((data, (rows, np.arange(rows.size))), shape=(math.prod(kept), rows.size))], None

    attrs = {"axes": "ints", "keepdims": "bool"}
    define(OpSpec(name, TENSOR, (1, 1), attrs, infer, evaluate, doc, linear=linear, role=Role.MOVE))


_define_reduction("sum", False, "The sum over axes.")
_define_reduction("mean", True, "The mean over axes.")

# ---------------------------------------------------------------------------------------------- structure


def _reshape_shape(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    if min(a["shape"], default=1) < 1 or math.prod(a["shape"]) != operand.size:
        raise ProgramError(f"reshape: {operand.shape} has {operand.size} elements, {a['shape']} another number")
    return tuple(a["shape"])


def _permute_shape(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    if _axes(a["axes"], len(operand.shape), "permute") != tuple(range(len(operand.shape))):
        raise ProgramError(f"permute: axes {a['axes']} do not name each axis of {operand.shape} once")
    return tuple(operand.shape[axis] for axis in a["axes"])


def _slice_key(a: Attrs) -> tuple[slice, ...]:
    return (slice(None), *(slice(*bounds) for bounds in zip(a["starts"], a["stops"], a["steps"], strict=True)))


def _slice_shape(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    if not len(a["starts"]) == len(a["stops"]) == len(a["steps"]) == len(operand.shape):
        raise ProgramError(f"slice: one start, stop and step per axis of {operand.shape}")
    out = []
    for size, start, stop, step in zip(operand.shape, a["starts"], a["stops"], a["steps"], strict=True):
        if step < 1 or not 0 <= start < stop <= size:
            raise ProgramError(f"slice: {start}:{stop}:{step} is empty or outside an axis of {size}")
        out.append(-(-(stop - start) // step))
    return tuple(out)


def _broadcast_to_shape(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    try:
        if np.broadcast_shapes(operand.shape, a["shape"]) == tuple(a["shape"]):
            return tuple(a["shape"])
    except ValueError:
        pass
    raise ProgramError(f"broadcast: {operand.shape} cannot become {a['shape']}")


def _pad_shape(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    if not len(a["before"]) == len(a["after"]) == len(operand.shape) or min((0, *a["before"], *a["after"])) < 0:
        raise ProgramError(f"pad: one non-negative width per side and axis of {operand.shape}")
    return tuple(s + b + e for s, b, e in zip(operand.shape, a["before"], a["after"], strict=True))


_structural(
    "reshape",
    {"shape": "ints"},
    _reshape_shape,
    lambda x, a: x.reshape((x.shape[0], *a["shape"])),
    "The same elements in row-major order under another shape.",
    ARITHMETIC,
    lambda node, operands, context: operands[0],
)
_structural(
    "permute",
    {"axes": "ints"},
    _permute_shape,
    lambda x, a: x.transpose((0, *(axis % (x.ndim - 1) + 1 for axis in a["axes"]))),
    "Axis i of the result is axis axes[i] of the operand.",
)
_structural(
    "slice",
    {"starts": "ints", "stops": "ints", "steps": "ints"},
    _slice_shape,
    lambda x, a: x[_slice_key(a)],
    "start:stop:step on every axis.",
)
_structural(
    "broadcast",
    {"shape": "ints"},
    _broadcast_to_shape,
    lambda x, a: np.broadcast_to(align([x, np.empty((1, *a["shape"]))])[0], (x.shape[0], *a["shape"])),
    "Axes of length 1, and new leading axes, repeated to the given shape.",
)
_structural(
    "pad",
    {"before": "ints", "after": "ints"},
    _pad_shape,
    lambda x, a: np.pad(x, [(0, 0), *zip(a["before"], a["after"], strict=True)]),
    "Zeros around the tensor.",
)


def _repeat_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    if a["count"] < 1:
        raise ProgramError(f"repeat: {a['count']} copies")
    return TensorType((*operands[0].shape, a["count"]), operands[0].secret)


define(
    OpSpec(
        "repeat",
        TENSOR,
        (1, 1),
        {"count": "int"},
        _repeat_type,
        lambda values, a, context: np.repeat(values[0][..., np.newaxis], a["count"], axis=-1),
        "Each element `count` times, on a new last axis. The maps before it are not multiplied into it, as they are into "
        "`broadcast`: they work once, not once for each copy.",
    )
)


def _concat_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    (axis,) = _axes((a["axis"],), len(operands[0].shape), "concat")
    rests = {operand.shape[:axis] + operand.shape[axis + 1 :] for operand in operands}
    if len(rests) > 1:
        raise ProgramError(
            f"concat: shapes {', '.join(str(o.shape) for o in operands)} differ in more than axis {axis}"
        )
    shape = list(operands[0].shape)
    shape[axis] = sum(operand.shape[axis] for operand in operands)
    return TensorType(tuple(shape), _secret(operands))


def _concat(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    rank = values[0].ndim - 1
    samples = max(value.shape[0] for value in values)
    return np.concatenate(
        [np.broadcast_to(value, (samples, *value.shape[1:])) for value in values], axis=a["axis"] % rank + 1
    )


def _concat_map(operands: Sequence[TensorType], a: Attrs, context: Context) -> tuple[list[Any], None]:
    matrices = []
    for position, operand in enumerate(operands):
        index = [flat_indices(o.shape) if i == position else np.full((1, *o.shape), -1) for i, o in enumerate(operands)]
        joined = _concat(index, a, context)[0]
        matrices.append(gather_map(joined, operand.shape, joined.shape))
    return matrices, None


define(
    OpSpec(
        "concat",
        TENSOR,
        (1, None),
        {"axis": "int"},
        _concat_type,
        _concat,
        "Tensors joined along an axis.",
        linear=_concat_map,
        role=Role.MOVE,
    )
)

# ---------------------------------------------------------------------------------------------- polynomial stage


def _affine_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    size = math.prod(a["shape"])
    if len(a["matrices"]) != len(operands):
        raise ProgramError(f"affine: {len(operands)} operands, {len(a['matrices'])} matrices")
    check_constant("affine", a, context, "bias", (size,))
    for operand, name in zip(operands, a["matrices"], strict=True):
        if context.shape(name) != (size, operand.size):
            raise ProgramError(f"affine: matrix @{name} is {context.shape(name)}, not ({size}, {operand.size})")
    return TensorType(tuple(a["shape"]), _secret(operands))


def _affine(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    total: Any = context.array(a["bias"])[np.newaxis] if "bias" in a else 0.0
    for value, name in zip(values, a["matrices"], strict=True):
        total = total + context.linear_map(name).apply(value.reshape(value.shape[0], -1))
    return np.asarray(total).reshape(-1, *a["shape"])


def _affine_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    middle: Array = np.zeros(size_of(node))
    radius: Array = np.zeros(size_of(node))
    for (low, high), name in zip(operands, node.attrs["matrices"], strict=True):
        matrix = context.linear_map(name)
        middle += matrix.apply((low + high)[np.newaxis] / 2)[0]
        radius += matrix.absolute().apply((high - low)[np.newaxis] / 2)[0]
    if "bias" in node.attrs:
        middle = middle + context.array(node.attrs["bias"])
    radius = radius + WIDEN * (np.abs(middle) + radius)
    return middle - radius, middle + radius


def _affine_effort(node: Node, context: Context) -> tuple[int, int]:
    maps = [context.linear_map(name).effort for name in node.attrs["matrices"]]
    return max(held for held, _ in maps), sum(operations for _, operations in maps)


define(
    OpSpec(
        "affine",
        ARITHMETIC,
        (1, None),
        {"matrices": "constants", "bias": "constant?", "shape": "ints"},
        _affine_type,
        _affine,
        "Sparse linear maps of the flattened operands, summed, plus a bias.",
        depth=1,
        linear=lambda operands, a, context: (
            [context.linear_map(name) for name in a["matrices"]],
            context.array(a["bias"]) if "bias" in a else None,
        ),
        word="linear map",
        bounds=_affine_bounds,
        effort=_affine_effort,
    )
)


def _poly_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    check_series("poly", a, context)
    shape = context.shape(a["coefficients"])
    if len(shape) != 1 or not shape[0]:
        raise ProgramError(f"poly: coefficients @{a['coefficients']} have shape {shape}, not (degree + 1,)")
    if not (math.isfinite(a["low"]) and math.isfinite(a["high"]) and a["low"] < a["high"]):
        raise ProgramError(f"poly: [{a['low']}, {a['high']}] is not an interval with low < high")
    result: Type = operands[0]
    return result


# The number of values on which a polynomial is evaluated at a time, and in one thread.
_TOGETHER, _EACH = 1 << 14, 1 << 18


def evaluate_chebyshev(x: Array, coefficients: Array, low: float, high: float) -> Array:
    """The Chebyshev series on [low, high], by Clenshaw's recurrence, in blocks of values small enough for the cache.

    A series that is even or odd, up to a line or a constant, is one in steps of T_2: T_(k+2) = 2 T_2 T_k - T_(k-2). It
    takes half the work.
    """
    flat = np.ascontiguousarray(x).reshape(-1)
    found = np.empty(flat.shape, dtype=np.result_type(x, np.float64))
    odd = bool(np.any(coefficients[3::2]))
    halved = odd != bool(np.any(coefficients[2::2]))
    own = [float(value) for value in (coefficients[int(odd) :: 2] if halved else coefficients)]

    def evaluate(number: int) -> None:
        work = np.empty((5, min(_TOGETHER, flat.size)), dtype=found.dtype)
        for start in range(number * _EACH, min((number + 1) * _EACH, flat.size), _TOGETHER):
            block(flat[start : start + _TOGETHER], found[start : start + _TOGETHER], work)

    def block(values: Array, result: Array, work: Array) -> None:
        t, twice, next_one, one, two = (row[: result.size] for row in work)
        np.multiply(values, 2.0, out=t)
        t -= high + low
        t /= high - low
        if halved:
            # 2 T_2 = 4 t^2 - 2
            np.multiply(t, t, out=twice)
            twice *= 4.0
            twice -= 2.0
        else:
            np.multiply(t, 2.0, out=twice)
        one.fill(own[-1] if len(own) > 1 else 0.0)
        two.fill(0.0)
        for value in own[-2:0:-1]:
            np.multiply(twice, one, out=next_one)
            next_one -= two
            next_one += value
            next_one, one, two = two, next_one, one
        # The sum is b_0 F_0 - b_1 F_(-1), with F_0 the first of the functions and F_(-1) the one before.
        np.multiply(twice, one, out=result)
        if halved and odd:
            # F_0 = F_(-1) = t
            result -= two
            result -= one
            result += own[0]
            result *= t
            result += float(coefficients[0])
            return
        # F_0 = 1, and F_(-1) is half of `twice`.
        result *= 0.5
        result -= two
        result += own[0]
        if halved and len(coefficients) > 1 and coefficients[1]:
            t *= float(coefficients[1])
            result += t

    in_threads(evaluate, -(-flat.size // _EACH), _EACH)
    return found.reshape(np.shape(x))


define(
    OpSpec(
        "poly",
        ARITHMETIC | {Stage.PACKED},
        (1, 1),
        {
            "coefficients": "constant",
            "low": "float",
            "high": "float",
            "range": "int?",
            "chunk": "int?",
            "series": "constant?",
            "half_period": "float?",
            "merged": "int?",
        },
        _poly_type,
        lambda values, a, context: evaluate_chebyshev(values[0], context.array(a["coefficients"]), a["low"], a["high"]),
        "A polynomial on [low, high], by its Chebyshev coefficients there; `range` is its entry in the program's `ranges` "
        "and `chunk`, on slots, the ciphertext of a value of several. `series` and `half_period` are a trigonometric "
        "polynomial (ckks/trigonometric.py) that a bootstrap of the operand may compute in its place; where it is `merged`, "
        "one does, and the coefficients are those of the same function.",
        role=Role.POLYNOMIAL,
        rules=slotwise(None),
        effort=lambda node, context: (0, size_of(node) * math.prod(context.shape(node.attrs["coefficients"]))),
    )
)
