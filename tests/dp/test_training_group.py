"""Two processes with gloo train as one: the same module, the same charges, half of the records each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, distributed, multiprocessing, nn  # noqa: E402

from heliograph.dp.samplers import FixedSizeSampler  # noqa: E402
from heliograph.dp.training import DPTrainer, audit_training  # noqa: E402
from heliograph.dp.training.gradients import GradientEngine  # noqa: E402
from heliograph.dp.training.noise import GaussianNoise  # noqa: E402
from heliograph.dp.training.records import Canaries  # noqa: E402
from heliograph.errors import HeliographError, ProgramError  # noqa: E402

COUNT, FEATURES = 120, 5


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def data(count: int = COUNT) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, FEATURES, generator=generator)
    return inputs, (inputs.sum(1) > 0).long()


def trainer(scenario: str, start: int = 0, **changes: Any) -> DPTrainer:
    torch.manual_seed(start)
    options: dict[str, Any] = {
        "dp_sgd": {"noise_multiplier": 1.0},
        "dpis": {"method": "dpis", "epsilon": 8.0},
        "band_mf": {"method": "band_mf", "bands": 2, "noise_multiplier": 1.0},
        "fresh": {"noise_multiplier": 1.0, "seed": None},
    }[scenario]
    given = {"delta": 1e-3, "max_grad_norm": 1.0, "public_size": COUNT, "physical_batch_size": 8, "batch_size": 20}
    given |= {"epochs": 2, "seed": 3}
    return DPTrainer(
        nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, 2)),
        loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
        changes.pop("train_set", None) or data(),
        **given | options | changes,
    )


SCENARIOS = ("dp_sgd", "dpis", "band_mf", "fresh")


def trained(scenario: str, start: int = 0, **changes: Any) -> dict[str, Any]:
    seen = 0
    before = GradientEngine.weighted_sum

    def counted(engine: Any, inputs: Any, targets: Tensor, weights: Any) -> Any:
        nonlocal seen
        seen += len(targets)
        return before(engine, inputs, targets, weights)

    GradientEngine.weighted_sum = counted  # type: ignore[method-assign]
    try:
        run = trainer(scenario, start, **changes)
        report = run.fit()
    finally:
        GradientEngine.weighted_sum = before  # type: ignore[method-assign]
    return {
        "parameters": torch.cat([p.detach().flatten() for p in run.module.parameters()]),
        "charges": [(release.name, release.count, release.noise_std) for release in report.ledger.releases],
        "epsilon": report.epsilon_upper,
        "replayed": report.replayed,
        "seen": seen,
    }


class KilledError(Exception):
    pass


def broken(*_: Any) -> Any:
    raise KilledError


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    where = Path(folder)
    distributed.init_process_group("gloo", init_method=f"file://{where / 'meeting'}", rank=rank, world_size=2)
    # Parameters differ at first: those of the first process count.
    found: dict[str, Any] = {scenario: trained(scenario, start=rank) for scenario in SCENARIOS}
    try:
        trained("dp_sgd", train_set=data(COUNT - rank))
    except HeliographError as error:
        found["other data"] = str(error)
    killed = trainer("dp_sgd", checkpoint=where / "kept", checkpoint_every=2)
    with contextlib.suppress(KilledError):
        for step in killed.steps():
            killed.optimizer.step()
            if step == 3:
                killed._run.steps.engine.weighted_sum = broken  # type: ignore[union-attr, method-assign]
    found["resumed"] = trained("dp_sgd", checkpoint=where / "kept", checkpoint_every=2)
    torch.save(found, where / f"{rank}.pt")
    ended()


def ended() -> None:
    """End this process when the other one is ready to. Gloo's threads may abort one that is taken down in the usual way."""
    distributed.barrier()
    os._exit(0)


def found_by_two(task: Callable[[int, str], None], folder: Path) -> list[dict[str, Any]]:
    """What each of two processes saved in the folder."""
    multiprocessing.spawn(task, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_by_two(work, tmp_path_factory.mktemp("group"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_processes_are_one_run(scenario: str, both: list[dict[str, Any]]) -> None:
    first, second = (each[scenario] for each in both)
    assert torch.equal(first["parameters"], second["parameters"])
    assert first["charges"] == second["charges"]
    if scenario == "fresh":
        return
    alone = trained(scenario)
    # The same coins and the same noise: what differs is the order of sums.
    for ours, theirs in zip(first["charges"], alone["charges"], strict=True):
        assert ours[:2] == theirs[:2]
        assert ours[2] == pytest.approx(theirs[2], rel=1e-5)
    assert first["epsilon"] == pytest.approx(alone["epsilon"], rel=1e-5)
    torch.testing.assert_close(first["parameters"], alone["parameters"], rtol=1e-3, atol=1e-4)
    assert first["seen"] + second["seen"] == alone["seen"]
    assert abs(first["seen"] - second["seen"]) <= len(alone["charges"]) * 20 + 20
    assert min(first["seen"], second["seen"]) > 0


def test_fresh_noise_is_no_others(both: list[dict[str, Any]]) -> None:
    assert not torch.allclose(both[0]["fresh"]["parameters"], both[0]["dp_sgd"]["parameters"], atol=1e-3)


def test_processes_with_different_data_are_refused(both: list[dict[str, Any]]) -> None:
    assert all("different runs" in each["other data"] for each in both)


def test_a_run_of_two_goes_on_from_a_checkpoint(both: list[dict[str, Any]]) -> None:
    first, second = (each["resumed"] for each in both)
    assert torch.equal(first["parameters"], second["parameters"])
    assert first["charges"] == second["charges"]
    # Step 3 was made after the checkpoint, and is made once more: of twelve that were planned, the last is left out.
    assert (first["replayed"], second["replayed"]) == (1, 1)
    assert [count for _, count, _ in first["charges"]] == [12]


def test_a_group_of_one(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        assert trained("dp_sgd")["seen"] > 0
    finally:
        distributed.destroy_process_group()


# Audits.

AUDITS: dict[str, dict[str, Any]] = {
    "dp_sgd": {"noise_multiplier": 2.0},
    "fixed_size": {"noise_multiplier": 4.0, "sampler": FixedSizeSampler(40), "batch_size": None, "public_size": 400},
    "dpis": {"method": "dpis", "epsilon": 4.0},
    "band_mf": {"method": "band_mf", "bands": 4, "noise_multiplier": 2.0},
}
BROKEN = {"little noise": 0.05, "sound": 1.0}


def audited(method: str, scale: float) -> tuple[bool, list[float]]:
    """Whether an audit refutes a run whose noise is `scale` times what is accounted, and what it counted."""
    before = GaussianNoise.release
    inputs = torch.randn(400, 500, generator=torch.Generator().manual_seed(1))

    def build(train_set: object, observer: Any) -> DPTrainer:
        given: dict[str, Any] = {"delta": 1e-4, "max_grad_norm": 1.0, "public_size": 1000, "batch_size": 40}
        return DPTrainer(
            nn.Linear(500, 2),
            loss,
            lambda parameters: torch.optim.SGD(parameters, lr=0.2),
            train_set,
            observer=observer,
            **given | {"epochs": 8, "seed": 3} | AUDITS[method],
        )

    GaussianNoise.release = lambda self, values, std, bound: before(self, values, std * scale, bound)  # type: ignore[method-assign, assignment]
    try:
        found = audit_training(build, (inputs, (inputs[:, 0] > 0).long()), count=1000, guesses=400)
    finally:
        GaussianNoise.release = before  # type: ignore[method-assign]
    return found.refuted, [found.audit.epsilon_lower, found.audit.right, found.epsilon_upper]


def audit(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    where = Path(folder)
    distributed.init_process_group("gloo", init_method=f"file://{where / 'meeting'}", rank=rank, world_size=2)
    found: dict[str, Any] = {f"{m}, {name}": audited(m, scale) for m in AUDITS for name, scale in BROKEN.items()}
    run = trainer("dp_sgd")
    run.insert(Canaries(torch.tensor([rank]), torch.ones(1)))
    try:
        run.fit()
    except ProgramError as error:
        found["other canaries"] = str(error)
    torch.save(found, where / f"{rank}.pt")
    ended()


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_by_two(audit, tmp_path_factory.mktemp("audits"))


# The first makes eight audits, in both processes.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("method", AUDITS)
def test_audits_of_two_processes(method: str, broken: str, audits: list[dict[str, Any]]) -> None:
    first, second = (each[f"{method}, {broken}"] for each in audits)
    assert first[0] is (broken != "sound")
    assert first == second
    # It is the audit of one process: the same coins, and sums that differ in last digits.
    alone = audited(method, BROKEN[broken])
    assert alone[0] == first[0]
    assert alone[1][2] == pytest.approx(first[1][2], rel=1e-6)
    # Probabilities of DPIS follow from those sums, so that it may draw another record, and a guess come out otherwise.
    if method != "dpis":
        assert alone[1] == pytest.approx(first[1], rel=0.05)


def test_processes_with_different_canaries_are_refused(audits: list[dict[str, Any]]) -> None:
    assert all("different runs" in each["other canaries"] for each in audits)
