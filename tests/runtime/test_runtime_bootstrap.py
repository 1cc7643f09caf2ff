"""Programs that bootstrap, with lower parts of the chain, on both backends, on toy rings."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.backends import Session, native, openfhe, run, simulator
from runtime.bootstrapped import LOWER, PERIOD, RING, lowered, meaning, only_bootstrap, placed, program, sample

from heliograph.ckks.bootstrap import bootstrap_rotations
from heliograph.ckks.fourier import transform
from heliograph.ckks.ring import Ring
from heliograph.execution.interface import pack_inputs
from heliograph.execution.keys import program_keys
from heliograph.execution.protocol import Call
from heliograph.interpret import run_nodes
from heliograph.ir import Builder, CipherType, Node, Program, Stage
from heliograph.ir.bootstraps.asked import inside_bootstraps
from heliograph.ir.interface import Interface, TensorSpec
from heliograph.ir.maps.layout import Layout
from heliograph.ir.maps.steps import rotation_steps
from heliograph.passes.bootstraps.lower_bootstraps import LowerBootstraps

pytest.importorskip("numba")
pytest.importorskip("openfhe")

Backend = Callable[[Program], Session]


@pytest.mark.front
@pytest.mark.parametrize("backend", [native, openfhe])
@pytest.mark.parametrize("chains", [True, False])
def test_a_bootstrapped_program_means_what_it_says(chains: bool, backend: Backend) -> None:
    made, x = program(chains), sample()
    outputs, calls = run(made, [x], backend(made))
    refreshed, shifted = meaning(x)
    error = np.abs(outputs[0] - refreshed).max()
    # A bootstrap at a scale of 52 bits keeps 22 bits or more on this ring; without it the error is below 2**-35.
    assert 2.0**-32 < error < 2.0**-22
    np.testing.assert_allclose(outputs[1], shifted, atol=2.0**-35)
    predicted, planned = run(made, [x], simulator(made))
    assert calls == planned
    assert 1 / 4 < np.std(predicted[0] - refreshed) / np.std(outputs[0] - refreshed) < 4
    assert calls[Call("raise_modulus", 0, PERIOD)] == 1
    assert calls[Call("rotate", LOWER, 2)] == 1


@pytest.mark.parametrize("backend", [native, openfhe])
def test_a_bootstrap_can_return_lower(backend: Backend) -> None:
    made, x = program(True, RING.bootstrap_level - 1), sample(1)
    outputs, _ = run(made, [x], backend(made))
    np.testing.assert_allclose(outputs[0], meaning(x)[0], atol=2.0**-22)


def test_fewer_baby_steps_are_fewer_keys_and_the_same_bootstrap() -> None:
    x, errors, keys = np.random.default_rng(5).uniform(-1, 1, 1 << 9), {}, {}
    for babies in (0, 8, 4):
        made = lowered(only_bootstrap(replace(RING, bootstrap_babies=babies), 1 << 9))
        (measured,), _ = run(made, [x], native(made))
        errors[babies] = np.std(measured - x)
        keys[babies] = len({key.amount for key in program_keys(made) if key.kind == "rotation"})
    assert keys[4] < keys[8] < keys[0]
    assert max(errors.values()) < 2 * min(errors.values())


@pytest.mark.parametrize("budget", [(2, 2), (3, 4), (4, 1)])
@pytest.mark.parametrize("slots", [2, 4, 8, 16])
def test_few_slots_take_fewer_levels_than_the_ring_has_for_them(slots: int, budget: tuple[int, int]) -> None:
    ring = Ring(11, 60, 52, 18, 4, None, budget)
    made, x = lowered(only_bootstrap(ring, slots)), np.random.default_rng(slots).uniform(-1, 1, slots)
    for backend in (openfhe, native):
        (measured,), _ = run(made, [x], backend(made))
        np.testing.assert_allclose(measured, x, atol=2.0**-22)


def test_a_smaller_budget_of_levels_means_the_same_factors() -> None:
    for slots, encode, decode in itertools.product((1 << i for i in range(10)), range(1, 9), range(1, 9)):
        ring = Ring(11, 60, 55, 30, 4, None, (encode, decode))
        up, down = transform(ring, slots, True), transform(ring, slots, False)
        fewer = Ring(11, 60, 55, 30, 4, None, (len(up[0]), len(down[0])))
        assert (transform(fewer, slots, True), transform(fewer, slots, False)) == (up, down)


@pytest.mark.parametrize("backend", [native, openfhe])
@pytest.mark.parametrize("returns_to", [RING.bootstrap_level, LOWER])
def test_two_values_share_a_bootstrap_and_come_apart_in_any_part_of_the_chain(
    returns_to: int, backend: Backend
) -> None:
    builder = Builder("pair", Stage.MANAGED)
    builder.set_ring(RING)
    layout = Layout((PERIOD,), RING.slots, PERIOD)
    # Half the size for a pair: its parts come out at twice the scale.
    scale = RING.scale_bits - 1.0
    x, y = (
        builder.input(name, slots=RING.slots, chunk=0, level=RING.bootstrap_input_level, log_scale=scale)
        for name in ("x", "y")
    )
    both = builder.op("bootstrap", (x, y), slots=PERIOD, level=returns_to)
    parts = [builder.op(part, (both,)) for part in ("real_part", "imaginary_part")]
    builder.interface = Interface(
        tuple(TensorSpec(name, (PERIOD,), layout) for name in ("x", "y")),
        tuple(TensorSpec(f"y{i}", (PERIOD,), layout) for i in range(2)),
    )
    low = [builder.op("level_drop", (part,), levels=returns_to) for part in parts]
    made = placed(LowerBootstraps(RING).run(builder.finish(low)), RING.lower(LOWER, 2))
    values = [sample(3), sample(4)]
    measured, calls = run(made, values, backend(made))
    predicted, planned = run(made, values, simulator(made))
    assert calls == planned
    # Both parts come apart by one conjugation. Their modular reductions end in one each, at the level that a bootstrap
    # returns to.
    inside = 2 if returns_to == RING.bootstrap_level else 0
    assert calls[Call("conjugate", returns_to, 2)] == 1 + inside
    for value, found, simulated in zip(values, measured, predicted, strict=True):
        np.testing.assert_allclose(found, value, atol=2.0**-20)
        assert 1 / 4 < np.std(simulated - value) / np.std(found - value) < 4


@pytest.mark.parametrize(
    ("log_ring", "budget", "log_slots", "babies"),
    [
        (10, (1, 1), 5, 0), (10, (2, 2), 9, 0), (10, (3, 3), 6, 0), (10, (1, 2), 8, 0), (10, (3, 2), 4, 0),
        (11, (4, 3), 9, 0), (11, (2, 3), 10, 0), (11, (3, 3), 10, 0), (11, (2, 1), 7, 0), (10, (2, 2), 9, 4),
        (10, (2, 2), 9, 8), (10, (3, 3), 6, 4), (11, (3, 3), 10, 4), (11, (2, 3), 10, 8), (11, (3, 2), 4, 16),
    ],
)  # fmt: skip
def test_the_rotations_of_a_bootstrap_are_those_that_its_keys_are_counted_by(
    log_ring: int, budget: tuple[int, int], log_slots: int, babies: int
) -> None:
    ring = Ring(log_ring, 60, 52, 19, 4, None, budget, bootstrap_babies=babies)
    made = lowered(only_bootstrap(ring, 1 << log_slots))
    found = {step % ring.slots for node in made.nodes for step in rotation_steps(node)} - {0}
    assert found == set(bootstrap_rotations(ring, 1 << log_slots))


@pytest.mark.parametrize("backend", [native, openfhe])
def test_every_value_of_an_evaluation_can_be_looked_at(backend: Backend) -> None:
    """Values of three parts, of the degree of a product, in every part of the chain."""
    made, x = program(), sample(2)
    session, inside = backend(made), inside_bootstraps(made)
    meant: dict[Node, Any] = {}
    run_nodes(made, pack_inputs(made, [x]), meant.__setitem__)
    seen: set[tuple[str, int]] = set()

    def observe(node: Node, value: Any) -> None:
        assert isinstance(node.type, CipherType)
        # What is inside a bootstrap has scales of its own.
        if node not in inside:
            found = session.decrypt(value, node.type.log_scale)
            np.testing.assert_allclose(found, meant[node][0], atol=2.0**-20)
            seen.add((node.op, node.type.level))

    run(made, [x], session, observe)
    assert {("mul_ct", 4), ("mul_ct", 5), ("refreshed", 5), ("level_drop", 0)} <= seen
