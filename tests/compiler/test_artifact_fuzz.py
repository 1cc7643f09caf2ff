"""Untrusted artifacts: what the server computes in the clear is bounded, and only HeliographErrors come out."""

from __future__ import annotations

import contextlib
import json
import random
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.sparse
from helpers.fuzzing import fuzz
from helpers.hostile_artifacts import MUTATIONS, artifacts, containers, mutated_fields, run_artifact

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.container import Container, pack
from heliograph.artifact.plain_bounds import check_costs
from heliograph.ckks.ring import Ring
from heliograph.errors import HeliographError, RangeError, WireError
from heliograph.ir import Builder, SparseMatrix, Stage
from heliograph.ir.maps.diagonals import MapGeometry
from heliograph.ir.maps.kronecker import KroneckerMatrix
from heliograph.ir.maps.layout import Layout, channels_rows_columns, gap_axes
from heliograph.ir.maps.placed import PlacedMatrix
from heliograph.ir.node import Attr
from heliograph.ir.ops.table import OPS, Context
from heliograph.report.diff import diff
from heliograph.report.html import html_report
from heliograph.report.inspection import inspection
from heliograph.report.plots import dot_text
from heliograph.tools.simulate import simulate

# Arrays of numpy alive at once: the plain part may take a third of it.
BYTES = 3 << 29


def with_plain(lines: list[str]) -> bytes:
    """The first artifact with nodes behind its last; `{0}`, `{1}`, ... are their names."""
    good = containers()[0]
    text = bytes(good.bytes("text/program")).decode()
    count = len(artifacts()[0].program.nodes)
    names = [f"%{count + i}" for i in range(len(lines))]
    for i, name in enumerate(names):
        lines = [line.replace(f"{{{i}}}", name) for line in lines]
    head, _, tail = text.rpartition("return ")
    rows = (head + "".join(line + "\n" for line in lines) + "return " + tail).split("\n")
    return altered(good, "\n".join(rows))


def altered(good: Container, text: str) -> bytes:
    """The artifact with another text of its program."""
    blobs = {name: blob if isinstance(blob, np.ndarray) else bytes(blob) for name, blob in good.blobs.items()}
    return pack(Container(good.kind, good.version, good.fields, {**blobs, "text/program": text.encode()}))


# %1 is w, (3, 4) and plain; each type is what the op gives.
BOMBS = {
    "padding": (
        "more than 67108864 numbers",
        "{0} = reshape(%1) {shape = [1, 3, 2, 2]} : tensor<1x3x2x2, plain>",
        "{1} = avg_pool({0}) {count_include_pad = true, kernel = [4000, 4000, 4000], padding = [2000, 2000, 2000], "
        "stride = [4000000, 4000000, 4000000]} : tensor<1x1x1x1, plain>",
    ),
    "tables of windows": (
        "more than 67108864 numbers",
        "{0} = broadcast(%2) {shape = [1, 3]} : tensor<1x3, plain>",
        "{1} = max_pool({0}) {kernel = [4000000], padding = [2000000], stride = [1]} : tensor<1x4, plain>",
    ),
    "windows one by one": (
        "more than 4294967296 operations",
        "{0} = broadcast(%2) {shape = [1000000, 3]} : tensor<1000000x3, plain>",
        "{1} = reshape({0}) {shape = [1, 3000000]} : tensor<1x3000000, plain>",
        "{2} = avg_pool({1}) {count_include_pad = true, kernel = [1000000], padding = [0], stride = [1]} : "
        "tensor<1x2000001, plain>",
    ),
    "dense averages": (
        "more than 67108864 numbers",
        "{0} = broadcast(%2) {shape = [1, 1000000, 3]} : tensor<1x1000000x3, plain>",
        "{1} = adaptive_avg_pool({0}) {output_size = [1000000, 1]} : tensor<1x1000000x1, plain>",
    ),
    "large between two axes": (
        "more than 67108864 numbers",
        "{0} = broadcast(%2) {shape = [1, 1, 1000000, 3]} : tensor<1x1x1000000x3, plain>",
        "{1} = reshape({0}) {shape = [1, 1, 3000000]} : tensor<1x1x3000000, plain>",
        "{2} = adaptive_avg_pool({1}) {output_size = [3000000, 1]} : tensor<1x3000000x1, plain>",
    ),
    "slots of another ring": (
        "slots of the layout",
        "{0} = reshape(%1) {shape = [12]} : tensor<12, plain>",
        "{1} = pack({0}) {layout = {shape = [12], slots = 4194304, period = 16}} : slots<4194304, plain>",
    ),
    "places far apart": (
        "more than 8192 ciphertexts",
        "{0} = broadcast(%2) {shape = [4096, 3]} : tensor<4096x3, plain>",
        "{1} = pack({0}) {chunk = 0, layout = {shape = [4096, 3], slots = 512, period = 512, "
        "axes = [[[4096, 4194304]], [], [[3, 1]]]}} : slots<512, plain>",
    ),
    "a place of nothing": (
        "axes of the layout",
        "{0} = broadcast(%2) {shape = [100, 3]} : tensor<100x3, plain>",
        "{1} = pack({0}) {layout = {shape = [100, 3], slots = 512, period = 512, "
        "axes = [[[4, 1], [25, -1]], [], [[3, 4]]]}} : slots<512, plain>",
    ),
    "rows that no digit places": (
        "are not those of its shape",
        "{0} = broadcast(%2) {shape = [2, 100, 3]} : tensor<2x100x3, plain>",
        "{1} = pack({0}) {layout = {shape = [2, 100, 3], slots = 512, period = 512, "
        "axes = [[[4, 1], [1, 4]], [], [[3, 100]]]}} : slots<512, plain>",
    ),
    "long products": (
        "more than 4294967296 operations",
        "{0} = broadcast(%2) {shape = [1000, 1000, 3]} : tensor<1000x1000x3, plain>",
        "{1} = reshape({0}) {shape = [1500, 2000]} : tensor<1500x2000, plain>",
        '{2} = matrix_product({1}, {1}) {kind = "abt"} : tensor<1500x1500, plain>',
    ),
    "an op on ciphertexts": ("not in order", "{0} = level_drop(%1) {levels = 1} : tensor<3x4, plain>"),
    "slots as an input": (
        "not a tensor",
        '{0} = input() {name = "v", secret = false, slots = 512} : slots<512, plain>',
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_plain_ops_that_would_not_end_are_refused(name: str) -> None:
    reason, *lines = BOMBS[name]
    data = with_plain(lines)
    begun = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=reason):
            Artifact.from_bytes(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 28
    finally:
        tracemalloc.stop()
    assert time.process_time() - begun < 5


def test_a_small_kernel_that_moves_much_is_refused() -> None:
    """The file holds a few kilobytes of it; applying it would take a copy of the image for each term."""
    own, places, terms = 64, 1 << 14, 64
    taps = []
    for k in range(terms):
        moved = scipy.sparse.coo_array(([1.0], ([0], [k])), shape=(places, places))
        taps.append(SparseMatrix.of(moved))
    kernel = KroneckerMatrix(np.ones((terms, 1, own)), tuple(taps))
    builder = Builder("p", Stage.PACKED)
    image = builder.input("w", shape=(own * places,), secret=False)
    made = builder.op("affine", (image,), matrices=(builder.constant(kernel),), shape=(places,))
    ring = Ring(log_ring=10, first_mod_bits=40, scale_bits=30, levels=2, digits=1, security_bits=None)
    with pytest.raises(WireError, match="more than 67108864 numbers at once"):
        check_costs(builder.finish((made,)), ring)


def test_tables_of_a_map_follow_from_what_the_file_holds() -> None:
    """A dense map may have as many entries as it has numbers; a product of two short lists may not."""
    slots = 1 << 15
    ring = Ring(log_ring=16, first_mod_bits=40, scale_bits=30, levels=2, digits=1, security_bits=None)
    rng = np.random.default_rng(0)
    lists = KroneckerMatrix(np.ones((1, 128, 128)), (SparseMatrix.of(np.ones((256, 256))),))
    side = Layout((128, 256), slots, slots)
    dense = KroneckerMatrix(rng.normal(size=(1, 4096, 4096)), (SparseMatrix.of(np.eye(1)),))
    vector = Layout((4096, 1), slots, 4096)
    usual = (PlacedMatrix(lists, side, side, (0, 0)), slots), (PlacedMatrix(dense, vector, vector, (0, 0)), 4096)
    for matrix, period, refused in (*((*each, False) for each in usual), (lists, slots, True)):
        builder = Builder("p", Stage.PACKED)
        x = builder.input("x", slots=slots)
        attrs: dict[str, Attr] = {
            "baby_steps": (0,),
            "giant_steps": (0,),
            "geometry": MapGeometry(slots, period, period),
        }
        made = builder.op("linear_transform", (x,), matrices=(builder.constant(matrix),), **attrs)
        program = builder.finish((made,))
        if refused:
            with pytest.raises(WireError, match="tables of a linear_transform"):
                check_costs(program, ring)
        else:
            check_costs(program, ring)


@pytest.mark.parametrize(("copies", "refused"), [(2, False), (256, True)])
def test_the_copies_of_a_result_are_counted(copies: int, refused: bool) -> None:
    """Few entries, each at another distance, which stand elsewhere in each copy."""
    slots, rows = 1 << 16, 1 << 8
    ring = Ring(log_ring=17, first_mod_bits=40, scale_bits=30, levels=2, digits=1, security_bits=None)
    period = rows * copies
    starts = np.array([0, *rows * [period]], dtype=np.int32)
    entries = SparseMatrix((rows, period), np.ones(period), np.arange(period, dtype=np.int32), starts)
    builder = Builder("p", Stage.PACKED)
    matrix = builder.constant(entries, "m")
    geometry = MapGeometry(slots, period, rows, out_copies=copies)
    attrs: dict[str, Attr] = {"baby_steps": (0,), "giant_steps": (0,), "geometry": geometry}
    x = builder.input("x", slots=slots)
    program = builder.finish((builder.op("linear_transform", (x,), matrices=(matrix,), **attrs),))
    with pytest.raises(WireError, match="tables of a linear_transform") if refused else contextlib.nullcontext():
        check_costs(program, ring)


@pytest.mark.parametrize("seed", range(4))
def test_packs_of_any_numbers_stay_small(seed: int) -> None:
    """Whatever layout a pack names, it is refused, or it takes little more than one slot vector and its operand."""
    rng = random.Random(seed)
    slots, ran = 1 << 14, 0
    ring = Ring(log_ring=15, first_mod_bits=40, scale_bits=30, levels=2, digits=1, security_bits=None)
    for _ in range(1500):
        rows, columns = 2 ** rng.randint(0, 9), 2 ** rng.randint(0, 9)
        numbers = (0, 1, 2, 3, 8, 100, slots // 2, slots, 1 << 20, 1 << 22)
        near = (0, 1, 2, rows, columns, rows * columns, slots)
        pick = numbers if rng.random() < 0.3 else near
        shape = rng.choice([(rows * columns,), (rows, columns), (1, rows, columns), (rows, columns, 1)])
        gaps = rng.choice((1, 1, 1, 2, 4, *(pick[1:]))), rng.choice((0, 0, *pick)), rng.choice((0, 0, *pick))
        axes = tuple(
            tuple((rng.choice((size, *pick)), rng.choice(pick)) for _ in range(rng.randint(0, 3)))
            for size in channels_rows_columns(shape)
        )
        samples = 2 ** rng.choice((0, 0, 0, rng.randint(0, 14)))
        axes = rng.choice((axes, gap_axes(shape, *gaps)))
        layout = Layout(shape, slots, 2 ** rng.randint(0, 14), axes, samples=samples)
        attrs = {"layout": layout, "chunk": rng.choice((0, 0, 0, 1, *pick))}
        builder = Builder("p", Stage.PACKED)
        operand = builder.input("w", shape=(rows * columns,), secret=False)
        try:
            node = builder.op("pack", (operand,), **attrs)
            check_costs(builder.finish((node,)), ring)
        except HeliographError:
            continue
        tracemalloc.start()
        (made,) = [OPS["pack"].evaluate([np.ones((1, rows * columns))], node.attrs, Context({}, ()))]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert made.shape == (1, slots)
        assert peak < 8 * (16 * slots + 8 * rows * columns), attrs
        ran += 1
    assert ran >= 20


def test_the_same_ops_of_a_usual_size_run() -> None:
    """The cases above are refused for their size, not for how they are put together."""
    data = with_plain(
        [
            "{0} = reshape(%1) {shape = [1, 3, 2, 2]} : tensor<1x3x2x2, plain>",
            "{1} = avg_pool({0}) {count_include_pad = true, kernel = [4, 4, 4], padding = [2, 2, 2], "
            "stride = [4, 4, 4]} : tensor<1x1x1x1, plain>",
        ]
    )
    artifact = Artifact.from_bytes(data)
    x, w, b = np.full(4, 0.5), np.ones((3, 4)), np.ones(3)
    np.testing.assert_array_equal(simulate(artifact, x, w, b), simulate(artifacts()[0], x, w, b))


def test_a_plain_value_that_cannot_be_encoded_is_refused() -> None:
    pytest.importorskip("openfhe")
    from heliograph.runtime.client.client import Client
    from heliograph.runtime.server.server import Server

    good = containers()[0]
    text = bytes(good.bytes("text/program")).decode().replace("high = 2.0, low = -2.0", "high = 1e300, low = -1e300")
    artifact = Artifact.from_bytes(altered(good, text))
    client = Client(artifact.public(), allow_insecure=True)
    x, w = np.full(4, 0.5), np.ones((3, 4))
    with Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        for size, words in ((1e100, "too large for a ciphertext"), (-1e200, "NaN or infinity")):
            b = np.full(3, size)
            with pytest.raises(RangeError, match=words):
                server.run(client.encrypt(x), plain={"w": w, "b": b})
            with pytest.raises(RangeError, match=words):
                simulate(artifact, x, w, b)


def run_traced(data: bytes) -> int:
    """As `run_artifact`, and the memory stays in bounds."""
    tracemalloc.reset_peak()
    length = run_artifact(data, server=True)
    assert tracemalloc.get_traced_memory()[1] < BYTES
    return length


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("kind", MUTATIONS)
def test_mutants_short(kind: str) -> None:
    pytest.importorskip("openfhe")
    tally = fuzz(MUTATIONS[kind], run_traced, 25, seed=1)
    assert not tally.failures
    if kind == "plain ops":
        assert tally.accepted >= 5, "the mutants are near enough to real programs to be run"


def test_a_report_that_is_read_can_be_drawn() -> None:
    """`heliograph inspect` on an untrusted artifact never ends in a traceback."""
    rng = random.Random(3)
    drawn = 0
    for _ in range(120):
        try:
            artifact = Artifact.from_bytes(mutated_fields(rng))
        except HeliographError:
            continue
        assert html_report(artifact)
        assert dot_text(artifact)
        json.dumps(inspection(artifact))
        assert str(diff(artifact, artifacts()[0]))
        drawn += 1
    assert drawn >= 5


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("kind", MUTATIONS)
def test_mutants_long(kind: str) -> None:
    pytest.importorskip("openfhe")
    assert not fuzz(MUTATIONS[kind], run_traced, 1500, seed=2).failures
