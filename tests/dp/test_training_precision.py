"""Mixed precision: what is clipped has the length that is accounted, and no record moves another's gradient by a bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from heliograph.dp.training import DPTrainer, audit_training  # noqa: E402
from heliograph.dp.training import noise as noise_module  # noqa: E402
from heliograph.dp.training.dp_sgd import clipped_sum  # noqa: E402
from heliograph.dp.training.gradients import GradientEngine  # noqa: E402
from heliograph.dp.training.records import Records  # noqa: E402
from heliograph.errors import ProgramError, UnsupportedError  # noqa: E402

LOSS = nn.CrossEntropyLoss(reduction="none")
ROWS = 16


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.out = nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layer(self.words(tokens)).mean(1))


def images() -> Tensor:
    return torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def features() -> Tensor:
    return torch.randn(40, 20, generator=torch.Generator().manual_seed(1))


MODULES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2)), features()),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.Conv2d(8, 4, 3),
            nn.Flatten(),
            nn.Linear(144, 2),
        ),
        images(),
    ),
    "norms": (
        lambda: nn.Sequential(nn.Linear(20, 16), nn.LayerNorm(16), nn.Dropout(0.3), nn.Linear(16, 2)),
        features(),
    ),
    "attention": (Attends, torch.randint(30, (40, 6), generator=torch.Generator().manual_seed(1))),
}
TARGETS = torch.arange(40) % 2


def made(module: nn.Module, train_set: Any, **changes: Any) -> DPTrainer:
    options: dict[str, Any] = {
        "noise_multiplier": 2.0,
        "delta": 1e-3,
        "epochs": 2,
        "batch_size": 10,
        "max_grad_norm": 0.5,
        "public_size": 40,
        "physical_batch_size": ROWS,
        "precision": "bfloat16",
    }
    return DPTrainer(module, LOSS, lambda p: torch.optim.SGD(p, lr=0.1), train_set, **(options | changes))


def engine(module: nn.Module, rows: int = ROWS) -> GradientEngine:
    return GradientEngine(module, LOSS, mixed_rows=rows)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("method", ["dp_sgd", "dpis", "band_mf"])
def test_it_trains(name: str, method: str) -> None:
    build, inputs = MODULES[name]
    options: dict[str, Any] = {"dpis": {"method": "dpis"}, "band_mf": {"method": "band_mf", "bands": 2}}.get(method, {})
    if method == "dpis":
        options |= {"noise_multiplier": None, "epsilon": 8.0}
    report = made(build(), (inputs, TARGETS), **options).fit()
    assert report.steps == 8
    assert report.to_json()["settings"]["precision"] == "bfloat16"
    assert "passes in bfloat16" in report.words()


@pytest.mark.parametrize("name", MODULES)
def test_layers_compute_in_bfloat16_and_sums_in_float32(name: str) -> None:
    build, inputs = MODULES[name]
    torch.manual_seed(0)  # of some weights a unit lies so near zero that few digits turn its sign
    module = build()
    mixed = engine(module)
    assert any(each.dtype == torch.bfloat16 for each in mixed.seen(inputs[:ROWS], TARGETS[:ROWS]))
    for factor in mixed._factors(inputs[:ROWS], TARGETS[:ROWS]).values():
        assert factor.square_norms().dtype == torch.float32
    # Gradients of few digits, but those gradients.
    module.eval()
    true = torch.cat([g.flatten(1) for g in GradientEngine(module, LOSS).per_sample(inputs[:ROWS], TARGETS[:ROWS])], 1)
    found = torch.cat([g.flatten(1) for g in mixed.per_sample(inputs[:ROWS], TARGETS[:ROWS])], 1)
    assert float(((found - true).norm(dim=1) / true.norm(dim=1)).max()) < 0.1
    assert not torch.equal(found, true)


@pytest.mark.parametrize("name", MODULES)
def test_a_record_adds_no_more_than_the_bound(name: str) -> None:
    build, inputs = MODULES[name]
    mixed, records = engine(build().eval()), Records((inputs, TARGETS), torch.device("cpu"))
    for record in range(8):
        sums = clipped_sum(mixed, records, torch.tensor([record]), 1e-2, ROWS)
        length = float(torch.cat([each.flatten() for each in sums]).norm())
        assert length <= 1e-2
        assert length >= 1e-2 * (1 - 3e-5)


@pytest.mark.parametrize("name", MODULES)
def test_the_others_do_not_move_by_a_bit_when_a_record_leaves(name: str) -> None:
    build, inputs = MODULES[name]
    mixed = engine(build().eval())
    whole = mixed.seen(inputs[:ROWS], TARGETS[:ROWS])
    for count in range(1, ROWS):
        fewer = mixed.seen(*mixed._filled(inputs[1 : count + 1], TARGETS[1 : count + 1]))
        for was, now in zip(whole, fewer, strict=True):
            assert now.shape == was.shape
            assert torch.equal(was[1 : count + 1], now[:count])


def test_the_sum_moves_by_the_bound_when_a_record_leaves() -> None:
    """Aligned gradients of 20,000 records, as in full precision; a module in bfloat16 moves by several bounds."""
    torch.manual_seed(0)
    count, dim = 20_000, 1000
    module = nn.Linear(dim, 1, bias=False)
    inputs = (torch.ones(dim) + 0.05 * torch.randn(count, dim)) * 100 / dim**0.5
    mixed = GradientEngine(module, lambda out, y: out[:, 0] * y, mixed_rows=256)

    def total(rows: Tensor) -> Tensor:
        records = Records((rows, torch.ones(len(rows))), torch.device("cpu"))
        return clipped_sum(mixed, records, torch.arange(len(rows)), 1.0, 256)[0]

    assert float((total(inputs) - total(inputs[1:])).norm()) == pytest.approx(1.0, abs=5e-5)


class Placed(nn.Module):
    """Rounds by place, but only in bfloat16: as kernels do that treat the ends of a batch in another way."""

    def __init__(self, beside: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 2)
        self.beside = beside

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        if out.dtype != torch.bfloat16:
            return out
        if self.beside:
            return out + 2**-7 * out[:1].detach()
        last = torch.arange(len(out)) >= len(out) - len(out) % 3
        return torch.where(last[:, None], out * (1 + 2**-7), out)


@pytest.mark.parametrize("beside", [True, False])
def test_rows_that_depend_on_their_place_are_refused(beside: bool) -> None:
    with pytest.raises(UnsupportedError, match="where it stands in a batch"):
        made(Placed(beside), (features(), TARGETS))
    made(Placed(beside), (features(), TARGETS), precision="full")


class Casts(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = nn.Linear(20, 2), dtype

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype):
            return self.layer(x).float()


def test_what_has_no_mixed_precision_is_refused() -> None:
    data = (features(), TARGETS)
    made(Casts(torch.bfloat16), data)
    with pytest.raises(UnsupportedError, match="computes in float16"):
        made(Casts(torch.float16), data)
    with pytest.raises(ProgramError, match="no precision 'float16'"):
        made(nn.Linear(20, 2), data, precision="float16")
    with pytest.raises(UnsupportedError, match="parameters in bfloat16"):
        made(nn.Linear(20, 2).bfloat16(), data)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(20, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.unsqueeze(1))[0][:, 0]

    with pytest.raises(UnsupportedError, match="recurrent layer"):
        made(Recurrent(), data)
    made(Recurrent(), data, precision="full")


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_audits(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    original = noise_module.GaussianNoise.release
    monkeypatch.setattr(
        noise_module.GaussianNoise,
        "release",
        lambda self, values, std, bound: original(self, values, std * scale, bound),
    )
    inputs = torch.randn(400, 500, generator=torch.Generator().manual_seed(1))

    def build(train_set: object, observer: Callable[[str, Any], None]) -> DPTrainer:
        torch.manual_seed(0)
        changes = {"batch_size": 40, "physical_batch_size": 64, "public_size": 1000, "epochs": 8, "delta": 1e-4}
        return made(nn.Linear(500, 2), train_set, observer=observer, seed=4, **changes)

    found = audit_training(build, (inputs, (inputs[:, 0] > 0).long()), guesses=400)
    assert found.refuted is (scale < 1)
