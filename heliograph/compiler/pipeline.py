"""The pipeline, whole, on one screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from heliograph.ckks.ring import Ring
from heliograph.compiler.options import Options
from heliograph.compiler.unseen import approximate_pass, observe
from heliograph.ir import Node, Program, Stage
from heliograph.passes.base import Transform, apply
from heliograph.passes.calibrate import Observed
from heliograph.passes.clean_slots import CleanSlots
from heliograph.passes.expand import Expand
from heliograph.passes.fit_slots import FitSlots
from heliograph.passes.fold_scaling import FoldScaling
from heliograph.passes.fuse_linear import FuseLinear
from heliograph.passes.lower_polynomials import LowerPolynomials
from heliograph.passes.pack import Pack
from heliograph.passes.plan_levels import PlanLevels
from heliograph.passes.schedule import Schedule
from heliograph.passes.select_keys import SelectKeys
from heliograph.passes.simplify import Simplify

Watch = Callable[[str, Program], None]


def front_passes(program: Program, options: Options, watch: Watch) -> Program:
    """From tensors to polynomials on [-1, 1]; independent of the ring."""
    program = linear_passes(program, watch)
    return polynomial_passes(program, options, watch, observe(program, options).observed)


def linear_passes(program: Program, watch: Watch) -> Program:
    """From tensors to few linear maps and activations."""
    for transform in (Simplify(), Expand(), FuseLinear()):
        program = _run(transform, program, watch)
    return program


def polynomial_passes(program: Program, options: Options, watch: Watch, observed: Mapping[Node, Observed]) -> Program:
    """From fused tensor programs to polynomials on [-1, 1]."""
    program = _run(approximate_pass(options, observed), program, watch)
    return _run(FoldScaling(), program, watch)


def back_passes(program: Program, ring: Ring, options: Options, watch: Watch) -> Program:
    """From polynomials to a scheduled program on one ring."""
    return lower_passes(pack_passes(program, ring, options, watch), ring, options, watch)


def pack_passes(program: Program, ring: Ring, options: Options, watch: Watch) -> Program:
    """From polynomials on tensors (or on as many slots as their author wrote) to polynomials on the ring's slots."""
    if program.stage is Stage.PACKED:
        return _run(FitSlots(ring), program, watch)
    program = _run(Pack(ring, options.costs, options.batch), program, watch)
    CleanSlots().run(program)
    return program


def lower_passes(program: Program, ring: Ring, options: Options, watch: Watch, output_shift: int = 0) -> Program:
    """From polynomials on slots to a scheduled program on one ring."""
    return level_passes(_run(LowerPolynomials(), program, watch), ring, options, watch, output_shift)


def level_passes(program: Program, ring: Ring, options: Options, watch: Watch, output_shift: int = 0) -> Program:
    """From slots to a scheduled program on one ring."""
    for transform in (PlanLevels(ring, output_shift), SelectKeys(ring, options.key_bytes, options.costs), Schedule()):
        program = _run(transform, program, watch)
    return program


def _run(transform: Transform, program: Program, watch: Watch) -> Program:
    program = apply(transform, program)
    watch(transform.name, program)
    return program


def dumper(folder: str | Path | None) -> Watch:
    """Writes the program after each pass into a numbered file; does nothing without a folder."""
    if folder is None:
        return lambda name, program: None
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    count = 0

    def watch(name: str, program: Program) -> None:
        nonlocal count
        count += 1
        (path / f"{count:02d}-{name}.ir").write_text(str(program))

    return watch
