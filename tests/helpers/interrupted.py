"""Training runs that end at a release, as a killed process does."""

from __future__ import annotations

from typing import Any


class KilledError(Exception):
    """The run was ended by its observer."""


def killer(after: int) -> Any:
    """An observer that ends the run at a release: its charge is made and its noise drawn, and nothing more."""
    seen: list[str] = []

    def observe(name: str, value: Any) -> None:
        seen.append(name)
        if len(seen) == after:
            raise KilledError

    return observe
