"""Both backends through the suite of heliograph.testing."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("numba")

from heliograph.runtime.native.backend import NativeBackend
from heliograph.runtime.openfhe.backend import OpenFHEBackend
from heliograph.testing import RINGS, Check, hostile_checks, primitive_checks
from heliograph.testing.rings import name_of


def backends() -> Iterator[Any]:
    """The checks of all backends, ring by ring: they share keys and exact results."""
    checks = [
        ("native", check) for check in itertools.chain(primitive_checks(NativeBackend), hostile_checks(NativeBackend))
    ]
    if importlib.util.find_spec("openfhe") is not None:
        # Where our key switches round to the nearest, OpenFHE's differ by its rounding.
        nearest = [ring for ring in RINGS if ring.rounds_to_nearest and ring.bootstrap is None]
        some = itertools.chain(
            primitive_checks(OpenFHEBackend, [ring for ring in RINGS if ring not in nearest]),
            primitive_checks(OpenFHEBackend, nearest, switches="bounded"),
            hostile_checks(OpenFHEBackend),
        )
        checks += [("openfhe", check) for check in some]
    order = {name_of(ring): i for i, ring in enumerate(RINGS)}
    for name, check in sorted(checks, key=lambda each: order[each[1].ring]):
        yield pytest.param(check, id=f"{name}-{check.ring}-{check.name}")


@pytest.mark.parametrize("check", list(backends()))
def test_backends(check: Check) -> None:
    check.run()
