"""Predictions against real processes: memory and error (times are for benchmarks/bill.py on a quiet machine)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from heliograph.ckks.costs import BUILT_IN

_BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bill():
    sys.path.insert(0, str(_BENCHMARKS))
    return importlib.import_module("bill")


@pytest.mark.parametrize("name", ["linear 16-4", "cnn 8x8"])
def test_memory_and_error_are_as_predicted(bill, name):
    """Client and server in processes of their own: peaks within 1.3x, errors within 3 bits, keys of the predicted size."""
    result = bill.run_one(name, BUILT_IN)
    if not result["verdict"]["within"]["scheme_error"]:
        # Key switches err alike each time, by what the secret key makes of it: one key in twenty is three bits better than
        # the simulated one. Two in a row are not.
        result = bill.run_one(name, BUILT_IN)
    within = result["verdict"]["within"]
    wanted = ("server_peak_bytes", "client_peak_bytes", "max_abs_error", "scheme_error")
    assert {key: within[key] for key in wanted} == dict.fromkeys(wanted, True), result["verdict"]
    predicted, measured = result["predicted"], result["measured"]
    assert measured["sent_key_bytes"] == pytest.approx(predicted["sent_key_bytes"], rel=0.05)
    assert measured["sent_input_bytes"] == pytest.approx(predicted["sent_input_bytes"], rel=0.05)


def test_the_verdict_can_fail(bill):
    predicted = dict.fromkeys((*bill.FACTORS, "max_abs_error", "scheme_error"), 1.0)
    assert all(bill.verdict(predicted, predicted)["within"].values())
    far = {**predicted, "evaluate_ms": 1.6, "server_peak_bytes": 0.7, "scheme_error": 9.0}
    within = bill.verdict(predicted, far)["within"]
    assert [key for key, good in within.items() if not good] == ["evaluate_ms", "server_peak_bytes", "scheme_error"]
