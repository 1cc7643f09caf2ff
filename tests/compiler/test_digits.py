"""Chains that hardly fit their ring, beside the ring twice as large."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

import heliograph as hg


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
