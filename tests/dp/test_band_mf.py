"""Banded factorisations: sensitivity by enumeration, error by matrices, noise in a stream; and training with them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heliograph.dp.accounting import epsilon_at
from heliograph.dp.accounting.ledger import verify
from heliograph.dp.banded import Banded, optimal_bands
from heliograph.dp.mechanisms import SampledGaussian
from heliograph.errors import ProgramError

torch = pytest.importorskip("torch")

from helpers.interrupted import KilledError, killer  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from heliograph.dp.training import DPTrainer, audit_training  # noqa: E402
from heliograph.dp.training import noise as noise_module  # noqa: E402
from heliograph.dp.training.band_mf import BandedSteps  # noqa: E402
from heliograph.dp.training.noise import GaussianNoise  # noqa: E402


def matrix(factor: Banded) -> np.ndarray:
    found = np.zeros((factor.steps, factor.steps))
    for j, c in enumerate(factor.coefficients):
        found += np.diag(np.full(factor.steps - j, c), -j)
    return found


@pytest.mark.parametrize(("bands", "steps"), [(1, 7), (2, 9), (3, 10), (4, 8), (10, 10)])
def test_sensitivity_is_that_of_the_worst_pattern(bands: int, steps: int) -> None:
    factor = optimal_bands(bands, steps)
    c = matrix(factor)
    worst = 0.0
    for count in range(1, factor.participations() + 1):
        for pattern in combinations(range(steps), count):
            if all(b - a >= bands for a, b in pairwise(pattern)):
                moved = float(np.linalg.norm(c[:, list(pattern)].sum(axis=1)))
                assert moved == pytest.approx(factor.moved(list(pattern)), rel=1e-12)
                # Each participation is a release of its own: their columns do not overlap.
                assert moved <= math.sqrt(count) * factor.sensitivity() * (1 + 1e-12)
                worst = max(worst, moved / math.sqrt(count))
    assert worst == pytest.approx(factor.sensitivity(), rel=1e-12)
    assert factor.sensitivity() <= 1
    # Closer than that they do.
    if bands > 1:
        assert factor.moved([0, 1]) > math.sqrt(2) * 1.05


@pytest.mark.parametrize(("bands", "steps"), [(1, 20), (3, 20), (8, 50), (20, 20)])
def test_the_error_is_that_of_the_matrices(bands: int, steps: int) -> None:
    factor = optimal_bands(bands, steps)
    prefix = np.tril(np.ones((steps, steps)))
    true = np.linalg.norm(prefix @ np.linalg.inv(matrix(factor))) / math.sqrt(steps)
    assert factor.error() == pytest.approx(true, rel=1e-9)


def test_the_coefficients_are_the_best() -> None:
    found = optimal_bands(2, 12)
    angles = np.linspace(0.0, 1.4, 2000)
    errors = [Banded((math.cos(a), math.sin(a)), 12).error() for a in angles]
    assert found.error() == pytest.approx(min(errors), rel=1e-5)
    # More bands are better, and better than the truncated square root that they start at.
    errors = [optimal_bands(bands, 64).error() for bands in (1, 2, 4, 8, 16, 32)]
    assert errors == sorted(errors, reverse=True)
    root = np.cumprod(np.concatenate(([1.0], (2 * np.arange(1, 8) - 1) / (2 * np.arange(1, 8)))))
    assert optimal_bands(8, 64).error() < Banded(tuple(root / np.linalg.norm(root)), 64).error()
    with pytest.raises(ProgramError, match="bands for"):
        optimal_bands(5, 4)


def data(count: int = 400, features: int = 6) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, features, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, 0] > 0).long()


def made(train_set: Any = None, **changes: Any) -> DPTrainer:
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "method": "band_mf",
        "bands": 4,
        "noise_multiplier": 2.0,
        "delta": 1e-4,
        "epochs": 2,
        "batch_size": 40,
        "max_grad_norm": 1.0,
        "public_size": 400,
    } | changes
    known = data() if train_set is None else train_set
    return DPTrainer(
        nn.Linear(known[0].shape[1], 2),
        nn.CrossEntropyLoss(reduction="none"),
        lambda p: torch.optim.SGD(p, lr=0.2),
        known,
        **options,
    )


def test_a_run_is_charged_by_cycles(tmp_path: Path) -> None:
    report = made().fit()
    # 20 steps are 5 cycles of 4 bands; a record's turn has probability 4 b / N.
    assert report.ledger.composition == SampledGaussian(0.4, 2.0) * 5
    assert report.epsilon_upper == epsilon_at(SampledGaussian(0.4, 2.0) * 5, 1e-4).upper
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report.to_json()))
    assert verify(path).holds
    found = made(noise_multiplier=None, epsilon=2.0).fit()
    assert 1.99 < found.epsilon_upper <= 2.0


def test_it_learns() -> None:
    public = data(300)
    report = made(epochs=10, public_set=public, noise_multiplier=4.0, seed=1).fit()
    assert report.accuracy is not None
    assert report.accuracy > 0.8


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"bands": None}, "bands belong"),
        ({"method": "dp_sgd"}, "bands belong"),
        ({"bands": 0}, "bands"),
        ({"bands": 11}, "times 11 bands"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ProgramError, match=match):
        made(**changes).fit()


class Books:
    """Takes every charge: the law of the noise is looked at, not what it costs."""

    def charge(self, release: Any) -> None:
        return None


def test_noise_is_made_in_a_stream_with_the_law_of_the_inverse(monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.dp.training import dp_sgd
    from heliograph.dp.training.releases import Releaser

    factor, trials = optimal_bands(3, 6), 4000
    monkeypatch.setattr(dp_sgd, "clipped_sum", lambda *_: [torch.arange(trials, dtype=torch.float64) * 0 + 5.0])
    releaser = Releaser(Books(), GaussianNoise(seed=3))  # type: ignore[arg-type]
    steps = BandedSteps(
        None,  # type: ignore[arg-type]
        [0],  # type: ignore[arg-type]
        releaser,
        factor=factor,
        mechanism=SampledGaussian(0.5, 1.5),
        max_grad_norm=1.0,
        batch_size=1.0,
        physical=8,
    )
    drawn = np.stack([steps.step()[0].numpy() for _ in range(6)]) - 5.0
    inverse = np.linalg.inv(matrix(factor))
    true = 1.5**2 * inverse @ inverse.T
    # 4,000 draws: entries of the covariance err by some per cent.
    assert float(np.abs(np.cov(drawn) - true).max()) < 0.12 * true.max()
    assert float(np.abs(drawn.mean(axis=1)).max()) < 0.15
    assert np.cov(drawn)[0, 1] < -0.5


def audited(monkeypatch: pytest.MonkeyPatch, scale: float) -> Any:
    original = noise_module.GaussianNoise.release
    monkeypatch.setattr(
        noise_module.GaussianNoise,
        "release",
        lambda self, values, std, sensitivity: original(self, values, std * scale, sensitivity),
    )

    def build(train_set: object, observer: Callable[[str, Any], None]) -> DPTrainer:
        return made(train_set, observer=observer, epochs=10, public_size=1000, seed=4)

    return audit_training(build, data(features=500), guesses=400)


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_audits(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    found = audited(monkeypatch, scale)
    assert found.refuted is (scale < 1)


def test_a_killed_run_begins_a_cycle_anew(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        made(checkpoint=tmp_path, observer=killer(14)).fit()
    report = made(checkpoint=tmp_path).fit()
    # Ten steps were kept: three cycles charged, and one that was lost. One is left: four steps.
    assert report.replayed == 1
    assert report.steps == 14
    assert report.ledger.composition == SampledGaussian(0.4, 2.0) * 5
    assert "does not admit" in report.stopped
