"""ResNet-18 (11 million weights) at 64x64 or larger: compiled, with the bill, simulated, and run on an encrypted image.

    python benchmarks/resnet18.py --simulated 2 --encrypted
    python benchmarks/resnet18.py --size 224 --stem
    python benchmarks/resnet18.py --size 32 --width 16 --degree 3

The weights are random and the batch norms settled on random images: what is shown is that a network of this size is
compiled, in which time and memory, what it would take, and that the compiled program computes what the network does. The
artifact is kept, and not compiled again.
"""

from __future__ import annotations

from deep_network import run_encrypted  # first: it imports heliograph before torch

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import hg
from harness import FOLDER, Run, benchmark, option, threads_option
from heliograph.tools.measure import peak_rss_bytes
from models.resnet18 import drawn

KEYS = (
    "security_bits", "ring_dim", "log_pq", "levels", "bootstraps", "rotations", "plaintext_products", "predicted_ms",
    "server_peak_bytes", "evaluation_key_bytes",
)  # fmt: skip


def error(found: np.ndarray, wanted: np.ndarray) -> dict[str, Any]:
    """How far outputs are from the network's."""
    return {
        "max_abs_error": float(np.abs(found - wanted).max()),
        "largest_output": float(np.abs(wanted).max()),
        "same_class": int(found.argmax()) == int(wanted.argmax()),
    }


def encrypted(path: Path, x: np.ndarray, wanted: np.ndarray, threads: int) -> dict[str, Any]:
    """One encrypted image, by a process without torch."""
    found = run_encrypted(x[np.newaxis], path.parent, threads)
    return {
        "seconds": found["seconds"],
        "floor_seconds": found["floor_seconds"],
        "peak_rss_bytes": found["peak_rss_bytes"],
        "load_average": found["images"][0]["load_average"],
        **error(np.array(found["images"][0]["scores"]), wanted),
    }


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of the network that the options say."""
    torch.set_num_threads(options.threads)
    module, images = drawn(options.size, options.width, options.stem)
    weights = sum(parameter.numel() for parameter in module.parameters())
    name = f"resnet18-{options.size}-{options.width}-{options.degree}" + "-stem" * options.stem
    before, seconds, processor, path = peak_rss_bytes(), None, None, options.folder / name / "artifact.helio"
    if path.exists():
        artifact = hg.Artifact.load(path)
    else:
        calibration = images[:32].numpy()
        program = hg.trace(module, images[:1], input_range=(-2.0, 2.0), calibration=calibration, name="resnet18")
        begun, ticked = time.perf_counter(), time.process_time()
        chosen = hg.Options(degree=options.degree, margin=0.5, memory_bytes=options.memory_bytes)
        artifact = hg.compile(program, chosen)
        seconds, processor = time.perf_counter() - begun, time.process_time() - ticked
        path.parent.mkdir(parents=True, exist_ok=True)
        artifact.save(path)
    report = artifact.report.to_dict()
    result: dict[str, Any] = {
        "weights": weights,
        "compile_s": seconds,
        "compile_processor_s": processor,
        "peak_rss_bytes": peak_rss_bytes(),
        "peak_before_bytes": before,
        "artifact_bytes": path.stat().st_size,
        **{key: report[key] for key in KEYS},
        "simulated": [],
    }
    with torch.no_grad():
        wanted = module(images[32 : 32 + max(options.simulated, 1)]).numpy()
    for number in range(options.simulated):
        begun = time.perf_counter()
        made = np.asarray(hg.simulate(artifact, images[32 + number].numpy()))
        result["simulated"].append({"seconds": time.perf_counter() - begun, **error(made, wanted[number])})
    if options.encrypted:
        found = encrypted(path, images[32].numpy(), wanted[0], options.threads)
        result |= {f"encrypted_{name}": value for name, value in found.items()}
    return result


@benchmark(
    option("--size", type=int, default=64, help="rows and columns of an image"),
    option("--width", type=int, default=64, help="channels of the first stage"),
    option("--stem", action="store_true", help="the first layers of the network for 224x224"),
    option("--degree", type=int, default=15),
    option("--simulated", type=int, default=0, metavar="M", help="simulated images"),
    option("--encrypted", action="store_true", help="run one encrypted image too"),
    option("--memory-bytes", type=int, default=None, help="bound on the server's memory"),
    threads_option("of torch and of the encrypted run"),
    FOLDER,
    columns={
        "weights": "", "compile_s": "s", "compile_processor_s": "s of the processor", "peak_rss_bytes": "bytes",
        "artifact_bytes": "bytes", **dict.fromkeys(KEYS, ""), "predicted_ms": "ms", "simulated": "",
    },
    memory_gb=10,
    minutes=10,
)  # fmt: skip
def resnet18(run: Run) -> None:
    given = run.options
    run.row({"size": given.size, "width": given.width}, lambda: measured(given))


if __name__ == "__main__":
    resnet18.main()
