"""Audits: deliberately broken trainers are caught, sound ones are not flagged.

Canaries have an input feature of their own each, so that what an audit sees of one is not blurred by the others: an
attacker may choose them so. Bounds are at confidence 0.999: a sound trainer is flagged with probability 1e-3 over seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heliograph.dp.accounting import epsilon_at
from heliograph.dp.audit import split
from heliograph.dp.mechanisms import Gaussian
from heliograph.dp.training import DPTrainer, audit_training, dp_sgd, dpis
from heliograph.dp.training import noise as noise_module
from heliograph.dp.training.audit import TrainingAudit, audit_norm_sum, make_canaries
from heliograph.dp.training.budget import PlannedBudget
from heliograph.dp.training.noise import GaussianNoise
from heliograph.dp.training.releases import Books, Releaser
from heliograph.dp.training.settings import ImportanceOptions
from heliograph.errors import ProgramError

CANARIES, FEATURES, RECORDS = 300, 8, 300
CONFIDENCE = 0.999


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.zeros(RECORDS, FEATURES + CANARIES)
    inputs[:, :FEATURES] = torch.randn(RECORDS, FEATURES, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def canaries(scale: float = 100.0) -> tuple[Tensor, Tensor]:
    inputs = torch.zeros(CANARIES, FEATURES + CANARIES)
    inputs[:, FEATURES:] = scale * torch.eye(CANARIES)
    return inputs, torch.zeros(CANARIES, dtype=torch.long)


def audited(method: Any, seed: int = 2, target: float = 1.0, **settings: Any) -> TrainingAudit:
    def build(train_set: object, observer: Callable[[str, Any], None]) -> DPTrainer:
        torch.manual_seed(0)
        return DPTrainer(
            nn.Linear(FEATURES + CANARIES, 2, bias=False),
            nn.CrossEntropyLoss(reduction="none"),
            lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
            train_set,
            method=method,
            epsilon=target,
            delta=1e-5,
            epochs=4,
            batch_size=60,
            max_grad_norm=1.0,
            **{"public_size": 450, "seed": seed, **settings},
            observer=observer,
        )

    return audit_training(build, data(), canaries=canaries(), guesses=CANARIES, confidence=CONFIDENCE, seed=seed)


# What changes what is released, and what noise it gets: planned norm sums, an adapted bound, the number of records.
VARIANTS = [
    pytest.param("dp_sgd", {}, id="dp_sgd"),
    pytest.param("dpis", {}, id="dpis"),
    pytest.param("dpis", {"dpis": ImportanceOptions(planned_norm_share=0.7)}, id="dpis planned"),
    pytest.param(
        "dpis", {"dpis": ImportanceOptions(planned_norm_share=(1.0, 0.9, 0.8, 0.7))}, id="dpis planned by epoch"
    ),
    pytest.param("dpis", {"dpis": ImportanceOptions(adapt_clipping=True, norm_noise=0.1)}, id="dpis adapted"),
    pytest.param("dp_sgd", {"public_size": None}, id="dp_sgd, N released"),
    pytest.param("dpis", {"public_size": None}, id="dpis, N released"),
]


@pytest.mark.parametrize(("method", "settings"), VARIANTS)
def test_sound_trainers_are_not_flagged(method: str, settings: dict[str, Any]) -> None:
    found = audited(method, **settings)
    assert not found.refuted
    # A released number of records may leave a part of the budget unspent.
    assert found.epsilon_upper == pytest.approx(1.0, rel=1e-3 if "public_size" not in settings else 0.1)
    assert found.epsilon_upper <= 1.0
    assert "not refuted" in found.words()
    # The attack is a real one: where there is little privacy it shows.
    weak = audited(method, target=30.0, **settings)
    assert not weak.refuted
    assert weak.audit.epsilon_lower > 0.3


@pytest.mark.parametrize(("method", "settings"), VARIANTS)
def test_forgotten_noise_is_caught(method: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    original = noise_module.GaussianNoise.release

    def only_scalars(self: Any, values: Any, std: float, sensitivity: float) -> Any:
        return original(self, values, std, sensitivity) if values[0].dim() == 0 else list(values)

    monkeypatch.setattr(noise_module.GaussianNoise, "release", only_scalars)
    found = audited(method, **settings)
    assert found.refuted
    assert "REFUTED" in found.words()


def test_missing_clipping_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = dp_sgd.clipped_sum
    monkeypatch.setattr(
        dp_sgd,
        "clipped_sum",
        lambda engine, records, taken, bound, physical: original(engine, records, taken, 1e9, physical),
    )
    assert audited("dp_sgd").refuted


def test_missing_normalisation_of_importance_samples_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that are taken by importance, but added as they are, without (K~/N~) / norm and without a bound."""
    original = dpis.weighted_sum

    def as_they_are(engine: Any, records: Any, indices: Tensor, physical: int, weights: Any) -> list[Tensor]:
        return original(engine, records, indices, physical, lambda at, norms: (weights(at, norms) > 0).to(norms.dtype))

    monkeypatch.setattr(dpis, "weighted_sum", as_they_are)
    assert audited("dpis").refuted


@pytest.mark.parametrize("broken", ["", "no noise", "no clipping"])
def test_norm_sums_released_raw_are_caught(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "no noise":
        monkeypatch.setattr(noise_module.GaussianNoise, "release", lambda self, values, std, sensitivity: list(values))
    bound, multiplier, trials = 1.0, 2.0, 2500
    upper = epsilon_at(Gaussian(multiplier), 1e-5).upper
    assert upper is not None
    books = Books(PlannedBudget(Gaussian(multiplier) * (2 * trials)))
    releaser = Releaser(books, GaussianNoise(seed=4))

    def release(norms: Tensor) -> float:
        if broken == "no clipping":
            # The noise is that of the bound, but the norms are summed as they are.
            (noisy,) = releaser.noise.release([norms.double().sum()], multiplier * bound, bound)
            return float(noisy)
        return releaser.norm_sum("K'", norms, bound, multiplier)

    norms = torch.rand(50, generator=torch.Generator().manual_seed(1))
    found = audit_norm_sum(release, norms, 40.0, epsilon_upper=upper, delta=1e-5, trials=trials, confidence=CONFIDENCE)
    assert found.refuted is bool(broken)


def test_canaries_are_made_from_any_tensors() -> None:
    images = torch.arange(60.0).reshape(5, 3, 2, 2)
    inputs, targets = make_canaries((images, torch.arange(5)), 7, seed=0)
    assert inputs.shape == (7, 3, 2, 2)
    assert targets.shape == (7,)
    for row in inputs:
        assert any(torch.equal(row.flatten().sort().values, each.flatten()) for each in images)
    tokens, _ = make_canaries((torch.arange(20).reshape(4, 5), torch.zeros(4)), 3, seed=0)
    assert tokens.dtype == torch.long
    with pytest.raises(ProgramError, match="two records"):
        make_canaries((torch.zeros(1, 2), torch.zeros(1)), 3, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_many_runs_of_one_canary(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent runs with and without one record; the score is its gradient's part in all noisy sums."""
    if broken:
        original = dp_sgd.clipped_sum

        def unclipped(engine: Any, records: Any, taken: Tensor, bound: float, physical: int) -> list[Tensor]:
            return original(engine, records, taken, 50 * bound, physical)

        monkeypatch.setattr(dp_sgd, "clipped_sum", unclipped)
    inputs = torch.zeros(40, 3)
    inputs[:, 0] = torch.linspace(-1, 1, 40)
    targets = (inputs[:, 0] > 0).long()
    canary = torch.tensor([[0.0, 0.0, 60.0]])
    scores: dict[bool, list[float]] = {True: [], False: []}
    upper = 0.0
    for member in (True, False):
        x = torch.cat((inputs, canary)) if member else inputs
        y = torch.cat((targets, torch.zeros(1, dtype=torch.long))) if member else targets
        for seed in range(250):
            total = []
            run = DPTrainer(
                nn.Linear(3, 2, bias=False),
                nn.CrossEntropyLoss(reduction="none"),
                lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
                (x, y),
                noise_multiplier=4.0,
                delta=1e-5,
                epochs=4,
                batch_size=10,
                max_grad_norm=1.0,
                public_size=40,
                seed=seed + 1000 * member,
                observer=lambda name, value, total=total: total.append(float(value[0][1, 2] - value[0][0, 2])),
            )
            upper = run.fit().epsilon_upper
            scores[member].append(sum(total))
    found = split(scores[True], scores[False], delta=1e-5, confidence=CONFIDENCE)
    assert (found.epsilon_lower > upper) is broken
