"""Compiles a network and a certificate into an artifact whose answers are certified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.figures import complete
from heliograph.certified.bounds import Rates, range_of, rates
from heliograph.certified.certificate import Certificate
from heliograph.certified.sampling import Sampler, run_watched
from heliograph.certified.smooth import Columns, Range, check_network, columns_of, smooth
from heliograph.compiler.arguments import require_program
from heliograph.compiler.driver import compile as compile_program
from heliograph.compiler.options import Options
from heliograph.compiler.planning.plan import simulated
from heliograph.compiler.polynomials import approximate, composed
from heliograph.errors import PlanningError, ProgramError, UnsupportedError, said
from heliograph.execution.interface import check_input
from heliograph.interpret import run_nodes
from heliograph.ir import Array, Builder, Node, Program, shape_of
from heliograph.ir.ops.table import OPS, Role, role_of
from heliograph.passes.base import apply
from heliograph.passes.polynomials.lower_functions import gap_error_for, resolved_share
from heliograph.passes.tensors.expand import Expand
from heliograph.passes.tensors.fuse_linear import FuseLinear
from heliograph.passes.tensors.simplify import Simplify
from heliograph.report.figures import Certified, Stored
from heliograph.report.text import Report

# The server's noise in an answer. The numbers of an answer are rounded, and eight deviations are one half.
_FLOOD = 1.0 / 16.0
# The error of an answer should also be a sixteenth: for 17 votes, that takes this many bits.
_PRECISION_BITS = 8.0
# Shares of the difference that may be reserved for the error of encryption.
_FOR_ENCRYPTION = (0.1, 0.3, 0.45)
# What the simulated error of differences is multiplied by, for other inputs.
_SAFETY = 2.0
_SIMULATED = 4
# The number of noisy inputs from which the polynomials' intervals are set.
_CALIBRATED = 4096
# The fewest and most samples of the smoothed program, and the most numbers in them together.
_FEWEST, _MOST, _NUMBERS = 4, 16, 4_000_000
_SCREENED = 200
# What ops are told of their operands that noise makes wrong.
_NOT_NOISY = {"tree_ensemble": ("binary", "whole")}

Progress = Callable[[str, int, int], None]


def certify(
    program: Program,
    certificate: Certificate,
    *,
    held_out: Any = None,
    of: Literal["polynomials", "network"] = "polynomials",
    options: Options | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Artifact:
    """The artifact of a smoothed classifier whose answers are certified (Phoenix, sections 6 and 7).

    `program` is a network with one encrypted input whose output are the logits of its classes; train it with noise
    (heliograph.certified.train). Its calibration samples are training inputs: they determine the range of the logits
    and the smallest difference that is resolved. `held_out` are inputs that had no part in the training, with a leading
    axis. They bound the rates at which inputs violate range and gap, and these bounds are part of xi. Without them
    every other calibration sample is held out.

    If activations become polynomials, there are two networks: the traced one and the evaluated one. By default the
    smoothed classifier of the evaluated network, whose votes are counted, is certified. With of="network", the smoothed
    classifier of the traced network is certified, and copies that the polynomials classify differently count as near a
    tie; this needs polynomials that are very close to their functions. For networks without activations that need
    approximation, both are the same.

    Comparisons, of trees for instance, become compositions of polynomials. Their gap, the distance from a threshold that
    is resolved, follows from training inputs with noise like all intervals.

    `options` are as for `compile`; `seed` is for the noise used here. The server's noise is always fresh.

    `client.answer(output)` reads an answer; `hg.read_answer` reads a decrypted or simulated one.

    Raises ProgramError for a network or certificate that does not fit, UnsupportedError for functions of several values
    (max pooling: use average pooling), PlanningError if no parameters are large enough.
    """
    require_program(program, "certify")
    check_network(program)
    options = options or Options()
    rng = np.random.default_rng(seed)
    (source,) = program.inputs if len(program.inputs) == 1 else (None,)
    if source is None:
        raise ProgramError("certify takes a network without plain inputs", where=program.inputs[0].loc)
    shape = shape_of(source)
    certificate.deviations(shape)
    training, kept = _samples(program, shape, held_out)
    if of not in ("polynomials", "network"):
        raise ProgramError(f"nothing is certified of {of!r}", hint='of="polynomials" or of="network"')
    exact, evaluated = _networks(program, certificate, training, options, rng)
    sampler = Sampler(evaluated if of == "polynomials" else exact, evaluated, certificate, rng)
    limits = range_of(sampler, evaluated, training, progress)
    made = _cheapest(evaluated, certificate, limits, sampler, training, _without_degrees(options), progress)
    found = rates(sampler, limits, kept, progress)
    record = _record(certificate, limits, made, found)
    known = made.artifact.report.figures
    stored = Stored(**{**{each.name: getattr(known, each.name) for each in fields(Stored)}, "certificate": record})
    return replace(made.artifact, report=Report(complete(made.artifact.program, stored)))


def _samples(program: Program, shape: tuple[int, ...], held_out: Any) -> tuple[Array, Array]:
    """Training inputs and held-out inputs."""
    if not program.calibration:
        raise ProgramError(
            f"{program.name} has no calibration samples",
            why="the range of the logits is set from training inputs",
            hint="hg.trace(model, example, calibration=training_inputs)",
        )
    known = _checked(program.calibration[0], shape, "calibration samples")
    if held_out is not None:
        return known, _checked(held_out, shape, "held-out inputs")
    if len(known) < 2:
        raise ProgramError("one calibration sample cannot be held out", hint="give more, or held_out inputs")
    return known[0::2], known[1::2]


def _checked(samples: Any, shape: tuple[int, ...], what: str) -> Array:
    """At least one sample of that shape, with a leading axis."""
    return check_input(what, (max(1, len(samples)) if np.ndim(samples) else 1, *shape), samples)


def _networks(
    program: Program, certificate: Certificate, training: Array, options: Options, rng: np.random.Generator
) -> tuple[Program, Program]:
    """The fused network with its exact functions, and with the evaluated polynomials (the same if it has none)."""
    exact = exact_network(program)
    for node in exact.nodes:
        if role_of(node) is Role.ALONG_ROWS and node.type.secret:
            raise UnsupportedError(
                f"certify has no proof for {node.op} inside a network",
                where=node.loc,
                why="its composition of polynomials errs more where values are close",
                hint="average pooling instead of max pooling; activations are approximated by one polynomial each",
            )
    if not any(OPS[node.op].activation is not None and node.type.secret for node in exact.nodes):
        return exact, exact
    repeats = -(-_CALIBRATED // len(training))
    drawn = Sampler(exact, exact, certificate, rng).draw((repeats * len(training), *training.shape[1:]))
    noisy = (
        np.tile(training, (repeats, *(1 for _ in training.shape[1:])))
        + certificate.deviations(training.shape[1:]) * drawn
    )
    known = replace(_without_range(program), calibration=(noisy[:_CALIBRATED],))
    evaluated = apply(FuseLinear(), approximate(known, options))
    if any(OPS[node.op].activation is not None and node.type.secret for node in evaluated.nodes):
        evaluated = composed(known, options)
    return exact, evaluated


def exact_network(program: Program) -> Program:
    """The certified network, fused into few maps and functions, for inputs with noise."""
    return apply(FuseLinear(), apply(Expand(), apply(Simplify(), _without_range(program))))


def _without_range(program: Program) -> Program:
    """The network without an input range, because no interval contains inputs with noise; and no noise is 0, 1 or whole."""
    builder = Builder(program.name, program.stage, program)
    (source,) = program.inputs
    attrs = {key: value for key, value in source.attrs.items() if key not in ("low", "high")}
    new: dict[Node, Node] = {source: builder.op("input", (), source.loc, **attrs)}
    builder.inputs.append(new[source])
    for node in program.nodes:
        if node is not source:
            known = replace(node, attrs={k: v for k, v in node.attrs.items() if k not in _NOT_NOISY.get(node.op, ())})
            new[node] = builder.copy(known, [new[operand] for operand in node.inputs])
    return builder.finish_as(program, new)


def _without_degrees(options: Options) -> Options:
    """The options for a program whose polynomials are already chosen."""
    flood = _FLOOD if options.flood is None else options.flood
    return replace(
        options,
        degree=None,
        degrees={},
        allocate=None,
        errors={},
        target_error=None,
        flood=flood,
        precision_bits=options.bits(_PRECISION_BITS),
    )


@dataclass(frozen=True, slots=True)
class _Made:
    artifact: Artifact
    gap: float
    error: float


def _cheapest(
    network: Program,
    certificate: Certificate,
    limits: Range,
    sampler: Sampler,
    training: Array,
    options: Options,
    progress: Progress | None,
) -> _Made:
    """The fastest artifact over the gaps that leave room for the error of encryption."""
    columns = columns_of(network, certificate)
    sizes = _product_sizes(network, sampler, training)
    found: list[_Made] = []
    refused: PlanningError | None = None
    for number, share in enumerate(_FOR_ENCRYPTION):
        if progress is not None:
            progress("compiling", number, len(_FOR_ENCRYPTION))
        # Half on each side of what the polynomials resolve.
        gap = (1.0 - share) * limits.gap
        half = share / 2.0 * limits.gap
        gap_error = gap_error_for(half / (gap + half))
        smoothed = smooth(
            network, certificate, replace(limits, gap=gap + half), columns, sizes, resolved_share(gap_error)
        )
        drawn = _calibration(smoothed, network, sampler, training, columns)
        try:
            artifact = compile_program(replace(smoothed, calibration=drawn), replace(options, gap_error=gap_error))
        except PlanningError as failure:
            refused = failure
            continue
        worst = simulated(artifact.program, [array[-_SIMULATED:] for array in drawn]).gap_error
        error = _SAFETY * worst * (gap + half)
        if error <= half:
            found.append(_Made(artifact, gap, error))
        else:
            refused = PlanningError(
                f"encryption moves differences of logits by {error:.2g}, and {gap:.2g} of {limits.gap:.2g} can be resolved",
                hint="a larger zeta, or a network whose logits are further apart",
            )
    if not found:
        assert refused is not None
        raise refused
    return min(found, key=lambda each: each.artifact.report.figures.predicted_ms)


def _product_sizes(network: Program, sampler: Sampler, training: Array) -> dict[Node, float]:
    """The sizes of the network's products on noisy training inputs."""
    (source,) = network.inputs
    noisy = training[:_SCREENED] + sampler.deviations * sampler.draw(training[:_SCREENED].shape)
    sizes: dict[Node, float] = {}

    def watch(node: Node, value: Array) -> None:
        if node.op == "mul" and node.type.secret:
            sizes[node] = float(np.abs(value).max())

    run_nodes(network, {source: noisy}, watch)
    return sizes


def _calibration(
    smoothed: Program, network: Program, sampler: Sampler, training: Array, columns: Columns
) -> tuple[Array, ...]:
    """A few inputs with noise for the smoothed program: the inputs whose copies are furthest from ties."""
    screened = training[:_SCREENED]
    worst = [float(np.quantile(sampler(x, sampler.certificate.n).gaps, 0.01)) for x in screened]
    order = np.argsort(worst)[::-1]
    numbers = screened[0].size * columns.width
    count = min(len(order), max(_FEWEST, min(_MOST, _NUMBERS // numbers)))
    arrays: dict[Node, list[Array]] = {node: [] for node in smoothed.inputs}
    for place in order:
        drawn = {node: sampler.draw(shape_of(node)) for node in smoothed.inputs if not node.type.secret}
        scaled = [sampler.deviations * np.moveaxis(noise, -1, 0) for noise in drawn.values()]
        if any(run_watched(network, screened[place] + noise)[1].any() for noise in scaled):
            continue
        for node, rows in arrays.items():
            rows.append(screened[place] if node.type.secret else drawn[node])
        if len(rows) == count:
            break
    found = [np.array(rows) for rows in arrays.values()]
    if not len(found[0]):
        raise ProgramError(
            "every training input leaves the interval of a polynomial with noise",
            hint=said("a larger {Options.margin}, or a network that was trained with noise"),
        )
    return tuple(found)


def _record(certificate: Certificate, limits: Range, made: _Made, found: Rates) -> Certified:
    return Certified(
        kind=certificate.kind,
        radius=certificate.radius,
        n=certificate.n,
        n0=certificate.n0,
        target=certificate.target,
        tau=certificate.threshold,
        zeta=certificate.zeta,
        alpha=certificate.alpha,
        distribution=certificate.drawn,
        deviation=certificate.deviation,
        spread=limits.spread,
        difference=limits.gap,
        gap=made.gap,
        error=made.error,
        beta_range=found.beta_range,
        beta_difference=found.beta_difference,
        xi=certificate.alpha + found.beta_range + found.beta_difference,
        confidence=found.confidence,
        held_out=found.held_out,
    )
