"""What the benchmarks share: real data, training, the table that they print."""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fetch
import numpy as np
import torch

from heliograph.tools.measure import measure, peak_rss_bytes

ROOT = Path(__file__).resolve().parents[1]


def data(name: str) -> Path:
    """The path of a shared data file; ends the script where it is absent, with the reason on stderr.

    That is a failure only where `--json` promised an object.
    """
    path = fetch.folder() / name
    if not path.exists():
        how = f"run python benchmarks/fetch.py {name}" if name in fetch.SOURCES else f"{fetch.NOT_MADE.get(name, '')}"
        print(
            f"skipped: {path} is not there; {how} (benchmarks/data.md), or set HELIOGRAPH_DATA to the folder with {name}",
            file=sys.stderr,
        )
        sys.exit(1 if "--json" in sys.argv[1:] else 0)
    return path


def machine() -> str:
    """One line on the machine that a figure was measured on."""
    model = platform.processor() or "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


# The first is what a server takes by itself.
BACKENDS = ("native", "openfhe")


def backend_argument(parser: argparse.ArgumentParser, meaning: str = "whose primitives are run") -> None:
    parser.add_argument("--backend", choices=BACKENDS, default=BACKENDS[0], help=meaning)


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--images", type=int, default=100, help="encrypted test images")
    parser.add_argument("--degree", type=int, default=15, help="degree of the activations")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", default="1", help='images in the same ciphertexts: a power of two, or "max"')
    backend_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    found = parser.parse_args()
    found.batch = found.batch if found.batch == "max" else int(found.batch)
    return found


def mnist() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """MNIST in [0, 1] as float32, training and test, official order."""
    with np.load(data("mnist.npz"), allow_pickle=False) as file:
        images = [file[name].astype(np.float32) / 255 for name in ("x_train", "x_test")]
        return images[0], file["y_train"].astype(np.int64), images[1], file["y_test"].astype(np.int64)


def train(module: torch.nn.Module, x: np.ndarray, y: np.ndarray, epochs: int, seed: int = 0) -> None:
    """Adam with a decaying rate, in place."""
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    steps = epochs * (len(x) // 128)
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    module.train()
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x) - 127, 128):
            batch = order[start : start + 128]
            loss = torch.nn.functional.cross_entropy(module(inputs[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    module.eval()


def benchmark_classifier(
    name: str,
    module: torch.nn.Module,
    x_train: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    options: hg.Options,
    images: int,
    cache_bytes: int = 1 << 30,
    backend: str = BACKENDS[0],
) -> dict[str, Any]:
    """Accuracy clear, polynomial and encrypted, and every figure of the encrypted runs."""
    program = hg.trace(
        module, torch.from_numpy(x_test[:1]), input_range=(0.0, 1.0), calibration=x_train[:512], name=name
    )
    artifact = hg.compile(program, options)
    with torch.no_grad():
        clear = module(torch.from_numpy(x_test)).numpy()
    polynomial = polynomial_logits(program, options, x_test)
    report = artifact.report.to_dict()
    batch = report["batch"]
    groups = [x_test[i : i + batch] for i in range(0, images, batch)] if batch > 1 else list(x_test[:images])
    measured = measure(artifact, groups, cache_bytes=cache_bytes, backend=backend)
    encrypted = (np.concatenate if batch > 1 else np.stack)(measured.outputs)[:images]
    return {
        "name": name,
        "backend": backend,
        "machine": machine(),
        "load_average": measured.load_average,
        "noisy_machine": measured.load_average > 0.5,
        "images": images,
        "accuracy_clear": float((clear.argmax(1) == y_test).mean()),
        "accuracy_polynomial": float((polynomial.argmax(1) == y_test).mean()),
        "accuracy_clear_on_images": float((clear[:images].argmax(1) == y_test[:images]).mean()),
        "accuracy_encrypted": float((encrypted.argmax(1) == y_test[:images]).mean()),
        "agreement": float((encrypted.argmax(1) == clear[:images].argmax(1)).mean()),
        "max_abs_error": float(np.abs(encrypted - clear[:images]).max()),
        "max_scheme_error": float(np.abs(encrypted - polynomial[:images]).max()),
        **{
            key: report[key]
            for key in (
                "predicted_max_abs_error", "scheme_error", "security_bits", "ring_dim", "log_pq", "depth", "levels",
                "rotations", "rotation_keys", "key_switches", "ciphertext_products", "plaintext_products",
                "evaluation_key_bytes", "ciphertext_bytes", "server_peak_bytes", "predicted_ms",
            )
        },
        "batch": batch,
        "measured_ms_per_image": measured.measured_ms / batch,
        "measured_ms": measured.measured_ms,
        "floor_ms": measured.floor_ms,
        "over_floor": measured.over_floor,
        "first_ms": measured.first_ms,
        "encrypt_ms": measured.encrypt_ms,
        "decrypt_ms": measured.decrypt_ms,
        "keygen_s": measured.keygen_s,
        "compile_s": artifact.compile_s,
        "peak_rss_bytes": peak_rss_bytes(),
    }  # fmt: skip


def polynomial_logits(program: hg.Program, options: hg.Options, x: np.ndarray) -> np.ndarray:
    """The compiled polynomials in the clear, on many samples."""
    from heliograph.compiler.pipeline import front_passes
    from heliograph.interpret import interpret_batch

    polynomial = front_passes(program, options)[-1].program
    return np.concatenate([interpret_batch(polynomial, part)[0] for part in np.array_split(x, max(1, len(x) // 500))])


def show(result: Mapping[str, Any], as_json: bool) -> None:
    """Print the result as JSON, or as a table and then JSON."""
    if not as_json:
        width = max(map(len, result))
        for key, value in result.items():
            print(f"{key:<{width}}  {value:.6g}" if isinstance(value, float) else f"{key:<{width}}  {value}")
    print(json.dumps(dict(result)))
