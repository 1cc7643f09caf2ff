"""What the benchmarks of deep networks share: the accuracy of every stage in the clear, and encrypted images one by one.

Networks are compiled, and encrypted images run (`encrypted_images.py`), in processes of their own; the latter load no torch.
Everything that takes long is written to a folder as it is finished: keys, simulated images, encrypted images. A run that was
stopped goes on where it stood; another program, or other options, start their own files.
"""

from __future__ import annotations

from common import hg  # first: it imports heliograph before torch

import argparse
import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from harness import BACKEND, FOLDER, Records, Run, apart, option, threads_option
from heliograph.execution.prices import priced_ms
from heliograph.report.text import bytes_text
from heliograph.interpret import interpret_many
from encrypted_images import simulated_calls
from models.cifar import Images, traced
from simulated_images import simulated

REPORTED = (
    "security_bits", "ring_dim", "log_pq", "levels", "bootstraps", "rotations", "key_switches", "plaintext_products",
    "evaluation_key_bytes", "server_peak_bytes",
)  # fmt: skip
MEASURED = (
    "accuracy_simulated", "agreement_simulated", "images_encrypted", "agreement", "same_class", "max_abs_error",
    "max_scheme_error", "seconds_per_image", "seconds_first", "floor_seconds", "keys_s", "peak_rss_bytes", "floor_by_kind",
    "each_image",
)  # fmt: skip
# Of a row of such a network; None for what was not run.
COLUMNS = {
    **dict.fromkeys(
        ("accuracy_float", "accuracy_polynomial", "agreement_polynomial", "images_simulated", *MEASURED, *REPORTED), ""
    ),
    "predicted_seconds": "s", "seconds_per_image": "s", "seconds_first": "s", "floor_seconds": "s", "keys_s": "s",
    "compile_s": "s", "evaluation_key_bytes": "bytes", "server_peak_bytes": "bytes", "peak_rss_bytes": "bytes",
}  # fmt: skip


def options(degree: int | None, networks: Sequence[str]) -> tuple[Any, ...]:
    """The options of such a benchmark."""
    return (
        option("--network", choices=networks, default=networks[0]),
        option("--encrypted", type=int, default=0, metavar="N", help="encrypted test images, from the first"),
        option("--simulated", type=int, default=0, metavar="M", help="simulated test images, from the first"),
        option("--degree", type=int, default=degree, help="degree of the activations (default: the network's own)"),
        threads_option(),
        option("--memory", type=float, default=None, metavar="GB", help="bound on the server's predicted peak"),
        BACKEND,
        FOLDER,
    )


def accuracy(scores: np.ndarray, labels: np.ndarray) -> float:
    """The share of samples whose largest score is that of their label; nan where the labels are not known (-1)."""
    known = labels[: len(scores)]
    return math.nan if (known < 0).all() else float((scores.argmax(1) == known).mean())


# ------------------------------------------------------------------------------------------- compiled


class Compiled(NamedTuple):
    """What is left of a network when encrypted images run: scores, (n, classes), of the float and the polynomial network."""

    clear: np.ndarray
    polynomial: np.ndarray
    folder: Path
    report: dict[str, Any]
    compile_s: float
    seconds_by_kind: dict[str, float]


def compiled_apart(function: str, given: argparse.Namespace, *more: object) -> Compiled:
    """What a function of the options as a mapping, `module:name`, made of a network, in a process that ends."""
    found = apart(function, vars(given), *more, threads=given.threads)
    return Compiled(np.array(found[0]), np.array(found[1]), Path(found[2]), *found[3:])


def compiled(
    name: str, module: torch.nn.Module, images: Images, chosen: hg.Options, given: Mapping[str, Any]
) -> Compiled:
    """Compile the network into a folder of its own, and run it in the clear."""
    torch.set_num_threads(given["threads"])
    return compiled_program(traced(name, module, images), scores_of(module, images.test), images, chosen, given)


def scores_of(module: torch.nn.Module, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(torch.cat([module(part) for part in torch.from_numpy(images).split(100)]).numpy())


def compiled_program(
    program: hg.Program, clear: np.ndarray, images: Images, chosen: hg.Options, given: Mapping[str, Any]
) -> Compiled:
    """The same of a program; `clear` are the float network's scores of the test images."""
    test, labels = images.test, images.test_labels
    print(f"float: {accuracy(clear, labels):.1%} of {len(test)} images", flush=True)
    artifact, meant, folder = kept(program, program.name, chosen, given)
    parts = np.array_split(test, max(1, len(test) // 50))
    polynomial = np.concatenate([interpret_many(meant, [part])[0] for part in parts])
    print(f"polynomials: {accuracy(polynomial, labels):.1%}, the float class for "
          f"{(polynomial.argmax(1) == clear.argmax(1)).mean():.1%}", flush=True)  # fmt: skip
    seconds = predicted_seconds(artifact, chosen)
    return Compiled(clear, polynomial, folder, artifact.report.to_dict(), artifact.compile_s, seconds)


def kept(
    program: hg.Program, name: str, options: hg.Options, given: Mapping[str, Any]
) -> tuple[hg.Artifact, hg.Program, Path]:
    """The artifact within the memory that was given, its program of polynomials, and the folder in which it is kept.

    The polynomials include the activations that bootstraps compute, if there are some.
    """
    if given.get("memory") is not None:
        options = replace(options, memory_bytes=int(given["memory"] * 1e9))
    seen: dict[str, hg.Program] = {}
    artifact = hg.compile(program, options, watch=seen.__setitem__)
    print(artifact.report, flush=True)
    folder = Path(given["folder"]) / f"{name}-{artifact.fingerprint[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    artifact.save(folder / "artifact.helio")
    return artifact, seen.get("merge-activations", seen["fold-scaling"]), folder


def predicted_seconds(artifact: hg.Artifact, options: hg.Options) -> dict[str, float]:
    """The predicted seconds of each kind of work: their sum is the prediction of a run."""
    table: dict[str, float] = {}
    chains = artifact.program.planned.chains
    for call, number in simulated_calls(artifact).items():
        table[call[0]] = table.get(call[0], 0.0) + number * priced_ms(call, chains, options.costs) / 1e3
    return table


# ------------------------------------------------------------------------------------------- rows


def measure(run: Run, function: str, images: Images, **more: str) -> None:
    """The row of the network that the options name; `function` compiles it (`compiled_apart`), `more` is for its key."""
    given = run.options
    key = {"network": given.network, "backend": given.backend, **more}
    run.row(key, lambda: measured(run, compiled_apart(function, given), images))


def measured(run: Run, made: Compiled, images: Images) -> dict[str, Any]:
    """The figures of a network: those of its bill, of the polynomials, of simulated and of encrypted images."""
    given, clear, report, say = run.options, made.clear, made.report, run.say
    test, labels = images.test, images.test_labels
    result: dict[str, Any] = {
        **dict.fromkeys(MEASURED),
        "accuracy_float": accuracy(clear, labels),
        "accuracy_polynomial": accuracy(made.polynomial, labels),
        "agreement_polynomial": accuracy(made.polynomial, clear.argmax(1)),
        "images_encrypted": 0,
        "predicted_seconds": report["predicted_ms"] / 1e3,
        "compile_s": made.compile_s,
        "predicted_by_kind": made.seconds_by_kind,
        "calls_by_kind": report["operations_by_kind"],
        **{name: report[name] for name in REPORTED},
    }
    scores = simulate(made.folder, test, given.simulated, say)
    result["images_simulated"] = len(scores) or None
    if len(scores):
        result["accuracy_simulated"] = accuracy(scores, labels)
        result["agreement_simulated"] = accuracy(scores, clear.argmax(1))
        worst = np.abs(scores - made.polynomial[: len(scores)]).max()
        say(f"simulator: {result['accuracy_simulated']:.1%} of {len(scores)} (float "
            f"{accuracy(clear[: len(scores)], labels):.1%}), the float class for {result['agreement_simulated']:.1%}, error "
            f"{worst:.2g} against the polynomials")  # fmt: skip
    if given.encrypted:
        found = run_encrypted(test[: given.encrypted], made.folder, given.threads, given.backend)
        result |= encrypted_figures(found, made, say)
    kinds(made, result["floor_by_kind"] or {}, say)
    return {name: None if value is math.nan else value for name, value in result.items()}


def encrypted_figures(found: Mapping[str, Any], made: Compiled, say: Any) -> dict[str, Any]:
    """The figures of encrypted images; says what was not as predicted."""
    scores = np.array([entry["scores"] for entry in found["images"]])
    same = scores.argmax(1) == made.clear[: len(scores)].argmax(1)
    others = differing_calls(found["images"], made.report["operations_by_kind"])
    say("\n".join(others or ["calls of the encrypted images: as predicted"]))
    peak, planned = found["peak_rss_bytes"], made.report["server_peak_bytes"]
    say(f"peak of memory: {bytes_text(peak)}, {peak / planned:.2f} times the {bytes_text(planned)} predicted for the "
        "server; the measured process has the client in it too")  # fmt: skip
    return {
        "images_encrypted": len(scores),
        "agreement": float(same.mean()),
        "same_class": int(same.sum()) if same.ndim == 1 else None,
        "max_abs_error": float(np.abs(scores - made.clear[: len(scores)]).max()),
        "max_scheme_error": float(np.abs(scores - made.polynomial[: len(scores)]).max()),
        "seconds_per_image": found["seconds"],
        "seconds_first": found["images"][0]["seconds"],
        "load_average": max(entry["load_average"] for entry in found["images"]),
        "each_image": [
            {
                "class": int(np.argmax(entry["scores"])),
                "logits": np.round(entry["scores"], 3).tolist(),
                "seconds": round(entry["seconds"], 2),
            }
            for entry in found["images"]
        ],
        **{name: found[name] for name in ("floor_seconds", "floor_by_kind", "keys_s", "peak_rss_bytes")},
    }


def simulate(folder: Path, test: Sequence[Any], count: int, say: Any) -> np.ndarray:
    """The simulator's scores of the first `count` images; each is kept as soon as it is there."""
    records = Records(folder / "simulated.jsonl")
    missing = [number for number in range(count) if records.find(image=number) is None]
    if missing:
        with contextlib.closing(simulated(folder / "artifact.helio", test, missing)) as finished:
            for number, scores in finished:
                records.add({"image": number, "scores": scores})
                say(f"simulated image {number + 1} of {count}")
    return np.array([entry["scores"] for number in range(count) if (entry := records.find(image=number))])


def run_encrypted(
    images: np.ndarray | Mapping[str, np.ndarray],
    folder: Path,
    threads: int,
    backend: str = "native",
    *more: object,
) -> dict[str, Any]:
    """What `encrypted_images.py` found: an entry for each image, and the figures of all; `more` are its last arguments.

    A network of several inputs takes an array for each, by name.
    """
    arrays = images if isinstance(images, Mapping) else {"x": images}
    np.savez(folder / "images.npz", **arrays)
    count = len(next(iter(arrays.values())))
    found: dict[str, Any] = apart("encrypted_images:main", folder, count, threads, backend, *more, threads=threads)
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
