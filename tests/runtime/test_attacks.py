"""Hostile files through reader, compiler, server and client: only HeliographErrors come out, in bounded time and memory."""

from __future__ import annotations

import resource

import pytest

pytest.importorskip("openfhe")

from helpers.attacks import ATTACKS, attempt
from helpers.fuzzing import fuzz

# Mutants in a run, where not as many as of the others: those of key folders and bootstraps take a second of a busy machine.
SHORT = {"key folders": 3, "keys with bootstraps": 3, "messages, bootstrapped": 8, "public artifacts": 60}
LONG = {"key folders": 400, "keys with bootstraps": 400, "messages, bootstrapped": 1000}
# Kilobytes by which a run may grow the process: contexts of rings that no other test has, and caches of templates.
GROWTH = 1_500_000


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_short(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tally = fuzz(ATTACKS[name][0], attempt(name), SHORT.get(name, 15), seed=1)
    assert not tally.failures
    assert tally.refused
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_long(name: str) -> None:
    tally = fuzz(ATTACKS[name][0], attempt(name), LONG.get(name, 2000), seed=2)
    assert not tally.failures
    assert tally.accepted
