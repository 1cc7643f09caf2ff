"""Degrees by layer: uniform, as OLA allocates them, with the plan, and with the plan after refinement, on four networks.

    python benchmarks/ola.py --simulated 100
    python benchmarks/ola.py --networks resnet20 --modes joint refined --encrypted 5

Accuracy is that on the 500 test images, in the clear with polynomials; simulated and encrypted images are the first of them.
What takes long is kept in a folder as it is finished (deep_network.py). `--chains` runs one encrypted image of the refined
ResNet-20 with one chain that bootstraps and with several. `--times` allocates degrees to ResNet-32 and to a plain chain of
100 layers, each in a process of its own, and says what that takes beside compilation.
"""

from __future__ import annotations

# First: it imports heliograph before torch.
from deep_network import Compiled, accuracy, compiled_apart, compiled_program, run_encrypted, scores_of, simulate

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import hg
from harness import BACKEND, FOLDER, Run, apart, benchmark, option, threads_option
from heliograph.compiler.planning.allocation import allocations
from heliograph.compiler.pipeline import linear_passes
from heliograph.compiler.reporting.held_out import setting_of
from heliograph.ir import Builder, Location, Stage
from heliograph.passes.ranges.calibrate import Calibrate
from heliograph.tools.measure import peak_rss_bytes
from models.cifar import CALIBRATION, Images, cifar10, traced
from models.ola import NETWORKS, PRECISION_BITS, Augment, Network

MODES = ("uniform", "paper", "joint", "refined")
# What docs/allocation.md calls them.
LABELS = {"resnet20": "ResNet-20", "resnet32": "ResNet-32", "gelu": "GELU network", "mixer": "network like ConvNeXt"}
CHAIN = "chain of 100 layers"


def degrees_text(network: Network, mode: str) -> str:
    """What the documentation calls a mode."""
    # Of degree 3, activations are refined to 3 or to squares.
    refined = {3: "2 and 3"}.get(network.degrees, network.degrees)  # type: ignore[call-overload]
    return {
        "uniform": f"{network.degree} everywhere",
        "paper": '`allocate="paper"`',
        "joint": '`allocate="plan"`',
        "refined": f"refined to {refined}",
    }[mode]


def chosen_options(network: Network, mode: str, loss: float) -> hg.Options:
    """The options of a mode; a refined program has its polynomials."""
    base = hg.Options(precision_bits=PRECISION_BITS)
    if mode == "refined":
        return base
    base = replace(base, **network.options)  # type: ignore[arg-type]
    if mode == "uniform":
        return replace(base, degree=network.degree)
    return replace(base, allocate={"paper": "paper", "joint": "plan"}[mode], accuracy_loss=loss)


def refined(network: Network, program: hg.Program, images: Images, folder: Path) -> hg.Program:
    """The refined program, trained once: its text and weights are kept."""
    path = folder / f"{network.name}_refined.hg"
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
            checkpoint=folder / f"{network.name}.checkpoint",
        )
        print(f"{network.name} refined in {(time.perf_counter() - begun) / 60:.1f} min: the class is the float network's on "
              f"{found.agreement:.1%} of {found.samples_apart} samples kept apart, {found.before:.1%} before")  # fmt: skip
        hg.write_language(replace(found.program, name=f"{network.name}_refined"), folder)
    return replace(hg.parse(path), calibration=(images.train[:CALIBRATION].astype(np.float64),))


def compiled(given: dict[str, Any], name: str, mode: str, chains: int | None = None) -> Compiled:
    """The network compiled in one mode."""
    torch.set_num_threads(given["threads"])
    folder, network, images = Path(given["folder"]), NETWORKS[name], cifar10()
    module = network.module(folder, images)
    program = traced(name, module, images)
    if mode == "refined":
        program = refined(network, program, images, folder)
    chosen = replace(chosen_options(network, mode, given["accuracy_loss"]), chains=chains)
    return compiled_program(program, scores_of(module, images.test), images, chosen, given)


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


def allocated(given: dict[str, Any], name: str) -> dict[str, Any]:
    """Seconds and peak memory of allocating degrees to one program.

    `seconds_beside` and `processor_seconds_beside` leave out the calibration, which compilation takes over.
    """
    torch.set_num_threads(given["threads"])
    if name == CHAIN:
        program, chosen = plain_chain(), hg.Options(allocate="plan", margin=0.3)
    else:
        network, images = NETWORKS[name], cifar10()
        program = traced(name, network.module(Path(given["folder"]), images), images)
        chosen = chosen_options(network, "joint", given["accuracy_loss"])
    fused = linear_passes(program)[-1].program
    begun, worked = time.perf_counter(), time.process_time()
    for samples in (fused.calibration, setting_of(fused)):
        Calibrate().run(replace(fused, calibration=samples))
    shared, shared_work = time.perf_counter() - begun, time.process_time() - worked
    before, begun, worked = peak_rss_bytes(), time.perf_counter(), time.process_time()
    found = next(allocations(program, fused, chosen)).record
    seconds, work = time.perf_counter() - begun, time.process_time() - worked
    return {
        "seconds": seconds,
        "seconds_beside": seconds - shared,
        "processor_seconds": work,
        "processor_seconds_beside": work - shared_work,
        "peak_rss_bytes": peak_rss_bytes(),
        "peak_before_bytes": before,
        "points": len(found.curve),
    }


def row(run: Run, images: Images, name: str, mode: str, count: int, chains: int | None = None) -> dict[str, Any]:
    """The figures of one network in one mode, with `count` encrypted images."""
    given, labels = run.options, images.test_labels
    made = compiled_apart("ola:compiled", given, name, mode, chains)
    report = made.report
    float_right, right = accuracy(made.clear, labels), accuracy(made.polynomial, labels)
    result = dict.fromkeys(COLUMNS) | {
        "label": f"{LABELS[name]} ({float_right:.1%})".replace("%", " %"),
        "degrees": degrees_text(NETWORKS[name], mode),
        "accuracy_float": float_right,
        "accuracy_polynomial": right,
        "agreement_polynomial": float((made.polynomial.argmax(1) == made.clear.argmax(1)).mean()),
        "layer_degrees": {entry["layer"]: entry["degree"] for entry in report["degrees"]},
        "right": f"{right:.1%}".replace("%", " %"),
        "predicted_seconds": report["predicted_ms"] / 1e3,
        "compile_s": made.compile_s,
        "lower": report["lower_chains"],
        **{
            key: report[key]
            for key in ("bootstraps", "levels", "rotations", "evaluation_key_bytes", "server_peak_bytes")
        },
    }
    scores = simulate(made.folder, images.test, given.simulated, run.say)
    if len(scores):
        result["accuracy_simulated"] = accuracy(scores, labels)
        result["images_simulated"] = len(scores)
        result["right"] += f" ({result['accuracy_simulated']:.0%})".replace("%", " %")
    if count:
        found = run_encrypted(images.test[:count], made.folder, given.threads, given.backend)
        outputs = np.array([entry["scores"] for entry in found["images"]])
        result |= {
            "measured_seconds": found["seconds"],
            "first_seconds": found["images"][0]["seconds"],
            "floor_seconds": found["floor_seconds"],
            "peak_rss_bytes": found["peak_rss_bytes"],
            "images_encrypted": len(outputs),
            "accuracy_encrypted": accuracy(outputs, labels),
            "load_average": max(entry["load_average"] for entry in found["images"]),
        }
    return result


COLUMNS = {
    "accuracy_float": "", "accuracy_polynomial": "", "accuracy_simulated": "", "bootstraps": "", "levels": "",
    "rotations": "", "predicted_seconds": "s", "measured_seconds": "s",
}  # fmt: skip


@benchmark(
    option("--networks", nargs="*", choices=tuple(NETWORKS), default=list(NETWORKS)),
    option("--modes", nargs="*", choices=MODES, default=list(MODES)),
    option("--simulated", type=int, default=0, metavar="M", help="simulated test images, from the first"),
    option("--encrypted", type=int, default=0, metavar="N", help="encrypted test images of ResNet-20, from the first"),
    option("--accuracy-loss", type=float, default=0.02, help="share of classes that allocations may change"),
    option("--chains", action="store_true", selects=True, help="one encrypted image with one chain, one with several"),
    option("--times", action="store_true", selects=True, help="seconds and memory of allocating"),
    threads_option(),
    BACKEND,
    FOLDER,
    columns=COLUMNS,
    data=("cifar10_subset.npz", "cifar10_resnet20_akamaster.npz", "cifar10_resnet32_akamaster.npz"),
    memory_gb=14,
    minutes=240,
)
def ola(run: Run) -> None:
    given, images = run.options, cifar10()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.networks:
        for mode in given.modes:
            count = given.encrypted if name == "resnet20" and mode != "paper" else 0
            run.row({"part": "degrees", "network": name, "mode": mode}, partial(row, run, images, name, mode, count))
    if given.chains:
        for label, chains in (("one", 1), ("several", None)):
            key = {"part": "chains", "network": "resnet20", "mode": f"refined, {label}"}
            run.row(key, partial(row, run, images, "resnet20", "refined", 1, chains))
    if given.times:
        for name in ("resnet32", CHAIN):
            run.say(name, apart("ola:allocated", vars(given), name, threads=given.threads))


if __name__ == "__main__":
    ola.main()
