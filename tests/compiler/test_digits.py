"""Chains that hardly fit their ring, beside the ring twice as large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import heliograph as hg
from heliograph.ckks.ring import Ring
from heliograph.compiler.planning import planner
from heliograph.compiler.planning.plan import Plan, Refusal
from heliograph.errors import PlanningError
from heliograph.execution.loop import Trace


def test_a_larger_ring_is_taken_where_the_smaller_one_needs_a_digit_for_each_prime() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    x = np.random.default_rng(0).uniform(size=(128, 784)).astype(np.float32)
    scores = hg.trace(module, torch.from_numpy(x[:1]), input_range=(0.0, 1.0), calibration=x)
    program, options = hg.top1(scores, gap=1.7e-3), hg.Options(degree=15, precision_bits=10.0)
    found, small = hg.compile(program, options), hg.compile(program, replace(options, log_ring=15))
    key_bytes = [sum(key.bytes for key in artifact.evaluation_keys) for artifact in (found, small)]
    assert (found.ring.log_ring, small.ring.log_ring) == (16, 15)
    assert small.ring.digits > 20
    assert found.ring.digits <= 8
    assert key_bytes[0] < key_bytes[1] / 3
    assert found.report.figures.predicted_ms < 1.1 * small.report.figures.predicted_ms


@pytest.mark.parametrize(
    ("digits", "coarse_ms", "larger_ms", "larger_keys", "taken"),
    [
        (20, None, 111.0, 8, 16),
        (20, None, 160.0, 2, 16),
        (20, None, 160.0, 9, 15),
        (4, None, 111.0, 8, 15),
        (4, 57.0, 111.0, 8, 16),
        (4, 130.0, 111.0, 8, 15),
    ],
    ids=["faster", "smaller keys", "slower", "few digits", "much dearer than a coarse one", "little dearer"],
)
def test_bootstraps_on_the_larger_ring_are_compared_where_the_smaller_one_is_crowded(
    monkeypatch: pytest.MonkeyPatch,
    digits: int,
    coarse_ms: float | None,
    larger_ms: float,
    larger_keys: int,
    taken: int,
) -> None:
    program = hg.parse("program p\ninput x: secret slots[8] in [-1, 1]\noutput y = x * x\n")
    keys = {15: 10 << 30, 16: larger_keys << 30}
    known = {
        log_ring: Plan(program, (), Ring(log_ring, 34, 30, 20, count, bootstrap=(4, 3)), Trace(), ms, 0.0, 1.0)
        for log_ring, count, ms in ((15, digits, 144.0), (16, 2, larger_ms))
    }
    known[15] = replace(known[15], coarse_ms=coarse_ms)
    asked = []

    def planned(log_ring: int, *given: Any, **named: Any) -> Plan | Refusal:
        asked.append(log_ring)
        return known.get(log_ring, Refusal(PlanningError("no chain")))

    monkeypatch.setattr(planner, "plan_bootstrapped", planned)
    monkeypatch.setattr(Plan, "key_bytes", property(lambda plan: keys[plan.ring.log_ring]))
    plan = planner.make_plan(program, hg.Options(bootstrap=True), [np.ones(8)])
    assert plan.ring.log_ring == taken
    assert (16 in asked) == (digits > 8 or coarse_ms == 57.0)
