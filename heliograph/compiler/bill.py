"""The report of a plan: what only the compiler can know is measured here, the rest follows (artifact/figures.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heliograph import rounding
from heliograph.artifact.figures import complete, prices
from heliograph.compiler.options import Options
from heliograph.compiler.plan import Plan
from heliograph.compiler.savings import largest_difference, savings
from heliograph.compiler.unseen import Observation, Unseen
from heliograph.interpret import interpret_many
from heliograph.ir import Array, Program, SparseMatrix, Stage
from heliograph.ir.depth import critical_depth, node_depth
from heliograph.passes.approximate import degrees_by_layer
from heliograph.passes.intervals import Interval, hull, program_intervals
from heliograph.passes.slot_intervals import slot_intervals
from heliograph.report.figures import ClassAgreement, Figures, Saving, SpentLevels, Stored, UnseenInputs, WorstLayer

# What a node that spends a level is called in the report.
_WORDS = {
    "affine": "linear map",
    "mul": "product",
    "mul_ct": "product",
    "mul_plain": "product with a plaintext",
    "mul_pt": "product with a plaintext",
}
# Where nothing proves the outputs' range: this many times the largest size seen is still taken for possible.
_OUTPUT_ROOM = 4.0
# A proved range can be very wide, for it follows from the images of all polynomials at once: where so many times the largest
# output that the samples gave is narrower by another factor, that stands for it, and what lies beyond is no result.
_PROVED_ROOM, _MUCH_NARROWER = 8.0, 4.0
_ENOUGH_SAMPLES = 32
# Variants are compiled for the report only where the linear maps have at most so many entries.
_MOST_ENTRIES_TO_VARY = 4_000_000
# Outputs with more values than this are not taken for the scores of classes.
_MOST_CLASSES = 1000


def with_output_ranges(program: Program, outputs: Sequence[Array], calibrated: int = 0) -> Program:
    """The polynomial (or slot) program with the range that each output can have, as `output_ranges` in its metadata.

    It is proved from the images of the polynomials and the declared input ranges, provided that every polynomial's input
    stays in its interval; where nothing bounds an output, or only a very wide range is proved and there are enough
    calibration samples (`calibrated` of them), it is what the samples showed, with room. `outputs` are those of the network.
    """
    if program.stage is Stage.PACKED:
        bounds = slot_intervals(program)
        whole = {
            name: {**_ends(hull(bounds[node])), "range_source": "proved"}
            for name, node in zip(program.output_names, program.outputs, strict=True)
        }
        return replace(program, metadata={**program.metadata, "output_ranges": whole})
    images = {}
    for node in program.nodes:
        if node.op == "poly":
            series = np.polynomial.chebyshev.chebval(
                np.cos(np.linspace(0.0, math.pi, 4001)), program.array(node.attrs["coefficients"])
            )
            degree = len(program.array(node.attrs["coefficients"])) - 1
            slack = degree * math.pi / 8000 * float(np.abs(series).max()) * 1.01
            images[node] = Interval(float(series.min()) - slack, float(series.max()) + slack)
    proved = program_intervals(program, images)
    ranges = {}
    for name, node, seen in zip(program.output_names, program.outputs, outputs, strict=True):
        if node in proved:
            ranges[name] = {**_ends(proved[node]), "range_source": "proved"}
            reach = _PROVED_ROOM * float(np.abs(seen).max(initial=0.0))
            if calibrated >= _ENOUGH_SAMPLES and 0 < reach * _MUCH_NARROWER < proved[node].magnitude:
                ranges[name] = {"low": -reach, "high": reach, "range_source": "observed"}
        else:
            reach = _OUTPUT_ROOM * max(float(np.abs(seen).max(initial=0.0)), 1e-9)
            ranges[name] = {**_ends(Interval(-reach, reach)), "range_source": "observed"}
    return replace(program, metadata={**program.metadata, "output_ranges": ranges})


# Outputs may leave their range by so many standard deviations of the flooding noise.
_FLOOD_ROOM = 10.0


def flooded(program: Program, std: float) -> Program:
    """The program with the noise that the server is to add in its metadata, and output ranges that leave room for it."""
    ranges = {
        name: {**entry, "low": entry["low"] - _FLOOD_ROOM * std, "high": entry["high"] + _FLOOD_ROOM * std}
        for name, entry in program.metadata["output_ranges"].items()
    }
    return replace(program, metadata={**program.metadata, "output_ranges": ranges, "flood": std})


def _ends(interval: Interval) -> dict[str, float]:
    low, high = rounding.outward(interval.low, interval.high)
    return {"low": low, "high": high}


def bill(
    source: Program,
    fused: Program,
    polynomial: Program,
    plan: Plan,
    options: Options,
    observation: Observation,
    samples: Sequence[Array],
) -> Figures:
    """Everything that the report says; `samples` have a leading sample axis.

    Where calibration could keep samples apart `samples` are these, and the error of the polynomials is that of a program
    whose ranges were set without them.
    """
    exact = interpret_many(source, samples)
    # Held-out samples say what the polynomials do to unseen inputs, in the program whose ranges they had no part in.
    measured = observation.trial or polynomial
    approximate = interpret_many(measured, samples)
    watched = any(entry["source"] == "observed" for entry in plan.program.metadata.get("ranges", ()))
    return complete(
        plan.program,
        Stored(
            approximation_error=rounding.nearest(largest_difference(exact, approximate)),
            scheme_error=rounding.nearest(plan.scheme_error),
            class_agreement=class_agreement(source, exact, approximate),
            error_samples=int(samples[0].shape[0]) if samples else 0,
            errors_apart=observation.trial is not None,
            unseen=_unseen(observation.unseen) if watched else None,
            calibrated=bool(source.calibration),
            output_magnitude=rounding.nearest(plan.output_magnitude),
            unbounded_ms=plan.unbounded_ms,
            costs=options.costs.machine,
            cost_table=prices(options.costs),
            depth_by_line=tuple(_depth_by_line(polynomial)),
            # What the author of a slot program wrote is what runs: there is nothing for us to lower.
            savings=()
            if source.stage is Stage.PACKED or not _worth_varying(fused)
            else _savings(
                savings(fused, measured, options, observation.partly or observation.observed, samples, exact)
            ),
            options=replace(options, degrees=degrees_by_layer(fused, options.degrees)).told(),
        ),
    )


def _unseen(unseen: Unseen) -> UnseenInputs:
    found = unseen.to_dict()
    worst = found.pop("worst")
    return UnseenInputs(**found, worst=None if worst is None else WorstLayer(**worst))


def _savings(found: Sequence[Mapping[str, Any]]) -> tuple[Saving, ...]:
    lists = ("kinds", "layers", "locations")
    return tuple(Saving(**{**entry, **{key: tuple(entry[key]) for key in lists}}) for entry in found)


def class_agreement(source: Program, exact: Sequence[Array], approximate: Sequence[Array]) -> ClassAgreement | None:
    """On how many samples the largest output stands at the same place: the class, where the outputs are its scores.

    None where that says nothing: of slots, of several outputs, of an output that is not one row of at least two values,
    and of one longer than classes are many. The number of a class is compared rounded.
    """
    if source.stage is not Stage.TENSOR or len(exact) != 1 or not exact[0].shape[0]:
        return None
    rows, others = exact[0], approximate[0]
    if source.outputs[0].attrs.get("index") and source.outputs[0].op == "argmax":
        same = (np.round(rows) == np.round(others)).reshape(len(rows), -1).all(axis=1)
    elif rows.ndim == 2 and 2 <= rows.shape[1] <= _MOST_CLASSES:
        same = rows.argmax(axis=1) == others.argmax(axis=1)
    else:
        return None
    return ClassAgreement(len(rows), int(same.sum()))


def _depth_by_line(polynomial: Program) -> list[SpentLevels]:
    """Who spends the levels, along one longest path: an entry per node that spends some, inputs first."""
    _, path = critical_depth(polynomial)
    entries = []
    for node in path:
        spent = node_depth(polynomial, node)
        if not spent:
            continue
        what = _WORDS.get(node.op, node.op)
        if node.op == "poly":
            what = f"polynomial of degree {len(polynomial.array(node.attrs['coefficients'])) - 1}"
        entries.append(SpentLevels(spent, what, node.loc.layer, node.loc.short))
    return entries


def _worth_varying(program: Program) -> bool:
    """Whether variants of the program are compiled for the report: each takes as long as the program itself."""
    entries = sum(constant.data.size for constant in program.constants.values() if isinstance(constant, SparseMatrix))
    return entries <= _MOST_ENTRIES_TO_VARY
