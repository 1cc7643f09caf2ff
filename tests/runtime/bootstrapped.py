"""A program written by hand that bootstraps and works in a lower part of its chain, on a ring without security."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
from runtime.support import toy_artifact

from heliograph.artifact.artifact import Artifact
from heliograph.ckks.chains import Chain
from heliograph.ckks.parameters import Parameters
from heliograph.ckks.ring import Ring
from heliograph.ir import Array, Builder, CipherType, Program, Stage
from heliograph.ir.interface import Interface, TensorSpec
from heliograph.ir.maps.layout import Layout
from heliograph.ir.verify import verify
from heliograph.passes.bootstraps.lower_bootstraps import LowerBootstraps
from heliograph.passes.levels.place_chains import PlaceChains
from heliograph.passes.levels.schedule import Schedule
from heliograph.passes.levels.select_keys import SelectKeys, _uses

# CoeffsToSlots and SlotsToCoeffs take two levels each; five levels are left after a bootstrap.
RING = Ring(11, 60, 52, 16, 4, None, (2, 2), bootstrap_babies=4)
PERIOD = 256
LOWER = 4
LOG_SCALE = 52.0 + 1e-3
# Chains of coarser scales.
FULL = Ring(11, 39, 35, 20, 7, None, (3, 3))
COARSE = Ring(12, 36, 32, 18, 4, None, (3, 2))


@functools.cache
def program(chains: bool = True, returns_to: int = RING.bootstrap_level) -> Program:
    """With m = x * x - rotate(x, 3): the square of rotate(bootstrap(m), 5), and rotate(m, 3).

    x enters at the top of the lower part of the chain, which has keys of its own; m is bootstrapped into the whole chain,
    its square is brought down again. A part lower still has keys for the last rotation and the end of SlotsToCoeffs.
    """
    slots = RING.slots
    builder = Builder("refreshed", Stage.MANAGED)
    builder.set_ring(RING)
    layout = Layout((PERIOD,), slots, PERIOD)
    x = builder.input("x", slots=slots, chunk=0, level=LOWER, log_scale=LOG_SCALE)
    square = builder.op("rescale", (builder.op("relinearize", (builder.op("mul_ct", (x, x)),)),))
    one = builder.constant(np.ones(1), "one")
    turned = builder.op("rotate", (x,), amount=3)
    turned = builder.op("rescale", (builder.op("mul_plain", (turned,), value=one, plain_log_scale=LOG_SCALE),))
    mixed = builder.op("sub_ct", (square, turned))
    fresh = builder.op("bootstrap", (mixed,), slots=PERIOD, level=returns_to)
    fresh = builder.op("rotate", (fresh,), amount=5)
    product = builder.op("rescale", (builder.op("relinearize", (builder.op("mul_ct", (fresh, fresh)),)),))
    assert isinstance(product.type, CipherType)
    product = builder.op("level_drop", (product,), levels=product.type.level)
    low = builder.op("level_drop", (mixed,), levels=2)
    low = builder.op("level_drop", (builder.op("rotate", (low,), amount=3),), levels=1)
    builder.interface = Interface(
        (TensorSpec("x", (PERIOD,), layout),), tuple(TensorSpec(f"y{i}", (PERIOD,), layout) for i in range(2))
    )
    lower = (RING.lower(LOWER, 2), RING.lower(1, 1)) if chains else ()
    return placed(LowerBootstraps(RING).run(builder.finish([product, low])), *lower)


def placed(program: Program, *lower: Ring) -> Program:
    """A program whose bootstraps are written out, executable, with keys in these lower parts of its chain."""
    ring, uses = program.ring, _uses(program.nodes, program.ring.slots)
    chains = SelectKeys(ring)._split(uses, [ring, *lower])
    made = replace(program, parameters=replace(program.planned, chains=chains))
    return verify(Schedule().run(PlaceChains().run(made)))


def sample(seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-0.6, 0.6, PERIOD)


def meaning(x: Array) -> list[Array]:
    mixed = x * x - np.roll(x, -3)
    return [np.roll(mixed, -5) ** 2, np.roll(mixed, -3)]


@functools.cache
def artifact() -> Artifact:
    """The program with a report that was made for another one: the runtime takes only some bounds from it."""
    return Artifact(program(), toy_artifact().report, {})


def only_bootstrap(ring: Ring, period: int) -> Program:
    """One bootstrap of a value with that period, not written out, to the top of what it can return to, and down again."""
    builder = Builder("only", Stage.MANAGED)
    builder.set_ring(ring)
    layout = Layout((period,), ring.slots, period)
    x = builder.input(
        "x", slots=ring.slots, chunk=0, level=ring.bootstrap_input_level, log_scale=float(ring.scale_bits)
    )
    fresh = builder.op("bootstrap", (x,), slots=period, level=ring.bootstrap_level)
    builder.parameters = Parameters((Chain(ring, (), True),))
    builder.interface = Interface((TensorSpec("x", (period,), layout),), (TensorSpec("y", (period,), layout),))
    return builder.finish([builder.op("level_drop", (fresh,), levels=ring.bootstrap_level)])


def lowered(program: Program, *lower: Ring, key_bytes: int | None = None) -> Program:
    """The program with its bootstraps written out, executable."""
    ring, made = program.ring, program
    for each in (
        LowerBootstraps(ring, lower),
        SelectKeys(ring, key_bytes, bootstrapping=lower),
        PlaceChains(),
        Schedule(),
    ):
        made = verify(each.run(made), after=each.name)
    return made
