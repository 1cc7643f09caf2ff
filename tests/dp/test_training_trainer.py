"""The trainer: budgets both ways, what reports say, where N comes from, checkpoints, refusals."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.interrupted import KilledError, killer
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from heliograph.dp.accounting import epsilon_at
from heliograph.dp.accounting.filters import RenyiFilter
from heliograph.dp.accounting.ledger import Release, verify
from heliograph.dp.mechanisms import Gaussian, SampledGaussian
from heliograph.dp.samplers import epoch_steps
from heliograph.dp.training import DPTrainer, ImportanceOptions, PrivacyReport
from heliograph.dp.training.checkpoint import Checkpoint, load_model, save_model
from heliograph.errors import CompositionWarning, HeliographError, PlanningError, ProgramError

LOSS = nn.CrossEntropyLoss(reduction="none")
PLANNED = ImportanceOptions(planned_norm_share=0.6)
ADAPTING = ImportanceOptions(adapt_clipping=True)


def data(records: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(records, 4, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


def trainer(train_set: Any = None, **changes: Any) -> DPTrainer:
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "method": "dp_sgd",
        "epsilon": 2.0,
        "delta": 1e-4,
        "epochs": 3,
        "batch_size": 40,
        "max_grad_norm": 1.0,
        "public_size": 400,
        "seed": 1,
    }
    options |= changes
    module = options.pop("module", None) or nn.Linear(4, 2)
    optimizer = options.pop("optimizer", sgd)
    return DPTrainer(
        module, options.pop("loss", LOSS), optimizer, data() if train_set is None else train_set, **options
    )


CASES = {
    "dp_sgd": {},
    "dp_sgd, N released": {"public_size": None},
    "dpis": {"method": "dpis"},
    "dpis, N released, clipping adapts": {"method": "dpis", "public_size": None, "dpis": ADAPTING},
    "dpis, planned": {"method": "dpis", "dpis": PLANNED},
    "dpis, planned by epoch": {"method": "dpis", "dpis": ImportanceOptions(planned_norm_share=(0.9, 0.5, 0.3))},
    "dpis, planned, N released": {"method": "dpis", "dpis": PLANNED, "public_size": None},
}


@pytest.mark.front
@pytest.mark.parametrize("case", CASES)
def test_a_run_learns_and_its_report_stands(case: str, tmp_path: Path) -> None:
    run = trainer(public_set=data(200, seed=9), **CASES[case])
    report = run.fit()
    assert report.accuracy is not None
    assert report.accuracy > 0.8
    assert report.epsilon_upper <= 2.0
    assert report.steps == report.steps_planned
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report.to_json(), allow_nan=False))
    found = verify(path)
    assert found.holds, found.problems
    # A smaller claim, or one release more, does not stand.
    claimed = json.loads(path.read_text())
    path.write_text(json.dumps(claimed | {"epsilon_upper": 0.7 * report.epsilon_upper}))
    assert not verify(path).holds
    more = json.loads(json.dumps(claimed))
    more["releases"][-1]["count"] += 40
    path.write_text(json.dumps(more))
    assert not verify(path).holds
    assert ("N~" in report.ledger.releases[0].name) == (report.size_stage is not None)
    assert "add" in report.words()
    assert "hyperparameters" in report.words()


def test_epsilon_to_noise_and_back() -> None:
    forward = trainer(epsilon=2.0).fit()
    assert forward.epsilon_lower is not None
    assert 1.998 < forward.epsilon_lower <= forward.epsilon_upper <= 2.0
    back = trainer(epsilon=None, noise_multiplier=forward.noise_multiplier).fit()
    assert back.epsilon_lower is not None
    assert back.epsilon_lower <= forward.epsilon_upper
    assert forward.epsilon_lower <= back.epsilon_upper
    composed = epsilon_at(SampledGaussian(0.1, forward.noise_multiplier) * 30, 1e-4)
    assert (composed.lower, composed.upper) == (back.epsilon_lower, back.epsilon_upper)


def test_dpis_with_given_noise_is_reported_at_the_worst_case() -> None:
    report = trainer(method="dpis", epsilon=None, noise_multiplier=1.5).fit()
    worst = SampledGaussian(0.1, 1.5) * 30 + Gaussian(8.0) * 3
    bound = epsilon_at(worst, 1e-4, method="rdp").upper
    assert bound is not None
    assert report.epsilon_upper == pytest.approx(bound, rel=1e-4)
    assert report.noise_multiplier == 1.5
    assert report.steps == 30


def test_trap_an_adaptive_run_is_reported_at_its_filter_not_at_what_was_realised() -> None:
    report = trainer(method="dpis", epsilon=2.0).fit()
    realised = epsilon_at(report.ledger.composition, 1e-4).upper
    assert realised is not None
    assert report.epsilon_lower is None
    assert isinstance(report.budget, RenyiFilter)
    assert realised < report.epsilon_upper == report.budget.epsilon == 2.0
    assert "filter" in report.words()


def test_planned_dpis_has_the_bracket_and_mechanisms_that_no_data_change() -> None:
    reports = [trainer(data(400, seed), method="dpis", dpis=PLANNED).fit() for seed in (0, 5)]
    for report in reports:
        assert report.epsilon_lower is not None
        assert report.epsilon_upper - report.epsilon_lower < 1e-3
    assert reports[0].ledger.composition == reports[1].ledger.composition
    ((step, count),) = reports[0].ledger.composition.items
    assert isinstance(step, SampledGaussian)
    assert step.p == pytest.approx(40 / (0.6 * 400))
    assert count == 30


@pytest.mark.parametrize("case", ["dp_sgd", "dpis, planned"])
def test_trap_nothing_printed_follows_the_length_of_the_data(case: str) -> None:
    texts = []
    for records in (380, 400, 455):
        made = trainer(data(records), **CASES[case]).fit().to_json()
        del made["seconds"], made["released_values"], made["bracket"]["seconds"]
        texts.append(json.dumps(made))
    assert texts[0] == texts[1] == texts[2]
    # The published T = |D| / b would tell these apart.
    assert len({epoch_steps(records, 40) for records in (380, 400, 455)}) == 3


def test_trap_steps_and_probability_follow_the_released_size() -> None:
    report = trainer(public_size=None, size_noise=60.0, epochs=2).fit()
    assert report.size != 400
    step = report.ledger.releases[1]
    assert step.sampling_probability == pytest.approx(40 / report.size)
    assert report.steps_planned == 2 * max(1, int(report.size // 40)) == step.count
    assert report.epsilon_lower is None
    assert report.epsilon_upper == 2.0
    made = report.to_json()
    assert made["size"] == {"value": report.size, "source": "released"}
    assert "released with noise" in report.words()


def test_physical_batches_do_not_change_the_result() -> None:
    for method in ("dp_sgd", "dpis"):
        weights = []
        for physical in (7, 1000):
            run = trainer(method=method, physical_batch_size=physical, epochs=1)
            run.fit()
            weights.append(torch.cat([p.detach().flatten() for p in run.module.parameters()]))
        assert torch.allclose(weights[0], weights[1], atol=1e-5), method


@pytest.mark.parametrize("source", ["dataset", "arrays", "items"])
def test_data_sets(source: str) -> None:
    inputs, targets = data(200)
    sets: dict[str, Any] = {
        "dataset": TensorDataset(inputs, targets),
        "arrays": (inputs.numpy(), targets.numpy()),
        "items": [(x, int(y)) for x, y in zip(inputs, targets, strict=True)],
    }
    run = trainer(sets[source], public_size=200, epochs=1)
    same = trainer((inputs, targets), public_size=200, epochs=1)
    run.fit()
    same.fit()
    assert torch.equal(run.module.weight, same.module.weight)  # type: ignore[arg-type]


def test_seeds_and_generators_are_reported() -> None:
    seeded = trainer(epochs=1).fit()
    assert "NO GUARANTEE" in seeded.words()
    assert seeded.to_json()["seed_known"]
    secure = trainer(epochs=1, seed=None, secure_noise=True).fit()
    assert secure.to_json()["secure_noise"]
    assert not secure.to_json()["seed_known"]
    assert "cryptographically secure" in secure.words()
    plain = trainer(epochs=1, seed=None)
    other = trainer(epochs=1, seed=None)
    plain.fit()
    other.fit()
    assert not torch.equal(plain.module.weight, other.module.weight)  # type: ignore[arg-type]


def test_trap_the_ledger_is_charged_before_noise_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.dp.training import noise as noise_module

    def broken(self: Any, *args: Any) -> Any:
        raise KilledError

    run = trainer(checkpoint=tmp_path)
    monkeypatch.setattr(noise_module.GaussianNoise, "release", broken)
    with pytest.raises(KilledError):
        run.fit()
    assert run._run is not None
    assert run._run.books.ledger.composition.steps == 1
    assert run._run.books.budget.committed == pytest.approx(1 / 30)  # type: ignore[union-attr]
    assert len((tmp_path / "charges.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "case", ["dp_sgd", "dpis, N released, clipping adapts", "dpis, planned, N released", "dpis, planned by epoch"]
)
@pytest.mark.parametrize("after", [2, 17, 23])
def test_a_killed_run_goes_on_and_charges_replayed_steps_again(case: str, after: int, tmp_path: Path) -> None:
    first = trainer(checkpoint=tmp_path, observer=killer(after), checkpoint_every=4, **CASES[case])
    with pytest.raises(KilledError):
        first.fit()
    charged = len((tmp_path / "charges.jsonl").read_text().splitlines())
    assert charged == after
    second = trainer(checkpoint=tmp_path, checkpoint_every=4, **CASES[case])
    report = second.fit()
    released = report.ledger.composition.steps
    assert report.replayed > 0
    assert report.epsilon_upper <= 2.0 + 1e-9
    if report.accounting == "fixed":
        # The plan admits no more: what was replayed is missing at the end.
        assert released == report.steps_planned + (report.size_stage is not None)
        assert report.steps == report.steps_planned - report.replayed
        assert "left out" in report.words()
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report.to_json()))
    assert verify(path).holds
    assert not (tmp_path / "checkpoint.npz").exists()
    assert not (tmp_path / "charges.jsonl").exists()


def test_without_lost_charges_a_seeded_run_goes_on_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    for method in ("dp_sgd", "dpis"):
        whole = trainer(method=method)
        whole.fit()
        folder = tmp_path / method

        def stop(self: Any, original: Any = None) -> None:
            raise KilledError

        run = trainer(method=method, checkpoint=folder)
        measure = run._measure
        calls: list[int] = []

        def measured(calls: list[int] = calls, measure: Any = measure) -> Any:
            calls.append(1)
            if len(calls) == 3:
                raise KilledError
            return measure()

        run._measure = measured  # type: ignore[method-assign]
        with pytest.raises(KilledError):
            run.fit()
        # The third epoch's charges are in the journal, beyond the checkpoint: take them away, as if killed at its start.
        lines = (folder / "charges.jsonl").read_text().splitlines(keepends=True)
        (folder / "charges.jsonl").write_text("".join(lines[: 20 if method == "dp_sgd" else 22]))
        again = trainer(method=method, checkpoint=folder)
        report = again.fit()
        assert report.replayed == 0
        for left, right in zip(whole.module.parameters(), again.module.parameters(), strict=True):
            assert torch.equal(left, right)


def test_trap_secrets_are_in_no_file_but_the_checkpoint(tmp_path: Path) -> None:
    run = trainer(method="dpis", checkpoint=tmp_path, observer=killer(15), checkpoint_every=2)
    with pytest.raises(KilledError):
        run.fit()
    for name in ("checkpoint.npz", "charges.jsonl"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    with np.load(tmp_path / "checkpoint.npz", allow_pickle=False) as file:
        sizes = {file[name].size for name in file.files}
    assert 400 in sizes  # the kept norms, one for each record
    save_model(run.module, tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as file:
        assert set(file.files) == {"weight", "bias"}
    fresh = nn.Linear(4, 2)
    load_model(fresh, tmp_path / "model.npz")
    assert torch.equal(fresh.weight, run.module.weight)  # type: ignore[arg-type]
    assert "kept" not in (tmp_path / "charges.jsonl").read_text()


class Averages:
    """An average of parameters, as loops keep them."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.mean = module, torch.zeros(8)

    def update(self) -> None:
        self.mean = 0.9 * self.mean + 0.1 * self.module.weight.detach().flatten()  # type: ignore[operator, union-attr]

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.mean = state["mean"]


def test_what_the_loop_keeps_goes_on_with_a_killed_run(tmp_path: Path) -> None:
    def looped(folder: Path, killed_after: int | None) -> tuple[list[float], Averages, DPTrainer]:
        run = trainer(checkpoint=folder, checkpoint_every=5, batch_size=40, optimizer=sgd)
        milestones = torch.optim.lr_scheduler.MultiStepLR(run.optimizer, [3, 12], 0.5)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(run.optimizer, 30)
        averages, rates = Averages(run.module), []
        for step in run.steps(keep=[milestones, cosine, averages]):
            rates.append(run.optimizer.param_groups[0]["lr"])
            run.optimizer.step()
            milestones.step()
            cosine.step()
            averages.update()
            if step == killed_after:
                # The body of step 15 is over when its checkpoint is written, and step 16 makes no release.
                run._run.steps.step = broken  # type: ignore[method-assign, union-attr]
        return rates, averages, run

    def broken() -> Any:
        raise KilledError

    whole, true, _ = looped(tmp_path / "whole", None)
    with pytest.raises(KilledError):
        looped(tmp_path / "killed", 15)
    rest, found, run = looped(tmp_path / "killed", None)
    assert rest == whole[15:]
    assert torch.equal(found.mean, true.mean)
    assert run.report is not None
    assert run.report.replayed == 0

    with pytest.raises(KilledError):
        looped(tmp_path / "other", 15)
    with pytest.raises(ProgramError, match="3 objects"):
        trainer(checkpoint=tmp_path / "other", checkpoint_every=5).fit()


def test_a_second_run_on_the_same_data_is_told_that_both_are_releases(tmp_path: Path) -> None:
    inputs, targets = data()
    trainer((inputs, targets)).fit()
    with pytest.warns(CompositionWarning, match="sum of their epsilons"):
        trainer(TensorDataset(inputs, targets)).fit()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompositionWarning)
        trainer((inputs.clone(), targets)).fit()
        # A run that goes on is the same release, and one whose report includes the others is told of them.
        third = data()
        one = trainer(third).fit()
        two = trainer(third, earlier=[one]).fit()
        assert two.together == (pytest.approx(one.epsilon_upper + two.epsilon_upper), pytest.approx(2 * two.delta))
        assert two.together[0] > two.epsilon_upper
        assert "With 1 earlier runs" in two.words()
        assert two.to_json()["together"]["delta"] == pytest.approx(2 * two.delta)
        assert "together" not in one.to_json()
        with pytest.raises(CompositionWarning):
            trainer(third, earlier=[one]).fit()
        new = data()
        with pytest.raises(KilledError):
            trainer(new, checkpoint=tmp_path, observer=killer(12)).fit()
        trainer(new, checkpoint=tmp_path).fit()


def test_an_unseeded_checkpoint_holds_no_generator_state(tmp_path: Path) -> None:
    run = trainer(seed=None, checkpoint=tmp_path, observer=killer(15))
    with pytest.raises(KilledError):
        run.fit()
    assert run._checkpoint is not None
    found = run._checkpoint.load()
    assert found is not None
    assert found[0]["noise"] is None


def test_a_size_that_may_be_known_is_not_released_again(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        trainer(public_size=None, checkpoint=tmp_path, observer=killer(1)).fit()
    with pytest.raises(ProgramError, match="number of records"):
        trainer(public_size=None, checkpoint=tmp_path).fit()


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    run = trainer(checkpoint=tmp_path, observer=killer(12))
    with pytest.raises(KilledError):
        run.fit()
    with pytest.raises(ProgramError, match="other parameters"):
        trainer(checkpoint=tmp_path, batch_size=50).fit()
    journal = (tmp_path / "charges.jsonl").read_text()
    # A line that was cut off was never followed by noise; the rest counts.
    (tmp_path / "charges.jsonl").write_text(journal + '{"name": "grad')
    assert trainer(checkpoint=tmp_path).fit().replayed == 2
    run = trainer(checkpoint=tmp_path, observer=killer(12))
    with pytest.raises(KilledError):
        run.fit()
    (tmp_path / "checkpoint.npz").write_bytes(b"PK nonsense")
    with pytest.raises(HeliographError, match="checkpoint"):
        trainer(checkpoint=tmp_path).fit()


@pytest.mark.parametrize("damage", ["journal gone", "line gone", "line changed", "checkpoint cut"])
def test_trap_charges_removed_from_the_journal_are_missed(damage: str, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        trainer(checkpoint=tmp_path, observer=killer(12)).fit()
    journal, state = tmp_path / "charges.jsonl", tmp_path / "checkpoint.npz"
    lines = journal.read_text().splitlines(keepends=True)
    if damage == "journal gone":
        journal.unlink()
    elif damage == "line gone":
        journal.write_text("".join(lines[:1] + lines[2:]))
    elif damage == "line changed":
        journal.write_text("".join(lines).replace('"sensitivity": 1.0', '"sensitivity": 0.5', 1))
    else:
        state.write_bytes(state.read_bytes()[:200])
    with pytest.raises(HeliographError, match="cannot be read" if damage == "checkpoint cut" else "damaged"):
        trainer(checkpoint=tmp_path).fit()


def test_an_exhausted_filter_stops_training_and_keeps_the_module() -> None:
    run = trainer(method="dpis", epsilon=None, noise_multiplier=1.5)
    started = run._start(())
    assert isinstance(started.books.budget, RenyiFilter)
    started.books.budget.spent = 0.5 * started.books.budget.budget
    run._start = lambda keep: started  # type: ignore[method-assign]
    report = run.fit()
    assert 0 < report.steps < report.steps_planned
    assert "Stopped" in report.words()
    assert report.epsilon_upper == started.books.budget.epsilon
    assert started.books.budget.spent <= started.books.budget.budget


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "delta": ({"delta": 0.01}, "above 1/N"),
    "both": ({"noise_multiplier": 1.0}, "either epsilon or noise"),
    "neither": ({"epsilon": None}, "either epsilon or noise"),
    "noise without N": ({"epsilon": None, "noise_multiplier": 1.0, "public_size": None}, "not public"),
    "seed and secure": ({"secure_noise": True}, "exclude"),
    "batch too large": ({"batch_size": 401}, "batch size"),
    "saturation": ({"method": "dpis", "batch_size": 400}, "batch size"),
    "planned saturation": ({"method": "dpis", "dpis": ImportanceOptions(planned_norm_share=0.1)}, "planned_norm_share"),
    "clip range": (
        {"method": "dpis", "dpis": ImportanceOptions(adapt_clipping=True, clip_range=(2.0, 3.0))},
        "outside of clip_range",
    ),
    "method": ({"method": "sgd"}, "no method"),
    "epochs": ({"epochs": 0}, "epochs"),
    "batch norm": ({"module": nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))}, "GroupNorm"),
    "mean loss": ({"loss": nn.CrossEntropyLoss()}, "reduction"),
    "mixing loss": ({"loss": lambda o, y: LOSS(o - o.mean(0), y)}, "another record"),
    "loader": ({"train_set": DataLoader(TensorDataset(*data()), batch_size=40, shuffle=True)}, "without replacement"),
    "stream": ({"train_set": Stream()}, "index"),
    "nothing": ({"train_set": 3}, "not a data set"),
    "lengths": ({"train_set": (torch.zeros(3, 4), torch.zeros(2))}, "3 inputs"),
    "size costs all": ({"public_size": None, "size_noise": 0.5}, "size_noise"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_why_and_what_to_do(case: str) -> None:
    changes, text = REFUSED[case]
    with pytest.raises((ProgramError, PlanningError), match=text) as caught:
        trainer(**changes).fit()
    assert caught.value.hint or caught.value.why or case in ("epochs", "lengths", "method", "clip range")


def test_a_trainer_trains_once() -> None:
    run = trainer(epochs=1)
    assert isinstance(run.fit(), PrivacyReport)
    with pytest.raises(ProgramError, match="add up"):
        run.fit()


def test_an_optimizer_may_be_given_made() -> None:
    module = nn.Linear(4, 2)
    run = trainer(module=module, optimizer=torch.optim.Adam(module.parameters(), lr=0.05), epochs=2)
    before = module.weight.detach().clone()
    run.fit()
    assert not torch.equal(before, module.weight)


def test_the_package_does_not_import_torch() -> None:
    code = "import heliograph, heliograph.dp.training, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[2])


class Recurrent(nn.Module):
    """Tokens, a frozen embedding, an LSTM and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.embedding.weight.requires_grad_(False)
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.out = nn.Linear(5, 2)

    def forward(self, tokens: Tensor) -> Any:
        return self.out(self.lstm(self.embedding(tokens))[0][:, -1])


def test_a_recurrent_module_on_tokens_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    tokens = torch.randint(10, (300, 6), generator=torch.Generator().manual_seed(0))

    def made(**changes: Any) -> DPTrainer:
        torch.manual_seed(0)
        return trainer(
            (tokens, (tokens[:, -1] > 4).long()),
            module=Recurrent(),
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.05),
            method="dpis",
            dpis=ADAPTING,
            epsilon=8.0,
            public_size=300,
            checkpoint_every=2,
            checkpoint=tmp_path,
            **changes,
        )

    with pytest.raises(KilledError):
        made(observer=killer(14)).fit()
    run = made()
    frozen = run.module.embedding.weight.clone()  # type: ignore[operator, union-attr]
    report = run.fit()
    assert report.replayed >= 1
    assert torch.equal(run.module.embedding.weight, frozen)  # type: ignore[arg-type]
    assert [round(e["clip"], 3) for e in report.released["epochs"]] != [1.0, 1.0, 1.0]


def test_the_bar_shows_public_metrics_and_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.dp.training import trainer as trainer_module

    shown: list[tuple[int, int, float, str]] = []

    class Bar:
        def __enter__(self) -> Any:
            return lambda *values: shown.append(values)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(trainer_module, "training_bar", lambda show: Bar())
    trainer(public_set=data(100, 3), epochs=2).fit()
    assert [done for done, *_ in shown] == list(range(1, 21))
    assert shown[-1][2] == pytest.approx(1.0)
    assert shown[9][2] == pytest.approx(0.5)
    assert shown[0][3] == ""
    assert "public loss" in shown[-1][3]
    shown.clear()
    # Without public data there is nothing to show: metrics on the training set would be releases.
    trainer(epochs=2).fit()
    assert all(metrics == "" for *_, metrics in shown)


def test_new_names_of_journal_and_checkpoint_outlast_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is made durable after a name has come into it, or the first charges could be gone with the journal."""
    done: list[str] = []
    fsync = os.fsync

    def watch(handle: int) -> None:
        fsync(handle)
        names = sorted(path.name for path in tmp_path.iterdir())
        done.append(f"folder with {names}" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")

    monkeypatch.setattr(os, "fsync", watch)
    checkpoint = Checkpoint(tmp_path)
    for _ in range(2):
        checkpoint.append(Release("size", Gaussian(50.0)))
    assert done == ["file", "folder with ['charges.jsonl']", "file"]
    done.clear()
    checkpoint.save({"step": 1})
    assert done == ["file", "folder with ['charges.jsonl', 'checkpoint.npz']"]
    assert len(Checkpoint(tmp_path).charges()) == 2


def test_a_group_that_is_there_for_something_else_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.dp.training.group import Group

    monkeypatch.setattr(Group, "found", staticmethod(lambda device: Group(0, 2, device)))
    assert trainer(alone=True).fit().steps > 0
    with pytest.raises((ValueError, RuntimeError)):
        trainer().fit()
