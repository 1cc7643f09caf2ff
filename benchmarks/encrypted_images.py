"""Encrypt, evaluate and decrypt images with a compiled artifact, one by one.

    encrypted_images.py FOLDER COUNT THREADS [BACKEND] [CACHE_BYTES]

FOLDER has `artifact.helio` and `images.npy`. The client's key, the evaluation keys and every image's result are written
there as they are finished; a run that was stopped goes on where it stood. No torch is loaded: the peak of memory is that
of a server (and of the client, which is in the same process).
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy

import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.execution.memory import PLAINTEXT_CACHE_BYTES
from heliograph.execution.protocol import Call
from heliograph.execution.walk import node_calls
from heliograph.runtime.wire.keyfolder import KeyFolder
from heliograph.tools.measure import peak_rss_bytes
from heliograph.runtime.server.floor import Floor
from heliograph.runtime.server.server import require_server
from results import Results, write

FLOOR_SAMPLES = 3


def the_client(artifact: hg.Artifact, path: Path) -> hg.Client:
    """The client whose key is in the folder, or a new one, saved."""
    if path.exists():
        return hg.Client.load(path, artifact=artifact, allow_insecure=True)
    client = hg.Client(artifact.public(), allow_insecure=True)
    client.save(path)
    return client


def main(
    folder: Path, count: int, threads: int, backend: str = "native", cache_bytes: int = PLAINTEXT_CACHE_BYTES
) -> None:
    """Run what is missing, and write the figures of the first `count` images. The process keeps to `threads` cores."""
    # Beside OpenMP's threads there is one that encodes plaintexts ahead. Both come later and inherit this; what numpy
    # made already, where there are several, has no part in the homomorphic work.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    artifact = hg.Artifact.load(folder / "artifact.helio")
    images = np.load(folder / "images.npy", allow_pickle=False)
    results = Results(folder / f"encrypted-{backend}-{threads}.json")
    summary = folder / f"encrypted-{backend}-{threads}.summary.json"
    figures = Results(folder / f"encrypted-{backend}-{threads}.figures.json")
    missing = results.missing(count)
    if missing or 0 not in figures.entries:
        require_server(artifact, folder=True)
        client = the_client(artifact, folder / "client.heliokey")
        begun = time.perf_counter()
        keys: KeyFolder = client.write_evaluation_keys(folder / "keys")
        print(f"evaluation keys: {time.perf_counter() - begun:.1f} s", flush=True)
        with hg.Server(artifact, keys, allow_insecure=True, backend=backend, cache_bytes=cache_bytes) as server:
            for number in missing:
                entry = run(client, server, images[number])
                entry["first"] = number == missing[0]
                results.add(number, entry)
                print(f"image {number + 1} of {count}: {entry['seconds']:.1f} s", flush=True)
            if 0 not in figures.entries:
                figures.add(0, floor(server, client.encrypt(images[0])))
    entries = results.first(count)
    # The first image of a process encodes the plaintexts.
    later = [entry["seconds"] for entry in entries if not entry["first"]]
    measured = figures.entries.get(0, {"floor_by_kind": {}})
    write(summary, {
        "images": entries,
        "seconds": statistics.median(later or [entry["seconds"] for entry in entries]),
        "peak_rss_bytes": max(entry["peak_rss_bytes"] for entry in entries),
        "floor_by_kind": measured["floor_by_kind"],
        "floor_seconds": sum(measured["floor_by_kind"].values()) or None,
    })  # fmt: skip


def run(client: hg.Client, server: hg.Server, image: np.ndarray) -> dict[str, Any]:
    """One image's entry."""
    load = os.getloadavg()[0]
    encrypted = client.encrypt(image)
    begun = time.perf_counter()
    output = server.run(encrypted)
    seconds = time.perf_counter() - begun
    scores = np.asarray(client.decrypt(output))
    return {
        "scores": scores.tolist(),
        "seconds": seconds,
        "load_average": load,
        "peak_rss_bytes": peak_rss_bytes(),
        "calls": _by_kind(server.trace.calls),
    }


def _by_kind(calls: Mapping[Call, int]) -> dict[str, int]:
    table: Counter[str] = Counter()
    for call, number in calls.items():
        table[call.primitive] += number
    return dict(sorted(table.items()))


def floor(server: hg.Server, encrypted: Any) -> dict[str, Any]:
    """Seconds of one image by kind of work, if it were only its homomorphic calls, each timed alone.

    A server that has run no image (all of them were there already) takes the calls that its program says.
    """
    calls = server.trace.calls or simulated_calls(server.artifact)
    timed = Floor(server.evaluator, calls)
    for _ in range(FLOOR_SAMPLES):
        timed.sample()
    table: Counter[str] = Counter()
    for call, milliseconds in timed.medians_ms().items():
        table[call.primitive] += timed.calls[call] * milliseconds / 1e3  # type: ignore[assignment]
    return {"floor_by_kind": dict(table), "load_average": os.getloadavg()[0]}


def simulated_calls(artifact: hg.Artifact) -> Counter[Call]:
    """The calls of one run, by the program."""
    return sum(node_calls(artifact.program).values(), Counter())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:5], *map(int, sys.argv[5:]))
