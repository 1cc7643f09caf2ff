"""`make_private`, loops of one's own over `steps`, and the loaders that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler  # noqa: E402

from heliograph.dp.training import DPTrainer, make_private  # noqa: E402
from heliograph.errors import ProgramError  # noqa: E402

LOSS = nn.CrossEntropyLoss(reduction="none")
OPTIONS: dict[str, Any] = {
    "noise_multiplier": 2.0,
    "delta": 1e-4,
    "epochs": 3,
    "max_grad_norm": 1.0,
    "public_size": 200,
    "seed": 7,
}


def dataset() -> TensorDataset:
    inputs = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Linear(5, 2)
    return module, torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)


def made(loader: DataLoader | None = None, **changes: Any) -> tuple[DPTrainer, nn.Module, torch.optim.Optimizer]:
    module, optimizer = parts()
    known = DataLoader(dataset(), batch_size=20, shuffle=True) if loader is None else loader
    return make_private(module, optimizer, known, loss=LOSS, **(OPTIONS | changes)), module, optimizer


def test_a_loop_of_ones_own_is_the_trainers() -> None:
    trainer, module, optimizer = made()
    seen = []
    for step in trainer.steps():
        seen.append(step)
        assert module.training
        optimizer.step()
    assert seen == list(range(1, 31))
    other, same = parts()
    report = DPTrainer(other, LOSS, same, dataset(), batch_size=20, **OPTIONS).fit()
    assert torch.equal(module.weight, other.weight)
    assert trainer.report is not None
    assert trainer.report.to_json()["releases"] == report.to_json()["releases"]
    assert not module.training


def test_schedules_and_averages_are_post_processing() -> None:
    trainer, module, optimizer = made()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    average = torch.optim.swa_utils.AveragedModel(module)
    for _ in trainer.steps():
        optimizer.step()
        scheduler.step()
        average.update_parameters(module)
        # A look at public data in evaluation mode does not carry over.
        module.eval()
    assert optimizer.param_groups[0]["lr"] < 1e-9
    assert trainer.report is not None
    assert trainer.report.steps == 30


def test_a_loop_that_is_left_has_the_report_of_the_plan(tmp_path: Path) -> None:
    trainer, _, optimizer = made(checkpoint=tmp_path, seed=None)
    for step in trainer.steps():
        optimizer.step()
        if step == 7:
            break
    assert trainer.report is not None
    assert "Stopped by the training loop" in trainer.report.words()
    assert trainer.report.steps == 7
    whole = made(seed=None)[0].fit()
    assert trainer.report.epsilon_upper == whole.epsilon_upper
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProgramError, match="has been used"):
        trainer.fit()


class Adapted(nn.Module):
    """A frozen linear map with a low-rank adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(5, 16)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(5, 2, bias=False), nn.Linear(2, 16, bias=False)
        nn.init.zeros_(self.up.weight)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.base(x) + self.up(self.down(x))))


def test_low_rank_adapters_are_trained_and_what_is_frozen_is_not() -> None:
    torch.manual_seed(0)
    module = Adapted()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    loader = DataLoader(dataset(), batch_size=20)
    make_private(module, optimizer, loader, loss=LOSS, **OPTIONS).fit()
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]) is name.startswith("base.")


def test_virtual_batches_are_the_same_steps() -> None:
    whole, parted = made(physical_batch_size=256), made(physical_batch_size=3)
    whole[0].fit()
    parted[0].fit()
    assert torch.allclose(whole[1].weight, parted[1].weight, atol=1e-5)


def collate(items: list[Any]) -> Any:
    return torch.utils.data.default_collate(items)


@pytest.mark.parametrize(
    ("loader", "match"),
    [
        (lambda: DataLoader(dataset(), batch_size=20, sampler=WeightedRandomSampler([1.0] * 200, 200)), "Weighted"),
        (lambda: DataLoader(dataset(), batch_sampler=[[0, 1], [2, 3]]), "batch sampler"),
        (lambda: DataLoader(dataset(), batch_size=20, shuffle=True, generator=torch.Generator()), "generator"),
        (lambda: DataLoader(dataset(), batch_size=20, collate_fn=collate), "collate"),
        (dataset, "not a DataLoader"),
    ],
)
def test_loaders_whose_meaning_would_be_lost_are_refused(loader: Any, match: str) -> None:
    with pytest.raises(ProgramError, match=match):
        made(loader())


def test_an_optimizer_of_another_module_is_refused() -> None:
    module, _ = parts()
    with pytest.raises(ProgramError, match="none of the module's parameters"):
        make_private(module, parts()[1], DataLoader(dataset(), batch_size=20), loss=LOSS, **OPTIONS)
