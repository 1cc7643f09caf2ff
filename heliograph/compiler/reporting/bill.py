"""The report of a plan: the figures that only the compiler can know; the others follow from these
(artifact/figures.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heliograph import rounding
from heliograph.artifact.figures import complete, prices
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import polynomial_passes
from heliograph.compiler.planning.plan import Plan
from heliograph.compiler.reporting.held_out import Observation
from heliograph.compiler.reporting.savings import largest_difference, largest_of, savings
from heliograph.interpret import interpret_many
from heliograph.ir import Array, Matrix, Program, Stage
from heliograph.ir.analysis.depth import critical_depth, node_depth
from heliograph.ir.analysis.loss import has_classes
from heliograph.ir.ops.functions import COMPARISONS
from heliograph.ir.ops.table import OPS
from heliograph.passes.polynomials.approximate import degrees_by_layer
from heliograph.records import LARGEST
from heliograph.report.figures import (
    Allocation,
    ClassAgreement,
    Figures,
    OutputPoint,
    SpentLevels,
    Stored,
)

# Variants are compiled for the report only if the linear maps have at most this many entries.
_MOST_ENTRIES_TO_VARY = 4_000_000
# Output values that the report keeps for its scatter plot.
_MOST_POINTS = 240
# Samples that are evaluated at once.
CHUNK = 64


def bill(
    source: Program,
    fused: Program,
    polynomial: Program,
    plan: Plan,
    options: Options,
    observation: Observation,
    samples: Sequence[Array],
    exact: Sequence[Array],
    approximate: Sequence[Array],
    given: float | None = None,
    allocation: Allocation | None = None,
) -> Figures:
    """All figures of the report.

    `samples`: samples with a leading sample axis; the held-out ones, if there are any.
    `exact`, `approximate`: the outputs of the network and of the polynomials on them.
    `given`: the largest error on all calibration samples (`given_error`).

    With held-out samples, the error of the polynomials is measured on a program with ranges that were set without them.
    The error of the compiled polynomials on all calibration samples is measured too, because the largest samples are
    often among those that set the ranges.
    """
    largest = rounding.nearest(largest_of(exact, source.interface.scales))
    watched = any(entry.source == "observed" for entry in plan.program.ranges)
    return complete(
        plan.program,
        Stored(
            approximation_error=rounding.nearest(largest_difference(exact, approximate, source.interface.scales)),
            scheme_error=rounding.nearest(plan.scheme_error),
            class_agreement=class_agreement(source, exact, approximate),
            error_samples=int(samples[0].shape[0]) if samples else 0,
            errors_apart=observation.trial is not None,
            given_error=given,
            given_samples=None if given is None else int(source.calibration[0].shape[0]),
            unseen=observation.unseen.figures() if watched else None,
            calibrated=bool(source.calibration),
            output_magnitude=rounding.nearest(plan.output_magnitude),
            unbounded_ms=plan.unbounded_ms,
            costs=options.costs.machine,
            cost_table=prices(options.costs),
            depth_by_line=tuple(_depth_by_line(polynomial)),
            # A slot program runs as its author wrote it: there are no levels for the compiler to save.
            savings=()
            if source.stage is Stage.PACKED or not _worth_varying(fused)
            else savings(
                # The held-out samples had no part in the trial, so its errors on them are errors on unseen inputs.
                polynomial if observation.trial is None else polynomial_passes(observation.trial)[-1].program,
                observation.trial or observation.known,
                samples,
                exact,
            ),
            allocation=allocation,
            comparison=source.comparison,
            output_points=output_points(exact, approximate, source.interface.scales),
            largest_output=largest if any(scale != 1.0 for scale in source.interface.scales) else None,
            options=replace(options, degrees=degrees_by_layer(fused, options.degrees)).told(),
        ),
    )


def given_error(
    source: Program, exact: Sequence[Array], polynomial: Program, first: Sequence[Array] | None = None
) -> float | None:
    """The largest error of the polynomials on the calibration samples; None without samples, and for a program on
    slots, which is its own polynomial program.

    `exact`: the outputs of the source on these samples.
    `first`: those of the polynomial program on the first `CHUNK` of them, if they are known.
    """
    if source.stage is not Stage.TENSOR or not source.calibration:
        return None
    largest = 0.0
    for start in range(0, source.calibration[0].shape[0], CHUNK):
        part = slice(start, start + CHUNK)
        with np.errstate(all="ignore"):
            made = (
                interpret_many(polynomial, [samples[part] for samples in source.calibration])
                if start or not first
                else first
            )
            found = largest_of([a[part] - b for a, b in zip(exact, made, strict=True)], source.interface.scales)
        # A sample outside an interval may overflow.
        largest = max(largest, found if found < LARGEST else LARGEST)
    return min(rounding.upward(largest, rounding.SEEN_BITS), LARGEST)


def given_outputs(source: Program) -> list[Array]:
    """The outputs of a program on its calibration samples."""
    parts = [
        interpret_many(source, [samples[start : start + CHUNK] for samples in source.calibration])
        for start in range(0, source.calibration[0].shape[0], CHUNK)
    ]
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def output_points(
    exact: Sequence[Array], approximate: Sequence[Array], scales: Sequence[float]
) -> tuple[OutputPoint, ...]:
    """Output values of network and polynomials as the client has them, at even steps through all samples."""

    factors = scales or [1.0] * len(exact)

    def values(outputs: Sequence[Array]) -> Array:
        parts = [factor * rows.reshape(-1) for rows, factor in zip(outputs, factors, strict=True)]
        return np.concatenate(parts) if parts else np.empty(0)

    pairs = np.stack([values(exact), values(approximate)], axis=1)
    pairs = pairs[np.isfinite(pairs).all(axis=1) & (np.abs(pairs) < LARGEST).all(axis=1)]
    chosen = np.unique(np.linspace(0, len(pairs) - 1, min(len(pairs), _MOST_POINTS)).astype(int)) if len(pairs) else []
    return tuple(
        OutputPoint(*(rounding.nearest(float(value), rounding.SEEN_BITS) for value in pairs[i])) for i in chosen
    )


def class_agreement(source: Program, exact: Sequence[Array], approximate: Sequence[Array]) -> ClassAgreement | None:
    """The number of samples with the same class, that is with the largest output at the same place.

    None if the outputs are not class scores (`ir/analysis/loss.has_classes`). Class numbers as outputs are rounded and
    compared, and so are the results of a comparison, all of which must agree.
    """
    if source.stage is not Stage.TENSOR or len(exact) != 1 or not exact[0].shape[0]:
        return None
    rows, others = exact[0], approximate[0]
    output = source.outputs[0]
    if (output.attrs.get("index") and output.op == "argmax") or output.op in COMPARISONS:
        same = (np.round(rows) == np.round(others)).reshape(len(rows), -1).all(axis=1)
    elif has_classes(source) or output.op == "argmax":
        same = rows.reshape(len(rows), -1).argmax(axis=1) == others.reshape(len(rows), -1).argmax(axis=1)
    else:
        return None
    return ClassAgreement(len(rows), int(same.sum()))


def _depth_by_line(polynomial: Program) -> list[SpentLevels]:
    """The levels spent along one longest path: an entry for each node that spends some, inputs first."""
    _, path = critical_depth(polynomial)
    entries = []
    for node in path:
        spent = node_depth(polynomial, node)
        if not spent:
            continue
        what = OPS[node.op].word or node.op
        if node.op == "poly":
            what = f"polynomial of degree {len(polynomial.array(node.attrs['coefficients'])) - 1}"
            if node.attrs.get("merged"):
                what = f"trigonometric polynomial of degree {polynomial.array(node.attrs['series']).shape[1] - 1}"
        entries.append(SpentLevels(spent, what, node.loc.layer, node.loc.short))
    return entries


def _worth_varying(program: Program) -> bool:
    """Whether variants of the program are compiled for the report: each takes as long as the program itself."""
    entries = sum(constant.nnz for constant in program.constants.values() if isinstance(constant, Matrix))
    return entries <= _MOST_ENTRIES_TO_VARY
