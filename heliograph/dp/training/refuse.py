"""Stand-in until the branch with the refusals is merged."""

from __future__ import annotations

from typing import Any


def check_module(module: Any, *args: Any, **kwargs: Any) -> None:
    pass


def check_loss(*args: Any, **kwargs: Any) -> None:
    pass
