"""SGD without privacy, DP-SGD, DPIS, BandMF and Opacus' DP-SGD side by side: accuracy, epsilon, seconds, memory.

"DPIS" releases its norm sums and is under a Renyi filter; "DPIS, planned" has a public share of N C in their place, so that
the numerical bracket holds.

Each run is a process of its own on one thread. N is public (the data sets' sizes are); delta is 1e-5. All methods get the
same model, optimizer, batch size, clipping bound, number of steps and epsilon; Opacus gets the multiplier that our bracket
gives for that epsilon. Its seconds leave its data loader out; ours hold the gathering of records and the pass over all
norms. Times a step are those of the fastest run of each method, which other processes disturbed least.

    python benchmarks/dpis.py --datasets mnist fmnist imdb --methods sgd dp_sgd dpis planned band_mf opacus --epsilons 0.5 1
    python benchmarks/dpis.py --datasets mnist-small --methods sgd dp_sgd dpis band_mf --epsilons 1 4 --clock processor
    python benchmarks/dpis.py --turns --datasets mnist fmnist imdb --epsilons 2

`--turns` compares times alone: DP-SGD, DPIS and DPIS planned in one process, a step of each in turn. The time of an epoch is
its first step, which has the pass over norms, and the median of its other steps for each of them.
"""

from __future__ import annotations

import heliograph  # noqa: F401  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

import contextlib
import importlib.util
import os
import statistics
import time
import types
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from harness import BUILD, Run, apart, benchmark, fresh_peak, option, peak
from models.dpis import SETTINGS, ReviewRNN, Setting
from heliograph.dp.accounting import epsilon_at
from heliograph.dp.calibrate import noise_multiplier
from heliograph.dp.mechanisms import SampledGaussian
from heliograph.dp.training import DPTrainer, ImportanceOptions
from heliograph.dp.training import trainer as trainer_module
from heliograph.dp.training.gradients import GradientEngine

DELTA = 1e-5
BANDS = 4
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
        found = torch.cat([module(part).argmax(1) for part in inputs.split(250)])
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


def made(setting: Setting, job: dict[str, Any], x: Tensor, y: Tensor) -> DPTrainer:
    return DPTrainer(
        setting.model(),
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
        physical_batch_size=setting.physical,
        dpis=ImportanceOptions(
            **setting.importance,
            planned_norm_share=setting.planned_norm_share if job["method"] == "planned" else None,
        ),
    )


def ours(setting: Setting, job: dict[str, Any], x: Tensor, y: Tensor) -> tuple[nn.Module, dict[str, Any]]:
    counter = Counter()
    trainer = made(setting, job, x, y)
    report = trainer.fit()
    return trainer.module, {
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
    for group in optimizer.param_groups:
        group["lr"] = setting.rate_without_noise or group["lr"]
    generator, steps, began = torch.Generator().manual_seed(job["seed"]), 0, time.perf_counter()
    for _ in range(job["epochs"]):
        order = torch.randperm(len(x), generator=generator)
        for batch in order[: len(x) // setting.batch_size * setting.batch_size].split(setting.batch_size):
            optimizer.zero_grad()
            for part in batch.split(setting.physical):
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
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=setting.physical, optimizer=optimizer
        ) as parts:
            for inputs, targets in parts:
                started = time.perf_counter()
                optimizer.zero_grad()
                loss(module(inputs), targets).mean().backward()
                optimizer.step()
                seconds += time.perf_counter() - started
                seen += len(targets)
    bracket = epsilon_at(SampledGaussian(p, multiplier) * steps, DELTA)
    return module, {
        "epsilon_lower": bracket.lower,
        "epsilon_upper": bracket.upper,
        "steps": steps,
        "stopped": "",
        "noise_multiplier": multiplier,
        "seconds": seconds,
        "records_seen": seen,
    }


@contextlib.contextmanager
def processor_clock() -> Iterator[None]:
    """The clocks of the trainer and of this file leave out the time of other processes."""
    clock = types.SimpleNamespace(perf_counter=time.process_time)
    with mock.patch.object(trainer_module, "time", clock), mock.patch.dict(globals(), time=clock):
        yield


def trained(job: dict[str, Any], clock: str) -> dict[str, Any]:
    """One run in this process, and what it showed."""
    torch.set_num_threads(1)
    setting = SETTINGS[job["dataset"]]
    x, y, x_test, y_test = setting.load(BUILD, job["records"])
    torch.manual_seed(job["seed"])
    # What libraries load at first use is not what training takes.
    with contextlib.suppress(ImportError):
        import opacus as _  # noqa: F401

    torch.optim.SGD([nn.Parameter(torch.zeros(1))]).step()
    before, load = fresh_peak(), os.getloadavg()[0]
    with processor_clock() if clock == "processor" else contextlib.nullcontext():
        module, found = {"opacus": opacus, "sgd": sgd}.get(job["method"], ours)(setting, job, x, y)
    found["memory"] = peak() - before
    return {**found, "accuracy": accuracy(module, x_test, y_test), "load_average": round(load, 2)}


def turns(job: dict[str, Any], clock: str) -> dict[str, Any]:
    """Seconds of whole runs of each method, a step of each in turn, in this process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    setting = SETTINGS[job["dataset"]]
    x, y, _, _ = setting.load(BUILD, job["records"])
    now = time.process_time if clock == "processor" else time.perf_counter
    trainers, rngs = {}, {}
    for method in ("dp_sgd", "dpis", "planned"):
        torch.manual_seed(job["seed"])
        trainers[method] = made(setting, {**job, "method": method}, x, y)
        rngs[method] = torch.get_rng_state()
    loops = {method: trainer.steps() for method, trainer in trainers.items()}
    spent: dict[str, list[float]] = {method: [] for method in trainers}
    load, steps = os.getloadavg()[0], trainers["dp_sgd"].total_steps
    for _ in range(steps):
        for method, trainer in trainers.items():
            torch.set_rng_state(rngs[method])
            begun = now()
            next(loops[method])
            trainer.optimizer.step()
            spent[method].append(now() - begun)
            rngs[method] = torch.get_rng_state()
    epoch = steps // job["epochs"]
    found = {}
    for method, seconds in spent.items():
        epochs = [seconds[at : at + epoch] for at in range(0, steps, epoch)]
        found[method] = sum(each[0] + (epoch - 1) * statistics.median(each[1:]) for each in epochs)
    return {
        **{f"{method}_ms": 1e3 * seconds / steps for method, seconds in found.items()},
        **{f"{method}_over_dp_sgd": found[method] / found["dp_sgd"] for method in ("dpis", "planned")},
        "steps": steps,
        "load_average": round(load, 2),
    }


def spread(values: list[float]) -> str:
    """The mean in per cent, with the deviation where there are several."""
    deviation = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{deviation}"


def groups(rows: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Rows by some of their fields."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def summarized(run: Run, rows: list[dict[str, Any]]) -> None:
    """The rows of the tables of docs/privacy_figures.md: accuracy beside epsilon, several seeds, time and memory."""
    for row in rows:
        row["data"], row["scale"] = (
            f"{row['dataset']}, {row['records']:,}, {row['epochs']}",
            SETTINGS[row["dataset"]].scale,
        )
    for (data, scale, eps, method), group in groups(rows, "data", "scale", "epsilon", "method").items():
        lower, upper = group[0]["epsilon_lower"], group[0]["epsilon_upper"]
        published = SETTINGS[group[0]["dataset"]].published
        values = {
            "accuracy": spread([row["accuracy"] for row in group]),
            "runs": len(group),
            "bracket": f"[{'-' if lower is None else f'{lower:.3f}'}, {upper:.3f}]",
            "paper": "{}, {}".format(*published[eps]) if eps in published else "",
        }
        run.derived(
            {"part": "accuracy", "scale": scale, "data": data, "epsilon": eps, "method": METHODS[method]}, values
        )
    for (data, scale, eps), group in groups(rows, "data", "scale", "epsilon").items():
        methods = {method: [row["accuracy"] for row in own] for (method,), own in groups(group, "method").items()}
        if max(map(len, methods.values())) > 1:
            values = {method: spread(found) for method, found in methods.items()}
            run.derived({"part": "seeds", "scale": scale, "data": data, "epsilon": eps}, values)
    for (data,), group in groups(rows, "data").items():
        ways = {method: own for (method,), own in groups(group, "method").items()}
        each = {m: min(1e3 * row["seconds"] / max(row["steps"], 1) for row in own) for m, own in ways.items()}

        def over(of: str, to: str, each: dict[str, float] = each) -> float | str:
            return each[of] / each[to] if {of, to} <= set(each) else "-"

        batch_size = SETTINGS[group[0]["dataset"]].batch_size
        for method, own in ways.items():
            values = {
                "ms": each[method],
                **{f"over_{to}": over(method, to) for to in ("sgd", "opacus")},
                "passes": statistics.mean(row["records_seen"] / row["steps"] / batch_size for row in own),
                "memory": statistics.median(row["memory"] for row in own),
            }
            run.derived({"part": "steps", "data": data, "method": METHODS[method]}, values)
        pairs = (("dp_sgd", "sgd"), ("dpis", "dp_sgd"), ("band_mf", "dp_sgd"), ("dp_sgd", "opacus"))
        run.derived({"part": "ratios", "data": data}, {f"{of}_over_{to}": over(of, to) for of, to in pairs})


def noise(eps: float, setting: Setting) -> dict[str, float]:
    """What importance sampling can save: the noise over C that an epsilon takes where K~ is a share of N C throughout."""
    p, steps = setting.batch_size / setting.size, setting.size // setting.batch_size * setting.epochs
    return {
        f"share_{share}".replace(".", "_"): share * noise_multiplier(eps, DELTA, p=p / share, steps=steps).value
        for share in (1, 0.5, 0.25)
    }


def number(text: str) -> float:
    return int(text) if text.isdecimal() else float(text)


@benchmark(
    option("--datasets", nargs="*", choices=tuple(SETTINGS), default=["mnist", "fmnist", "imdb"]),
    option("--methods", nargs="*", choices=tuple(METHODS), default=["dp_sgd", "dpis", "planned", "band_mf", "opacus"]),
    option("--epsilons", nargs="*", type=number, default=[0.5, 1, 2, 4]),
    option("--seeds", type=int, default=1, selects=True, help="how many runs of each"),
    option("--epochs", type=int, selects=True, help="instead of each setting's own"),
    option("--records", type=int, default=10**9, dest="most", selects=True, help="at most this many training records"),
    option("--turns", action="store_true", selects=True, help="times of DP-SGD and DPIS in turns, and nothing else"),
    option(
        "--clock", choices=("wall", "processor"), default="wall", help="of the seconds; the latter beside other work"
    ),
    data=("mnist.npz", "fashion_mnist.npz", "imdb_tokens_top10k.npz"),
    memory_gb=6,
    minutes=600,
)
def dpis(run: Run) -> None:
    given, rows = run.options, []
    for dataset in given.datasets if given.turns else ():
        size, epochs = min(SETTINGS[dataset].size, given.most), given.epochs or SETTINGS[dataset].epochs
        key = {"part": "turns", "data": f"{dataset}, {size:,}, {epochs}", "epsilon": given.epsilons[0]}
        job = {"dataset": dataset, "epsilon": given.epsilons[0], "seed": 0, "epochs": epochs, "records": size}
        run.row(key, partial(apart, "dpis:turns", job, given.clock, threads=1))
    if given.turns:
        return
    for dataset in given.datasets:
        for seed in range(given.seeds):
            for eps in given.epsilons:
                for method in given.methods:
                    if method == "sgd" and eps != given.epsilons[0]:
                        continue
                    if method == "opacus" and importlib.util.find_spec("opacus") is None:
                        run.say("opacus is not installed: left out")
                        continue
                    job = {
                        "dataset": dataset,
                        "method": method,
                        "epsilon": eps,
                        "seed": seed,
                        "epochs": given.epochs or SETTINGS[dataset].epochs,
                        "records": min(SETTINGS[dataset].size, given.most),
                    }
                    found = run.row({"part": "run", **job}, partial(apart, "dpis:trained", job, given.clock, threads=1))
                    rows.append({**job, **found})
    summarized(run, rows)
    for dataset in given.datasets:
        for eps in given.epsilons:
            key = {"part": "noise", "scale": SETTINGS[dataset].scale, "data": dataset, "epsilon": eps}
            run.row(key, partial(noise, eps, SETTINGS[dataset]))


if __name__ == "__main__":
    dpis.main()
