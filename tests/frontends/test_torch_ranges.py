"""Ranges and calibration samples of traced programs, and what is refused of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from frontends.support import Fn, refusal
from torch import nn

from heliograph.errors import ProgramError, RangeError
from heliograph.frontends.torch.export import trace

X4 = (torch.zeros(1, 4),)
SAMPLES = np.linspace(-1, 2, 12).reshape(3, 4)


def test_range_from_calibration() -> None:
    program = trace(nn.Linear(4, 2), *X4, calibration=torch.as_tensor(SAMPLES))
    assert (program.inputs[0].attrs["low"], program.inputs[0].attrs["high"]) == (-1.0, 2.0)
    assert len(program.calibration) == 1
    assert program.calibration[0].dtype == np.float64
    np.testing.assert_array_equal(program.calibration[0], SAMPLES)
    assert "calibration" not in str(program)


def test_declared_range_is_kept() -> None:
    program = trace(nn.Linear(4, 2), *X4, input_range=(-5, 5), calibration=(SAMPLES,))
    assert (program.inputs[0].attrs["low"], program.inputs[0].attrs["high"]) == (-5.0, 5.0)
    open_ = trace(nn.Linear(4, 2), *X4)
    assert "low" not in open_.inputs[0].attrs
    assert open_.calibration == ()


def test_two_inputs_with_ranges() -> None:
    module = Fn(lambda x, y: x * y)
    example = (torch.zeros(1, 4), torch.zeros(1, 4))
    program = trace(module, example, input_range=((-2, 2), None), calibration=(SAMPLES, SAMPLES * 10))
    assert [node.attrs["high"] for node in program.inputs] == [2.0, 20.0]
    assert [a.shape for a in program.calibration] == [(3, 4), (3, 4)]
    for options, words in (
        ({"input_range": (-1, 1)}, "one (low, high) per input"),
        ({"input_range": ((-1, 1),)}, "one (low, high) per input"),
        ({"calibration": SAMPLES}, "calibration has 1 entries, the model 2 inputs"),
        ({"calibration": (SAMPLES, SAMPLES[:2])}, "3 and 2 samples"),
    ):
        assert words in str(refusal(module, *example, kind=ProgramError, **options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"input_range": (1, 1)}, ["range of input 'input' is (1, 1)", "low must be below high"]),
        ({"input_range": (float("nan"), 1)}, ["both finite"]),
        ({"input_range": 3}, ["not a pair"]),
        ({"input_range": "ab"}, ["not a pair"]),
        ({"calibration": SAMPLES[0]}, ["has shape (4,), expected (samples, 4)", "samples[np.newaxis]"]),
        ({"calibration": SAMPLES[:, :3]}, ["has shape (3, 3), expected (samples, 4)"]),
        ({"calibration": np.empty((0, 4))}, ["holds no sample"]),
        ({"calibration": np.ones((2, 4))}, ["one number 1", "input_range"]),
        ({"calibration": [["a"] * 4]}, ["not an array of real numbers"]),
    ],
)
def test_bad_ranges_and_samples(options: dict[str, Any], words: list[str]) -> None:
    text = str(refusal(nn.Linear(4, 2), *X4, kind=ProgramError, **options))
    for word in words:
        assert word in text, text


def test_nan_in_calibration() -> None:
    samples = SAMPLES.copy()
    samples[1, 2] = np.nan
    error = refusal(nn.Linear(4, 2), *X4, kind=ProgramError, calibration=samples)
    assert "holds nan in sample 1, element (2,)" in str(error)


def test_calibration_outside_of_the_range() -> None:
    error = refusal(nn.Linear(4, 2), *X4, kind=RangeError, input_range=(-1, 1.5), calibration=SAMPLES)
    assert "has 1.72727 in sample 2, element (2,), outside of input_range (-1, 1.5)" in str(error)
    assert "2 of 12 elements" in error.why
