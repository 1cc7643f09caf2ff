"""Training with owner and trainer on one machine: each has its own folder, and both resume after a kill.

FOLDER/transfer.helio    the artifact of a step
FOLDER/owner/            the secret key, the settings and the history: the client's
FOLDER/trainer/          evaluation keys, encrypted shards, rounds: the server's
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.array_files import read_arrays, write_array
from heliograph.artifact.artifact import Artifact
from heliograph.compiler.options import Options
from heliograph.errors import ProgramError, RangeError, WireError
from heliograph.execution.loop import Progress
from heliograph.files import write_file
from heliograph.ir import Array
from heliograph.runtime.client.client import Client
from heliograph.runtime.server.server import Server
from heliograph.runtime.wire.keyfolder import KeyFolder
from heliograph.transfer.clear import Epoch, History, Watch, train
from heliograph.transfer.data import TransferData
from heliograph.transfer.encrypted import EncryptedRun
from heliograph.transfer.layers import Layers
from heliograph.transfer.owner import Owner
from heliograph.transfer.settings import TransferSettings
from heliograph.transfer.step import compile_step
from heliograph.transfer.trainer import Trainer

_ARTIFACT, _KEY, _KEYS, _SETTINGS, _HISTORY, _SENT = (
    "transfer.helio",
    "owner/key",
    "trainer/keys",
    "owner/settings.json",
    "owner/history.json",
    "owner/sent",
)
WEIGHTS = "owner/weights.npy"


def prepare(
    folder: str | Path, data: TransferData, settings: TransferSettings, options: Options | None = None
) -> Artifact:
    """Compile a step for a new training in `folder`; a ProgramError if the folder already has one."""
    folder = Path(folder)
    if (folder / _SETTINGS).exists():
        raise ProgramError(f"{folder} has a training already", hint="resume it, or choose another folder")
    artifact = compile_step(data, settings, options)
    _close(folder)
    (folder / "trainer").mkdir(exist_ok=True)
    artifact.save(folder / _ARTIFACT)
    _write_own(folder / _SETTINGS, json.dumps(asdict(settings), indent=1))
    return artifact


def go_on(
    folder: str | Path,
    data: TransferData,
    progress: Progress | None = None,
    watch: Watch | None = None,
    *,
    allow_insecure: bool = False,
) -> History:
    """Train until the client stops it, continuing from the folder's state: existing keys, shards and steps are reused.

    The weights of the best epoch are then in the owner's folder (`weights.npy`). Raises RangeError if a logit or a
    weight left its range; the weights of the best epoch are kept then too.
    """
    folder = Path(folder)
    settings, history = settings_of(folder), history_of(folder)
    artifact = Artifact.load(folder / _ARTIFACT)
    _close(folder)
    if not history.stopped:
        client = _client(folder, artifact, allow_insecure)
        client.write_evaluation_keys(folder / _KEYS, progress)
        owner = Owner(client, data, settings)
        server = Server(artifact, KeyFolder(folder / _KEYS), allow_insecure=allow_insecure)
        with server, Trainer(server, folder / "trainer", settings.rate) as trainer:
            _send(folder, owner, trainer, progress)
            run = EncryptedRun(owner, trainer, progress)

            def save() -> None:
                # Weights first: if killed between the two, the epoch is judged again. Otherwise a best epoch without weights
                # would remain.
                if run.best is not None:
                    write_array(folder / WEIGHTS, run.best, ())
                    run.best = None
                _write_history(folder, history)

            try:
                train(run, data, settings, history, watch, save)
            except RangeError:
                save()
                raise
    return history


def settings_of(folder: str | Path) -> TransferSettings:
    """The settings of the training in a folder; a ProgramError if there is none."""
    given = _json(Path(folder) / _SETTINGS)
    names = {field.name for field in fields(TransferSettings)}
    # Trainings that began before these settings existed do not mention them.
    later = {"hidden", "hidden_range", "fixed_epochs"}
    if not isinstance(given, Mapping) or not names - later <= set(given) <= names:
        raise WireError(f"{Path(folder) / _SETTINGS} does not hold the settings of a training")
    return TransferSettings(**given)


def history_of(folder: str | Path) -> History:
    """The client's history of the training in a folder so far."""
    path = Path(folder) / _HISTORY
    if not path.exists():
        return History()
    given = _json(path)
    try:
        epochs = [Epoch(**epoch) for epoch in given["epochs"]]
        spoiled, unjudged = given.get("spoiled", ""), given.get("unjudged", 0)
        return History(epochs, str(given["stopped"]), str(spoiled), int(unjudged))
    except (TypeError, KeyError, ValueError, AttributeError):
        raise WireError(f"{path} does not hold the history of a training") from None


def weights_of(folder: str | Path) -> Array:
    """The weights of the best epoch (transfer/layers.py); a ProgramError if no epoch is complete."""
    path = Path(folder) / WEIGHTS
    if not path.exists():
        raise ProgramError(f"{folder} has no weights yet", hint="an epoch must be complete first")
    weights = read_arrays(path).get("")
    # Two matrices are stored as one vector; the settings say whether there are two.
    hidden = (Path(folder) / _SETTINGS).exists() and bool(settings_of(folder).hidden)
    if weights is None or weights.ndim != 2 - hidden or weights.dtype != np.float64 or not np.isfinite(weights).all():
        raise WireError(f"{path} does not hold the weights of a training")
    return weights


def layers_of(folder: str | Path) -> Layers:
    """The layers of the classifier in a folder; with a hidden layer, the sizes come from the step's artifact."""
    if (weights := weights_of(folder)).ndim == 2:
        return Layers(*weights.shape)
    artifact = Artifact.load(Path(folder) / _ARTIFACT)
    shapes = {spec.name: spec.shape for spec in artifact.program.interface.inputs}
    (inputs, _), (classes, _) = shapes["x"], shapes["y"]
    return Layers(classes, inputs, settings_of(folder).hidden)


def _client(folder: Path, artifact: Artifact, allow_insecure: bool) -> Client:
    path = folder / _KEY
    if path.exists():
        return Client.load(path, artifact=artifact.public(), allow_insecure=allow_insecure)
    client = Client(artifact.public(), allow_insecure=allow_insecure)
    client.save(path)
    return client


def _send(folder: Path, owner: Owner, trainer: Trainer, progress: Progress | None) -> None:
    """Encrypt the shards that were not sent yet; a mark file records that all are there."""
    mark = folder / _SENT
    if mark.exists():
        return
    for kind, shards in (("batch", owner.shards()), ("held", owner.held())):
        for number, shard in enumerate(shards):
            trainer.receive(kind, number, shard)
            if progress is not None:
                progress("encrypted shards", number + 1, 0)
    _write_own(mark, "")


def _write_history(folder: Path, history: History) -> None:
    _write_own(folder / _HISTORY, json.dumps(asdict(history)))


def _write_own(path: Path, text: str) -> None:
    """Write a file that only the owner can read: it has decrypted values or facts about the data."""
    write_file(path, text.encode(), private=True)


def _close(folder: Path) -> None:
    """Create the owner's folder, or, if an earlier version created it, close it and its files to others."""
    owner = folder / "owner"
    try:
        owner.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(owner, 0o700)
        for path in owner.iterdir():
            if path.is_file():
                os.chmod(path, 0o600)
    except OSError as error:
        raise WireError(f"{owner} cannot be kept from others", why=error.strerror or str(error)) from None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError:
        raise ProgramError(
            f"{path.parent.parent} has no training", hint="heliograph transfer train begins one"
        ) from None
    except ValueError:
        raise WireError(f"{path} is not readable") from None
