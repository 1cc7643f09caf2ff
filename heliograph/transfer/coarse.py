"""Coarse artifacts: everything observed on private samples is rounded up to powers of two.

The server of a training gets the artifact of its step, which was compiled on the client's data, or data like it. A
step's program depends on the samples only by sizes: none of its polynomials rests on an observed range.
"""

from __future__ import annotations

from dataclasses import replace

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.figures import complete
from heliograph.ir import Program
from heliograph.ir.interface import TensorSpec
from heliograph.ir.ranges import RangeEntry
from heliograph.report.figures import Figures
from heliograph.report.text import Report
from heliograph.rounding import power_above


def coarse(artifact: Artifact) -> Artifact:
    """The artifact with all observed values rounded up to powers of two.

    The texts of its stages, which contain the exact values, are left out.
    """
    program = _program(artifact.program)
    return replace(
        artifact, program=program, report=Report(complete(program, _figures(artifact.report.figures))), stages={}
    )


def _program(program: Program) -> Program:
    outputs = tuple(map(_output, program.interface.outputs))
    return replace(
        program,
        interface=replace(program.interface, outputs=outputs),
        ranges=tuple(map(_entry, program.ranges)),
    )


def _output(spec: TensorSpec) -> TensorSpec:
    if spec.range_source != "observed" or spec.low is None or spec.high is None:
        return spec
    reach = power_above(max(abs(spec.low), abs(spec.high)))
    return replace(spec, low=-reach, high=reach)


def _entry(entry: RangeEntry) -> RangeEntry:
    if entry.source == "observed":
        raise AssertionError(f"the polynomial of {entry.layer} rests on private samples")
    reach = None if entry.observed is None else power_above(max(map(abs, entry.observed)))
    return replace(
        entry,
        observed=None if reach is None else (-reach, reach),
        rms_error=min(power_above(entry.rms_error), entry.max_error),
    )


def _figures(known: Figures) -> Figures:
    error = max(known.approximation_error, known.given_error or 0.0)
    return replace(
        known,
        approximation_error=power_above(error),
        scheme_error=power_above(known.scheme_error),
        output_magnitude=power_above(known.output_magnitude),
        largest_output=None if known.largest_output is None else power_above(known.largest_output),
        # These hide the number of states, which reveals the length of a training in the clear, and the effects of
        # single states.
        error_samples=1,
        output_points=(),
        given_error=None,
        given_samples=None,
        savings=(),
    )
