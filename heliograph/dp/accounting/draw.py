"""Plots of privacy curves; matplotlib is loaded here only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heliograph.dp.accounting.result import Bracket
from heliograph.dp.accounting.trade_off import TradeOff, gaussian_curve
from heliograph.errors import ProgramError


def draw_epsilon_curve(brackets: Sequence[Bracket], path: Path, title: str, renyi: Sequence[float | None] = ()) -> None:
    """Write a plot of epsilon brackets against their deltas. Raises ProgramError if there is nothing to draw.

    renyi: Renyi accounting's bound at the delta of each bracket, drawn beside them, or nothing. The bracket is
    usually thinner than a line; its gain over that bound is not.
    """
    finite = [b for b in brackets if b.upper is not None and b.lower is not None and math.isfinite(b.upper)]
    if not finite:
        raise ProgramError("no epsilon is finite, so there is no curve", where="curve", why=brackets[0].reason)
    figure, axes = _figure()
    deltas = [b.delta or 0.0 for b in finite]
    lower, upper = [b.lower or 0.0 for b in finite], [b.upper or 0.0 for b in finite]
    axes.fill_between(deltas, lower, upper, alpha=0.4, label="proved bracket")
    axes.plot(deltas, [b.estimate for b in finite], linewidth=1.2, label="estimate")
    beside = [(b.delta or 0.0, bound) for b, bound in zip(brackets, renyi, strict=False) if bound is not None]
    if beside:
        axes.plot(*zip(*beside, strict=True), "--", color="#c0504d", linewidth=1.1, label="bound by Renyi accounting")
    axes.set_xscale("log")
    axes.set_xlabel("delta")
    axes.set_ylabel("epsilon")
    _write(figure, axes, title, path)


def draw_trade_off(curve: TradeOff, mus: Sequence[float], path: Path, title: str) -> None:
    """Write a plot of a trade-off curve between its bounds, with the Gaussian curves of some mu."""
    figure, axes = _figure()
    rates = list(curve.false_positive_rate)
    axes.fill_between(rates, curve.lower, curve.upper, alpha=0.4, label="proved bracket")
    axes.plot(rates, curve.estimate, linewidth=1.2, label="estimate")
    for mu in mus:
        axes.plot(
            rates, [gaussian_curve(mu, rate) for rate in rates], "--", linewidth=0.9, label=f"Gaussian, mu = {mu:.4g}"
        )
    axes.plot([0, 1], [1, 0], ":", color="gray", linewidth=0.8, label="random guessing")
    axes.set_xlabel("false-positive rate")
    axes.set_ylabel("smallest false-negative rate")
    _write(figure, axes, title, path)


def _figure() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ProgramError(
            "matplotlib is not installed", where="curve", hint="pip install 'heliograph[plot]'"
        ) from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _write(figure: Any, axes: Any, title: str, path: Path) -> None:
    axes.set_title(title if len(title) <= 80 else title[:77] + "...", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=150, format="png")
    except OSError as error:
        raise ProgramError("the picture cannot be written", where=path, why=error.strerror or str(error)) from None
