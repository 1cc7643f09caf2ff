"""A hidden layer trained on ciphertexts: its gradients, its products on slots, its ranges, and a training to the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.trainings import TOY, blobs

import heliograph as hg
from heliograph.ckks.ring import Ring
from heliograph.compiler.pipeline import front_passes
from heliograph.compiler.planning.plan import pack_samples
from heliograph.errors import ProgramError, RangeError
from heliograph.interpret import interpret
from heliograph.passes.bootstraps.sizes import observed_sizes
from heliograph.passes.packing.clean_slots import CleanSlots
from heliograph.passes.packing.pack import Pack
from heliograph.transfer.clear import ClearRun, History, accuracy, train
from heliograph.transfer.data import TransferData, loss_of
from heliograph.transfer.layers import Layers
from heliograph.transfer.local import go_on, layers_of, prepare, weights_of
from heliograph.transfer.settings import TransferSettings
from heliograph.transfer.simulated import SimulatedRun
from heliograph.transfer.step import compile_step, seen_states, step_program


@pytest.fixture(scope="module")
def hidden_settings() -> TransferSettings:
    return TransferSettings(
        batch=32, rate=0.1, logit_range=8.0, weight_range=4.0, hidden=4, hidden_range=8.0, patience=1, most_epochs=2,
        softmax_error=1e-3,
    )  # fmt: skip


def test_gradients_are_those_of_the_loss(blobs_data: TransferData, hidden_settings: TransferSettings) -> None:
    layers = Layers.of(blobs_data, hidden_settings)
    rng = np.random.default_rng(3)
    weights = layers.start(0) + rng.normal(0.0, 0.3, layers.start(0).shape)
    x, y = blobs_data.batches(hidden_settings)[0]
    gradient, _, _ = layers.step(weights, x, y)
    labels, small = y.argmax(axis=0), 1e-6
    moved = np.eye(weights.size) * small
    wanted = [
        (loss_of(layers.logits(weights + d, x), labels) - loss_of(layers.logits(weights - d, x), labels)) / (2 * small)
        for d in moved
    ]
    assert gradient == pytest.approx(np.array(wanted), abs=1e-7)


def test_a_step_on_slots_is_that_in_the_clear() -> None:
    """All seven products stay whole; the weight that is multiplied from either side is copied into another layout."""
    data = TransferData(*blobs(512, 1), *blobs(40, 2))
    settings = TransferSettings(
        batch=256, rate=0.1, logit_range=8.0, weight_range=4.0, hidden=8, hidden_range=8.0, most_epochs=3
    )
    state = seen_states(data, settings)[-1]
    program = step_program(data, settings, [state])
    polynomial = front_passes(program, hg.Options(security_bits=None, target_error=1e-6))[-1].program
    assert [node.op for node in polynomial.nodes].count("matrix_product") == 7
    packed = Pack(Ring(13, 60, 50, 20, 2, None)).run(polynomial)
    CleanSlots().run(packed)
    # While b and h wait for the way back, every statement still has values that may be bootstrapped.
    sizes = observed_sizes(packed, pack_samples(packed, program.calibration), 0.1)
    statements = {node.loc.short for node in packed.nodes if node.type.secret and node.op != "input"}
    assert {node.loc.short for node in sizes} == statements
    samples = [column[0] for column in program.calibration]
    exact, found = interpret(polynomial, *samples), interpret(packed, *samples)
    assert [np.abs(a - b).max() for a, b in zip(exact, found, strict=True)] == pytest.approx([0.0] * 7, abs=1e-12)
    layers = Layers.of(data, settings)
    x, y = data.batches(settings)[state.step % data.steps(settings)]
    gradient, logits, _ = layers.step(state.ahead, x, y)
    named = dict(zip(packed.output_names, found, strict=True))
    weights = layers.joined([np.asarray(named[name]) for name, _ in layers.carried]) * settings.weight_range
    assert weights == pytest.approx(state.ahead - settings.rate * gradient, abs=1e-5)
    assert np.asarray(named["logits"]) * settings.logit_range == pytest.approx(logits, abs=1e-9)


def test_a_simulated_training_follows_the_clear_one(
    blobs_data: TransferData, hidden_settings: TransferSettings
) -> None:
    clear = ClearRun(blobs_data, hidden_settings)
    simulated = SimulatedRun(compile_step(blobs_data, hidden_settings, TOY), blobs_data, hidden_settings)
    exact = train(clear, blobs_data, hidden_settings, History())
    found = train(simulated, blobs_data, hidden_settings, History())
    assert (len(found.epochs), found.best, found.stopped) == (len(exact.epochs), exact.best, exact.stopped)
    assert [epoch.loss for epoch in found.epochs] == pytest.approx([epoch.loss for epoch in exact.epochs], abs=1e-3)
    assert np.abs(simulated.weights - clear.state.weights).max() < 2e-3


def test_an_encrypted_training_is_the_clear_one(
    tmp_path: Path, blobs_data: TransferData, hidden_settings: TransferSettings
) -> None:
    once = replace(hidden_settings, most_epochs=1)
    prepare(tmp_path / "t", blobs_data, once, TOY)
    with pytest.warns(hg.errors.InsecureWarning):
        go_on(tmp_path / "t", blobs_data, allow_insecure=True)
    clear = ClearRun(blobs_data, once)
    train(clear, blobs_data, once, History())
    weights = weights_of(tmp_path / "t")
    assert np.abs(weights - clear.best.weights).max() < 2e-3
    test = blobs(100, 3)
    assert accuracy(weights, *test, layers_of(tmp_path / "t")) == pytest.approx(
        accuracy(clear.best.weights, *test, clear.layers), abs=0.02
    )


def test_a_hidden_value_that_leaves_its_range_ends_the_training(
    blobs_data: TransferData, hidden_settings: TransferSettings
) -> None:
    narrow, history = replace(hidden_settings, hidden_range=0.5), History()
    with pytest.raises(
        RangeError, match=r"a hidden value left its range, \[-0.5, 0.5\], by a factor of at most 4\n"
    ) as raised:
        train(ClearRun(blobs_data, narrow), blobs_data, narrow, history)
    assert "hidden_range" in raised.value.hint
    assert history.stopped == "a hidden value left [-0.5, 0.5]"


def test_weights_of_another_classifier_are_refused() -> None:
    with pytest.raises(ProgramError, match="are not those of layers"):
        Layers(3, 7, 4).matrices(np.zeros((3, 7)))
    assert [matrix.shape for matrix in Layers(3, 7, 4).matrices(np.zeros(40))] == [(4, 7), (3, 4)]
