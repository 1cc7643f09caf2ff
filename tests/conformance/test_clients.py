"""The client through the suite of heliograph.testing: in numpy alone, and by kernels where numba is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from heliograph.runtime.client.cryptor import cryptor as cryptors
from heliograph.runtime.client.cryptor.arithmetic import NumpyArithmetic
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.testing import Check, arithmetic_checks, cryptor_checks

ARITHMETICS: dict[str, Any] = {"numpy": NumpyArithmetic}
if importlib.util.find_spec("numba") is not None:
    from heliograph.runtime.native.client import NativeArithmetic

    ARITHMETICS["kernels"] = NativeArithmetic


def clients(checks: Callable[[Any], Iterable[Check]]) -> list[Any]:
    return [
        pytest.param(kind, check, id=f"{name}-{check.ring}-{check.name}")
        for name, kind in ARITHMETICS.items()
        for check in checks(kind)
    ]


@pytest.mark.parametrize(("kind", "check"), clients(arithmetic_checks))
def test_arithmetic(kind: Any, check: Check) -> None:
    check.run()


@pytest.mark.filterwarnings("ignore:.*(invalid value|overflow):RuntimeWarning")
@pytest.mark.parametrize(("kind", "check"), clients(lambda kind: cryptor_checks(Cryptor)))
def test_secret_keys(kind: Any, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cryptors, "arithmetic", kind)
    check.run()
