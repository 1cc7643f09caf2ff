"""The same program and options give the same artifact on processors that sum in another order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from heliograph import rounding

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import hashlib
from dataclasses import replace
import numpy as np
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.ir import Builder, Stage

OPTIONS = dict(security_bits=None, log_ring=11)


def network(op, calibrated, **attrs):
    builder = Builder("network", Stage.TENSOR)
    random = np.random.default_rng(0)
    x = h = builder.input("x", shape=(12,), low=-1.0, high=1.0)
    for width, before in ((16, 12), (6, 16)):
        h = builder.op("linear", (h,), weight=builder.constant(random.normal(size=(width, before)) / 3, "w"))
        h = builder.op(op, (h,), **attrs)
    y = builder.op("linear", (h,), weight=builder.constant(random.normal(size=(3, 6)), "v"))
    samples = (random.uniform(-1, 1, (100, 12)),) if calibrated else ()
    return replace(builder.finish({"y": y}), calibration=samples)


def joint(op, **attrs):
    builder = Builder("joint", Stage.TENSOR)
    random = np.random.default_rng(3)
    x = builder.input("x", shape=(12,), low=-1.0, high=1.0)
    h = builder.op("linear", (x,), weight=builder.constant(random.normal(size=(4, 12)) / 3, "w"))
    return replace(builder.finish({"y": builder.op(op, (h,), **attrs)}), calibration=(random.uniform(-1, 1, (100, 12)),))


for program, options in (
    (network("relu", False, degree=15), {}),
    (network("relu", True, degree=15), {}),
    (network("relu", True, degree=15), {"method": "minimax"}),
    (network("gelu", True, degree=15), {}),
    (network("tanh", False, degree=15), {}),
    (network("sin", True, degree=15), {}),
    (network("silu", True), {"target_error": 1e-4}),
    (joint("argmax", axis=0, gap=0.1), {}),
    (joint("softmax", axis=0), {}),
):
    artifact = compile(program, Options(**OPTIONS, **options))
    print(artifact.fingerprint, hashlib.sha256(artifact.to_bytes()).hexdigest())
"""

# What OpenBLAS and numpy are told to be: kernels that this processor has no instructions for fall back to another.
PROCESSORS = {
    "Haswell": {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX"},
    "Nehalem": {"OPENBLAS_CORETYPE": "Nehalem"},
    "SkylakeX": {"OPENBLAS_CORETYPE": "SkylakeX"},
}


def features() -> set[str]:
    """The instructions that this processor has, as numpy names them."""
    try:
        return set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return set()


def _artifacts(name: str, cache: Path) -> list[str]:
    settings = dict(PROCESSORS[name])
    if "avx512f" not in features():
        settings.pop("NPY_DISABLE_CPU_FEATURES", None)
    environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT), "HELIOGRAPH_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout.splitlines()


def test_artifacts_are_the_same_on_several_processors(tmp_path: Path) -> None:
    names = ["Nehalem"]
    if "avx2" in features():
        names.append("Haswell")
    if "avx512f" in features():
        names.append("SkylakeX")
    if len(names) < 2:
        pytest.skip("this processor has the instructions of one kernel only")
    made = {name: _artifacts(name, tmp_path) for name in names}
    first = made[names[0]]
    assert len(set(first)) == len(first) == 9
    for name in names[1:]:
        assert made[name] == first, name


# ------------------------------------------------------------------------------------------ rounding


def test_intervals_are_rounded_outward() -> None:
    random = np.random.default_rng(0)
    for _ in range(1000):
        low, width = (
            random.normal() * 10.0 ** random.integers(-8, 8),
            random.uniform(0, 1) * 10.0 ** random.integers(-8, 8),
        )
        low, high = float(low), float(low + width)
        down, up = rounding.outward(low, high)
        assert down <= low <= high <= up
        assert max(low - down, up - high) <= 2.0**-38 * max(abs(low), abs(high))
        # What a processor differs by hardly ever matters.
        assert rounding.outward(down, up) == (down, up)
    assert rounding.outward(-1.0, 3.0) == (-1.0, 3.0)
    assert rounding.outward(0.0, 0.0) == (0.0, 0.0)
    assert rounding.outward(-0.3, 0.3)[0] == -rounding.outward(-0.3, 0.3)[1]


def test_bounds_are_rounded_up() -> None:
    random = np.random.default_rng(1)
    values = np.abs(random.normal(size=1000)) * 10.0 ** random.integers(-12, 12, 1000)
    for value in values:
        up = rounding.upward(float(value), 20)
        assert value <= up <= value * (1 + 2.0**-18)
        assert rounding.upward(up, 20) == up
        text = rounding.upward_text(float(value))
        assert value <= float(text) <= value * 1.0101
    many = rounding.upward_all(values)
    assert (many >= values).all()
    assert (many <= values * (1 + 2.0**-38)).all()
    assert rounding.upward(0.0) == 0.0
    assert rounding.upward_text(0.0) == "0"
    assert rounding.upward_text(9.999) == "10"
