"""What the table says of every op on slots, held against the op's meaning and its type."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from ir.test_ir_ops import CASES

from heliograph.ckks.ring import Ring
from heliograph.ir import Array, Builder, CipherType, Node, SlotsType, SparseMatrix, Stage, TensorType
from heliograph.ir.maps.diagonals import MapGeometry
from heliograph.ir.maps.layout import Layout
from heliograph.ir.maps.steps import needed_keys, rotation_steps
from heliograph.ir.ops.slots.transforms import transform_diagonals
from heliograph.ir.ops.table import OPS, SLOTS, Dependence, Keys, OpSpec, Role, SlotRules, define, role_of, rules_of

RING = Ring(10, 60, 45, 4, 2, None)
SLOTS_OF_CASES = 16
# Stacks are no vectors: tests/ir/test_stack_ops.py.
STACKED = {"stack", "weighted_sum"}
ON_SLOTS = {name for name, spec in OPS.items() if spec.stages & SLOTS and spec.arity != (0, 0)} - STACKED
RANDOM = np.random.default_rng(3)


def sparse(rows: int, columns: int) -> SparseMatrix:
    return SparseMatrix.of(RANDOM.normal(size=(rows, columns)) * (RANDOM.random((rows, columns)) < 0.4))


def transform(in_period: int, out_period: int, operands: int = 1, **others: int) -> dict[str, Any]:
    matrices = tuple(sparse(out_period, in_period) for _ in range(operands))
    steps = tuple(range(16))
    geometry = MapGeometry(SLOTS_OF_CASES, in_period, out_period, **others)
    return {"matrices": matrices, "baby_steps": steps, "giant_steps": (0,), "geometry": geometry}


# name of the case: (op, which operands are secret, attributes (arrays become constants)); 16 slots each.
FACTOR = {"slots": 8, "inverse": False, "scale": 1, "layers": 2, "giant": 4, "shift": 0, "plain_log_scale": 40.0}
RULED: dict[str, tuple[str, tuple[bool, ...], dict[str, Any]]] = {
    **{
        name: (op, (True,) * len(shapes), attrs)
        for name, (op, shapes, attrs, _) in CASES.items()
        if op in ON_SLOTS and shapes[0] == (SLOTS_OF_CASES,)
    },
    "poly": ("poly", (True,), {"coefficients": RANDOM.normal(size=4), "low": -4.0, "high": 4.0}),
    "rotate_half": ("rotate", (True,), {"amount": 8}),
    "mul_plain_zeros": ("mul_plain", (True,), {"value": np.array([1.0, 0.0, -2.0, 0.0, 0.0, 0.0, 1.0, 3.0])}),
    "mul_pt": ("mul_pt", (True, False), {}),
    "add_pt": ("add_pt", (True, False), {}),
    "linear_transform": ("linear_transform", (True,), transform(8, 4)),
    "linear_transform_tall": ("linear_transform", (True,), transform(4, 16)),
    "linear_transform_shifted": ("linear_transform", (True,), transform(8, 8, shift=4, in_copies=2)),
    "linear_transform_stride": ("linear_transform", (True,), transform(4, 2, samples=2)),
    "linear_transform_copies": ("linear_transform", (True,), transform(4, 4, shift=2, in_copies=2)),
    "linear_transform_to_copies": ("linear_transform", (True,), transform(4, 4, out_copies=2)),
    "linear_transform_of_two": ("linear_transform", (True, True), transform(8, 4, 2)),
    "rescale": ("rescale", (True,), {}),
    "level_drop": ("level_drop", (True,), {"levels": 1}),
    "switch_chain": ("switch_chain", (True,), {"chain": 1}),
    "relinearize": ("relinearize", (True,), {}),
    "bootstrap": ("bootstrap", (True,), {}),
    "bootstrap_of_two": ("bootstrap", (True, True), {}),
    "fourier_factor": ("fourier_factor", (True,), FACTOR),
    "fourier_factor_inverse": ("fourier_factor", (True,), {**FACTOR, "inverse": True, "scale": 2, "shift": 3}),
    "fourier_factor_whole": ("fourier_factor", (True,), {**FACTOR, "layers": 3, "giant": 8}),
    "raise_modulus": ("raise_modulus", (True,), {"slots": 8, "level": 4}),
    "reread": ("reread", (True,), {"bits": 3.0}),
    "refreshed": ("refreshed", (True, True), {"slots": 8}),
    "refreshed_of_two": ("refreshed", (True, True, True), {"slots": 8}),
    "pack": ("pack", (False,), {"layout": Layout((5,), SLOTS_OF_CASES, 8)}),
    "pack_whole": ("pack", (False,), {"layout": Layout((16,), SLOTS_OF_CASES, 16)}),
}


def build(case: str) -> tuple[Builder, Node]:
    """The op on operands of 16 slots, at the first stage at which it stands."""
    op, secret, attrs = RULED[case]
    managed = Stage.PACKED not in OPS[op].stages
    builder = Builder(case, Stage.MANAGED if managed else Stage.PACKED)
    if managed:
        builder.set_ring(RING)
    places = {"level": 0 if op == "raise_modulus" else 2, "log_scale": 45.0} if managed else {}
    operands: list[Node] = []
    for i, is_secret in enumerate(secret):
        if is_secret:
            operands.append(builder.input(f"x{i}", slots=SLOTS_OF_CASES, chunk=0, **places))
            continue
        layout = attrs.get("layout", Layout((SLOTS_OF_CASES,), SLOTS_OF_CASES, SLOTS_OF_CASES))
        operands.append(builder.input(f"x{i}", shape=layout.shape, secret=False))
        if op != "pack":
            operands[-1] = builder.op("pack", operands[-1:], layout=layout)
    if op == "relinearize":
        operands = [builder.op("mul_ct", (operands[0], operands[0]))]
    return builder, builder.op(op, operands, **{key: stored(builder, value) for key, value in attrs.items()})


def stored(builder: Builder, value: Any) -> Any:
    if isinstance(value, tuple) and value and isinstance(value[0], SparseMatrix):
        return tuple(builder.constant(matrix, "m") for matrix in value)
    return builder.constant(value) if isinstance(value, np.ndarray) else value


def meaning(builder: Builder, node: Node, operands: list[Array]) -> Array:
    return np.asarray(OPS[node.op].evaluate([x[np.newaxis] for x in operands], node.attrs, builder.context)[0])


def sizes(node: Node) -> list[int]:
    return [operand.type.size if isinstance(operand.type, TensorType) else SLOTS_OF_CASES for operand in node.inputs]


def periodic(random: np.random.Generator, size: int, period: int) -> Array:
    return np.resize(random.uniform(-2, 2, period), size)


def test_every_slot_op_has_a_role_and_rules() -> None:
    for name in ON_SLOTS:
        spec = OPS[name]
        assert spec.role is not None, name
        assert spec.rules is not None, name
        assert spec.rules.bounds is not None or name == "poly", name


def test_no_rule_has_a_default() -> None:
    with pytest.raises(TypeError):
        SlotRules()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="keys"):
        SlotRules(*[None] * (len(fields(SlotRules)) - 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("forgotten", ["role", "rules"])
def test_a_slot_op_without_them_is_refused(forgotten: str) -> None:
    spec: OpSpec = replace(OPS["negate"], name="forgetful", **{forgotten: None})
    with pytest.raises(AssertionError, match="forgetful has no role, or no rules"):
        define(spec)
    assert "forgetful" not in OPS


def test_every_slot_op_has_a_case() -> None:
    assert {op for op, _, _ in RULED.values()} == ON_SLOTS


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", RULED)
def test_bounds_hold(case: str, seed: int) -> None:
    builder, node = build(case)
    rule = rules_of(node).bounds
    if rule is None:
        assert node.op == "poly"
        return
    random = np.random.default_rng(seed)
    ends = [np.sort(random.uniform(-2, 2, size=(2, size)), axis=0) for size in sizes(node)]
    made = rule(node, [(low, high) for low, high in ends], builder.context)
    if made is None:
        value = meaning(builder, node, [low + 0.0 for low, _ in ends])
        assert np.iscomplexobj(value) or role_of(node) is Role.PART
        return
    for share in (0.0, 1.0, *random.uniform(size=(20, 1))):
        x = [low + share * (high - low) for low, high in ends]
        value = meaning(builder, node, x)
        assert (made[0] <= value).all()
        assert (value <= made[1]).all()
    for _ in range(50):
        x = [random.uniform(low, high) for low, high in ends]
        value = meaning(builder, node, x)
        assert (made[0] <= value).all()
        assert (value <= made[1]).all()


def matrix_of(builder: Builder, node: Node) -> tuple[Array, Array]:
    """(M, b) of an op that is M x + b of its operands, one behind the other."""
    ends = np.cumsum(sizes(node))[:-1]
    zero = np.zeros(sum(sizes(node)))
    b = meaning(builder, node, np.split(zero, ends))
    columns = [meaning(builder, node, np.split(unit, ends)) - b for unit in np.eye(zero.size)]
    x = np.random.default_rng(0).uniform(-2, 2, zero.size)
    matrix = np.stack(columns, axis=1)
    np.testing.assert_allclose(meaning(builder, node, np.split(x, ends)), matrix @ x + b, atol=1e-12)
    return matrix, b


# What a modulus is raised from means what it is raised to, and yet every slot depends on it.
OTHERS = ("mul_ct", "mul_pt", "poly", "imaginary_part", "raise_modulus")
LINEAR = [case for case, (op, _, _) in RULED.items() if op not in OTHERS]


@pytest.mark.parametrize("case", LINEAR)
def test_what_a_linear_op_says_is_not_more_than_it_must(case: str) -> None:
    """Its bounds are reached, and each slot that is said to depend on an input does."""
    builder, node = build(case)
    matrix, b = matrix_of(builder, node)
    random = np.random.default_rng(4)
    ends = [np.sort(random.uniform(-2, 2, size=(2, size)), axis=0) for size in sizes(node)]
    made = rules_of(node).bounds(node, [(low, high) for low, high in ends], builder.context)  # type: ignore[misc]
    if made is not None:
        low, high = (np.concatenate(side) for side in zip(*ends, strict=True))
        more, less = np.maximum(matrix, 0), np.minimum(matrix, 0)
        np.testing.assert_allclose(made[0], more @ low + less @ high + b, atol=1e-9)
        np.testing.assert_allclose(made[1], more @ high + less @ low + b, atol=1e-9)
    for share in (1.0, 0.3):
        depends = [random.random(n) < share * o.type.secret for n, o in zip(sizes(node), node.inputs, strict=True)]
        found = rules_of(node).depends(node, [Dependence(there) for there in depends], builder.context)
        np.testing.assert_array_equal(found, (matrix != 0) @ np.concatenate(depends))


@pytest.mark.parametrize("case", ["mul_ct", "mul_pt"])
def test_the_bounds_of_a_product_are_reached(case: str) -> None:
    builder, node = build(case)
    random = np.random.default_rng(5)
    ends = [np.sort(random.uniform(-2, 2, size=(2, size)), axis=0) for size in sizes(node)]
    made = rules_of(node).bounds(node, [(low, high) for low, high in ends], builder.context)  # type: ignore[misc]
    corners = np.stack([meaning(builder, node, [x, y]) for x in ends[0] for y in ends[1]])
    assert made is not None
    np.testing.assert_allclose(made, (corners.min(axis=0), corners.max(axis=0)), atol=1e-9)


def test_the_bounds_of_a_square_are_reached() -> None:
    builder = Builder("square", Stage.PACKED)
    x = builder.input("x", slots=4, chunk=0)
    node = builder.op("mul_ct", (x, x))
    ends = np.array([-2.0, -1.0, 0.5, -3.0]), np.array([1.0, 2.0, 1.5, -1.0])
    made = rules_of(node).bounds(node, (ends, ends), builder.context)  # type: ignore[misc]
    np.testing.assert_allclose(made, ([0.0, 0.0, 0.25, 1.0], [4.0, 4.0, 2.25, 9.0]), atol=1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("period", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("case", RULED)
def test_slots_repeat_with_the_period(case: str, period: int) -> None:
    builder, node = build(case)
    random = np.random.default_rng(period)
    layouts = [period if operand.type.secret else SLOTS_OF_CASES for operand in node.inputs]
    if node.op == "linear_transform":
        # Its operands stand as its attributes say, and repeat with no longer period.
        geometry = node.attrs["geometry"]
        period = geometry.in_period * geometry.in_copies * geometry.samples
        layouts = [period for _ in node.inputs]
    made = rules_of(node).period(node, layouts, builder.context)
    value = meaning(builder, node, [periodic(random, n, min(p, n)) for n, p in zip(sizes(node), layouts, strict=True)])
    assert SLOTS_OF_CASES % made == 0
    np.testing.assert_allclose(np.roll(value, -made), value, atol=1e-12)


def test_a_folded_sum_repeats_with_half_the_period() -> None:
    builder = Builder("fold", Stage.PACKED)
    x = builder.input("x", slots=SLOTS_OF_CASES, chunk=0)
    for amount, period in ((4, 4), (2, 8), (12, 4), (8, 8)):
        turned = builder.op("rotate", (x,), amount=amount)
        for pair in ((x, turned), (turned, x)):
            node = builder.op("add_ct", pair)
            assert rules_of(node).period(node, (8, 8), builder.context) == period
    other = builder.op("sub_ct", (x, builder.op("rotate", (x,), amount=4)))
    assert rules_of(other).period(other, (8, 8), builder.context) == 8


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("case", RULED)
def test_slots_that_do_not_depend_do_not_change(case: str, seed: int) -> None:
    builder, node = build(case)
    random = np.random.default_rng(seed)
    share = 1.0 if seed == 0 else 0.4
    kinds = list(zip(sizes(node), node.inputs, strict=True))
    depends = [random.random(n) < share if operand.type.secret else np.zeros(n, dtype=bool) for n, operand in kinds]
    zero = [
        ~there & (random.random(there.size) < 0.5) & operand.type.secret
        for there, (_, operand) in zip(depends, kinds, strict=True)
    ]
    known = [Dependence(d, z if seed % 2 else None) for d, z in zip(depends, zero, strict=True)]
    made = rules_of(node).depends(node, known, builder.context)
    assert made.dtype == bool
    assert made.shape == (SLOTS_OF_CASES,)
    first = [np.where(z, 0.0, random.uniform(-2, 2, z.size)) for z in zero]
    for _ in range(10):
        other = [np.where(d, random.uniform(-2, 2, d.size), x) for d, x in zip(depends, first, strict=True)]
        changed = meaning(builder, node, other) != meaning(builder, node, first)
        assert not (changed & ~made).any()


def test_a_product_with_zero_depends_on_nothing() -> None:
    builder, node = build("mul_ct")
    x = Dependence(np.ones(SLOTS_OF_CASES, dtype=bool))
    zero = np.arange(SLOTS_OF_CASES) < 4
    y = Dependence(np.zeros(SLOTS_OF_CASES, dtype=bool), zero)
    for pair in ((x, y), (y, x)):
        np.testing.assert_array_equal(rules_of(node).depends(node, pair, builder.context), ~zero)


# ---------------------------------------------------------------------------------------------- keys


def test_keys() -> None:
    """Which ops take which keys, written down apart from the table."""
    for case in RULED:
        builder, node = build(case)
        needed = needed_keys(node)
        assert needed.relinearization == (node.op == "relinearize")
        assert needed.conjugation == (node.op in ("conjugate", "real_part", "imaginary_part"))
        assert needed.composed == (node.op == "linear_transform")
        rotates = node.op in ("rotate", "linear_transform", "fourier_factor")
        assert bool(rotation_steps(node)) == rotates
        if node.op == "linear_transform":
            diagonals = transform_diagonals(node.attrs, builder.context.linear_map)
            assert {offset for one in diagonals for offset in one.offsets} - {0} <= set(rotation_steps(node))
    assert rotation_steps(build("rotate")[1]) == (3,)


def test_ops_that_stand_on_no_slots_take_no_keys() -> None:
    builder = Builder("t", Stage.TENSOR)
    assert needed_keys(builder.op("neg", (builder.input("x", shape=(3,)),))) == Keys()


# ---------------------------------------------------------------------------------------------- roles


@pytest.mark.parametrize("case", [case for case, entry in RULED.items() if Stage.MANAGED in OPS[entry[0]].stages])
def test_types_keep_what_the_role_promises(case: str) -> None:
    op, secret, attrs = RULED[case]
    spec = OPS[op]
    if op == "pack":
        assert not build(case)[1].type.secret
        return
    builder = Builder(case, Stage.MANAGED)
    builder.set_ring(RING)
    begins, parts = 0 if op == "raise_modulus" else 2, 3 if op == "relinearize" else 2
    types = [
        CipherType(SLOTS_OF_CASES, begins, 45.0, parts) if is_secret else SlotsType(SLOTS_OF_CASES, secret=False)
        for is_secret in secret
    ]
    attrs = {key: stored(builder, value) for key, value in attrs.items()}
    if "plain_log_scale" in spec.attrs:
        attrs["plain_log_scale"] = 40.0
    if "plain_log_scales" in spec.attrs:
        attrs["plain_log_scales"] = (40.0,) * len(types)
    if op == "bootstrap":
        attrs |= {"level": 4, "slots": SLOTS_OF_CASES}
    made = spec.infer_type(types, attrs, builder.context)
    assert isinstance(made, CipherType)
    change = (made.level - begins, made.log_scale - 45.0, made.parts)
    three = [replace(kind, parts=3) if isinstance(kind, CipherType) else kind for kind in types]
    if spec.role in (Role.SUM, Role.TRANSPARENT):
        assert change == (0, 0, 2)
        widest = spec.infer_type(three, attrs, builder.context)
        assert isinstance(widest, CipherType)
        assert widest.parts == 3
    elif spec.role is Role.LEVEL:
        assert made.parts == 2
    else:
        wanted = {
            Role.PRODUCT: (0, 45.0, 3),
            Role.PLAIN_PRODUCT: (0, 40.0, 2),
            Role.ROTATION: (0, 0, 2),
            Role.PART: (0, 1.0, 2),
            Role.BOOTSTRAP: (4 - begins, 0, 2),
        }
        assert spec.role is not None
        assert change == wanted[spec.role]
        with pytest.raises(Exception, match="relinearized"):
            spec.infer_type(three, attrs, builder.context)
    # A level is spent by products alone, and only where they are rescaled.
    assert spec.depth == int(spec.role in (Role.PRODUCT, Role.PLAIN_PRODUCT))
