"""Only real numbers go into a program: imaginary parts are refused, and never dropped."""

from __future__ import annotations

import numpy as np
import pytest

import heliograph as hg

_TEXT = """
program line

input x: secret tensor[3] in [-8, 8]

output y = x * 2.0
"""
_COMPLEX = np.ones(3) + 5j


def test_complex_numbers_are_refused_wherever_values_are_given() -> None:
    artifact = hg.compile(hg.parse(_TEXT), hg.Options(security_bits=None, log_ring=10))
    client = hg.Client(artifact, allow_insecure=True)
    for given in (_COMPLEX, list(_COMPLEX), _COMPLEX.astype(np.complex64)):
        for call in (client.encrypt, lambda x: hg.simulate(artifact, x)):
            with pytest.raises(hg.ProgramError, match="not an array of real numbers"):
                call(given)


def test_complex_calibration_is_refused() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 1).eval()
    for given in (np.stack([_COMPLEX] * 4), torch.ones(4, 3) + 5j):
        with pytest.raises(hg.ProgramError, match=r"real numbers|complex"):
            hg.trace(module, torch.ones(2, 3), calibration=given)
