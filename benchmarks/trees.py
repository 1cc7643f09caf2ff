"""Tree models on Adult, scikit-learn's own data and synthetic tables: one encrypted sample, and agreement with the library.

    python benchmarks/trees.py
    python benchmarks/trees.py --models "100 trees of depth 6" --ways encrypted

`compared`: clients compare the features with the thresholds. `encrypted`: features are sent, and compared under encryption.
`batched`: clients compare, and as many samples as a ciphertext has slots are answered at once.
Classes and probabilities (or predictions) of 2,000 held-out samples are those of the compiled polynomials in the clear;
of `--encrypted` samples those of encrypted runs, each of one sample or a whole batch; a batch repeats samples where a table
has too few. XGBoost and LightGBM models need these libraries, which are no dependencies
of this package.
"""

from __future__ import annotations

from common import data, hg  # first: it imports heliograph before torch

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from harness import BACKEND, Run, benchmark, option
from heliograph.execution.interface import given_as
from heliograph.interpret import interpret_batch
from heliograph.tools.measure import measure, peak_rss_bytes
from sklearn.base import is_classifier
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, make_classification
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.tree import DecisionTreeClassifier

HELD_OUT, CALIBRATION = 2000, 1000
Table = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def adult() -> Table:
    """The 14 columns of Adult as numbers, and whether the income is high."""
    table = np.load(data("adult.npz"))
    columns = [name for name in table["columns"] if name != "income"]
    parts = [
        np.stack([table[f"{part}_{name}"] for name in columns], axis=1).astype(float) for part in ("train", "test")
    ]
    return parts[0][:20_000], table["train_income"][:20_000].astype(int), parts[1], table["test_income"].astype(int)


def halves(x: np.ndarray, y: np.ndarray) -> Table:
    order = np.random.default_rng(0).permutation(len(x))
    half = len(x) // 2
    return x[order[:half]], y[order[:half]], x[order[half:]], y[order[half:]]


def synthetic(columns: int) -> Table:
    return halves(*make_classification(8000, columns, n_informative=columns // 2, random_state=0))


def boosted(library: str, **options: Any) -> Any:
    """A classifier of XGBoost or LightGBM: 100 trees of depth 6."""
    if library == "xgboost":
        import xgboost

        return xgboost.XGBClassifier(n_estimators=100, max_depth=6, n_jobs=2, **options)
    import lightgbm

    return lightgbm.LGBMClassifier(n_estimators=100, max_depth=6, num_leaves=64, n_jobs=2, verbose=-1, **options)


@dataclass(frozen=True)
class Case:
    """A table, a model of it, and the library that it needs."""

    table: Callable[[], Table]
    model: Callable[[], Any]
    needs: str = "sklearn"


SEED: dict[str, Any] = {"random_state": 0}
MODELS: dict[str, Case] = {
    "a tree of depth 8": Case(adult, lambda: DecisionTreeClassifier(max_depth=8, **SEED)),
    "100 trees of depth 6": Case(
        adult, lambda: GradientBoostingClassifier(n_estimators=100, max_depth=6, subsample=0.5, **SEED)
    ),
    "500 trees of depth 4": Case(
        adult, lambda: GradientBoostingClassifier(n_estimators=500, max_depth=4, subsample=0.5, **SEED)
    ),
    "a forest of 100 trees of depth 10": Case(
        adult, lambda: RandomForestClassifier(100, max_depth=10, n_jobs=2, **SEED)
    ),
    "XGBoost, 100 trees of depth 6": Case(adult, lambda: boosted("xgboost"), "xgboost"),
    "LightGBM, 100 trees of depth 6": Case(adult, lambda: boosted("lightgbm"), "lightgbm"),
    "breast cancer, 50 trees of depth 3": Case(
        lambda: halves(*load_breast_cancer(return_X_y=True)),
        lambda: GradientBoostingClassifier(n_estimators=50, max_depth=3, **SEED),
    ),
    "digits, 20 rounds of 10 trees": Case(
        lambda: halves(*load_digits(return_X_y=True)), lambda: HistGradientBoostingClassifier(max_iter=20, **SEED)
    ),
    "diabetes, 50 trees of depth 3": Case(
        lambda: halves(*load_diabetes(return_X_y=True)),
        lambda: GradientBoostingRegressor(n_estimators=50, max_depth=3, **SEED),
    ),
    "10 columns, 50 trees of depth 6": Case(lambda: synthetic(10), lambda: ExtraTreesClassifier(50, max_depth=6, **SEED)),
    "200 columns, 50 trees of depth 6": Case(
        lambda: synthetic(200), lambda: ExtraTreesClassifier(50, max_depth=6, **SEED)
    ),
}  # fmt: skip
WAYS: dict[str, tuple[Any, Any]] = {"compared": (True, 1), "encrypted": (False, 1), "batched": ("shared", "max")}
REPORTED = ("security_bits", "ring_dim", "log_pq", "levels", "rotation_keys", "evaluation_key_bytes", "predicted_ms")


def wanted(model: Any, x: np.ndarray) -> np.ndarray:
    """Probabilities of a classifier, predictions of a regressor: (samples, values)."""
    found = model.predict_proba(x) if is_classifier(model) else model.predict(x)
    return np.asarray(found, dtype=float).reshape(len(x), -1)


def measured(case: Case, way: str, encrypted: int, backend: str) -> dict[str, Any]:
    """One row."""
    binned, batch = WAYS[way]
    x, y, x_test, _ = case.table()
    model = case.model().fit(x, y)
    held_out = x_test[:HELD_OUT]
    expected = wanted(model, held_out)
    program = hg.from_sklearn(model, x[:CALIBRATION], binned=binned)
    stages: dict[str, Any] = {}
    artifact = hg.compile(program, hg.Options(batch=batch), watch=stages.__setitem__)
    spec, (output,) = artifact.public().inputs[0], artifact.public().outputs
    given = np.asarray(given_as(spec, held_out))
    scores = np.concatenate([interpret_batch(stages["fold-scaling"], part)[0] for part in np.array_split(given, 8)])
    found = output.finished(scores)
    report = artifact.report.to_dict()
    together = report["batch"]
    # Several batches would show nothing else.
    count = encrypted if together == 1 else together
    rows = np.resize(x_test, (count, x_test.shape[1]))
    runs = measure(artifact, list(rows) if together == 1 else [rows] * 2, backend=backend)
    own = (
        np.stack([np.asarray(each).ravel() for each in runs.outputs]) if together == 1 else np.asarray(runs.outputs[-1])
    )
    meant = wanted(model, rows)
    size = 1.0 if is_classifier(model) else float(np.ptp(expected))

    def same(a: np.ndarray, b: np.ndarray) -> float | None:
        return float((a.argmax(1) == b.argmax(1)).mean()) if is_classifier(model) else None

    return {
        **{name: report[name] for name in REPORTED},
        "columns": x.shape[1],
        "compile_s": artifact.compile_s,
        "batch": together,
        "measured_ms": runs.measured_ms,
        "amortised_ms": runs.measured_ms / together,
        "first_ms": runs.first_ms,
        "floor_ms": runs.floor_ms,
        "encrypt_ms": runs.encrypt_ms,
        "keygen_s": runs.keygen_s,
        "input_sent_bytes": report["sent_input_bytes"],
        "sent_bytes_a_sample": report["sent_input_bytes"] / together,
        "keys_sent_bytes": report["sent_key_bytes"],
        "held_out": len(held_out),
        "same_class": same(found, expected),
        "largest_error": float(np.abs(found - expected).max() / size),
        "mean_error": float(np.abs(found - expected).mean() / size),
        "encrypted": count,
        "same_class_encrypted": same(own, meant),
        "largest_error_encrypted": float(np.abs(own - meant).max() / size),
        "peak_rss_bytes": peak_rss_bytes(),
    }


@benchmark(
    option("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS), selects=True),
    option("--ways", nargs="+", choices=tuple(WAYS), default=tuple(WAYS), selects=True),
    option("--encrypted", type=int, default=20, help="encrypted samples"),
    BACKEND,
    columns={
        "compile_s": "s", "levels": "", "ring_dim": "",
        "batch": "", "measured_ms": "ms", "amortised_ms": "ms", "floor_ms": "ms", "predicted_ms": "ms",
        "encrypt_ms": "ms", "keygen_s": "s", "keys_sent_bytes": "bytes", "input_sent_bytes": "bytes", "same_class": "",
        "largest_error": "", "same_class_encrypted": "", "largest_error_encrypted": "", "peak_rss_bytes": "bytes",
    },
    data=("adult.npz",),
    memory_gb=8,
    minutes=30,
)  # fmt: skip
def trees(run: Run) -> None:
    for name in run.options.models:
        case = MODELS[name]
        if importlib.util.find_spec(case.needs) is None:
            print(f"{name}: {case.needs} is not installed")
            continue
        for way in run.options.ways:
            run.row(
                {"model": name, "way": way},
                lambda case=case, way=way: measured(case, way, run.options.encrypted, run.options.backend),  # type: ignore[misc]
            )


if __name__ == "__main__":
    trees.main()
