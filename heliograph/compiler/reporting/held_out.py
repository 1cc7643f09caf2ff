"""Held-out samples: every other calibration sample is held out, to count how many leave an interval.

The ranges of the compiled program come from all samples. Before that, the same choices are made from half of the
samples alone, and the held-out ones run through these polynomials in the clear. So the rate at which they leave an
interval, and the error of the polynomials on them, hold for unseen inputs; ranges from twice as many samples should do
no worse. If a sample leaves an interval and the margin is automatic, the layer gets more room in the compiled program;
the reported rate is the first one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from heliograph import rounding
from heliograph.compiler.options import Options
from heliograph.interpret import run_nodes
from heliograph.ir import Array, Node, Program, shape_of
from heliograph.ir.ranges import RangeEntry
from heliograph.passes.polynomials.approximate import Approximate
from heliograph.passes.polynomials.approximation import Approximations
from heliograph.passes.ranges.calibrate import Calibrate, Calibration, Observed
from heliograph.report.figures import UnseenInputs, WorstLayer

CONFIDENCE = 0.95
# Errors, including those of the variants that the report names, are measured on at most this many samples.
_MOST_MEASURED = 256
_CHUNK = 64
# If a held-out sample left a layer's range, the new range is this many times as wide as the sample needs, but at least
# and at most this many times as wide as the old range.
_BEYOND, _LEAST_ROOM, _MOST_ROOM = 1.1, 1.25, 16.0
# Degrees are raised while the root mean square error of the outputs is above this share of their spread over the
# samples: the error of each polynomial is then limited to the next of these shares of the usual one. A raise must
# reduce the error to this share at least.
_OUTPUT_ERROR = 0.1
_CLOSER = (1.0, 0.5, 0.25)
_WORTH_A_LEVEL = 0.9
# With fewer held-out samples than this, nothing is raised. Outputs with a spread below this share of their size are
# constant.
_FEWEST, _SAME = 8, 1e-3


@dataclass(frozen=True, slots=True)
class Unseen:
    """The results of the held-out samples.

    `setting`: the number of samples that set the ranges.
    `apart`: the number of held-out samples.
    `left`: the number of held-out samples that left any interval.
    `entries`: the table of ranges.
    `largest`: the farthest that any of them came at each entry, as a multiple of half the interval.
    `left_by_entry`: the number that left the interval of each entry.
    `samples`: the first of those that stayed in all intervals, by input; errors are measured on them.
    `outputs`: the outputs of the polynomials on `samples`.
    `places`: the places of `samples` among the calibration samples.
    """

    setting: int
    apart: int = 0
    left: int = 0
    entries: tuple[RangeEntry, ...] = ()
    largest: tuple[float, ...] = ()
    left_by_entry: tuple[int, ...] = ()
    samples: tuple[Array, ...] = ()
    outputs: tuple[Array, ...] = ()
    places: tuple[int, ...] = ()

    def figures(self) -> UnseenInputs:
        """The figures for the report; the rate is bounded by Clopper and Pearson's one-sided interval."""
        worst = None
        if self.largest:
            place = max(range(len(self.largest)), key=lambda i: (self.left_by_entry[i], self.largest[i]))
            worst = WorstLayer(
                self.entries[place].layer or self.entries[place].function,
                self.entries[place].location,
                self.left_by_entry[place],
                rounding.nearest(min(self.largest[place], 1e9), rounding.SEEN_BITS),
                rate_bound(self.left_by_entry[place], self.apart),
            )
        return UnseenInputs(self.setting, self.apart, self.left, rate_bound(self.left, self.apart), CONFIDENCE, worst)


def rate_bound(left: int, apart: int, confidence: float = CONFIDENCE) -> float:
    """The upper bound on the rate if `left` of `apart` independent samples left (Clopper and Pearson, one-sided)."""
    # The quantile of the beta distribution. scipy.stats has it too, but takes most of a second to load.
    import scipy.special

    if left >= apart:
        return 1.0
    return float(scipy.special.betaincinv(left + 1, apart - left, confidence))


def approximate_pass(options: Options, observed: Mapping[Node, Observed]) -> Approximate:
    """The pass that chooses polynomials, by the options."""
    return Approximate(
        degree=options.degree,
        degrees=options.degrees,
        target_error=options.target_error,
        margin=options.margin,
        method=options.method,
        spread=options.spread,
        observed=observed,
        precision=2.0 ** -options.bits(),
        gap_error=options.gap_error,
    )


@dataclass(frozen=True, slots=True)
class Observation:
    """The approximations of a program, and the results of the held-out samples.

    `table`: the approximations, with the room that held-out samples need; None for a program on slots.
    `unseen`: the results of the held-out samples.
    `trial`: the approximations without the held-out samples; errors on these are errors on unseen inputs.
    `outputs`: the outputs of the fused program on all calibration samples.
    `too_far`: the error of the outputs as a share of their spread, if no degree that the compiler tries is enough; else
    zero.
    """

    table: Approximations | None
    unseen: Unseen = field(default_factory=lambda: Unseen(0))
    trial: Approximations | None = None
    outputs: tuple[Array, ...] = ()
    too_far: float = 0.0

    @property
    def known(self) -> Approximations:
        """The approximations of a program on tensors."""
        assert self.table is not None
        return self.table

    def merged(self, table: Approximations, most: int) -> Observation:
        """The observation if bootstraps compute activations as in `table`; `most` as in `apart_of`."""
        if self.trial is None:
            return self
        trial = self.trial.merged_like(table)
        unseen = look(trial.write(), apart_of(trial.fused, most), self.unseen.setting)
        return replace(self, unseen=unseen) if unseen.samples and unseen.samples[0].shape[0] else self

    def corrected(self, options: Options, merged: Collection[int] = ()) -> Observation:
        """The observation with linear maps corrected, where bootstraps compute the activations of these entries; the
        held-out samples correct nothing in the trial.
        """
        if self.table is None or not options.correct:
            return self
        fused = self.table.fused
        table = self.table.corrected(fused.calibration, merged)
        if self.trial is None:
            return replace(self, table=table)
        trial = self.trial.corrected(setting_of(fused), merged)
        unseen = look(trial.write(), apart_of(fused, options.samples_apart), self.unseen.setting)
        if not unseen.samples or not unseen.samples[0].shape[0]:
            return replace(self, table=table, unseen=unseen, trial=None)
        return replace(self, table=table, trial=trial, unseen=unseen)


def setting_of(fused: Program) -> tuple[Array, ...]:
    """The calibration samples that are not held out: they set the ranges of the trial."""
    return tuple(samples[0::2] for samples in fused.calibration)


def apart_of(fused: Program, most: int) -> tuple[Array, ...]:
    """The held-out calibration samples, this many at most."""
    return tuple(samples[1::2][:most] for samples in fused.calibration)


def observe(fused: Program, options: Options, calibrated: Calibration | None = None) -> Observation:
    """The observation of a fused program on its calibration samples.

    `calibrated` is what the samples show, if the program already ran on them.
    """
    calibrated = Calibrate().calibration(fused) if calibrated is None else calibrated
    observed, outputs = calibrated.whole, calibrated.outputs
    count = fused.calibration[0].shape[0] if fused.calibration else 0
    choice = approximate_pass(options, observed)
    if count < 2 or not any(seen.tails is not None for seen in observed.values()):
        return Observation(choice.table(fused), Unseen(count), outputs=outputs).corrected(options)
    apart = apart_of(fused, options.samples_apart)
    best: Observation | None = None
    least, usual = math.inf, options.margin is None and options.target_error is None
    # A network's error grows with its depth. So while it is too large, the allowed error of every polynomial is halved.
    for closeness in _CLOSER if usual and options.degree is None else _CLOSER[:1]:
        table = replace(choice, closeness=closeness).table(fused)
        if best is not None and table.degrees == best.known.degrees:
            break
        # The degrees are those of the compiled program, because its polynomials are what is measured.
        trial = table.anew(observed=calibrated.half, fixed=table.degrees if usual else {})
        unseen = look(trial.write(), apart, (count + 1) // 2)
        error = _output_error(outputs, unseen) if usual else 0.0
        if best is None or error <= _WORTH_A_LEVEL * least:
            best, least = Observation(table, unseen, trial, outputs), error
        if error <= _OUTPUT_ERROR:
            break
    assert best is not None
    if best.unseen.left and options.margin is None:
        room = _room(best.known, best.unseen)
        best = replace(best, table=best.known.anew(room=room, fixed=best.known.degrees if usual else {}))
    best = best.corrected(options)
    if options.correct and usual:
        least = _output_error(outputs, best.unseen)
    if not best.unseen.samples or not best.unseen.samples[0].shape[0]:
        return replace(best, trial=None)
    too_far = least if options.degree is None and least > _OUTPUT_ERROR else 0.0
    return replace(best, too_far=too_far)


def _output_error(outputs: Sequence[Array], unseen: Unseen) -> float:
    """The root mean square error of an output as a share of its spread over the samples; the largest of all outputs.

    `outputs` are the exact ones on all calibration samples.
    Zero with too few samples. For a constant output it is a share of the output's size, for an output that is always
    zero the error itself.
    """
    if not unseen.samples or unseen.samples[0].shape[0] < _FEWEST:
        return 0.0
    shares = [0.0]
    for whole, made in zip(outputs, unseen.outputs, strict=True):
        exact = whole[list(unseen.places)]
        error = math.sqrt(float(np.square(made - exact).mean()))
        spread = math.sqrt(float(exact.var(axis=0).mean()))
        size = math.sqrt(float(np.square(exact).mean()))
        shares.append(error / (spread if spread > _SAME * size else size or 1.0))
    return max(shares)


def look(made: Program, apart: tuple[Array, ...], setting: int) -> Unseen:
    """The results of the held-out samples on the polynomials."""
    entries = made.ranges
    count = apart[0].shape[0]
    reached = np.zeros((len(entries), count))
    reads = {node.inputs[0]: node for node in made.nodes if node.op == "poly" and node.attrs.get("range") is not None}
    outputs: list[list[Array]] = []
    for start in range(0, count, _CHUNK):
        chunk = [np.asarray(samples[start : start + _CHUNK], dtype=np.float64) for samples in apart]
        size = chunk[0].shape[0]

        def watch(node: Node, value: Array) -> None:
            reader = reads.get(node)
            if reader is None:
                return
            low, high = reader.attrs["low"], reader.attrs["high"]
            distance = np.abs(value - (low + high) / 2).reshape(value.shape[0], -1).max(axis=1) / ((high - low) / 2)
            row = reached[reader.attrs["range"], start : start + size]  # noqa: B023
            np.maximum(row, np.where(np.isfinite(distance), distance, math.inf), out=row)

        with np.errstate(all="ignore"):
            results = run_nodes(made, dict(zip(made.inputs, chunk, strict=True)), watch)
        outputs.append([np.broadcast_to(result, (size, *result.shape[1:])) for result in results])
    out = reached > 1.0 + 1e-9
    stayed = ~out.any(axis=0)
    return Unseen(
        setting,
        count,
        int(out.any(axis=0).sum()),
        entries,
        tuple(float(row.max()) for row in reached),
        tuple(int(row.sum()) for row in out),
        tuple(samples[: stayed.size][stayed][:_MOST_MEASURED] for samples in apart),
        tuple(np.concatenate(parts)[stayed][:_MOST_MEASURED] for parts in zip(*outputs, strict=True)),
        tuple((2 * np.flatnonzero(stayed) + 1)[:_MOST_MEASURED].tolist()),
    )


def _room(table: Approximations, unseen: Unseen) -> dict[Node, float]:
    """More room for the operands of left intervals: much for the first one; later ones may only follow, and get a
    little.
    """
    readers = {entry: node for node, entries in _activations(table.fused, unseen.entries).items() for entry in entries}
    room: dict[Node, float] = {}
    for place, left in enumerate(unseen.left_by_entry):
        if left and place in readers:
            further = unseen.largest[place] * _BEYOND
            first = not any(unseen.left_by_entry[:place])
            wanted = min(max(further, _LEAST_ROOM), _MOST_ROOM) if first else _LEAST_ROOM
            operand = readers[place].inputs[0]
            room[operand] = max(room.get(operand, 1.0), wanted)
    return room


def _activations(fused: Program, ranges: Sequence[RangeEntry]) -> dict[Node, list[int]]:
    """The entries in the range table of each node of the fused program that has any, by layer, line and function: one
    entry, but one for each round of a maximum over rows.
    """
    places: dict[tuple[str, str, str], list[int]] = {}
    for place, entry in enumerate(ranges):
        places.setdefault((entry.layer, entry.location, entry.function), []).append(place)
    table = {}
    for node in fused.nodes:
        queue = places.get((node.loc.layer, node.loc.short, node.op), []) or places.get(
            (node.loc.layer, node.loc.short, node.op.removesuffix("_rows")), []
        )
        if queue and node.type.secret:
            count = shape_of(node.inputs[0])[0].bit_length() - 1 if node.op == "max_rows" else 1
            table[node], queue[:] = queue[:count], queue[count:]
    return table
