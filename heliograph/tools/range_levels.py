"""Levels that functions take for the ranges of their operands, and the price of a bit of each range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from heliograph.approx.compositions.exp import exp
from heliograph.approx.compositions.inverse import inverse
from heliograph.approx.compositions.softmax import softmax
from heliograph.errors import ProgramError
from heliograph.ir.analysis.depth import depth_of_degree
from heliograph.passes.polynomials.lower_inverses import DEFAULT_RELATIVE_ERROR, DEFAULT_SOFTMAX_ERROR

if TYPE_CHECKING:
    import torch

    from heliograph.frontends.torch.training.modules import ProgramModule

# The levels of a range are compared with those of a range so many bits wider, and so many narrower.
_STEP = 1.0
_LEAST_BITS = 0.1
_MOST_BITS = 8.0


def range_bits(module: ProgramModule, samples: Sequence[torch.Tensor], batch: int = 128) -> list[float]:
    """The bits of each function of `module.ranged` on the samples, the most of any batch; the module is left in eval
    mode. Arguments of polynomials are held in their intervals, as in training.
    """
    import torch

    module.eval()
    steps = module.ranged
    for step in (*steps, *module.polynomials):
        step.train()
    found = [0.0] * len(steps)
    with torch.no_grad():
        for start in range(0, len(samples[0]) if steps else 0, batch):
            module(*(each[start : start + batch] for each in samples))
            found = [max(old, _number(step.bits)) for old, step in zip(found, steps, strict=True)]
    module.eval()
    return found


def range_levels(module: ProgramModule, bits: Sequence[float]) -> list[int]:
    """The levels of each function of `module.ranged` at ranges of so many bits."""
    return [_levels(step, each) for step, each in zip(module.ranged, bits, strict=True)]


def range_prices(module: ProgramModule, bits: Sequence[float]) -> list[float]:
    """The price of a bit more for each function of `module.ranged`: the levels that it costs, as a share of the levels of
    all these functions and of all polynomials.
    """
    slopes = [
        (_levels(step, each + _STEP) - _levels(step, each - _STEP)) / (2 * _STEP)
        for step, each in zip(module.ranged, bits, strict=True)
    ]
    degrees = [step.constant("coefficients").numel() - 1 for step in module.polynomials]  # type: ignore[union-attr]
    whole = sum(range_levels(module, bits)) + sum(map(depth_of_degree, degrees))
    return [slope / max(whole, 1) for slope in slopes]


def _number(bits: torch.Tensor | None) -> float:
    return _MOST_BITS if bits is None or not bits.isfinite() else float(bits)


def _levels(step: Any, bits: float) -> int:
    """The levels of the plan that `compile` would take on such a range."""
    bits = max(bits, _LEAST_BITS)
    try:
        if step.op in ("softmax", "softmax_rows"):
            columns = step.shape[step.attrs["axis"] if step.op == "softmax" else 0]
            return 0 if columns < 2 else softmax(columns, 2.0**bits, max_error=DEFAULT_SOFTMAX_ERROR).depth
        if step.op == "exp":
            return exp(-(2.0**bits), 2.0**bits, DEFAULT_RELATIVE_ERROR).depth
        function = {"div": "reciprocal", "layer_norm": "rsqrt"}.get(step.op, step.op)
        return inverse(1.0, 2.0**bits, DEFAULT_RELATIVE_ERROR, function).depth
    except ProgramError:
        # No plan on so wide a range: each halving of a narrower one helps.
        return _levels(step, bits - _STEP) + 1 if bits > _STEP else 0
