"""Training on ciphertexts of a toy ring: as in the clear, stopped where it is there, never garbage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.trainings import TOY, blobs

import heliograph as hg
from heliograph.errors import ProgramError, RangeError
from heliograph.transfer.clear import ClearRun, Epoch, History, accuracy, train
from heliograph.transfer.data import TransferData, columns, loss_of, one_hot, softmax
from heliograph.transfer.encrypted import EncryptedRun
from heliograph.transfer.local import go_on, history_of, prepare, weights_of
from heliograph.transfer.owner import Owner
from heliograph.transfer.settings import TransferSettings, momenta, momentum
from heliograph.transfer.simulated import SimulatedRun
from heliograph.transfer.trainer import Trainer


def test_momenta_are_nesterovs() -> None:
    lambdas = [0.0]
    while len(lambdas) < 12:
        lambdas.append((1 + np.sqrt(1 + 4 * lambdas[-1] ** 2)) / 2)
    wanted = [(1 - lambdas[t]) / lambdas[t + 1] for t in range(1, 11)]
    assert [gamma for gamma, _ in zip(momenta(), range(10), strict=False)] == pytest.approx(wanted)
    assert momentum(0) == 0.0
    assert momentum(7) == pytest.approx(wanted[7])


def test_a_clear_step_is_that_of_the_paper(blobs_data: TransferData, settings: TransferSettings) -> None:
    """W' = V - (alpha / N) (P - Y)^T X, V' = (1 - g) W' + g W (HETAL, section 2.1), with rows as samples."""
    run = ClearRun(blobs_data, settings)
    run.step()
    before = run.state
    x, y = (part.T for part in blobs_data.batches(settings)[1])
    p = np.exp(x @ before.ahead.T)
    p /= p.sum(axis=1, keepdims=True)
    run.step()
    weights = before.ahead - settings.rate / settings.batch * (p - y).T @ x
    assert run.state.weights == pytest.approx(weights)
    gamma = momentum(1)
    assert run.state.ahead == pytest.approx((1 - gamma) * weights + gamma * before.weights)


def test_loss_is_the_cross_entropy() -> None:
    logits = np.array([[1.0, -2.0], [0.5, 3.0]])
    labels = np.array([0, 1])
    assert loss_of(logits, labels) == pytest.approx(float(-np.log(softmax(logits)[labels, [0, 1]]).mean()))
    assert one_hot(labels, 3).tolist() == [[1, 0], [0, 1], [0, 0]]
    assert columns(np.array([[2.0, 3.0]])).tolist() == [[2.0], [3.0], [1.0]]


def test_simulated_training_follows_the_clear_one(
    artifact: hg.Artifact, blobs_data: TransferData, settings: TransferSettings
) -> None:
    longer = replace(settings, most_epochs=4)
    clear, simulated = ClearRun(blobs_data, longer), SimulatedRun(artifact, blobs_data, longer)
    exact = train(clear, blobs_data, longer, History())
    seen: list[Epoch] = []
    found = train(simulated, blobs_data, longer, History(), seen.append)
    assert len(found.epochs) == len(exact.epochs)
    assert found.best == exact.best
    assert [epoch.loss for epoch in seen] == pytest.approx([epoch.loss for epoch in exact.epochs], abs=1e-3)
    assert np.abs(simulated.weights - clear.state.weights).max() < 2e-3
    assert np.abs(simulated.best - clear.best.weights).max() < 2e-3


def test_encrypted_training_is_the_clear_one(
    tmp_path: Path, blobs_data: TransferData, settings: TransferSettings
) -> None:
    prepare(tmp_path / "t", blobs_data, settings, TOY)
    with pytest.raises(ProgramError, match="has a training already"):
        prepare(tmp_path / "t", blobs_data, settings, TOY)
    with pytest.warns(hg.errors.InsecureWarning):
        history = go_on(tmp_path / "t", blobs_data, allow_insecure=True)
    clear = ClearRun(blobs_data, settings)
    exact = train(clear, blobs_data, settings, History())
    assert history.stopped == exact.stopped
    assert history.best == exact.best
    assert [epoch.loss for epoch in history.epochs] == pytest.approx([epoch.loss for epoch in exact.epochs], abs=1e-3)
    weights = weights_of(tmp_path / "t")
    assert np.abs(weights - clear.best.weights).max() < 2e-3
    assert accuracy(weights, *blobs(100, 3)) > 0.85
    assert history_of(tmp_path / "t") == history
    # It is over: nothing is run again.
    assert go_on(tmp_path / "t", blobs_data) == history
    # The server's folder has no secret key.
    assert not [path for path in (tmp_path / "t" / "trainer").rglob("*") if path.name == "key"]


def test_the_encrypted_model_answers(
    tmp_path: Path, artifact: hg.Artifact, blobs_data: TransferData, settings: TransferSettings
) -> None:
    """By the best model so far, whose weights nobody but the client can read, on samples that it never saw."""
    with pytest.warns(hg.errors.InsecureWarning):
        client = hg.Client(artifact.public(), allow_insecure=True)
    owner, (x, _) = Owner(client, blobs_data, settings), blobs(50, 3)
    with pytest.warns(hg.errors.InsecureWarning):
        server = hg.Server(artifact, client.evaluation_keys(), allow_insecure=True)
    with server, Trainer(server, tmp_path, settings.rate) as trainer:
        for number, shard in enumerate(owner.shards()):
            trainer.receive("batch", number, shard)
        run, clear = EncryptedRun(owner, trainer), ClearRun(blobs_data, settings)
        run.step()
        clear.step()
        run.keep()
        # What follows is not the best one.
        run.step()
        answers = [trainer.answer(question) for question in owner.questions(x)]
    assert len(answers) == 2
    exact = clear.layers.logits(clear.state.weights, columns(x)).T
    assert owner.answers(answers, len(x)) == pytest.approx(exact, abs=5e-3)


def test_a_logit_that_leaves_the_range_ends_the_training(blobs_data: TransferData, settings: TransferSettings) -> None:
    narrow = replace(settings, logit_range=3.0, most_epochs=10)
    history = History()
    with pytest.raises(
        RangeError, match=r"a logit left the range of the softmax, \[-3, 3\], by a factor of at most 2\n"
    ) as raised:
        train(ClearRun(blobs_data, narrow), blobs_data, narrow, history)
    assert "epoch 1 are kept" in raised.value.hint
    assert history.stopped == "a logit left [-3, 3]"
    assert history.best == 1


def test_weights_that_leave_their_range_end_the_training_at_the_best_epoch_before(
    blobs_data: TransferData, settings: TransferSettings
) -> None:
    class Leaving(ClearRun):
        def keep(self) -> None:
            if self.best.step:
                raise RangeError("carried value 'w' left its range")
            super().keep()

    longer, history = replace(settings, most_epochs=10), History()
    run, seen = Leaving(blobs_data, longer), []
    with pytest.raises(RangeError, match="left its range"):
        train(run, blobs_data, longer, history, seen.append)
    assert history.stopped == "a weight left its range"
    assert (history.best, len(history.epochs), len(seen)) == (1, 1, 1)
    assert run.best.step == blobs_data.steps(settings)


def test_the_range_of_weights_is_watched_wherever_a_training_happens(
    artifact: hg.Artifact, blobs_data: TransferData, settings: TransferSettings
) -> None:
    narrow, history = replace(settings, weight_range=0.5), History()
    with pytest.raises(RangeError, match=r"^a weight left \[-0.5, 0.5\], by a factor of at most (2|4|8)\n"):
        train(ClearRun(blobs_data, narrow), blobs_data, narrow, history)
    assert history.stopped == "a weight left its range"
    assert not history.epochs
    simulated = SimulatedRun(artifact, blobs_data, settings)
    simulated.ahead = simulated.ahead + 4.1
    with pytest.raises(RangeError, match=r"a weight left \[-4, 4\], by a factor of at most 2"):
        simulated.keep()


def test_early_stopping_waits_for_patience() -> None:
    settings = TransferSettings(patience=2, most_epochs=9)
    history = History()
    going = [
        history.judge(Epoch(n + 1, loss, 0.5, 1.0), settings) for n, loss in enumerate([3.0, 2.0, 2.5, 1.9, 2.0, 2.0])
    ]
    assert going == [True, True, True, True, True, False]
    assert history.best == 4
    assert "2 epochs" in history.stopped


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"x_train": np.zeros((4, 2, 2))}, "do not fit"),
        ({"y_train": np.zeros(3, dtype=int)}, "do not fit"),
        ({"x_val": np.full((2, 2), np.nan)}, "NaN"),
        ({"x_val": np.full((2, 2), 5j)}, "features have dtype complex128; real numbers are needed"),
        ({"y_val": np.array([0.5, 1.0])}, "whole numbers"),
        ({"y_train": np.array([0, -1, 0, 0])}, "whole numbers"),
        ({"x_val": np.zeros((2, 3))}, "3"),
        ({"y_train": np.zeros(4, dtype=int), "y_val": np.zeros(2, dtype=int)}, "nothing to classify"),
    ],
)
def test_data_that_cannot_be_trained_on_are_refused(change: dict[str, np.ndarray], wrong: str) -> None:
    given = {
        "x_train": np.zeros((4, 2)),
        "y_train": np.array([0, 1, 0, 1]),
        "x_val": np.zeros((2, 2)),
        "y_val": np.array([0, 1]),
    }
    with pytest.raises(ProgramError, match=wrong):
        TransferData(**{**given, **change})


def test_a_minibatch_larger_than_the_data_is_refused(blobs_data: TransferData) -> None:
    with pytest.raises(ProgramError, match="do not fill a minibatch of 1024"):
        blobs_data.batches(TransferSettings())


@pytest.mark.parametrize("change", [{"batch": 0}, {"rate": -1.0}, {"patience": 0}, {"logit_range": float("nan")}])
def test_settings_are_checked(change: dict[str, float]) -> None:
    with pytest.raises(ProgramError, match=next(iter(change))):
        TransferSettings(**change)  # type: ignore[arg-type]
