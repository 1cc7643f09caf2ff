"""Where the real data are, for the tests that need them."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def folder() -> Path:
    """HELIOGRAPH_DATA, or `shared/data` beside the project where that is, or `data` in it, as benchmarks/fetch.py has it."""
    beside = ROOT.parent / "shared" / "data"
    return Path(os.environ.get("HELIOGRAPH_DATA", beside if beside.is_dir() else ROOT / "data"))


def absent(path: Path) -> str:
    """What to say where a file is not there."""
    return (
        f"{path} is not there; get it with benchmarks/fetch.py, or set HELIOGRAPH_DATA to the folder with {path.name}"
    )
