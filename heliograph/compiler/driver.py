"""From a program to an artifact."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace

from heliograph.artifact.artifact import Artifact
from heliograph.compiler.arguments import require_program
from heliograph.compiler.bill import bill, flooded, with_output_ranges
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import Watch, dumper, linear_passes, polynomial_passes
from heliograph.compiler.places import portable, told_by
from heliograph.compiler.plan import sample_inputs
from heliograph.compiler.planner import make_plan
from heliograph.compiler.unseen import Observation, observe
from heliograph.errors import PlanningError, ProgramError
from heliograph.interpret import interpret_many
from heliograph.ir import Node, Program, Stage, TensorType
from heliograph.ir.verify import verify
from heliograph.passes.approximate import degrees_by_layer
from heliograph.passes.calibrate import Calibrate
from heliograph.report.text import Report

_ERROR_SAMPLES = 64
# Fewer samples kept apart than this, and it is worth a warning.
_FEW_APART = 8


def compile(program: Program, options: Options | None = None, *, watch: Watch | None = None) -> Artifact:
    """The artifact of a program on tensors or on slots: polynomials, packing, levels, keys and order decided, and the bill.

    Raises ProgramError (PlanningError where no parameters do) with the layer and its line. The same program, options and
    prices give the same artifact on one machine, byte for byte. Between processors, which sum in other orders, they nearly
    always do: what comes out of BLAS and LAPACK is rounded (rounding.py). Whoever needs one fingerprint in several places
    ships the artifact and does not compile it again. Paths of sources are kept as compiler/places.py has them.
    `watch(name, program)` sees the program after each pass (report/explain.py has one that explains).
    """
    require_program(program, "compile")
    if options is not None and not isinstance(options, Options):
        raise ProgramError(f"options is {type(options).__name__}, not Options", hint="hg.Options(degree=15)")
    last = ["the linear passes"]

    def followed(name: str, made: Program) -> None:
        last[0] = f"what follows {name}"
        if watch is not None:
            watch(name, made)

    try:
        return _compile(program, options or Options(), followed)
    except MemoryError as error:
        largest = max((node for node in program.nodes), key=_size)
        raise PlanningError(
            f"compiling {program.name} took more memory than there is",
            where=largest.loc,
            why=f"it ended in {last[0]}{f' ({error})' if str(error) else ''}; linear layers become sparse matrices, and the "
            f"largest value of the program, {largest.op}, has {_size(largest)} elements",
            hint="smaller images or fewer channels, or a machine with more memory",
        ) from None


def _size(node: Node) -> int:
    return node.type.size if isinstance(node.type, TensorType) else 0


def _compile(program: Program, options: Options, watch: Watch) -> Artifact:
    """As `compile`, of what has been looked at, with places in it that an artifact keeps."""
    if program.stage not in (Stage.TENSOR, Stage.PACKED) or program.parameters is not None:
        raise ProgramError(
            f"compile takes a program as it was written, not one at stage {program.stage.value}",
            hint="pass what trace or parse gave",
        )
    begun = time.perf_counter()
    program, before = portable(program)
    with told_by(before):
        return _made(program, options, watch, begun)


def _made(program: Program, options: Options, watch: Watch, begun: float) -> Artifact:
    verify(program)
    dump = dumper(options.dump_ir)
    stages = {program.stage.value: str(program)}

    def seen(name: str, made: Program) -> None:
        dump(name, made)
        watch(name, made)
        stages[made.stage.value] = str(made)

    fused = linear_passes(program, seen) if program.stage is Stage.TENSOR else program
    options = replace(options, degrees=degrees_by_layer(fused, options.degrees))
    if program.stage is Stage.PACKED:
        polynomial, observation = fused, Observation(Calibrate().run(fused))
    else:
        observation = observe(fused, options)
        polynomial = polynomial_passes(fused, options, seen, observation.observed)
        stages["tensor"] = str(program)
    # Errors are measured on samples that had no part in the ranges, where there are some.
    samples = (
        list(observation.unseen.samples) if observation.trial is not None else sample_inputs(program, _ERROR_SAMPLES)
    )
    calibrated = program.calibration[0].shape[0] if program.calibration else 0
    polynomial = with_output_ranges(polynomial, interpret_many(fused, samples), calibrated)
    plan = make_plan(polynomial, options, seen)
    if options.flood is not None:
        plan = replace(plan, program=flooded(plan.program, options.flood))
    stages.pop("executable", None)
    unseen = observation.unseen
    if unseen.setting and unseen.apart < _FEW_APART and any(entry.source == "observed" for entry in polynomial.ranges):
        warnings.warn(
            f"{program.name}: {unseen.setting + unseen.apart} calibration samples say little of how far other inputs reach; "
            "give a few hundred, or an input_range from which the ranges are proved",
            stacklevel=4,
        )
    report = Report(bill(program, fused, polynomial, plan, options, observation, samples))
    return Artifact(plan.program, report, stages, time.perf_counter() - begun)
