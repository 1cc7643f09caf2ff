"""Observe the range of every value on the calibration samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heliograph.errors import ProgramError, said
from heliograph.interpret import calibration_chunks, run_nodes
from heliograph.ir import Array, Node, Program, shape_of
from heliograph.ir.ops.table import OPS, Role, role_of

# The share of samples that may lie nearer to a decision's threshold than its gap.
_RARE = 0.01


@dataclass(frozen=True, slots=True)
class Tails:
    """The figures from which an interval is estimated.

    `lows`, `highs`: the ends of each sample.
    `peaks`: the largest size of each unit in each sample, samples by units.
    `mean`, `std`: of each unit, over all samples.
    """

    lows: Array
    highs: Array
    peaks: Array
    mean: Array
    std: Array


@dataclass(frozen=True, slots=True)
class Round:
    """The absolute differences that one round of a maximum over rows compares.

    `peaks`: the largest of each sample.
    `sizes`: quantiles of all of them, at equal steps of probability.
    """

    peaks: Array
    sizes: Array


@dataclass(frozen=True, slots=True)
class Observed:
    """The statistics of one value on the samples.

    `low`, `high`, `mean`, `std`: extremes, mean and standard deviation over all elements.
    `samples`: the number of samples.
    `reach`: a bound on the size of each unit (an element of a vector, a channel of a map; broadcastable to the shape):
    the largest observed, or the mean plus seven standard deviations if that is more. None unless an activation reads
    the value.
    `near`: for the operand of a decision, the distance from the threshold that all but one in a hundred samples keep:
    of x from zero, or of the largest row from the next.
    `spread`: for the operand of a decision over rows, the largest distance between two rows of a column.
    `tails`: for the operand of a polynomial, the figures from which its interval is estimated.
    `rounds`: for the operand of a maximum over rows, the differences that each round compares.
    """

    low: float
    high: float
    mean: float
    std: float
    samples: int
    reach: Array | None = None
    near: float | None = None
    spread: float | None = None
    tails: Tails | None = None
    rounds: tuple[Round, ...] = ()


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the calibration samples show of a program.

    `whole`: the statistics of each value on all samples; empty if there are none.
    `half`: the same on every other sample, from the first.
    `outputs`: the program's outputs on all samples, with a leading sample axis.
    """

    whole: Mapping[Node, Observed]
    half: Mapping[Node, Observed]
    outputs: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Calibrate:
    """Runs the program on its calibration samples; the table is empty if there are none.

    `Approximate` widens the ranges where it uses them.
    """

    name: ClassVar[str] = "calibrate"

    def run(self, program: Program) -> Mapping[Node, Observed]:
        return self.calibration(program, half=False).whole

    def calibration(self, program: Program, half: bool = True) -> Calibration:
        """The statistics on all samples and, with `half`, on every other one, from one run."""
        if not program.calibration:
            return Calibration({}, {}, ())
        count = _check(program)
        whole, other = _Statistics(program), _Statistics(program, every=2)

        def observe(node: Node, value: Array) -> None:
            if not np.isfinite(value).all():
                raise ProgramError(
                    f"{node.op} gives NaN or infinity on a calibration sample",
                    where=node.loc,
                    why="it is computed for every sample, also where another value is chosen in place of it",
                    hint="leave the sample out, or keep the argument where the function is finite: "
                    "log(clamp(x, min=0.01))",
                )
            whole.add(node, value)
            if half:
                other.add(node, value[::2])

        outputs = []
        for chunk in calibration_chunks(program):
            found, size = run_nodes(program, chunk, observe), len(chunk[program.inputs[0]])
            outputs.append([np.broadcast_to(out, (size, *out.shape[1:])) for out in found])
        joined = tuple(np.concatenate(parts) for parts in zip(*outputs, strict=True))
        return Calibration(whole.table(count), other.table((count + 1) // 2), joined)


class _Statistics:
    """The statistics of each value of a program, on its samples or on one in `every`."""

    def __init__(self, program: Program, every: int = 1) -> None:
        self.low: dict[Node, float] = {}
        self.high: dict[Node, float] = {}
        self.total: dict[Node, float] = {}
        self.squares: dict[Node, float] = {}
        self.size: dict[Node, int] = {}
        self.by_unit = {node.inputs[0] for node in program.nodes if OPS[node.op].activation is not None}
        # Functions along rows are lowered using the interval of their operands.
        read = {node.inputs[0] for node in program.nodes if role_of(node) is Role.ALONG_ROWS and node.type.secret}
        self.units = {node: _Units(node) for node in program.nodes if node in self.by_unit | read}
        self.rounds = {
            node.inputs[0]: _Rounds(shape_of(node.inputs[0])[0], every)
            for node in program.nodes
            if node.op == "max_rows" and node.type.secret
        }
        self.decisions = {
            node.inputs[0]: _Decision(rows=node.op == "argmax_rows")
            for node in program.nodes
            if node.op in ("sign", "argmax_rows") and node.type.secret
        }

    def add(self, node: Node, value: Array) -> None:
        self.low[node] = min(self.low.get(node, math.inf), float(value.min(initial=math.inf)))
        self.high[node] = max(self.high.get(node, -math.inf), float(value.max(initial=-math.inf)))
        self.total[node] = self.total.get(node, 0.0) + float(value.sum())
        self.squares[node] = self.squares.get(node, 0.0) + float(np.square(value).sum())
        self.size[node] = self.size.get(node, 0) + value.size
        for table in (self.units, self.decisions, self.rounds):
            if node in table:
                table[node].add(value)

    def table(self, count: int) -> dict[Node, Observed]:
        table = {}
        for node in self.low:
            mean = self.total[node] / self.size[node]
            variance = max(0.0, self.squares[node] / self.size[node] - mean * mean)
            decision = self.decisions.get(node)
            near, spread = (decision.near(), decision.spread) if decision else (None, None)
            table[node] = Observed(
                self.low[node],
                self.high[node],
                mean,
                math.sqrt(variance),
                count,
                self.units[node].reach() if node in self.by_unit else None,
                near,
                spread,
                self.units[node].tails() if node in self.units else None,
                self.rounds[node].result() if node in self.rounds else (),
            )
        return table


def _check(program: Program) -> int:
    """The number of samples. Raises ProgramError if they do not match the program's inputs."""
    if len(program.calibration) != len(program.inputs):
        raise ProgramError(
            f"calibration holds samples of {len(program.calibration)} inputs, the program has {len(program.inputs)}",
            hint="give one array per input, in argument order",
        )
    counts = set()
    for node, samples in zip(program.inputs, program.calibration, strict=True):
        name = node.attrs["name"]
        if samples.ndim == 0 or samples.shape[1:] != shape_of(node):
            raise ProgramError(
                f"calibration samples of input {name!r} have shape {samples.shape[1:]}, expected {shape_of(node)}",
                where=node.loc,
                hint="the first axis counts the samples",
            )
        counts.add(int(samples.shape[0]))
        low, high = node.attrs.get("low", -math.inf), node.attrs.get("high", math.inf)
        outside = np.argwhere((samples < low) | (samples > high))
        if outside.size:
            raise ProgramError(
                f"calibration sample {outside[0][0]} of input {name!r} holds {samples[tuple(outside[0])]:g}, "
                f"outside its range [{low:g}, {high:g}]",
                where=node.loc,
                hint=said("widen {input_range}, or leave the sample out"),
            )
    if len(counts) > 1:
        raise ProgramError(f"calibration holds {' and '.join(map(str, sorted(counts)))} samples of different inputs")
    if counts == {0}:
        raise ProgramError("calibration holds no samples", hint="give at least one, or none at all")
    return counts.pop()


class _Decision:
    """The distances of values from a decision's threshold, as counts by the logarithm of the distance."""

    _LOWEST, _STEP = -60.0, 1.0 / 16.0

    def __init__(self, rows: bool) -> None:
        self.rows = rows
        self.counts: Array = np.zeros(2048, dtype=np.int64)
        self.spread: float | None = 0.0 if rows else None

    def add(self, value: Array) -> None:
        distance = np.abs(value)
        if self.rows:
            ordered = np.sort(value, axis=1)
            distance = ordered[:, -1] - ordered[:, -2]
            assert self.spread is not None
            self.spread = max(self.spread, float((ordered[:, -1] - ordered[:, 0]).max()))
        with np.errstate(divide="ignore"):
            place = np.floor((np.log2(distance.ravel()) - self._LOWEST) / self._STEP)
        self.counts += np.bincount(np.clip(place, 0, self.counts.size - 1).astype(int), minlength=self.counts.size)

    def near(self) -> float | None:
        """The distance that all but one in a hundred keep, rounded down; None if more of them lie on the threshold."""
        place = int(np.searchsorted(np.cumsum(self.counts), _RARE * self.counts.sum(), side="right"))
        return None if place == 0 else float(2.0 ** (self._LOWEST + place * self._STEP))


def row_distances(program: Program) -> tuple[float | None, float | None]:
    """`near` and `spread` (see `Observed`) of a program's only output, rows by columns, on its calibration samples."""
    decision = _Decision(rows=True)
    for chunk in calibration_chunks(program):
        (value,) = run_nodes(program, chunk)
        decision.add(value)
    return decision.near(), decision.spread


class _Rounds:
    """The differences that each round of a maximum over so many rows compares, if all rounds are exact.

    `every`: a chunk has the samples of a chunk of so many times as many.
    """

    # The number of quantiles, and the number of differences picked evenly from each chunk of samples.
    _QUANTILES, _PICKED = 512, 1 << 14

    def __init__(self, rows: int, every: int = 1) -> None:
        self.count, self.every = rows.bit_length() - 1, every
        self.peaks: list[list[Array]] = [[] for _ in range(self.count)]
        self.picked: list[list[Array]] = [[] for _ in range(self.count)]

    def add(self, value: Array) -> None:
        for number in range(self.count):
            # The distances between rows half the height apart are the same for both halves.
            first, second = np.split(value, 2, axis=1)
            distance = np.abs(first - second).reshape(value.shape[0], -1)
            self.peaks[number].append(distance.max(axis=1))
            flat = distance.ravel()
            self.picked[number].append(flat[:: max(1, self.every * flat.size // self._PICKED)])
            value = np.maximum(first, second)

    def result(self) -> tuple[Round, ...]:
        shares = (np.arange(self._QUANTILES) + 0.5) / self._QUANTILES
        return tuple(
            Round(np.concatenate(peaks), np.quantile(np.concatenate(picked), shares))
            for peaks, picked in zip(self.peaks, self.picked, strict=True)
        )


class _Units:
    """Size, mean and spread of each unit of one value."""

    def __init__(self, node: Node) -> None:
        rank = len(shape_of(node))
        # Reduce over the samples and over the places within a channel.
        self.axes = (0,) if rank < 2 else (0, *range(2, rank + 1))
        self.keep = tuple(1 if axis in self.axes else -1 for axis in range(1, rank + 1))
        self.count = 0
        self.largest: Array = np.zeros(())
        self.total: Array = np.zeros(())
        self.squares: Array = np.zeros(())
        self.peaks: list[Array] = []
        self.lows: list[Array] = []
        self.highs: list[Array] = []

    def add(self, value: Array) -> None:
        apart = self.axes[1:]
        self.peaks.append(np.abs(value).max(axis=apart).reshape(value.shape[0], -1))
        self.lows.append(value.reshape(value.shape[0], -1).min(axis=1))
        self.highs.append(value.reshape(value.shape[0], -1).max(axis=1))
        self.count += math.prod(value.shape[axis] for axis in self.axes)
        self.largest = np.maximum(self.largest, np.abs(value).max(axis=self.axes))
        self.total = self.total + value.sum(axis=self.axes)
        self.squares = self.squares + np.square(value).sum(axis=self.axes)

    def reach(self) -> Array:
        mean = self.total / self.count
        std = np.sqrt(np.maximum(0.0, self.squares / self.count - mean**2))
        return np.asarray(np.maximum(self.largest, np.abs(mean) + 7.0 * std).reshape(self.keep))

    def tails(self) -> Tails:
        mean = self.total / self.count
        std = np.sqrt(np.maximum(0.0, self.squares / self.count - mean**2))
        lows, highs, peaks = (np.concatenate(parts) for parts in (self.lows, self.highs, self.peaks))
        return Tails(lows, highs, peaks, mean.ravel(), std.ravel())
