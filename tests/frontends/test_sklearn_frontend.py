"""Estimators of scikit-learn: programs that predict what they predict, and refusals of what is neither affine nor an MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.estimators import fitted, meant

import heliograph as hg

pytest.importorskip("sklearn")

from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import (
    ElasticNet,
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, PowerTransformer, RobustScaler, StandardScaler
from sklearn.svm import LinearSVC

from heliograph.errors import ProgramError, UnsupportedError
from heliograph.interpret import interpret

TOY = hg.Options(security_bits=None)
CANCER, IRIS, DIABETES = (load(return_X_y=True) for load in (load_breast_cancer, load_iris, load_diabetes))


# Name -> estimator, its data, and the method that its program computes (scores: an argmax that predicts).
ESTIMATORS: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "logistic, two classes": (lambda: make_pipeline(StandardScaler(), LogisticRegression()), CANCER, "predict_proba"),
    "logistic, three classes": (lambda: LogisticRegression(max_iter=1000), IRIS, "predict_proba"),
    "scaler, PCA, logistic": (
        lambda: make_pipeline(StandardScaler(), PCA(8, whiten=True), LogisticRegression()), CANCER, "predict_proba",
    ),
    "scaler, SVD, selection": (
        lambda: make_pipeline(MaxAbsScaler(), TruncatedSVD(6), SelectKBest(k=3), LogisticRegression()),
        CANCER,
        "predict_proba",
    ),
    "discriminant": (lambda: LinearDiscriminantAnalysis(), IRIS, "predict_proba"),
    "columns": (
        lambda: make_pipeline(
            ColumnTransformer([("a", StandardScaler(), [0, 1]), ("b", MinMaxScaler(), [2])], remainder="passthrough"),
            LogisticRegression(),
        ),
        IRIS,
        "predict_proba",
    ),
    "search": (lambda: GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1, 1.0]}), IRIS, "predict_proba"),
    "perceptron, two classes": (
        lambda: make_pipeline(StandardScaler(), MLPClassifier((6, 4), max_iter=80, random_state=0)), CANCER, "predict_proba",
    ),
    "perceptron, tanh": (
        lambda: make_pipeline(MinMaxScaler(), MLPClassifier((8,), activation="tanh", max_iter=80, random_state=0)),
        IRIS,
        "predict_proba",
    ),
    "perceptron, logistic": (
        lambda: MLPClassifier((5,), activation="logistic", max_iter=80, random_state=0), IRIS, "predict_proba",
    ),
    "perceptron, identity": (
        lambda: MLPClassifier((5,), activation="identity", max_iter=80, random_state=0), IRIS, "predict_proba",
    ),
    "perceptron, regression": (
        lambda: MLPRegressor(hidden_layer_sizes=(6,), max_iter=80, random_state=0), DIABETES, "predict",
    ),
    "linear SVM": (lambda: make_pipeline(StandardScaler(), LinearSVC()), CANCER, "scores"),
    "ridge classifier": (lambda: RidgeClassifier(), IRIS, "scores"),
    "regression": (lambda: LinearRegression(), DIABETES, "predict"),
    "ridge": (lambda: make_pipeline(RobustScaler(), Ridge()), DIABETES, "predict"),
    "elastic net": (lambda: make_pipeline(MinMaxScaler(), ElasticNet(0.01)), DIABETES, "predict"),
    "several targets": (lambda: LinearRegression(), (DIABETES[0], DIABETES[0][:, :3] * 2 + 1), "predict"),
    "transformer": (lambda: make_pipeline(StandardScaler(), PCA(3)), (IRIS[0], None), "transform"),
}  # fmt: skip


@pytest.mark.parametrize("name", ESTIMATORS)
def test_programs_predict_what_estimators_predict(name: str) -> None:
    make, data, method = ESTIMATORS[name]
    estimator, samples = fitted(make(), data), data[0]
    program = hg.from_sklearn(estimator, samples[::2])
    # Those that the program was not made with.
    others = samples[1::2]
    found = meant(program, others)
    assert any(spec.finish for spec in program.interface.outputs) == (method == "predict_proba")
    if method == "scores":
        assert (estimator.classes_[found.argmax(axis=1)] == estimator.predict(others)).all()
        return
    expected = np.asarray(getattr(estimator, method)(others)).reshape(len(others), -1)
    assert np.abs(found - expected).max() < 1e-7 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("name", ["scaler, PCA, logistic", "perceptron, tanh", "ridge", "linear SVM"])
def test_compiled_estimators_err_as_the_bill_says(name: str) -> None:
    make, data, _ = ESTIMATORS[name]
    estimator, samples = fitted(make(), data), data[0]
    program = hg.from_sklearn(estimator, samples, outputs="scores")
    artifact = hg.compile(program, TOY)
    exact = meant(program, samples[:12])
    found = np.array([hg.simulate(artifact, x, seed=place) for place, x in enumerate(samples[:12])])
    # The prediction is no bound: encryption's part of it was seen on two samples.
    assert np.abs(found - exact).max() <= 4 * artifact.report.values["predicted"]["max_abs_error"]
    if hasattr(estimator, "classes_"):
        assert (found.argmax(axis=1) == exact.argmax(axis=1)).all()


def test_steps_of_a_pipeline_are_one_map() -> None:
    """Scaler, PCA and linear model are folded into each other."""
    make, data, _ = ESTIMATORS["scaler, PCA, logistic"]
    artifact = hg.compile(hg.from_sklearn(fitted(make(), data), data[0]), TOY)
    assert artifact.report.values["depth"] == 1
    assert artifact.report.values["predicted_ms_by_layer"][0]["layer"] == "standardscaler+pca+logisticregression"


def test_layers_have_the_names_of_the_steps() -> None:
    make, data, _ = ESTIMATORS["perceptron, two classes"]
    program = hg.from_sklearn(fitted(make(), data), data[0], name="cancer")
    layers = [node.loc.layer for node in program.nodes if node.op != "input"]
    first, second = "mlpclassifier.linear1", "mlpclassifier.relu1"
    assert layers[:3] == ["standardscaler", first, second]
    assert str(program.nodes[-1].loc) == "MLPClassifier() (mlpclassifier.linear3)"
    assert program.name == "cancer"
    artifact = hg.compile(program, replace(TOY, degree=3, degrees={second: 7}))
    assert {row["layer"]: row["degree"] for row in artifact.report.values["ranges"]}[second] == 7


class _Squares(BaseEstimator):
    def fit(self, x: Any, y: Any = None) -> _Squares:
        self.fitted_ = True
        return self

    def transform(self, x: Any) -> Any:
        return np.asarray(x) ** 2


class _Shifted(LogisticRegression):
    """A linear model that predicts something else than it decides."""

    def predict(self, x: Any) -> Any:
        return np.roll(super().predict(x), 1)


@pytest.mark.parametrize(
    ("estimator", "data", "words"),
    [
        (make_pipeline(PowerTransformer(), Ridge()), DIABETES, "its transform is not an affine function"),
        (make_pipeline(_Squares(), Ridge()), DIABETES, "_Squares"),
        (_Shifted(max_iter=500), IRIS, "something else besides"),
        (MLPRegressor("poisson", (4,), max_iter=20), (DIABETES[0], DIABETES[1]), "its output is exp"),
        (MLPClassifier((4,), max_iter=20), (IRIS[0], IRIS[0][:, :2] > 3), "several labels"),
    ],
)
def test_others_are_refused(estimator: Any, data: Any, words: str) -> None:
    with pytest.raises(hg.UnsupportedError, match=words):
        hg.from_sklearn(fitted(estimator, data), data[0])


def test_refusals_say_what_to_give() -> None:
    x, y = IRIS
    model = fitted(LogisticRegression(max_iter=500), IRIS)
    for arguments, words in (
        ((LogisticRegression(), x), "LogisticRegression is not fitted"),
        ((model, x[:, :3]), "does not take samples of shape"),
        ((model, x[0]), r"have shape \(4,\), expected \(samples, features\)"),
        ((model, x[:0]), "expected"),
        ((model, np.where(x > 5, np.nan, x)), "NaN"),
        ((model, "samples"), "not an array of real numbers"),
        ((model, x + 5j), "got ndarray with complex numbers"),
        ((model, x.astype(str)), "got ndarray with texts"),
        ((model, np.ones_like(x)), "hold the one number 1"),
        ((y, x), "takes an estimator of scikit-learn, not ndarray"),
    ):
        with pytest.raises(hg.ProgramError, match=words):
            hg.from_sklearn(*arguments)
    with pytest.raises(hg.RangeError, match=r"outside of input_range \(0, 5\)"):
        hg.from_sklearn(model, x, input_range=(0, 5))
    with pytest.raises(hg.ProgramError, match="low must be below high"):
        hg.from_sklearn(model, x, input_range=(9, 0))
    assert hg.from_sklearn(model, x, input_range=(0, 9)).inputs[0].attrs["high"] == 9
    with pytest.raises(hg.ProgramError, match="outputs"):
        hg.from_sklearn(model, x, outputs="logits")  # type: ignore[arg-type]


def test_other_doors_point_to_this_one() -> None:
    model = fitted(LogisticRegression(max_iter=500), IRIS)
    for door in (lambda: hg.compile(model), lambda: hg.trace(model, IRIS[0])):
        with pytest.raises(hg.ProgramError) as caught:
            door()
        assert "hg.from_sklearn(estimator, samples)" in str(caught.value)


# ---------------------------------------------------------------------------------------------- data frames, refusals


def _frame(rows: int = 64) -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: data frames are not tried")
    random = np.random.default_rng(0)
    return pandas.DataFrame(
        {"age": random.uniform(20, 60, rows), "income": random.uniform(1, 9, rows), "id": np.arange(rows)}
    )


def test_columns_by_name_are_those_of_the_data_frame() -> None:
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    frame = _frame()
    labels = (frame["age"] + 3 * frame["income"] > 55).astype(int)
    columns = ColumnTransformer([("scaled", StandardScaler(), ["income", "age"])])
    model = make_pipeline(columns, LogisticRegression()).fit(frame, labels)
    program = hg.from_sklearn(model, frame)
    assert program.comparison is not None
    assert program.comparison.samples == 64
    assert program.comparison.difference <= 1e-9
    found = interpret(program, frame.to_numpy()[5])
    (spec,) = program.interface.outputs
    np.testing.assert_allclose(spec.finished(found[np.newaxis])[0], model.predict_proba(frame)[5], atol=1e-9)


def _scaled(names: list[str]) -> Any:
    return make_pipeline(ColumnTransformer([("scaled", StandardScaler(), names)]), LogisticRegression())


def _renamed() -> Any:
    """The second step finds its columns under the names that the first one gives them."""
    first = ColumnTransformer([("a", StandardScaler(), ["income", "age"])], remainder="passthrough")
    second = ColumnTransformer([("b", PCA(1), ["a__age", "remainder__id"])], remainder="passthrough")
    return make_pipeline(first.set_output(transform="pandas"), second, LogisticRegression())


@pytest.mark.parametrize("make", [lambda: _scaled(["income", "age"]), _renamed], ids=["by name", "by new names"])
@pytest.mark.parametrize(
    "columns",
    [["age", "income", "id"], ["id", "income", "age"], ["age", "income"], ["extra", "age", "id", "income"]],
    ids=str,
)
def test_features_are_in_the_order_of_the_data_frame_that_is_given(make: Callable[[], Any], columns: list[str]) -> None:
    """Not in that of the one that the estimator was fitted on: values would be taken for those of another column."""
    frame = _frame().assign(extra=1.0)
    model = make().fit(frame[["age", "income", "id"]], frame["age"] + 3 * frame["income"] > 55)
    if "id" not in columns and make is _renamed:
        with pytest.raises(ProgramError, match="columns are missing"):
            hg.from_sklearn(model, frame[columns])
        return
    program = hg.from_sklearn(model, frame[columns])
    np.testing.assert_allclose(meant(program, frame[columns]), model.predict_proba(frame), atol=1e-9)


def test_estimators_that_know_an_order_refuse_another() -> None:
    frame = _frame()
    model = LinearRegression().fit(frame, frame["age"] + 2 * frame["income"])
    assert hg.from_sklearn(model, frame).inputs[0].attrs["shape"] == (3,)
    with pytest.raises(ProgramError, match="feature names should match"):
        hg.from_sklearn(model, frame[["income", "age", "id"]])
    with pytest.raises(ProgramError, match=r"only supported for dataframes(?s:.)*try: give the data frame"):
        hg.from_sklearn(_scaled(["age"]).fit(frame, frame["age"] > 40), frame.to_numpy())


def test_numbers_of_every_kind_are_columns() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: data frames are not tried")
    frame = _frame()
    frame = frame.assign(
        flag=frame["age"] > 40, small=frame["age"].astype("float32"), whole=pandas.array(range(64), "Int64")
    )
    model = fitted(make_pipeline(StandardScaler(), Ridge()), (frame, frame["age"]))
    found = meant(hg.from_sklearn(model, frame), frame.astype(float))
    np.testing.assert_allclose(found[:, 0], model.predict(frame), atol=1e-6)
    frame.columns = ["age", "age", *"abcd"]
    found = meant(
        hg.from_sklearn(fitted(Ridge(), (frame.to_numpy(), frame["a"])), frame), frame.astype(float).to_numpy()
    )
    assert found.shape == (64, 1)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (
            lambda pandas: ["1"] * 64,
            "column 'id' of the samples is not an array of real numbers\n  why: its dtype is object",
        ),
        (lambda pandas: pandas.Categorical(["a", "b"] * 32), "why: its dtype is category"),
        (lambda pandas: pandas.date_range("2020", periods=64), r"why: its dtype is datetime64\[ns\]"),
        (lambda pandas: [1j] * 64, "why: its dtype is complex128"),
        (lambda pandas: pandas.array([1, None] * 32, "Int64"), r"NaN or infinity: nan in sample 1, column 'id'"),
    ],
)
def test_columns_that_are_no_numbers_are_named(column: Callable[[Any], Any], words: str) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: data frames are not tried")
    frame = _frame()
    model = LinearRegression().fit(frame, frame["age"])
    with pytest.raises(ProgramError, match=words) as caught:
        hg.from_sklearn(model, frame.assign(id=column(pandas)))
    assert "on the client" in caught.value.hint


def test_what_replaces_numbers_is_refused() -> None:
    """No probe would meet the number, and a client's samples may."""
    from sklearn.impute import SimpleImputer

    x = np.random.default_rng(0).normal(size=(32, 2))
    imputer = SimpleImputer(missing_values=0)
    for model in (
        make_pipeline(imputer, LinearRegression()),
        make_pipeline(ColumnTransformer([("a", make_pipeline(imputer, StandardScaler()), [0, 1])]), LinearRegression()),
    ):
        with pytest.raises(UnsupportedError, match="it replaces the number 0 by others"):
            hg.from_sklearn(model.fit(x, x[:, 0]), x)
    assert hg.from_sklearn(make_pipeline(SimpleImputer(), LinearRegression()).fit(x, x[:, 0]), x)


@pytest.mark.parametrize("kind", ["OneHotEncoder", "OrdinalEncoder", "TargetEncoder"])
def test_encoders_deep_inside_are_found(kind: str) -> None:
    from sklearn import preprocessing

    x = np.random.default_rng(0).integers(0, 3, (90, 2)).astype(float)
    encoder = make_pipeline(MinMaxScaler(), getattr(preprocessing, kind)())
    model = make_pipeline(ColumnTransformer([("codes", encoder, [0])], remainder="passthrough"), LogisticRegression())
    model.fit(x, (x.sum(axis=1) % 3).astype(int))
    with pytest.raises(UnsupportedError) as caught:
        hg.from_sklearn(model, x)
    assert caught.value.hint.startswith("encode categories on the client")


def test_a_column_of_text_is_named() -> None:
    from sklearn.linear_model import LinearRegression

    frame = _frame()
    model = LinearRegression().fit(frame, frame["age"])
    frame["city"] = "Oslo"
    with pytest.raises(ProgramError, match="column 'city'") as caught:
        hg.from_sklearn(model, frame)
    assert "encode it on the client" in caught.value.hint


class _Doubtful(LogisticRegression):
    """A linear model whose probabilities are nearer to each other than those of its scores."""

    def predict_proba(self, x: Any) -> Any:
        found = np.sqrt(super().predict_proba(x))
        return found / found.sum(axis=1, keepdims=True)


def _fitted(kind: str) -> Any:
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.neighbors import RadiusNeighborsClassifier
    from sklearn.preprocessing import OneHotEncoder

    random = np.random.default_rng(0)
    x = random.integers(0, 3, (90, 2)).astype(float)
    y = (x.sum(axis=1) % 3).astype(int)
    made: Any = {
        "one-hot": make_pipeline(StandardScaler(), OneHotEncoder()),
        "radius": RadiusNeighborsClassifier(2.0),
        "rest": OneVsRestClassifier(LogisticRegression()),
        "other": _Doubtful(),
    }[kind]
    return made.fit(x, y), x


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("one-hot", ["OneHotEncoder", "the values of its samples only", "on the client"]),
        ("radius", ["RadiusNeighborsClassifier", "no decision_function", "KNeighborsClassifier of few points"]),
        ("other", ["_Doubtful", "not the softmax of its scores", 'outputs="scores"']),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_words_that_help(kind: str, words: list[str]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        hg.from_sklearn(*_fitted(kind))
    for word in words:
        assert word in str(caught.value)


def test_scores_are_given_where_they_are_asked_for() -> None:
    model, x = _fitted("rest")
    program = hg.from_sklearn(model, x, outputs="scores")
    found = np.stack([interpret(program, row) for row in x])
    np.testing.assert_allclose(found, model.decision_function(x), atol=1e-9)


def test_missing_values_are_the_clients() -> None:
    from sklearn.linear_model import LinearRegression

    x = np.random.default_rng(0).normal(size=(32, 2))
    model = LinearRegression().fit(x, x[:, 0])
    x[3, 1] = np.nan
    with pytest.raises(ProgramError, match="NaN") as caught:
        hg.from_sklearn(model, x)
    assert "on the client" in caught.value.hint


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_probabilities_are_compared_between_the_classes(seed: int) -> None:
    """Of samples far from the boundary, the softmax and the clipped margin of SGDClassifier are 0 and 1 alike."""
    rows = np.random.default_rng(0).uniform(-1, 1, (20, 8))
    model = SGDClassifier(loss="modified_huber", random_state=seed).fit(rows, rows[:, 0] > 0)
    assert np.exp(-np.abs(model.decision_function(rows))).max() < 1e-5
    with pytest.raises(UnsupportedError) as caught:
        hg.from_sklearn(model, rows)
    assert "not the softmax of its scores" in caught.value.why
