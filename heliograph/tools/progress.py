"""A bar on stderr for work that lasts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from heliograph.execution.loop import Progress


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress]:
    """A function `(stage, done, total)` that draws a bar on stderr; it does nothing when quiet or not on a terminal.

    A total of 0 stands for work of unknown length.
    """
    if quiet or not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        yield lambda stage, done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import (
        Progress as Bar,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total or None)
            bar.update(tasks[stage], completed=done, total=total or None)

        yield update
