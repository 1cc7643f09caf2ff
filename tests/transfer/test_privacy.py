"""What a training tells the server, and whoever reads files and errors: no more than docs/transfer.md says."""

from __future__ import annotations

import json
import math
import stat
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.trainings import TOY, blobs

import heliograph as hg
from heliograph.errors import RangeError
from heliograph.rounding import power_above
from heliograph.runtime.server.session import Session
from heliograph.transfer import local
from heliograph.transfer.clear import ClearRun, History, by_factor, train
from heliograph.transfer.data import TransferData
from heliograph.transfer.layers import Seen
from heliograph.transfer.local import go_on, history_of, prepare, weights_of
from heliograph.transfer.owner import Owner
from heliograph.transfer.settings import TransferSettings
from heliograph.transfer.step import compile_step, seen_states
from heliograph.transfer.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore::heliograph.errors.InsecureWarning")


def other_data(seed: int) -> TransferData:
    """Of the same sizes, from the same blobs."""
    return TransferData(*blobs(128, seed), *blobs(40, seed + 50))


# ------------------------------------------------------------------------------------------------ what the server gets


def extremes(data: TransferData, settings: TransferSettings) -> list[float]:
    """Numbers that only the data give: largest and smallest features, logits and weights of a training in the clear."""
    found = [part for x in (data.x_train, data.x_val) for part in (x.max(), x.min(), *x.max(axis=0), *x.min(axis=0))]
    run = ClearRun(data, settings)
    for state in seen_states(data, settings):
        found += [state.weights.max(), state.weights.min(), state.ahead.max(), state.ahead.min()]
        found += [part / settings.weight_range for part in found[-4:]]
        found += [run.layers.logits(state.weights, held).max() for held in data.validation(settings)]
    # Ends of the range that features are cut to are no secret, nor are zeros.
    return sorted({abs(float(each)) for each in found if abs(each) not in (0.0, 1.0, 2.0)})


def test_the_servers_files_do_not_have_the_extremes_of_the_data(
    tmp_path: Path, blobs_data: TransferData, settings: TransferSettings
) -> None:
    """Neither in digits nor as bytes of numbers; the step's program is text in the artifact. The owner's are closed."""
    # Divided by a number that no program has, so that none of the extremes is a round number.
    data = replace(blobs_data, x_train=blobs_data.x_train / 1.0123457, x_val=blobs_data.x_val / 1.0123457)
    prepare(tmp_path, data, replace(settings, most_epochs=1), TOY)
    owner = tmp_path / "owner"
    # As an earlier version left it.
    owner.chmod(0o755)
    (owner / "settings.json").chmod(0o644)
    go_on(tmp_path, data, allow_insecure=True)
    assert stat.S_IMODE(owner.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in owner.iterdir()}
    assert set(modes) >= {"key", "settings.json", "history.json", "weights.npy", "sent"}
    assert set(modes.values()) == {0o600}, modes
    files = [tmp_path / "transfer.helio", *(path for path in (tmp_path / "trainer").rglob("*") if path.is_file())]
    assert {path.suffix for path in files} >= {".helio", ".inputs", ".carried", ".key"}
    held = {path: path.read_bytes() for path in files}
    secret = extremes(data, settings)
    assert len(secret) > 30
    for value in secret:
        # Six digits behind the zeros.
        digits = f"{value:.15f}"[: 8 - min(0, math.floor(math.log10(value)) + 1)]
        for path, content in held.items():
            assert digits.encode() not in content, (path, value)
            assert struct.pack("<d", value) not in content, (path, value)
            assert struct.pack("<d", -value) not in content, (path, value)
    # The program is there, with bounds that are powers of two.
    assert b"low = -2.0, high = 2.0" in held[files[0]]


@pytest.mark.parametrize("hidden", [0, 4])
def test_artifacts_of_different_data_are_the_same(settings: TransferSettings, hidden: int) -> None:
    """All that remains of the samples are powers of two: those of errors may be neighbours."""
    chosen = replace(settings, hidden=hidden, hidden_range=8.0, rate=0.2) if hidden else settings
    one, two = (compile_step(other_data(seed), chosen, TOY) for seed in (1, 3))
    assert one.program.interface == two.program.interface
    assert str(one.program) == str(two.program)
    assert one.stages == two.stages == {}
    ours, theirs = one.report.figures, two.report.figures
    for name in ("approximation_error", "scheme_error", "output_magnitude"):
        found = getattr(ours, name), getattr(theirs, name)
        assert all(value == power_above(value) for value in found)
        assert 0.25 <= found[0] / found[1] <= 4
    same = replace(theirs, approximation_error=ours.approximation_error, scheme_error=ours.scheme_error)
    assert replace(one.report, figures=same).to_dict().keys() == one.report.to_dict().keys()
    assert (ours.given_error, ours.given_samples, ours.savings) == (None, None, ())


def test_powers_of_two_are_not_below() -> None:
    assert [power_above(x) for x in (1.0, 1.0000001, 0.3, 0.25, 9.87654321, 0.0)] == [1.0, 2.0, 0.5, 0.25, 16.0, 0.0]
    assert power_above(float("inf")) == float("inf")
    data = TransferData(np.full((4, 2), 9.87654321), np.array([0, 1, 0, 1]), np.zeros((2, 2)), np.array([0, 1]))
    assert data.size == 16.0


# ------------------------------------------------------------------------------------------------ what others read


def test_errors_say_a_bound_and_a_power_of_two() -> None:
    """How far a decrypted value was beyond it; nothing else of the value."""
    assert by_factor(23.46, 20.0) == "by a factor of at most 2"
    assert by_factor(81.0, 20.0) == "by a factor of at most 8"
    assert by_factor(float("inf"), 20.0) == by_factor(float("nan"), 20.0) == by_factor(1e9, 20.0) == "by far"


# ------------------------------------------------------------------------------------------------ what the server hears


class _Heard:
    """What a trainer is asked for, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Any]] = []
        for kind, name in ((Trainer, "step"), (Trainer, "held_logits"), (Session, "keep"), (Session, "carried")):
            patch.setattr(kind, name, self._recorded(name, getattr(kind, name)))

    def _recorded(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(own: Any, *given: Any) -> Any:
            self.calls.append((name, given[:1] if name in ("keep", "carried") else ()))
            return real(own, *given)

        return call


def _trained(
    folder: Path, data: TransferData, settings: TransferSettings, artifact: hg.Artifact, spoiled_at: int = -1
) -> tuple[list[tuple[str, Any]], str]:
    """What the server heard of a training, and what the client was told at its end."""
    seen = Owner.seen

    def spoiled(own: Owner, output: hg.EncryptedOutput) -> Seen:
        found = seen(own, output)
        return replace(found, logit=1e9) if [name for name, _ in heard.calls].count("step") == spoiled_at else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "compile_step", lambda *_: artifact)
        prepare(folder, data, settings)
        heard = _Heard(patch)
        patch.setattr(Owner, "seen", spoiled)
        try:
            said = go_on(folder, data, allow_insecure=True).stopped
        except RangeError as error:
            said = error.what
    return heard.calls, said


def test_with_fixed_epochs_the_server_hears_the_same_whatever_happens(
    tmp_path: Path, artifact: hg.Artifact, blobs_data: TransferData, settings: TransferSettings
) -> None:
    """A training that goes well, one whose loss only rises, and one of which a logit leaves its range."""
    fixed = replace(settings, fixed_epochs=True, most_epochs=2, patience=1)
    # Labels of validation that contradict those of training: the first epoch is the best.
    wrong = replace(blobs_data, y_val=(blobs_data.y_val + 1) % 3)
    good, said = _trained(tmp_path / "good", blobs_data, fixed, artifact)
    assert said == "it was to end after 2 epochs"
    worse, said = _trained(tmp_path / "worse", wrong, fixed, artifact)
    assert said == "it was to end after 2 epochs"
    spoiled, said = _trained(tmp_path / "spoiled", blobs_data, fixed, artifact, spoiled_at=2)
    assert said == "a logit left [-8, 8]"
    assert good == worse == spoiled
    assert [name for name, _ in good].count("step") == 2 * blobs_data.steps(fixed)
    assert "keep" not in [name for name, _ in good]
    # The client has the best weights all the same, those of a training in the clear.
    for name, data in (("good", blobs_data), ("worse", wrong)):
        clear = ClearRun(data, fixed)
        exact = train(clear, data, fixed, History())
        assert history_of(tmp_path / name).best == exact.best
        assert np.abs(weights_of(tmp_path / name) - clear.best.weights).max() < 2e-3
    assert history_of(tmp_path / "worse").best == 1
    # Without the option it is told which epoch was the best, and that a value left its range.
    usual, said = _trained(tmp_path / "usual", blobs_data, replace(fixed, fixed_epochs=False), artifact, spoiled_at=5)
    assert "left the range of the softmax, [-8, 8], by far" in said
    assert [name for name, _ in usual].count("step") == 5
    assert "keep" in [name for name, _ in usual]


def test_what_follows_a_spoiled_step_is_never_the_best(
    tmp_path: Path, blobs_data: TransferData, settings: TransferSettings
) -> None:
    """Nor after a kill: the history says from when on nothing counts."""
    fixed, history = replace(settings, fixed_epochs=True, most_epochs=4, logit_range=3.0), History()
    saved: list[tuple[str, int]] = []
    run = ClearRun(blobs_data, fixed)
    with pytest.raises(RangeError, match=r"^a logit left \[-3, 3\]\n") as raised:
        train(run, blobs_data, fixed, history, None, lambda: saved.append((history.spoiled, history.done)))
    assert "epoch 1 are kept" in raised.value.hint
    assert run.done == 4 * blobs_data.steps(fixed)
    assert (history.best, len(history.epochs), history.unjudged) == (1, 1, 3)
    assert run.best.step == blobs_data.steps(fixed)
    # It is saved at once, in the middle of the epoch.
    assert saved[:3] == [("", 1), ("a logit left [-3, 3]", 1), ("a logit left [-3, 3]", 2)]
    path = tmp_path / "owner" / "history.json"
    path.parent.mkdir()
    for given, wanted in (
        ({"epochs": [], "stopped": ""}, History()),
        ({"epochs": [], "stopped": "", "spoiled": "x", "unjudged": 2}, History([], "", "x", 2)),
    ):
        path.write_text(json.dumps(given))
        assert history_of(tmp_path) == wanted
    resumed = History(list(history.epochs), "", history.spoiled, 1)
    again = ClearRun(blobs_data, fixed, replace(run.state, step=2 * blobs_data.steps(fixed)))
    with pytest.raises(RangeError, match="a logit left"):
        train(again, blobs_data, fixed, resumed)
    assert (resumed.best, resumed.unjudged, again.done) == (1, 3, 4 * blobs_data.steps(fixed))


def test_weights_that_leave_their_range_do_not_end_it_either(
    blobs_data: TransferData, settings: TransferSettings
) -> None:
    fixed, history = replace(settings, fixed_epochs=True, most_epochs=2, weight_range=0.5), History()
    run = ClearRun(blobs_data, fixed)
    with pytest.raises(RangeError, match=r"^a weight left its range\n"):
        train(run, blobs_data, fixed, history)
    assert run.done == 2 * blobs_data.steps(fixed)
    assert (history.stopped, history.epochs, history.unjudged) == ("a weight left its range", [], 2)


def test_the_option_is_true_or_false() -> None:
    with pytest.raises(hg.HeliographError, match="fixed_epochs"):
        TransferSettings(fixed_epochs=1)  # type: ignore[arg-type]
