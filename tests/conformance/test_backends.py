"""Both backends, and the client by kernels and in numpy, through the suite of heliograph.testing."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

pytest.importorskip("numba")

from heliograph.runtime.cryptor import cryptor as cryptors
from heliograph.runtime.cryptor.arithmetic import NumpyArithmetic
from heliograph.runtime.cryptor.cryptor import Cryptor
from heliograph.runtime.native.backend import NativeBackend
from heliograph.runtime.native.client import NativeArithmetic
from heliograph.runtime.openfhe.backend import OpenFHEBackend
from heliograph.testing import RINGS, Check, arithmetic_checks, cryptor_checks, hostile_checks, primitive_checks
from heliograph.testing.rings import name_of

ARITHMETICS: dict[str, Any] = {"kernels": NativeArithmetic, "numpy": NumpyArithmetic}


def backends() -> Iterator[Any]:
    """The checks of all backends, ring by ring: they share keys and exact results."""
    checks = [
        ("native", check) for check in itertools.chain(primitive_checks(NativeBackend), hostile_checks(NativeBackend))
    ]
    if importlib.util.find_spec("openfhe") is not None:
        rings = [ring for ring in RINGS if ring.bootstrap_by == "openfhe"]
        some = itertools.chain(primitive_checks(OpenFHEBackend, rings), hostile_checks(OpenFHEBackend))
        checks += [("openfhe", check) for check in some]
    order = {name_of(ring): i for i, ring in enumerate(RINGS)}
    for name, check in sorted(checks, key=lambda each: order[each[1].ring]):
        yield pytest.param(check, id=f"{name}-{check.ring}-{check.name}")


@pytest.mark.parametrize("check", list(backends()))
def test_backends(check: Check) -> None:
    check.run()


def clients(checks: Callable[[Any], Iterable[Check]]) -> Iterator[Any]:
    for name, kind in ARITHMETICS.items():
        for check in checks(kind):
            yield pytest.param(kind, check, id=f"{name}-{check.ring}-{check.name}")


@pytest.mark.parametrize(("kind", "check"), list(clients(arithmetic_checks)))
def test_arithmetic(kind: Any, check: Check) -> None:
    check.run()


@pytest.mark.filterwarnings("ignore:.*invalid value:RuntimeWarning")
@pytest.mark.parametrize(("kind", "check"), list(clients(lambda kind: cryptor_checks(Cryptor))))
def test_secret_keys(kind: Any, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cryptors, "arithmetic", kind)
    check.run()
