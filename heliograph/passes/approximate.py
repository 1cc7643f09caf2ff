"""Replace every activation by a polynomial on the range of its input."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from heliograph.approx.fit import Fit, fit, smallest_degree
from heliograph.errors import ProgramError
from heliograph.ir import Builder, Node, Program, Stage, TensorType
from heliograph.ir.ops import OPS
from heliograph.passes.calibrate import Observed
from heliograph.passes.intervals import Bounds, Interval, hull, transfer

# A symmetric interval lets ReLU-like functions be evaluated with about a quarter fewer products; it is taken where it is
# not wider than this factor.
_SYMMETRY = 1.35
DEFAULT_DEGREE = 15


@dataclass(frozen=True, slots=True)
class Approximate:
    """Activations become `poly` nodes.

    `degree` is for all layers, `degrees` for single ones (by layer name), `target_error` asks for the smallest degree
    whose largest error is under it. `margin` widens an observed range on each side, as a share of its width. `observed`
    is what `Calibrate` saw. A range is proved (intervals from the input range), observed, or declared at the op.
    """

    degree: int | None = None
    degrees: Mapping[str, int] = field(default_factory=dict)
    target_error: float | None = None
    margin: float = 0.1
    method: str | None = None
    observed: Mapping[Node, Observed] = field(default_factory=dict)

    name: ClassVar[str] = "approximate"
    needs: ClassVar[Stage] = Stage.TENSOR
    makes: ClassVar[Stage] = Stage.POLYNOMIAL

    def run(self, program: Program) -> Program:
        builder = Builder(program.name, Stage.POLYNOMIAL, program)
        layers = [node.loc.layer for node in program.nodes if OPS[node.op].activation is not None]
        for layer in self.degrees:
            if layer not in layers:
                near = difflib.get_close_matches(layer, layers, n=3) or layers[:5]
                raise ProgramError(
                    f"degrees names the layer {layer!r}, and no activation is called that",
                    where="Options.degrees",
                    hint=f"activations here: {', '.join(near) or 'none'}",
                )
        new: dict[Node, Node] = {}
        bounds: dict[Node, Bounds | None] = {}
        ranges: list[dict[str, Any]] = []
        for node in program.nodes:
            operands = [new[operand] for operand in node.inputs]
            if OPS[node.op].activation is None:
                made = builder.copy(node, operands) if node.op != "input" else node
                if node.op == "input":
                    builder.inputs.append(node)
                known = [bounds[operand] for operand in made.inputs]
                bounds[made] = transfer(made, known, builder.context, {})
            else:
                made = self._activation(builder, node, operands[0], bounds, ranges)
            new[node] = made
        builder.metadata["ranges"] = ranges
        outputs = dict(zip(program.output_names, (new[node] for node in program.outputs), strict=True))
        return builder.finish(outputs)

    def _activation(
        self,
        builder: Builder,
        node: Node,
        operand: Node,
        bounds: dict[Node, Bounds | None],
        ranges: list[dict[str, Any]],
    ) -> Node:
        spec = OPS[node.op]
        assert spec.activation is not None
        activation, attrs = spec.activation, node.attrs
        proved = None if bounds.get(operand) is None else hull(bounds[operand])  # type: ignore[arg-type]
        seen = self.observed.get(node.inputs[0])
        interval, source = self._interval(node, proved, seen)
        if node.op == "relu" and source == "proved" and interval.low >= 0:
            return operand  # the identity on its whole range
        low, high = _symmetric(interval)
        method = attrs.get("method") or self.method or ("gaussian" if seen else "minimax")
        mean, std = (seen.mean, seen.std) if seen else (None, None)
        try:
            chosen = self._fit(node, lambda x: np.asarray(activation(x, attrs)), low, high, method, mean, std)
        except ProgramError as error:
            raise ProgramError(error.what, where=node.loc, why=error.why, hint=error.hint) from None
        coefficients = builder.constant(np.array(chosen.coefficients), f"{node.loc.layer or node.op}.poly")
        made = builder.op("poly", (operand,), node.loc, coefficients=coefficients, low=chosen.low, high=chosen.high)
        image = Interval(*chosen.image())
        assert isinstance(node.type, TensorType)
        bounds[made] = (np.full(node.type.size, image.low), np.full(node.type.size, image.high))
        ranges.append(
            {
                "layer": node.loc.layer,
                "location": node.loc.short,
                "function": node.op,
                "low": chosen.low,
                "high": chosen.high,
                "source": source,
                "samples": seen.samples if source == "observed" and seen else 0,
                "margin": self.margin if source == "observed" else 0.0,
                "observed": [seen.low, seen.high] if seen else None,
                "proved": [proved.low, proved.high] if proved else None,
                "degree": chosen.degree,
                "method": chosen.method,
                "max_error": chosen.max_error,
                "rms_error": chosen.rms_error,
            }
        )
        return made

    def _interval(self, node: Node, proved: Interval | None, seen: Observed | None) -> tuple[Interval, str]:
        if "low" in node.attrs and "high" in node.attrs:
            declared = Interval(node.attrs["low"], node.attrs["high"])
            if seen and (seen.low < declared.low or seen.high > declared.high):
                raise ProgramError(
                    f"the range [{declared.low:g}, {declared.high:g}] given for {node.op} is contradicted by calibration",
                    where=node.loc,
                    why=f"the samples reach [{seen.low:g}, {seen.high:g}]",
                    hint="widen the range, or remove it and let calibration choose",
                )
            return declared, "declared"
        if seen is not None:
            width = max(seen.high - seen.low, 1e-6 * max(abs(seen.high), abs(seen.low), 1e-6))
            low, high = seen.low - self.margin * width, seen.high + self.margin * width
            if proved is None:
                return Interval(low, high), "observed"
            if proved.low >= low and proved.high <= high:
                return _wide(proved), "proved"
            return _wide(Interval(max(low, proved.low), min(high, proved.high))), "observed"
        if proved is not None:
            return _wide(proved), "proved"
        raise ProgramError(
            f"nothing bounds the input of {node.op}",
            where=node.loc,
            why="a polynomial is only good on an interval, and neither calibration samples nor an input range were given",
            hint="pass calibration=samples or input_range=(low, high) to trace, or a range for this layer",
        )

    def _fit(self, node: Node, function: Any, low: float, high: float, method: str, mean: Any, std: Any) -> Fit:
        degree = self.degrees.get(node.loc.layer, node.attrs.get("degree", self.degree))
        if degree is not None:
            return fit(function, low, high, degree, method, mean, std)
        if self.target_error is not None:
            return smallest_degree(function, low, high, self.target_error, method, mean, std)
        return fit(function, low, high, DEFAULT_DEGREE, method, mean, std)


def _wide(interval: Interval) -> Interval:
    """The interval, made at least a little wide so that it can be scaled to [-1, 1]."""
    least = 1e-6 * max(interval.magnitude, 1e-6)
    if interval.high - interval.low >= least:
        return interval
    middle = (interval.high + interval.low) / 2
    return Interval(middle - least, middle + least)


def _symmetric(interval: Interval) -> tuple[float, float]:
    reach = interval.magnitude
    if 2 * reach <= _SYMMETRY * (interval.high - interval.low):
        return -reach, reach
    return interval.low, interval.high
