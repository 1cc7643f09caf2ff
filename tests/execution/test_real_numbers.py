"""Only real numbers go into a program: imaginary parts are refused, and never dropped."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import heliograph as hg
from heliograph.execution.interface import real_numbers
from heliograph.interpret import interpret_batch

_TEXT = """
program line

input x: secret tensor[3] in [-8, 8]

output y = x * 2.0
"""
_COMPLEX = np.ones(3) + 5j
# What numpy would make numbers of.
_OTHERS: dict[str, tuple[Any, str]] = {
    "complex": (_COMPLEX, "complex numbers"),
    "complex, single": (_COMPLEX.astype(np.complex64), "complex numbers"),
    "a list with one": ([1.0, 2.0, 3j], "complex numbers"),
    "objects with one": (np.array([1.0, 2.0, np.complex64(3j)], dtype=object), "other objects"),
    "texts": (["1", "2", "3"], "texts"),
    "a list with a text": ([1.0, 2.0, "3"], "texts"),
    "objects with a text": (np.array([1.0, 2.0, "3"], dtype=object), "other objects"),
    "bytes": ([b"1", b"2", b"3"], "texts"),
    "days": (np.zeros(3, dtype="M8[D]"), r"elements of datetime64\[D\]"),
    "seconds": (np.zeros(3, dtype="m8[s]"), r"elements of timedelta64\[s\]"),
    "ragged": ([[1.0], [2.0, 3.0]], ""),
    "a text": ("1 2 3", "texts"),
    "a mapping": ({"x": 1.0}, ""),
}
_NUMBERS: dict[str, Any] = {
    "whole": [1, 0, 1],
    "truths": [True, False, True],
    "half precision": np.full(3, 0.5, dtype=np.float16),
    "bytes": np.full(3, 1, dtype=np.uint8),
    "fractions": [Fraction(1, 2)] * 3,
    "decimals": np.array([Decimal("0.5")] * 3),
    "numpy's": [np.float32(0.5)] * 3,
    "a tuple": (0.5, 0.25, 1),
}


@pytest.mark.parametrize("kind", _OTHERS)
def test_what_holds_no_real_numbers_is_refused_in_words(kind: str, recwarn: pytest.WarningsRecorder) -> None:
    value, words = _OTHERS[kind]
    artifact = hg.compile(hg.parse(_TEXT), hg.Options(security_bits=None, log_ring=10))
    client = hg.Client(artifact, allow_insecure=True)
    doors: tuple[Callable[[], Any], ...] = (
        lambda: client.encrypt(value),
        lambda: client.encrypt_some(x=value),
        lambda: hg.simulate(artifact, value),
        lambda: hg.run(artifact, value, quiet=True, allow_insecure=True),
        lambda: interpret_batch(hg.parse(_TEXT), value if isinstance(value, str | dict) else [value]),
    )
    for door in doors:
        with pytest.raises(hg.ProgramError, match=rf"not an array of real numbers\n  why: got .*{words}"):
            door()
    assert not [each for each in recwarn if "imaginary" in str(each.message)]


@pytest.mark.parametrize("kind", _NUMBERS)
def test_real_numbers_of_every_kind_are_taken(kind: str) -> None:
    value = _NUMBERS[kind]
    found = real_numbers(value)
    assert found.dtype == np.float64
    assert found.tolist() == [float(each) for each in value]
    artifact = hg.compile(hg.parse(_TEXT), hg.Options(security_bits=None, log_ring=10))
    np.testing.assert_allclose(hg.simulate(artifact, value, noisy=False), 2 * found, atol=1e-9)


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
        with pytest.raises(hg.ProgramError, match=r"real numbers\n.* complex"):
            hg.trace(module, torch.ones(2, 3), calibration=given)
    for value, words in _OTHERS.values():
        if not isinstance(value, str | dict):
            with pytest.raises(
                hg.ProgramError, match=rf"'input' is not an array of real numbers\n.*({words}|got list)"
            ):
                hg.trace(module, torch.ones(2, 3), calibration=[value] * 4)
