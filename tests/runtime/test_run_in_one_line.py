"""`hg.run`: a module, an estimator, a program or an artifact, encrypted in one line."""

from __future__ import annotations

import numpy as np
import pytest

import heliograph as hg

pytest.importorskip("openfhe")

TOY = hg.Options(security_bits=None)
PLAIN = "program p\ninput x: secret tensor[4] in [-1, 1]\ninput g: plain tensor[4] in [-2, 2]\noutput y = x * g\n"


def test_a_module_is_compiled_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)).eval()
    samples = torch.rand(40, 8)
    with pytest.warns(hg.InsecureWarning):
        found = hg.run(model, samples[3], calibration=samples, options=TOY, allow_insecure=True)
    exact = model(samples[3:4])[0].detach().numpy()
    assert found.shape == (3,)
    assert np.abs(found - exact).max() < 0.05
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["compiled", "made", "encrypted"]
    assert "INSECURE" in lines[0]
    stages: list[str] = []

    def tell(stage: str, done: int, total: int) -> None:
        stages.append(stage)

    with pytest.warns(hg.InsecureWarning):
        hg.run(model, samples[3], calibration=samples, options=TOY, allow_insecure=True, quiet=True, progress=tell)
    assert capsys.readouterr() == ("", "")
    assert [stage for stage in dict.fromkeys(stages) if not stage.startswith("plans")] == [
        "compiling", "evaluation keys", "evaluate",
    ]  # fmt: skip


def test_an_estimator_is_compiled_and_run() -> None:
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    with pytest.warns(hg.InsecureWarning):
        found = hg.run(model, x[70], calibration=x, options=TOY, allow_insecure=True, quiet=True)
    assert np.abs(found - model.predict_proba(x[70:71])[0]).max() < 1e-6
    with pytest.raises(hg.ProgramError, match="calibration=samples"):
        hg.run(model, x[70])


def test_an_artifact_runs_with_its_plain_inputs_and_its_security() -> None:
    artifact = hg.compile(hg.parse(PLAIN), TOY)
    x, g = np.array([0.5, -0.5, 1.0, 0.0]), np.array([2.0, 1.0, -1.0, 0.5])
    with pytest.raises(hg.SecurityError):
        hg.run(artifact, x, plain={"g": g})
    with pytest.warns(hg.InsecureWarning):
        found = hg.run(artifact, x, plain={"g": g}, allow_insecure=True, quiet=True)
    assert np.abs(found - x * g).max() < 1e-6
    for arguments, words in (
        ({"options": TOY}, "options cannot be used here"),
        ({"calibration": x}, "calibration cannot be used here"),
        ({"input_range": (-1, 1)}, "input_range cannot be used here"),
    ):
        with pytest.raises(hg.ProgramError, match=words):
            hg.run(artifact, x, **arguments)


def test_a_program_is_compiled_at_full_security() -> None:
    found = hg.run(
        hg.parse("program a\ninput x: secret tensor[4] in [-1, 1]\noutput y = 2 * x"),
        np.full(4, 0.25),
        options=hg.Options(precision_bits=20),
        quiet=True,
    )
    assert np.abs(found - 0.5).max() < 1e-6
