"""What placing bootstraps foresees of the time is what the calls of the finished program cost."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

import heliograph as hg
from heliograph.ckks.costs import BUILT_IN
from heliograph.ckks.ring import Ring
from heliograph.compiler.pipeline import front_passes, lower_passes, pack_passes
from heliograph.execution.bootstrap_work import bootstrap_ms
from heliograph.execution.prices import Work, call_ms, prices_on, total_ms
from heliograph.execution.primitives import PRIMITIVES
from heliograph.execution.walk import node_calls
from heliograph.ir import Builder, Program, Stage
from heliograph.ir.bootstraps.asked import bootstraps
from heliograph.ir.bootstraps.writer import write_bootstrap
from heliograph.ir.location import UNKNOWN
from heliograph.passes.bootstraps.place_bootstraps import BootstrapSearch, PlaceBootstraps, Placed

# A bootstrap enters at level 2 and returns to 8 in the whole chain, to 5 in the lower one.
RING = Ring(11, 60, 52, 19, 4, None, (2, 2))
LOWER = RING.lower(16, 3, bootstraps=True)
TOY = hg.Options(security_bits=None, log_ring=11, degree=7)


def packed(layers: int, ring: Ring) -> Program:
    """A residual network of maps and activations."""

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(layers))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = x + torch.tanh(layer(x)) / 4
            return x

    torch.manual_seed(0)
    samples = np.random.default_rng(0).uniform(-1, 1, (32, 16))
    program = hg.trace(Network(), torch.zeros(1, 16), calibration=samples, input_range=(-1, 1))
    return pack_passes(front_passes(program, TOY)[-1].program, ring, TOY)[-1].program


def by_calls(program: Program, rings: tuple[Ring, ...]) -> float:
    """What the calls of a program cost in these parts of the chain: the parts that are made for keys alone come later."""
    chains, total = program.planned.chains, 0.0
    for call, number in sum(node_calls(program).values(), Counter()).items():
        lowest = [ring for ring in rings if ring.levels >= call.level][-1]
        own = PRIMITIVES[call.primitive].own_chain
        total += number * call_ms(call, chains[call.chain].ring if own else lowest, BUILT_IN)
    return total


@pytest.mark.parametrize(("lower", "layers"), [((), 6), ((LOWER,), 6)])
def test_the_price_of_a_placed_program_is_that_of_its_calls(lower: tuple[Ring, ...], layers: int) -> None:
    program = packed(layers, RING)
    (placed,) = BootstrapSearch(program, RING.slots).placed([PlaceBootstraps(RING, lower=lower)])
    assert isinstance(placed, Placed)
    made = lower_passes(placed.program, RING, TOY, 0, lower)[-1].program
    assert any(bootstraps(made))
    assert placed.cost_ms == pytest.approx(by_calls(made, (RING, *lower)), rel=0.03)


def test_without_bootstraps_it_is_too() -> None:
    ring = Ring(11, 60, 50, 9, 3, None)
    program = packed(2, ring)
    (placed,) = BootstrapSearch(program, ring.slots).placed([PlaceBootstraps(ring)])
    assert isinstance(placed, Placed)
    assert not placed.returns
    assert placed.cost_ms == pytest.approx(by_calls(lower_passes(program, ring, TOY)[-1].program, (ring,)), rel=0.03)


@pytest.mark.parametrize("slots", [2, 64, 1024])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("ring", [RING, LOWER, Ring(11, 60, 52, 24, 12, None, (3, 4), bootstrap_babies=4)])
def test_a_bootstrap_costs_its_calls_on_every_chain(ring: Ring, paired: bool, slots: int) -> None:
    builder = Builder("bootstrap", Stage.MANAGED)
    builder.set_ring(ring)
    level = ring.bootstrap_input_level
    x = builder.input("x", slots=ring.slots, level=level, log_scale=float(ring.scale_bits), low=-1.0, high=1.0)
    program = builder.finish({"y": write_bootstrap(builder, ring, x, slots, paired, UNKNOWN)})
    calls = sum(node_calls(program).values(), Counter())
    assert bootstrap_ms(ring, slots, BUILT_IN, paired) == pytest.approx(total_ms(calls, program, BUILT_IN))


def test_work_is_priced_from_any_level() -> None:
    work, prices = Work.products(3, 5), prices_on((RING,), BUILT_IN)
    assert sum(number for (name, _, _), number in work.calls if name == "mul") == 5
    alone = [prices.at(name, 7 - below, size) * number for (name, below, size), number in work.calls]
    assert prices.ms(work.calls, 7) == pytest.approx(sum(alone))
    # In a lower part a call costs what it costs there; values are switched where they come down to it.
    both = prices_on((RING, LOWER), BUILT_IN)
    assert both.at("rotate", 16) == prices_on((LOWER,), BUILT_IN).at("rotate", 16)
    assert both.at("rotate", 17) == prices.at("rotate", 17)
    assert both.at("switch_chain", 16) > 0 == both.at("switch_chain", 15) == prices.at("switch_chain", 16)
