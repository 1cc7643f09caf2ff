"""Training with every sampler: what is charged is what the sampler is accounted as, and audits do not refute it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from helpers.interrupted import KilledError, killer  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from heliograph.dp.accounting import epsilon_at  # noqa: E402
from heliograph.dp.accounting.ledger import verify  # noqa: E402
from heliograph.dp.mechanisms import Neighboring, SampledGaussian  # noqa: E402
from heliograph.dp.samplers import (  # noqa: E402
    AllocationSampler,
    FixedSizeSampler,
    PoissonSampler,
    Sampler,
    TruncatedPoissonSampler,
)
from heliograph.dp.training import DPTrainer, audit_training  # noqa: E402
from heliograph.dp.training import noise as noise_module  # noqa: E402
from heliograph.errors import ProgramError  # noqa: E402

COUNT = 400
SAMPLERS: list[Sampler] = [
    TruncatedPoissonSampler(40, 90),
    FixedSizeSampler(40),
    AllocationSampler(10, float(COUNT)),
    AllocationSampler(10, float(COUNT), 2),
]
RELATIONS: dict[str, Neighboring] = {
    "truncated_poisson": "zero_out",
    "fixed_size": "replace",
    "allocation": "add_remove",
}
NAMES = [f"{sampler.name}{getattr(sampler, 'times', '')}" for sampler in SAMPLERS]


def data(count: int = COUNT, features: int = 6) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, features, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, 0] > 0).long()


def made(sampler: Sampler | None, train_set: Any = None, **changes: Any) -> DPTrainer:
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "noise_multiplier": 2.0,
        "delta": 1e-4,
        "epochs": 2,
        "max_grad_norm": 1.0,
        "public_size": COUNT,
        "sampler": sampler,
    } | changes
    known = data() if train_set is None else train_set
    return DPTrainer(
        nn.Linear(known[0].shape[1], 2),
        nn.CrossEntropyLoss(reduction="none"),
        lambda p: torch.optim.SGD(p, lr=0.5),
        known,
        **options,
    )


@pytest.mark.parametrize("sampler", SAMPLERS, ids=NAMES)
def test_what_is_charged_is_what_the_sampler_is(sampler: Sampler, tmp_path: Path) -> None:
    report = made(sampler).fit()
    planned = sampler.plan(COUNT, 2.0).composition(2)
    assert report.ledger.composition == planned
    assert report.steps == report.steps_planned == 20
    # The neighbours are ones that the trainer does not refuse.
    relation = RELATIONS[sampler.name]
    found = epsilon_at(planned, 1e-4, neighboring=relation)
    assert report.epsilon_upper == found.upper
    assert report.to_json()["neighboring_relation"] == found.neighboring == relation
    assert report.epsilon_lower == found.lower
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report.to_json()))
    checked = verify(path)
    assert checked.holds
    assert report.to_json()["settings"]["sampler"]["sampler"] == sampler.name
    assert "epsilon" in report.words()


@pytest.mark.parametrize(
    "sampler", [FixedSizeSampler(40), AllocationSampler(10, float(COUNT))], ids=["fixed", "allocation"]
)
def test_the_noise_is_found_for_a_target(sampler: Sampler) -> None:
    report = made(sampler, noise_multiplier=None, epsilon=2.0).fit()
    assert report.epsilon_upper <= 2.0
    assert report.epsilon_upper > 1.99
    assert report.noise_multiplier > 0.5


@pytest.mark.parametrize("sampler", [FixedSizeSampler(40), TruncatedPoissonSampler(40, 90)], ids=lambda s: s.name)
def test_neighbours_of_another_relation_cannot_run(sampler: Sampler) -> None:
    inputs, targets = data()
    with pytest.raises(ProgramError, match="not the number of records"):
        made(sampler, (inputs[1:], targets[1:]))
    report = made(sampler).fit()
    assert "one record" in report.words()
    assert "added or removed" not in report.words()
    # A run for the one relation does not add up with a run for another.
    with pytest.raises(ProgramError, match="earlier run is accounted under"):
        made(PoissonSampler(40), earlier=[report])


def test_poisson_sampling_is_the_sampler_that_there_is_without_one() -> None:
    report = made(PoissonSampler(40)).fit()
    assert report.ledger.composition == SampledGaussian(0.1, 2.0) * 20
    assert report.settings == made(None, batch_size=40).settings


def test_batches_have_the_sizes_that_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.dp.training import dp_sgd

    sizes: list[int] = []
    original = dp_sgd.clipped_sum

    def counted(engine: Any, records: Any, taken: Tensor, bound: float, physical: int) -> list[Tensor]:
        sizes.append(taken.numel())
        return original(engine, records, taken, bound, physical)

    monkeypatch.setattr(dp_sgd, "clipped_sum", counted)
    made(FixedSizeSampler(40)).fit()
    assert sizes == [40] * 20
    sizes.clear()
    made(AllocationSampler(10, float(COUNT)), epochs=3).fit()
    assert [sum(sizes[start : start + 10]) for start in (0, 10, 20)] == [COUNT] * 3
    assert len(set(sizes)) > 3


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"sampler": None}, "either batch_size or sampler"),
        ({"batch_size": 40}, "either batch_size or sampler"),
        ({"method": "dpis"}, "is for dp_sgd"),
        ({"public_size": None, "noise_multiplier": None, "epsilon": 2.0}, "is for dp_sgd"),
        ({"public_size": 500}, "not the number of records"),
        ({"checkpoint_every": 2, "sampler": AllocationSampler(10, 400.0)}, "not interrupted"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], match: str) -> None:
    options = {"sampler": FixedSizeSampler(40)} | changes
    with pytest.raises(ProgramError, match=match):
        made(**options)


def test_an_allocated_epoch_that_was_killed_is_charged_whole(tmp_path: Path) -> None:
    sampler = AllocationSampler(10, float(COUNT))
    with pytest.raises(KilledError):
        made(sampler, epochs=3, checkpoint=tmp_path, observer=killer(15)).fit()
    report = made(sampler, epochs=3, checkpoint=tmp_path).fit()
    # One epoch was over, one was lost and is charged, one is left.
    assert report.replayed == 1
    assert report.steps == 20
    assert "does not admit" in report.stopped
    assert report.ledger.composition.steps == 3
    assert report.epsilon_upper == epsilon_at(sampler.plan(COUNT, 2.0).composition(3), 1e-4).upper


def audited(sampler: Sampler, scale: float, monkeypatch: pytest.MonkeyPatch) -> Any:
    original = noise_module.GaussianNoise.release
    monkeypatch.setattr(
        noise_module.GaussianNoise,
        "release",
        lambda self, values, std, sensitivity: original(self, values, std * scale, sensitivity),
    )

    # Canaries are further records. Batches of a fixed size are accounted for the worst others, which these are not: their
    # guarantee has room, and noise must nearly be forgotten for an audit to show it.
    def build(train_set: object, observer: Callable[[str, Any], None]) -> DPTrainer:
        multiplier = 4.0 if sampler.knows_count and sampler.name != "truncated_poisson" else 2.0
        return made(sampler, train_set, observer=observer, noise_multiplier=multiplier, epochs=10, seed=4)

    return audit_training(build, data(features=500), guesses=400)


@pytest.mark.parametrize("sampler", [PoissonSampler(40), *SAMPLERS], ids=["poisson", *NAMES])
@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_audits(sampler: Sampler, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    found = audited(sampler, scale, monkeypatch)
    assert found.refuted is (scale < 1)
