"""Trees as products along their paths, and maps between ciphertexts of one element."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.ensemble import GradientBoostingClassifier

import heliograph as hg
from heliograph.ckks.ring import Ring
from heliograph.compiler.pipeline import front_passes, linear_passes
from heliograph.frontends.trees.ensemble import Ensemble, Tree
from heliograph.frontends.trees.nodes import Table, form_of, tree_node
from heliograph.interpret import interpret, interpret_many
from heliograph.ir import Array, Builder, Location, Program, SparseMatrix, Stage
from heliograph.ir.analysis.depth import program_depth
from heliograph.passes.base import apply
from heliograph.passes.packing.pack import Pack
from heliograph.passes.tensors.expand import Expand

TOY = hg.Options(security_bits=None)
LOC = Location("trees.py", layer="trees")


def grown(random: np.random.Generator, depth: int, whole: bool, outputs: int = 1, categories: bool = False) -> Tree:
    """A random tree of that depth on four features; all its leaves are that deep if it is `whole`."""
    feature, threshold, left, right, value, named = [0], [0.0], [-1], [-1], [np.zeros(outputs)], {}
    waiting = [(0, 0)]
    while waiting:
        node, at = waiting.pop()
        # The first branch is always as deep as asked for.
        if at == depth or (not whole and node != 2 * at and random.random() < 0.4):
            feature[node], value[node] = -1, random.normal(size=outputs)
            continue
        feature[node], threshold[node] = int(random.integers(4)), float(random.normal())
        if categories and feature[node] == 3:
            named[node] = frozenset(random.choice(4, size=2, replace=False).tolist())
        for side in (left, right):
            side[node] = len(feature)
            waiting.append((len(feature), at + 1))
            feature, threshold = [*feature, 0], [*threshold, 0.0]
            left.append(-1)
            right.append(-1)
            value.append(np.zeros(outputs))
    columns = np.array(feature), np.array(threshold), np.array(left), np.array(right), np.array(value)
    return Tree(*columns, categories=named) if named else Tree(*columns)


def program_of(trees: list[Tree], binned: Any, rows: Array) -> Program:
    builder = Builder("trees", Stage.TENSOR)
    outputs = trees[0].value.shape[1]
    table = Table(builder, rows, None, binned)
    ensemble = Ensemble(tuple(trees), np.arange(1.0, 1.0 + outputs), rows.shape[1])
    return builder.finish([tree_node(builder, table, ensemble, rows, LOC)])


@pytest.mark.parametrize("binned", [True, "shared", False])
@pytest.mark.parametrize("seed", range(8))
def test_products_are_the_trees(seed: int, binned: Any) -> None:
    random = np.random.default_rng(seed)
    rows = random.normal(size=(60, 4))
    rows[:, 3] = random.integers(0, 4, 60)
    trees = [
        grown(random, int(random.integers(1, 7)), bool(seed % 2), 1 + seed % 3, bool(binned) and seed > 3)
        for _ in range(5)
    ]
    program = program_of(trees, binned, rows)
    made = apply(Expand(products=True), program)
    assert {node.op for node in made.nodes} <= {"input", "affine", "mul", "sign"}
    for ours, exact in zip(*(interpret_many(each, program.calibration) for each in (made, program)), strict=True):
        np.testing.assert_allclose(ours, exact, atol=1e-12)


@pytest.mark.parametrize(("depth", "wanted"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 3), (6, 4), (7, 4), (8, 4)])
def test_levels_of_the_least_price(depth: int, wanted: int) -> None:
    random = np.random.default_rng(depth)
    rows = random.normal(size=(20, 4))
    program = program_of([grown(random, depth, whole=True)], "shared", rows)
    levels = {way: program_depth(linear_passes(program, products=way)[-1].program, apart=True) for way in (True, False)}
    assert levels[True] == wanted
    # By the numbers of conditions: two maps and a polynomial, where maps of ones count nothing.
    assert levels[False] == depth.bit_length() + 1


def test_long_trees_take_logarithmic_depth() -> None:
    """A tree that is a chain: each node has a leaf."""
    depth = 32
    inner = np.arange(2 * depth + 1) % 2 == 0
    inner[-1] = False
    numbers = np.arange(2 * depth + 1)
    random = np.random.default_rng(0)
    tree = Tree(
        np.where(inner, numbers % 3, -1),
        random.normal(size=numbers.size),
        np.where(inner, numbers + 1, -1),
        np.where(inner, numbers + 2, -1),
        random.normal(size=(numbers.size, 1)),
    )
    rows = random.normal(size=(50, 4))
    program = program_of([tree], "shared", rows)
    made = apply(Expand(products=True), program)
    for ours, exact in zip(*(interpret_many(each, program.calibration) for each in (made, program)), strict=True):
        np.testing.assert_allclose(ours, exact, atol=1e-12)
    assert program_depth(linear_passes(program, products=True)[-1].program, apart=True) <= 7


def test_paths_that_are_no_trees_are_counted() -> None:
    builder = Builder("rules", Stage.TENSOR)
    builder.calibration = (np.random.default_rng(0).integers(0, 2, (8, 2)).astype(float),)
    x = builder.input("x", shape=(2,), low=0.0, high=1.0)
    names = {
        "features": builder.constant(np.array([0.0, 1.0]), "features"),
        "thresholds": builder.constant(np.full(2, 0.5), "thresholds"),
        # Both rules may hold at once.
        "paths": builder.constant(SparseMatrix.of(np.array([[-1.0, 0.0], [0.0, -1.0], [-1.0, -1.0]])), "paths"),
        "offsets": builder.constant(np.array([1.0, 1.0, 2.0]), "offsets"),
        "values": builder.constant(np.array([[1.0, 2.0, 4.0]]), "values"),
        "binary": builder.constant(np.ones(2), "binary"),
    }
    program = builder.finish([builder.op("tree_ensemble", (x,), LOC, **names)])
    ours, counted = (apply(Expand(products=way), program) for way in (True, False))
    assert str(ours) == str(counted)
    for row in program.calibration[0]:
        first, second = 1.0 - row
        np.testing.assert_allclose(interpret(program, row), [first + 2.0 * second + 4.0 * first * second])


def test_thresholds_beyond_bits_decide_nothing() -> None:
    """A split on a bit whose threshold is not between 0 and 1 has one side for all samples."""
    rows = np.random.default_rng(0).integers(0, 2, (8, 2)).astype(float)
    for thresholds in ([1.5, 0.5, 0.5], [0.5, 1.0, -1.0], [1.5, 2.0, -1.0]):
        tree = Tree(
            np.array([0, 1, 1, -1, -1, -1, -1]),
            np.array([*thresholds, 0, 0, 0, 0]),
            np.array([1, 3, 5, -1, -1, -1, -1]),
            np.array([2, 4, 6, -1, -1, -1, -1]),
            np.array([[0.0], [0.0], [0.0], [1.0], [2.0], [4.0], [8.0]]),
        )
        builder = Builder("bits", Stage.TENSOR)
        builder.calibration = (rows,)
        x = builder.input("x", shape=(2,), low=0.0, high=1.0)
        form = form_of(Ensemble((tree,), np.zeros(1), 2), LOC)
        program = builder.finish([form.node(builder, x, LOC, binary=np.ones(2))])
        for way in (True, False):
            (found,) = interpret_many(apply(Expand(products=way), program), program.calibration)
            np.testing.assert_allclose(found, interpret_many(program, program.calibration)[0], atol=1e-12)


def test_opposite_outputs_share_their_products() -> None:
    random = np.random.default_rng(3)
    tree = grown(random, 4, whole=True)
    both = replace(tree, value=np.hstack([tree.value, -tree.value]))
    rows = random.normal(size=(20, 4))
    sizes = [
        [
            node.type.size
            for node in apply(Expand(products=True), program_of([each], True, rows)).nodes
            if node.op == "mul"
        ]  # type: ignore[union-attr]
        for each in (tree, both)
    ]
    assert sizes[0] == sizes[1]


def test_the_way_is_chosen_by_price() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(600, 5))
    model = GradientBoostingClassifier(n_estimators=6, max_depth=4, random_state=0).fit(x, x[:, 0] * x[:, 1] > 0)
    program = hg.from_sklearn(model, x, binned="shared")
    options = hg.Options(security_bits=None, log_ring=10)
    stages: dict[str, Program] = {}
    hg.compile(program, options, watch=stages.__setitem__)
    assert any(node.op == "poly" for node in stages["expand"].nodes)
    many = hg.compile(program, replace(options, batch=512), watch=stages.__setitem__)
    assert not any(node.op == "poly" for node in stages["expand"].nodes)
    rows = random.normal(size=(512, 5))
    with pytest.warns(hg.InsecureWarning):
        client = hg.Client(many.public(), allow_insecure=True)
    with pytest.warns(hg.InsecureWarning):
        server = hg.Server(many, client.evaluation_keys(), allow_insecure=True)
    found = client.decrypt(server.run(client.encrypt(rows)))
    assert np.abs(found - model.predict_proba(rows)).max() < 1e-3


@pytest.mark.parametrize("seed", range(12))
def test_maps_between_single_elements(seed: int) -> None:
    """Weights of one and others, with products and without, rows of zeros, offsets."""
    random = np.random.default_rng(seed)
    ring = Ring(10, 50, 40, 4, 3, security_bits=None)
    builder = Builder("maps", Stage.TENSOR)
    x = builder.input("x", shape=(6,), low=-1.0, high=1.0)
    builder.calibration = (random.uniform(-1, 1, (8, 6)),)

    def matrix(whole: bool, columns: int) -> Array:
        entries = random.choice([-1.0, 0.0, 1.0], size=(5, columns))
        entries[0] = 0.0
        return entries if whole else entries * random.uniform(0.5, 2.0, size=entries.shape)

    product = builder.op("mul", (x, x), LOC)
    operands = [(x,), (x, product), (product,)][seed % 3]
    matrices = [matrix(bool(seed >> place & 1), 6) for place in range(len(operands))]
    bias = random.normal(size=5) * (random.random(5) < 0.5)
    names = tuple(builder.constant(SparseMatrix.of(scipy.sparse.csr_array(each)), "map") for each in matrices)
    made = builder.op("affine", operands, LOC, matrices=names, bias=builder.constant(bias, "bias"), shape=(5,))
    polynomial = front_passes(builder.finish([made]), TOY)[-1].program
    packed = Pack(ring, batch=ring.slots).run(polynomial)
    samples = random.uniform(-1, 1, (ring.slots, 6))
    values = [samples if operand is x else samples**2 for operand in operands]
    wanted = sum(value @ each.T for value, each in zip(values, matrices, strict=True)) + bias
    np.testing.assert_allclose(interpret(packed, samples), wanted, atol=1e-12)
    artifact = hg.compile(builder.finish([made]), hg.Options(security_bits=None, log_ring=10, batch=ring.slots))
    assert artifact.report.values["levels"] <= max(1, program_depth(polynomial, apart=True))
    assert np.abs(hg.simulate(artifact, samples) - wanted).max() < 1e-2
