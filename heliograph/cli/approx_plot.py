"""A picture of a function, its approximation and the error (matplotlib, the extra `plot`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.errors import HeliographError
from heliograph.report.plots import new_figure

_POINTS = 4001


def draw(
    path: Path,
    title: str,
    low: float,
    high: float,
    function: Callable[[Any], Any],
    approximation: Callable[[Any], Any],
    near: float | None = None,
    threshold: float | None = None,
) -> None:
    """Write a PNG: both curves above, the absolute error below.

    `near` is a gap around zero: points crowd at its edges, the x axis is logarithmic outside it, and it is shaded.
    At `threshold` results are rounded: a line shows on which side they are.
    """
    x = np.linspace(low, high, _POINTS)
    if near is not None:
        side = np.geomspace(near / 1000, max(abs(low), abs(high)), _POINTS // 2)
        x = np.unique(np.clip(np.concatenate((x[np.abs(x) >= side[0]], side, -side)), low, high))
    true, made = function(x), approximation(x)
    if near is not None and low < 0 < high:
        # No line is drawn across a jump at zero.
        middle = np.searchsorted(x, 0.0)
        x, true, made = (np.insert(values, middle, np.nan) for values in (x, true, made))
    figure = new_figure(7.0, 5.0)
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.plot(x, true, color="#0b5394", linewidth=1.4, label="function")
    upper.plot(x, made, color="#c0504d", linewidth=1.0, linestyle="--", label="approximation")
    if threshold is not None:
        upper.axhline(threshold, color="#555555", linewidth=0.8, linestyle=":", label="rounded up above, down below")
    upper.set_title(title, fontsize=10)
    upper.legend(fontsize=8)
    lower.semilogy(x, np.maximum(np.abs(made - true), 1e-17), color="#2f7d5b", linewidth=0.9)
    lower.set_ylabel("absolute error")
    lower.set_xlabel("x")
    for axis in (upper, lower):
        if near is not None:
            axis.set_xscale("symlog", linthresh=near, linscale=0.5)
            # Powers of ten within the linear part would overprint zero.
            axis.set_xticks([tick for tick in axis.get_xticks() if tick == 0 or abs(tick) >= 0.99 * near])
            axis.axvspan(-near, near, color="#888888", alpha=0.15, linewidth=0)
        axis.grid(linewidth=0.4)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise HeliographError(
            f"{path} cannot be written", why=str(error), hint="a file name that ends in .png"
        ) from None
