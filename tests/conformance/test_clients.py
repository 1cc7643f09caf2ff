"""The client through the suite of heliograph.testing: in numpy alone, and by kernels where numba is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from helpers.clients import without_kernels

from heliograph.runtime.client.cryptor.arithmetic import NumpyArithmetic
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.testing import RINGS, Check, arithmetic_checks, cryptor_checks

ARITHMETICS: dict[str, Any] = {"numpy": NumpyArithmetic}
if importlib.util.find_spec("numba") is not None:
    from heliograph.runtime.native.client import NativeArithmetic

    ARITHMETICS["kernels"] = NativeArithmetic


def clients(checks: Callable[..., Iterable[Check]]) -> list[Any]:
    """The checks on the suite's own rings, and slow ones on all."""
    usual = {(check.ring, check.name) for check in checks(NumpyArithmetic)}
    return [
        pytest.param(
            kind, check, id=f"{name}-{check.ring}-{check.name}",
            marks=() if (check.ring, check.name) in usual else pytest.mark.slow,
        )
        for name, kind in ARITHMETICS.items()
        for check in checks(kind, rings=RINGS)
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "check"), clients(arithmetic_checks))
def test_arithmetic(kind: Any, check: Check) -> None:
    check.run()


@pytest.mark.filterwarnings("ignore:.*(invalid value|overflow):RuntimeWarning")
@pytest.mark.parametrize(("kind", "check"), clients(lambda kind, **rings: cryptor_checks(Cryptor, **rings)))
def test_secret_keys(kind: Any, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind is NumpyArithmetic:
        without_kernels(monkeypatch)
    check.run()
