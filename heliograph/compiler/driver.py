"""From a program to an artifact."""

from __future__ import annotations

import time
from dataclasses import replace

from heliograph.compiler.artifact import Artifact
from heliograph.compiler.bill import bill, flooded, with_output_ranges
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import Watch, dumper, linear_passes, polynomial_passes
from heliograph.compiler.plan import sample_inputs
from heliograph.compiler.planner import make_plan
from heliograph.compiler.report import Report
from heliograph.errors import ProgramError
from heliograph.interpret import interpret_many
from heliograph.ir import Program, Stage
from heliograph.ir.verify import verify
from heliograph.passes.approximate import degrees_by_layer
from heliograph.passes.calibrate import Calibrate

_ERROR_SAMPLES = 64


def compile(program: Program, options: Options | None = None, *, watch: Watch | None = None) -> Artifact:
    """The artifact of a program on tensors or on slots: polynomials, packing, levels, keys and order decided, and the bill.

    Raises ProgramError (PlanningError where no parameters do) with the layer and its line. The same program, options and
    prices give the same artifact on one machine, byte for byte. Between processors, which sum in other orders, they nearly
    always do: what comes out of BLAS and LAPACK is rounded (rounding.py). Whoever needs one fingerprint in several places
    ships the artifact and does not compile it again. `watch(name, program)` sees the program after each pass
    (compiler/explain.py has one that explains).
    """
    options = options or Options()
    if program.stage not in (Stage.TENSOR, Stage.PACKED) or "ring" in program.metadata:
        raise ProgramError(
            f"compile takes a program as it was written, not one at stage {program.stage.value}",
            hint="pass what trace or parse gave",
        )
    begun = time.perf_counter()
    verify(program)
    dump = dumper(options.dump_ir)
    stages = {program.stage.value: str(program)}

    def seen(name: str, made: Program) -> None:
        dump(name, made)
        if watch is not None:
            watch(name, made)
        stages[made.stage.value] = str(made)

    fused = linear_passes(program, seen) if program.stage is Stage.TENSOR else program
    options = replace(options, degrees=degrees_by_layer(fused, options.degrees))
    polynomial, observed = fused, Calibrate().run(fused)
    if program.stage is Stage.TENSOR:
        polynomial = polynomial_passes(fused, options, seen, observed)
        stages["tensor"] = str(program)
    samples = sample_inputs(program, _ERROR_SAMPLES)
    polynomial = with_output_ranges(polynomial, interpret_many(polynomial, samples))
    if options.flood is not None:
        polynomial = flooded(polynomial, options.flood)
    plan = make_plan(polynomial, options, seen)
    stages.pop("executable", None)
    report = Report(bill(program, fused, polynomial, plan, options, observed, samples))
    return Artifact(plan.program, report, stages, time.perf_counter() - begun)
