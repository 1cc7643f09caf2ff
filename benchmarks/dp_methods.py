"""DP-SGD, DPIS and BandMF at equal epsilon on small models: accuracy with deviations over seeds, and processor seconds.

A perceptron (784-64-10) on the pixels of 20,000 images of MNIST and Fashion-MNIST, a bag of embeddings (10,000 x 8, mean)
under a linear layer on 20,000 reviews of IMDb; batches of 256, three epochs, delta 1e-5, the number of records public. Every
method gets the same model, optimizer, steps, clipping bound and epsilon. Small, so that all of it takes some minutes;
dpis.py has the networks of the literature. Seconds are the processor's, on one thread, so that what else runs on the machine
counts less; planning and Opacus' loader are left out. Results are written one by one to --out and are not made again.

    python benchmarks/dp_methods.py [--datasets mnist,fmnist,imdb] [--epsilons 1,4] [--seeds 3] [--opacus] [--out FILE]
    python benchmarks/dp_methods.py --networks

The second times a few steps of the networks of dpis.py, all methods in one process.
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

import argparse
import json
import os
import statistics
import tempfile
import time
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import dpis
from common import data, machine
from dpis_models import SETTINGS
from heliograph.dp.calibrate import noise_multiplier
from heliograph.dp.training import DPTrainer
from heliograph.dp.training import trainer as trainer_module
from heliograph.errors import CompositionWarning

RECORDS, BATCH, EPOCHS, DELTA = 20_000, 256, 3, 1e-5
METHODS = {
    "sgd": "SGD, no privacy",
    "dp_sgd": "DP-SGD",
    "dpis": "DPIS",
    "band_mf": "BandMF, 4 bands",
    "opacus": "Opacus",
}


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def loaded(dataset: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test data."""
    if dataset == "imdb":
        return SETTINGS["imdb"].load(Path(), RECORDS)
    with np.load(data(f"{ {'mnist': 'mnist', 'fmnist': 'fashion_mnist'}[dataset] }.npz"), allow_pickle=False) as file:
        found = []
        for part, most in (("train", RECORDS), ("test", 10_000)):
            pixels = file[f"x_{part}"][:most].reshape(-1, 784).astype(np.float32) / 255
            found += [torch.from_numpy(pixels), torch.from_numpy(file[f"y_{part}"][:most].astype(np.int64))]
    return found[0], found[1], found[2], found[3]


def model(dataset: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    if dataset == "imdb":
        return nn.Sequential(nn.EmbeddingBag(10_000, 8, mode="mean", padding_idx=0), nn.Linear(8, 2))
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def optimizer(dataset: str, private: bool, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if dataset == "imdb":
        return torch.optim.Adam(parameters, lr=1e-2)
    return torch.optim.SGD(parameters, lr=0.5 if private else 0.05, momentum=0.9)


def sgd(job: dict[str, Any], x: Tensor, y: Tensor) -> tuple[nn.Module, float, float]:
    module = model(job["dataset"], job["seed"])
    made = optimizer(job["dataset"], False, list(module.parameters()))
    began = time.process_time()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
            made.zero_grad()
            loss(module(x[batch]), y[batch]).mean().backward()
            made.step()
    return module, time.process_time() - began, float("inf")


def opacus(job: dict[str, Any], x: Tensor, y: Tensor) -> tuple[nn.Module, float, float]:
    from opacus import PrivacyEngine

    warnings.simplefilter("ignore")
    module = model(job["dataset"], job["seed"])
    made = optimizer(job["dataset"], True, list(module.parameters()))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)
    steps = len(x) // BATCH * EPOCHS
    multiplier = noise_multiplier(job["epsilon"], DELTA, p=BATCH / len(x), steps=steps).value
    private, made, loader = PrivacyEngine().make_private(
        module=module, optimizer=made, data_loader=loader, noise_multiplier=multiplier, max_grad_norm=1.0
    )
    seconds = 0.0
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            began = time.process_time()
            made.zero_grad()
            loss(private(inputs), targets).mean().backward()
            made.step()
            seconds += time.process_time() - began
    return module, seconds, job["epsilon"]


def ours(job: dict[str, Any], x: Tensor, y: Tensor) -> tuple[nn.Module, float, float]:
    module = model(job["dataset"], job["seed"])
    trainer = DPTrainer(
        module,
        loss,
        lambda parameters: optimizer(job["dataset"], True, parameters),
        (x, y),
        method=job["method"],
        bands=4 if job["method"] == "band_mf" else None,
        epsilon=job["epsilon"],
        delta=DELTA,
        epochs=EPOCHS,
        batch_size=BATCH,
        max_grad_norm=1.0,
        public_size=len(x),
        seed=job["seed"],
        # Above nearly every batch: each is computed at once, as SGD's and Opacus' are.
        physical_batch_size=400,
    )
    report = trainer.fit()
    return module, report.seconds, report.epsilon_upper


def run(job: dict[str, Any], held: dict[str, Any]) -> dict[str, Any]:
    """One training."""
    if job["dataset"] not in held:
        held.clear()
        held[job["dataset"]] = loaded(job["dataset"])
    x, y, x_test, y_test = held[job["dataset"]]
    torch.manual_seed(job["seed"])
    # What libraries load at first use is not what training takes.
    torch.optim.SGD([nn.Parameter(torch.zeros(1))]).step()
    module, seconds, proved = {"sgd": sgd, "opacus": opacus}.get(job["method"], ours)(job, x, y)
    module.eval()
    with torch.no_grad():
        right = float((module(x_test).argmax(1) == y_test).double().mean())
    return {
        **job,
        "accuracy": right,
        "seconds": seconds,
        "proved": proved,
        "load_average": round(os.getloadavg()[0], 1),
    }


def tables(rows: list[dict[str, Any]]) -> None:
    """Markdown: accuracy, then time."""
    groups: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["dataset"], row["epsilon"], row["method"]), []).append(row)
    print(
        f"{machine()}; load average {min(r['load_average'] for r in rows)} to {max(r['load_average'] for r in rows)}\n"
    )
    print("| data | epsilon | method | accuracy %, runs | proved epsilon at most |")
    print("|---|---|---|---|---|")
    for (dataset, eps, method), group in sorted(
        groups.items(), key=lambda item: (*item[0][:2], list(METHODS).index(item[0][2]))
    ):
        values = [100 * row["accuracy"] for row in group]
        shown = f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")
        label = "-" if method == "sgd" else f"{eps:g}"
        proved = "-" if method in ("sgd", "opacus") else f"{max(row['proved'] for row in group):.4f}"
        print(f"| {dataset} | {label} | {METHODS[method]} | {shown}, {len(values)} | {proved} |")
    print("\n| data | method | processor ms a step | over SGD | over DP-SGD | over Opacus |")
    print("|---|---|---|---|---|---|")
    steps = RECORDS // BATCH * EPOCHS
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        least: dict[str, float] = {}
        for row in rows:
            if row["dataset"] == dataset:
                least[row["method"]] = min(row["seconds"], least.get(row["method"], float("inf")))
        for method in [m for m in METHODS if m in least]:
            over = " | ".join(
                f"{least[method] / least[to]:.2f}" if to in least else "-" for to in ("sgd", "dp_sgd", "opacus")
            )
            print(f"| {dataset} | {METHODS[method]} | {1e3 * least[method] / steps:.1f} | {over} |")


def networks() -> None:
    """Processor time of a few steps of each method on the networks of dpis.py."""
    print(f"{machine()}; load average {os.getloadavg()[0]:.1f}\n")
    print("| network | method | processor ms a step |\n|---|---|---|")
    for dataset, records in (("mnist", 10_000), ("imdb", 5_000)):
        for method in METHODS:
            job = {"dataset": dataset, "method": method, "epsilon": 4.0, "seed": 0, "epochs": 2, "records": records}
            row = dpis.run(job)
            print(f"| {dataset} | {METHODS[method]} | {1e3 * row['seconds'] / row['steps']:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="mnist,fmnist,imdb")
    parser.add_argument("--epsilons", default="1,4")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--opacus", action="store_true", help="Opacus too, with the first seed and epsilon: for the time"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "heliograph-benchmarks" / "dp_methods.jsonl"
    )
    parser.add_argument("--networks", action="store_true", help="time the networks of dpis.py instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CompositionWarning)
    # The clocks of trainer and benchmark, without the time of other processes.
    trainer_module.time = types.SimpleNamespace(perf_counter=time.process_time)  # type: ignore[assignment]
    dpis.time = trainer_module.time
    if options.networks:
        networks()
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    held: dict[str, Any] = {}
    epsilons = [float(each) for each in options.epsilons.split(",")]
    for dataset in options.datasets.split(","):
        for seed in range(options.seeds):
            for eps in epsilons:
                first = eps == epsilons[0]
                methods = ["sgd"] * first + ["dp_sgd", "dpis", "band_mf"]
                for method in methods + ["opacus"] * (options.opacus and first and seed == 0):
                    job = {"dataset": dataset, "method": method, "epsilon": eps, "seed": seed}
                    if any(all(row[name] == value for name, value in job.items()) for row in rows):
                        continue
                    rows.append(run(job, held))
                    with options.out.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    tables(rows)
    print("\n" + json.dumps({"heliograph": hg.__version__, "machine": machine()}))


if __name__ == "__main__":
    main()
