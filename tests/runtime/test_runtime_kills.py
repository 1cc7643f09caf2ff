"""kill -9 at random moments: nothing half-written is accepted, and nothing is left behind after the next run."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.kills import SCENARIOS, kill


def check(name: str, folder: Path, kills: int, seed: int) -> None:
    tally = kill(SCENARIOS[name](folder), kills, seed)
    print(f"{name}: {tally}")
    assert tally.kills == kills
    assert tally.wrong == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_few_kills(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_many_kills(name: str, tmp_path: Path) -> None:
    """A hundred in all."""
    check(name, tmp_path, 25, 1)
