"""Tree models: programs and estimators agree, on features and on clients' comparisons, on rows that were not seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.estimators import meant
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import heliograph as hg
from heliograph.errors import ProgramError, RangeError, UnsupportedError, WireError
from heliograph.execution.interface import given_as
from heliograph.frontends.trees.ensemble import Ensemble, Tree, at_most_float32
from heliograph.frontends.trees.nodes import form_of, on_thresholds
from heliograph.frontends.trees.program import boosted_model
from heliograph.ir import Array, Location
from heliograph.ir.encoding import Encoding
from heliograph.ir.interface import TensorSpec

CANCER, IRIS, DIABETES = (load(return_X_y=True) for load in (load_breast_cancer, load_iris, load_diabetes))
TOY = hg.Options(security_bits=None)
SEED: dict[str, Any] = {"random_state": 0}

MODELS: dict[str, tuple[Any, Any, str]] = {
    "tree": (DecisionTreeClassifier(max_depth=4, **SEED), IRIS, "predict_proba"),
    "extra tree of unequal depth": (DecisionTreeRegressor(splitter="random", max_leaf_nodes=9, **SEED), DIABETES, "predict"),
    "forest": (RandomForestClassifier(7, max_depth=4, **SEED), CANCER, "predict_proba"),
    "forest, regression": (RandomForestRegressor(7, max_depth=4, **SEED), DIABETES, "predict"),
    "extra trees": (ExtraTreesClassifier(5, max_depth=5, **SEED), IRIS, "predict_proba"),
    "extra trees, regression": (ExtraTreesRegressor(5, max_depth=5, **SEED), DIABETES, "predict"),
    "several targets": (RandomForestRegressor(4, max_depth=3, **SEED), (DIABETES[0], DIABETES[0][:, :3]), "predict"),
    "boosting": (GradientBoostingClassifier(n_estimators=6, **SEED), CANCER, "predict_proba"),
    "boosting, three classes": (GradientBoostingClassifier(n_estimators=4, **SEED), IRIS, "predict_proba"),
    "boosting, regression": (GradientBoostingRegressor(n_estimators=6, **SEED), DIABETES, "predict"),
    "histograms": (HistGradientBoostingClassifier(max_iter=5, **SEED), CANCER, "predict_proba"),
    "histograms, three classes": (HistGradientBoostingClassifier(max_iter=3, **SEED), IRIS, "predict_proba"),
    "histograms, monotonic": (
        HistGradientBoostingRegressor(max_iter=5, monotonic_cst=[0, 0, 1] + [0] * 7, **SEED), DIABETES, "predict",
    ),
    "adaboost": (AdaBoostClassifier(n_estimators=6, **SEED), CANCER, "predict_proba"),
    "adaboost, three classes": (AdaBoostClassifier(DecisionTreeClassifier(max_depth=2), n_estimators=4, **SEED), IRIS,
                                "predict_proba"),
    "bagging": (BaggingClassifier(n_estimators=4, max_features=0.5, **SEED), IRIS, "predict_proba"),
    "bagging, regression": (
        BaggingRegressor(DecisionTreeRegressor(max_depth=4), n_estimators=4, max_features=0.5, **SEED), DIABETES, "predict",
    ),
    "isolation forest": (IsolationForest(n_estimators=6, max_samples=32, **SEED), CANCER, "decision_function"),
}  # fmt: skip


def fitted(name: str) -> tuple[Any, Array, Array, str]:
    """An estimator, the samples of its program, other samples, and the method that the program stands for."""
    model, (x, y), method = MODELS[name]
    return model.fit(x[::2], y[::2]), x[::2], x[1::2], method


@pytest.mark.parametrize("binned", [False, True, "shared"])
@pytest.mark.parametrize("name", MODELS)
def test_programs_predict_what_trees_predict(name: str, binned: Any) -> None:
    model, seen, others, method = fitted(name)
    # Numbers that have 32 bits: the trees round others before they compare.
    seen, others = (rows.astype(np.float32).astype(np.float64) for rows in (seen, others))
    program = hg.from_sklearn(model, seen, binned=binned)
    expected = np.asarray(getattr(model, method)(others)).reshape(len(others), -1)
    assert np.abs(meant(program, others) - expected).max() < 1e-7 * max(1.0, np.abs(expected).max())


def test_thresholds_are_those_of_numbers_with_32_bits() -> None:
    random = np.random.default_rng(0)
    thresholds = random.normal(size=2000) * 10.0 ** random.integers(-20, 20, 2000)
    numbers = thresholds * (1.0 + random.normal(size=2000) * 1e-7)
    wanted = numbers.astype(np.float32) <= thresholds
    assert 500 < wanted.sum() < 1500
    assert ((numbers <= at_most_float32(thresholds)) == wanted).all()


def mixed(rows: int, seed: int) -> Array:
    """A table with two columns of categories, unseen ones among them, and missing values."""
    random = np.random.default_rng(seed)
    table = random.normal(size=(rows, 5))
    table[:, 0], table[:, 3] = random.integers(0, 6, rows), random.integers(10, 14, rows)
    if seed:
        table[: rows // 3, 0] += 2
    table[random.random(table.shape) < 0.15] = np.nan
    return np.asarray(table)


@pytest.mark.parametrize("shared", [True, "shared"])
@pytest.mark.parametrize(
    "model",
    [
        HistGradientBoostingRegressor(max_iter=6, categorical_features=[0, 3], **SEED),
        HistGradientBoostingRegressor(max_iter=6, **SEED),
        DecisionTreeRegressor(max_depth=5, **SEED),
        RandomForestRegressor(5, max_depth=5, **SEED),
    ],
    ids=["categories", "numbers", "tree", "forest"],
)
def test_missing_values_and_categories_go_where_the_model_says(model: Any, shared: Any) -> None:
    seen, others = mixed(400, 0), mixed(900, 1)
    y = np.isin(seen[:, 0], [1, 4]) * 2.0 + np.nan_to_num(seen[:, 1]) * (seen[:, 3] == 12) + np.isnan(seen[:, 2])
    program = hg.from_sklearn(model.fit(seen, y), seen, binned=shared)
    assert np.abs(meant(program, others)[:, 0] - model.predict(others)).max() < 1e-12


def test_categories_take_no_more_levels_than_numbers() -> None:
    table = mixed(400, 0)
    y = np.isin(table[:, 0], [1, 4]) * 2.0 + np.nan_to_num(table[:, 1])
    model = HistGradientBoostingRegressor(max_iter=4, max_depth=4, categorical_features=[0, 3], **SEED).fit(table, y)
    artifact = hg.compile(hg.from_sklearn(model, table, binned=True), TOY)
    assert artifact.report.values["depth"] == 5
    assert abs(hg.simulate(artifact, table[0])[0] - model.predict(table[:1])[0]) < 1e-3


# Models with the predictions of the libraries that trained them.
FILES = sorted(
    path for path in (Path(__file__).parent / "trees_models").iterdir() if path.suffix in (".json", ".txt", ".ubj")
)


@pytest.mark.parametrize("binned", [False, True, "shared"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_of_other_libraries_become_programs(path: Path, binned: Any) -> None:
    with np.load(path.with_suffix(".answers.npz")) as answers:
        samples, expected = answers["samples"].astype(np.float64), answers["predictions"]
    if path.stem == "lightgbm-zeros-apart":
        with pytest.raises(UnsupportedError, match="sends 0 where neither"):
            hg.from_trees(path, samples, binned=binned)
        return
    categories = any(tree.categories for tree in boosted_model(path)[0].ensemble.trees)
    constant = all((tree.feature < 0).all() for tree in boosted_model(path)[0].ensemble.trees)
    if not binned:
        complete = ~np.isnan(samples).any(axis=1)
        samples, expected = samples[complete], expected[complete]
    if constant or (categories and not binned):
        with pytest.raises(UnsupportedError, match="constant" if constant else "binned=True"):
            hg.from_trees(path, samples, binned=binned)
        return
    found = meant(hg.from_trees(path, samples, binned=binned), samples)
    expected = expected.reshape(len(samples), -1)
    if found.shape[1] > expected.shape[1]:
        # The library gives the probability of the second class alone.
        found = found[:, 1:]
    sided = slice(None) if binned else ~on_thresholds(boosted_model(path)[0].ensemble, samples)
    assert np.abs(found - expected)[sided].max() < 1e-5 * max(1.0, np.abs(expected).max())


def test_missing_values_are_refused_where_none_were_seen() -> None:
    model, seen, others, _ = fitted("histograms")
    program = hg.from_sklearn(model, seen, binned=True)
    holed = others.copy()
    holed[3, 7] = np.nan
    with pytest.raises(ProgramError, match="no value in column number 7"):
        meant(program, holed)
    with pytest.raises(ProgramError, match="expected \\(30,\\)"):
        meant(program, others[:, :5])
    with pytest.raises(ProgramError, match="NaN"):
        hg.from_sklearn(model, holed)


@pytest.mark.parametrize(
    ("model", "binned", "words"),
    [
        (AdaBoostRegressor(n_estimators=3), False, "weighted median"),
        (make_pipeline(StandardScaler(), DecisionTreeClassifier()), True, "for decision trees only"),
        (LogisticRegression(max_iter=500), True, "for decision trees only"),
        (DecisionTreeClassifier(max_depth=1, min_samples_leaf=100), False, "predict a constant"),
    ],
)
def test_others_are_refused(model: Any, binned: bool, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        hg.from_sklearn(model.fit(*IRIS), IRIS[0], binned=binned)


def test_several_labels_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="several labels"):
        hg.from_sklearn(DecisionTreeClassifier().fit(IRIS[0], IRIS[0][:, :2] > 3), IRIS[0])


def test_trees_may_follow_other_steps() -> None:
    model = make_pipeline(StandardScaler(), RandomForestClassifier(4, max_depth=3, **SEED)).fit(*CANCER)
    program = hg.from_sklearn(model, CANCER[0])
    assert np.abs(meant(program, CANCER[0]) - model.predict_proba(CANCER[0])).max() < 1e-7


@pytest.mark.parametrize(
    ("name", "binned"), [("boosting, three classes", True), ("forest, regression", True), ("tree", False)]
)
def test_encrypted_answers_are_those_of_the_trees(name: str, binned: bool) -> None:
    model, seen, others, method = fitted(name)
    program = hg.from_sklearn(model, seen, binned=binned)
    artifact = hg.compile(program, TOY)
    expected = np.asarray(getattr(model, method)(others[:4])).reshape(4, -1)
    with pytest.warns(hg.InsecureWarning):
        client = hg.Client(artifact.public(), allow_insecure=True)
    with pytest.warns(hg.InsecureWarning):
        server = hg.Server(artifact, client.evaluation_keys(), allow_insecure=True)
    for row, wanted in zip(others[:4], expected, strict=True):
        found = client.decrypt(server.run(client.encrypt(row)))
        size = max(1.0, float(np.abs(expected).max()))
        assert np.abs(found - hg.simulate(artifact, row)).max() < 1e-3 * size
        # Features that are compared under encryption may lie near a threshold.
        assert np.abs(found - wanted).max() < (1e-3 if binned else 0.05) * size


def test_a_client_learns_thresholds_and_no_values() -> None:
    model, seen, _, _ = fitted("forest")
    public = hg.compile(hg.from_sklearn(model, seen, binned="shared"), TOY).public()
    encoding = public.inputs[0].encoding
    assert encoding is not None
    assert len(set(zip(encoding.compared, encoding.edges, strict=True))) == len(encoding.edges)
    restored = type(public).from_bytes(public.to_bytes())
    assert restored.inputs[0].encoding == encoding
    edges = {float(at_most_float32(np.array([t]))[0]) for each in model.estimators_ for t in each.tree_.threshold}
    assert set(encoding.edges) <= edges


def test_without_comparisons_a_public_part_names_ranges_of_samples_alone() -> None:
    model, seen, _, _ = fitted("tree")
    encoding = hg.compile(hg.from_sklearn(model, seen), TOY).public().inputs[0].encoding
    assert encoding is not None
    assert not encoding.edges
    assert encoding.numbers == (0, 1, 2, 3)
    assert np.allclose(np.array(encoding.centres) + encoding.scales, seen.max(axis=0))
    assert np.allclose(np.array(encoding.centres) - encoding.scales, seen.min(axis=0))


def test_data_frames_are_read_by_their_columns() -> None:
    pandas = pytest.importorskip("pandas")
    x = load_iris(as_frame=True).data
    model = DecisionTreeClassifier(max_depth=3, **SEED).fit(x, IRIS[1])
    program = hg.from_sklearn(model, x, binned=True)
    turned = pandas.DataFrame(x[list(reversed(x.columns))])
    (spec,) = program.interface.inputs
    assert (given_as(spec, turned) == program.calibration[0]).all()
    assert given_as(spec, x.iloc[5]).shape == spec.shape


def test_comparisons_never_have_the_length_of_a_row() -> None:
    """So that what is compared already is told from what is not."""
    encoding = Encoding(2, compared=(0, 1), edges=(0.5, 0.5))
    assert encoding.elements == 3
    assert encoding.encoded(np.array([[0.0, 1.0], [1.0, 0.5]])).tolist() == [[0, 1, 0], [1, 0, 0]]
    spec = TensorSpec("x", (3,), encoding=encoding)
    made = np.array([0.0, 1.0, 0.0])
    assert given_as(spec, made) is made


def test_whole_numbers_keep_half_a_step_from_thresholds() -> None:
    x = np.arange(40.0).reshape(20, 2)
    model = DecisionTreeRegressor(max_depth=3).fit(x, x[:, 0] > 20)
    program = hg.from_sklearn(model, x)
    (node,) = [node for node in program.nodes if node.op == "tree_ensemble"]
    thresholds = program.constants[node.attrs["thresholds"]]
    assert isinstance(thresholds, np.ndarray)
    assert (thresholds % 1 == 0.5).all()
    artifact = hg.compile(program, TOY)
    entry, encoding = artifact.report.values["ranges"][0], artifact.public().inputs[0].encoding
    assert encoding is not None
    assert encoding.rounded == (0, 1)
    assert entry["gap_source"] == "proved: no whole number is nearer"
    (threshold,), (feature,) = thresholds, program.array(node.attrs["features"]).astype(int)
    assert entry["gap"] == pytest.approx(0.5 / np.abs(x[:, feature] - threshold).max())
    assert "2 of them rounded to whole numbers" in " ".join(artifact.report.full().split())
    # What lies between two whole numbers is one of them on the client, so no answer is between two.
    for value in (threshold - 0.3, threshold + 0.3, threshold - 0.5, threshold + 0.5):
        found = hg.simulate(artifact, np.full(2, value))[0]
        assert found == pytest.approx(float(round(value) > threshold), abs=0.01)


def test_what_is_declared_whole_is_looked_at() -> None:
    x = np.arange(40.0).reshape(20, 2)
    program = hg.from_sklearn(DecisionTreeRegressor(max_depth=3).fit(x, x[:, 0] > 20), x)
    (samples,) = program.calibration
    with pytest.raises(ProgramError, match="declared whole are not"):
        hg.compile(replace(program, calibration=(samples * 0.9,)), TOY)


def test_a_gap_of_large_whole_numbers_is_observed() -> None:
    random = np.random.default_rng(0)
    x = np.round(random.normal(size=(300, 2)) * 1e6)
    model = DecisionTreeRegressor(max_depth=3).fit(x, x[:, 0] > x[:, 1])
    entry = hg.compile(hg.from_sklearn(model, x), TOY).report.values["ranges"][0]
    assert entry["gap_source"].startswith("observed: samples come nearer in")


@pytest.mark.parametrize(
    "change",
    [
        {"left": np.array([1, -1, -1]), "right": np.array([1, -1, -1])},
        {"left": np.array([0, -1, -1])},
        {"right": np.array([7, -1, -1])},
        {"threshold": np.array([np.nan, 0, 0])},
        {"value": np.array([[0.0], [np.inf], [1.0]])},
        {"value": np.zeros((2, 1))},
        {"feature": np.zeros(0, dtype=int)},
    ],
)
def test_what_is_no_tree_is_refused(change: dict[str, Array]) -> None:
    own: dict[str, Any] = {
        "feature": np.array([0, -1, -1]),
        "threshold": np.array([0.5, 0.0, 0.0]),
        "left": np.array([1, -1, -1]),
        "right": np.array([2, -1, -1]),
        "value": np.array([[0.0], [1.0], [2.0]]),
    }
    assert Ensemble((Tree(**own),), np.zeros(1), 1).scores(np.array([[0.0], [1.0]])).tolist() == [[1.0], [2.0]]
    with pytest.raises(ProgramError):
        Tree(**{**own, **change})


def test_a_tree_that_is_too_deep_is_refused() -> None:
    depth = 70
    nodes = 2 * depth + 1
    inner = np.arange(nodes) % 2 == 0
    inner[-1] = False
    tree = Tree(
        np.where(inner, 0, -1),
        np.arange(nodes, dtype=float),
        np.where(inner, np.arange(nodes) + 1, -1),
        np.where(inner, np.arange(nodes) + 2, -1),
        np.ones((nodes, 1)),
    )
    with pytest.raises(UnsupportedError, match="deeper than 64"):
        form_of(Ensemble((tree,), np.zeros(1), 1), Location("net.py"))


@pytest.mark.parametrize(
    "change",
    [
        {"compared": (0,)},
        {"compared": (0, 4), "edges": (0.5, 1.0)},
        {"missing": (9,)},
        {"coded": (1,)},
        {"texts": (1,)},
        {"numbers": (0,), "centres": (0.0,)},
        {"width": 2},
        {"missing": (0,)},
    ],
)
def test_public_parts_with_other_encodings_are_refused(change: dict[str, Any]) -> None:
    from dataclasses import replace

    from heliograph.artifact.validate import check_spec

    model, seen, _, _ = fitted("tree")
    artifact = hg.compile(hg.from_sklearn(model, seen, binned=True), TOY)
    spec, ring = artifact.public().inputs[0], artifact.public().ring
    check_spec(spec, ring, "input")
    own = spec.encoding
    assert own is not None
    with pytest.raises(WireError):
        check_spec(replace(spec, encoding=replace(own, **change)), ring, "input")
    with pytest.raises(WireError):
        check_spec(replace(spec, columns=("a",)), ring, "input")


def test_features_beyond_the_samples_are_clipped() -> None:
    model, seen, others, _ = fitted("tree")
    program = hg.from_sklearn(model, seen)
    far = others + np.random.default_rng(0).choice([-100.0, 0.0, 100.0], others.shape)
    assert np.abs(meant(program, far) - model.predict_proba(far)).max() < 1e-7
    artifact = hg.compile(program, TOY)
    assert np.abs(hg.simulate(artifact, far[0]) - model.predict_proba(far[:1])).max() < 0.05


def test_the_bill_says_how_near_samples_come() -> None:
    model, seen, _, _ = fitted("forest")
    text = " ".join(hg.compile(hg.from_sklearn(model, seen), TOY).report.full().split())
    assert "samples come nearer in 0." in text
    assert "[-1.008, 1.008] proved" in text


def test_a_declared_range_is_kept() -> None:
    model, seen, others, _ = fitted("tree")
    artifact = hg.compile(hg.from_sklearn(model, seen, input_range=(0.0, 8.0)), TOY)
    assert artifact.public().inputs[0].encoding is None
    with pytest.raises(RangeError):
        hg.simulate(artifact, others[0] + 100.0)


def test_texts_stand_for_their_places() -> None:
    encoding = Encoding(
        3, numbers=(0,), centres=(10.0,), scales=(2.0,), coded=(1, 1), codes=(0.0, 1.0), missing=(1, 2), filled=(0,),
        fills=(12.0,), texts=(1,), labels=(("red", "blue"),),
    )  # fmt: skip
    rows = np.array([[8.0, "blue", 1.0], [None, "green", np.nan], [12, None, 0]], dtype=object)
    expected = [[-1, 0, 1, 0, 0], [1, 0, 0, 0, 1], [1, 0, 0, 1, 0]]
    assert encoding.encoded(encoding.values(rows)).tolist() == expected
    spec = TensorSpec("x", (5,), encoding=encoding)
    assert np.asarray(given_as(spec, rows)).tolist() == expected
    with pytest.raises(ProgramError, match="column number 0 holds a text"):
        given_as(spec, np.array([["a", "red", 1.0]], dtype=object))
    assert encoding.needed() == frozenset()
