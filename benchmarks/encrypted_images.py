"""Encrypt, evaluate and decrypt images with a compiled artifact, one by one, in a process that loads no torch.

The peak of memory is that of a server (and of the client, which is in the same process).
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy

import os
import statistics
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
from harness import Records

FLOOR_SAMPLES = 3


def the_client(artifact: hg.Artifact, path: Path) -> hg.Client:
    """The client whose key is in the folder, or a new one, saved."""
    if path.exists():
        return hg.Client.load(path, artifact=artifact, allow_insecure=True)
    client = hg.Client(artifact.public(), allow_insecure=True)
    client.save(path)
    return client


def inputs(path: Path) -> list[tuple[Any, ...]]:
    """The samples of a file with an array for each input, in the order of the inputs."""
    with np.load(path, allow_pickle=False) as file:
        return list(zip(*(file[name] for name in file.files), strict=True))


def main(
    place: str, count: int, threads: int, backend: str = "native", cache_bytes: int = PLAINTEXT_CACHE_BYTES
) -> dict[str, Any]:
    """Run what is missing of the first `count` images, and give the figures of all. The process keeps to `threads` cores.

    The folder has `artifact.helio` and `images.npz`, an array for each input. The client's key, the evaluation keys and
    every image's result are written there as they are finished; a run that was stopped goes on where it stood.
    """
    # Beside OpenMP's threads there is one that encodes plaintexts ahead. Both come later and inherit this; what numpy
    # made already, where there are several, has no part in the homomorphic work.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    folder = Path(place)
    artifact = hg.Artifact.load(folder / "artifact.helio")
    images = inputs(folder / "images.npz")
    records = Records(folder / f"encrypted-{backend}-{threads}.jsonl")
    missing = [number for number in range(count) if records.find(image=number) is None]
    if missing or records.find(image="floor") is None:
        require_server(artifact, folder=True)
        client = the_client(artifact, folder / "client.heliokey")
        begun = time.perf_counter()
        keys: KeyFolder = client.write_evaluation_keys(folder / "keys")
        if records.find(image="keys") is None:
            records.add({"image": "keys", "seconds": time.perf_counter() - begun})
        with hg.Server(artifact, keys, allow_insecure=True, backend=backend, cache_bytes=cache_bytes) as server:
            for number in missing:
                entry = run(client, server, images[number])
                records.add({"image": number, "first": number == missing[0], **entry})
                print(f"image {number + 1} of {count}: {entry['seconds']:.1f} s", flush=True)
            if records.find(image="floor") is None:
                records.add({"image": "floor", **floor(server, client.encrypt(*images[0]))})
    entries = [entry for number in range(count) if (entry := records.find(image=number))]
    # The first image of a process encodes the plaintexts.
    later = [entry["seconds"] for entry in entries if not entry["first"]]
    measured, made = records.find(image="floor"), records.find(image="keys")
    assert measured is not None
    assert made is not None
    return {
        "images": entries,
        "seconds": statistics.median(later or [entry["seconds"] for entry in entries]),
        "peak_rss_bytes": max(entry["peak_rss_bytes"] for entry in entries),
        "floor_by_kind": measured["floor_by_kind"],
        "floor_seconds": sum(measured["floor_by_kind"].values()),
        "keys_s": made["seconds"],
    }


def run(client: hg.Client, server: hg.Server, image: tuple[Any, ...]) -> dict[str, Any]:
    """One image's entry."""
    load = os.getloadavg()[0]
    encrypted = client.encrypt(*image)
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
    timed = Floor(server.evaluator, calls, server.keys)
    for _ in range(FLOOR_SAMPLES):
        timed.sample()
    table: Counter[str] = Counter()
    for call, milliseconds in timed.medians_ms().items():
        table[call.primitive] += timed.calls[call] * milliseconds / 1e3  # type: ignore[assignment]
    return {"floor_by_kind": dict(table), "load_average": os.getloadavg()[0]}


def simulated_calls(artifact: hg.Artifact) -> Counter[Call]:
    """The calls of one run, by the program."""
    return sum(node_calls(artifact.program).values(), Counter())
