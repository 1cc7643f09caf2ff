"""The table of primitives: it names every method of the protocol, and every kind of call can be priced and timed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from helpers.backends import Session, openfhe, run
from runtime.bootstrapped import PERIOD, RING, program, sample

from heliograph.ckks.costs import BUILT_IN
from heliograph.execution.counted import Counted
from heliograph.execution.evaluator import Evaluator
from heliograph.execution.prices import call_ms
from heliograph.execution.primitives import BOOTSTRAPS, KEY_SWITCHES, PLAIN_PRODUCTS, PRIMITIVES, ROTATIONS, UNCOUNTED
from heliograph.execution.protocol import Call, Primitives, sums_size
from heliograph.execution.simulator import Simulator
from heliograph.execution.walk import NoValues


@pytest.fixture(scope="module")
def session() -> Session:
    return openfhe(program())


def methods(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_the_table_names_every_method_of_a_backend() -> None:
    named = {method for primitive in PRIMITIVES.values() for method in primitive.methods or (primitive.name,)}
    assert named | UNCOUNTED == methods(Primitives)
    assert named & UNCOUNTED == {"encode"}


@pytest.mark.parametrize("name", sorted(methods(Counted) - {"level", "constant", "level_drop", "reread"}))
def test_every_call_is_counted_once_under_its_name(name: str) -> None:
    calls: Counter[Call] = Counter()
    counted, nothing = Counted(NoValues(), 3, calls), object()
    arguments = {
        "negate": 0, "times_i": 0, "move": 0,
        "decompose": 0, "conjugate": 0, "rotate_hoisted": 2, "mul_scalar": 2, "mul_pt": 2,
        "add_pt": 2, "rotate_wide": 2, "step_wide": 2, "narrow": 0,
    }  # fmt: skip
    given = [nothing] * (1 + arguments.get(name, 1))
    if name == "weighted_sums":
        given = [[nothing], np.ones((1, 1)), 40.0]
    if name in ("sums_of_products", "wide_sums"):
        given = [[nothing], [nothing], [[(0, 0)]]]
    if name == "rotate_wide":
        # By nothing it is no rotation.
        counted.rotate_wide(nothing, 0, nothing)
        assert not calls
        given[1] = 5
    getattr(counted, name)(*given)
    ((counted_as, level, _, _),) = calls
    assert (level, sum(calls.values())) == (3, 1)
    assert counted_as == name or name in PRIMITIVES[counted_as].methods


def test_what_is_not_counted_calls_nothing_that_is() -> None:
    calls: Counter[Call] = Counter()
    counted = Counted(NoValues(), 3, calls)
    counted.level_drop(counted.reread(object(), 40.0), 1)
    counted.constant(np.zeros(4), 40.0)
    assert not calls


def test_the_groups_of_primitives() -> None:
    assert set(BOOTSTRAPS) == {"raise_modulus"}
    assert set(ROTATIONS) == {"rotate", "rotate_hoisted", "rotate_wide", "step_wide", "conjugate"}
    assert set(KEY_SWITCHES) == {*ROTATIONS, "relinearize", "relinearize_wide"}
    products = {"mul_plain", "summed_product", "wide_product", "mul_scalar", "mul_pt", "weighted_sums"}
    assert set(PLAIN_PRODUCTS) == products
    assert {name for name, primitive in PRIMITIVES.items() if primitive.own_chain} == {*BOOTSTRAPS, "conjugate"}


@pytest.mark.parametrize("name", PRIMITIVES)
def test_every_call_has_a_price(name: str) -> None:
    size = PERIOD if PRIMITIVES[name].bootstraps else 2
    low, high = (call_ms(Call(name, level, size), RING, BUILT_IN) for level in (1, 5))
    assert 0 < low <= high


def test_the_third_number_of_a_call_counts_where_it_should() -> None:
    for name in ("add", "accumulate", "add_plain", "add_pt", "mul_plain", "rescale"):
        assert call_ms(Call(name, 3, 3), RING, BUILT_IN) > call_ms(Call(name, 3, 2), RING, BUILT_IN)
    sums = [call_ms(Call("weighted_sums", 3, sums_size(*size)), RING, BUILT_IN) for size in ((2, 2), (2, 9), (9, 9))]
    assert sums == sorted(sums)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_every_call_can_be_timed(name: str, session: Session) -> None:
    """Of ciphertexts in the whole chain and in lower parts of it."""
    from heliograph.runtime.server.floor import Floor

    levels, size = (1, 4, 5), 2
    if PRIMITIVES[name].bootstraps:
        levels, size = (0,), PERIOD
    if name == "weighted_sums":
        size = sums_size(3, 5)
    if name.startswith("relinearize"):
        # The lowest part has no key for it.
        levels, size = (4, 5), 3
    floor = Floor(session.evaluator, {Call(name, level, size): 2 for level in levels})
    floor.sample()
    assert floor.milliseconds() == pytest.approx(2 * sum(floor.medians_ms().values()))
    assert min(floor.medians_ms().values()) > 0


def test_each_chain_has_primitives_of_its_own() -> None:
    simulator = Simulator(program())
    assert isinstance(simulator, Evaluator)
    assert len({id(simulator.part(number)) for number in range(len(simulator.chains))}) == 3


def test_a_run_counts_for_itself(session: Session) -> None:
    first, second = (run(program(), [sample(seed)], session)[1] for seed in (1, 2))
    assert first == second
