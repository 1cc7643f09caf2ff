"""What every backend must do: values, levels, parts, scales, refusals and counted calls of each op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.backends import BACKENDS, Session, openfhe, run, simulator
from helpers.keyed import RingKeys
from helpers.random_programs import random_inputs
from runtime.bootstrapped import PERIOD, lowered, only_bootstrap
from runtime.bootstrapped import RING as BOOTSTRAPPED

from heliograph.ckks.chains import Chain
from heliograph.ckks.parameters import Parameters
from heliograph.ckks.ring import Ring
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.errors import HeliographError, ProgramError, RangeError
from heliograph.execution.evaluation import Run
from heliograph.execution.loop import execute
from heliograph.execution.protocol import Call
from heliograph.execution.walk import node_calls
from heliograph.interpret import interpret, run_nodes
from heliograph.ir import Builder, CipherType, Node, Program, SparseMatrix, Stage
from heliograph.ir.analysis.liveness import last_use_table
from heliograph.ir.interface import Interface, TensorSpec
from heliograph.ir.maps.diagonals import MapGeometry
from heliograph.ir.maps.layout import Layout
from heliograph.ir.ops.table import OPS
from heliograph.passes.levels.place_chains import PlaceChains
from heliograph.passes.levels.plan_levels import PlanLevels
from heliograph.passes.levels.schedule import Schedule
from heliograph.passes.levels.select_keys import SelectKeys

RING = Ring(10, 60, 45, 4, 2, None)
SLOTS = RING.slots
Body = Callable[[Builder, Node, Node], "Node | list[Node]"]


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Callable[..., Session]:
    return BACKENDS[request.param]


def program_of(body: Body, level: int = RING.levels, log_scale: float = 45.0, keys: tuple[int, ...] = ()) -> Program:
    """An executable program on two full vectors at a level and scale."""
    builder = Builder("ops", Stage.MANAGED)
    builder.set_ring(RING)
    layout = Layout((SLOTS,), SLOTS, SLOTS)
    nodes = [builder.input(name, slots=SLOTS, chunk=0, level=level, log_scale=log_scale) for name in "xy"]
    made = body(builder, *nodes)
    outputs = made if isinstance(made, list) else [made]
    lower = (Chain(RING.lower(2, 1)),) if any(output.type.chain for output in outputs) else ()  # type: ignore[union-attr]
    builder.parameters = Parameters((Chain(RING, tuple(sorted(keys)), True), *lower))
    builder.interface = Interface(
        tuple(TensorSpec(name, (SLOTS,), layout) for name in "xy"),
        tuple(TensorSpec(f"y{i}", (SLOTS,), layout) for i in range(len(outputs))),
    )
    return Schedule().run(PlaceChains().run(builder.finish(outputs)))


def samples() -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.uniform(-1, 1, size=SLOTS) for _ in range(2)]


def matrix(builder: Builder, rows: int = 8, cols: int = 16) -> Any:
    random = np.random.default_rng(5)
    dense = random.normal(size=(rows, cols)) * (random.random((rows, cols)) < 0.4)
    return builder.constant(SparseMatrix.of(dense), "m")


def vector(builder: Builder) -> Any:
    return builder.constant(np.random.default_rng(6).uniform(-1, 1, size=64), "v")


def other(builder: Builder) -> Any:
    return builder.constant(np.random.default_rng(8).uniform(-1, 1, size=64), "w")


def transform(builder: Builder, x: Node, name: Any = None) -> Node:
    # Offsets of an (8, 16) map are 0..7.
    return builder.op(
        "linear_transform",
        (x,),
        matrices=(name or matrix(builder),),
        geometry=MapGeometry(SLOTS, 16, 8),
        baby_steps=(0, 1, 2, 3),
        giant_steps=(0, 4),
        plain_log_scales=(44.0,),
    )


def server_side(builder: Builder) -> Node:
    """A vector that the server knows, spread over the slots."""
    known = builder.constant(np.random.default_rng(7).uniform(-1, 1, size=(64,)), "known")
    node = builder.op("constant", (), value=known)
    return builder.op("pack", (node,), layout=Layout((64,), SLOTS, 64))


TRANSFORM_KEYS = (1, 2, 3, 4)


def weighted_sums(builder: Builder, x: Node, y: Node) -> list[Node]:
    """Sums of a stack of three, one of them of nothing, one twice, and one of a stack that lost a level."""
    doubled = builder.op("mul_int", (x,), factor=2)
    stack = builder.op("stack", (x, y, doubled))
    weights = builder.constant(SparseMatrix.of(np.array([[0.5, -1.25, 0.1], [0.0, 0.0, 0.0], [0.0, 3.0, 0.0]])), "w")
    attrs = {"matrix": weights, "plain_log_scale": 43.5}
    made = [builder.op("weighted_sum", (stack,), row=row, **attrs) for row in (2, 0, 1, 2)]
    lower = builder.op("level_drop", (stack,), levels=1)
    return [*made, builder.op("weighted_sum", (lower,), row=0, **attrs)]


def complex_square(builder: Builder, x: Node, y: Node) -> list[Node]:
    """The parts of (x + iy)^2, x^2 - y^2 and 2xy: two values by one product."""
    z = builder.op("complex_of", (x, y))
    square = builder.op("relinearize", (builder.op("mul_ct", (z, z)),))
    return [builder.op(part, (square,)) for part in ("real_part", "imaginary_part")]


def stacks_of_one(builder: Builder, x: Node, y: Node) -> list[Node]:
    """Read as ciphertexts, by ops that read stacks and by ops that read none; and a ciphertext as a stack of one."""
    stack = builder.op("stack", (x,))
    weights = builder.constant(SparseMatrix.of(np.array([[0.5], [-3.0]])), "w")
    lower = builder.op("level_drop", (stack,), levels=1)
    sums = [
        builder.op("weighted_sum", (each,), matrix=weights, row=1, plain_log_scale=43.5) for each in (stack, lower, y)
    ]
    return [*sums, builder.op("negate", (stack,)), builder.op("rotate", (lower,), amount=5), stack]


def doubling(builder: Builder, plain_log_scale: float) -> dict[str, Any]:
    """What a product takes with a constant that is exact at any scale."""
    return {"value": builder.constant(np.full(1, 2.0), "two"), "plain_log_scale": plain_log_scale}


def there_and_back(builder: Builder, x: Node) -> list[Node]:
    """Into the lower chain and out again, with something done there."""
    assert isinstance(x.type, CipherType)
    low = builder.op("level_drop", (x,), levels=x.type.level - 1)
    doubled = builder.op("mul_int", (builder.op("switch_chain", (low,), chain=1),), factor=2)
    return [builder.op("switch_chain", (doubled,), chain=0), doubled]


OPS_UNDER_TEST: dict[str, tuple[Body, tuple[int, ...]]] = {
    "add_ct": (lambda b, x, y: b.op("add_ct", (x, y)), ()),
    "sub_ct": (lambda b, x, y: b.op("sub_ct", (x, y)), ()),
    "add_of_three_parts": (lambda b, x, y: b.op("add_ct", (b.op("mul_ct", (x, y)), b.op("mul_ct", (x, x)))), ()),
    "mul_ct": (lambda b, x, y: b.op("mul_ct", (x, y)), ()),
    "mul_relinearized": (lambda b, x, y: b.op("relinearize", (b.op("mul_ct", (x, y)),)), ()),
    "rescale": (lambda b, x, y: b.op("rescale", (b.op("relinearize", (b.op("mul_ct", (x, y)),)),)), ()),
    "rescale_three_parts": (lambda b, x, y: b.op("rescale", (b.op("mul_ct", (x, y)),)), ()),
    "rotate": (lambda b, x, y: b.op("rotate", (x,), amount=5), (5,)),
    "rotate_right": (lambda b, x, y: b.op("rotate", (x,), amount=SLOTS - 3), (SLOTS - 3,)),
    "rotate_by_nothing": (
        lambda b, x, y: [b.op("rotate", (z,), amount=n) for z, n in ((x, 0), (y, -SLOTS), (y, 5))],
        (5,),
    ),
    "rotations_of_one_value": (
        lambda b, x, y: b.op("add_ct", (b.op("rotate", (x,), amount=5), b.op("rotate", (x,), amount=7))),
        (5, 7),
    ),
    "mul_plain": (lambda b, x, y: b.op("mul_plain", (x,), value=vector(b), plain_log_scale=43.5), ()),
    "mul_plain_complex": (
        lambda b, x, y: [
            b.op(part, (b.op("mul_plain", (x,), value=vector(b), imaginary=other(b), plain_log_scale=43.5),))
            for part in ("real_part", "imaginary_part")
        ],
        (),
    ),
    "add_plain": (lambda b, x, y: b.op("add_plain", (x,), value=vector(b)), ()),
    "add_plain_to_product": (lambda b, x, y: b.op("add_plain", (b.op("mul_ct", (x, y)),), value=vector(b)), ()),
    "add_scalar": (lambda b, x, y: b.op("add_scalar", (x,), value=-0.375), ()),
    "add_scalar_to_product": (lambda b, x, y: b.op("add_scalar", (b.op("mul_ct", (x, y)),), value=0.3), ()),
    "mul_int": (lambda b, x, y: b.op("mul_int", (x,), factor=2), ()),
    "mul_int_negative": (lambda b, x, y: b.op("mul_int", (x,), factor=-11), ()),
    "mul_int_one": (lambda b, x, y: b.op("mul_int", (x,), factor=1), ()),
    "negate": (lambda b, x, y: b.op("negate", (x,)), ()),
    "lincomb": (
        lambda b, x, y: b.op("lincomb", (x, y), weights=(0.7, -1.3), constant=0.25, plain_log_scales=(44.0, 44.0)),
        (),
    ),
    "lincomb_of_zero": (
        lambda b, x, y: b.op("lincomb", (x,), weights=(0.0,), constant=0.5, plain_log_scales=(45.0,)),
        (),
    ),
    "linear_transform": (lambda b, x, y: transform(b, x), TRANSFORM_KEYS),
    "zero_transform": (
        lambda b, x, y: transform(b, x, b.constant(SparseMatrix.of(np.zeros((8, 16))), "zero")),
        TRANSFORM_KEYS,
    ),
    "level_drop": (lambda b, x, y: b.op("level_drop", (x,), levels=1), ()),
    "rescale_to_a_single_scale": (
        lambda b, x, y: b.op("rescale", (b.op("rescale", (b.op("mul_plain", (x,), **doubling(b, 90.0)),)),)),
        (),
    ),
    "rescale_of_no_product": (
        lambda b, x, y: b.op("add_plain", (b.op("rescale", (b.op("reread", (x,), bits=40.0),)),), value=vector(b)),
        (),
    ),
    "switch_chain": (lambda b, x, y: there_and_back(b, x), ()),
    "relinearize": (lambda b, x, y: b.op("relinearize", (b.op("mul_ct", (x, y)),)), ()),
    # The slots that a program of real numbers has stay what they are; complex ones have a test of their own.
    "conjugate": (lambda b, x, y: b.op("conjugate", (x,)), ()),
    "real_part": (lambda b, x, y: b.op("real_part", (x,)), ()),
    "imaginary_part": (lambda b, x, y: b.op("imaginary_part", (x,)), ()),
    "mul_pt": (lambda b, x, y: b.op("mul_pt", (x, server_side(b)), plain_log_scale=43.5), ()),
    "add_pt": (lambda b, x, y: b.op("add_pt", (x, server_side(b))), ()),
    "add_pt_to_product": (lambda b, x, y: b.op("add_pt", (b.op("mul_ct", (x, y)), server_side(b))), ()),
    "output_is_input": (lambda b, x, y: [x, b.op("add_ct", (x, y))], ()),
    "mul_i_twice": (lambda b, x, y: b.op("mul_i", (b.op("mul_i", (x,)),)), ()),
    "mul_i_of_a_product": (lambda b, x, y: b.op("mul_i", (b.op("mul_i", (b.op("mul_ct", (x, y)),)),)), ()),
    "complex_square": (lambda b, x, y: complex_square(b, x, y), ()),
    "weighted_sum": (lambda b, x, y: weighted_sums(b, x, y), ()),
    "stack_of_one": (lambda b, x, y: stacks_of_one(b, x, y), (5,)),
}


@pytest.mark.parametrize("level", [RING.levels, 2])
@pytest.mark.parametrize("log_scale", [45.0, 44.25])
@pytest.mark.parametrize("name", OPS_UNDER_TEST)
def test_value_level_and_parts(backend: Callable[..., Session], name: str, level: int, log_scale: float) -> None:
    body, keys = OPS_UNDER_TEST[name]
    program = program_of(body, level, log_scale, keys)
    session = backend(program)
    seen: dict[Node, tuple[int, int]] = {}
    values = samples()

    def observe(node: Node, value: Any) -> None:
        if node.type.secret:
            seen[node] = session.evaluator.describe(value)

    outputs, _ = run(program, values, session, observe)
    for node in program.nodes:
        if node.type.secret:
            assert isinstance(node.type, CipherType)
            assert seen[node] == (node.type.level, node.type.parts)
    expected = run_nodes(program, {node: v[np.newaxis] for node, v in zip(program.inputs, values, strict=True)})
    for output, wanted in zip(outputs, expected, strict=True):
        # A scale that is tracked wrongly shows as a factor: 2**-20 is far below the distance of any prime to 2**45.
        np.testing.assert_allclose(output, np.broadcast_to(wanted[0], SLOTS), atol=2e-8, rtol=0)


@pytest.mark.parametrize("backend", ["openfhe", "native"])
def test_rescaling_three_parts_costs_what_the_simulator_says(backend: str) -> None:
    """Their rounding meets the square of the secret: tens of times the error of two parts."""

    def body(b: Builder, x: Node, y: Node) -> list[Node]:
        product = b.op("mul_ct", (x, y))
        rounded = b.op("relinearize", (b.op("rescale", (product,)),))
        return [rounded, b.op("rescale", (b.op("relinearize", (product,)),))]

    program, values = program_of(body), samples()
    errors = [
        [float(np.std(output - values[0] * values[1])) for output in run(program, values, make(program))[0]]
        for make in (BACKENDS[backend], simulator)
    ]
    for measured, predicted in zip(*errors, strict=True):
        assert 1 / 4 < measured / predicted < 4
    assert errors[0][0] > 8 * errors[0][1]


@pytest.mark.parametrize("backend", ["openfhe", "native"])
@pytest.mark.parametrize("level", [RING.levels, 1])
def test_products_at_scales_that_need_no_rescaling(backend: str, level: int) -> None:
    """To the last level with the scale of one factor and little more; what is added is as fine as that scale."""

    def body(b: Builder, x: Node, y: Node) -> list[Node]:
        product = b.op("mul_plain", (x,), **doubling(b, 6.0))
        raised = b.op("add_plain", (product,), value=vector(b))
        return [raised, *(b.op("level_drop", (each,), levels=level) for each in (product, raised))]

    program = program_of(body, level)
    (x, _), v = samples(), np.resize(np.random.default_rng(6).uniform(-1, 1, size=64), SLOTS)
    outputs, _ = run(program, samples(), BACKENDS[backend](program))
    for output, wanted in zip(outputs, (2 * x + v, 2 * x, 2 * x + v), strict=True):
        np.testing.assert_allclose(output, wanted, atol=2e-8, rtol=0)


@pytest.mark.parametrize("name", OPS_UNDER_TEST)
def test_backends_count_the_same_calls(name: str) -> None:
    body, keys = OPS_UNDER_TEST[name]
    program = program_of(body, keys=keys)
    counts = [run(program, samples(), make(program))[1] for make in (simulator, openfhe)]
    assert counts[0] == counts[1]
    # What is counted without values is the same.
    assert sum(node_calls(program).values(), Counter()) == counts[0]


def test_a_transform_as_a_whole_is_what_its_rule_says() -> None:
    """The simulator computes transforms in a way of its own; without errors the rule gives the same."""
    program = program_of(OPS_UNDER_TEST["linear_transform"][0], keys=TRANSFORM_KEYS)
    node = next(node for node in program.nodes if node.op == "linear_transform")
    session = simulator(program, noisy=False)
    x, runs = session.encrypt(samples()[0], RING.levels, 45.0), [session.evaluator.begin() for _ in range(2)]
    whole, by_rule = runs[0].evaluate(node, [x]), Run.transform(runs[1], node, [x])
    np.testing.assert_allclose(whole.slots, by_rule.slots, atol=1e-12)
    assert (whole.level, whole.log_scale, whole.parts) == (by_rule.level, by_rule.log_scale, by_rule.parts)
    assert runs[0].calls == runs[1].calls


def test_an_op_without_a_rule_is_refused(backend: Callable[..., Session]) -> None:
    program = program_of(lambda b, x, y: b.op("add_ct", (x, y)))
    node = replace(next(node for node in program.nodes if node.op == "add_ct"), op="unheard_of")
    session = backend(program)
    with pytest.raises(ProgramError, match="no rule that evaluates unheard_of"):
        session.evaluator.begin().evaluate(node, [])


@pytest.mark.parametrize("lower", [False, True])
def test_a_complex_product_is_planned_and_run(backend: Callable[..., Session], lower: bool) -> None:
    """From the packed stage: levels, scales and keys of an op that no pass names."""
    builder = Builder("complex", Stage.PACKED)
    layout = Layout((SLOTS,), SLOTS, SLOTS)
    x, y, u, v = (builder.input(name, slots=SLOTS, chunk=0) for name in "xyuv")
    z, w = (builder.op("add_ct", (re, builder.op("mul_i", (im,)))) for re, im in ((x, y), (u, v)))
    product = builder.op("mul_ct", (z, builder.op("rotate", (w,), amount=3)))
    product = builder.op("mul_i", (product,))
    outputs = [builder.op(part, (product,)) for part in ("real_part", "imaginary_part")]
    builder.interface = Interface(
        tuple(TensorSpec(name, (SLOTS,), layout) for name in "xyuv"),
        tuple(TensorSpec(f"y{i}", (SLOTS,), layout) for i in range(2)),
    )
    program = PlanLevels(RING).run(builder.finish(outputs))
    # The monomial spends nothing: one product, rescaled once.
    assert [node.op for node in program.nodes].count("rescale") == 1
    assert max(node.type.level for node in program.nodes if isinstance(node.type, CipherType)) == 1
    program = SelectKeys(RING).run(program)
    if lower:
        # In a lower part of the chain: conjugations leave it.
        chains = (*program.planned.chains, Chain(RING.lower(1, 2), (3,), True))
        program = replace(program, parameters=replace(program.planned, chains=chains))
    program = Schedule().run(PlaceChains().run(program))
    random = np.random.default_rng(9)
    values = [random.uniform(-1, 1, SLOTS) for _ in "xyuv"]
    found, _ = run(program, values, backend(program))
    wanted = 1j * (values[0] + 1j * values[1]) * np.roll(values[2] + 1j * values[3], -3)
    np.testing.assert_allclose(found[0], wanted.real, atol=1e-7)
    np.testing.assert_allclose(found[1], wanted.imag, atol=1e-7)


def test_missing_rotation_key_is_refused(backend: Callable[..., Session]) -> None:
    program = program_of(lambda b, x, y: b.op("rotate", (x,), amount=5), keys=(5,))
    without = replace(program, parameters=Parameters((Chain(RING, (), True),)))
    with pytest.raises(HeliographError):
        run(without, samples(), backend(without))


def test_missing_level_is_refused(backend: Callable[..., Session]) -> None:
    program = program_of(lambda b, x, y: b.op("rescale", (x,)), level=1)
    session = backend(program)
    node = next(node for node in program.nodes if node.op == "rescale")
    last = session.encrypt(samples()[0], 0, 45.0)
    with pytest.raises(HeliographError):
        session.evaluator.begin().evaluate(node, [last])


def test_input_of_another_level_is_refused(backend: Callable[..., Session]) -> None:
    program = program_of(lambda b, x, y: b.op("add_ct", (x, y)))
    session = backend(program)
    with pytest.raises(ProgramError, match="planned were"):
        execute(program, session.evaluator, {node: session.encrypt(samples()[0], 2, 45.0) for node in program.inputs})


@pytest.mark.parametrize("log_factor", [20, 24, 30])
def test_overflow_is_refused(backend: Callable[..., Session], log_factor: int) -> None:
    """A value beyond its modulus raises: at the node in the simulator, at decryption in OpenFHE."""
    program = program_of(lambda b, x, y: b.op("mul_int", (x,), factor=1 << log_factor), level=0)
    values = [np.random.default_rng(0).normal(size=SLOTS) for _ in range(2)]
    with pytest.raises(RangeError):
        run(program, values, backend(program))


def test_only_executable_programs_execute(backend: Callable[..., Session]) -> None:
    program = program_of(lambda b, x, y: b.op("add_ct", (x, y)))
    with pytest.raises(ProgramError, match="compile it first"):
        execute(replace(program, stage=Stage.MANAGED), backend(program).evaluator, {})


def test_a_broken_evaluation_leaves_nothing_behind(backend: Callable[..., Session]) -> None:
    """Rotations of one value share a decomposition; the next run does not take that of a run that was broken off."""
    program = program_of(OPS_UNDER_TEST["rotations_of_one_value"][0], keys=(5, 7))
    session = backend(program)

    def stop(node: Node, value: Any) -> None:
        if node.op == "rotate":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(program, samples(), session, stop)
    values = [-v for v in samples()]
    outputs, _ = run(program, values, session)
    np.testing.assert_allclose(outputs[0], np.roll(values[0], -5) + np.roll(values[0], -7), atol=1e-7)


def test_values_are_freed_at_last_use(backend: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a table of last uses that frees a value too early an execution fails instead of giving another answer."""
    program = program_of(lambda b, x, y: b.op("add_ct", (b.op("add_ct", (x, y)), x)))
    table = last_use_table(program.nodes, program.outputs)
    table[2] = sorted({*table[2], 0})
    monkeypatch.setattr("heliograph.execution.loop.last_use_table", lambda nodes, outputs: table)
    with pytest.raises(Exception, match=r"None|Null|incompatible"):
        run(program, samples(), backend(program))


# ------------------------------------------------------------------------------------------ whole programs


def network(kind: str) -> Program:
    random = np.random.default_rng(1)
    builder = Builder(kind, Stage.TENSOR)
    if kind == "mlp":
        x = builder.input("x", shape=(40,), low=-1.0, high=1.0)
        h = builder.op("linear", (x,), weight=builder.constant(random.normal(size=(24, 40)) / 6, "w1"))
        h = builder.op("gelu", (h,), degree=7)
        return builder.finish(
            [builder.op("linear", (h,), weight=builder.constant(random.normal(size=(5, 24)) / 5, "w2"))]
        )
    if kind == "cnn":
        x = builder.input("x", shape=(2, 8, 8), low=0.0, high=1.0)
        w = builder.constant(random.normal(size=(4, 2, 3, 3)) / 4, "w")
        h = builder.op("conv", (x,), weight=w, stride=(2, 2), padding=(1, 1), dilation=(1, 1), groups=1)
        h = builder.op("silu", (h,), degree=5)
        h = builder.op("reshape", (h,), shape=(64,))
        return builder.finish(
            [builder.op("linear", (h,), weight=builder.constant(random.normal(size=(6, 64)) / 8, "f"))]
        )
    if kind == "products":
        x = builder.input("x", shape=(64,), low=-1.0, high=1.0)
        y = builder.input("y", shape=(64,), low=-1.0, high=1.0)
        p = builder.op("mul", (x, y))
        q = builder.op("power", (x,), exponent=3)
        return builder.finish([builder.op("add", (p, q)), builder.op("sub", (builder.op("mul", (p, p)), y))])
    assert kind == "deep"
    x = builder.input("x", shape=(16,), low=-1.0, high=1.0)
    h = x
    for i in range(2):
        w = builder.constant(random.normal(size=(16, 16)) / 4, f"w{i}")
        h = builder.op("add", (h, builder.op("tanh", (builder.op("linear", (h,), weight=w),), degree=15)))
    return builder.finish([h])


@pytest.mark.parametrize("kind", ["mlp", "cnn", "products", "deep"])
def test_predicted_error_is_within_three_bits(kind: str) -> None:
    source = network(kind)
    program = compile(source, Options(security_bits=None, log_ring=11, scale_bits=40)).program
    errors: dict[str, list[np.ndarray]] = {"simulator": [], "openfhe": []}
    for seed in range(6):
        values = random_inputs(source, seed)
        exact = interpret(program, *values)
        exact = exact if isinstance(exact, tuple) else (exact,)
        # A new key each time: the bias of key switches depends on the secret, and one secret may have next to none.
        fresh = openfhe(program, keys=RingKeys(program.ring))
        for name, used in (("simulator", simulator(program, seed)), ("openfhe", fresh)):
            outputs, _ = run(program, values, used)
            errors[name].append(np.concatenate([(a - b).ravel() for a, b in zip(outputs, exact, strict=True)]))
    for statistic in (lambda e: np.sqrt(np.mean(np.square(e))), lambda e: np.max(np.abs(e))):
        bits = np.log2(statistic(errors["simulator"]) / statistic(errors["openfhe"]))
        assert abs(bits) <= 3, f"{kind}: predicted error is off by {bits:.1f} bits"


def test_every_slot_op_has_a_case() -> None:
    """What an executable program may hold of ciphertexts, each on every backend."""
    covered = {node.op for body, keys in OPS_UNDER_TEST.values() for node in program_of(body, keys=keys).nodes}
    # Bootstraps need a ring of their own: `test_a_bootstrap_on_every_backend`, `test_bootstraps_written_out.py`.
    executable = {name for name, spec in OPS.items() if Stage.EXECUTABLE in spec.stages}
    executable -= {"fourier_factor", "raise_modulus", "reread", "refreshed"}
    assert executable <= covered, sorted(executable - covered)


def test_every_slot_op_has_a_rule() -> None:
    """But for what the server computes in the clear, and inputs."""
    executable = {name for name, spec in OPS.items() if Stage.EXECUTABLE in spec.stages}
    assert {name for name, spec in OPS.items() if spec.run is not None} == executable - {"input", "constant", "pack"}


def test_a_bootstrap_on_every_backend(backend: Callable[..., Session]) -> None:
    program, x = lowered(only_bootstrap(BOOTSTRAPPED, PERIOD)), np.linspace(-1, 1, PERIOD)
    session = backend(program)
    seen: dict[str, tuple[int, int]] = {}
    found, calls = run(
        program, [x], session, lambda node, value: seen.update({node.op: session.evaluator.describe(value)})
    )
    assert seen["raise_modulus"] == (BOOTSTRAPPED.levels, 2)
    assert seen["refreshed"] == (BOOTSTRAPPED.bootstrap_level, 2)
    assert calls[Call("raise_modulus", 0, PERIOD)] == 1
    assert sum(node_calls(program).values(), Counter()) == calls
    np.testing.assert_allclose(found[0], x, atol=2.0**-20)


@pytest.mark.parametrize("name", BACKENDS)
def test_complex_slots_are_conjugated(name: str) -> None:
    """No program has complex numbers yet; the ciphertext is made here."""
    program = program_of(
        lambda b, x, y: [b.op(part, (b.op("conjugate", (x,)),)) for part in ("real_part", "imaginary_part")], level=2
    )
    random = np.random.default_rng(8)
    z = random.uniform(-1, 1, SLOTS) + 1j * random.uniform(-1, 1, SLOTS)
    session = BACKENDS[name](program)
    evaluator = session.evaluator
    if name == "simulator":
        made = replace(session.encrypt(z.real, 2, 45.0), slots=z)
    else:
        part = evaluator.part(0)
        made = part.add(session.encrypt(z.real, 2, 45.0), part.times_i(session.encrypt(z.imag, 2, 45.0)))
    outputs, trace = execute(program, evaluator, dict.fromkeys(program.inputs, made))
    assert trace.calls[Call("conjugate", 2, 2)] == 4
    # The parts come at twice the scale that is told here.
    found = [session.decrypt(output, 46.0) for output in outputs]
    np.testing.assert_allclose(found[0], z.real, atol=1e-7)
    np.testing.assert_allclose(found[1], -z.imag, atol=1e-7)
