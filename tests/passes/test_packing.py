"""Packing: maps between any layouts are their matrices, values of several ciphertexts, several samples in one."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.backends import BACKENDS, largest_difference, run
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from heliograph.ckks.costs import BUILT_IN
from heliograph.ckks.ring import Ring
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import linear_passes, polynomial_passes
from heliograph.compiler.reporting.held_out import approximate_pass
from heliograph.errors import PlanningError, ProgramError, RangeError
from heliograph.execution.interface import pack_inputs
from heliograph.execution.loop import calls_table, execute
from heliograph.execution.prices import prices_on
from heliograph.execution.ranges import polynomial_inputs
from heliograph.interpret import interpret, run_nodes
from heliograph.ir import Array, Builder, Location, Node, Program, SparseMatrix, Stage
from heliograph.ir.maps.diagonals import DiagonalMap, MapGeometry
from heliograph.ir.maps.layout import Layout, gap_axes
from heliograph.ir.maps.offsets import MapOffsets
from heliograph.ir.maps.steps import pair_offsets, share_babies, transform_terms
from heliograph.ir.node import next_power_of_two
from heliograph.ir.ops.slots.transforms import transform_diagonals
from heliograph.passes.packing import pack as pack_module
from heliograph.passes.packing.bsgs import _nonzero, plan_steps
from heliograph.passes.packing.choose_layouts import (
    _descend,
    _eliminate,
    candidate_layouts,
    choose_layouts,
    group_values,
)
from heliograph.passes.packing.clean_slots import CleanSlots
from heliograph.passes.packing.map_plans import MapPlans
from heliograph.passes.packing.pack import Pack
from heliograph.passes.ranges.calibrate import Calibrate
from heliograph.records import record, to_json
from heliograph.tools.simulate import simulate

RING = Ring(7, 60, 45, 3, 2, None)


def conv(b: Builder, x: Node, channels: int, stride: int = 1, kernel: int = 3, groups: int = 1, seed: int = 0) -> Node:
    into = x.type.shape[0] // groups  # type: ignore[union-attr]
    weight = np.random.default_rng(seed).normal(size=(channels, into, kernel, kernel)) / (kernel * into**0.5)
    return b.op(
        "conv",
        (x,),
        weight=b.constant(weight, "w"),
        stride=(stride, stride),
        padding=(kernel // 2, kernel // 2),
        dilation=(1, 1),
        groups=groups,
    )


def network(shape: tuple[int, ...], body: Any, low: float = -1.0, high: float = 1.0) -> Program:
    builder = Builder("net", Stage.TENSOR)
    x = builder.input("x", shape=shape, low=low, high=high)
    return builder.finish({"y": body(builder, x)})


def square(b: Builder, x: Node) -> Node:
    return b.op("mul", (x, x))


def dense(b: Builder, x: Node, rows: int, seed: int = 1) -> Node:
    size = int(np.prod(x.type.shape))  # type: ignore[union-attr]
    weight = np.random.default_rng(seed).normal(size=(rows, size)) / size**0.5
    return b.op("linear", (b.op("reshape", (x,), shape=(size,)),), weight=b.constant(weight, "fc"))


@st.composite
def layouts(draw: st.DrawFn, samples: int) -> Layout:
    """Any layout of a small tensor on the ring's slots, in one ciphertext or several."""
    slots = RING.slots // samples
    gap = draw(st.sampled_from([1, 1, 2]))
    shape = (draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    width = shape[2] * gap + draw(st.integers(0, 3))
    block = shape[1] * gap * width + draw(st.integers(0, 5))
    made = Layout(shape, RING.slots, 1, gap_axes(shape, gap, width, block), samples=samples)
    least = min(slots, next_power_of_two(made.last_place + 1))
    period = draw(st.sampled_from([least, min(slots, 2 * least), slots]))
    return replace(made, period=period)


@given(data=st.data(), batch=st.sampled_from([1, 1, 2, 4]), density=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
@settings(max_examples=120, deadline=None, derandomize=True)
def test_a_map_between_any_two_layouts_is_its_matrix(data: st.DataObject, batch: int, density: float) -> None:
    layout, out = data.draw(layouts(batch)), data.draw(layouts(batch))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    entries = random.normal(size=(out.size, layout.size)) * (random.random((out.size, layout.size)) < density)
    builder = Builder("map", Stage.POLYNOMIAL)
    x = builder.input("x", shape=layout.shape, low=-1.0, high=1.0)
    matrix = builder.constant(SparseMatrix.of(entries), "m")
    bias = random.normal(size=out.size)
    y = builder.op("affine", (x,), matrices=(matrix,), bias=builder.constant(bias, "b"), shape=out.shape)
    program = builder.finish({"y": y, "x": x})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack_module, "candidate_layouts", lambda *_: [[layout], [out]])
        patch.setattr(pack_module, "largest_batch", lambda *_: batch)
        packed = Pack(RING, batch=batch).run(program)
    CleanSlots().run(packed)
    samples = random.uniform(-1, 1, size=(batch, *layout.shape))
    got = interpret(packed, samples if batch > 1 else samples[0])[0].reshape(batch, -1)
    np.testing.assert_allclose(got, samples.reshape(batch, -1) @ entries.T + bias, atol=1e-9)
    # Backends evaluate the steps, each diagonal made for its own amount, in place of the offsets.
    values: dict[Node, Array] = {}
    run_nodes(packed, pack_inputs(packed, [samples if batch > 1 else samples[0]]), values.__setitem__)
    for node in packed.nodes:
        if node.op != "linear_transform":
            continue
        diagonals = transform_diagonals(node.attrs, packed.linear_map)
        total = np.zeros(RING.slots)
        for g, terms in transform_terms(diagonals, node.attrs["baby_steps"], node.attrs["giant_steps"]).items():
            part = np.zeros(RING.slots)
            for position, baby, offset in terms:
                plain = np.roll(diagonals[position].diagonal(offset, g + baby), g)
                part += plain * np.roll(values[node.inputs[position]][0], -baby)
            total += np.roll(part, -g)
        geometry = node.attrs["geometry"]
        run_length, rows = geometry.run * batch, geometry.out_period * batch
        folded = [v[:run_length].reshape(-1, rows).sum(axis=0) for v in (total, values[node][0])]
        np.testing.assert_allclose(folded[0], folded[1], atol=1e-9)


@given(
    log_in=st.integers(1, 5),
    log_out=st.integers(1, 5),
    log_copies=st.integers(1, 4),
    into=st.booleans(),
    batch=st.sampled_from([1, 2]),
    density=st.sampled_from([0.1, 1.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_maps_between_plain_values_and_moved_copies(
    log_in: int, log_out: int, log_copies: int, into: bool, batch: int, density: float, seed: int
) -> None:
    in_period, out_period, copies, slots = 1 << log_in, 1 << log_out, 1 << log_copies, 128 * batch
    periods = (in_period, out_period)
    counts = (1, copies) if into else (copies, 1)
    shift = 0 if into else in_period // copies
    geometry = MapGeometry(slots, *periods, shift, *counts, batch)
    assume(geometry.exists)
    random = np.random.default_rng(seed)
    dense_map = random.normal(size=(out_period, in_period)) * (random.random((out_period, in_period)) < density)
    made = DiagonalMap(SparseMatrix.of(dense_map), geometry)
    moved = [
        Layout((period,), slots, period, (), period // count * (count > 1), count, batch)
        for period, count in zip(periods, counts, strict=True)
    ]
    samples = random.normal(size=(batch, in_period))
    (x,) = moved[0].pack(samples)
    total = np.zeros(slots)
    for offset in made.offsets:
        # Any rotation that equals the offset serves it.
        amount = offset + made.modulus * int(random.integers(-3, 4))
        total += made.diagonal(offset, amount) * np.roll(x, -amount)
    if into:
        np.testing.assert_allclose(made.apply(x), total, atol=1e-9)
    run, rows = made.run, moved[1].run
    while run > rows:
        run //= 2
        total = total + np.roll(total, -run * batch)
    expected = samples @ dense_map.T
    np.testing.assert_allclose(total, moved[1].pack(expected)[0], atol=1e-9)
    found = moved[1].in_all_copies(total, 0).reshape(-1, batch, out_period).swapaxes(0, 1)
    for sample, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(sample, np.broadcast_to(wanted, sample.shape), atol=1e-9)
    if not into and density == 1.0:
        assert len(made.offsets) == in_period // copies


@given(
    channels=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    stride=st.sampled_from([1, 2]),
    kernel=st.sampled_from([1, 3]),
    gaps=st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 2, 4])),
    slots=st.sampled_from([32, 64, 4096]),
    pruned=st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_offsets_by_axes_are_those_of_the_entries(
    channels: tuple[int, int], stride: int, kernel: int, gaps: tuple[int, int], slots: int, pruned: bool
) -> None:
    builder = Builder("conv", Stage.TENSOR)
    x = builder.input("x", shape=(channels[0], 4, 4), low=-1.0, high=1.0)
    y = conv(builder, x, channels[1], stride, kernel)
    from heliograph.ir.ops.table import OPS

    assert OPS["conv"].linear is not None
    (dense_map,), _ = OPS["conv"].linear([x.type], y.attrs, builder.context)
    csr = dense_map.csr().copy()
    if pruned:
        csr.data[::3] = 0.0
    matrix = SparseMatrix.of(csr)
    made = []
    for shape, gap in (((channels[0], 4, 4), gaps[0]), (y.type.shape, gaps[1])):  # type: ignore[union-attr]
        layout = Layout(shape, slots, 1, gap_axes(shape, gap))
        made.append(replace(layout, period=min(slots, next_power_of_two(layout.last_place + 1))))
    answers = MapOffsets()
    modulus = min(made[0].period, made[1].period)
    got, expected = answers.blocks(matrix, *made), answers._by_entries(matrix, *made, modulus)
    assert {key: value.tolist() for key, value in got.items()} == {k: v.tolist() for k, v in expected.items()}
    if not pruned:
        # The small form says the same without its entries.
        small = MapOffsets().blocks(dense_map, *made)
        assert {key: value.tolist() for key, value in small.items()} == {k: v.tolist() for k, v in expected.items()}


@given(steps=st.lists(st.lists(st.integers(-(10**6), 10**6), min_size=4, max_size=4), min_size=1, max_size=5))
@pytest.mark.parametrize("modulus", [8, 1 << 16, 1 << 17])
def test_distinct_steps_are_counted(steps: list[list[int]], modulus: int) -> None:
    expected = [len({step % modulus for step in row} - {0}) for row in steps]
    assert _nonzero([np.array(row) for row in steps], modulus).tolist() == expected


def test_steps_wrap_around_the_period() -> None:
    """A 3x3 convolution of 16 channels: nine places times 16 channels, none of them paid twice at the period's end."""
    period = 16 * 1024
    offsets = sorted({(c * 1024 + y * 32 + x) % period for c in range(16) for y in (-1, 0, 1) for x in (-1, 0, 1)})
    prices = prices_on((Ring(16, 60, 55, 23, 4),), BUILT_IN)
    steps = plan_steps(offsets, 32768, prices, 4, modulus=period, strides=(32, 1024))
    assert len(offsets) == 144
    assert len(steps.baby) * len(steps.giant) == 144
    assert steps.rotations <= 23
    groups = pair_offsets(offsets, steps.baby, steps.giant, period)
    assert sum(len(pairs) for pairs in groups.values()) == 144


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_elimination_finds_the_least_cost(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 4, size=random.integers(1, 7)).tolist()
    tables: dict[tuple[int, ...], Array] = {}
    for a in range(len(sizes)):
        tables[(a,)] = random.random(sizes[a])
        for b in range(a + 1, len(sizes)):
            if random.random() < 0.5:
                tables[a, b] = random.random((sizes[a], sizes[b]))

    def price(choice: Sequence[int]) -> float:
        return float(sum(table[tuple(choice[v] for v in key)] for key, table in tables.items()))

    least = min(price(choice) for choice in np.ndindex(*sizes))
    picked = _eliminate(tables, sizes)
    assert picked is not None
    assert price(picked) == pytest.approx(least)
    assert price(_descend(tables, sizes)) >= least - 1e-12


def test_layouts_are_the_best_of_the_whole_graph() -> None:
    """Every combination tried; layer by layer, each map into the layout that is cheapest for it, is dearer."""
    ring = Ring(10, 60, 45, 6, 2, None)

    def body(b: Builder, x: Node) -> Node:
        h = square(b, conv(b, square(b, conv(b, x, 2)), 8, stride=2))
        return dense(b, square(b, conv(b, h, 8, seed=4)), 5)

    program = linear_passes(network((2, 8, 8), body))[-1].program
    program = polynomial_passes(approximate_pass(Options(), Calibrate().run(program)).table(program))[-1].program
    groups = group_values(program)
    plans = MapPlans(program, groups, ring, BUILT_IN, ring.slots)
    candidates = [found[:6] for found in candidate_layouts(program, groups, ring.slots, 1, ring.slots)]
    maps = [
        (node, operand, name)
        for node in program.nodes
        if node.op == "affine"
        for operand, name in zip(node.inputs, node.attrs["matrices"], strict=True)
    ]

    @functools.cache
    def cost(number: int, start: int, end: int) -> float:
        node, operand, _ = maps[number]
        layouts = candidates[groups.of[operand]][start], candidates[groups.of[node]][end]
        return plans.cost(*maps[number], *layouts)

    def total(pick: Sequence[int]) -> float:
        return sum(
            cost(i, pick[groups.of[operand]], pick[groups.of[node]]) for i, (node, operand, _) in enumerate(maps)
        )

    chosen = choose_layouts(program, groups, candidates, plans.cost)
    least = min(map(total, itertools.product(*(range(len(found)) for found in candidates))))
    assert total([found.index(layout) for found, layout in zip(candidates, chosen, strict=True)]) == pytest.approx(
        least
    )
    in_order = [0] * len(candidates)
    for i, (node, operand, _) in enumerate(maps):
        end, start = groups.of[node], in_order[groups.of[operand]]
        in_order[end] = min(range(len(candidates[end])), key=lambda e: cost(i, start, e))
    assert total(in_order) > 1.05 * least
    # The strided convolution leaves gaps, and the next one works around them.
    assert [layout.digits[2][0][1] for layout in chosen] == [1, 1, 2, 2, 1]


def test_too_large_tables_are_left_to_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {(a, b): np.eye(8) for a in range(6) for b in range(a + 1, 6)}
    monkeypatch.setattr("heliograph.passes.packing.choose_layouts._MOST_CELLS", 1 << 10)
    assert _eliminate(tables, [8] * 6) is None
    assert len(_descend(tables, [8] * 6)) == 6


def residual(b: Builder, x: Node) -> Node:
    """Two blocks, the second with a stride and a shortcut, on several ciphertexts at a toy ring."""
    h = square(b, conv(b, x, 4, seed=2))
    h = b.op("add", (square(b, conv(b, h, 4, seed=3)), h))
    short = conv(b, h, 8, stride=2, kernel=1, seed=4)
    h = b.op("add", (conv(b, square(b, conv(b, h, 8, stride=2, seed=5)), 8, seed=6), short))
    return dense(b, h, 3)


# A channel of 26 x 26 takes rows of 32 in two ciphertexts: more than necessary, but maps keep their small form.
@pytest.mark.parametrize("size", [32, 26])
@pytest.mark.parametrize("backend", list(BACKENDS))
def test_values_of_several_ciphertexts(backend: str, size: int) -> None:
    """4 x 32 x 32 values in 512 slots: eight ciphertexts, compiled through the whole pipeline."""
    program = network((2, size, size), residual, -0.5, 0.5)
    artifact = compile(program, Options(security_bits=None, log_ring=10, precision_bits=5, margin=0.1))
    assert artifact.ring.slots == 512
    assert len(artifact.program.inputs) == 4
    maps = [node for node in artifact.program.nodes if node.op == "linear_transform"]
    *convolutions, _ = [{artifact.program.linear_map(name).kind for name in node.attrs["matrices"]} for node in maps]
    assert all(kinds == {"placed"} for kinds in convolutions)
    x = np.random.default_rng(0).uniform(-0.5, 0.5, size=(2, size, size))
    expected = interpret(program, x)
    np.testing.assert_allclose(interpret(artifact.program, x), expected, atol=1e-6)
    session = BACKENDS[backend](artifact.program)
    (got,), calls = run(artifact.program, [x], session)
    assert largest_difference([got], [expected]) < 1e-3
    by_simulator = run(artifact.program, [x], BACKENDS["simulator"](artifact.program))[1]
    assert calls == by_simulator


def test_calls_are_counted_by_layer() -> None:
    program = network((2, 16, 16), lambda b, x: dense(b, square(b, conv(b, x, 4)), 3))
    made = compile(program, Options(security_bits=None, log_ring=10, precision_bits=5)).program
    session = BACKENDS["simulator"](made)
    vectors = pack_inputs(made, [np.zeros((2, 16, 16))])
    _, trace = execute(made, session.evaluator, session.evaluator.encrypt_inputs(vectors))
    assert sum(trace.calls_by_layer.values(), Counter()) == trace.calls
    rows = calls_table(trace.calls_by_layer)
    assert sum(row.rotations for row in rows) == sum(
        number for call, number in trace.calls.items() if call.primitive in ("rotate", "rotate_hoisted", "rotate_wide")
    )
    assert sum(row.key_switches - row.rotations for row in rows) == 2  # the square of two ciphertexts
    assert all(row.rotations and row.plaintext_products for row in rows if row.layer == "linear_transform")


def test_rotations_of_one_value_are_shared_by_its_maps() -> None:
    program = network((2, 16, 16), lambda b, x: b.op("mul", (conv(b, x, 8, seed=1), conv(b, x, 8, seed=2))))
    made = compile(program, Options(security_bits=None, log_ring=10, precision_bits=5)).program
    transforms = [node for node in made.nodes if node.op == "linear_transform"]
    assert len(transforms) > 2
    shared = share_babies(made.nodes, lambda n: transform_diagonals(n.attrs, made.linear_map), ())
    sources = {operand for node in transforms for operand in node.inputs}
    for source in sources:
        uses = [(n, i) for n in transforms for i, operand in enumerate(n.inputs) if operand is source]
        assert sum(shared[use].decompose for use in uses) == 1
        fresh = [b for use in uses for b in shared[use].make]
        assert len(fresh) == len(set(fresh))
        assert shared[uses[-1]].last
        assert not shared[uses[-1]].keep


def mlp(b: Builder, x: Node) -> Node:
    return dense(b, square(b, dense(b, x, 12, seed=7)), 4, seed=8)


def small_cnn(b: Builder, x: Node) -> Node:
    return dense(b, square(b, conv(b, x, 3, stride=2, seed=9)), 4, seed=10)


@pytest.mark.parametrize("each", ["side by side", "a slot"])
@pytest.mark.parametrize(("shape", "body"), [((20,), mlp), ((2, 8, 8), small_cnn)], ids=["mlp", "cnn"])
def test_several_samples_at_once(shape: tuple[int, ...], body: Any, each: str) -> None:
    pytest.importorskip("openfhe")
    from heliograph.runtime.client.client import Client
    from heliograph.runtime.server.server import Server

    program = network(shape, body)
    wanted = 512 // next_power_of_two(int(np.prod(shape))) if each == "side by side" else "max"
    options = Options(security_bits=None, log_ring=10, precision_bits=5, batch=wanted)
    artifact = compile(program, options)
    batch = artifact.program.interface.batch
    if each == "a slot":
        assert batch == 512
        assert artifact.report.values["rotation_keys"] == 0
        assert not {"linear_transform", "rotate"} & {node.op for node in artifact.program.nodes}
    else:
        assert batch == wanted
    assert f"{batch} at once" in artifact.report.full()
    x = np.random.default_rng(0).uniform(-1, 1, size=(batch, *shape))
    expected = np.stack([interpret(program, sample) for sample in x])
    np.testing.assert_allclose(interpret(artifact.program, x), expected, atol=1e-6)
    np.testing.assert_allclose(interpret(artifact.program, x[:2]), expected[:2], atol=1e-6)
    np.testing.assert_allclose(simulate(artifact, x[:3]), expected[:3], atol=1e-3)
    client = Client(artifact, allow_insecure=True)
    with Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        np.testing.assert_allclose(client.decrypt(server.run(client.encrypt(x))), expected, atol=1e-3)
        few = client.decrypt(server.run(client.encrypt(x[:2])))
    np.testing.assert_allclose(few[:2], expected[:2], atol=1e-3)
    # The last sample stands in for those that are missing.
    np.testing.assert_allclose(few[2:], np.broadcast_to(expected[1], few[2:].shape), atol=1e-3)
    assert client.encrypt(x[0]).samples == 1
    assert [each.samples for each in client.encrypt(np.concatenate([x, x]))] == [batch, batch]
    with pytest.raises(ProgramError, match=f"up to {batch} samples"):
        client.encrypt(x[np.newaxis])


def test_a_batch_costs_no_more_rotations_than_a_sample_in_as_many_slots() -> None:
    program = network((2, 8, 8), small_cnn)
    one = compile(program, Options(security_bits=None, log_ring=10, precision_bits=5))
    four = compile(program, Options(security_bits=None, log_ring=12, precision_bits=5, batch=4))
    assert four.report.values["rotations"] <= one.report.values["rotations"]
    assert four.program.interface.batch == 4


def test_a_batch_that_does_not_fit_is_refused() -> None:
    program = network((2, 8, 8), small_cnn)
    with pytest.raises(PlanningError, match="has 512 slots"):
        compile(program, Options(security_bits=None, log_ring=10, batch=1024))
    with pytest.raises(ProgramError, match="power of two"):
        Options(batch=3)


@pytest.mark.parametrize("batch", [8, 64])
def test_samples_whose_tensors_take_several_ciphertexts(batch: int) -> None:
    program = network((2, 8, 8), small_cnn)
    artifact = compile(program, Options(security_bits=None, log_ring=10, precision_bits=5, batch=batch))
    # 128 elements of each sample in 512 slots.
    assert len([node for node in artifact.program.inputs if node.type.secret]) == batch * 128 // 512
    x = np.random.default_rng(0).uniform(-1, 1, size=(batch, 2, 8, 8))
    expected = np.stack([interpret(program, sample) for sample in x])
    np.testing.assert_allclose(interpret(artifact.program, x), expected, atol=1e-6)
    np.testing.assert_allclose(simulate(artifact, x), expected, atol=1e-3)


def test_layouts_pack_samples_side_by_side() -> None:
    layout = Layout((2, 3), 32, 8, samples=2)
    samples = np.arange(12.0).reshape(2, 2, 3)
    (vector,) = layout.pack(samples)
    assert vector[:12].tolist() == [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]
    np.testing.assert_array_equal(layout.unpack([vector]), samples)
    np.testing.assert_array_equal(layout.in_all_copies(vector, 0)[:2], samples.reshape(2, -1))
    assert record(Layout, to_json(layout), "it") == layout


def test_ranges_and_layers_of_values_in_several_ciphertexts() -> None:
    """A polynomial's input in four ciphertexts: each is watched, and one value is put together from all."""
    pytest.importorskip("openfhe")
    from heliograph.tools.debug import debug

    def body(b: Builder, x: Node) -> Node:
        kernel = np.zeros((8, 2, 1, 1))
        kernel[:, 0, 0, 0] = np.arange(1, 9) / 8
        h = b.op("conv", (x,), weight=b.constant(kernel, "w"), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)
        return dense(b, b.op("tanh", (h,), Location("model.py", 3, 1, "act"), degree=3), 3)

    program = network((2, 16, 16), body)
    # Calibrated on small inputs: the last channel leaves its interval first.
    random = np.random.default_rng(0)
    program = replace(program, calibration=(random.uniform(-0.5, 0.5, size=(16, 2, 16, 16)),))
    artifact = compile(program, Options(security_bits=None, log_ring=10, precision_bits=5, margin=0.1))
    points = polynomial_inputs(artifact.program)
    assert sorted(chunk for _, chunk in points.values()) == [0, 1, 2, 3]
    good = random.uniform(-0.4, 0.4, size=(2, 16, 16))
    simulate(artifact, good, check_ranges=True)
    bad = good.copy()
    bad[0, 3, 5] = 0.9
    with pytest.raises(RangeError, match=r"element \[7, 3, 5\]"):
        simulate(artifact, bad, check_ranges=True)
    report = debug(artifact, good, program=program)
    layer = report.layers[0]
    assert layer.polynomial.shape == (8, 16, 16)
    np.testing.assert_allclose(layer.polynomial, np.arange(1, 9)[:, None, None] / 8 * good[0], atol=1e-4)
    assert layer.decrypted is not None
    np.testing.assert_allclose(layer.decrypted, layer.polynomial, atol=1e-3)


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_moved_copies_are_used_where_values_leave_slots_free(backend: str) -> None:
    """Channels of 8 x 8 at a ring of 2**11: the value between the convolutions stands in copies; three ways."""

    def body(b: Builder, x: Node) -> Node:
        h = square(b, conv(b, x, 4, seed=1))
        h = square(b, conv(b, h, 4, seed=2))
        return dense(b, conv(b, h, 4, seed=3), 3)

    program = network((4, 8, 8), body, -0.5, 0.5)
    made = compile(program, Options(security_bits=None, log_ring=11, precision_bits=5)).program
    transforms = [node.attrs for node in made.nodes if node.op == "linear_transform"]
    assert any(a["geometry"].in_copies > 1 for a in transforms)
    x = np.random.default_rng(0).uniform(-0.5, 0.5, size=(4, 8, 8))
    expected = interpret(program, x)
    np.testing.assert_allclose(interpret(made, x), expected, atol=1e-6)
    (got,), _ = run(made, [x], BACKENDS[backend](made))
    assert largest_difference([got], [expected]) < 1e-3
