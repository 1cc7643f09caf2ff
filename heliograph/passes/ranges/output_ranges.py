"""The possible range of each output: a client refuses results beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from heliograph import rounding
from heliograph.ir import Array, Node, Program, Stage, shape_of
from heliograph.ir.interface import TensorSpec
from heliograph.passes.ranges.intervals import Interval, hull, program_intervals
from heliograph.passes.ranges.slot_intervals import slot_intervals

# If nothing proves the outputs' range, sizes up to this many times the largest observed one still count as possible.
_OUTPUT_ROOM = 4.0
# A proved range can be very wide, because it follows from the images of all polynomials at once. If this many times the
# largest output on the samples is narrower by another factor, that range replaces the proved one, and anything beyond
# it is not a result.
_PROVED_ROOM, _MUCH_NARROWER = 8.0, 4.0
_ENOUGH_SAMPLES = 32
# Outputs may leave their range by this many standard deviations of the flooding noise.
_FLOOD_ROOM = 10.0


@dataclass(frozen=True, slots=True)
class OutputRanges:
    """Adds the possible range of each output to the interface of a polynomial (or slot) program.

    A range is proved from the images of the polynomials and the declared input ranges, provided that every polynomial's
    input stays in its interval. Where nothing bounds an output, or where the proved range is very wide and there are
    enough calibration samples, it is the observed range, with room.

    `stage`: the stage of the program.
    `outputs`: the outputs of the network on the samples, each with a leading sample axis.
    `calibrated`: the number of calibration samples.
    """

    stage: Stage
    outputs: Sequence[Array]
    calibrated: int = 0

    name: ClassVar[str] = "output-ranges"

    @property
    def needs(self) -> Stage:
        return self.stage

    @property
    def makes(self) -> Stage:
        return self.stage

    def run(self, program: Program) -> Program:
        if program.stage is Stage.PACKED:
            bounds = slot_intervals(program)
            whole = [
                _bounded(spec, hull(bounds[node]), "proved")
                for spec, node in zip(program.interface.outputs, program.outputs, strict=True)
            ]
            return _with_outputs(program, whole)
        proved = program_intervals(program, _images(program))
        specs, known = [], {spec.name: spec for spec in program.interface.outputs}
        for name, node, seen in zip(program.output_names, program.outputs, self.outputs, strict=True):
            if node in proved:
                interval, source = proved[node], "proved"
                reach = _PROVED_ROOM * float(np.abs(seen).max(initial=0.0))
                if self.calibrated >= _ENOUGH_SAMPLES and 0 < reach * _MUCH_NARROWER < proved[node].magnitude:
                    interval, source = Interval(-reach, reach), "observed"
            else:
                reach = _OUTPUT_ROOM * max(float(np.abs(seen).max(initial=0.0)), 1e-9)
                interval, source = Interval(-reach, reach), "observed"
            specs.append(_bounded(known.get(name, TensorSpec(name, shape_of(node))), interval, source))
        return _with_outputs(program, specs)


def _images(program: Program) -> Mapping[Node, Interval]:
    """The image of each polynomial on [-1, 1]: its extremes on a grid, with room for values between the points."""
    images = {}
    for node in program.nodes:
        if node.op == "poly":
            series = np.polynomial.chebyshev.chebval(
                np.cos(np.linspace(0.0, math.pi, 4001)), program.array(node.attrs["coefficients"])
            )
            degree = len(program.array(node.attrs["coefficients"])) - 1
            slack = degree * math.pi / 8000 * float(np.abs(series).max()) * 1.01
            images[node] = Interval(float(series.min()) - slack, float(series.max()) + slack)
    return images


def _with_outputs(program: Program, specs: Iterable[TensorSpec]) -> Program:
    return replace(program, interface=replace(program.interface, outputs=tuple(specs)))


def _bounded(spec: TensorSpec, interval: Interval, source: str) -> TensorSpec:
    low, high = rounding.outward(interval.low, interval.high)
    return replace(spec, low=low, high=high, range_source=source)


@dataclass(frozen=True, slots=True)
class Flood:
    """Sets the flooding noise that the server adds to a scheduled program's outputs, and widens the output ranges for
    it.

    `std`: the standard deviation of the noise.
    """

    std: float

    name: ClassVar[str] = "flood"
    needs: ClassVar[Stage] = Stage.EXECUTABLE
    makes: ClassVar[Stage] = Stage.EXECUTABLE

    def run(self, program: Program) -> Program:
        room = _FLOOD_ROOM * self.std
        specs = [
            spec if spec.low is None or spec.high is None else replace(spec, low=spec.low - room, high=spec.high + room)
            for spec in program.interface.outputs
        ]
        return _with_outputs(replace(program, parameters=replace(program.planned, flood=self.std)), specs)
