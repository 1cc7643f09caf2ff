"""Values of several tokens: stacks of matrix products, features first, layer norms whose rows differ in size."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import heliograph as hg
from heliograph.compiler.pipeline import linear_passes
from heliograph.compiler.reporting.held_out import observe
from heliograph.interpret import interpret_many
from heliograph.ir import Builder, Node, Program, Stage, shape_of
from heliograph.ir.maps.kronecker import KroneckerMatrix, identity_places
from heliograph.passes.base import apply
from heliograph.passes.packing.choose_layouts import candidate_layouts, group_values
from heliograph.passes.polynomials.approximate import Approximate
from heliograph.passes.ranges.calibrate import Calibrate
from heliograph.passes.ranges.norm_rows import norm_rows
from heliograph.passes.tensors.channels_first import ChannelsFirst, has_tokens
from heliograph.passes.tensors.fuse_linear import FuseLinear

R = np.random.default_rng(0)


def program(body: Callable[..., Node], *shapes: tuple[int, ...], secret: tuple[bool, ...] = ()) -> Program:
    builder = Builder("p", Stage.TENSOR)
    every = secret or (True,) * len(shapes)
    inputs = [builder.input(f"x{i}", shape=shape, secret=every[i]) for i, shape in enumerate(shapes)]
    return builder.finish({"y": body(builder, *inputs)})


def same(before: Program, after: Program) -> None:
    samples = [R.normal(size=(3, *shape_of(node))) for node in before.inputs]
    for one, other in zip(interpret_many(before, samples), interpret_many(after, samples), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)


@pytest.mark.parametrize(
    ("left", "right", "turns"),
    [
        ((3, 16, 20), (3, 20, 16), 16),  # the scores of attention: a turn for each column
        ((3, 16, 16), (3, 16, 40), 16),  # the product with its values: a turn for each inner index
        ((3, 16, 8), (3, 8, 16), 16),
        ((3, 10, 20), (3, 20, 12), 20),
        ((3, 10, 60), (3, 60, 12), 12),  # as many turns as inner indices would be too many
        ((2, 3, 16, 12), (3, 12, 16), 16),  # a stack that is broadcast
        ((3, 40, 12), (1, 12, 12), 12),  # more rows than turns
    ],
)
@pytest.mark.parametrize("secret", [(True, True), (True, False)])
def test_a_stack_takes_a_product_for_each_turn(
    left: tuple[int, ...], right: tuple[int, ...], turns: int, secret: tuple[bool, bool]
) -> None:
    before = program(lambda b, x, y: b.op("matmul", (x, y)), left, right, secret=secret)
    after = apply(FuseLinear(), before)
    assert sum(node.op == "mul" for node in after.nodes) == turns
    same(before, after)


def test_a_stack_of_a_value_with_itself() -> None:
    def body(b: Builder, x: Node) -> Node:
        turned = b.op("permute", (x,), axes=(0, 2, 1))
        return b.op("mul", (b.op("matmul", (x, turned)), b.op("constant", value=b.constant(0.25, "quarter"))))

    before = program(body, (4, 16, 12))
    same(before, apply(FuseLinear(), before))


def layer(b: Builder, x: Node, features: int, bias: bool = True) -> Node:
    given = {"bias": b.constant(R.normal(size=features), "b")} if bias else {}
    weight = b.constant(R.normal(size=(features, shape_of(x)[-1])) / 4, "w")
    return b.op("linear", (x,), weight=weight, **given)


def block(b: Builder, x: Node) -> Node:
    """Two linear layers of tokens with a residual value, a mean of features and one of tokens."""
    y = b.op("tanh", (layer(b, x, 24),))
    y = b.op("add", (layer(b, y, shape_of(x)[-1], bias=False), x))
    y = b.op("sub", (y, b.op("mean", (y,), axes=(-1,), keepdims=True)))
    scale = b.op("constant", value=b.constant(R.normal(size=shape_of(x)[-1]), "scale"))
    y = b.op("mul", (b.op("mul", (y, y)), scale))
    return b.op("mean", (y,), axes=(0,), keepdims=False)


@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12)])
def test_features_come_first_and_maps_stay_small(shape: tuple[int, ...]) -> None:
    before = program(block, shape)
    turned = apply(ChannelsFirst(), before)
    same(before, turned)
    assert not any(node.op == "linear" for node in turned.nodes)
    # The operand of tanh, and what is added to it, have the features first.
    assert next(shape_of(node) for node in turned.nodes if node.op == "tanh") == (24, *shape[:-1])
    same(before, apply(FuseLinear(), turned))


def test_a_program_without_tokens_stays_as_it_is() -> None:
    before = program(lambda b, x: b.op("relu", (layer(b, x, 4),)), (6,))
    assert not has_tokens(before)
    assert ChannelsFirst.name not in [step.name for step in linear_passes(before)]


class Attention(nn.Module):
    def __init__(self, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.first = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        n, tokens, width = x.shape
        q, k, v = (m(x).view(n, tokens, self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        scores = torch.softmax(q @ k.transpose(-1, -2), -1)
        made: torch.Tensor = self.o((scores @ v).transpose(1, 2).reshape(n, tokens, width))
        return torch.tanh(made + x).mean(1)


def test_the_maps_of_attention_keep_their_small_form() -> None:
    module, x = Attention().double().eval(), torch.randn(1, 16, 24, dtype=torch.float64)
    traced = hg.trace(module, x)
    fused = linear_passes(traced)[-1].program
    same(traced, fused)
    dense = [
        fused.linear_map(name)
        for node in fused.nodes
        if node.op == "affine" and node.inputs[0].op != "input"
        for name in node.attrs["matrices"]
        if fused.linear_map(name).nnz == 24 * 24 * 16
    ]
    # Queries, keys, values, and the layer after the heads.
    assert len(dense) == 4
    assert all(isinstance(matrix, KroneckerMatrix) and matrix.weights.size == 24 * 24 for matrix in dense)
    assert sum(node.op == "mul" for node in fused.nodes) == 16 + 16


def test_rows_and_columns_of_a_kronecker_matrix_move() -> None:
    matrix = KroneckerMatrix(R.normal(size=(1, 6, 4)), (identity_places(5),))
    x = R.normal(size=(2, 20))
    order = np.arange(30).reshape(2, 3, 5).transpose(1, 0, 2).ravel()
    moved = matrix.rows_taken(order, (3, 2, 5))
    assert moved is not None
    np.testing.assert_array_equal(moved.apply(x), matrix.apply(x)[:, order])
    # Places before channels: no longer a product of the two.
    assert matrix.rows_taken(np.arange(30).reshape(6, 5).T.ravel(), (5, 6)) is None
    swapped = np.arange(20).reshape(2, 2, 5).transpose(1, 0, 2).ravel()
    taken = matrix.columns_taken(swapped)
    assert taken is not None
    np.testing.assert_allclose(taken.csr().toarray(), matrix.csr().toarray()[:, swapped])
    assert matrix.columns_taken(np.arange(20).reshape(4, 5).T.ravel()) is None


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(x))  # type: ignore[no-any-return]


def normed(scale: float) -> tuple[Program, np.ndarray]:
    """A layer norm of four tokens, the first of which is `scale` times as large as the others."""
    torch.manual_seed(0)
    samples = R.normal(size=(64, 4, 64))
    samples[:, 0] *= scale
    module = Norm().eval()
    return hg.trace(module, torch.zeros(1, 4, 64), calibration=samples), samples


def test_rows_of_a_layer_norm_are_divided_by_their_own_sizes() -> None:
    traced, samples = normed(20.0)
    ((_, sizes),) = norm_rows(traced).items()
    assert sizes.shape == (4, 1)
    assert 100 < sizes[0, 0] / sizes[1:].mean() < 2000
    (exact,) = interpret_many(traced, [samples])
    (fused,) = interpret_many(linear_passes(traced)[-1].program, [samples])
    np.testing.assert_allclose(exact, fused, atol=1e-9)
    ranges = {entry.function: entry for entry in observe(linear_passes(traced)[-1].program, hg.Options()).known.ranges}
    # Otherwise the interval would hold both kinds of rows, which are four hundred times apart.
    assert ranges["rsqrt"].high / ranges["rsqrt"].low < 100


def test_rows_of_one_size_share_an_interval() -> None:
    assert norm_rows(normed(1.0)[0]) == {}


def test_a_matrix_may_have_its_columns_outside() -> None:
    fused = linear_passes(program(lambda b, x: layer(b, x, 24), (16, 24)))[-1].program
    polynomial = apply(Approximate(), fused)
    groups = group_values(polynomial)
    layouts = candidate_layouts(polynomial, groups, 1 << 12)[groups.of[polynomial.inputs[0]]]
    turned = np.arange(16)[:, None] + 16 * np.arange(24)
    assert any(np.array_equal(layout.places(), turned.ravel()) for layout in layouts)


def test_an_inverse_is_not_fitted_nearer_to_zero_than_samples_are_likely_to_come() -> None:
    traced, _ = normed(1.0)
    fused = linear_passes(traced)[-1].program
    seen = Calibrate().run(fused)
    root = next(node for node in fused.nodes if node.op == "rsqrt")
    least = seen[root.inputs[0]].low
    entry = next(entry for entry in observe(fused, hg.Options()).known.ranges if entry.function == "rsqrt")
    assert least / 8 * 0.99 <= entry.low <= least / 2 * 1.01
