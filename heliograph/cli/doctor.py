"""`heliograph doctor`: checks of this machine's setup, and what to do where one fails."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from dataclasses import asdict, dataclass

import click

from heliograph.cli.output import emit, output_options, remark
from heliograph.machine import load_average, usable_cores
from heliograph.openmp import GIVEN_POLICY
from heliograph.tools.progress import progress_bar

_GB = 1e9
_OLDEST = (3, 10)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: `status` is ok, warning or missing; `advice` says what to do where it is not ok."""

    name: str
    status: str
    detail: str
    advice: str = ""


def _python() -> Check:
    library, release = platform.libc_ver()
    detail = f"{platform.python_version()} ({library} {release}, {sys.platform}, {platform.machine()})"
    if sys.version_info[:2] < _OLDEST:
        return Check("python", "missing", detail, f"use CPython {'.'.join(map(str, _OLDEST))} or newer")
    return Check("python", "ok", detail)


def _openfhe() -> Check:
    """The second backend, and what ours is compared with; nothing else needs it."""
    from heliograph.ckks.ring import Ring
    from heliograph.errors import HeliographError, MissingPackageError
    from heliograph.runtime.openfhe.context import make_context

    try:
        # A toy chain: its primes are compared with those that the compiler plans with.
        make_context(Ring(10, 40, 30, 2, 1, None))
        version = importlib.metadata.version("openfhe")
    except MissingPackageError as error:
        return Check("openfhe", "ok", f"not there, and not needed: {error.why}")
    except HeliographError as error:
        return Check("openfhe", "missing", error.what, error.hint or error.why)
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    return Check("openfhe", "ok", f"{version}, uses the same primes as the planner")


def _torch() -> Check:
    # It is not imported, because that takes seconds.
    if importlib.util.find_spec("torch") is None:
        return Check(
            "torch", "warning", "not installed", "pip install 'heliograph[torch]', if you compile PyTorch models"
        )
    return Check("torch", "ok", importlib.metadata.version("torch"))


def _native() -> Check:
    """Whether servers run on our own kernels, and how a rotation on them compares with OpenFHE's here."""
    if importlib.util.find_spec("numba") is None:
        return Check(
            "native",
            "warning",
            "numba is not installed",
            "pip install numba; without numba clients are slow, and servers run on OpenFHE alone",
        )
    from heliograph.ckks.ring import Ring
    from heliograph.errors import HeliographError
    from heliograph.tools.measuring.calibrate import rotation_ms

    try:
        times = rotation_ms(Ring(13, 45, 35, 5, 3, None))
    except HeliographError as error:
        return Check("native", "missing", error.what, error.hint or error.why)
    detail = f"numba {importlib.metadata.version('numba')}, a rotation at N=2^13 in {times['native']:.2f} ms"
    beside = f", on OpenFHE {times['openfhe']:.2f} ms" if "openfhe" in times else ""
    return Check("native", "ok", detail + beside)


def _cores() -> Check:
    usable, load = usable_cores(), load_average()
    detail = f"{usable} usable, load average {'unknown' if load is None else f'{load:.2f}'}"
    if load is not None and load > 0.5 * usable:
        return Check(
            "cores",
            "warning",
            detail,
            "wait for other work to finish before you measure: runs will take longer than predicted",
        )
    return Check("cores", "ok", detail)


def _memory() -> Check:
    from heliograph.machine import available_bytes

    left = available_bytes()
    if left is None:
        return Check(
            "memory", "warning", "unknown", "watch the memory yourself: the check before key generation is skipped"
        )
    if left < 2 * _GB:
        return Check(
            "memory",
            "warning",
            f"{left / _GB:.1f} GB available",
            "free some memory before you run larger models, which need 2 GB and more",
        )
    return Check("memory", "ok", f"{left / _GB:.1f} GB available")


def _threads(policy: str | None) -> Check:
    """`policy` is OMP_WAIT_POLICY as the user set it."""
    if policy is None:
        return Check("OMP_WAIT_POLICY", "ok", "not set; Heliograph makes it passive")
    if policy.lower() == "passive":
        return Check("OMP_WAIT_POLICY", "ok", policy)
    return Check(
        "OMP_WAIT_POLICY",
        "warning",
        policy,
        "unset it, or set it to passive: waiting threads spin, and slow down everything else",
    )


def _words() -> Check:
    """How the native backend computes on this processor."""
    if importlib.util.find_spec("numba") is None:
        return Check("words", "warning", "numba is not installed", "pip install numba: servers need it")
    from heliograph.runtime.native.kernels.floating import LIMIT
    from heliograph.runtime.native.kernels.vectors import LANES

    longer = "doubles" if LIMIT else "whole numbers, without a fused multiply-add"
    return Check("words", "ok", f"vectors of {LANES} words for primes of up to 30 bits, {longer} for longer ones")


def _costs() -> Check:
    from heliograph.artifact.costs import default_costs
    from heliograph.ckks.costs import BUILT_IN
    from heliograph.errors import HeliographError

    try:
        costs = default_costs()
    except HeliographError as error:
        return Check("costs", "warning", error.what, error.hint)
    if costs != BUILT_IN:
        return Check("costs", "ok", costs.machine)
    advice = "`heliograph doctor --calibrate` on a quiet machine: plans and predicted times then fit it"
    if importlib.util.find_spec("numba") is None:
        return Check("costs", "ok", costs.machine, advice)
    from heliograph.runtime.native.pace import pace

    found = pace()
    return Check("costs", "ok" if found.fits else "warning", f"{costs.machine}; {found}", "" if found.fits else advice)


@click.command("doctor")
@click.option(
    "--calibrate", is_flag=True, help="Measure this machine (under a minute), so that later predictions fit it."
)
@output_options
def doctor_command(calibrate: bool, as_json: bool, quiet: bool) -> None:
    """Check this machine's setup: Python, OpenFHE, torch, cores, memory. Exit code 1 if something necessary is missing."""
    if calibrate:
        _calibrate(as_json, quiet)
        return
    checks = [
        _python(),
        _openfhe(),
        _native(),
        _torch(),
        _cores(),
        _memory(),
        _threads(GIVEN_POLICY),
        _words(),
        _costs(),
    ]
    good = all(check.status != "missing" for check in checks)
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.status:<8} {check.name:<{width}}  {check.detail}")
        if check.advice:
            lines.append(f"{'':<8} {'':<{width}}  try: {check.advice}")
    emit("\n".join(lines), {"ok": good, "checks": [asdict(c) for c in checks]}, as_json=as_json, quiet=quiet)
    if not good:
        sys.exit(1)


def _calibrate(as_json: bool, quiet: bool) -> None:
    from heliograph.tools.measuring.calibrate import calibrate_and_save

    with progress_bar(quiet) as progress:
        results, path = calibrate_and_save(lambda done, total: progress("measuring", done, total))
    remark(f"wrote {path}; compiling uses it from now on (HELIOGRAPH_COSTS=built-in leaves it out)", quiet)
    values = {backend: result.to_dict() for backend, result in results.items()}
    text = "\n".join(f"{backend}: {result}" for backend, result in results.items())
    emit(text, {**values, "path": path}, as_json=as_json, quiet=quiet)
