"""Runs many samples through client and server and measures errors, times, the floor and memory."""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.execution.memory import PLAINTEXT_CACHE_BYTES
from heliograph.ir import Array
from heliograph.machine import load_average
from heliograph.report.markup import fragment, table
from heliograph.report.text import bytes_text, seconds_text
from heliograph.runtime.client.client import Client
from heliograph.runtime.server.floor import Floor
from heliograph.runtime.server.server import Server, require_server

# The floor is a median over at least this many calls of each primitive.
FLOOR_SAMPLES = 15


@dataclass(slots=True)
class Measurement:
    """Measurements of encrypted runs.

    Times are medians over the samples after the first, which encodes plaintexts.
    """

    outputs: list[Array] = field(default_factory=list)
    measured_ms: float = 0.0
    first_ms: float = 0.0
    floor_ms: float = 0.0
    keygen_s: float = 0.0
    encrypt_ms: float = 0.0
    decrypt_ms: float = 0.0
    peak_rss_bytes: int = 0
    load_average: float = 0.0
    ms_by_layer: dict[str, float] = field(default_factory=dict)
    max_abs_error: float | None = None

    def figures(self) -> dict[str, Any]:
        """The measured column of a report, by the names of its predicted figures (see `Report.with_measured`)."""
        found = {
            "evaluate_ms": self.measured_ms,
            "first_ms": self.first_ms,
            "keygen_s": self.keygen_s,
            "encrypt_ms": self.encrypt_ms,
            "decrypt_ms": self.decrypt_ms,
            "ms_by_layer": dict(self.ms_by_layer),
            "load_average": self.load_average,
            "process_peak_bytes": self.peak_rss_bytes,
        }
        known = {key: value for key, value in found.items() if value}
        return known if self.max_abs_error is None else {**known, "max_abs_error": self.max_abs_error}

    def _repr_html_(self) -> str:
        """The view in a notebook: the figures in a table."""
        rows = [
            ("evaluation", seconds_text(self.measured_ms / 1e3)),
            ("its floor", seconds_text(self.floor_ms / 1e3)),
            ("the first evaluation", seconds_text(self.first_ms / 1e3)),
            ("encryption", seconds_text(self.encrypt_ms / 1e3)),
            ("decryption", seconds_text(self.decrypt_ms / 1e3)),
            ("keys", seconds_text(self.keygen_s)),
            ("peak memory of this process", bytes_text(self.peak_rss_bytes)),
            ("load", f"{self.load_average:.1f}"),
            *([("largest error", f"{self.max_abs_error:.2g}")] if self.max_abs_error is not None else []),
        ]
        return fragment("measured", (table(("", ""), rows),))

    @property
    def over_floor(self) -> float:
        return self.measured_ms / self.floor_ms


def peak_rss_bytes() -> int:
    """The largest resident size of this process so far; 0 if the system does not report it (Windows).

    It is the kernel's high-water mark if there is one, because `getrusage` keeps the parent's value across exec.
    """
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure(
    artifact: Artifact,
    samples: Sequence[Array],
    progress: Callable[[int, int], None] | None = None,
    cache_bytes: int = PLAINTEXT_CACHE_BYTES,
    backend: str | None = None,
    expected: Sequence[Array] | None = None,
) -> Measurement:
    """Encrypt, evaluate and decrypt each sample; the primitives are timed in between.

    `expected` has the network's output in the clear for each sample: the measured error is the largest difference from
    it. `cache_bytes` bounds the encoded plaintexts that the server keeps, `backend` is as for `Server`. The memory peak
    includes everything that this process did before. Raises TooLittleMemoryError, before keys are made, if the server
    would not fit.
    """
    require_server(artifact, cache_bytes=cache_bytes)
    result = Measurement(load_average=load_average() or 0.0)
    begun = time.perf_counter()
    # Nothing leaves this process, and the key is discarded: nothing is lost without security.
    client = Client(artifact.public(), allow_insecure=True)
    keys = client.evaluation_keys()
    result.keygen_s = time.perf_counter() - begun
    server = Server(artifact, keys, backend=backend, cache_bytes=cache_bytes, allow_insecure=True)
    times: dict[str, list[float]] = {"encrypt": [], "run": [], "decrypt": []}
    floor: Floor | None = None

    def timed(name: str, function: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        value = function()
        times[name].append(time.perf_counter() - start)
        return value

    for number, sample in enumerate(samples):
        encrypted = timed("encrypt", functools.partial(client.encrypt, sample))
        output = timed("run", functools.partial(server.run, encrypted))
        result.outputs.append(np.asarray(timed("decrypt", functools.partial(client.decrypt, output))))
        if floor is None:
            floor = server.floor()
        floor.sample()
        if progress is not None:
            progress(number + 1, len(samples))
    assert floor is not None, "at least one sample is needed"
    while floor.samples < FLOOR_SAMPLES:
        floor.sample()
    if expected is not None:
        pairs = zip(result.outputs, expected, strict=True)
        result.max_abs_error = max(float(np.abs(a - np.asarray(b)).max(initial=0.0)) for a, b in pairs)
    result.first_ms = 1e3 * times["run"][0]
    result.measured_ms = 1e3 * statistics.median(times["run"][1:] or times["run"])
    result.encrypt_ms = 1e3 * statistics.median(times["encrypt"])
    result.decrypt_ms = 1e3 * statistics.median(times["decrypt"])
    result.floor_ms = floor.milliseconds()
    result.peak_rss_bytes = peak_rss_bytes()
    result.ms_by_layer = {layer: 1e3 * seconds for layer, seconds in server.trace.by_layer.items()}
    return result
