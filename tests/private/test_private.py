"""`hg.Private`: a model as one object, in the conventions of scikit-learn."""

from __future__ import annotations

import functools
import logging
import pickle
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from helpers.serving import Running
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import heliograph as hg

SAMPLES, PLACES = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[PLACES]


@functools.cache
def flowers() -> tuple[Any, hg.Private]:
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(SAMPLES, NAMES)
    return model, hg.Private(model, calibration=SAMPLES)


def test_classes_probabilities_and_scores_are_those_of_the_model() -> None:
    model, private = flowers()
    assert private.classes_.tolist() == model.classes_.tolist()
    for mode in ("simulate", "clear"):
        assert (private.predict(SAMPLES, mode=mode) == model.predict(SAMPLES)).all()
        assert np.abs(private.predict_proba(SAMPLES, mode=mode) - model.predict_proba(SAMPLES)).max() < 1e-4
        assert np.abs(private.decision_function(SAMPLES, mode=mode) - model.decision_function(SAMPLES)).max() < 1e-3
        assert private.score(SAMPLES, NAMES, mode=mode) == model.score(SAMPLES, NAMES)


def test_one_sample_has_one_answer() -> None:
    model, private = flowers()
    for mode in ("simulate", "clear"):
        assert private.predict(SAMPLES[70], mode=mode) == model.predict(SAMPLES[70:71])[0]
        assert private.predict_proba(SAMPLES[70], mode=mode).shape == (3,)
        assert private.predict(SAMPLES[70:71], mode=mode).shape == (1,)


def test_predictions_are_encrypted_here() -> None:
    model, private = flowers()
    with private:
        assert (private.predict(SAMPLES[48:52]) == model.predict(SAMPLES[48:52])).all()
        assert private.predict(SAMPLES[0]) == "setosa"
        assert private.score(SAMPLES[:2], NAMES[:2], mode="encrypted") == 1.0


def test_a_batch_gives_the_same() -> None:
    model = flowers()[0]
    with hg.Private(model, calibration=SAMPLES, batch=8) as private:
        assert (private.predict(SAMPLES[44:56]) == model.predict(SAMPLES[44:56])).all()
        assert private.predict(SAMPLES[60]) == model.predict(SAMPLES[60:61])[0]
        assert (private.predict(SAMPLES[:20], mode="simulate") == model.predict(SAMPLES[:20])).all()


@pytest.mark.parametrize("labels", [[0, 1], [False, True], [0.0, 2.0], ["no", "yes"], [-3, 7]])
def test_labels_keep_their_type(labels: list[object]) -> None:
    two = PLACES < 2
    model = LogisticRegression().fit(SAMPLES[two], np.array(labels)[PLACES[two]])
    private = hg.Private(model, calibration=SAMPLES[two])
    found = private.predict(SAMPLES[two], mode="simulate")
    assert (found == model.predict(SAMPLES[two])).all()
    assert type(private.classes_[0].item() if hasattr(private.classes_[0], "item") else private.classes_[0]) is type(
        labels[0]
    )
    scores = private.decision_function(SAMPLES[two], mode="simulate")
    assert np.abs(scores - model.decision_function(SAMPLES[two])).max() < 1e-3


def test_amounts_have_a_unit_and_a_coefficient_of_determination() -> None:
    samples, wanted = load_diabetes(return_X_y=True)
    model = Ridge().fit(samples, wanted)
    private = hg.Private(model, calibration=samples, unit="mg/dl")
    assert private.public.outputs[0].unit == "mg/dl"
    assert private.predict(samples, mode="clear").shape == (len(samples),)
    assert private.score(samples, wanted) == pytest.approx(model.score(samples, wanted), abs=1e-3)
    with pytest.raises(hg.ProgramError, match="has no classes"):
        private.predict_proba(samples[0], mode="clear")
    assert not hasattr(private, "classes_")


def test_outliers_are_minus_one() -> None:
    # One tree: the program is small.
    model = IsolationForest(n_estimators=1, max_samples=8, random_state=0).fit(SAMPLES)
    private = hg.Private(model, calibration=SAMPLES, security_bits=None, allow_insecure=True)
    assert (private.predict(SAMPLES, mode="clear") == model.predict(SAMPLES)).all()
    assert np.abs(private.decision_function(SAMPLES, mode="clear") - model.decision_function(SAMPLES)).max() < 1e-6


def test_probabilities_and_scores_are_not_confused() -> None:
    forest = RandomForestClassifier(2, max_depth=2, random_state=0).fit(SAMPLES, NAMES)
    private = hg.Private(forest, calibration=SAMPLES, security_bits=None)
    assert np.abs(private.predict_proba(SAMPLES, mode="clear") - forest.predict_proba(SAMPLES)).max() < 1e-6
    with pytest.raises(hg.ProgramError, match="probabilities and no scores"):
        private.decision_function(SAMPLES, mode="clear")
    support = LinearSVC().fit(SAMPLES, NAMES)
    private = hg.Private(support, calibration=SAMPLES)
    with pytest.raises(hg.ProgramError, match="no probabilities are known"):
        private.predict_proba(SAMPLES)


def test_a_network_is_told_its_classes() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 3)).eval()
    samples = SAMPLES.astype(np.float32)
    with torch.no_grad():
        wanted = network(torch.from_numpy(samples)).numpy()
    bare = hg.Private(network, calibration=samples)
    assert np.abs(bare(samples, mode="clear") - wanted).max() < 1e-5
    assert bare.predict(samples[0], mode="clear").shape == (3,)
    assert (hg.Private(network, calibration=samples, classes=3).classes_ == [0, 1, 2]).all()
    named = hg.Private(network, calibration=samples, classes=["a", "b", "c"])
    assert (named.predict(samples, mode="simulate") == np.array(["a", "b", "c"])[wanted.argmax(1)]).all()
    soft = torch.nn.Sequential(*network, torch.nn.LogSoftmax(1)).eval()
    logarithms = hg.Private(soft, calibration=samples)
    assert np.abs(logarithms.predict_proba(samples, mode="clear").sum(axis=1) - 1).max() < 1e-9
    assert (logarithms.predict(samples, mode="clear") == wanted.argmax(1)).all()
    for classes, words in ((["a", "b"], "2 classes"), (["a", "a", "b"], "one label"), (["a", 1, 2], "one type")):
        with pytest.raises(hg.ProgramError, match=words):
            hg.Private(network, calibration=samples, classes=classes)


def test_samples_a_little_outside() -> None:
    model, private = flowers()
    outside = SAMPLES[:3].copy()
    outside[0] *= 2.2
    for mode in ("simulate", "clear", "encrypted"):
        with pytest.raises(hg.RangeError, match="outside its range") as caught:
            private.predict(outside, mode=mode)
        assert "margin=" in caught.value.hint
        assert "clip=True" in caught.value.hint
        assert len(private.predict(outside, mode=mode, clip=True)) == 3
    private.close()
    wide = hg.Private(model, calibration=SAMPLES, margin=0.5)
    assert (wide.predict(outside, mode="simulate") == model.predict(outside)).all()
    with pytest.raises(hg.ProgramError, match="another one"):
        hg.Private(model, calibration=SAMPLES, margin=0.5, input_range=(0.0, 9.0))


def test_affine_models_have_a_margin_that_costs_nothing() -> None:
    samples, kinds = load_breast_cancer(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(samples[:400], kinds[:400])
    none, private = (hg.Private(model, calibration=samples[:400], margin=margin) for margin in (0.0, None))
    with pytest.raises(hg.RangeError, match="outside its range"):
        none.score(samples[400:], kinds[400:])
    assert private.score(samples[400:], kinds[400:]) == model.score(samples[400:], kinds[400:])
    before, after = (each.report.figures for each in (none, private))
    assert before.predicted == after.predicted
    assert (before.ring_dim, before.levels) == (after.ring_dim, after.levels)
    low, high = samples[:400].min(), samples[:400].max()
    (spec,) = private.public.given
    assert (spec.low, spec.high) == pytest.approx((low - 0.25 * (high - low), high + 0.25 * (high - low)))


def test_other_models_have_no_margin_unless_it_is_given() -> None:
    few = SAMPLES[::5]
    model = GaussianNB().fit(few, few[:, 2] > 3)
    private = hg.Private(model, calibration=few)
    assert (private.public.given[0].low, private.public.given[0].high) == (few.min(), few.max())
    program = hg.from_sklearn(flowers()[0], SAMPLES)
    assert hg.Private(program).public.given[0].high == SAMPLES.max()
    given = hg.Private(flowers()[0], calibration=SAMPLES, input_range=(0.0, 8.0))
    assert given.public.given[0].high == 8.0


def test_an_address_without_a_server_is_soon_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("httpx")
    _, private = flowers()
    private.save(tmp_path / "deploy")
    told: list[tuple[str, int, int]] = []
    loaded = hg.load_client(tmp_path / "deploy" / "client", progress=lambda *at: told.append(at))
    rests: list[float] = []
    clock = time.monotonic
    monkeypatch.setattr(time, "sleep", rests.append)
    monkeypatch.setattr(time, "monotonic", lambda: clock() + sum(rests))
    with pytest.raises(hg.HeliographError, match=r"does not answer .*tried for 10 s") as caught:
        loaded.connect("http://127.0.0.1:1", "x")
    assert caught.value.hint == "is the server running at this address?"
    assert told == [("connecting", 0, 1)]
    assert 2 < sum(rests) <= 10
    with pytest.raises(hg.HeliographError, match="tried for 0 s"):
        loaded.connect("http://127.0.0.1:1", "x", patience_s=0.0)


def test_what_lasts_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = flowers()
    with caplog.at_level(logging.DEBUG, logger="heliograph"), hg.Private(model, calibration=SAMPLES) as private:
        private.predict(SAMPLES[:1])
    said = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    for name, level, words in (
        (
            "heliograph.compiler.driver",
            "DEBUG",
            r"Pipeline: planned for N = 4096, 1 levels, [\d.]+ ms a run, after [\d.]+ s",
        ),
        (
            "heliograph.compiler.driver",
            "INFO",
            r"Pipeline: compiled for N = 4096, 1 levels, [\d.]+ ms a run, after [\d.]+ s",
        ),
        (
            "heliograph.runtime.client.client",
            "INFO",
            r"Pipeline: \d+ evaluation keys of \d+ bytes are made, after [\d.]+ s",
        ),
        ("heliograph.runtime.server.server", "INFO", r"Pipeline: a run ended after [\d.]+ s"),
    ):
        assert [each for each in said if each[:2] == (name, level) and re.fullmatch(words, each[2])], (name, said)


def test_mistakes_are_named() -> None:
    model, private = flowers()
    with pytest.raises(hg.ProgramError, match="expected") as caught:
        private.predict(np.zeros((2, 2, 3)), mode="clear")
    assert "one sample of shape (4,), or many" in caught.value.hint
    with pytest.raises(hg.ProgramError, match="perhaps 'calibration' was meant"):
        hg.Private(model, calibraton=SAMPLES)
    with pytest.raises(hg.ProgramError, match="degre"):
        hg.Private(model, calibration=SAMPLES, degre=7)
    with pytest.raises(hg.ProgramError, match="belongs to the reading of a model") as caught:
        hg.Private(model, calibration=SAMPLES, binned=True)
    assert "hg.from_sklearn(model, samples, binned=...)" in caught.value.hint
    with pytest.raises(hg.ProgramError, match=r"takes a trained model.*builtins\.type") as caught:
        hg.Private(dict, calibration=SAMPLES)
    assert "not its class" in caught.value.hint
    with pytest.raises(hg.ProgramError, match="none of the answers to compare with is a class: the first is a"):
        private.score(SAMPLES[:2], ["a", "b"])
    with pytest.raises(hg.ProgramError, match="none of the answers to compare with is a class: the first is 0"):
        private.score(SAMPLES[:2], ["0", "1"])
    with pytest.raises(hg.ProgramError, match="is not a token"):
        private.connect("http://127.0.0.1:9", None)  # type: ignore[arg-type]
    with pytest.raises(hg.ProgramError, match="mode is 'fast'"):
        private.predict(SAMPLES, mode="fast")  # type: ignore[arg-type]
    with pytest.raises(hg.ProgramError, match="takes 1 inputs, not 2"):
        private.predict(SAMPLES, SAMPLES)
    with pytest.raises(hg.ProgramError, match="compiled already"):
        hg.Private(private.artifact, calibration=SAMPLES)
    with pytest.raises(hg.ProgramError, match="the original model is not here"):
        hg.Private(private.artifact).predict(SAMPLES, mode="clear")
    with pytest.raises(hg.SecurityError, match="not pickled"):
        pickle.dumps(private)


def test_progress_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    stages: list[str] = []
    private = hg.Private(flowers()[0], calibration=SAMPLES, progress=lambda stage, done, total: stages.append(stage))
    with private:
        private.predict(SAMPLES[:2])
        private.predict(SAMPLES[:2], mode="simulate")
    assert list(dict.fromkeys(stages)) == [
        "reading the model", "compiling", "plans in N = 2^12", "evaluation keys", "samples", "simulate",
    ]  # fmt: skip
    assert capsys.readouterr().err == ""


@pytest.mark.front
def test_a_saved_model_is_served_and_called(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    model, private = flowers()
    private.save(tmp_path / "deploy")
    with pytest.raises(hg.ProgramError, match="already exists"):
        private.save(tmp_path / "deploy")
    page = (tmp_path / "deploy" / "README.md").read_text()
    assert private.public.fingerprint in page
    loaded = hg.load_client(tmp_path / "deploy" / "client", fingerprint=private.public.fingerprint)
    assert loaded.classes_.tolist() == model.classes_.tolist()
    with pytest.raises(hg.ProgramError, match="has no server"):
        loaded.predict(SAMPLES[0])
    for mode, said in (("simulate", "needs the compiled program"), ("clear", "the original model is not here")):
        with pytest.raises(hg.ProgramError, match=said) as caught:
            loaded.predict(SAMPLES[0], mode=mode)  # type: ignore[arg-type]
        assert 'mode="encrypted"' in caught.value.hint
    with pytest.raises(hg.SecurityError, match="another artifact"):
        hg.load_client(tmp_path / "deploy" / "client", fingerprint="0" * 64)
    running = Running(tmp_path / "data", [tmp_path / "deploy" / "server" / "model.helio"]).start()
    try:
        for _ in range(2):  # the second time with the key in the folder
            with loaded.connect(running.url, running.token) as remote:
                assert (remote.predict(SAMPLES[49:52]) == model.predict(SAMPLES[49:52])).all()
                assert remote.predict_proba(SAMPLES[0]).shape == (3,)
        assert (tmp_path / "deploy" / "client" / "client.key").stat().st_mode & 0o077 == 0
        with private.connect(running.url, running.token) as remote:
            assert remote.predict(SAMPLES[149]) == model.predict(SAMPLES[149:])[0]
        with pytest.raises(hg.ProgramError, match="is closed"):
            remote.predict(SAMPLES[149])
        other = hg.Private(model, calibration=SAMPLES, margin=0.3)
        with pytest.raises(hg.ProgramError, match="the server does not serve 'Pipeline'"):
            other.connect(running.url, running.token)
    finally:
        assert running.stop() == 0
