"""What users give as inputs: data frames, truth values, masked arrays, tensors; and what is outside the declared range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import heliograph as hg
from heliograph.artifact.artifact import Artifact
from heliograph.errors import ProgramError, RangeError, WireError

TOY = hg.Options(security_bits=None)
COLUMNS = ["age", "income", "debt", "rooms"]


def table() -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(0).normal(size=(120, 4)), columns=COLUMNS)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    rows = table()
    estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, rows["debt"] > rows["age"])
    return hg.compile(hg.from_sklearn(estimator, rows), TOY)


def test_rows_of_data_frames_are_read_by_their_columns(artifact: Artifact) -> None:
    rows = table()
    wanted = hg.simulate(artifact, rows.iloc[7].to_numpy())
    other = rows[["rooms", "debt", "age", "income"]].assign(name="x")
    np.testing.assert_array_equal(hg.simulate(artifact, other.iloc[7].drop("name")), wanted)
    np.testing.assert_array_equal(hg.simulate(artifact, other.iloc[7]), wanted)
    # Without names, by their places.
    np.testing.assert_array_equal(hg.simulate(artifact, pd.Series(rows.iloc[7].to_numpy())), wanted)
    with pytest.raises(ProgramError, match="has no column 'debt'") as refused:
        hg.simulate(artifact, rows.iloc[7].drop("debt"))
    assert "'age', 'income', 'debt', 'rooms'" in refused.value.why
    with pytest.raises(ProgramError, match="a column twice"):
        hg.simulate(artifact, pd.concat([rows.iloc[7], rows.iloc[7]]))


def test_clients_read_data_frames_by_their_columns(artifact: Artifact) -> None:
    rows = table()
    client = hg.Client(artifact.public(), allow_insecure=True)
    (spec,) = client.public.given
    assert spec.columns == tuple(COLUMNS)
    server = hg.Server(artifact, client.evaluation_keys(), allow_insecure=True)
    turned = rows[COLUMNS[::-1]].head(3)
    answers = [client.decrypt(server.run(each)) for each in client.encrypt_many(turned)]
    wanted = [hg.simulate(artifact, rows.iloc[place].to_numpy()) for place in range(3)]
    np.testing.assert_allclose(np.reshape(answers, (3, -1)), np.reshape(wanted, (3, -1)), atol=1e-4)


def test_models_of_torch_take_the_columns_of_the_samples() -> None:
    torch.manual_seed(0)
    rows = table()
    artifact = hg.compile(hg.trace(nn.Linear(4, 2), calibration=rows.astype(np.float32)), TOY)
    turned = rows[COLUMNS[::-1]]
    np.testing.assert_array_equal(hg.simulate(artifact, turned.iloc[3]), hg.simulate(artifact, rows.iloc[3].to_numpy()))


@pytest.mark.parametrize("columns", [("age", "age", "debt", "rooms"), ("age",), ("a\nb", "c", "d", "e"), (1, 2, 3, 4)])
def test_columns_of_a_stranger_are_checked(artifact: Artifact, columns: Any) -> None:
    public = artifact.public()
    (spec,) = public.inputs
    object.__setattr__(spec, "columns", columns)
    with pytest.raises(WireError):
        hg.PublicArtifact.from_bytes(public.to_bytes())


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x, m: x * m, torch.tensor([True, False, True])),
        (lambda x, m: torch.where(m, x, 0.25), torch.tensor([True, False, True])),
        (lambda x, m: x.masked_fill(~m, 0.5), torch.tensor([True, False, True])),
        (lambda x, m: x + m, torch.tensor([4, 0, 2])),
        (lambda x, m: x * (m > 2), torch.tensor([4, 0, 2])),
    ],
)
@pytest.mark.parametrize("plain", [("m",), ()], ids=["plain", "encrypted"])
def test_truth_values_and_whole_numbers(function: Callable[..., Any], given: torch.Tensor, plain: Any) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, m: torch.Tensor) -> Any:
            return function(x, m)

    torch.manual_seed(0)
    x = torch.randn(40, 3)
    whole = torch.rand(40, 3) > 0.5 if given.dtype is torch.bool else torch.randint(0, 5, (40, 3))
    artifact = hg.compile(hg.trace(Model(), calibration=(x, whole), plain=plain), TOY)
    found = hg.simulate(artifact, x[0], given)
    np.testing.assert_allclose(found, Model()(x[:1], given[None])[0], atol=1e-3)


def linear() -> Artifact:
    torch.manual_seed(0)
    return hg.compile(hg.trace(nn.Linear(3, 2), calibration=torch.rand(50, 3)), TOY)


def test_the_simulator_refuses_what_clients_refuse() -> None:
    artifact = linear()
    beyond = np.array([0.5, 3.0, 0.5])
    words = r"outside its range .* at index \(1,\)"
    with pytest.raises(RangeError, match=words):
        hg.simulate(artifact, beyond)
    with pytest.raises(RangeError, match=words):
        hg.Client(artifact.public(), allow_insecure=True).encrypt(beyond)


def test_tensors_of_any_precision_are_taken_and_missing_values_are_not() -> None:
    artifact = linear()
    x = torch.tensor([0.5, 0.25, 0.75])
    wanted = hg.simulate(artifact, x.numpy())
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        np.testing.assert_array_equal(hg.simulate(artifact, x.to(dtype)), wanted)
    with pytest.raises(ProgramError, match="not an array of real numbers") as refused:
        hg.simulate(artifact, np.ma.masked_greater(x.numpy(), 0.6))
    assert "missing" in refused.value.why
    np.testing.assert_array_equal(hg.simulate(artifact, np.ma.masked_greater(x.numpy(), 2.0)), wanted)
    with pytest.raises(ProgramError, match="without data"):
        hg.simulate(artifact, torch.empty(3, device="meta"))
