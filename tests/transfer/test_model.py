"""A model that stays encrypted, served by an ordinary artifact with keys of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.trainings import TOY, blobs

import heliograph as hg
from heliograph.errors import ProgramError, WireError
from heliograph.serving.queue.catalog import Catalog
from heliograph.transfer.clear import ClearRun
from heliograph.transfer.data import TransferData, columns, in_minibatches
from heliograph.transfer.encrypted import EncryptedRun
from heliograph.transfer.model import EncryptedModel, model_artifact
from heliograph.transfer.owner import Owner
from heliograph.transfer.settings import TransferSettings
from heliograph.transfer.trainer import Trainer


def insecure_client(artifact: hg.Artifact) -> hg.Client:
    with pytest.warns(hg.errors.InsecureWarning):
        return hg.Client(artifact.public(), allow_insecure=True)


def insecure_server(artifact: hg.Artifact, keys: object) -> hg.Server:
    with pytest.warns(hg.errors.InsecureWarning):
        return hg.Server(artifact, keys, allow_insecure=True)  # type: ignore[arg-type]


@pytest.mark.front
def test_a_trained_model_is_served_without_being_decrypted(
    tmp_path: Path, artifact: hg.Artifact, blobs_data: TransferData, settings: TransferSettings
) -> None:
    """Trained by one server; another, which has files alone, answers by it on samples that nobody saw."""
    client, clear = insecure_client(artifact), ClearRun(blobs_data, settings)
    owner = Owner(client, blobs_data, settings)
    server = insecure_server(artifact, client.evaluation_keys())
    with server, Trainer(server, tmp_path / "trainer", settings.rate) as trainer:
        for number, shard in enumerate(owner.shards()):
            trainer.receive("batch", number, shard)
        run = EncryptedRun(owner, trainer)
        for step in range(3):
            run.step()
            clear.step()
            if step == 1:
                run.keep()
                exact = clear.layers.logits(clear.state.weights, columns(blobs(50, 3)[0]))
        trainer.model().save(tmp_path / "weights")
    model_artifact(artifact).save(tmp_path / "model.helio")

    loaded = hg.Artifact.load(tmp_path / "model.helio")
    with pytest.warns(hg.errors.InsecureWarning):
        asking = client.for_artifact(loaded, allow_insecure=True)
    asking.write_evaluation_keys(tmp_path / "keys")
    keys = sum(key.bytes for key in loaded.evaluation_keys)
    assert keys < sum(key.bytes for key in artifact.evaluation_keys) / 4
    model = EncryptedModel(artifact, hg.CarriedValues.load(tmp_path / "weights"))
    assert model.artifact.fingerprint == loaded.fingerprint
    found = []
    with insecure_server(loaded, hg.KeyFolder(tmp_path / "keys")) as answering:
        for part in in_minibatches(blobs(50, 3)[0], settings.batch):
            question = asking.encrypt_some(held=part)
            found.append(asking.decrypt(answering.run(model.inputs(question)), of=question))
            with pytest.raises(WireError, match="lack w/0"):
                answering.run(question)
    logits = np.concatenate(found, axis=1)[:, :50] * settings.logit_range
    assert logits == pytest.approx(exact, abs=5e-3)


def test_it_is_an_ordinary_artifact(tmp_path: Path, artifact: hg.Artifact) -> None:
    """It takes no state, says what it costs, is simulated and served like any other."""
    made = model_artifact(artifact)
    assert [spec.name for spec in made.public().given] == ["held", "w"]
    assert not made.program.interface.carried
    assert not made.report.figures.bootstraps
    assert not made.report.figures.ranges
    rng = np.random.default_rng(0)
    held, weights = (rng.uniform(-1, 1, spec.shape) for spec in made.public().given)
    # The ranges of weights and softmax in the settings are 4 and 8.
    assert hg.simulate(made, held, weights) == pytest.approx(weights @ held * 0.5, abs=1e-4)
    made.save(tmp_path / "model.helio")
    catalog = Catalog([tmp_path / "model.helio"], 1 << 30, allow_insecure=True)
    assert made.fingerprint in catalog


def test_weights_and_samples_of_others_are_refused(
    artifact: hg.Artifact, blobs_data: TransferData, settings: TransferSettings
) -> None:
    client, other = insecure_client(artifact), insecure_client(artifact)
    model = EncryptedModel(artifact, Owner(client, blobs_data, settings).start())
    with pytest.warns(hg.errors.InsecureWarning):
        strange = other.for_artifact(model.artifact, allow_insecure=True)
    spec = model.artifact.public().given[0]
    with pytest.raises(WireError, match="another client"):
        model.inputs(strange.encrypt_some(held=np.zeros(spec.shape)))
    with pytest.raises(WireError, match="another artifact"):
        model.inputs(client.encrypt_some(held=np.zeros(spec.shape)))
    with pytest.raises(WireError, match="another artifact"):
        EncryptedModel(model.artifact, Owner(client, blobs_data, settings).start())
    elsewhere = hg.compile(
        hg.parse("program p\ninput x: secret tensor[4] in [-1, 1]\noutput x * x\n"), replace(TOY, log_ring=11)
    )
    with pytest.raises(ProgramError, match="on another ring"):
        client.for_artifact(elsewhere, allow_insecure=True)
