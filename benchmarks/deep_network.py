"""What the benchmarks of deep networks share: the accuracy of every stage in the clear, and encrypted images one by one.

The encrypted images run in a process of their own (`encrypted_images.py`), which loads no torch. Everything that takes
long is written to a folder as it is finished: keys, simulated images, encrypted images. A run that was stopped goes on
where it stood; another program, or other options, start their own files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

if "--threads" in sys.argv[:-1]:
    # OpenMP reads it when the first library that uses it is loaded.
    os.environ["OMP_NUM_THREADS"] = sys.argv[sys.argv.index("--threads") + 1]

from common import ROOT, backend_argument, data, hg, machine  # it imports heliograph, before torch

import numpy as np
import torch

from heliograph.execution.prices import priced_ms
from heliograph.report.text import bytes_text
from heliograph.interpret import interpret_many
from encrypted_images import simulated_calls
from results import Results
from simulated_images import simulated

CALIBRATION = 512
KEYS = (
    "backend", "accuracy_float", "accuracy_polynomial", "accuracy_simulated", "agreement_simulated", "images_simulated",
    "images_encrypted", "agreement",
    "max_abs_error", "security_bits", "ring_dim", "log_pq", "bootstraps", "rotations", "key_switches",
    "plaintext_products", "seconds_per_image", "predicted_seconds", "floor_seconds", "peak_rss_bytes",
    "evaluation_key_bytes", "compile_s", "threads",
)  # fmt: skip


def arguments(description: str, degree: int | None, networks: Sequence[str] = ()) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--encrypted", type=int, default=0, metavar="N", help="encrypted test images, from the first")
    parser.add_argument("--simulated", type=int, default=0, metavar="M", help="simulated test images, from the first")
    parser.add_argument("--degree", type=int, default=degree, help="degree of the activations")
    parser.add_argument(
        "--threads", type=int, default=None, help="threads of OpenMP, and cores of the encrypted run (default: all)"
    )
    backend_argument(parser, "whose primitives are run")
    parser.add_argument("--memory", type=float, default=None, metavar="GB", help="bound on the server's predicted peak")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "benchmarks", help="where results are kept")
    if networks:
        parser.add_argument("--network", choices=networks, default=networks[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    return parser.parse_args()


def once(weights: Path, module: torch.nn.Module, train: Callable[[], None]) -> None:
    """The weights of a file, or where there is none those that `train` finds, kept.

    Floating point adds up differently on another number of threads, and results belong to one network.
    """
    if weights.exists():
        with np.load(weights, allow_pickle=False) as state:
            module.load_state_dict({name: torch.from_numpy(state[name]) for name in state})
        return
    train()
    weights.parent.mkdir(parents=True, exist_ok=True)
    beside = weights.with_suffix(".tmp.npz")
    np.savez(beside, **{name: tensor.numpy() for name, tensor in module.state_dict().items()})
    beside.replace(weights)


class Images(NamedTuple):
    """CIFAR-10 as networks take it, normalized, (n, 3, 32, 32) float32; `interval` holds every input there can be."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    interval: tuple[float, float]


def cifar10() -> Images:
    """7,728 training images and the first 500 test images."""
    with np.load(data("cifar10_subset.npz"), allow_pickle=False) as file:
        mean, std = (file[name].astype(np.float32) for name in ("norm_mean", "norm_std"))
        images = []
        for name in ("x_train", "x_test"):
            scaled = (file[name].astype(np.float32) / 255 - mean) / std
            images.append(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)))
        labels = [file[name].astype(np.int64) for name in ("y_train", "y_test")]
    interval = float((-mean / std).min()) - 1e-6, float(((1 - mean) / std).max()) + 1e-6
    return Images(images[0], labels[0], images[1], labels[1], interval)


def accuracy(scores: np.ndarray, labels: np.ndarray) -> float:
    return float((scores.argmax(1) == labels[: len(scores)]).mean())


class Compiled(NamedTuple):
    """What is left of a network when encrypted images run: scores, (n, classes), of the float and the polynomial network."""

    clear: np.ndarray
    polynomial: np.ndarray
    folder: Path
    report: dict[str, Any]
    compile_s: float
    seconds_by_kind: dict[str, float]


def speaker(options: argparse.Namespace) -> Callable[..., None]:
    """What prints text, where text was asked for."""
    return (lambda *words: None) if options.json else (lambda *words: print(*words, flush=True))


def compiled(
    name: str, module: torch.nn.Module, images: Images, chosen: hg.Options, options: argparse.Namespace
) -> Compiled:
    """Compile the network into a folder of its own, and run it in the clear."""
    torch.set_num_threads(options.threads or len(os.sched_getaffinity(0)))
    program = hg.trace(
        module,
        torch.from_numpy(images.test[:1]),
        input_range=images.interval,
        calibration=images.train[:CALIBRATION],
        name=name,
    )
    return compiled_program(program, scores_of(module, images.test), images, chosen, options)


def scores_of(module: torch.nn.Module, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(torch.cat([module(part) for part in torch.from_numpy(images).split(100)]).numpy())


def compiled_program(
    program: hg.Program, clear: np.ndarray, images: Images, chosen: hg.Options, options: argparse.Namespace
) -> Compiled:
    """The same of a program; `clear` are the float network's scores of the test images."""
    say, test, labels = speaker(options), images.test, images.test_labels
    say(f"float: {accuracy(clear, labels):.1%} of {len(test)} images")
    seen: dict[str, hg.Program] = {}
    artifact = hg.compile(program, chosen, watch=seen.__setitem__)
    say(artifact.report)
    parts = np.array_split(test, max(1, len(test) // 50))
    # With the activations that bootstraps compute, if there are some.
    meant = seen.get("merge-activations", seen["fold-scaling"])
    polynomial = np.concatenate([interpret_many(meant, [part])[0] for part in parts])
    say(f"polynomials: {accuracy(polynomial, labels):.1%}, the float class for "
        f"{(polynomial.argmax(1) == clear.argmax(1)).mean():.1%}")  # fmt: skip
    folder = options.folder / f"{program.name}-{artifact.fingerprint[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    artifact.save(folder / "artifact.helio")
    seconds = predicted_seconds(artifact, chosen)
    return Compiled(clear, polynomial, folder, artifact.report.to_dict(), artifact.compile_s, seconds)


def benchmark(
    name: str, module: torch.nn.Module, images: Images, chosen: hg.Options, options: argparse.Namespace
) -> None:
    """Print what the arguments ask for, and one JSON object with KEYS; null for what was not run."""
    say, test, labels = speaker(options), images.test, images.test_labels
    say(f"{machine()}; load average {os.getloadavg()[0]:.2f}")
    if options.memory is not None:
        chosen = replace(chosen, memory_bytes=int(options.memory * 1e9))
    # In a process that ends: the memory is for the encrypted images.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        made = pool.submit(compiled, name, module, images, chosen, options).result()
    clear, polynomial, folder, report = made.clear, made.polynomial, made.folder, made.report
    scores_simulated = simulate(folder, test, options.simulated, say)
    encrypted = encrypt(test, options, folder) if options.encrypted else {}
    result = dict.fromkeys(KEYS) | {
        "backend": options.backend,
        "accuracy_float": accuracy(clear, labels),
        "accuracy_polynomial": accuracy(polynomial, labels),
        "images_simulated": len(scores_simulated),
        "images_encrypted": 0,
        "predicted_seconds": report["predicted_ms"] / 1e3,
        "compile_s": made.compile_s,
        "threads": options.threads or len(os.sched_getaffinity(0)),
        **{key: report[key] for key in (
            "security_bits", "ring_dim", "log_pq", "bootstraps", "rotations", "key_switches", "plaintext_products",
            "evaluation_key_bytes",
        )},
    }  # fmt: skip
    if len(scores_simulated):
        count = len(scores_simulated)
        result["accuracy_simulated"] = accuracy(scores_simulated, labels)
        result["agreement_simulated"] = accuracy(scores_simulated, clear.argmax(1))
        worst = np.abs(scores_simulated - polynomial[:count]).max()
        say(f"simulator: {result['accuracy_simulated']:.1%} of {count} (float {accuracy(clear[:count], labels):.1%}), the "
            f"float class for {result['agreement_simulated']:.1%}, the polynomials' for "
            f"{accuracy(scores_simulated, polynomial.argmax(1)):.1%}, error {worst:.2g} against them")  # fmt: skip
    if encrypted:
        scores = np.array([entry["scores"] for entry in encrypted["images"]])
        result |= {
            "images_encrypted": len(scores),
            "agreement": float((scores.argmax(1) == clear[: len(scores)].argmax(1)).mean()),
            "max_abs_error": float(np.abs(scores - clear[: len(scores)]).max()),
            "seconds_per_image": encrypted["seconds"],
            "floor_seconds": encrypted["floor_seconds"],
            "peak_rss_bytes": encrypted["peak_rss_bytes"],
        }
        say(f"encrypted: {len(scores)} images, {accuracy(scores, labels):.1%} right, error "
            f"{np.abs(scores - polynomial[: len(scores)]).max():.2g} against the polynomials, load average up to "
            f"{max(entry['load_average'] for entry in encrypted['images']):.2f}")  # fmt: skip
        others = differing_calls(encrypted["images"], report["operations_by_kind"])
        if not others:
            say("calls of the encrypted images: as predicted")
        for line in others:
            # Seen whatever else is printed.
            print(line, file=sys.stderr if options.json else sys.stdout, flush=True)
        peak, planned = encrypted["peak_rss_bytes"], report["server_peak_bytes"]
        say(f"peak of memory: {bytes_text(peak)}, {peak / planned:.2f} times the {bytes_text(planned)} predicted for the "
            "server; the measured process has the client in it too")  # fmt: skip
        if encrypted["floor_seconds"]:
            say(f"measured over floor: {encrypted['seconds'] / encrypted['floor_seconds']:.2f}")
    kinds(made, encrypted.get("floor_by_kind", {}), say)
    print(json.dumps(result))


def simulate(folder: Path, test: np.ndarray, count: int, say: Any) -> np.ndarray:
    """The simulator's scores of the first `count` images; each is kept as soon as it is there."""
    results = Results(folder / "simulated.json")
    missing = results.missing(count)
    if missing:
        with contextlib.closing(simulated(folder / "artifact.helio", test, missing)) as finished:
            for number, scores in finished:
                results.add(number, {"scores": scores})
                say(f"simulated image {number + 1} of {count}")
    return np.array([entry["scores"] for entry in results.first(count)])


def encrypt(test: np.ndarray, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What `run_encrypted` found of the first images."""
    threads = options.threads or len(os.sched_getaffinity(0))
    return run_encrypted(test[: options.encrypted], folder, threads, options.backend)


def run_encrypted(
    images: np.ndarray, folder: Path, threads: int, backend: str = "native", *more: object
) -> dict[str, Any]:
    """What `encrypted_images.py` found: an entry for each image, and the figures of all; `more` are its last arguments."""
    np.save(folder / "images.npy", images)
    script = Path(__file__).with_name("encrypted_images.py")
    subprocess.run(
        [sys.executable, str(script), str(folder), str(len(images)), str(threads), backend, *map(str, more)],
        check=True,
        stdout=sys.stderr,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    found: dict[str, Any] = json.loads((folder / f"encrypted-{backend}-{threads}.summary.json").read_text())
    return found


def differing_calls(images: Sequence[Mapping[str, Any]], predicted: Mapping[str, int]) -> list[str]:
    """A line for each encrypted image whose calls, by kind of work, are not as many as predicted."""
    lines = []
    for number, entry in enumerate(images):
        found = entry["calls"]
        other = [
            f"{kind} {found.get(kind, 0)} instead of {predicted.get(kind, 0)}"
            for kind in sorted({*found, *predicted})
            if found.get(kind, 0) != predicted.get(kind, 0)
        ]
        if other:
            lines.append(f"calls of encrypted image {number + 1} are NOT those predicted: {', '.join(other)}")
    return lines


def kinds(made: Compiled, floor: dict[str, float], say: Any) -> None:
    """The table of kinds of work: calls, seconds as predicted and, where images ran, as measured alone."""
    predicted, calls = made.seconds_by_kind, made.report["operations_by_kind"]
    say(f"{'kind of work':<16}{'calls':>8}{'predicted s':>13}{'floor s':>10}")
    for name, number in sorted(calls.items(), key=lambda item: -predicted[item[0]]):
        measured = f"{floor[name]:.2f}" if name in floor else "-"
        say(f"{name:<16}{number:>8}{predicted[name]:>13.2f}{measured:>10}")


def predicted_seconds(artifact: hg.Artifact, options: hg.Options) -> dict[str, float]:
    """The predicted seconds of each kind of work: their sum is the prediction of a run."""
    table: dict[str, float] = {}
    chains = artifact.program.planned.chains
    for call, number in simulated_calls(artifact).items():
        table[call[0]] = table.get(call[0], 0.0) + number * priced_ms(call, chains, options.costs) / 1e3
    return table
