"""The progress bar of a training run: steps, the share of the budget that is committed, metrics on public data only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Update = Callable[[int, int, float, str], None]
"""(step, steps, share of the budget committed, metrics in words)."""


@contextlib.contextmanager
def training_bar(show: bool) -> Iterator[Update]:
    """An update function that draws a bar on stderr; it does nothing when not wanted or not on a terminal."""
    if not show or not sys.stderr.isatty():
        yield lambda done, total, committed, metrics: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=None)

        def update(done: int, total: int, committed: float, metrics: str) -> None:
            text = f"training, budget committed {100 * committed:.1f} %"
            bar.update(task, completed=done, total=total, description=f"{text}{', ' + metrics if metrics else ''}")

        yield update
