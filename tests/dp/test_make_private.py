"""`make_private`, loops of one's own over `steps`, and the loaders that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler  # noqa: E402

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
    with pytest.raises(ProgramError, match="has been used"):
        trainer.fit()
    # What was paid for is not thrown away before it is said to be over.
    assert len(list(tmp_path.iterdir())) == 2
    trainer.finish()
    assert list(tmp_path.iterdir()) == []


def test_steps_noise_and_event_are_known_before_training() -> None:
    trainer, _, optimizer = made(noise_multiplier=None, epsilon=2.0, epochs=1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=trainer.total_steps)
    noise, event = trainer.noise_multiplier, trainer.event
    for _ in trainer.steps():
        assert trainer.noise_multiplier == noise
        optimizer.step()
        scheduler.step()
    assert trainer.report is not None
    assert trainer.report.noise_multiplier == noise
    assert trainer.report.ledger.composition == event
    unknown, _, _ = made(noise_multiplier=None, epsilon=2.0, public_size=None)
    with pytest.raises(ProgramError, match="releases first"):
        _ = unknown.total_steps
    assert made(noise_multiplier=None, epsilon=2.0, method="dpis")[0].event is None


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


@pytest.mark.parametrize(
    ("loader", "match"),
    [
        (lambda: DataLoader(dataset(), batch_size=20, sampler=WeightedRandomSampler([1.0] * 200, 200)), "Weighted"),
        (lambda: DataLoader(dataset(), batch_size=20, sampler=SubsetRandomSampler(range(40))), "SubsetRandom"),
        (lambda: DataLoader(dataset(), batch_sampler=[[0, 1], [2, 3]]), "batch sampler"),
        (lambda: DataLoader(dataset(), batch_size=20, shuffle=True, generator=torch.Generator()), "generator"),
        (dataset, "not a DataLoader"),
    ],
)
def test_loaders_whose_meaning_would_be_lost_are_refused(loader: Any, match: str) -> None:
    with pytest.raises(ProgramError, match=match) as caught:
        made(loader())
    assert match != "SubsetRandom" or "Subset(dataset, indices)" in (caught.value.hint or "")


def test_an_optimizer_that_cannot_train_the_module_is_refused() -> None:
    module, _ = parts()
    for optimizer, match in ((parts()[1], "none of the module's"), (torch.optim.LBFGS(module.parameters()), "LBFGS")):
        with pytest.raises(ProgramError, match=match):
            make_private(module, optimizer, DataLoader(dataset(), batch_size=20), loss=LOSS, **OPTIONS)
        with pytest.raises(ProgramError, match=match):
            DPTrainer(module, LOSS, optimizer, dataset(), batch_size=20, **OPTIONS)


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_removed_before_the_step_are_noticed_at_the_first(to_none: bool) -> None:
    trainer, module, optimizer = made()
    before = module.weight.detach().clone()

    def looped(trainer: DPTrainer, optimizer: torch.optim.Optimizer) -> None:
        for _ in trainer.steps():
            optimizer.zero_grad(set_to_none=to_none)
            optimizer.step()

    with pytest.raises(ProgramError, match="no gradients") as caught:
        looped(trainer, optimizer)
    assert "zero_grad" in (caught.value.hint or "")
    assert torch.equal(before, module.weight)
    # After the step it does no harm, and a learning rate of zero is no fault.
    trainer, module, optimizer = made()
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 3, 1.0))
    for _ in trainer.steps():
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        warm.step()
    assert not torch.equal(before, module.weight)


@pytest.mark.parametrize("change", ["nan", "freeze", "unfreeze"])
def test_steps_that_can_train_nothing_are_not_charged(change: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    module[0].requires_grad_(change != "unfreeze")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    loader = DataLoader(dataset(), batch_size=20)
    options = OPTIONS | {"checkpoint": tmp_path, "checkpoint_every": 1}
    trainer = make_private(module, optimizer, loader, loss=LOSS, **options)

    def looped() -> None:
        for step in trainer.steps():
            optimizer.step()
            if step == 3 and change == "nan":
                module[0].weight.data[0, 0] = float("nan")
            elif step == 3:
                module[0].requires_grad_(change == "unfreeze")

    with pytest.raises(ProgramError, match="not finite any more" if change == "nan" else "other parameters"):
        looped()
    assert trainer.report is not None
    assert trainer.report.ledger.composition.steps == 3
    assert "Stopped by ProgramError" in trainer.report.words()
    # The last checkpoint is from before.
    module[0].requires_grad_(change != "unfreeze")
    again = make_private(module, optimizer, loader, loss=LOSS, **options)
    assert again.fit().replayed == 1
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("inside", ["the loop", "the optimizer"])
def test_a_run_ended_by_an_exception_goes_on(error: type[BaseException], inside: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": tmp_path, "checkpoint_every": 1}

    def run() -> None:
        trainer, _, optimizer = made(**options)

        def raising(*_: object) -> None:
            if trainer._run is not None and trainer._run.taken == 12:
                raise error

        if inside == "the optimizer":
            optimizer.register_step_pre_hook(raising)
            trainer.fit()
        for _ in trainer.steps():
            optimizer.step()
            raising()

    with pytest.raises(error):
        run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["charges.jsonl", "checkpoint.npz"]
    again, _, _ = made(**options)
    report = again.fit()
    assert report.replayed == 1
    assert report.ledger.composition.steps == 30
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_ends_while_the_model_is_written_is_not_lost(tmp_path: Path) -> None:
    def full(_: object) -> None:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        made(checkpoint=tmp_path)[0].fit(full)
    seen: list[int] = []
    made(checkpoint=tmp_path)[0].fit(lambda report: seen.append(report.steps))
    assert seen == [30]


def test_a_frozen_part_in_evaluation_mode_stays_in_it() -> None:
    module = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5), nn.Dropout(0.1), nn.Linear(5, 2))
    module[1].eval()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    trainer = make_private(module, optimizer, DataLoader(dataset(), batch_size=20), loss=LOSS, **OPTIONS)
    for _ in trainer.steps():
        assert [layer.training for layer in module] == [True, False, True, True]
        optimizer.step()
        module.eval()
