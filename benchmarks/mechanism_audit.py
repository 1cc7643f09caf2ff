"""The audit of the mechanism: of trainers as they are, and with less noise, looser clipping or more frequent inclusion.

Heliograph's trainers are audited by `audit_training`; the optimizers of Opacus and JAX-Privacy by the same measurement of
their released sums (peer_sums.py), each run by an interpreter that has the library:

    python benchmarks/mechanism_audit.py --opacus PYTHON --jax-privacy PYTHON

All have probability 0.1, multiplier 1, 50 steps and delta 1e-5. A trainer is broken behind the accountant's back: noise at a
share of what is accounted, clipping at 1.1 times the bound (with the accounted noise), inclusion at 1.2 times the
probability.
"""

from __future__ import annotations

import heliograph  # noqa: F401  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

import json
import os
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from harness import HERE, Run, benchmark, option
from heliograph.dp.accounting import Tolerance, epsilon_at
from heliograph.dp.audit import Measured, measure
from heliograph.dp.mechanisms import SampledGaussian
from heliograph.dp.samplers import PoissonSampler
from heliograph.dp.training import DPTrainer, ImportanceOptions, audit_training, dp_sgd, dpis
from heliograph.dp.training.noise import GaussianNoise

P, NOISE, STEPS, DELTA = 0.1, 1.0, 50, 1e-5
RECORDS, FEATURES, CROWDS, CROWD = 2000, 1500, 64, 100
CASES: dict[str, dict[str, float]] = {
    "honest": {},
    "noise x 0.98": {"noise": 0.98},
    "noise x 0.9": {"noise": 0.9},
    "noise x 0.5": {"noise": 0.5},
    "noise x 0.25": {"noise": 0.25},
    "clipping x 1.1": {"clipping": 1.1},
    "inclusion x 1.2": {"inclusion": 1.2},
}
TRAINERS = ("DP-SGD", "DPIS, planned", "Opacus", "JAX-Privacy")


def upper(p: float, noise: float) -> float:
    found = epsilon_at(
        SampledGaussian(p, noise) * STEPS, DELTA, tolerance=Tolerance(absolute=0.01, relative=0.01)
    ).upper
    assert found is not None
    return found


def row(measured: Measured, claim: float, worst: float | None) -> dict[str, Any]:
    shown = {
        name: "-" if ends is None else f"[{ends[0]:.3f}, {ends[1]:.3f}]"
        for name, ends in (
            ("noise", measured.noise),
            ("probability", measured.probability),
            ("clipping", measured.clipping),
        )
    }
    verdict = "refuted" if measured.refuted else "not refuted"
    return {"verdict": verdict, **shown, "epsilon": claim, "worst": worst, "samples": measured.samples}


def ours(method: str, broken: dict[str, float], seed: int) -> dict[str, Any]:
    """An audit of this package's trainer."""
    inputs = torch.randn(RECORDS, FEATURES, generator=torch.Generator().manual_seed(0))
    noise, clipping, inclusion = (broken.get(name, 1.0) for name in ("noise", "clipping", "inclusion"))
    release, clipped, sampled, weighted = (
        GaussianNoise.release, dp_sgd.clipped_sum, PoissonSampler.epoch, dpis.weighted_sum,
    )  # fmt: skip
    planned = method == "DPIS, planned"

    def build(data: object, observer: Callable[[str, Any], None]) -> DPTrainer:
        torch.manual_seed(1)
        # A planned share of a half doubles the probability and the multiplier that are accounted.
        size, share = int(RECORDS / (0.5 if planned else 1)), 0.5 if planned else 1.0
        return DPTrainer(
            nn.Linear(FEATURES, 2), nn.CrossEntropyLoss(reduction="none"), lambda p: torch.optim.SGD(p, lr=1e-3), data,
            method="dpis" if planned else "dp_sgd", noise_multiplier=NOISE * share, delta=DELTA, epochs=5,
            batch_size=P * size * share, max_grad_norm=1.0, public_size=size, seed=seed, observer=observer,
            dpis=ImportanceOptions(planned_norm_share=0.5) if planned else None,
        )  # fmt: skip

    def start(self: Any, norms: Any, bound: float, total: float, given: Any = dpis.ImportanceSampler.start) -> None:
        self.batch_size *= inclusion if not len(self.age) else 1.0
        given(self, norms, bound, total)

    def more(self: PoissonSampler, records: int, plan: Any, uniform: Any) -> Any:
        mechanism = replace(plan.mechanism, p=inclusion * plan.mechanism.p)
        return sampled(self, records, replace(plan, mechanism=mechanism), uniform)

    with (
        mock.patch.object(GaussianNoise, "release", lambda s, v, std, bound: release(s, v, std * noise, bound)),
        mock.patch.object(dp_sgd, "clipped_sum", lambda e, r, t, bound, n: clipped(e, r, t, clipping * bound, n)),
        mock.patch.object(PoissonSampler, "epoch", more),
        mock.patch.object(
            dpis, "weighted_sum",
            lambda e, r, i, n, weights: weighted(e, r, i, n, lambda at, norms: clipping * weights(at, norms)),
        ),
        mock.patch.object(dpis.ImportanceSampler, "start", start),
    ):  # fmt: skip
        found = audit_training(build, (inputs, (inputs[:, 0] > 0).long()), seed=seed)
    assert found.measured is not None
    return {**row(found.measured, found.epsilon_upper, found.epsilon_worst), "guessed": found.audit.epsilon_lower}


def peer(library: str, python: str, broken: dict[str, float], seed: int) -> dict[str, Any]:
    """The measurement of a library's sums."""
    clipping = broken.get("clipping", 1.0)
    lengths = [0.9, 20.0] * (CROWDS // 2)
    job = {
        "p": P * broken.get("inclusion", 1.0),
        "noise_multiplier": NOISE * broken.get("noise", 1.0) / clipping,
        "max_grad_norm": clipping,
        "steps": STEPS,
        "parameters": CROWDS + 4000,
        "lengths": lengths,
        "crowd": CROWD,
        "most": CROWDS * CROWD // 4,
        "seed": seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        settings, out = Path(folder, "settings.json"), Path(folder, "out.npz")
        settings.write_text(json.dumps(job))
        command = [python, str(HERE / "peer_sums.py"), library, str(settings), str(out)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ""})
        with np.load(out, allow_pickle=False) as file:
            absent, crowds = file["absent"] / NOISE, file["crowds"]
    found = measure(absent, crowds, CROWD, NOISE, P, np.broadcast_to(lengths, crowds.shape).ravel())
    assert found.probability is not None
    assert found.clipping is not None
    worst = upper(min(P * found.probability[1], 1.0), NOISE * found.noise[0] / found.clipping[1])
    return row(found, upper(P, NOISE), worst)


@benchmark(
    option("--trainers", nargs="*", choices=TRAINERS, default=list(TRAINERS)),
    option("--cases", nargs="*", choices=tuple(CASES), default=list(CASES)),
    option("--opacus", type=Path, help="an interpreter with Opacus"),
    option("--jax-privacy", type=Path, help="an interpreter with JAX-Privacy"),
    option("--seed", type=int, default=0),
    memory_gb=2,
    minutes=8,
)
def mechanism_audit(run: Run) -> None:
    given = run.options
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    interpreters = {"Opacus": given.opacus, "JAX-Privacy": given.jax_privacy}
    for trainer in given.trainers:
        if trainer in interpreters and interpreters[trainer] is None:
            run.say(f"{trainer} is left out: no interpreter was given")
            continue
        for case in given.cases:
            if trainer in interpreters:
                name = trainer.lower().replace("-", "_")
                make = partial(peer, name, str(interpreters[trainer]), CASES[case], given.seed)
            else:
                make = partial(ours, trainer, CASES[case], given.seed)
            run.row({"trainer": trainer, "case": case}, make)


if __name__ == "__main__":
    mechanism_audit.main()
