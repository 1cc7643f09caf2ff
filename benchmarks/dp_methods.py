"""DP-SGD, DPIS and BandMF at equal epsilon on small models: accuracy with deviations over seeds, and processor seconds.

A perceptron (784-64-10) on the pixels of 20,000 images of MNIST and Fashion-MNIST, a bag of embeddings (10,000 x 8, mean)
under a linear layer on 20,000 reviews of IMDb; batches of 256, three epochs, delta 1e-5, the number of records public. Every
method gets the same model, optimizer, steps, clipping bound and epsilon. Small, so that all of it takes some minutes;
dpis.py has the networks of the literature; `--networks` times a few steps of these. Seconds are the processor's, on one
thread, so that what else runs on the machine counts less; planning and Opacus' loader are left out.
"""

from __future__ import annotations

import heliograph  # noqa: F401  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

import time
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import dpis
from common import mnist
from harness import Run, benchmark, option
from models.dpis import SETTINGS
from heliograph.dp.calibrate import noise_multiplier
from heliograph.dp.training import DPTrainer
from heliograph.dp.training import trainer as trainer_module
from heliograph.errors import CompositionWarning

RECORDS, BATCH, EPOCHS, DELTA = 20_000, 256, 3, 1e-5
METHODS = ("sgd", "dp_sgd", "dpis", "band_mf", "opacus")


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def loaded(dataset: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test data."""
    if dataset == "imdb":
        return SETTINGS["imdb"].load(Path(), RECORDS)
    x, y, x_test, y_test = mnist("fashion_mnist" if dataset == "fmnist" else dataset)
    x, x_test = x[:RECORDS].reshape(-1, 784), x_test.reshape(-1, 784)
    found = [torch.from_numpy(each) for each in (x, y[:RECORDS], x_test, y_test)]
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


@contextmanager
def processor_clock() -> Iterator[None]:
    """The clocks of the trainer and of dpis.py leave out the time of other processes."""
    clock = types.SimpleNamespace(perf_counter=time.process_time)
    with mock.patch.object(trainer_module, "time", clock), mock.patch.object(dpis, "time", clock):
        yield


def trained(job: dict[str, Any], held: dict[str, Any]) -> dict[str, Any]:
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
    return {"accuracy": right, "seconds": seconds, "proved": proved}


LABELS = {"mnist": "MNIST", "fmnist": "Fashion-MNIST", "imdb": "IMDb"}
MODELS = {
    "mnist": "perceptron, MNIST", "fmnist": "perceptron, Fashion-MNIST", "imdb": "bag of embeddings, IMDb",
}  # fmt: skip


def summarized(run: Run, rows: list[dict[str, Any]]) -> None:
    """The rows of the tables of docs/privacy.md: accuracy of all seeds, and times of the steps over each other."""
    for (dataset, eps), group in dpis.groups(rows, "dataset", "epsilon").items():
        methods = dpis.groups(group, "method")
        values = {method: dpis.spread([row["accuracy"] for row in own]) for (method,), own in methods.items()}
        run.derived({"part": "accuracy", "data": LABELS[dataset], "epsilon": eps}, values)
    steps = RECORDS // BATCH * EPOCHS
    for (dataset,), group in dpis.groups(rows, "dataset").items():
        least = {method: min(row["seconds"] for row in own) for (method,), own in dpis.groups(group, "method").items()}
        pairs = (("dp_sgd", "sgd"), ("dpis", "dp_sgd"), ("band_mf", "dp_sgd"), ("dp_sgd", "opacus"))
        run.derived(
            {"part": "steps", "model": MODELS[dataset]},
            {
                **{f"{of}_over_{to}": least[of] / least[to] if {of, to} <= set(least) else "-" for of, to in pairs},
                **{f"{method}_ms": 1e3 * seconds / steps for method, seconds in least.items()},
            },
        )


def step_ms(dataset: str, method: str, records: int) -> dict[str, Any]:
    """Processor time of a step on a network of dpis.py."""
    found = dpis.trained(
        {"dataset": dataset, "method": method, "epsilon": 4.0, "seed": 0, "epochs": 2, "records": records}
    )
    return {"step_ms": 1e3 * found["seconds"] / found["steps"]}


@benchmark(
    option("--datasets", nargs="*", choices=tuple(LABELS), default=list(LABELS)),
    option("--epsilons", nargs="*", type=dpis.number, default=[1, 4]),
    option("--seeds", type=int, default=3, selects=True),
    option(
        "--opacus", action="store_true", selects=True, help="Opacus too, with the first seed and epsilon: for the time"
    ),
    option("--networks", action="store_true", selects=True, help="time the networks of dpis.py instead"),
    data=("mnist.npz", "fashion_mnist.npz", "imdb_tokens_top10k.npz"),
    memory_gb=4,
    minutes=15,
)
def dp_methods(run: Run) -> None:
    given = run.options
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CompositionWarning)
    with processor_clock():
        if given.networks:
            for dataset, records in (("mnist", 10_000), ("imdb", 5_000)):
                for method in METHODS:
                    key = {"part": "networks", "network": dataset, "method": method}
                    run.row(key, partial(step_ms, dataset, method, records))
            return
        held: dict[str, Any] = {}
        rows = []
        for dataset in given.datasets:
            for seed in range(given.seeds):
                for eps in given.epsilons:
                    first = eps == given.epsilons[0]
                    methods = ["sgd"] * first + ["dp_sgd", "dpis", "band_mf"]
                    for method in methods + ["opacus"] * (given.opacus and first and seed == 0):
                        job = {"dataset": dataset, "method": method, "epsilon": eps, "seed": seed}
                        rows.append({**job, **run.row({"part": "run", **job}, partial(trained, job, held))})
        summarized(run, rows)


if __name__ == "__main__":
    dp_methods.main()
