"""ResNet-20 on several images at once: predicted for each batch, measured for those that are named.

    python benchmarks/resnet20_batches.py --batches 1 2 4 8 16 --encrypted 4
    python benchmarks/resnet20_batches.py --mode uniform --batches 2 4 --encrypted 2 4

The network is that of ola.py: refined to degree 3, trained once (an hour on one core) and kept, or `uniform`, as it was
trained, with polynomials of degree 31. An encrypted batch is one evaluation.
"""

from __future__ import annotations

from deep_network import accuracy, run_encrypted  # first: it imports heliograph before torch

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import hg
from harness import FOLDER, Run, apart, benchmark, option, threads_option
from heliograph.errors import PlanningError
from models.cifar import NETWORKS as PRETRAINED
from models.cifar import chosen as cifar_options
from models.cifar import cifar10, traced
from models.ola import NETWORKS
from ola import chosen_options, refined

# Room for the rounded plaintexts of all maps.
CACHE_BYTES = 12 << 30
KEYS = ("bootstraps", "levels", "rotations", "plaintext_products", "server_peak_bytes", "evaluation_key_bytes")


def planned(batch: int, given: dict[str, Any]) -> dict[str, Any]:
    """The figures of one batch, and the folder of its artifact."""
    options, images, network = Namespace(**given), cifar10(), NETWORKS["resnet20"]
    folder = Path(options.folder)
    torch.set_num_threads(options.threads)
    program = traced("resnet20", network.module(folder, images), images)
    if options.mode == "refined":
        program = refined(network, program, images, folder)
    # As trained, it is the network of resnets.py, and is compiled as there.
    chosen = (
        cifar_options(PRETRAINED["resnet20"]) if options.mode == "uniform" else chosen_options(network, "refined", 0.0)
    )
    try:
        artifact = hg.compile(program, replace(chosen, batch=batch, memory_bytes=options.memory_bytes))
    except PlanningError as error:
        return {"refused": str(error)}
    folder = folder / f"{program.name}-batch{batch}-{artifact.fingerprint[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    artifact.save(folder / "artifact.helio")
    report = artifact.report.to_dict()
    return {
        "folder": str(folder),
        "predicted_seconds": report["predicted_ms"] / 1e3,
        "predicted_seconds_per_image": report["predicted_ms"] / 1e3 / batch,
        "artifact_bytes": (folder / "artifact.helio").stat().st_size,
        "compile_s": artifact.compile_s,
        **{key: report[key] for key in KEYS},
    }


def measured(batch: int, place: str, options: Namespace) -> dict[str, Any]:
    """Encrypted batches: the second and the next ones find rounded plaintexts."""
    images, folder, count = cifar10(), Path(place), options.runs
    test = images.test[: count * batch]
    batches = test.reshape(count, batch, *test.shape[1:]) if batch > 1 else test
    found = run_encrypted(batches, folder, options.threads, "native", CACHE_BYTES)
    scores = np.concatenate([np.array(each["scores"]).reshape(batch, -1) for each in found["images"]])
    return {
        "measured_seconds": found["seconds"],
        "seconds": [each["seconds"] for each in found["images"]],
        "seconds_first": found["images"][0]["seconds"],
        "measured_seconds_per_image": found["seconds"] / batch,
        "floor_seconds": found["floor_seconds"],
        "peak_rss_bytes": found["peak_rss_bytes"],
        "accuracy_encrypted": accuracy(scores, images.test_labels),
        "load_average": found["images"][0]["load_average"],
    }


COLUMNS = {
    "predicted_seconds": "s", "predicted_seconds_per_image": "s", "measured_seconds": "s", "seconds_first": "s",
    "measured_seconds_per_image": "s", "floor_seconds": "s", "bootstraps": "", "levels": "", "rotations": "",
    "evaluation_key_bytes": "bytes", "server_peak_bytes": "bytes", "peak_rss_bytes": "bytes", "compile_s": "s",
    "accuracy_encrypted": "", "refused": "",
}  # fmt: skip


@benchmark(
    option("--mode", choices=("refined", "uniform"), default="refined", help="the network"),
    option("--batches", nargs="*", type=int, default=[1, 2, 4, 8, 16]),
    option("--encrypted", nargs="*", type=int, default=[], help="batches that are also run"),
    option("--runs", type=int, default=2, help="encrypted batches of each"),
    option("--memory-bytes", type=int, default=22_000_000_000),
    threads_option(),
    FOLDER,
    columns=COLUMNS,
    data=("cifar10_subset.npz", "cifar10_resnet20_akamaster.npz"),
    memory_gb=8,
    minutes=80,
)
def resnet20_batches(run: Run) -> None:
    """Columns are None for what was not run."""
    given = run.options
    for batch in given.batches:
        encrypted = batch in given.encrypted

        def make(batch: int = batch, encrypted: bool = encrypted) -> dict[str, Any]:
            found = dict.fromkeys(COLUMNS) | apart(
                "resnet20_batches:planned", batch, vars(given), threads=given.threads
            )
            # Of this machine alone.
            folder = found.pop("folder", None)
            return found | (measured(batch, folder, given) if encrypted and folder else {})

        # With another key: a plan alone does not stand for a run.
        run.row({"mode": given.mode, "batch": batch, **({} if encrypted else {"run": "planned"})}, make)


if __name__ == "__main__":
    resnet20_batches.main()
