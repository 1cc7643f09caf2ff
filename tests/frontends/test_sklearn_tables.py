"""Pipelines on tables with texts and missing values: clients compute the first steps, and programs agree on other rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.estimators import meant

import heliograph as hg

pytest.importorskip("sklearn")

from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
    TargetEncoder,
)

from heliograph.errors import ProgramError, RangeError, UnsupportedError, WireError
from heliograph.execution.interface import given_as
from heliograph.ir import Array, Program
from heliograph.passes.base import apply
from heliograph.passes.tensors.expand import Expand

pandas: Any = pytest.importorskip("pandas", reason="pandas is not installed: data frames are not tried")

TOY = hg.Options(security_bits=None)
NUMBERS, TEXTS = ["age", "income"], ["city", "job"]


def table(rows: int, seed: int, holes: float = 0.1) -> Any:
    """A table of numbers and texts, some of them missing, and a whole number that is a category."""
    random = np.random.default_rng(seed)
    frame = pandas.DataFrame(
        {
            "age": random.uniform(20, 80, rows),
            "city": random.choice(["Oslo", "Rome", "Lima"], rows),
            "income": random.uniform(0, 1e5, rows),
            "job": random.choice(["a", "b"], rows),
            "kids": random.integers(0, 4, rows),
            "id": [f"row {place}" for place in range(rows)],
        }
    )
    for column in ("age", "city"):
        frame.loc[random.random(rows) < holes, column] = np.nan
    return frame


def labels(frame: Any) -> Array:
    return np.asarray((frame["age"].fillna(50) > 50) ^ (frame["city"] == "Oslo"), dtype=int)


SEEN, OTHERS = table(300, 0), table(150, 1)
FULL = table(200, 2, 0.0)


def usual() -> Any:
    return make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), NUMBERS),
        (make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")), TEXTS),
        sparse_threshold=0,
    )


def agrees(model: Any, seen: Any, others: Any) -> Program:
    """The program, which gives the estimator's probabilities or features of other rows."""
    program = hg.from_sklearn(model, seen)
    found = model.predict_proba(others) if hasattr(model, "predict_proba") else model.transform(others)
    expected = np.asarray(found.toarray() if hasattr(found, "toarray") else found, dtype=float)
    np.testing.assert_allclose(meant(program, others), expected, atol=1e-7 * max(1.0, np.abs(expected).max()))
    return program


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        RandomForestClassifier(4, max_depth=4, random_state=0),
        HistGradientBoostingClassifier(max_iter=4),
        MLPClassifier((8,), max_iter=20, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore")
def test_models_behind_imputers_and_encoders(model: Any) -> None:
    fitted = make_pipeline(usual(), model).fit(SEEN, labels(SEEN))
    others = OTHERS.copy()
    others.loc[3, "city"] = "Paris"
    program = agrees(fitted, SEEN, others)
    (spec,) = program.interface.inputs
    turned = others[list(reversed(others.columns))]
    np.testing.assert_array_equal(given_as(spec, turned), given_as(spec, others))
    np.testing.assert_array_equal(given_as(spec, others.iloc[3]), np.asarray(given_as(spec, others))[3])


FEATURES: dict[str, Any] = {
    "numbers as categories": make_column_transformer((OneHotEncoder(), ["kids"]), remainder="drop"),
    "dropped categories": make_column_transformer((OneHotEncoder(drop="first"), ["job", "kids"])),
    "missing as a category": make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["city"])),
    "few categories": make_column_transformer(
        (OneHotEncoder(max_categories=2, handle_unknown="infrequent_if_exist"), ["kids", "job"])
    ),
    "codes": make_column_transformer(
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2), TEXTS)
    ),
    "codes, then an imputer": make_column_transformer(
        (make_pipeline(OrdinalEncoder(), SimpleImputer(strategy="constant", fill_value=7, add_indicator=True)), TEXTS)
    ),
    "flags": make_column_transformer(
        (SimpleImputer(add_indicator=True), NUMBERS), (MissingIndicator(), ["age"]), remainder="drop"
    ),
    "two fills": make_column_transformer(
        (SimpleImputer(strategy="mean"), ["age"]), (SimpleImputer(strategy="constant", fill_value=200.0), ["age"])
    ),
    "fills and bins": FeatureUnion(
        [
            ("a", make_column_transformer((make_pipeline(SimpleImputer(), KBinsDiscretizer(4)), ["age"]))),
            ("b", make_column_transformer((KBinsDiscretizer(3, encode="ordinal"), ["income", "kids"]))),
            ("c", make_column_transformer((SimpleImputer(strategy="constant", fill_value=0), ["age"]))),
        ],
        transformer_weights={"b": 3.0},
    ),
    "imputers first, then encoders": make_pipeline(
        make_column_transformer((SimpleImputer(), NUMBERS), (SimpleImputer(strategy="most_frequent"), TEXTS)),
        make_column_transformer((OneHotEncoder(), [2, 3]), (PolynomialFeatures(2), [0, 1]), remainder="drop"),
    ),
    "functions in the program": make_column_transformer(
        (make_pipeline(SimpleImputer(), FunctionTransformer(np.square)), ["age"]), ("passthrough", ["kids"])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.filterwarnings("ignore")
def test_features_are_those_of_the_transformers(name: str) -> None:
    agrees(FEATURES[name].fit(SEEN), SEEN, OTHERS)


@pytest.mark.filterwarnings("ignore")
def test_means_of_targets() -> None:
    model = make_pipeline(make_column_transformer((TargetEncoder(random_state=0), TEXTS)), LogisticRegression())
    others = OTHERS.copy()
    others.loc[3, "city"] = "Paris"
    agrees(model.fit(SEEN, labels(SEEN)), SEEN, others)


def test_columns_of_pandas_own_kinds() -> None:
    frames = []
    for frame in (SEEN, OTHERS):
        frame = frame.astype({"city": "category", "job": "string"}).drop(columns="id")
        frame["kids"] = frame["kids"].astype("Int64")
        frames.append(frame)
    model = make_pipeline(usual(), LogisticRegression()).fit(frames[0], labels(SEEN))
    agrees(model, *frames)


def test_arrays_of_texts_and_of_numbers_with_holes() -> None:
    texts, others = SEEN[["job", "kids"]].to_numpy(), OTHERS[["job", "kids"]].to_numpy()
    agrees(make_pipeline(OneHotEncoder(), LogisticRegression()).fit(texts, labels(SEEN)), texts, others)
    numbers, others = SEEN[NUMBERS].to_numpy(), OTHERS[NUMBERS].to_numpy()
    imputed = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()).fit(numbers, labels(SEEN))
    agrees(imputed, numbers, others)


def test_texts_that_are_dropped_do_no_harm() -> None:
    model = make_pipeline(make_column_transformer((StandardScaler(), NUMBERS)), LogisticRegression())
    agrees(model.fit(FULL, labels(FULL)), FULL, FULL)


@pytest.mark.filterwarnings("ignore")
def test_a_number_at_an_edge_is_in_the_bin_above() -> None:
    frame = pandas.DataFrame({"age": np.arange(12.0), "city": ["Oslo"] * 12})
    model = make_column_transformer((KBinsDiscretizer(4, encode="onehot-dense", strategy="uniform"), ["age"]))
    edges = model.fit(frame).transformers_[0][1].bin_edges_[0]
    others = pandas.DataFrame({"age": [*edges, *np.nextafter(edges, -np.inf)], "city": "Oslo"})
    agrees(model, frame, others)


def test_encrypted_answers() -> None:
    model = make_pipeline(usual(), LogisticRegression()).fit(SEEN, labels(SEEN))
    artifact = hg.compile(hg.from_sklearn(model, SEEN), TOY)
    row = OTHERS.iloc[[5]]
    assert np.abs(hg.simulate(artifact, row.iloc[0]) - model.predict_proba(row)[0]).max() < 1e-3
    with pytest.raises(RangeError, match=r"\[20\.\d+, 79\.\d+\] in column 'age'"):
        hg.simulate(artifact, row.assign(age=200.0).iloc[0])


def test_unknown_and_missing_values_are_refused_by_clients() -> None:
    model = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["city", "kids"]), ("passthrough", ["income"])), LogisticRegression()
    )
    program = hg.from_sklearn(model.fit(FULL, labels(FULL)), FULL)
    with pytest.raises(ProgramError, match="unknown value in column 'city'"):
        meant(program, FULL.assign(city="Paris"))
    with pytest.raises(ProgramError, match="unknown value in column 'kids'"):
        meant(program, FULL.assign(kids=9))
    for column in ("city", "income"):
        with pytest.raises(ProgramError, match=f"no value in column '{column}'"):
            meant(program, FULL.assign(**{column: None}))
    with pytest.raises(ProgramError, match="column 'income' holds a text"):
        meant(program, FULL.assign(income="much"))
    with pytest.raises(ProgramError, match="no column 'income'"):
        meant(program, FULL.drop(columns="income"))


@pytest.mark.parametrize(
    ("step", "frame", "error", "words"),
    [
        (make_column_transformer((SimpleImputer(missing_values="a", strategy="most_frequent"), ["job"])), FULL,
         UnsupportedError, "it replaces 'a' by other values"),
        (make_column_transformer((make_pipeline(StandardScaler(), SimpleImputer()), ["age"])), SEEN,
         ProgramError, "column 'age' of the samples has NaN or missing values, and StandardScaler takes numbers"),
        (make_column_transformer((SimpleImputer(strategy="most_frequent"), TEXTS)), FULL,
         ProgramError, "column 'city' of the samples holds texts, and ColumnTransformer takes numbers"),
        (make_column_transformer((make_pipeline(StandardScaler(), OneHotEncoder()), ["kids"])), FULL,
         UnsupportedError, "OneHotEncoder cannot be compiled"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_words(step: Any, frame: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        hg.from_sklearn(step.fit(frame), frame)


def test_options_that_do_not_fit_are_refused() -> None:
    model = make_pipeline(usual(), RandomForestClassifier(2, max_depth=2)).fit(SEEN, labels(SEEN))
    with pytest.raises(UnsupportedError, match="here they encode columns first"):
        hg.from_sklearn(model, SEEN, binned=True)
    with pytest.raises(ProgramError, match="one interval for all features"):
        hg.from_sklearn(model, SEEN, input_range=(0, 1))
    strict = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(FULL[["city"]], labels(FULL))
    with pytest.raises(ProgramError, match="unknown categories"):
        hg.from_sklearn(strict, FULL[["city"]].assign(city="Paris"))


@pytest.mark.parametrize(
    "change",
    [
        {"known": (0, 0)},
        {"known": (99,), "allowed": ((1.0,),)},
        {"allowed": ((0.0, 1e300),)},
        {"allowed": ((float("nan"),),)},
        {"allowed": (("a",),)},
        {"allowed": ()},
    ],
)
def test_public_parts_with_other_known_values_are_refused(change: dict[str, Any]) -> None:
    from heliograph.artifact.validate import check_spec

    model = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(FULL[["city"]], labels(FULL))
    public = hg.compile(hg.from_sklearn(model, FULL[["city"]]), TOY).public()
    assert type(public).from_bytes(public.to_bytes()).inputs == public.inputs
    spec, own = public.inputs[0], public.inputs[0].encoding
    assert own is not None
    assert own.known == (0,)
    with pytest.raises(WireError):
        check_spec(replace(spec, encoding=replace(own, **{"known": (0,), **change})), public.ring, "input")


@pytest.mark.parametrize("numbers", [False, True])
def test_trees_read_bits_of_clients_without_comparisons(numbers: bool) -> None:
    random = np.random.default_rng(0)
    rows = pandas.DataFrame({"size": random.normal(size=300), "kind": random.choice(["x", "y", "z"], 300)})
    wanted = (rows["kind"] == "x") | ((rows["size"] > 0.3) & (rows["kind"] == "y"))
    columns = [("kinds", OneHotEncoder(), ["kind"]), *([("sizes", "passthrough", ["size"])] if numbers else [])]
    model = make_pipeline(ColumnTransformer(columns), GradientBoostingClassifier(n_estimators=4, random_state=0))
    program = hg.from_sklearn(model.fit(rows, wanted), rows)
    signs = [node for node in apply(Expand(), program).nodes if node.op == "sign"]
    splits = [node for node in program.nodes if node.op == "tree_ensemble"]
    assert bool(signs) == numbers
    if numbers:
        # Comparisons of the number alone.
        features = program.array(splits[0].attrs["features"])
        assert signs[0].type.size == int((features == 3).sum()) < features.size  # type: ignore[union-attr]
    artifact = hg.compile(program, TOY)
    for place in range(5):
        found = hg.simulate(artifact, rows.iloc[place])
        assert np.abs(found - model.predict_proba(rows.iloc[[place]])).max() < 0.01
