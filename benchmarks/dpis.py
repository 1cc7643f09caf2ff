"""SGD without privacy, DP-SGD, DPIS, BandMF and Opacus' DP-SGD side by side: accuracy, epsilon, seconds, memory.

"DPIS" releases its norm sums and is under a Renyi filter; "DPIS, planned" has a public share of N C in their place, so that
the numerical bracket holds.

Each run is a process of its own on one thread. N is public (the data sets' sizes are); delta is 1e-5. All methods get the
same model, optimizer, batch size, clipping bound, number of steps and epsilon; Opacus gets the multiplier that our bracket
gives for that epsilon. Its seconds leave its data loader out; ours hold the gathering of records and the pass over all
norms. The table of times has the fastest run of each method, which other processes disturbed least. Results are written one
by one to --out, and runs that are there already are not made again; the tables are printed from that file, so that a killed
run goes on.

    python benchmarks/dpis.py [--datasets mnist,fmnist,imdb] [--methods sgd,dp_sgd,dpis,planned,band_mf,opacus]
                              [--epsilons 0.5,1,2,4] [--seeds 1] [--epochs E] [--records N] [--out FILE] [--tables]
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common import machine
from dpis_models import SETTINGS, ReviewRNN, Setting
from heliograph.dp.accounting import epsilon as bracket_of
from heliograph.dp.calibrate import noise_multiplier
from heliograph.dp.mechanisms import SampledGaussian
from heliograph.dp.training import DPTrainer, ImportanceOptions
from heliograph.dp.training.gradients import GradientEngine

DELTA = 1e-5
PHYSICAL = 250
BANDS = 4
CACHE = Path(tempfile.gettempdir()) / "heliograph-benchmarks"
SIZES = {"mnist": 60_000, "fmnist": 60_000, "imdb": 25_000}
METHODS = {
    "sgd": "SGD, no privacy",
    "dp_sgd": "DP-SGD",
    "band_mf": "BandMF, 4 bands",
    "dpis": "DPIS",
    "planned": "DPIS, planned",
    "opacus": "Opacus",
}


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def accuracy(module: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    module.eval()
    with torch.no_grad():
        found = torch.cat([module(part).argmax(1) for part in inputs.split(PHYSICAL)])
    return float((found == targets).double().mean())


class Counter:
    """How many records went through a forward and a backward pass of the engine."""

    def __init__(self) -> None:
        self.records = 0
        for name in ("norms", "weighted_sum"):
            setattr(GradientEngine, name, self._counted(getattr(GradientEngine, name)))

    def _counted(self, method: Any) -> Any:
        def counted(engine: GradientEngine, inputs: Any, targets: Tensor, *rest: Any) -> Any:
            self.records += len(targets)
            return method(engine, inputs, targets, *rest)

        return counted


def ours(setting: Setting, job: dict[str, Any], x: Tensor, y: Tensor) -> tuple[nn.Module, dict[str, Any]]:
    counter = Counter()
    module = setting.model()
    trainer = DPTrainer(
        module,
        loss,
        setting.optimizer,
        (x, y),
        method="dpis" if job["method"] in ("dpis", "planned") else job["method"],
        bands=BANDS if job["method"] == "band_mf" else None,
        epsilon=job["epsilon"],
        delta=DELTA,
        epochs=job["epochs"],
        batch_size=setting.batch_size,
        max_grad_norm=setting.max_grad_norm,
        public_size=len(x),
        seed=job["seed"],
        physical_batch_size=PHYSICAL,
        dpis=ImportanceOptions(
            oversampling=setting.oversampling,
            worst_case_share=setting.worst_case_share,
            adapt_clipping=setting.adapt_clipping,
            planned_norm_share=setting.planned_norm_share if job["method"] == "planned" else None,
        ),
    )
    report = trainer.fit()
    return module, {
        "epsilon_lower": report.epsilon_lower,
        "epsilon_upper": report.epsilon_upper,
        "steps": report.steps,
        "stopped": report.stopped,
        "noise_multiplier": report.noise_multiplier,
        "seconds": report.seconds,
        "records_seen": counter.records,
        "released": report.released,
    }


def sgd(setting: Setting, job: dict[str, Any], x: Tensor, y: Tensor) -> tuple[nn.Module, dict[str, Any]]:
    """Training without privacy: the same steps and sizes, in shuffled batches; seconds hold the gathering of records."""
    module = setting.model()
    module.train()
    optimizer = setting.optimizer([p for p in module.parameters() if p.requires_grad])
    generator, steps, began = torch.Generator().manual_seed(job["seed"]), 0, time.perf_counter()
    for _ in range(job["epochs"]):
        order = torch.randperm(len(x), generator=generator)
        for batch in order[: len(x) // setting.batch_size * setting.batch_size].split(setting.batch_size):
            optimizer.zero_grad()
            for part in batch.split(PHYSICAL):
                (loss(module(x[part]), y[part]).sum() / setting.batch_size).backward()
            optimizer.step()
            steps += 1
    return module, {
        "epsilon_lower": None,
        "epsilon_upper": float("inf"),
        "steps": steps,
        "stopped": "",
        "noise_multiplier": 0.0,
        "seconds": time.perf_counter() - began,
        "records_seen": steps * setting.batch_size,
    }


def opacus(setting: Setting, job: dict[str, Any], x: Tensor, y: Tensor) -> tuple[nn.Module, dict[str, Any]]:
    from opacus import PrivacyEngine
    from opacus.layers import DPLSTM
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    warnings.simplefilter("ignore")
    module = ReviewRNN(DPLSTM) if setting.model is ReviewRNN else setting.model()
    module.train()
    optimizer = setting.optimizer([p for p in module.parameters() if p.requires_grad])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=setting.batch_size)
    p, steps = 1 / len(loader), len(loader) * job["epochs"]
    multiplier = noise_multiplier(job["epsilon"], DELTA, p=p, steps=steps).value
    generator = torch.Generator().manual_seed(job["seed"])
    module, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=multiplier,
        max_grad_norm=setting.max_grad_norm,
        poisson_sampling=True,
        noise_generator=generator,
    )
    seconds, seen = 0.0, 0
    for _ in range(job["epochs"]):
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=PHYSICAL, optimizer=optimizer) as parts:
            for inputs, targets in parts:
                started = time.perf_counter()
                optimizer.zero_grad()
                loss(module(inputs), targets).mean().backward()
                optimizer.step()
                seconds += time.perf_counter() - started
                seen += len(targets)
    bracket = bracket_of(SampledGaussian(p, multiplier) * steps, DELTA)
    return module, {
        "epsilon_lower": bracket.lower,
        "epsilon_upper": bracket.upper,
        "steps": steps,
        "stopped": "",
        "noise_multiplier": multiplier,
        "seconds": seconds,
        "records_seen": seen,
    }


def peak() -> int:
    """The most memory this process has held, in bytes, since `fresh_peak`."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def fresh_peak() -> int:
    """Forget the peak of loading the data (Linux), and give what is held now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def run(job: dict[str, Any]) -> dict[str, Any]:
    """One run in this process, and what it showed."""
    torch.set_num_threads(1)
    setting = SETTINGS[job["dataset"]]
    x, y, x_test, y_test = setting.load(CACHE, job["records"])
    torch.manual_seed(job["seed"])
    # What libraries load at first use is not what training takes.
    import opacus as _  # noqa: F401

    torch.optim.SGD([nn.Parameter(torch.zeros(1))]).step()
    before, load = fresh_peak(), os.getloadavg()[0]
    module, found = {"opacus": opacus, "sgd": sgd}.get(job["method"], ours)(setting, job, x, y)
    found["memory"] = peak() - before
    return {**job, **found, "accuracy": accuracy(module, x_test, y_test), "load_average": round(load, 2)}


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("dataset", "method", "epsilon", "seed", "epochs", "records"))


def made(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def spread(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.1f}" + (
        f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    )


def tables(rows: list[dict[str, Any]]) -> None:
    """Markdown: accuracy beside epsilon, then time and memory."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[n] for n in ("dataset", "records", "epochs", "epsilon", "method")), []).append(row)
    print(f"Machine: {machine()}; one thread a run.\n")
    print("| data, records, epochs | epsilon | method | accuracy % | runs | bracket of epsilon | paper: DPIS, DP-SGD |")
    print("|---|---|---|---|---|---|---|")
    for (dataset, records, epochs, eps, method), group in sorted(groups.items(), key=lambda item: str(item[0])):
        lower, upper = group[0]["epsilon_lower"], group[0]["epsilon_upper"]
        bracket = f"[{'-' if lower is None else f'{lower:.3f}'}, {upper:.3f}]"
        paper = "{}, {}".format(*SETTINGS[dataset].published[eps]) if eps in SETTINGS[dataset].published else ""
        shown = spread([row["accuracy"] for row in group])
        what = f"{dataset}, {records:,}, {epochs} | {eps:g} | {METHODS[method]}"
        print(f"| {what} | {shown} | {len(group)} | {bracket} | {paper} |")
    print(
        "\n| data, records, epochs | method | ms a step | over SGD | over Opacus | passes a record of a batch | memory MB |"
    )
    print("|---|---|---|---|---|---|---|")
    costs: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        costs.setdefault((row["dataset"], row["records"], row["epochs"]), {}).setdefault(row["method"], []).append(row)
    for (dataset, records, epochs), methods in sorted(costs.items()):
        each = {m: min(1e3 * r["seconds"] / max(r["steps"], 1) for r in g) for m, g in methods.items()}
        for method, group in sorted(methods.items()):
            ratio = " | ".join(f"{each[method] / each[to]:.2f}" if to in each else "-" for to in ("sgd", "opacus"))
            passes = statistics.mean(r["records_seen"] / r["steps"] / SETTINGS[dataset].batch_size for r in group)
            memory = statistics.median(r["memory"] for r in group) / 1e6
            print(
                f"| {dataset}, {records:,}, {epochs} | {METHODS[method]} | {each[method]:.0f} | {ratio} | {passes:.2f} |"
                f" {memory:.0f} |"
            )


def noise_table(epsilons: list[float], shares: tuple[float, ...] = (1.0, 0.5, 0.25)) -> None:
    """What importance sampling can save: the noise over C that an epsilon takes where K~ is a share of N C throughout."""
    print("\n| data | epsilon | " + " | ".join("DP-SGD" if s == 1 else f"K~ = {s:g} N C" for s in shares) + " |")
    print("|---|---|" + "---|" * len(shares))
    for dataset, setting in SETTINGS.items():
        p, steps = setting.batch_size / SIZES[dataset], SIZES[dataset] // setting.batch_size * setting.epochs
        for eps in epsilons:
            found = [share * noise_multiplier(eps, DELTA, p=p / share, steps=steps).value for share in shares]
            print(f"| {dataset} | {eps:g} | " + " | ".join(f"{sigma:.3f}" for sigma in found) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", default="mnist,fmnist,imdb")
    parser.add_argument("--methods", default="dp_sgd,dpis,planned,band_mf,opacus")
    parser.add_argument("--epsilons", default="0.5,1,2,4")
    parser.add_argument("--seeds", type=int, default=1, help="how many runs of each")
    parser.add_argument("--epochs", type=int, help="instead of each setting's own")
    parser.add_argument("--records", type=int, default=10**9, help="at most this many training records")
    parser.add_argument("--out", type=Path, default=CACHE / "dpis.jsonl", help="where results are kept, one a line")
    parser.add_argument("--tables", action="store_true", help="only print the tables of what was run")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(json.loads(options.run))))
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = {key(row) for row in made(options.out)}
    for dataset in options.datasets.split(","):
        for seed in range(options.seeds):
            for eps in map(float, options.epsilons.split(",")):
                for method in options.methods.split(","):
                    job = {
                        "dataset": dataset,
                        "method": method,
                        "epsilon": eps,
                        "seed": seed,
                        "epochs": options.epochs or SETTINGS[dataset].epochs,
                        "records": min(SIZES[dataset], options.records),
                    }
                    if options.tables or key(job) in done:
                        continue
                    command = [sys.executable, __file__, "--run", json.dumps(job)]
                    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                    if not output:
                        # Its data are absent, and it has said so.
                        continue
                    row = json.loads(output.splitlines()[-1])
                    with options.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(
                        f"{dataset} {method} epsilon {eps:g}: {100 * row['accuracy']:.2f} %, {row['seconds']:.1f} s,"
                        f" {row['steps']} steps",
                        file=sys.stderr,
                    )
    rows = made(options.out)
    tables(rows)
    noise_table([0.5, 1.0, 2.0, 4.0])
    print("\n" + json.dumps({"heliograph": hg.__version__, "machine": machine(), "runs": rows}))


if __name__ == "__main__":
    main()
