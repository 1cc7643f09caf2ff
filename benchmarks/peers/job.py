"""What the jobs of `peers.py` share. A job is a script of this folder, run by the Python of the system that it uses.

    PYTHON with_SYSTEM.py TASK INPUTS.npz

It tells what it found by lines of JSON on stdout, a stage each, so that what was measured before a failure is kept:

* `made`: `compile_s`, what is done once for a network without keys; `secrets`, a list with the ring (log2 of its
  dimension), the bits of the largest modulus under which something is encrypted, and the number of nonzero coefficients of
  the secret (null for a dense one, of uniform coefficients in -1, 0, 1).
* `keys`: `keys_s`, making all keys of client and server; `key_bytes`, what a server must be sent.
* `first`: `first_s`, the first evaluation, apart from the others.
* `done`: `seconds`, the median of the evaluations after it, of which there are `times`, and `cpu_s`, that of the seconds of
  all cores; `encrypt_s`, `decrypt_s`,
  `upload_bytes` of one sample; `outputs` of all samples or `error_bits`, `peak_bytes` of the process.

Nothing but NumPy is needed, in versions of Python from 3.10.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# Of a bootstrap by log2 of the ring dimension: levels of its two transforms, and levels left after it.
BOOTSTRAPS = {15: ((2, 2), 1), 16: ((3, 3), 6)}
# Evaluations end after this many seconds, however many samples are left.
LONG_S = 120.0


class Missing(Exception):
    """What a system does not have, for which it cannot do a task."""


def tell(stage: str, **values: Any) -> None:
    """A stage is done: its values, to the process that waits."""
    print(json.dumps({"stage": stage, "values": values}), flush=True)


def peak() -> int:
    """The most bytes that this process had in memory. What getrusage says counts its parent's before it was started."""
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0])


class Spent(NamedTuple):
    """What something took: seconds by the clock, and seconds of all cores, which other work on the machine changes less."""

    clock: float
    cores: float


def timed(work: Callable[..., Any], *given: Any) -> tuple[Any, Spent]:
    """(what `work` returns, what it took)."""
    begun, worked = time.perf_counter(), time.process_time()
    result = work(*given)
    return result, Spent(time.perf_counter() - begun, time.process_time() - worked)


def secret(log_ring: int, log_q: float, weight: int | None = None) -> dict[str, Any]:
    """A secret key as the security tables ask for it: ring, largest modulus under it, nonzero coefficients if few."""
    return {"log_ring": log_ring, "log_q": log_q, "weight": weight}


def medians(later: list[Spent]) -> dict[str, float]:
    """The columns of evaluations."""
    return {
        "seconds": statistics.median(each.clock for each in later),
        "cpu_s": statistics.median(each.cores for each in later),
        "times": len(later),
    }


def evaluate(
    samples: np.ndarray,
    encrypt: Callable[[np.ndarray], Any],
    run: Callable[[Any], Any],
    decrypt: Callable[[Any], np.ndarray],
    size: Callable[[Any], int],
    exact: Callable[[np.ndarray], np.ndarray] | None = None,
    **more: Any,
) -> None:
    """Encrypt, evaluate and decrypt each sample, and tell the figures.

    `size` is that of what is sent of a sample. With `exact`, what comes out in the clear, `error_bits` is told instead of
    the outputs: log2 of the standard deviation of the difference. `more` is told as it is.
    """
    errors: list[np.ndarray] = []
    outputs, spent, encrypted_s, decrypted_s, upload = [], [], [], [], 0
    begun = time.perf_counter()
    for number, sample in enumerate(samples):
        sent, encrypting = timed(encrypt, sample)
        answer, running = timed(run, sent)
        opened, decrypting = timed(decrypt, answer)
        if exact is None:
            outputs.append(np.asarray(opened, dtype=float).ravel().tolist())
        else:
            errors.append(opened - exact(sample))
        encrypted_s.append(encrypting.clock)
        decrypted_s.append(decrypting.clock)
        spent.append(running)
        if not number:
            tell("first", first_s=running.clock, first_cpu_s=running.cores)
            upload = size(sent)
        elif time.perf_counter() - begun > LONG_S:
            break
    found = {"outputs": outputs} if exact is None else {"error_bits": float(np.log2(np.std(errors)))}
    # A single evaluation is the first one too.
    later = spent[1:] or spent
    tell(
        "done", **medians(later), encrypt_s=statistics.median(encrypted_s),
        decrypt_s=statistics.median(decrypted_s), upload_bytes=upload,
        peak_bytes=peak(), **found, **more,
    )  # fmt: skip


def refreshed(found: Mapping[str, Any]) -> None:
    """Tell the figures of bootstraps that `bootstraps.py` measured."""
    first, *later = (Spent(*each) for each in found["each_s"])
    tell("keys", keys_s=found["keys_s"], keys_cpu_s=found["keys_cpu_s"], key_bytes=found["key_bytes"])
    tell("first", first_s=first.clock, first_cpu_s=first.cores)
    tell(
        "done", **medians(later), error_bits=found["error_bits"], levels_left=found["levels_left"],
        peak_bytes=peak(),
    )  # fmt: skip


def main(tasks: Mapping[str, Callable[[dict[str, np.ndarray]], None]]) -> None:
    """Do the task that the command line names, with the arrays of the file that it names."""
    name, path = sys.argv[1:]
    try:
        if name not in tasks:
            raise Missing(f"no job for {name}")
        with np.load(path, allow_pickle=False) as file:
            given = {array: file[array] for array in file.files}
        tasks[name](given)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        kind = "" if isinstance(error, Missing) else f"{type(error).__name__}: "
        tell("error", error=f"{kind}{lines[0][:300]}")
        raise
