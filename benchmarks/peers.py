"""Other systems beside ours on this machine: the same tasks, weights and inputs, each in an environment of its own.

    python benchmarks/peers.py --systems TenSEAL vfhe --tasks dot perceptron

Environments are made in build/peers, by pip from whatever index it is configured with. A system's job is a script of
`benchmarks/peers`, run by its own Python, which prints what it measures; here its results are compared with those in the
clear and its keys with two published tables. What cannot be installed, lacks something, takes too long or too much memory
is a row too, with what it said.

Tasks: `dot`, 1,024 encrypted numbers by 1,024 in the clear. `perceptron`: 784-128-10 with squares, trained on MNIST.
`lenet`: two convolutions (5 x 5, stride 2, 32 and 64 channels) and two linear layers (512, 10) with squares, the network
that Orion calls LeNet without its normalisations. `bootstrap-15`, `bootstrap-16`: one bootstrap of N / 2 values at
N = 2^15 and 2^16.
"""

from __future__ import annotations

from common import mnist, once, train  # first: it imports heliograph before torch

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import BUILD, HERE, ROOT, Run, benchmark, option
from heliograph.ckks.security import MAX_LOG_PQ_128, SPARSE_MAX_LOG_Q_128, SPARSE_WEIGHT

ENVIRONMENTS = ROOT / "build" / "peers"
JOBS = HERE / "peers"
# Behind all others: its names are its own.
sys.path.append(str(JOBS))
from squares import Squares

SAMPLES = 5
# A job is ended before the machine has less memory than this.
LEFT_BYTES = 1 << 30
TASKS = ("dot", "perceptron", "lenet", "bootstrap-15", "bootstrap-16")

# Largest log2 of the modulus with 128 bits by the number of a ternary secret's nonzero coefficients and log2 of the ring
# dimension: jdumezy/sparse-key-estimate, Precomputed-Tables/128bits_security.md at commit 44e10687 (eprint 2026/279).
SPARSE_TABLE = {
    32: {12: 19, 13: 37, 14: 77, 15: 164, 16: 349},
    64: {12: 58, 13: 113, 14: 229, 15: 468, 16: 961},
    128: {12: 86, 13: 167, 14: 333, 15: 669, 16: 1351},
    192: {12: 96, 13: 187, 14: 370, 15: 739, 16: 1481},
    256: {12: 101, 13: 197, 14: 388, 15: 774, 16: 1553},
    512: {12: 106, 13: 209, 14: 416, 15: 829, 16: 1659},
    1024: {12: 111, 13: 214, 14: 426, 15: 854, 16: 1714},
}
assert SPARSE_TABLE[SPARSE_WEIGHT] == SPARSE_MAX_LOG_Q_128


@dataclass(frozen=True)
class System:
    """What is compared: its name, its job, and for an environment of its own the version of Python and packages."""

    name: str
    job: str
    python: str = ""
    packages: tuple[str, ...] = ()


SYSTEMS = {
    system.name: system
    for system in (
        System("Heliograph", "with_heliograph.py"),
        System("OpenFHE", "with_openfhe.py"),
        System(
            "Orion v2 (Lattigo)", "with_orion.py", "3.12",
            ("orion-v2-compiler==2.1.8", "orion-v2-evaluator==2.1.8", "orion-v2-lattigo==6.2.4"),
        ),
        System("TenSEAL", "with_tenseal.py", "3.12", ("tenseal==0.3.18", "numpy")),
        System("vfhe", "with_vfhe.py", "3.12", ("vfhe==0.0.3", "numpy")),
        System("Concrete ML", "with_concrete.py", "3.10", ("concrete-ml==1.9.0",)),
        System("ANT-ACE", "", "3.12", ("ace-fhe==0.2.2",)),
    )
}  # fmt: skip


class Failed(Exception):
    """Why a system has no figures."""


# ------------------------------------------------------------------------------------------- security, by two tables


def judged(secret: Mapping[str, Any]) -> tuple[bool, str]:
    """(whether a secret has 128 bits by the table for its kind, the comparison in words).

    Dense: the Security Guidelines of 2024, table 5.2. Sparse: eprint 2026/279, by the largest weight that is not above the
    secret's.
    """
    ring, bits, weight = secret["log_ring"], secret["log_q"], secret["weight"]
    if weight is None:
        table, kind = MAX_LOG_PQ_128, "dense"
    else:
        known = max(each for each in SPARSE_TABLE if each <= weight)
        table, kind = SPARSE_TABLE[known], f"h = {weight:,}"
    limit = table[ring]
    return bits <= limit, f"{kind}: {bits:,.0f} of {limit:,}"


def security(secrets: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns on security of a system's secrets."""
    verdicts = [judged(secret) for secret in secrets]
    enough = all(good for good, _ in verdicts)
    return {
        "log_ring": secrets[0]["log_ring"],
        "log_pq": secrets[0]["log_q"],
        "secure": enough,
        "security": ("" if enough else "**below 128**: ") + "; ".join(words for _, words in verdicts),
    }


# ------------------------------------------------------------------------------------------- what all are given


def network(task: str) -> Squares:
    """The network of a task, trained once."""
    linear, convolution = torch.nn.Linear, torch.nn.Conv2d
    torch.manual_seed(1)
    if task == "dot":
        return Squares(linear(1024, 1, bias=False)).eval()
    if task == "perceptron":
        module = Squares(linear(784, 128), linear(128, 10))
    else:
        sizes = ((1, 32), (32, 64))
        convolutions = (convolution(*each, 5, stride=2, padding=2) for each in sizes)
        module = Squares(*convolutions, linear(3136, 512), linear(512, 10))
    x, y, _, _ = mnist()
    once(BUILD / f"peers-{task}.npz", module, lambda: train(module, x[:, None], y, 2, peak=2e-3))
    return module.eval()


def inputs(task: str) -> tuple[Path, np.ndarray | None]:
    """(the file with a task's weights and samples, what comes out in the clear)."""
    path = ENVIRONMENTS / f"{task}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    if task.startswith("bootstrap"):
        np.savez(path)
        return path, None
    module = network(task)
    if task == "dot":
        rng = np.random.default_rng(0)
        calibration, samples = rng.uniform(-1, 1, (256, 1024)), rng.uniform(-1, 1, (SAMPLES, 1024))
        calibration, samples = calibration.astype(np.float32), samples.astype(np.float32)
    else:
        x, _, test, _ = mnist()
        calibration, samples = x[:256, None], test[:SAMPLES, None]
        if task == "perceptron":
            calibration, samples = calibration.reshape(-1, 784), samples.reshape(-1, 784)
    weights = {
        f"{short}{number}": getattr(layer, name).detach().numpy()
        for number, layer in enumerate(module.layers)
        for short, name in (("w", "weight"), ("b", "bias"))
        if getattr(layer, name) is not None
    }
    np.savez(path, samples=samples, calibration=calibration, **weights)
    with torch.no_grad():
        return path, module(torch.from_numpy(samples)).numpy()


# ------------------------------------------------------------------------------------------- environments and jobs


def interpreter(version: str) -> str:
    """The path of a CPython of a version."""
    if found := shutil.which(f"python{version}"):
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run([found, "-c", ""], check=True, capture_output=True)
            return found
    if pyenv := shutil.which("pyenv"):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=True).stdout.strip()
        if paths := sorted(Path(root, "versions").glob(f"{version}.*/bin/python")):
            return str(paths[-1])
    raise Failed(f"no CPython {version} is here")


def python_of(system: System) -> str:
    """The Python of a system's environment, which is made if need be."""
    if not system.packages:
        return sys.executable
    folder = ENVIRONMENTS / re.sub(r"\W+", "-", system.name.lower()).strip("-")
    wanted, mark = "\n".join(system.packages), folder / "packages.txt"
    python = folder / "bin" / "python"
    if not (mark.exists() and mark.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([interpreter(system.python), "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *system.packages]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
            raise Failed(f"pip: {(errors or ['it failed'])[-1].removeprefix('ERROR: ')}")
        mark.write_text(wanted)
    return str(python)


def resident(process: int) -> int:
    """The bytes that a process has in memory now."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def free() -> int:
    """The bytes of memory that processes may still take."""
    text = Path("/proc/meminfo").read_text()
    return 1024 * int(re.findall(r"MemAvailable:\s+(\d+)", text)[0])


def watched(command: list[str], environment: Mapping[str, str], minutes: float, memory_gb: float) -> dict[str, Any]:
    """The values that a job tells; it is ended where it takes too long or too much memory."""
    values: dict[str, Any] = {}
    ended, stages, last = "", ["start"], [""]
    with subprocess.Popen(
        command,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                with contextlib.suppress(json.JSONDecodeError, TypeError, KeyError):  # what a library prints
                    told = json.loads(line)
                    values.update(told["values"])
                    stages.append(told["stage"])

        def hear() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                last[0] = line.strip() or last[0]

        threads = [threading.Thread(target=work) for work in (read, hear)]
        for thread in threads:
            thread.start()
        until, most = time.monotonic() + 60 * minutes, 0
        while process.poll() is None:
            most = max(most, resident(process.pid))
            if most > memory_gb * 1e9:
                ended = f"took more than {memory_gb:g} GB after `{stages[-1]}`"
            elif free() < LEFT_BYTES:
                ended = f"at {most / 1e9:.1f} GB no more memory was free after `{stages[-1]}`"
            elif time.monotonic() > until:
                ended = f"took more than {minutes:g} minutes; it had told `{stages[-1]}`"
            if ended:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                break
            time.sleep(0.2)
        process.wait()
        for thread in threads:
            thread.join()
    if error := values.pop("error", ""):
        ended = error
    elif not ended and "done" not in stages:
        ended = f"ended with {process.returncode} after `{stages[-1]}`: {last[0][:200]}"
    values.setdefault("peak_bytes", most)
    values["failed"] = ended or None
    return values


COLUMNS = {
    **dict.fromkeys(("first_s", "seconds", "cpu_s", "keys_s", "keys_cpu_s", "encrypt_s", "decrypt_s", "compile_s"), "s"),
    **dict.fromkeys(("key_bytes", "upload_bytes", "peak_bytes"), "bytes"),
    "times": "", "max_abs_error": "", "same_class": "", "error_bits": "", "levels_left": "", "log_ring": "",
    "log_pq": "", "secure": "", "security": "", "setting": "", "failed": "",
}  # fmt: skip


def measured(system: System, task: str, minutes: float, memory_gb: float) -> dict[str, Any]:
    """The row of a system and a task."""
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    try:
        python = python_of(system)
        if not system.job:
            raise Failed("it is installed, and no job was written for it")
    except Failed as reason:
        return values | {"failed": str(reason)}
    path, clear = inputs(task)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if not system.packages:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, HERE)))
    values |= watched([python, str(JOBS / system.job), task, str(path)], environment, minutes, memory_gb)
    if secrets := values.pop("secrets", None):
        values |= security(secrets)
    elif values.get("claimed_bits"):
        values["security"] = f"its optimizer says {values['claimed_bits']}; neither table is for TFHE"
    outputs = values.pop("outputs", None)
    if outputs and clear is not None:
        found = np.array(outputs).reshape(len(outputs), -1)[:, : clear.shape[1]]
        wanted = clear[: len(found)]
        values["max_abs_error"] = float(np.abs(found - wanted).max())
        if found.shape[1] > 1:
            values["same_class"] = f"{(found.argmax(1) == wanted.argmax(1)).sum()} of {len(found)}"
    return values


@benchmark(
    option("--systems", nargs="+", choices=tuple(SYSTEMS), default=list(SYSTEMS), selects=True),
    option("--tasks", nargs="+", choices=TASKS, default=list(TASKS), selects=True),
    option("--minutes", type=float, default=5, help="the most for one job"),
    option("--memory-gb", type=float, default=20, help="the most resident memory of one job"),
    columns=COLUMNS,
    data=("mnist.npz",),
    packages=("openfhe",),
    memory_gb=16,
    minutes=60,
    runs=(),
)
def peers(run: Run) -> None:
    given = run.options
    for task in given.tasks:
        for name in given.systems:
            run.row(
                {"task": task, "system": name},
                lambda task=task, name=name: measured(SYSTEMS[name], task, given.minutes, given.memory_gb),  # type: ignore[misc]
            )


if __name__ == "__main__":
    peers.main()
