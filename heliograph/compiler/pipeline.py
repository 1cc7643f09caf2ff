"""The whole pipeline on one screen. A sequence of passes returns its trail; its result is the trail's last program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from heliograph.ckks.ring import Ring
from heliograph.compiler.options import Options
from heliograph.compiler.planning.plan import sample_inputs
from heliograph.compiler.reporting.held_out import observe
from heliograph.interpret import interpret_many
from heliograph.ir import Array, Program, Stage
from heliograph.ir.bootstraps.asked import bootstraps
from heliograph.ir.verify import verify
from heliograph.passes.base import Step, Trail, apply, run
from heliograph.passes.bootstraps.lower_bootstraps import LowerBootstraps
from heliograph.passes.bootstraps.pair_bootstraps import PairBootstraps
from heliograph.passes.bootstraps.place_bootstraps import PlaceBootstraps
from heliograph.passes.levels.lower_polynomials import LowerPolynomials
from heliograph.passes.levels.place_chains import PlaceChains
from heliograph.passes.levels.plan_levels import PlanLevels
from heliograph.passes.levels.reside import Reside
from heliograph.passes.levels.schedule import Schedule
from heliograph.passes.levels.select_keys import SelectKeys
from heliograph.passes.packing.clean_slots import CleanSlots
from heliograph.passes.packing.fit_slots import FitSlots
from heliograph.passes.packing.pack import Pack
from heliograph.passes.packing.pair_samples import PairSamples
from heliograph.passes.polynomials.approximate import Approximate
from heliograph.passes.polynomials.approximation import Approximations
from heliograph.passes.polynomials.fold_scaling import FoldScaling
from heliograph.passes.ranges.output_ranges import Flood, OutputRanges
from heliograph.passes.tensors.channels_first import ChannelsFirst, has_tokens
from heliograph.passes.tensors.compose_relu import ComposeReLU
from heliograph.passes.tensors.expand import Expand
from heliograph.passes.tensors.fuse_linear import FuseLinear
from heliograph.passes.tensors.scale_outputs import ScaleOutputs, output_scales
from heliograph.passes.tensors.simplify import Simplify
from heliograph.passes.tensors.split_heads import SplitHeads, has_many_heads

# The name of the step in which bootstraps are found to compute activations: the polynomials become their series.
MERGED = "merge-activations"
# The size of the outputs is measured on this many samples.
_SCALE_SAMPLES = 16
# The names of the passes that leave a step, in the order in which they run; few programs need all of them.
PASSES: tuple[str, ...] = (
    ScaleOutputs.name,
    Simplify.name,
    SplitHeads.name,
    Expand.name,
    ChannelsFirst.name,
    ComposeReLU.name,
    FuseLinear.name,
    Approximate.name,
    FoldScaling.name,
    MERGED,
    Pack.name,
    FitSlots.name,
    PlaceBootstraps.name,
    PairBootstraps.name,
    PairSamples.name,
    LowerPolynomials.name,
    PlanLevels.name,
    LowerBootstraps.name,
    SelectKeys.name,
    PlaceChains.name,
    Schedule.name,
)


def scale_passes(program: Program) -> Trail:
    """Divide large outputs by a power of two; no step if no output is large, or for a program on slots."""
    if program.stage is not Stage.TENSOR:
        return ()
    with np.errstate(all="ignore"):
        outputs = interpret_many(program, sample_inputs(program, _SCALE_SAMPLES))
    scales = output_scales(program, outputs)
    return run((ScaleOutputs(scales),), program) if scales else ()


def scaled(program: Program) -> Program:
    """The program after `scale_passes`."""
    trail = scale_passes(program)
    return trail[-1].program if trail else program


def fused_program(program: Program, options: Options) -> Program:
    """The program of few linear maps and activations that is approximated."""
    return linear_passes(scaled(program), options.errors)[-1].program


def front_passes(program: Program, options: Options) -> Trail:
    """From tensors to polynomials on [-1, 1]; independent of the ring."""
    scaling = scale_passes(program)
    linear = linear_passes(scaling[-1].program if scaling else program, options.errors)
    fused = linear[-1].program
    seen = observe(fused, options)
    return (*scaling, *linear, *polynomial_passes(seen.known))


def linear_passes(program: Program, errors: Mapping[str, float] | None = None, products: bool = False) -> Trail:
    """From tensors to few linear maps and activations; `errors` are for composed ReLUs (`Options.errors`), `products` is
    that of `Expand`.
    """
    composed = (ComposeReLU(errors),) if errors else ()
    tokens = (ChannelsFirst(),) if has_tokens(program) else ()
    heads = (SplitHeads(),) if has_many_heads(program) else ()
    return run((Simplify(), *heads, Expand(products), *tokens, *composed, FuseLinear()), program)


def polynomial_passes(table: Approximations, name: str = Approximate.name) -> Trail:
    """From the approximations of a fused program to polynomials on [-1, 1]; `name` is that of the first step."""
    written = verify(table.write(), after=name)
    return (Step(name, written), *run((FoldScaling(),), written))


def range_passes(program: Program, outputs: Sequence[Array], calibrated: int) -> Program:
    """The polynomial program with the ranges of its outputs. Its operations stay as they are, so there is no step."""
    return apply(OutputRanges(program.stage, outputs, calibrated), program)


def back_passes(
    program: Program, ring: Ring, options: Options, *, packed: Trail = (), exact_rotations: bool = False
) -> Trail:
    """From polynomials to a scheduled program on one ring; continues the trail `packed` if it is given."""
    packed = packed or pack_passes(program, ring, options)
    return (*packed, *lower_passes(packed[-1].program, ring, options, exact_rotations=exact_rotations))


def pack_passes(program: Program, ring: Ring, options: Options) -> Trail:
    """From polynomials on tensors (or on the slots of an author's program) to polynomials on the ring's slots."""
    trail = unproved_pack_passes(program, ring, options)
    if program.stage is not Stage.PACKED:
        CleanSlots().run(trail[-1].program)
    return trail


def unproved_pack_passes(program: Program, ring: Ring, options: Options) -> Trail:
    """`pack_passes` without the proof that slots are clean, which takes most of its time: for plans that never run."""
    if program.stage is Stage.PACKED:
        return run((FitSlots(ring),), program)
    return run((Pack(ring, options.costs, options.batch),), program)


def pair_samples_passes(packed: Program) -> Trail:
    """From a program on slots, with its bootstraps placed, to one for twice as many samples."""
    return run((PairSamples(),), packed)


def pair_passes(placed: Program, ring: Ring, options: Options) -> Trail:
    """Pair bootstraps; no step if that is not faster."""
    trail = run((PairBootstraps(ring, options.costs),), placed)
    return () if trail[-1].program is placed else trail


def lower_passes(
    program: Program,
    ring: Ring,
    options: Options,
    output_shift: int = 0,
    bootstrapping: tuple[Ring, ...] = (),
    exact_rotations: bool = False,
) -> Trail:
    """From polynomials on slots to a scheduled program on one ring; `bootstrapping` as in `SelectKeys`,
    `exact_rotations` as in `PlanLevels`.
    """
    lowered = run((LowerPolynomials(),), program)
    made = level_passes(lowered[-1].program, ring, options, output_shift, bootstrapping, exact_rotations)
    return (*lowered, *made)


def level_passes(
    program: Program,
    ring: Ring,
    options: Options,
    output_shift: int = 0,
    bootstrapping: tuple[Ring, ...] = (),
    exact_rotations: bool = False,
) -> Trail:
    """From slots to a scheduled program on one ring; `bootstrapping` as in `SelectKeys`, `exact_rotations` as in
    `PlanLevels`.
    """
    planned = run((PlanLevels(ring, output_shift, exact_rotations),), program)
    if any(bootstraps(planned[-1].program)):
        planned = (*planned, *run((LowerBootstraps(ring, bootstrapping),), planned[-1].program))
    keys = SelectKeys(ring, options.key_bytes, options.costs, bootstrapping)
    return (*planned, *run((keys, PlaceChains(), Schedule()), planned[-1].program))


def reside_pass(program: Program, key_bytes: int) -> Program:
    """The scheduled program with at most this many bytes of keys in memory. Its operations stay as they are."""
    return apply(Reside(key_bytes), program)


def flood_pass(program: Program, std: float) -> Program:
    """The scheduled program with noise on its outputs, which the server adds. Its operations stay as they are."""
    return apply(Flood(std), program)
