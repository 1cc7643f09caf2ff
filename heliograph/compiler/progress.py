"""The progress of a compilation, in passes and in what is tried for some of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from heliograph.compiler.pipeline import PASSES
from heliograph.execution.loop import Progress

_STAGE = "compiling"


def listener(progress: Progress) -> Callable[[str, bool], None]:
    """A function that is told what begins, and tells `progress`.

    Passes are counted as `("compiling", place, passes)`, by the furthest one so far: those after packing run again for
    each plan. Other work, such as the plans in a ring, is counted by its name, as `(name, number, 0)`: how many there
    will be is not known.
    """
    furthest, counts = 0, Counter[str]()

    def told(what: str, a_pass: bool) -> None:
        nonlocal furthest
        if not a_pass:
            counts[what] += 1
            progress(what, counts[what], 0)
        elif what in PASSES and PASSES.index(what) > furthest:
            furthest = PASSES.index(what)
            progress(_STAGE, furthest, len(PASSES))

    progress(_STAGE, 0, len(PASSES))
    return told


def ended(progress: Progress) -> None:
    """Tell that a compilation has ended."""
    progress(_STAGE, len(PASSES), len(PASSES))
