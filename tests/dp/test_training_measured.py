"""Audits that measure the mechanism of DP-SGD and DPIS: honest runs by seeds, broken ones, and what is not measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from scipy.stats import binom  # noqa: E402
from torch import nn  # noqa: E402

from heliograph.dp.samplers import AllocationSampler, FixedSizeSampler, PoissonSampler  # noqa: E402
from heliograph.dp.training import DPTrainer, ImportanceOptions, audit_training, dp_sgd, dpis  # noqa: E402
from heliograph.dp.training.audit import TrainingAudit  # noqa: E402
from heliograph.dp.training.noise import GaussianNoise  # noqa: E402

RECORDS, FEATURES = 200, 150
SEEDS = 6


def audited(seed: int = 0, scale: float = 1.0, kind: Any = "gradients", **changes: Any) -> TrainingAudit:
    """An audit whose run and canaries both have this seed: with one run for all seeds, its noise would be judged again."""
    inputs = torch.randn(RECORDS, FEATURES, generator=torch.Generator().manual_seed(0))
    release = GaussianNoise.release

    def build(data: object, observer: Callable[[str, Any], None]) -> DPTrainer:
        torch.manual_seed(1)
        given: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-4, "epochs": 2, "batch_size": 40}
        given |= {"max_grad_norm": 1.0, "public_size": 350, "seed": seed, "observer": observer} | changes
        loss = nn.CrossEntropyLoss(reduction="none")
        trainer = DPTrainer(nn.Linear(FEATURES, 2), loss, lambda p: torch.optim.SGD(p, lr=0.01), data, **given)
        noise = trainer._noise
        noise.release = lambda values, std, bound: release(noise, values, std * scale, bound)  # type: ignore[method-assign]
        return trainer

    return audit_training(build, (inputs, (inputs[:, 0] > 0).long()), kind=kind, count=300, guesses=100, seed=seed)


PLANNED = ImportanceOptions(planned_norm_share=0.5)
METHODS: dict[str, dict[str, Any]] = {
    "dp_sgd": {},
    "dpis": {"method": "dpis", "noise_multiplier": None, "epsilon": 6.0},
    "dpis planned": {"method": "dpis", "dpis": PLANNED},
}


@pytest.mark.parametrize("method", METHODS)
def test_honest_runs_are_refuted_as_seldom_as_the_confidence_says(method: str) -> None:
    found = [audited(seed, **METHODS[method]) for seed in range(SEEDS)]
    refuted = sum(each.refuted for each in found)
    # 5 % of the runs at most: more than this many have a probability below 1e-3.
    assert refuted <= int(binom.isf(1e-3, SEEDS, 0.05))
    measured = [each.measured for each in found if each.measured is not None]
    assert len(measured) == SEEDS
    for ends in ("noise", "probability", "clipping"):
        # The bound is 1e-5 below what is accounted, for round-off.
        outside = sum(not low < 1 < high for low, high in (getattr(each, ends) for each in measured))
        assert outside <= int(binom.isf(1e-3, SEEDS, 0.05 / 2))
    # The measurement is one: noise to some percent.
    assert max(each.noise[1] - each.noise[0] for each in measured) < 0.15
    assert all(each.epsilon_worst is not None and each.epsilon_worst > each.epsilon_upper for each in found)
    assert "as multiples of the accounted: noise in [" in found[0].words()


@pytest.mark.parametrize("scale", [0.9, 0.5])
@pytest.mark.parametrize(
    "sampler", [None, FixedSizeSampler(40), AllocationSampler(5, 350.0)], ids=lambda s: s and s.name
)
def test_less_noise_is_refuted(scale: float, sampler: Any) -> None:
    changes = {} if sampler is None else {"sampler": sampler, "batch_size": None}
    if isinstance(sampler, FixedSizeSampler):
        # That is what the trainer is made with; canaries come later.
        changes["public_size"] = RECORDS
    found = audited(3, scale, **changes)
    assert found.refuted
    assert found.measured is not None
    assert found.measured.noise[0] < scale < found.measured.noise[1] < 1
    assert found.audit.epsilon_lower < found.epsilon_upper
    assert found.epsilon_worst is not None
    assert found.epsilon_worst > found.epsilon_upper
    assert "REFUTED" in found.words()


@pytest.mark.parametrize("broken", ["clipping", "sampling"])
def test_a_larger_bound_and_a_larger_probability_are_refuted(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clipped, sampled = dp_sgd.clipped_sum, PoissonSampler.epoch
    if broken == "clipping":
        monkeypatch.setattr(dp_sgd, "clipped_sum", lambda e, r, t, bound, n: clipped(e, r, t, 1.2 * bound, n))
    else:

        def more(self: PoissonSampler, records: int, plan: Any, uniform: Any) -> Any:
            mechanism = replace(plan.mechanism, p=1.2 * plan.mechanism.p)
            return sampled(self, records, replace(plan, mechanism=mechanism), uniform)

        monkeypatch.setattr(PoissonSampler, "epoch", more)
    found = audited(1, epochs=4).measured
    assert found is not None
    assert found.clipping is not None
    assert found.probability is not None
    assert found.noise[0] < 1 < found.noise[1]
    wrong, right = (found.clipping, found.probability) if broken == "clipping" else (found.probability, found.clipping)
    assert 1 < wrong[0] < 1.2 < wrong[1]
    assert right[0] < 1 < right[1]


def test_longer_vectors_of_importance_samples_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    weighted = dpis.weighted_sum
    monkeypatch.setattr(
        dpis,
        "weighted_sum",
        lambda e, r, i, n, weights: weighted(e, r, i, n, lambda at, norms: 1.5 * weights(at, norms)),
    )
    found = audited(1, epochs=6, **METHODS["dpis planned"]).measured
    assert found is not None
    assert found.refuted
    assert found.clipping is not None
    assert 1 < found.clipping[0] < 1.5 < found.clipping[1]


def test_noise_that_is_not_accounted_for_has_no_epsilon() -> None:
    found = audited(2, sampler=AllocationSampler(5, 350.0), batch_size=None, noise_multiplier=0.301)
    assert found.measured is not None
    assert found.epsilon_worst is None


NOT_MEASURED: dict[str, dict[str, Any]] = {
    "band_mf": {"method": "band_mf", "bands": 2},
    "records": {"kind": "records"},
}


@pytest.mark.parametrize("changes", NOT_MEASURED.values(), ids=NOT_MEASURED)
def test_what_is_not_measured_says_so(changes: dict[str, Any]) -> None:
    found = audited(**changes)
    assert found.measured is None
    assert "the mechanism was not measured" in found.words()
