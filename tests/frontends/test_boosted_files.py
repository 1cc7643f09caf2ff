"""Models of XGBoost and LightGBM: files read without the libraries agree with the libraries' own numbers, hostile ones end
in our errors."""

from __future__ import annotations

import json
import random
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heliograph.errors import ProgramError, UnsupportedError
from heliograph.frontends.trees import boosted
from heliograph.frontends.trees.boosted import Boosted
from heliograph.frontends.trees.ensemble import MOST_DEPTH
from heliograph.frontends.trees.lightgbm import from_lightgbm, is_lightgbm, read_lightgbm
from heliograph.frontends.trees.ubjson import ubjson
from heliograph.frontends.trees.xgboost import from_xgboost, is_xgboost, read_xgboost

MODELS = Path(__file__).parent / "trees_models"
FILES = sorted(path for path in MODELS.iterdir() if path.suffix in (".json", ".ubj", ".txt"))
REFUSED = "lightgbm-zeros-apart"
# XGBoost adds in 32 bits, LightGBM as we do.
TOLERANCE = {"xgboost": 1e-6, "lightgbm": 1e-12}
# LightGBM's raw scores are before the parameter sigmoid, and not yet averaged: what ours are, times this.
RAW = {"lightgbm-binary": 1 / 2, "lightgbm-forest": 6, "lightgbm-forest-classes": 6}
LINKS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": np.positive,
    "exp": np.exp,
    "logistic": lambda z: 1 / (1 + np.exp(-z)),
    "softmax": lambda z: np.exp(z) / np.exp(z).sum(axis=1, keepdims=True),
}
PRESENT = {
    name: f"{name} is not installed: its objects are not read, its files are" for name in ("xgboost", "lightgbm")
}


def read(path: Path) -> Boosted:
    return read_lightgbm(path) if path.suffix == ".txt" else read_xgboost(path)


def answers(name: str) -> dict[str, np.ndarray]:
    with np.load(MODELS / f"{name}.answers.npz") as found:
        return {key: found[key] for key in found.files}


def model(name: str) -> Any:
    return json.loads((MODELS / f"{name}.json").read_text())


def written(path: Path, given: Any) -> Path:
    path.write_text(given if isinstance(given, str) else json.dumps(given))
    return path


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def check_close(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    wanted = wanted.reshape(found.shape)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != REFUSED], ids=lambda path: path.stem)
def test_files_give_the_margins_and_predictions_of_their_library(path: Path) -> None:
    found, wanted = read(path), answers(path.stem)
    margins = found.ensemble.scores(wanted["samples"].astype(np.float64))
    tolerance = TOLERANCE[path.stem.partition("-")[0]]
    check_close(margins * RAW.get(path.stem, 1), wanted["raw"], tolerance)
    check_close(LINKS[found.link](margins), wanted["predictions"], tolerance)


def test_links_labels_and_features() -> None:
    for name, link, labels in (
        ("xgboost-binary.json", "logistic", (0, 1)),
        ("xgboost-binary-ubj.ubj", "logistic", (0, 1)),
        ("xgboost-classes.json", "softmax", (0, 1, 2)),
        ("xgboost-regression.json", "identity", None),
        ("xgboost-margins.json", "identity", None),
        ("xgboost-counts.json", "exp", None),
        # The classes' labels are not in LightGBM's file.
        ("lightgbm-binary.txt", "logistic", None),
        ("lightgbm-classes.txt", "softmax", None),
        ("lightgbm-regression.txt", "identity", None),
        ("lightgbm-own-objective.txt", "identity", None),
        ("lightgbm-counts.txt", "exp", None),
    ):
        found = read(MODELS / name)
        assert (found.link, found.labels, found.features) == (link, labels, None)
        assert found.ensemble.features == 5


def test_names_of_features(tmp_path: Path) -> None:
    named = model("xgboost-regression")
    named["learner"]["feature_names"] = list("vwxyz")
    assert read_xgboost(written(tmp_path / "model.json", named)).features == tuple("vwxyz")
    text = (MODELS / "lightgbm-regression.txt").read_text().replace("Column_0 Column_1", "v w")
    assert read_lightgbm(written(tmp_path / "model.txt", text)).features == (
        "v",
        "w",
        "Column_2",
        "Column_3",
        "Column_4",
    )


def test_infinite_thresholds_part_missing_values_from_numbers(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^(threshold|decision_type)=\S+", r"\1=\1", (MODELS / "lightgbm-regression.txt").read_text())
    # By default missing values go right.
    text = text.replace("=threshold", "=inf").replace("=decision_type", "=8")
    tree = read_lightgbm(written(tmp_path / "model.txt", text)).ensemble.trees[0]
    assert tree.goes_left(0, np.array([1e29, -1e29, 0.0, np.nan])).tolist() == [True, True, True, False]


def test_binary_and_text_forms_hold_the_same_model() -> None:
    samples = answers("xgboost-binary")["samples"].astype(np.float64)
    both = [read(MODELS / name).ensemble.scores(samples) for name in ("xgboost-binary.json", "xgboost-binary-ubj.ubj")]
    assert np.array_equal(*both)


def test_early_stopping_counts_in_files_of_estimators_alone(tmp_path: Path) -> None:
    stopped = model("xgboost-stopped")
    learner = stopped["learner"]
    trees = len(learner["gradient_booster"]["model"]["trees"])
    best = int(learner["attributes"]["best_iteration"]) + 1
    assert len(read(MODELS / "xgboost-stopped.json").ensemble.trees) == best < trees
    # Before version 2 the file does not say where rounds end.
    del learner["gradient_booster"]["model"]["iteration_indptr"]
    assert len(read_xgboost(written(tmp_path / "model.json", stopped)).ensemble.trees) == best
    # A Booster's predictions use all trees.
    del learner["attributes"]["scikit_learn"]
    assert len(read_xgboost(written(tmp_path / "model.json", stopped)).ensemble.trees) == trees


@pytest.mark.parametrize("score", ["5E-1", "[5E-1]"])
def test_base_score_is_a_number_or_one_in_brackets(tmp_path: Path, score: str) -> None:
    changed = model("xgboost-binary")
    changed["learner"]["learner_model_param"]["base_score"] = score
    assert read_xgboost(written(tmp_path / "model.json", changed)).ensemble.bias == [0.0]


def put(given: Any, value: Any, *names: Any) -> None:
    for name in names[:-1]:
        given = given[name]
    given[names[-1]] = value


TREE = ("learner", "gradient_booster", "model", "trees", 0)


@pytest.mark.parametrize(
    ("value", "names", "kind", "says"),
    [
        ("gblinear", ("learner", "gradient_booster", "name"), UnsupportedError, "gblinear"),
        ("binary:hinge", ("learner", "objective", "name"), UnsupportedError, "0 or 1"),
        ("reg:new", ("learner", "objective", "name"), UnsupportedError, "not known"),
        ("3", ("learner", "learner_model_param", "num_target"), UnsupportedError, "targets"),
        ("[1E0]", ("learner", "learner_model_param", "base_score"), ProgramError, "not finite"),
        ("[-1E0]", ("learner", "learner_model_param", "base_score"), ProgramError, "not finite"),
        ("[5E-1,5E-1]", ("learner", "learner_model_param", "base_score"), ProgramError, "2 entries"),
        ("x", ("learner", "learner_model_param", "base_score"), ProgramError, "no number"),
        ("2", ("learner", "learner_model_param", "num_feature"), ProgramError, "reads feature"),
        (["a"], ("learner", "feature_names"), ProgramError, "names 1 features"),
        ([], ("learner", "gradient_booster", "model", "trees"), ProgramError, "tree"),
        ("4", (*TREE, "tree_param", "size_leaf_vector"), ProgramError, "4 outputs"),
        ([0], (*TREE, "left_children"), ProgramError, "not 1"),
        (None, (*TREE, "right_children"), ProgramError, "not a list"),
        (-1, (*TREE, "split_indices", 0), ProgramError, "no whole number"),
        (float("nan"), (*TREE, "split_conditions", 0), ProgramError, "not finite"),
        (1, (*TREE, "split_type", 0), ProgramError, "no set"),
        (0, (*TREE, "left_children", 0), ProgramError, "two parents"),
        (10**6, (*TREE, "left_children", 0), ProgramError, "does not exist"),
    ],
)
def test_xgboost_refusals(tmp_path: Path, value: Any, names: tuple[Any, ...], kind: type[Exception], says: str) -> None:
    changed = model("xgboost-binary")
    put(changed, value, *names)
    path = written(tmp_path / "model.json", changed)
    with pytest.raises(ProgramError, match=says) as caught:
        read_xgboost(path)
    assert type(caught.value) is kind
    assert str(path) in str(caught.value)


def test_margins_of_old_versions_are_refused(tmp_path: Path) -> None:
    old = model("xgboost-margins")
    old["version"] = [1, 7, 6]
    with pytest.raises(UnsupportedError, match="before 2"):
        read_xgboost(written(tmp_path / "model.json", old))


def test_sets_beyond_their_list_are_refused(tmp_path: Path) -> None:
    changed = model("xgboost-sets")
    for tree in changed["learner"]["gradient_booster"]["model"]["trees"]:
        tree["categories_sizes"] = [size + 1 for size in tree["categories_sizes"]]
    with pytest.raises(ProgramError, match="beyond the end"):
        read_xgboost(written(tmp_path / "model.json", changed))


@pytest.mark.parametrize(
    ("name", "old", "new", "kind", "says"),
    [
        ("regression", "objective=regression", "objective=regression sqrt", UnsupportedError, "squares"),
        ("classes", "objective=multiclass ", "objective=multiclassova ", UnsupportedError, "sigmoid for each"),
        ("binary", "objective=binary", "objective=cross_entropy_lambda", UnsupportedError, "not supported"),
        ("binary", "sigmoid:2", "sigmoid:0", ProgramError, "not a positive"),
        ("regression", "is_linear=0", "is_linear=1", UnsupportedError, "linear functions"),
        ("regression", "end of trees", "", ProgramError, "end is missing"),
        ("regression", "tree\n", "forest\n", ProgramError, "first line"),
        ("regression", "\nTree=1\n", "\nTrunk=1\n", ProgramError, "another number"),
        ("regression", "num_class=1", "num_class=2", ProgramError, "for each class"),
        ("regression", "max_feature_idx=4", "max_feature_idx=0", ProgramError, "reads feature"),
        ("regression", "decision_type=", "decision_type=2 ", ProgramError, "entries"),
        ("regression", "num_leaves=6", "num_leaves=7", ProgramError, "entries"),
        ("regression", "left_child=", "left_child=x", ProgramError, "no number"),
        ("regression", "left_child=1", "left_child=0", ProgramError, "two parents"),
        ("regression", "decision_type=2", "decision_type=14", ProgramError, "does not know"),
        ("regression", "leaf_value=-", "leaf_value=-inf ", ProgramError, "entries"),
        ("sets", "cat_boundaries=0 1", "cat_boundaries=0 9", ProgramError, "no whole number"),
        ("sets", "num_cat=1", "num_cat=2", ProgramError, "entries"),
    ],
)
def test_lightgbm_refusals(tmp_path: Path, name: str, old: str, new: str, kind: type[Exception], says: str) -> None:
    text = (MODELS / f"lightgbm-{name}.txt").read_text()
    assert old in text
    path = written(tmp_path / "model.txt", text.replace(old, new))
    with pytest.raises(ProgramError, match=says) as caught:
        read_lightgbm(path)
    assert type(caught.value) is kind
    assert str(path) in str(caught.value)


def test_zeros_that_go_where_no_comparison_sends_them_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="zero_as_missing"):
        read(MODELS / f"{REFUSED}.txt")


def test_lines_may_end_as_windows_ends_them(tmp_path: Path) -> None:
    original, path = MODELS / "lightgbm-classes.txt", tmp_path / "model.txt"
    path.write_bytes(original.read_bytes().replace(b"\n", b"\r\n"))
    samples = answers(original.stem)["samples"]
    assert np.array_equal(*(read(each).ensemble.scores(samples) for each in (original, path)))


@pytest.mark.parametrize("reader", [read_xgboost, read_lightgbm])
@pytest.mark.parametrize(
    "data",
    [b"", b"\x80\x04\x95", b"binf\x00\x00", b"PK\x03\x04", b"[" * 100_000, b'{"a":' * 100_000, b"{L" * 1000,
     b"{" + b"\xff" * 9, b"{}", b"[]", b"tree", b"tree\nend of trees", b"tree\n\nTree=0\nend of trees\n"],
    ids=range(13),
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, reader: Callable[[Path], Boosted], data: bytes) -> None:
    path = tmp_path / "model"
    path.write_bytes(data)
    with pytest.raises(ProgramError, match="model"):
        reader(path)
    with pytest.raises(ProgramError, match="cannot be read"):
        reader(tmp_path / "none")
    with pytest.raises(ProgramError, match="cannot be read"):
        reader(tmp_path)


def test_other_objects_are_refused() -> None:
    assert not is_xgboost(3)
    assert not is_lightgbm(3)
    with pytest.raises(ProgramError, match="int is no model"):
        from_xgboost(3)
    with pytest.raises(ProgramError, match="int is no model"):
        from_lightgbm(3)


@pytest.mark.parametrize(
    ("limit", "value"),
    [("MOST_BYTES", 5000), ("MOST_VALUES", 100), ("MOST_TREES", 5), ("MOST_SUMMANDS", 60), ("MOST_CATEGORIES", 3),
     ("MOST_FEATURES", 4)],
)  # fmt: skip
@pytest.mark.parametrize("name", ["xgboost-sets.json", "lightgbm-sets.txt"])
def test_limits(monkeypatch: pytest.MonkeyPatch, name: str, limit: str, value: int) -> None:
    read(MODELS / name)
    monkeypatch.setattr(boosted, limit, value)
    with pytest.raises(ProgramError):
        read(MODELS / name)


def test_the_binary_form_has_limits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted, "MOST_VALUES", 100)
    with pytest.raises(ProgramError, match="too many values"):
        read(MODELS / "xgboost-binary-ubj.ubj")


def chain(length: int) -> Any:
    """A model of one tree, in which each decision but the last has a leaf and a decision."""
    found = model("xgboost-regression")
    grove = found["learner"]["gradient_booster"]["model"]
    nodes = 2 * length + 1
    tree = grove["trees"][0] | {
        "left_children": [2 * i + 1 if j == 0 else -1 for i in range(length) for j in (0, 1)] + [-1],
        "right_children": [2 * i + 2 if j == 0 else -1 for i in range(length) for j in (0, 1)] + [-1],
    }
    for name in ("split_indices", "split_conditions", "default_left", "split_type"):
        tree[name] = [0] * nodes
    grove |= {"trees": [tree], "tree_info": [0]}
    return found


def test_long_paths_are_refused(tmp_path: Path) -> None:
    read_xgboost(written(tmp_path / "model.json", chain(MOST_DEPTH)))
    with pytest.raises(UnsupportedError, match="paths"):
        read_xgboost(written(tmp_path / "model.json", chain(MOST_DEPTH + 1)))


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"{}", {}),
        (b"{i\x01aU\xff}", {"a": 255}),
        (b"{i\x01a[Z T F]".replace(b" ", b"") + b"}", {"a": [None, True, False]}),
        (b"[#i\x02i\x01Si\x02ab", [1, "ab"]),
    ],
)
def test_values_of_ubjson(data: bytes, value: Any) -> None:
    assert ubjson(data, 100) == value
    assert ubjson(b"[$d#i\x01\x3f\x80\x00\x00", 100).tolist() == [1.0]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"{i\x01a", b"x", b"{}x", b"[" * 50 + b"]" * 50, b"[$d#L" + b"\x7f" * 8, b"[#L" + b"\x7f" * 8, b"[$Z#i\x05",
     b"Si\xff", b"Sd\x3f\x80\x00\x00", b"Si\x01\xff", b"[$d#i\x7f" + b"\0" * 508],
    ids=range(13),
)  # fmt: skip
def test_malformed_ubjson(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it |begins|more|codec"):
        ubjson(data, 100)


# What a stranger may put in place of a number.
NUMBERS = (
    "-1",
    "0",
    "1",
    "2",
    "7",
    "255",
    "4294967295",
    "1e300",
    "-1e39",
    "NaN",
    "nan",
    "Infinity",
    "1e-46",
    "9" * 60,
    "",
    "x",
    "-0.0",
    "[]",
    "null",
)
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    10**30,
    1.5,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "1",
    "[1,2]",
    [],
    [[1]],
    [None],
    {},
    {"a": 1},
)
MUTATED = ("xgboost-binary.json", "xgboost-sets.json", "xgboost-dart.json", "xgboost-vectors.json", "xgboost-stopped.json",
           "xgboost-binary-ubj.ubj", "lightgbm-binary.txt", "lightgbm-sets.txt", "lightgbm-forest.txt")  # fmt: skip


def mutated(data: bytes, dice: random.Random) -> bytes:
    """The file with bytes, a number or a stretch changed, or its end cut off."""
    way = dice.randrange(6)
    if way == 0:
        return data[: dice.randrange(len(data))]
    if way == 1:
        changed = bytearray(data)
        for _ in range(dice.choice((1, 1, 3, 20))):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        return bytes(changed)
    if way == 2:
        start = dice.randrange(len(data))
        end = start + dice.choice((1, 4, 100))
        return data[:start] + data[end:] if dice.random() < 0.5 else data[:end] + data[start:]
    places = list(re.finditer(rb"-?\d[\d.eE+-]*", data))
    for found in sorted(dice.sample(places, dice.choice((1, 1, 2, 8))), key=lambda each: -each.start()):
        data = data[: found.start()] + dice.choice(NUMBERS).encode() + data[found.end() :]
    return data


def twisted(given: Any, dice: random.Random) -> Any:
    """The same JSON with one value changed, moved or dropped."""
    place = given
    while True:
        names = list(place) if isinstance(place, dict) else range(len(place))
        name = dice.choice(names)
        inner = place[name]
        if not isinstance(inner, (dict, list)) or not inner or dice.random() < 0.15:
            break
        place = inner
    way = dice.randrange(4)
    if way == 0:
        del place[name]
    elif way == 1 and isinstance(inner, list):
        dice.shuffle(inner)
    else:
        place[name] = dice.choice(ODD)
    return given


def check_harmless(path: Path, samples: np.ndarray) -> bool:
    """Whether the file is read; then its sums end, whatever they are."""
    try:
        found = read(path)
    except ProgramError:
        return False
    with np.errstate(all="ignore"):
        scores = found.ensemble.scores(np.resize(samples, (10, min(found.ensemble.features, 1000))))
    return bool(scores.shape == (10, len(found.ensemble.bias)))


@pytest.mark.parametrize("name", MUTATED)
def test_mutated_files_end_in_our_errors(tmp_path: Path, name: str) -> None:
    original = MODELS / name
    samples = answers(original.stem)["samples"].astype(np.float64)
    dice = random.Random(name)
    path = tmp_path / f"model{original.suffix}"
    data = original.read_bytes()
    read_ones = 0
    for turn in range(250):
        if original.suffix == ".json" and turn % 2:
            path.write_text(json.dumps(twisted(json.loads(data), dice)))
        else:
            path.write_bytes(mutated(data, dice))
        read_ones += check_harmless(path, samples)
    # Some changes keep a model, others do not.
    assert 0 < read_ones < 250


def toy() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    dice = np.random.default_rng(2)
    samples = dice.normal(size=(160, 4)).astype(np.float32)
    samples[dice.random(samples.shape) < 0.1] = np.nan
    target = np.nan_to_num(samples[:, 0]) + (np.nan_to_num(samples[:, 1]) > 0)
    return samples, target, np.digitize(target, [0.0, 1.0])


def test_objects_of_xgboost() -> None:
    xgb = pytest.importorskip("xgboost", reason=PRESENT["xgboost"])
    samples, target, classes = toy()
    small = {"n_estimators": 4, "max_depth": 3, "n_jobs": 1}
    for estimator, labels in (
        (xgb.XGBClassifier(**small).fit(samples, classes), (0, 1, 2)),
        (xgb.XGBClassifier(**small).fit(samples, target > 0), (0, 1)),
        (xgb.XGBRFClassifier(**small).fit(samples, classes), (0, 1, 2)),
        (xgb.XGBRegressor(**small).fit(samples, target), None),
        (xgb.XGBRegressor(booster="dart", rate_drop=0.5, **small).fit(samples, target), None),
        (xgb.XGBRanker(**small).fit(samples, classes, qid=np.repeat([0, 1], 80)), None),
    ):
        for given in (estimator, estimator.get_booster()):
            assert is_xgboost(given)
            found = from_xgboost(given)
            assert found.labels == labels
            wanted = estimator.predict(samples, output_margin=True)
            check_close(found.ensemble.scores(samples.astype(np.float64)), wanted, 1e-6)


def test_early_stopping_counts_for_estimators_of_xgboost() -> None:
    xgb = pytest.importorskip("xgboost", reason=PRESENT["xgboost"])
    samples, target, _ = toy()
    noisy = target + np.random.default_rng(0).normal(size=len(target))
    estimator = xgb.XGBRegressor(n_estimators=40, learning_rate=1.0, early_stopping_rounds=3, n_jobs=1)
    estimator.fit(samples[:80], noisy[:80], eval_set=[(samples[80:], noisy[80:])], verbose=False)
    rounds = estimator.best_iteration + 1
    assert len(from_xgboost(estimator).ensemble.trees) == rounds
    assert len(from_xgboost(estimator.get_booster()).ensemble.trees) == rounds + 3


def test_estimators_of_xgboost_that_are_refused() -> None:
    xgb = pytest.importorskip("xgboost", reason=PRESENT["xgboost"])
    samples, target, _ = toy()
    with pytest.raises(ProgramError, match="cannot be saved"):
        from_xgboost(xgb.XGBRegressor())
    with pytest.raises(UnsupportedError, match="missing"):
        from_xgboost(xgb.XGBRegressor(n_estimators=2, missing=0.0, n_jobs=1).fit(samples, target))
    with pytest.raises(UnsupportedError, match="gblinear"):
        from_xgboost(xgb.train({"booster": "gblinear", "nthread": 1}, xgb.DMatrix(samples, target), 2))


def test_objects_of_lightgbm() -> None:
    lgb = pytest.importorskip("lightgbm", reason=PRESENT["lightgbm"])
    samples, target, classes = toy()
    small = {"n_estimators": 4, "num_leaves": 5, "n_jobs": 1, "verbose": -1}
    names = np.array(["bad", "fair", "good"])
    for estimator, y, labels in (
        (lgb.LGBMClassifier(**small), names[classes], ("bad", "fair", "good")),
        (lgb.LGBMClassifier(**small), names[:2][(target > 0).astype(int)], ("bad", "fair")),
        (lgb.LGBMRegressor(**small), target, None),
    ):
        estimator.fit(samples, y)
        for given, wanted in ((estimator, labels), (estimator.booster_, None)):
            assert is_lightgbm(given)
            found = from_lightgbm(given)
            assert found.labels == wanted
            check_close(
                found.ensemble.scores(samples.astype(np.float64)), given.predict(samples, raw_score=True), 1e-12
            )
    with pytest.raises(ProgramError, match="cannot be saved"):
        from_lightgbm(lgb.LGBMRegressor())


def test_early_stopping_counts_for_all_objects_of_lightgbm() -> None:
    lgb = pytest.importorskip("lightgbm", reason=PRESENT["lightgbm"])
    samples, target, _ = toy()
    noisy = target + np.random.default_rng(0).normal(size=len(target))
    settings = {"objective": "regression", "learning_rate": 1.0, "num_threads": 1, "verbose": -1}
    data, other = lgb.Dataset(samples[:80], noisy[:80]), lgb.Dataset(samples[80:], noisy[80:])
    stop = lgb.early_stopping(3, verbose=False)
    model = lgb.train(settings, data, 40, valid_sets=[other], callbacks=[stop])
    found = from_lightgbm(model)
    assert len(found.ensemble.trees) == model.best_iteration
    check_close(found.ensemble.scores(samples.astype(np.float64)), model.predict(samples), 1e-12)
