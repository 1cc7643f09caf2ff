"""The models in this folder, with samples, the library's own raw margins and its predictions, in answers of the same name.

`python tests/frontends/trees_models/make.py` trains them anew with whichever of XGBoost and LightGBM is installed. Each
answers.npz holds `samples`, `raw` and `predictions`. The samples lie also at the thresholds and at the numbers next to
them. Names that end in the number of a version are those that this version of XGBoost alone writes in its way.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ROUNDS = 6
RNG = np.random.default_rng(5)


def training_data(kind: type[np.floating[Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Five features, of which the last is a category, and a number that depends on them."""
    samples = RNG.normal(size=(240, 5))
    samples[:, 4] = RNG.integers(0, 9, 240)
    target = samples[:, 0] * (samples[:, 1] > 0) + 0.8 * (samples[:, 4] % 3 == 1) - 0.3 * samples[:, 2]
    return samples.astype(kind), target


def with_missing(samples: np.ndarray, share: float = 0.15) -> np.ndarray:
    holed = samples.copy()
    holed[RNG.random(samples.shape) < share] = np.nan
    return holed


def at_thresholds(samples: np.ndarray, cuts: list[tuple[int, float]]) -> np.ndarray:
    """Some samples, and more with a feature at a threshold, just below it and just above it."""
    rows = [samples[:60]]
    for feature, cut in cuts[:40]:
        near = samples[RNG.integers(0, len(samples), 3)].copy()
        exact = samples.dtype.type(cut)
        near[:, feature] = [exact, np.nextafter(exact, -np.inf), np.nextafter(exact, np.inf)]
        rows.append(near)
    return np.concatenate(rows)


def write(name: str, **arrays: Any) -> None:
    np.savez_compressed(HERE / f"{name}.answers.npz", **arrays)


def xgboost_models() -> None:
    import xgboost as xgb

    xgb.set_config(verbosity=0)
    samples, target = training_data(np.float32)
    binary, classes = (target > 0.2).astype(int), np.digitize(target, [-0.4, 0.5])
    kinds = ["q"] * 4 + ["c"]

    def save(name: str, x: np.ndarray, y: Any, ends: str = "json", categorical: bool = False, **settings: Any) -> None:
        types = {"feature_types": kinds, "enable_categorical": True} if categorical else {}
        model = xgb.train({"max_depth": 3, "nthread": 1, **settings}, xgb.DMatrix(x, y, **types), ROUNDS)
        cuts = []
        learner = json.loads(bytes(model.save_raw("json")))["learner"]["gradient_booster"]
        for tree in learner.get("model", learner.get("gbtree", {}).get("model"))["trees"]:
            parts = (tree["split_indices"], tree["split_conditions"], tree["split_type"], tree["left_children"])
            cuts += [(f, cut) for f, cut, kind, left in zip(*parts, strict=True) if left >= 0 and kind == 0]
        tried = at_thresholds(x, cuts)
        if categorical:
            # Known, never seen, missing.
            tried[:12, 4] = [*range(9), 9, 200, np.nan]
        tried[12:20, 0] = np.nan
        matrix = xgb.DMatrix(tried, **types)
        model.save_model(HERE / f"{name}.{ends}")
        write(name, samples=tried, raw=model.predict(matrix, output_margin=True), predictions=model.predict(matrix))

    holed = with_missing(samples)
    if xgb.__version__.startswith("2."):
        save("xgboost-binary-2", holed, binary, objective="binary:logistic")
        both = {"multi_strategy": "multi_output_tree", "tree_method": "hist"}
        save("xgboost-vectors-2", samples, np.c_[target, -2 * target], objective="reg:squarederror", **both)
        return
    save("xgboost-binary", holed, binary, objective="binary:logistic")
    save("xgboost-binary-ubj", holed, binary, "ubj", objective="binary:logistic")
    save("xgboost-classes", holed, classes, objective="multi:softprob", num_class=3)
    save("xgboost-regression", samples, target, objective="reg:squarederror")
    save("xgboost-pruned", samples, target, tree_method="exact", gamma=4.0, max_depth=5)
    save(
        "xgboost-sets",
        with_missing(samples),
        binary,
        categorical=True,
        objective="binary:logistic",
        max_cat_to_onehot=1,
    )
    save("xgboost-single-categories", with_missing(samples), target, categorical=True, max_cat_to_onehot=20)
    save("xgboost-dart", holed, binary, objective="binary:logistic", booster="dart", rate_drop=0.5)
    forest = {"num_parallel_tree": 2, "subsample": 0.6, "colsample_bynode": 0.7}
    save("xgboost-forest", samples, classes, objective="multi:softprob", num_class=3, max_depth=2, **forest)
    save("xgboost-base-score", samples, binary, objective="binary:logistic", base_score=0.999, min_child_weight=0)
    save("xgboost-counts", samples, np.exp(target), objective="count:poisson", base_score=0.3)
    save("xgboost-margins", samples, binary, objective="binary:logitraw", base_score=0.3)
    save("xgboost-targets", samples, np.c_[target, -2 * target], objective="reg:squarederror", max_depth=2)
    both = {"multi_strategy": "multi_output_tree", "tree_method": "hist"}
    save("xgboost-vectors", samples, classes, objective="multi:softprob", num_class=3, **both)

    noisy = binary ^ (RNG.random(len(binary)) < 0.2)
    estimator = xgb.XGBClassifier(n_estimators=30, max_depth=2, learning_rate=1.0, early_stopping_rounds=3, n_jobs=1)
    estimator.fit(samples[:120], noisy[:120], eval_set=[(samples[120:], binary[120:])], verbose=False)
    estimator.save_model(HERE / "xgboost-stopped.json")
    raw, chances = estimator.predict(samples, output_margin=True), estimator.predict_proba(samples)[:, 1]
    write("xgboost-stopped", samples=samples, raw=raw, predictions=chances)


def lightgbm_models() -> None:
    import lightgbm as lgb

    samples, target = training_data(np.float64)
    binary, classes = (target > 0.2).astype(int), np.digitize(target, [-0.4, 0.5])

    def save(name: str, x: np.ndarray, y: Any, categorical: bool = False, **settings: Any) -> None:
        settings = {"num_leaves": 6, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 5, "seed": 3, **settings}
        if categorical:
            settings |= {"min_data_per_group": 5, "cat_smooth": 1.0, "categorical_feature": [4]}
        model = lgb.train(settings, lgb.Dataset(x, y), ROUNDS)
        cuts: list[tuple[int, float]] = []

        def walk(node: dict[str, Any]) -> None:
            if "split_feature" in node:
                if node["decision_type"] == "<=":
                    cuts.append((node["split_feature"], node["threshold"]))
                walk(node["left_child"])
                walk(node["right_child"])

        for tree in model.dump_model()["tree_info"]:
            walk(tree["tree_structure"])
        tried = at_thresholds(x, cuts)
        if categorical:
            tried[:14, 4] = [*range(9), 9, 200, np.nan, -1, -7]
        tried[14:24, 0] = np.nan
        tried[20:30, 1] = 0
        model.save_model(HERE / f"{name}.txt")
        write(name, samples=tried, raw=model.predict(tried, raw_score=True), predictions=model.predict(tried))

    holed = with_missing(samples)
    save("lightgbm-binary", holed, binary, objective="binary", sigmoid=2.0)
    save("lightgbm-classes", holed, classes, objective="multiclass", num_class=3)
    # Trained without missing values, tried with some.
    save("lightgbm-regression", samples, target, objective="regression")
    save("lightgbm-sets", with_missing(samples), binary, categorical=True, objective="binary", max_cat_to_onehot=1)
    save(
        "lightgbm-single-categories",
        samples,
        samples[:, 4] % 3 + 0.1 * target,
        categorical=True,
        objective="regression",
        max_cat_to_onehot=20,
    )
    save("lightgbm-dart", holed, binary, objective="binary", boosting="dart", drop_rate=0.5)
    forest = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}
    save("lightgbm-forest", holed, binary, objective="binary", **forest)
    save("lightgbm-forest-classes", samples, classes, objective="multiclass", num_class=3, **forest)
    save("lightgbm-counts", samples, np.exp(target), objective="poisson")
    save("lightgbm-own-objective", samples, target, objective=squares)
    # A constant label: trees of one leaf.
    save("lightgbm-constant", samples, np.full(len(samples), 2.5), objective="regression")
    positive = np.where(RNG.random(samples.shape) < 0.2, 0.0, np.abs(samples) + 0.1)
    zeros = {"objective": "regression", "zero_as_missing": True}
    # 0 goes with the small numbers, then where no comparison sends it.
    save("lightgbm-zeros", positive, np.minimum(positive[:, 0], 1.0), **zeros, num_leaves=2)
    save("lightgbm-zeros-apart", positive, (positive[:, 0] == 0) + (positive[:, 0] > 1.0), **zeros, num_leaves=3)


def squares(predicted: np.ndarray, data: Any) -> tuple[np.ndarray, np.ndarray]:
    return predicted - data.get_label(), np.ones_like(predicted)


def main() -> None:
    makers: list[Callable[[], None]] = [xgboost_models, lightgbm_models]
    for make in makers:
        try:
            make()
        except ModuleNotFoundError as error:
            print(f"left as they are: {error}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
