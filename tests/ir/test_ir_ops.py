"""Every op of the table against formulas of its own, its matrix against its meaning, and its type rule."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from heliograph.errors import ProgramError
from heliograph.interpret import interpret, run_nodes
from heliograph.ir import Array, Builder, Location, Matrix, Node, SparseMatrix, Stage, TensorType
from heliograph.ir.ops.table import OPS, Context

R = np.random.default_rng(0)
LOC = Location("model.py", 7, 3, "block.layer")


def direct_conv(x: Array, w: Array, b: Array, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    """Written as the sums that define it."""
    out_channels, per_group, kh, kw = w.shape
    height = (x.shape[1] + 2 * padding[0] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    width = (x.shape[2] + 2 * padding[1] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    out = np.zeros((out_channels, height, width))
    for o in range(out_channels):
        group = o // (out_channels // groups)
        for i in range(height):
            for j in range(width):
                total = b[o]
                for c in range(per_group):
                    for u in range(kh):
                        for v in range(kw):
                            y = i * stride[0] + u * dilation[0] - padding[0]
                            z = j * stride[1] + v * dilation[1] - padding[1]
                            if 0 <= y < x.shape[1] and 0 <= z < x.shape[2]:
                                total += x[group * per_group + c, y, z] * w[o, c, u, v]
                out[o, i, j] = total
    return out


def direct_pool(x: Array, kernel: int, stride: int, padding: int, include: bool) -> Array:
    size = (x.shape[1] + 2 * padding - kernel) // stride + 1
    out = np.zeros((x.shape[0], size, size))
    for c in range(x.shape[0]):
        for i in range(size):
            for j in range(size):
                values = [
                    x[c, y, z]
                    for y in range(i * stride - padding, i * stride - padding + kernel)
                    for z in range(j * stride - padding, j * stride - padding + kernel)
                    if 0 <= y < x.shape[1] and 0 <= z < x.shape[2]
                ]
                out[c, i, j] = sum(values) / (kernel**2 if include else len(values))
    return out


def direct_max_pool(x: Array, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Array:
    """The largest of the elements of each window that are inside."""
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[1:], kernel, stride, padding, dilation, strict=True)
    ]
    out = np.zeros((x.shape[0], *sizes))
    for c, i, j in np.ndindex(*out.shape):
        rows = [i * stride[0] + u * dilation[0] - padding[0] for u in range(kernel[0])]
        columns = [j * stride[1] + v * dilation[1] - padding[1] for v in range(kernel[1])]
        inside = [x[c, y, z] for y in rows for z in columns if 0 <= y < x.shape[1] and 0 <= z < x.shape[2]]
        out[c, i, j] = max(inside)
    return out


def largest_place(x: Array) -> Array:
    """1 at the first largest element of each row, 0 elsewhere."""
    return np.array([[float(i == row.tolist().index(max(row))) for i in range(row.size)] for row in x])


def softmax_rows(x: Array) -> Array:
    return np.array([[1 / sum(np.exp(other - v) for other in row) for v in row] for row in x])


def normalized(x: Array) -> Array:
    """Over the last two axes, eps 0.1, weight and bias."""
    return np.stack([(m - m.mean()) / (m.var() + 0.1) ** 0.5 * LN_WEIGHT + LN_BIAS for m in x])


W35, B3 = R.normal(size=(3, 5)), R.normal(size=3)
WC, BC = R.normal(size=(4, 2, 3, 2)), R.normal(size=4)
WG = R.normal(size=(4, 1, 3, 2))
MEAN, VAR, GAMMA, BETA = R.normal(size=2), R.uniform(0.5, 2, 2), R.normal(size=2), R.normal(size=2)
CONV = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
POOL = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}
MAP = R.normal(size=(4, 6)) * (R.random((4, 6)) < 0.5)
SECOND = R.normal(size=(4, 3))
COEFFICIENTS = R.normal(size=6)
LN_WEIGHT, LN_BIAS = R.normal(size=(3, 4)), R.normal(size=(3, 4))
MAX_POOL = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1)}


def series(x: Array) -> Array:
    t = (2 * x - 1.0) / 5.0  # [-2, 3] to [-1, 1]
    return sum(c * np.cos(i * np.arccos(t.astype(complex))).real for i, c in enumerate(COEFFICIENTS))  # type: ignore[return-value]


# Two trees on three features: x0 <= 0.5 and then x2 <= 1 on its left; and x1 <= -1. Three leaves, and two.
TREES = {
    "features": np.array([0.0, 2.0, 1.0]),
    "thresholds": np.array([0.5, 1.0, -1.0]),
    "paths": SparseMatrix.of([[-1, -1, 0], [-1, 1, 0], [1, 0, 0], [0, 0, -1], [0, 0, 1]]),
    "offsets": np.array([2.0, 1.0, 0.0, 1.0, 0.0]),
    "values": np.array([[1.0, 2.0, 4.0, 0.25, 0.5], [-1.0, 0.0, 3.0, 8.0, 16.0]]),
    "bias": np.array([10.0, -10.0]),
}


def two_trees(row: Array) -> Array:
    first = ([1.0, -1.0] if row[2] <= 1.0 else [2.0, 0.0]) if row[0] <= 0.5 else [4.0, 3.0]
    second = [0.25, 8.0] if row[1] <= -1.0 else [0.5, 16.0]
    return np.array(first) + second + [10.0, -10.0]


# name of the case: (op, shapes of operands, attributes (arrays become constants), formula)
CASES: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any], Callable[..., Array]]] = {
    "add": ("add", [(2, 3), (3,)], {}, lambda x, y: x + y),
    "sub": ("sub", [(3,), (2, 3)], {}, lambda x, y: x - y),
    "repeat": ("repeat", [(2, 3)], {"count": 4}, lambda x: np.stack([x] * 4, axis=-1)),
    "sum_runs": (
        "sum_runs",
        [(3, 8)],
        {"count": 4},
        lambda x: np.array([sum(x.ravel()[4 * i : 4 * i + 4]) for i in range(6)]),
    ),
    "neg": ("neg", [(2, 3)], {}, lambda x: -x),
    "mul": ("mul", [(2, 1), (3,)], {}, lambda x, y: x * y),
    "power": ("power", [(4,)], {"exponent": 3}, lambda x: x * x * x),
    "matmul": ("matmul", [(2, 3), (3, 4)], {}, lambda x, y: np.einsum("ij,jk->ik", x, y)),
    "product_ab": ("matrix_product", [(2, 3), (3, 4)], {"kind": "ab"}, lambda x, y: np.einsum("ij,jk->ik", x, y)),
    "product_abt": ("matrix_product", [(2, 3), (4, 3)], {"kind": "abt", "scale": 0.5}, lambda x, y: 0.5 * x @ y.T),
    "product_atb": ("matrix_product", [(3, 2), (3, 4)], {"kind": "atb"}, lambda x, y: x.T @ y),
    "matmul_row": ("matmul", [(3,), (2, 3, 4)], {}, lambda x, y: np.einsum("j,bjk->bk", x, y)),
    "matmul_column": ("matmul", [(2, 4, 3), (3,)], {}, lambda x, y: np.einsum("bij,j->bi", x, y)),
    "matmul_dot": ("matmul", [(3,), (3,)], {}, lambda x, y: np.asarray(sum(x * y))),
    "linear": ("linear", [(2, 5)], {"weight": W35, "bias": B3}, lambda x: np.einsum("ij,oj->io", x, W35) + B3),
    "linear_no_bias": ("linear", [(5,)], {"weight": W35}, lambda x: np.einsum("j,oj->o", x, W35)),
    "conv": (
        "conv",
        [(2, 5, 6)],
        {"weight": WC, "bias": BC, "groups": 1, **CONV},
        lambda x: direct_conv(x, WC, BC, groups=1, **CONV),
    ),
    "conv_groups": (
        "conv",
        [(2, 5, 6)],
        {"weight": WG, "groups": 2, **CONV},
        lambda x: direct_conv(x, WG, np.zeros(4), groups=2, **CONV),
    ),
    "batch_norm": (
        "batch_norm",
        [(2, 3, 2)],
        {"mean": MEAN, "variance": VAR, "weight": GAMMA, "bias": BETA, "eps": 0.1},
        lambda x: (
            (x - MEAN[:, None, None]) / np.sqrt(VAR + 0.1)[:, None, None] * GAMMA[:, None, None] + BETA[:, None, None]
        ),
    ),
    "avg_pool": ("avg_pool", [(2, 6, 6)], {**POOL, "count_include_pad": True}, lambda x: direct_pool(x, 3, 2, 1, True)),
    "avg_pool_inside": (
        "avg_pool",
        [(2, 6, 6)],
        {**POOL, "count_include_pad": False},
        lambda x: direct_pool(x, 3, 2, 1, False),
    ),
    "adaptive_avg_pool": (
        "adaptive_avg_pool",
        [(2, 5)],
        {"output_size": (3,)},
        lambda x: np.stack([x[:, 0:2].mean(1), x[:, 1:4].mean(1), x[:, 3:5].mean(1)], axis=1),
    ),
    "sum": ("sum", [(2, 3, 4)], {"axes": (-1, 0), "keepdims": False}, lambda x: np.einsum("ijk->j", x)),
    "mean": ("mean", [(2, 3)], {"axes": (1,), "keepdims": True}, lambda x: np.einsum("ij->i", x)[:, None] / 3),
    "reshape": ("reshape", [(2, 6)], {"shape": (3, 4)}, lambda x: np.array(list(x.flat)).reshape(3, 4)),
    "permute": ("permute", [(2, 3, 4)], {"axes": (2, 0, -2)}, lambda x: np.einsum("ijk->kij", x)),
    "slice": ("slice", [(4, 6)], {"starts": (1, 0), "stops": (4, 5), "steps": (2, 3)}, lambda x: x[[1, 3]][:, [0, 3]]),
    "broadcast": ("broadcast", [(3, 1)], {"shape": (2, 3, 2)}, lambda x: np.stack([np.hstack([x, x])] * 2)),
    "pad": ("pad", [(2, 2)], {"before": (1, 0), "after": (0, 2)}, lambda x: np.pad(x, [(1, 0), (0, 2)])),
    "concat": ("concat", [(2, 3), (2, 1)], {"axis": -1}, lambda x, y: np.hstack([x, y])),
    "relu": ("relu", [(9,)], {}, lambda x: np.array([max(v, 0) for v in x])),
    "leaky_relu": ("leaky_relu", [(9,)], {"negative_slope": 0.2}, lambda x: np.where(x < 0, 0.2 * x, x)),
    "gelu": ("gelu", [(9,)], {}, lambda x: np.array([v * math.erfc(-v / math.sqrt(2)) / 2 for v in x])),
    "gelu_tanh": (
        "gelu",
        [(9,)],
        {"approximate": "tanh"},
        lambda x: x / (1 + np.exp(-2 * 0.7978845608028654 * (x + 0.044715 * x * x * x))),
    ),
    "silu": ("silu", [(9,)], {}, lambda x: x / (1 + np.exp(-x))),
    "sigmoid": ("sigmoid", [(9,)], {}, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": ("tanh", [(9,)], {}, lambda x: 2 / (1 + np.exp(-2 * x)) - 1),
    "softplus": ("softplus", [(9,)], {"beta": 2.0}, lambda x: np.log(1 + np.exp(2 * x)) / 2),
    "sign": ("sign", [(9,)], {}, lambda x: np.array([float(v > 0) - float(v < 0) for v in x])),
    "abs": ("abs", [(9,)], {}, lambda x: np.array([max(v, -v) for v in x])),
    "exp": ("exp", [(9,)], {}, lambda x: np.e**x),
    "reciprocal": ("reciprocal", [(9,)], {}, lambda x: x**-1.0),
    "sqrt": ("sqrt", [(9,)], {}, lambda x: x**0.5),
    "rsqrt": ("rsqrt", [(9,)], {}, lambda x: x**-0.5),
    "relu6": ("relu6", [(9,)], {}, lambda x: np.array([min(max(v, 0), 6) for v in x])),
    "hardtanh": ("hardtanh", [(9,)], {}, lambda x: np.array([min(max(v, -1), 1) for v in x])),
    "erf": ("erf", [(9,)], {}, lambda x: np.array([math.erf(v) for v in x])),
    "log": ("log", [(9,)], {}, lambda x: np.array([math.log2(v) / math.log2(math.e) for v in x])),
    "sin": ("sin", [(9,)], {}, lambda x: np.exp(1j * x).imag),
    "cos": ("cos", [(9,)], {}, lambda x: np.exp(1j * x).real),
    "clamp": ("clamp", [(9,)], {"min": -0.5, "max": 1}, lambda x: np.array([min(max(v, -0.5), 1) for v in x])),
    "clamp_below": ("clamp", [(9,)], {"min": 1.0}, lambda x: np.array([max(v, 1) for v in x])),
    "clamp_above": ("clamp", [(9,)], {"max": 1.0}, lambda x: np.array([min(v, 1) for v in x])),
    "gt": (
        "gt",
        [(2, 3), (3,)],
        {"gap": 0.1},
        lambda x, y: np.array([[float(a > b) for a, b in zip(r, y, strict=True)] for r in x]),
    ),
    "ge": ("ge", [(4,), ()], {"bits": 8.0}, lambda x, y: np.array([float(a >= y) for a in x])),
    "lt": (
        "lt",
        [(3,), (2, 3)],
        {},
        lambda x, y: np.array([[float(a < b) for a, b in zip(x, r, strict=True)] for r in y]),
    ),
    "le": ("le", [(4,), (4,)], {}, lambda x, y: np.array([float(a <= b) for a, b in zip(x, y, strict=True)])),
    "maximum": ("maximum", [(2, 1), (3,)], {}, lambda x, y: np.array([[max(a, b) for b in y] for a in x[:, 0]])),
    "minimum": ("minimum", [(2, 1), (3,)], {}, lambda x, y: np.array([[min(a, b) for b in y] for a in x[:, 0]])),
    "div": ("div", [(2, 3), (3,)], {}, lambda x, y: x * y**-1.0),
    "where": ("where", [(2, 1), (3,), (2, 3)], {}, lambda c, x, y: c * x + (1 - c) * y),
    "max": ("max", [(2, 4)], {"axis": 1}, lambda x: np.array([max(row) for row in x])),
    "max_first": ("max", [(3, 2)], {"axis": -2, "keepdims": True}, lambda x: np.array([[max(c) for c in x.T]])),
    "min": ("min", [(2, 4)], {"axis": -1, "keepdims": True}, lambda x: np.array([[min(row)] for row in x])),
    "argmax": ("argmax", [(3, 4)], {"axis": -1}, largest_place),
    "argmax_first": ("argmax", [(3, 4)], {"axis": 0, "count": 8}, lambda x: largest_place(x.T).T),
    "argmax_index": (
        "argmax",
        [(3, 4)],
        {"axis": 1, "index": True},
        lambda x: np.array([float(row.tolist().index(max(row))) for row in x]),
    ),
    "softmax": ("softmax", [(3, 4)], {"axis": 1}, softmax_rows),
    "softmax_first": ("softmax", [(3, 4)], {"axis": 0}, lambda x: softmax_rows(x.T).T),
    "max_rows": ("max_rows", [(3, 4)], {}, lambda x: np.array([max(column) for column in x.T])),
    "argmax_rows": ("argmax_rows", [(3, 4)], {}, lambda x: largest_place(x.T).T),
    "softmax_rows": ("softmax_rows", [(3, 4)], {}, lambda x: softmax_rows(x.T).T),
    "max_pool": ("max_pool", [(2, 5, 6)], MAX_POOL, lambda x: direct_max_pool(x, dilation=(1, 1), **MAX_POOL)),
    "max_pool_dilated": (
        "max_pool",
        [(2, 6, 6)],
        {**MAX_POOL, "dilation": (2, 3)},
        lambda x: direct_max_pool(x, dilation=(2, 3), **MAX_POOL),
    ),
    "layer_norm": (
        "layer_norm",
        [(2, 3, 4)],
        {"rank": 2, "weight": LN_WEIGHT, "bias": LN_BIAS, "eps": 0.1},
        normalized,
    ),
    "layer_norm_plain": (
        "layer_norm",
        [(2, 5)],
        {"rank": 1, "eps": 1e-5},
        lambda x: np.array([(row - row.mean()) * (row.var() + 1e-5) ** -0.5 for row in x]),
    ),
    "affine": (
        "affine",
        [(2, 3), (3,)],
        {"matrices": (SparseMatrix.of(MAP), SparseMatrix.of(SECOND)), "bias": BC, "shape": (2, 2)},
        lambda x, y: (MAP @ x.ravel() + SECOND @ y + BC).reshape(2, 2),
    ),
    "tree_ensemble": ("tree_ensemble", [(3,)], TREES, two_trees),
    "poly": ("poly", [(5,)], {"coefficients": COEFFICIENTS, "low": -2.0, "high": 3.0}, series),
    "rotate": ("rotate", [(16,)], {"amount": 3}, lambda x: np.array([x[(i + 3) % 16] for i in range(16)])),
    "conjugate": ("conjugate", [(16,)], {}, lambda x: x),
    "real_part": ("real_part", [(16,)], {}, lambda x: x),
    "imaginary_part": ("imaginary_part", [(16,)], {}, lambda x: 0 * x),
    "mul_plain": ("mul_plain", [(16,)], {"value": BC}, lambda x: x * np.tile(BC, 4)),
    "mul_plain_complex": (
        "mul_plain",
        [(16,)],
        {"value": BC, "imaginary": BC[::-1]},
        lambda x: np.array([complex(v * BC[i % 4], v * BC[3 - i % 4]) for i, v in enumerate(x)]),
    ),
    "add_plain": ("add_plain", [(16,)], {"value": BC}, lambda x: x + np.tile(BC, 4)),
    "add_scalar": ("add_scalar", [(16,)], {"value": -0.5}, lambda x: x - 0.5),
    "mul_int": ("mul_int", [(16,)], {"factor": -3}, lambda x: -x - x - x),
    "lincomb": ("lincomb", [(16,), (16,)], {"weights": (2.0, -0.5), "constant": 1.0}, lambda x, y: 2 * x - y / 2 + 1),
    "mul_i": ("mul_i", [(16,)], {}, lambda x: np.array([complex(0, v) for v in x])),
    "negate": ("negate", [(16,)], {}, lambda x: -x),
    "add_ct": ("add_ct", [(16,), (16,)], {}, lambda x, y: x + y),
    "sub_ct": ("sub_ct", [(16,), (16,)], {}, lambda x, y: x - y),
    "complex_of": (
        "complex_of",
        [(16,), (16,)],
        {},
        lambda x, y: np.array([complex(a, b) for a, b in zip(x, y, strict=True)]),
    ),
    "mul_ct": ("mul_ct", [(16,), (16,)], {}, lambda x, y: x * y),
}
# Ops whose meaning other tests have: values given from outside, the identities of level management, diagonals, rows
# (`test_ir_rows.py`), what bootstraps are written out with (`test_bootstraps_written_out.py`).
ELSEWHERE = {
    "input", "constant", "rescale", "level_drop", "switch_chain", "bootstrap",
    "fourier_factor", "raise_modulus", "reread", "refreshed",
    "relinearize", "linear_transform", "pack", "mul_pt", "add_pt", "stack", "weighted_sum",
    "pad_rows", "crop_rows", "roll_rows", "sum_rows", "equal_row", "repeat_row",
}  # fmt: skip
# Where an activation has a value, as its entry in the table says: no other point is in a range that it may be given.
DOMAINS: dict[str, Callable[[Array], Array]] = {
    "reciprocal": lambda x: x != 0,
    "log": lambda x: x > 0,
    "sqrt": lambda x: x >= 0,
    "rsqrt": lambda x: x > 0,
}


def build(case: str) -> tuple[Builder, list[Node], Node]:
    op, shapes, attrs, _ = CASES[case]
    spec = OPS[op]
    stage = Stage.TENSOR if Stage.TENSOR in spec.stages else Stage.PACKED
    builder = Builder(case, stage)
    inputs = []
    for i, shape in enumerate(shapes):
        size = {"shape": shape} if stage is Stage.TENSOR else {"slots": shape[0], "chunk": 0}
        inputs.append(builder.input(f"x{i}", **size))  # type: ignore[arg-type]

    def stored(value: Any) -> Any:
        if isinstance(value, tuple) and value and isinstance(value[0], SparseMatrix):
            return tuple(builder.constant(v, "m") for v in value)
        return builder.constant(value) if isinstance(value, np.ndarray | SparseMatrix) else value

    return builder, inputs, builder.op(op, inputs, LOC, **{k: stored(v) for k, v in attrs.items()})


def values(case: str, samples: int) -> list[Array]:
    random = np.random.default_rng(1)
    op, shapes, *_ = CASES[case]
    low = 0.1 if op in ("log", "sqrt", "rsqrt") else -2
    return [random.uniform(low, 3, size=(samples, *shape)) for shape in shapes]


# A traced model may add activations later (frontends/torch/ways/pointwise.py): these are the ops of the tables.
WRITTEN = frozenset(OPS)


def test_every_op_has_a_case() -> None:
    assert {case[0] for case in CASES.values()} | ELSEWHERE == WRITTEN


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_meaning(case: str, samples: int) -> None:
    builder, inputs, node = build(case)
    given = values(case, samples)
    (out,) = run_nodes(builder.finish([node]), dict(zip(inputs, given, strict=True)))
    for i in range(samples):
        expected = CASES[case][3](*(x[i] for x in given))
        assert out[i].shape == expected.shape
        np.testing.assert_allclose(out[i], expected, atol=1e-12)
        if isinstance(node.type, TensorType):
            assert node.type.shape == expected.shape


@pytest.mark.parametrize("case", [case for case, entry in CASES.items() if OPS[entry[0]].linear is not None])
def test_matrix_is_the_meaning(case: str) -> None:
    builder, inputs, node = build(case)
    linear = OPS[node.op].linear
    assert linear is not None
    matrices, bias = linear([n.type for n in inputs], node.attrs, builder.context)
    given = values(case, 1)
    (out,) = run_nodes(builder.finish([node]), dict(zip(inputs, given, strict=True)))
    matrices = [each.csr() if isinstance(each, Matrix) else each for each in matrices]
    flat = sum(m @ x.ravel() for m, x in zip(matrices, given, strict=True)) + (0 if bias is None else bias)
    np.testing.assert_allclose(out.ravel(), flat, atol=1e-12)


@pytest.mark.parametrize("size", [5.0, 40.0, 800.0])
@pytest.mark.parametrize("op", [name for name, spec in OPS.items() if spec.activation is not None])
def test_activations_are_finite_far_out(op: str, size: float) -> None:
    activation = OPS[op].activation
    assert activation is not None
    x = np.array([-size, 0.0, size])
    inside = DOMAINS.get(op, lambda x: np.isfinite(x))(x)
    with np.errstate(over="raise", invalid="raise"):
        np.testing.assert_array_equal(np.isfinite(activation(x, {})), inside)


def test_decisions_at_equality() -> None:
    """Equal values are at least and at most each other, the sign of zero is zero, and the first of equals wins."""
    builder = Builder("equal", Stage.TENSOR)
    x = builder.input("x", shape=(3,))
    nodes = {op: builder.op(op, (x, x)) for op in ("gt", "ge", "lt", "le")}
    nodes["sign"] = builder.op("sign", (x,))
    nodes["argmax"] = builder.op("argmax", (x,), axis=0)
    nodes["index"] = builder.op("argmax", (x,), axis=0, index=True)
    results = dict(zip(nodes, interpret(builder.finish(nodes), [0.0, 2.0, 2.0]), strict=True))
    for op, expected in (
        ("gt", [0, 0, 0]),
        ("ge", [1, 1, 1]),
        ("lt", [0, 0, 0]),
        ("le", [1, 1, 1]),
        ("sign", [0, 1, 1]),
        ("argmax", [0, 1, 0]),
        ("index", 1),
    ):
        np.testing.assert_array_equal(results[op], expected)


def test_softmax_is_finite_far_out() -> None:
    builder = Builder("far", Stage.TENSOR)
    program = builder.finish([builder.op("softmax", (builder.input("x", shape=(3,)),), axis=0)])
    np.testing.assert_array_equal(interpret(program, [-800.0, 0.0, 800.0]), [0, 0, 1])


C = {"w": W35, "b": B3, "wc": WC, "bc": BC, "two": MEAN, "scalar": np.float64(1.0), "m": SparseMatrix.of(MAP)}
CONV1 = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
BAD: list[tuple[str, list[tuple[int, ...]], dict[str, Any], str]] = [
    ("add", [(2,), (3,)], {}, "do not match"),
    ("add", [(2,)], {}, "takes 2 operands"),
    ("add", [(2,), (2,)], {"axis": 1}, "no attribute 'axis'"),
    ("power", [(2,)], {"exponent": 0}, "at least 1"),
    ("power", [(2,)], {"exponent": 2.0}, "not of kind int"),
    ("power", [(2,)], {"exponent": True}, "not of kind int"),
    ("power", [(2,)], {}, "needs the attribute 'exponent'"),
    ("matmul", [(2, 3), (2, 3)], {}, "must equal the rows"),
    ("matmul", [(), (3,)], {}, "at least one axis"),
    ("linear", [(4,)], {"weight": "@w"}, "does not end in 5"),
    ("linear", [(5,)], {"weight": "@w", "bias": "@bc"}, "bias @bc has shape"),
    ("linear", [(5,)], {"weight": "@b"}, "not (out, in)"),
    ("linear", [(5,)], {"weight": "@none"}, "no constant @none"),
    ("linear", [()], {"weight": "@w"}, "does not end in"),
    ("conv", [(2, 5)], {"weight": "@wc", **CONV1}, "spatial axes"),
    ("conv", [(3, 5, 5)], {"weight": "@wc", **CONV1}, "has 3 channels"),
    ("conv", [(2, 2, 5)], {"weight": "@wc", **CONV1}, "does not fit"),
    ("conv", [(2, 5, 5)], {"weight": "@wc", **CONV1, "stride": (0, 1)}, "stride"),
    ("conv", [(2, 5, 5)], {"weight": "@wc", **CONV1, "stride": (1,)}, "stride"),
    ("conv", [(2, 5, 5)], {"weight": "@wc", **CONV1, "padding": (-1, 0)}, "padding"),
    ("conv", [(2, 5, 5)], {"weight": "@wc", **CONV1, "groups": 0}, "0 groups"),
    ("conv", [(2, 5, 5)], {"weight": "@wc", **CONV1, "bias": "@b"}, "bias"),
    ("conv", [(2, 5, 5)], {"weight": "@w", **CONV1}, "*kernel"),
    ("batch_norm", [(3, 2)], {"mean": "@two", "variance": "@two", "eps": 0.1}, "does not start"),
    ("batch_norm", [(2, 2)], {"mean": "@two", "variance": "@b", "eps": 0.1}, "variance"),
    ("batch_norm", [(2,)], {"mean": "@scalar", "variance": "@two", "eps": 0.1}, "does not start"),
    ("avg_pool", [(2, 4)], {**POOL, "count_include_pad": True}, "spatial axes"),
    ("avg_pool", [(2, 4, 4)], {**POOL, "padding": (2, 2), "count_include_pad": False}, "more than half"),
    ("avg_pool", [(2, 4, 4)], {**POOL, "kernel": (0, 3), "count_include_pad": False}, "kernel"),
    ("adaptive_avg_pool", [(2, 4)], {"output_size": (0,)}, "empty"),
    ("sum", [(2, 3)], {"axes": (2,), "keepdims": False}, "out of range"),
    ("sum", [(2, 3)], {"axes": (1, -1), "keepdims": False}, "twice"),
    ("reshape", [(2, 3)], {"shape": (4,)}, "another number"),
    ("reshape", [(2, 3)], {"shape": (-2, -3)}, "another number"),
    ("permute", [(2, 3)], {"axes": (0,)}, "once"),
    ("slice", [(4,)], {"starts": (2,), "stops": (2,), "steps": (1,)}, "empty"),
    ("slice", [(4,)], {"starts": (0,), "stops": (2,), "steps": (0,)}, "empty"),
    ("slice", [(4,)], {"starts": (), "stops": (), "steps": ()}, "per axis"),
    ("broadcast", [(3,)], {"shape": (2,)}, "cannot become"),
    ("pad", [(3,)], {"before": (-1,), "after": (0,)}, "non-negative"),
    ("pad", [(3,)], {"before": (), "after": ()}, "non-negative"),
    ("concat", [(2, 3), (3, 2)], {"axis": 0}, "differ"),
    ("concat", [()], {"axis": 0}, "out of range"),
    ("affine", [(6,)], {"matrices": ("@m", "@m"), "shape": (4,)}, "2 matrices"),
    ("affine", [(6,)], {"matrices": ("@m",), "shape": (5,)}, "not (5, 6)"),
    ("affine", [(6,)], {"matrices": ("@m",), "shape": (4,), "bias": "@b"}, "bias"),
    ("poly", [(2,)], {"coefficients": "@b", "low": 1.0, "high": 1.0}, "low < high"),
    ("poly", [(2,)], {"coefficients": "@w", "low": 0.0, "high": 1.0}, "degree + 1"),
    ("gt", [(2,), (3,)], {}, "gt: shapes (2,) and (3,) do not match"),
    ("gt", [(2,), (2,)], {"gap": "small"}, "not of kind float"),
    ("gt", [(2,), (2,)], {"degree": 7}, "no attribute 'degree'"),
    ("where", [(2,), (2,)], {}, "takes 3 operands"),
    ("where", [(2,), (2,), (3,)], {}, "(2,) and (2,) and (3,) do not match"),
    ("div", [(2,), (3,)], {}, "do not match"),
    ("max", [(2, 3)], {"axis": 2}, "max: axis 2 is out of range for a tensor of rank 2"),
    ("min", [()], {"axis": 0}, "min: axis 0 is out of range"),
    ("max", [(2, 3)], {}, "needs the attribute 'axis'"),
    ("argmax", [(2, 3)], {"axis": -3}, "argmax: axis -3 is out of range"),
    ("argmax", [(3, 1)], {"axis": 1}, "has one element"),
    ("argmax", [()], {"axis": 0}, "argmax: axis 0 is out of range"),
    ("softmax", [(2, 3)], {"axis": 2}, "softmax: axis 2 is out of range"),
    ("max_rows", [(2, 3, 4)], {}, "(rows, columns), not (2, 3, 4)"),
    ("argmax_rows", [(2,)], {}, "(rows, columns), not (2,)"),
    ("softmax_rows", [(2,)], {}, "(rows, columns), not (2,)"),
    ("max_pool", [(2, 4)], POOL, "spatial axes"),
    ("max_pool", [(2, 4, 4)], {**POOL, "padding": (2, 2)}, "more than half"),
    ("max_pool", [(2, 4, 4)], {**POOL, "stride": (0, 1)}, "stride"),
    ("max_pool", [(2, 4, 4)], {**POOL, "dilation": (3, 1)}, "does not fit"),
    ("max_pool", [(2, 4, 4)], {**POOL, "dilation": (1,)}, "dilation"),
    (
        "max_pool",
        [(1, 4)],
        {"kernel": (2,), "stride": (1,), "padding": (1,), "dilation": (5,)},
        "a window on an axis of 4 (dilation 5) holds padding only",
    ),
    ("layer_norm", [(2, 3)], {"rank": 3, "eps": 0.1}, "does not have 3 axes"),
    ("layer_norm", [(2, 3)], {"rank": 0, "eps": 0.1}, "does not have 0 axes"),
    ("layer_norm", [(2, 3)], {"rank": 1, "eps": 0.1, "weight": "@two"}, "weight @two has shape (2,), not (3,)"),
    ("layer_norm", [(2, 3)], {"rank": 2, "eps": 0.1, "bias": "@b"}, "bias @b has shape (3,), not (2, 3)"),
    ("clamp", [(2,)], {"min": "a"}, "not of kind float"),
    ("pad_rows", [(2, 3)], {"rows": 4}, "does not exist at the tensor stage"),
    ("rotate", [(2,)], {"amount": 1}, "does not exist at the tensor stage"),
    ("rellu", [(2,)], {}, "did you mean"),
]


def test_windows_of_padding_only_are_found_without_walking_through_them() -> None:
    """As a walk over every window says; and for windows of hundreds of millions in no time."""
    refused = 0
    for size, k, stride, spread in itertools.product(range(1, 6), range(1, 5), (1, 2), (1, 2, 3, 4)):
        for pad in range(k // 2 + 1):
            firsts = range(-pad, size + pad - spread * (k - 1), stride)
            wanted = all(any(0 <= first + i * spread < size for i in range(k)) for first in firsts)
            attrs = {"kernel": (k,), "stride": (stride,), "padding": (pad,), "dilation": (spread,)}
            builder = Builder("p", Stage.TENSOR)
            x = builder.input("x", shape=(1, size))
            if wanted and len(firsts):
                builder.op("max_pool", [x], LOC, **attrs)
                continue
            refused += len(firsts) > 0
            with pytest.raises(ProgramError, match="padding only" if len(firsts) else "does not fit"):
                builder.op("max_pool", [x], LOC, **attrs)
    assert refused > 3
    builder = Builder("p", Stage.TENSOR)
    large = {"kernel": (4 * 10**8,), "padding": (2 * 10**8,), "stride": (1,)}
    made = builder.op("max_pool", [builder.input("x", shape=(1, 3))], LOC, **large)
    assert str(made.type) == "tensor<1x4>"


@pytest.mark.parametrize(("op", "shapes", "attrs", "words"), BAD, ids=[f"{b[0]}-{i}" for i, b in enumerate(BAD)])
def test_type_rules_refuse(op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], words: str) -> None:
    """With one ProgramError, that names the place in the user's model."""
    from heliograph.ir import ConstantName

    builder = Builder("bad", Stage.TENSOR)
    for name, value in C.items():
        builder.constant(value, name)

    def named(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(named(v) for v in value)
        return ConstantName(value[1:]) if isinstance(value, str) and value.startswith("@") else value

    inputs = [builder.input(f"x{i}", shape=shape) for i, shape in enumerate(shapes)]
    with pytest.raises(ProgramError) as caught:
        builder.op(op, inputs, LOC, **{k: named(v) for k, v in attrs.items()})
    assert words in str(caught.value)
    if op != "rellu":
        assert caught.value.where == "model.py:7:3 (block.layer)"


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({"shape": (0,)}, "no elements"),
        ({"shape": (-3,)}, "no elements"),
        ({"shape": (3,), "low": 1.0, "high": -1.0}, "empty"),
        ({"shape": (3,), "low": float("nan")}, "range ends"),
        ({"shape": (3,), "high": float("inf")}, "range ends"),
        ({}, "no shape"),
    ],
)
def test_inputs_refuse(attrs: dict[str, Any], words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        Builder("bad", Stage.TENSOR).input("x", **attrs)


def test_input_names_are_unique() -> None:
    builder = Builder("bad", Stage.TENSOR)
    builder.input("x", shape=(2,))
    with pytest.raises(ProgramError, match="two inputs are called 'x'"):
        builder.input("x", shape=(2,))


@pytest.mark.parametrize("value", [np.array([1.0, np.nan]), np.array([np.inf]), np.array(["a"]), np.array([1j])])
def test_constants_are_finite_real_numbers(value: Any) -> None:
    with pytest.raises(ProgramError):
        Builder("bad", Stage.TENSOR).constant(value)


def test_equal_constants_share_a_name_and_others_do_not() -> None:
    builder = Builder("c", Stage.TENSOR)
    first = builder.constant(np.arange(3.0), "w")
    assert builder.constant(np.arange(3.0), "other") == first
    names = {str(builder.constant(np.full(3, i), "w")) for i in range(5)}
    assert len(names) == 5
    assert str(first) not in names
    again = Builder("d", Stage.TENSOR, builder.finish([builder.op("constant", value=first)]))
    assert again.constant(np.arange(3.0), "w") == first
    assert again.constant(np.arange(4.0), "w") != first


def test_interpret_refuses_what_is_not_one_sample() -> None:
    builder = Builder("p", Stage.TENSOR)
    program = builder.finish([builder.op("neg", (builder.input("x", shape=(3,)),))])
    for value, words in (
        (np.zeros(4), "shape"),
        (np.zeros((1, 3)), "without a batch axis"),
        (np.array([0, np.nan, 0]), r"nan at index \(1,\)"),
        (["a", "b", "c"], "not an array of real numbers"),
    ):
        with pytest.raises(ProgramError, match=words):
            interpret(program, value)
    with pytest.raises(ProgramError, match="takes 1 inputs"):
        interpret(program)


def test_context_refuses_opaque_constants() -> None:
    from heliograph.ir import OpaqueConstant

    context = Context({"w": OpaqueConstant("f64", (2,), "0" * 32)})
    with pytest.raises(ProgramError, match="computed with"):
        context.array("w")
    assert context.shape("w") == (2,)
