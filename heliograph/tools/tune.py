"""Compiles a program with many options and shows what accuracy costs in time, keys and memory; nothing is encrypted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heliograph.compiler.arguments import program_of
from heliograph.compiler.driver import compile
from heliograph.compiler.options import USUAL_BITS, Options
from heliograph.errors import PlanningError, ProgramError
from heliograph.execution.loop import Progress
from heliograph.functions import known
from heliograph.ir import Program
from heliograph.records import named
from heliograph.report.text import bytes_text, columns_text, seconds_text, share_text

# What is tried unless something else is asked for.
DEGREES = (3, 7, 15, 31)
PRECISIONS = (8.0, 10.0, 14.0)
BATCHES: tuple[int | str, ...] = (1, "max")
ALLOCATED = (0.005, 0.02)


@dataclass(frozen=True, slots=True)
class Point:
    """Options, and what a program compiled with them is predicted to do.

    options: those that differ from the ones that all points share, by name.
    same: the share of held-out samples on which the class is the model's; None without classes.
    error: the largest error of an output, as a share of the largest output.
    sample_ms: the milliseconds of a run for each of its `batch` samples; `ms` those of the run.
    key_bytes, memory_bytes: of the evaluation keys, and of the server's process.
    ring_dim, levels: N and the levels of the chain.
    front: whether no other point is at least as good in everything and better in something.
    """

    options: Mapping[str, Any]
    same: float | None
    error: float
    ms: float
    batch: int
    key_bytes: int
    memory_bytes: int
    ring_dim: int
    levels: int
    front: bool = False

    @property
    def sample_ms(self) -> float:
        return self.ms / self.batch

    @property
    def costs(self) -> tuple[float, ...]:
        """What is to be small."""
        return (1.0 - (1.0 if self.same is None else self.same), self.error, self.ms, self.sample_ms, self.key_bytes,
                self.memory_bytes)  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return {
            "options": dict(self.options), "class_agreement": self.same, "relative_error": self.error, "ms": self.ms,
            "batch": self.batch, "ms_per_sample": self.sample_ms, "evaluation_key_bytes": self.key_bytes,
            "server_peak_bytes": self.memory_bytes, "ring_dim": self.ring_dim, "levels": self.levels, "front": self.front,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tuning:
    """The points that were tried, from the fastest to the slowest, and the options that could not be planned, with why.

    base: the options that all points share.
    """

    name: str
    base: Options
    points: tuple[Point, ...]
    failed: tuple[tuple[Mapping[str, Any], str], ...]

    @property
    def front(self) -> tuple[Point, ...]:
        """The points of which none is worse than another in everything."""
        return tuple(point for point in self.points if point.front)

    def options(self, point: Point) -> Options:
        """The options with which a point is compiled."""
        return replace(self.base, **point.options)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "points": [point.to_dict() for point in self.points],
            "failed": [{"options": dict(options), "why": why} for options, why in self.failed],
        }

    def _repr_html_(self) -> str:
        """The view in a notebook: accuracy against time as a picture, and the front as a table."""
        # It draws what is here.
        from heliograph.tools.tune_page import tuning_fragment

        return tuning_fragment(self)

    def __str__(self) -> str:
        lines = columns_text([TITLES, *map(cells, self.front)])
        others = len(self.points) - len(self.front)
        more = [f"{others} other points are no better in anything"] * bool(others)
        more += [f"not planned: {options_text(options)}: {why}" for options, why in self.failed]
        return "\n".join([f"{self.name}: what accuracy costs, predicted", *lines, *more])


TITLES = ("options", "class", "error", "a run", "a sample", "keys", "memory", "N", "levels")


def cells(point: Point) -> tuple[str, ...]:
    """A row of the table of points, in words."""
    return (
        options_text(point.options),
        "-" if point.same is None else share_text(point.same),
        share_text(point.error),
        seconds_text(point.ms / 1e3),
        seconds_text(point.sample_ms / 1e3),
        bytes_text(point.key_bytes),
        bytes_text(point.memory_bytes),
        str(point.ring_dim),
        str(point.levels),
    )


def options_text(options: Mapping[str, Any]) -> str:
    """Options as arguments of `hg.Options`."""
    return ", ".join(f"{name}={value!r}" for name, value in options.items()) or "as they are"


@named(Options)
def tune(
    program: Any,
    options: Options | None = None,
    *,
    example_input: Any = None,
    calibration: Any = None,
    input_range: Any = None,
    degrees: Sequence[int] = DEGREES,
    precisions: Sequence[float] = PRECISIONS,
    batches: Sequence[int | str] = BATCHES,
    allocated: Sequence[float] = ALLOCATED,
    progress: Progress | None = None,
) -> Tuning:
    """The program compiled with several degrees and allocations, and the best of these with other precisions and batches.

    program: with calibration samples, which are the measure of accuracy. In its place a PyTorch module or an estimator may
        be given as to `compile`, with `example_input`, `calibration` and `input_range`.
    options: those that all points share; what is tried must not be among them.
    degrees: values of `degree`, and `allocated` values of `accuracy_loss` for `allocate="plan"`, where there are several
        activations. Of the front of these points, the most accurate, the fastest and one between are then tried with
        `precisions` and `batches`, values of `precision_bits` and `batch`.
    progress: called as `progress("tuning", done, total)`, whose total is known better as it goes on, and by `compile`.

    Raises ProgramError if the program has no calibration samples, PlanningError if nothing could be planned, and the errors
    of `trace`.
    """
    program = program_of(program, "tune", example_input, calibration, input_range)
    if not program.calibration:
        raise ProgramError("tune needs calibration samples", hint="they are the measure of accuracy")
    base = options or Options()
    for name, usual in (("degree", None), ("precision_bits", None), ("batch", 1), ("allocate", None)):
        if getattr(base, name) != usual:
            raise ProgramError(f"{name} is tried with several values, and was given", hint="leave it out")
    points: list[Point] = []
    failed: list[tuple[Mapping[str, Any], str]] = []

    def attempt(tried: Sequence[Mapping[str, Any]]) -> None:
        begun = len(points) + len(failed)
        for number, chosen in enumerate(tried):
            if progress is not None:
                progress("tuning", begun + number, begun + len(tried))
            try:
                points.append(_point(program, base, chosen, progress))
            except ProgramError as error:
                failed.append((chosen, error.what))
        if progress is not None:
            progress("tuning", begun + len(tried), begun + len(tried))

    attempt(_first(program, degrees, allocated))
    front = [point for point in _marked(points) if point.front]
    # By the order of their time: the fastest, the slowest, which is the most accurate, and the one in the middle.
    best = list({place: front[place] for place in (0, len(front) // 2, len(front) - 1)}.values()) if front else []
    attempt(
        [{**point.options, "precision_bits": bits} for point in best for bits in precisions if bits != USUAL_BITS]
        + [{**point.options, "batch": batch} for point in best for batch in batches if batch != 1]
    )
    if not points:
        raise PlanningError("none of the options could be planned", why=failed[0][1] if failed else "")
    return Tuning(program.name, base, _marked(points), tuple(failed))


def _first(program: Program, degrees: Sequence[int], allocated: Sequence[float]) -> list[dict[str, Any]]:
    """The options of the first points."""
    activations = sum(known(node.op) is not None for node in program.nodes)
    made: list[dict[str, Any]] = [{"degree": degree} for degree in degrees] if activations else [{}]
    if activations > 1:
        made += [{"allocate": "plan", "accuracy_loss": loss} for loss in allocated]
    return made


def _point(program: Program, base: Options, chosen: Mapping[str, Any], progress: Progress | None) -> Point:
    figures = compile(program, replace(base, **chosen), progress=progress).report.figures
    agreement, predicted = figures.class_agreement, figures.predicted
    return Point(
        chosen,
        None if agreement is None else agreement.agree / agreement.samples,
        predicted.relative_error or 0.0,
        predicted.evaluate_ms,
        figures.batch,
        predicted.evaluation_key_bytes,
        predicted.server_peak_bytes,
        figures.ring_dim,
        figures.levels,
    )


def _marked(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points in the order of their time, those of the front marked; of equal ones the first."""

    def beaten(point: Point) -> bool:
        for place, other in enumerate(points):
            as_good = all(a <= b for a, b in zip(other.costs, point.costs, strict=True))
            if as_good and (other.costs != point.costs or place < points.index(point)):
                return True
        return False

    return tuple(sorted((replace(point, front=not beaten(point)) for point in points), key=lambda point: point.ms))
