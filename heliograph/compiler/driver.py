"""From a program to an artifact."""

from __future__ import annotations

import functools
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from heliograph.artifact.artifact import Artifact
from heliograph.compiler.arguments import program_of
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import (
    MERGED,
    flood_pass,
    linear_passes,
    polynomial_passes,
    range_passes,
    scale_passes,
)
from heliograph.compiler.places import portable, told_by
from heliograph.compiler.planning.allocation import Allocated, allocations
from heliograph.compiler.planning.plan import Plan, sample_inputs
from heliograph.compiler.planning.planner import best_plan
from heliograph.compiler.progress import ended, listener
from heliograph.compiler.reporting.bill import CHUNK, bill, given_error, given_outputs
from heliograph.compiler.reporting.held_out import Observation, observe
from heliograph.errors import PlanningError, ProgramError, said
from heliograph.execution.interface import batch_of
from heliograph.execution.loop import Progress
from heliograph.interpret import interpret_many
from heliograph.ir import Array, Node, Program, Stage, TensorType
from heliograph.ir.verify import verify
from heliograph.passes.base import Step, Trail, begins, listening
from heliograph.passes.polynomials.approximate import Approximate, degrees_by_layer
from heliograph.passes.polynomials.approximation import Approximations, merged_entries
from heliograph.passes.polynomials.lower_functions import ONE_HOT_BITS
from heliograph.passes.ranges.calibrate import Calibrate
from heliograph.records import named
from heliograph.report.text import Report

_LOG = logging.getLogger(__name__)

Watch: TypeAlias = "Callable[[str, Program], None]"

# With fewer held-out samples than this, a warning is issued.
_FEW_APART = 8
# Fewer samples than this correct nothing.
_FEWEST_CORRECT = 32


@named(Options)
def compile(
    program: Any,
    options: Options | None = None,
    *,
    watch: Watch | None = None,
    progress: Progress | None = None,
    example_input: Any = None,
    calibration: Any = None,
    input_range: Any = None,
) -> Artifact:
    """The artifact of a program on tensors or on slots: polynomials, packing, levels, keys and order, and the bill.

    In place of a program, a PyTorch module in evaluation mode may be given, with `example_input`, `calibration` and
    `input_range` as for `trace`, or a fitted estimator of scikit-learn with calibration samples.

    `watch(name, program)` is called with the program after each pass, once all passes of its part of the pipeline have
    run, and only for the chosen plan (report/explain.py has a `watch` that explains).

    `progress(stage, done, total)` is called when a pass begins, as `("compiling", place, passes)`, and for each plan that
    is tried in a ring, as `("plans in N = 2^14", number, 0)`: how many there will be is not known.

    On one machine, the same program, options and costs give the same artifact, byte for byte. Across processors, which
    sum in different orders, they nearly always do: results of BLAS and LAPACK are rounded (rounding.py). If you need
    the same fingerprint in several places, ship the artifact instead of compiling it again. compiler/places.py
    describes how source paths are stored.

    Raises ProgramError (PlanningError if no parameters are large enough) with the layer and its line, and the errors of
    `trace`.
    """
    if options is not None and not isinstance(options, Options):
        raise ProgramError(
            f"options is {type(options).__name__}, not Options",
            hint="hg.Options(degree=15)"
            if isinstance(program, Program)
            else "hg.Options(degree=15); an example of a module's inputs and its samples have names: "
            "hg.compile(model, example_input=x, calibration=samples)",
        )
    program = program_of(program, "compile", example_input, calibration, input_range)
    last = ["the linear passes"]

    def reached(name: str) -> None:
        last[0] = f"what follows {name}"

    try:
        with listening(None if progress is None else listener(progress)):
            artifact = _compile(program, options or Options(), watch or (lambda name, made: None), reached)
    except MemoryError as error:
        largest = max((node for node in program.nodes), key=_size)
        raise PlanningError(
            f"compiling {program.name} took more memory than there is",
            where=largest.loc,
            why=f"it ended in {last[0]}{f' ({error})' if str(error) else ''}; linear layers become sparse matrices, and the "
            f"largest value of the program, {largest.op}, has {_size(largest)} elements",
            hint="smaller images or fewer channels, or a machine with more memory",
        ) from None
    if progress is not None:
        ended(progress)
    return artifact


def _size(node: Node) -> int:
    return node.type.size if isinstance(node.type, TensorType) else 0


def _compile(program: Program, options: Options, watch: Watch, reached: Callable[[str], None]) -> Artifact:
    """`compile` for checked arguments; source paths become portable (places.py).

    `reached` is called with the name of each pass that has run, even if its plan is not chosen.
    """
    if program.stage not in (Stage.TENSOR, Stage.PACKED) or program.parameters is not None:
        raise ProgramError(
            f"compile takes a program as it was written, not one at stage {program.stage.value}",
            hint="pass what trace or parse gave",
        )
    _refuse_conflicts(program, options)
    begun = time.perf_counter()
    program, before = portable(program)
    dump = dumper(options.dump_ir)

    def seen(name: str, made: Program) -> None:
        dump(name, made)
        watch(name, made)

    with told_by(before):
        verify(program)
        scaling = scale_passes(program)
        scaled = scaling[-1].program if scaling else program
        ways = _lowerings(scaled, options)
        fused = ways[-1].trail[-1].program if ways[-1].trail else program
        options = replace(options, degrees=degrees_by_layer(fused, options.degrees))
        variants = iter((None,)) if options.allocate is None else allocations(scaled, fused, options)
        several = options.allocate == "plan" or len(ways) > 1
        # The best plan, once there is one, and its steps.
        best: list[tuple[Artifact, list[Step]]] = []
        failed: PlanningError | None = None
        for variant, way in _tries(variants, ways, best):
            # If there may be several plans, steps are kept until one of them is chosen.
            kept: list[Step] = []

            def followed(name: str, made: Program, kept: list[Step] = kept) -> None:
                reached(name)
                if several:
                    kept.append(Step(name, made))
                else:
                    seen(name, made)

            least = _ms_a_sample(best[0][0]) if best else math.inf
            # Otherwise the number of samples follows from the plan.
            known_ms = least * options.batch if isinstance(options.batch, int) else math.inf
            try:
                made = _made(program, scaling, way, options, variant, followed, begun, known_ms)
            except PlanningError as error:
                _LOG.debug("%s: no plan: %s", program.name, error.what)
                failed = failed or error
                continue
            _log(logging.DEBUG, "planned", made)
            if _ms_a_sample(made) < least:
                best[:] = [(made, kept)]
        if not best:
            assert failed is not None
            raise failed
        ((artifact, steps),) = best
        for step in steps:
            seen(*step)
        _log(logging.INFO, "compiled", artifact)
        return artifact


def _log(level: int, what: str, artifact: Artifact) -> None:
    figures = artifact.report.figures
    _LOG.log(
        level, "%s: %s for N = %d, %d levels, %.3g ms a run, after %.2f s", artifact.name, what, figures.ring_dim,
        figures.levels, figures.predicted.evaluate_ms, artifact.compile_s,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Lowering:
    """A way to few linear maps and activations: the passes, and `products` of `Expand`."""

    trail: Trail = ()
    products: bool = False


def _lowerings(program: Program, options: Options) -> list[_Lowering]:
    """The lowerings that are worth planning; one without passes for a program on slots.

    Trees have two, of which products along paths (passes/tensors/tree_products.py) pay only for many samples: for one of
    100 trees of depth 6, they are predicted to take seven times as long.
    """
    if program.stage is not Stage.TENSOR:
        return [_Lowering()]
    made = [_Lowering(linear_passes(program, options.errors))]
    many = options.batch != 1 or options.objective == "throughput"
    if many and any(node.op == "tree_ensemble" and node.type.secret for node in program.nodes):
        # The faster way for large batches comes first: the other one is then given up as soon as it is slower.
        made.insert(0, _Lowering(linear_passes(program, options.errors, products=True), products=True))
    return made


def _tries(
    variants: Iterable[Allocated | None], ways: Sequence[_Lowering], best: Sequence[tuple[Artifact, list[Step]]]
) -> Iterator[tuple[Allocated | None, _Lowering]]:
    """The allocations and lowerings to plan, until no other allocation can be faster than the best plan so far."""
    for variant in variants:
        for way in ways:
            yield variant, way
        if not best or not best[0][0].report.figures.bootstraps:
            # Only the cost of bootstraps is unknown while degrees are allocated.
            return


def _ms_a_sample(artifact: Artifact) -> float:
    return artifact.report.figures.predicted.evaluate_ms / batch_of(artifact.program)


def _refuse_conflicts(program: Program, options: Options) -> None:
    """Raise a ProgramError if options contradict each other or the program, before any other work."""
    if options.objective is not None and options.batch != 1:
        raise PlanningError(
            "a batch and an objective were given", where="Options.objective", hint="leave one of them out"
        )
    if options.allocate is not None and program.stage is Stage.PACKED:
        raise ProgramError(
            "a program on slots has its polynomials: there are no degrees to allocate", where="Options.allocate"
        )
    if options.correct and program.stage is Stage.PACKED:
        raise ProgramError("a program on slots has no exact values to correct its own by", where="Options.correct")
    if options.correct and not (program.calibration and len(program.calibration[0]) >= _FEWEST_CORRECT):
        raise ProgramError(
            "linear maps are corrected by what samples show, and there are too few",
            where="Options.correct",
            why=f"it takes at least {_FEWEST_CORRECT}",
            hint=said("{pass calibration=samples to trace|give --calibration FILE}"),
        )
    if options.bootstrap is False and any(node.op == "bootstrap" for node in program.nodes):
        raise PlanningError(
            said("the program bootstraps, and {bootstrap=False} was asked for"), where="Options.bootstrap"
        )


def _made(
    program: Program,
    scaling: Trail,
    lowering: _Lowering,
    options: Options,
    allocated: Allocated | None,
    watch: Watch,
    begun: float,
    faster_than: float,
) -> Artifact:
    """The artifact after the passes up to the fused program, with the degrees of an allocation if there is one.

    Raises PlanningError if there is no plan, or none that takes less than `faster_than` milliseconds.
    """
    # The last program of each stage, for the artifact.
    last = {program.stage: program}

    def show(trail: Trail) -> None:
        for name, made in trail:
            watch(name, made)
            last[made.stage] = made

    written = program
    show(scaling)
    fused = program = scaling[-1].program if scaling else program
    allocation, shown, linear = None, None, lowering.trail
    if allocated is not None:
        options, allocation, shown = allocated.options, allocated.record, allocated.calibrated
        if options.errors:
            shown = None
            # The allocation gave errors for single ReLUs, so these are composed.
            linear = linear_passes(program, options.errors, lowering.products)
    if linear:
        fused = linear[-1].program
    show(linear)
    if program.stage is Stage.PACKED:
        Calibrate().run(fused)
        polynomial, observation = fused, Observation(None)
    else:
        begins(Approximate.name, True)
        observation = observe(fused, options, shown)
        trail = polynomial_passes(observation.known)
        show(trail)
        polynomial = trail[-1].program
        last[Stage.TENSOR] = written
    # Every program is interpreted once on the same samples. Errors are measured on held-out samples, if there are any.
    first = sample_inputs(program, CHUNK)
    calibrated = program.calibration[0].shape[0] if program.calibration else 0
    given = given_outputs(program) if calibrated and program.stage is Stage.TENSOR else interpret_many(program, first)

    def measured(outputs: Sequence[Array]) -> list[Array]:
        """The outputs on the samples on which errors are measured."""
        return [out[:CHUNK] if observation.trial is None else out[list(observation.unseen.places)] for out in outputs]

    outputs = measured(observation.outputs or (given if fused is program else interpret_many(fused, first)))
    polynomial = range_passes(polynomial, outputs, calibrated)
    # A program on slots is its own polynomial program.
    planned = given if fused is program else interpret_many(polynomial, first)
    precise = replace(options, precision_bits=_bits(written, options))

    def written_as(table: Approximations) -> Program:
        """The polynomial program of another table."""
        return replace(polynomial_passes(table)[-1].program, interface=polynomial.interface)

    @functools.cache
    def offered() -> Program:
        """The polynomial program with the series that bootstraps may compute in place of polynomials."""
        if not options.bootstrap_activations or observation.table is None:
            return polynomial
        return written_as(observation.table.offered)

    plan = best_plan(polynomial, precise, planned, offered, faster_than)
    entries = merged_entries(plan.program)
    if entries and options.correct:
        # Corrections are fitted to what is computed, which only a plan tells.
        observation = observation.corrected(options, entries)
        trail = polynomial_passes(observation.known)
        show(trail)
        polynomial = range_passes(trail[-1].program, outputs, calibrated)
        planned = interpret_many(polynomial, first)
        offered.cache_clear()
        plan = best_plan(polynomial, precise, planned, offered, faster_than)
        entries = merged_entries(plan.program)
    if entries:
        table = observation.known.offered.merged(entries)
        merged = Step(MERGED, written_as(table))
        show((merged,))
        polynomial = range_passes(merged.program, outputs, calibrated)
        plan = _told(plan, table, polynomial)
        observation = observation.merged(table, options.samples_apart)
        planned = interpret_many(polynomial, first)
    show(plan.trail)
    stages = {stage.value: str(made) for stage, made in last.items() if stage is not Stage.EXECUTABLE}
    if options.flood is not None:
        plan = replace(plan, program=flood_pass(plan.program, options.flood))
    unseen = observation.unseen
    if unseen.setting and unseen.apart < _FEW_APART and any(entry.source == "observed" for entry in polynomial.ranges):
        warnings.warn(
            f"{program.name}: {unseen.setting + unseen.apart} calibration samples say little about how far other inputs "
            "reach; give a few hundred, or an input_range from which the ranges can be proved",
            stacklevel=5,
        )
    if observation.too_far:
        warnings.warn(
            f"{program.name}: the polynomials move the outputs of held-out samples by {observation.too_far:.0%} of their "
            "spread, whatever the degrees up to 63; more calibration samples give narrower ranges, correct=True brings "
            "layers nearer to the network's at no cost, degree=127 halves the error of each polynomial for one more level, "
            "and hg.to_torch gives a module to train with the polynomials",
            stacklevel=5,
        )
    samples = first if observation.trial is None else list(unseen.samples)
    approximate = planned if observation.trial is None else unseen.outputs
    error = given_error(program, given, polynomial, planned)
    exact = measured(given)
    # The bill's options give the same polynomials again, which do not follow the bits of an argmax.
    told = precise if precise.precision_bits == options.bits() else options
    figures = bill(program, fused, polynomial, plan, told, observation, samples, exact, approximate, error, allocation)
    report = Report(figures)
    return Artifact(plan.program, report, stages, time.perf_counter() - begun)


def _bits(program: Program, options: Options) -> float:
    """The bits of precision of the outputs, chosen or given.

    The entries of an argmax's one-hot vector come within 2**-bits of 0 and 1: the polynomials take half of that, and
    encryption a quarter.
    """
    outputs = program.outputs
    if not all(output.op == "argmax" and not output.attrs.get("index") for output in outputs):
        return options.bits()
    return options.bits(2.0 + max(float(output.attrs.get("bits", ONE_HOT_BITS)) for output in outputs))


def _told(plan: Plan, table: Approximations, polynomial: Program) -> Plan:
    """The plan with the ranges of a table in which bootstraps compute activations, and of its program's outputs."""
    known = {spec.name: spec for spec in polynomial.interface.outputs}
    outputs = tuple(
        replace(spec, low=known[spec.name].low, high=known[spec.name].high, range_source=known[spec.name].range_source)
        for spec in plan.program.interface.outputs
    )
    interface = replace(plan.program.interface, outputs=outputs)
    return replace(plan, program=replace(plan.program, ranges=table.ranges_of(plan.program), interface=interface))


def dumper(folder: str | Path | None) -> Watch:
    """A watch that writes the program after each pass into a numbered file; without a folder, it does nothing."""
    if folder is None:
        return lambda name, program: None
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    count = 0

    def watch(name: str, program: Program) -> None:
        nonlocal count
        count += 1
        (path / f"{count:02d}-{name}.ir").write_text(str(program), encoding="utf-8")

    return watch
