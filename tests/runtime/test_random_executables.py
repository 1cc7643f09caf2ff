"""Whatever executable program the verifier passes runs, or is refused in words, on both backends; what runs is right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openfhe")
pytest.importorskip("numba")

from helpers.executed import Tally, execute_all
from helpers.random_executables import BOOTSTRAPPING, PLAIN, ops, random_executable

from heliograph.errors import HeliographError
from heliograph.ir.bootstraps.asked import WHOLE

# Of 500 numbers some 440 are of programs: ten thousand in all parts together.
QUICK, PART, PARTS = 100, 500, 23


def check(tally: Tally) -> None:
    assert not tally.failures
    # Each backend runs most of what is read, and most of what runs can be compared.
    ran = [tally.counts[f"{backend}: ran"] for backend in ("native", "openfhe")]
    assert min(ran) > tally.made / 2, str(tally)
    assert tally.compared > sum(ran) / 2, str(tally)


def test_random_programs_run_or_are_refused() -> None:
    check(execute_all(range(QUICK), bootstrapping=0.0))


def test_random_programs_that_bootstrap() -> None:
    tally = execute_all(range(8, 20), bootstrapping=1.0)
    assert not tally.failures
    assert tally.ops["raise_modulus"]
    assert tally.compared > 4, str(tally)


def test_programs_have_every_op() -> None:
    seen: set[str] = set()
    families = set()
    for seed in range(400):
        try:
            program = random_executable(seed, bootstrapping=0.3)
        except HeliographError:
            continue
        seen.update(node.op for node in program.nodes)
        families.add(program.ring)
    assert seen >= {*ops(), "pack", "input"} - {WHOLE}
    assert families == {family.ring for family in (*PLAIN, *BOOTSTRAPPING)}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_random_programs(part: int) -> None:
    tally = execute_all(range(1000 + part * PART, 1000 + (part + 1) * PART))
    print(tally)
    check(tally)


@pytest.mark.slow
def test_kernels_stay_within_bounds(tmp_path: Path) -> None:
    """The same with numba's checks of every index, compiled anew."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__]
    command += ["-k", "run_or_are_refused or that_bootstrap"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "2 passed" in done.stdout
