"""Degrees by layer: uniform, as OLA allocates them, with the plan, and with the plan after refinement, on four networks.

    python benchmarks/ola.py --json --simulated 100
    python benchmarks/ola.py --networks resnet20 --modes joint refined --encrypted 5

Accuracy is that on the 500 test images, in the clear with polynomials; simulated and encrypted images are the first of them.
What takes long is kept in a folder as it is finished (deep_network.py). `--chains` runs one encrypted image of the refined
ResNet-20 with one chain that bootstraps and with several. `--times` allocates degrees to ResNet-32 and to a plain chain of
100 layers, each in a process of its own, and says what that takes beside compilation.
"""

from __future__ import annotations

from deep_network import (  # first: it imports heliograph
    ROOT, Compiled, Images, accuracy, backend_argument, cifar10, compiled_program, encrypt, hg, machine, scores_of, simulate,
    speaker,
)  # fmt: skip

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heliograph.compiler.planning.allocation import allocate
from heliograph.compiler.pipeline import linear_passes
from heliograph.compiler.reporting.held_out import setting_of
from heliograph.ir import Builder, Location, Stage
from heliograph.passes.ranges.calibrate import Calibrate
from heliograph.report.text import bytes_text
from heliograph.tools.measure import peak_rss_bytes
from ola_models import NETWORKS, PRECISION_BITS, Augment, Network

MODES = ("uniform", "paper", "joint", "refined")
CALIBRATION = 512
KEYS = (
    "accuracy_float", "accuracy_polynomial", "accuracy_simulated", "degrees", "bootstraps", "levels", "rotations",
    "predicted_seconds", "measured_seconds",
)  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--simulated", type=int, default=0, metavar="M", help="simulated test images, from the first")
    parser.add_argument("--encrypted", type=int, default=0, metavar="N", help="encrypted test images, from the first")
    parser.add_argument(
        "--accuracy-loss", type=float, default=0.02, help="share of classes that allocations may change"
    )
    parser.add_argument("--chains", action="store_true", help="one encrypted image with one chain, one with several")
    parser.add_argument("--times", action="store_true", help="seconds and memory of allocating")
    parser.add_argument("--threads", type=int, default=None, help="threads of OpenMP, and cores of the encrypted run")
    backend_argument(parser, "whose primitives are run")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "benchmarks", help="where results are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    return parser.parse_args()


def chosen_options(network: Network, mode: str, loss: float) -> hg.Options:
    """The options of a mode; a refined program has its polynomials."""
    base = hg.Options(precision_bits=PRECISION_BITS)
    if mode == "refined":
        return base
    base = replace(base, **network.options)  # type: ignore[arg-type]
    if mode == "uniform":
        return replace(base, degree=network.degree)
    return replace(base, allocate={"paper": "paper", "joint": "plan"}[mode], accuracy_loss=loss)


def refined(network: Network, program: hg.Program, images: Images, options: argparse.Namespace) -> hg.Program:
    """The refined program, trained once: its text and weights are kept."""
    say, path = speaker(options), options.folder / f"{network.name}_refined.hg"
    if not path.exists():
        from heliograph.frontends.torch.training.distill import Training

        begun = time.perf_counter()
        found = hg.refine(
            program,
            images.train,
            hg.Options(),
            degrees=network.degrees,
            epochs=network.epochs,
            augment=Augment(),
            training=Training(rate=network.rate),
            checkpoint=options.folder / f"{network.name}.checkpoint",
        )
        say(f"{network.name} refined in {(time.perf_counter() - begun) / 60:.1f} min: the class is the float network's on "
            f"{found.agreement:.1%} of {found.samples_apart} samples kept apart, {found.before:.1%} before")  # fmt: skip
        hg.write_language(replace(found.program, name=f"{network.name}_refined"), options.folder)
    return replace(hg.parse(path), calibration=(images.train[:CALIBRATION].astype(np.float64),))


def compiled(
    name: str, mode: str, options: argparse.Namespace, chains: int | None = None
) -> tuple[Compiled, np.ndarray]:
    """The network compiled in one mode, and the float network's scores of the test images."""
    torch.set_num_threads(options.threads or len(os.sched_getaffinity(0)))
    network, images = NETWORKS[name], cifar10()
    module = network.module(options.folder, images)
    clear = scores_of(module, images.test)
    program = hg.trace(
        module, torch.from_numpy(images.test[:1]), input_range=images.interval,
        calibration=images.train[:CALIBRATION], name=name,
    )  # fmt: skip
    if mode == "refined":
        program = refined(network, program, images, options)
    chosen = replace(chosen_options(network, mode, options.accuracy_loss), chains=chains)
    return compiled_program(program, clear, images, chosen, options), clear


def plain_chain(layers: int = 100, size: int = 32) -> hg.Program:
    """A multilayer perceptron with random weights and 200 samples."""
    random = np.random.default_rng(0)
    builder = Builder("chain", Stage.TENSOR)
    value = builder.input("x", shape=(size,), low=-4.0, high=4.0)
    for layer in range(layers):
        weight = builder.constant(random.normal(size=(size, size)) * np.sqrt(2 / size), f"w{layer}")
        value = builder.op("linear", (value,), Location(layer=f"fc{layer}"), weight=weight)
        value = builder.op("relu", (value,), Location(layer=f"act{layer}"))
    weight = builder.constant(random.normal(size=(4, size)), "head")
    builder.calibration = (random.normal(size=(200, size)).clip(-4, 4),)
    return builder.finish([builder.op("linear", (value,), Location(layer="head"), weight=weight)])


def allocated(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds and peak memory of allocating degrees to one program.

    `seconds_beside` and `processor_seconds_beside` leave out the calibration, which compilation takes over.
    """
    torch.set_num_threads(options.threads or len(os.sched_getaffinity(0)))
    if name == "chain of 100 layers":
        program, chosen = plain_chain(), hg.Options(allocate="plan", margin=0.3)
    else:
        network, images = NETWORKS[name], cifar10()
        module = network.module(options.folder, images)
        program = hg.trace(
            module, torch.from_numpy(images.test[:1]), input_range=images.interval,
            calibration=images.train[:CALIBRATION], name=name,
        )  # fmt: skip
        chosen = chosen_options(network, "joint", options.accuracy_loss)
    fused = linear_passes(program)[-1].program
    begun, worked = time.perf_counter(), time.process_time()
    for samples in (fused.calibration, setting_of(fused)):
        Calibrate().run(replace(fused, calibration=samples))
    shared, shared_work = time.perf_counter() - begun, time.process_time() - worked
    before, begun, worked = peak_rss_bytes(), time.perf_counter(), time.process_time()
    found = allocate(program, fused, chosen).record
    seconds, work = time.perf_counter() - begun, time.process_time() - worked
    return {
        "seconds": seconds,
        "seconds_beside": seconds - shared,
        "processor_seconds": work,
        "processor_seconds_beside": work - shared_work,
        "peak_rss_bytes": peak_rss_bytes(),
        "peak_before_bytes": before,
        "points": len(found.curve),
        "load_average": os.getloadavg()[0],
    }


def row(made: Compiled, images: Images, options: argparse.Namespace, count: int) -> dict[str, Any]:
    """The figures of one network in one mode."""
    labels, report, say = images.test_labels, made.report, speaker(options)
    result = dict.fromkeys(KEYS) | {
        "accuracy_float": accuracy(made.clear, labels),
        "accuracy_polynomial": accuracy(made.polynomial, labels),
        "agreement_polynomial": float((made.polynomial.argmax(1) == made.clear.argmax(1)).mean()),
        "degrees": {entry["layer"]: entry["degree"] for entry in report["degrees"]},
        "bootstraps": report["bootstraps"],
        "levels": report["levels"],
        "rotations": report["rotations"],
        "predicted_seconds": report["predicted_ms"] / 1e3,
        "compile_s": made.compile_s,
        "evaluation_key_bytes": report["evaluation_key_bytes"],
        "server_peak_bytes": report["server_peak_bytes"],
    }
    scores = simulate(made.folder, images.test, options.simulated, say)
    if len(scores):
        result["accuracy_simulated"] = accuracy(scores, labels)
        result["images_simulated"] = len(scores)
    if count:
        found = encrypt(images.test, argparse.Namespace(**{**vars(options), "encrypted": count}), made.folder)
        outputs = np.array([entry["scores"] for entry in found["images"]])
        result |= {
            "measured_seconds": found["seconds"],
            "floor_seconds": found["floor_seconds"],
            "peak_rss_bytes": found["peak_rss_bytes"],
            "images_encrypted": len(outputs),
            "accuracy_encrypted": accuracy(outputs, labels),
            "load_average": max(entry["load_average"] for entry in found["images"]),
        }
    return result


def main() -> None:
    options = arguments()
    say, images = speaker(options), cifar10()
    say(f"{machine()}; load average {os.getloadavg()[0]:.2f}")
    options.folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": machine(), "networks": {}}
    for name in options.networks:
        results["networks"][name] = {mode: dict.fromkeys(KEYS) for mode in MODES}
        for mode in options.modes:
            say(f"\n{name}, {mode}")
            # In a process that ends: the memory is for the encrypted images.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                made, _ = pool.submit(compiled, name, mode, options).result()
            count = options.encrypted if name == "resnet20" and mode in ("uniform", "joint", "refined") else 0
            results["networks"][name][mode] = row(made, images, options, count)
            table(results["networks"], say)
    if options.chains:
        results["chains"] = {}
        for label, chains in (("one", 1), ("several", None)):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                made, _ = pool.submit(compiled, "resnet20", "refined", options, chains).result()
            results["chains"][label] = row(made, images, options, 1) | {"lower": made.report["lower_chains"]}
    if options.times:
        results["times"] = {}
        for name in ("resnet32", "chain of 100 layers"):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                found = results["times"][name] = pool.submit(allocated, name, options).result()
            say(f"allocation of {name}: {found['seconds']:.1f} s, {found['seconds_beside']:.1f} without calibration "
                f"({found['processor_seconds']:.1f} and {found['processor_seconds_beside']:.1f} of processor time), "
                f"peak {bytes_text(found['peak_rss_bytes'])} ({bytes_text(found['peak_before_bytes'])} before), "
                f"{found['points']} points")  # fmt: skip
    print(json.dumps(results))


def table(networks: dict[str, Any], say: Any) -> None:
    """Accuracy, bootstraps, levels, rotations, seconds, a line for each network and mode that ran."""
    say(f"{'network':<12}{'mode':<9}{'float':>7}{'poly':>7}{'sim.':>7}{'boots':>7}{'levels':>8}{'rot.':>6}{'pred. s':>9}"
        f"{'meas. s':>9}")  # fmt: skip
    for name, modes in networks.items():
        for mode, found in modes.items():
            if found["predicted_seconds"] is None:
                continue
            simulated, measured = found["accuracy_simulated"], found["measured_seconds"]
            say(f"{name:<12}{mode:<9}{found['accuracy_float']:>7.1%}{found['accuracy_polynomial']:>7.1%}"
                f"{'-' if simulated is None else format(simulated, '.1%'):>7}{found['bootstraps']:>7}{found['levels']:>8}"
                f"{found['rotations']:>6}{found['predicted_seconds']:>9.1f}"
                f"{'-' if measured is None else format(measured, '.1f'):>9}")  # fmt: skip


if __name__ == "__main__":
    main()
