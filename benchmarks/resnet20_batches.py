"""ResNet-20 on several images at once: predicted for each batch, measured for those that are named.

    python benchmarks/resnet20_batches.py --batches 1 2 4 8 16 --encrypted 4
    python benchmarks/resnet20_batches.py --mode uniform --batches 2 4 --encrypted 2 4

The network is that of ola.py: refined to degree 3, trained once (an hour on one core) and kept, or `uniform`, as it was
trained, with polynomials of degree 31. An encrypted batch is one evaluation.
"""

from __future__ import annotations

from deep_network import ROOT, accuracy, cifar10, hg, machine, run_encrypted  # first: it imports heliograph  # isort: skip

import argparse
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heliograph.errors import PlanningError
from ola import CALIBRATION, chosen_options, refined
from ola_models import NETWORKS

# Room for the rounded plaintexts of all maps.
CACHE_BYTES = 12 << 30
KEYS = ("bootstraps", "levels", "rotations", "plaintext_products", "server_peak_bytes", "evaluation_key_bytes")


def planned(batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one batch, and the folder of its artifact."""
    torch.set_num_threads(options.threads)
    images, network = cifar10(), NETWORKS["resnet20"]
    program = hg.trace(
        network.module(options.folder, images), torch.from_numpy(images.test[:1]), input_range=images.interval,
        calibration=images.train[:CALIBRATION], name="resnet20",
    )  # fmt: skip
    if options.mode == "refined":
        program = refined(network, program, images, options)
    chosen = chosen_options(network, options.mode, 0.0)
    try:
        artifact = hg.compile(program, replace(chosen, batch=batch, memory_bytes=options.memory_bytes))
    except PlanningError as error:
        return {"batch": batch, "refused": str(error)}
    folder = options.folder / f"{program.name}-batch{batch}-{artifact.fingerprint[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    artifact.save(folder / "artifact.helio")
    report = artifact.report.to_dict()
    return {
        "batch": batch,
        "folder": str(folder),
        "predicted_seconds": report["predicted_ms"] / 1e3,
        "predicted_seconds_per_image": report["predicted_ms"] / 1e3 / batch,
        "artifact_bytes": (folder / "artifact.helio").stat().st_size,
        "compile_s": artifact.compile_s,
        **{key: report[key] for key in KEYS},
    }


def measured(entry: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Encrypted batches: the second and the next ones find rounded plaintexts."""
    images, folder, batch, count = cifar10(), Path(entry["folder"]), entry["batch"], options.runs
    test = images.test[: count * batch]
    batches = test.reshape(count, batch, *test.shape[1:]) if batch > 1 else test
    found = run_encrypted(batches, folder, options.threads, "native", CACHE_BYTES)
    scores = np.concatenate([np.array(each["scores"]).reshape(batch, -1) for each in found["images"]])
    return {
        "measured_seconds": found["seconds"],
        "seconds": [each["seconds"] for each in found["images"]],
        "measured_seconds_per_image": found["seconds"] / batch,
        "floor_seconds": found["floor_seconds"],
        "peak_rss_bytes": found["peak_rss_bytes"],
        "accuracy_encrypted": accuracy(scores, images.test_labels),
        "load_average": found["images"][0]["load_average"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("refined", "uniform"), default="refined", help="the network")
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--encrypted", nargs="*", type=int, default=[], help="batches that are also run")
    parser.add_argument("--runs", type=int, default=2, help="encrypted batches of each")
    parser.add_argument("--memory-bytes", type=int, default=22_000_000_000)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "benchmarks", help="where results are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    options = parser.parse_args()
    context, found = multiprocessing.get_context("spawn"), []
    for batch in options.batches:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            entry = pool.submit(planned, batch, options).result()
        if batch in options.encrypted and "folder" in entry:
            entry |= measured(entry, options)
        found.append(entry)
        if not options.json:
            print(json.dumps(entry), flush=True)
    if options.json:
        print(json.dumps({"machine": machine(), "batches": found}))


if __name__ == "__main__":
    main()
