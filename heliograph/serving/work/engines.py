"""The engines by their names."""

from __future__ import annotations

from heliograph.errors import ProgramError
from heliograph.serving.work.engine import ENGINES, Engine, Work


def make_engine(name: str, work: Work, workers: int) -> Engine:
    """The engine of that name, for this many workers at once; a ProgramError if it cannot be used here."""
    if name == "local":
        from heliograph.serving.work.local import LocalEngine

        return LocalEngine(work, workers)
    if name == "ray":
        from heliograph.serving.work.ray_engine import RayEngine

        return RayEngine(work, workers)
    raise ProgramError(f"there is no engine {name!r}", hint=f"engines are {', '.join(ENGINES)}")
