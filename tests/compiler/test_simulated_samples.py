"""Samples of a plan are simulated at once, with the results that they have one after the other."""

from __future__ import annotations

import numpy as np
import pytest

import heliograph as hg
from heliograph import machine
from heliograph.compiler.planning import plan
from heliograph.compiler.planning.plan import AmplifiedError, Simulated, simulated
from heliograph.errors import RangeError
from heliograph.ir import Array

RELU = "program p\ninput x: secret tensor[8] in [-1, 1]\ny = relu(x)\noutput y\n"
# Carries its sum, which spends no levels.
SUM = """program p
input x: secret tensor[8] in [-1, 1]
input s: carried tensor[8] in [-8, 8]
output y = s * s
output s = s + x
"""


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads, however little there is to do."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    monkeypatch.setattr(machine, "_LEAST", 0)


def samples(count: int) -> list[Array]:
    return [np.random.default_rng(5).uniform(-1, 1, (count, 8))]


@pytest.mark.parametrize("text", [RELU, SUM])
def test_threads_change_no_error(text: str, threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    program = hg.compile(hg.parse(text)).program
    given = samples(4)
    if program.interface.carried:
        given.append(np.zeros((4, 8)))
    at_once = simulated(program, given)
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    in_turn = simulated(program, given)
    assert (at_once.error, at_once.gap_error, at_once.trace.calls) == (in_turn.error, 0.0, in_turn.trace.calls)
    assert at_once.error > 0


def test_a_sample_counts_only_if_none_before_it_is_refused(threads: None) -> None:
    program, given = hg.compile(hg.parse(RELU)).program, samples(3)
    # Far out of the polynomial's interval, it has no room in the modulus.
    given[0][1] = 1e9
    with pytest.raises(RangeError) as raised:
        simulated(program, given)
    assert not isinstance(raised.value, AmplifiedError)
    seen: list[Simulated] = []

    def refuses(found: Simulated) -> str:
        seen.append(found)
        return "too coarse"

    assert simulated(program, given, refuses) is seen[0]
    assert len(seen) == 1


def test_one_thread_simulates_nothing_after_a_refusal(threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    program, runs = hg.compile(hg.parse(RELU)).program, []
    execute = plan.execute
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    monkeypatch.setattr(plan, "execute", lambda *given, **named: runs.append(1) or execute(*given, **named))
    simulated(program, samples(3), lambda found: "too coarse")
    # Of the first sample: without errors, and with them.
    assert len(runs) == 2
