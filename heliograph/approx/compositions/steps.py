"""Building, running and bounding the rounding of `StepPlan`s."""

from __future__ import annotations

import numpy as np

from heliograph.approx.evaluate import PowerStep, SumStep
from heliograph.approx.result import Stage, Step, StepPlan, Vector


class Steps:
    """Collects steps; every method returns the new step's number."""

    def __init__(self) -> None:
        self.steps: list[Step] = [Step("input")]

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def poly(self, x: int, stage: Stage) -> int:
        """The stage at x; its interval must be [-1, 1]."""
        assert (stage.low, stage.high) == (-1.0, 1.0), "scale before a polynomial"
        return self._add(Step("poly", (x,), stage=stage))

    def multiply(self, x: int, y: int) -> int:
        return self._add(Step("multiply", (x, y)))

    def add(self, x: int, y: int) -> int:
        return self._add(Step("add", (x, y)))

    def subtract(self, x: int, y: int) -> int:
        return self._add(Step("subtract", (x, y)))

    def add_constant(self, x: int, value: float) -> int:
        return self._add(Step("add_constant", (x,), value=float(value)))

    def scale(self, x: int, value: float) -> int:
        return self._add(Step("scale", (x,), value=float(value)))

    def scale_integer(self, x: int, value: int) -> int:
        return self._add(Step("scale_integer", (x,), value=float(value)))

    def from_constant(self, value: float, x: int) -> int:
        """value - x."""
        return self.add_constant(self.scale_integer(x, -1), value)

    def sum_row(self, x: int) -> int:
        return self._add(Step("sum_row", (x,)))

    def rotate(self, x: int, amount: int) -> int:
        return self._add(Step("rotate", (x,), value=float(amount)))

    def mask(self, x: int, factor: float = 1.0) -> int:
        """factor * x in the columns that carry data, zero in the others."""
        return self._add(Step("mask", (x,), value=float(factor)))

    def add_padding(self, x: int, value: float) -> int:
        """`value` added to the columns that carry no data."""
        return self._add(Step("add_padding", (x,), value=float(value)))

    def first_column(self, x: int, factor: float) -> int:
        """factor times the first column's value, in every column."""
        return self._add(Step("first_column", (x,), value=float(factor)))

    def done(self) -> tuple[Step, ...]:
        return tuple(self.steps)


def run(plan: StepPlan, rows: Vector) -> Vector:
    """The plan's value on rows of `plan.columns` values, in floating point; the same steps as the lowered program.

    This is the meaning of a `StepPlan`: polynomials by their evaluation plan, padding columns included.
    """
    data = np.asarray(rows, dtype=np.float64)
    x = np.zeros((*data.shape[:-1], plan.width))
    x[..., : plan.columns] = data
    last_use = {}
    for number, step in enumerate(plan.steps):
        for operand in step.operands:
            last_use[operand] = number
    values: dict[int, Vector] = {0: x}
    for number, step in enumerate(plan.steps):
        if number:
            values[number] = _value(plan, step, [values[i] for i in step.operands])
        for operand in set(step.operands):
            if last_use[operand] == number:
                del values[operand]
    return values[len(plan.steps) - 1][..., : plan.columns]


def _value(plan: StepPlan, step: Step, operands: list[Vector]) -> Vector:
    x = operands[0]
    if step.kind == "poly":
        assert step.stage is not None
        return _evaluate(step.stage, x)
    if step.kind == "multiply":
        return x * operands[1]
    if step.kind == "add":
        return x + operands[1]
    if step.kind == "subtract":
        return x - operands[1]
    if step.kind == "add_constant":
        return x + step.value
    if step.kind in ("scale", "scale_integer"):
        return x * step.value
    if step.kind == "sum_row":
        return np.broadcast_to(x.sum(axis=-1, keepdims=True), x.shape)
    if step.kind == "rotate":
        return np.roll(x, -int(step.value), axis=-1)
    if step.kind == "first_column":
        return np.broadcast_to(step.value * x[..., :1], x.shape)
    if step.kind == "mask":
        made = step.value * x
        made[..., plan.columns :] = 0.0
        return made
    assert step.kind == "add_padding", step.kind
    made = x.copy()
    made[..., plan.columns :] += step.value
    return made


def _evaluate(stage: Stage, t: Vector) -> Vector:
    """The stage's plan at t, not held to [-1, 1]: what a ciphertext would give there too."""
    power = {1: t}
    value: dict[int, Vector] = {}
    result = np.zeros_like(t)
    for step in stage.plan.steps:
        if isinstance(step, PowerStep):
            made = power[step.left] * power[step.right]
            made *= 2.0
            made -= 1.0 if step.left == step.right else t
            power[step.index] = made
        else:
            result = _sum(step, power, value, t)
            value[step.target] = result
    return result


def _sum(step: SumStep, power: dict[int, Vector], value: dict[int, Vector], t: Vector) -> Vector:
    result = np.full_like(t, step.constant)
    for source, g in step.products:
        result += value[source] * power[g]
    for i, weight in step.weights:
        result += weight * power[i]
    return result
