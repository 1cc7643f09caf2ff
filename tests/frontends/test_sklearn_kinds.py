"""Estimators of scikit-learn that are not affine: each program gives what its estimator gives, or is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.estimators import fitted, meant

import heliograph as hg

pytest.importorskip("sklearn")

from sklearn import preprocessing as pre
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import AffinityPropagation, Birch, KMeans, MeanShift, MiniBatchKMeans
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.covariance import EllipticEnvelope
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.decomposition import PCA, KernelPCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDOneClassSVM
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestCentroid, RadiusNeighborsRegressor
from sklearn.pipeline import make_pipeline, make_union
from sklearn.svm import SVC, SVR, LinearSVC, NuSVC, NuSVR, OneClassSVM

from heliograph.errors import UnsupportedError
from heliograph.interpret import interpret_many

TOY = hg.Options(security_bits=None)
IRIS = load_iris(return_X_y=True)
CANCER = tuple(part[:200] for part in load_breast_cancer(return_X_y=True))
CANCER = (CANCER[0][:, :6], CANCER[1])
WINE = load_wine(return_X_y=True)
# Scaled, so that few distances are equal.
WINE = (pre.StandardScaler().fit_transform(WINE[0])[::2, :6], WINE[1][::2])
DIABETES = load_diabetes(return_X_y=True)
DIABETES = (DIABETES[0][:100] * 20, DIABETES[1][:100] / 100)
FEW = (DIABETES[0][:, :3], DIABETES[1])
TARGETS = (DIABETES[0], np.stack([DIABETES[1], DIABETES[1] ** 2], axis=1))
LEFT = (IRIS[0][:130], IRIS[1][:130])


def scaled(estimator: Any) -> Any:
    return make_pipeline(pre.StandardScaler(), estimator)


def named(*estimators: Any) -> list[tuple[str, Any]]:
    return [(f"part{place}", one) for place, one in enumerate(estimators)]


# Name -> estimator, its data, what its program gives, and the ops of it (None: any).
LINES = ("sub", "linear", "mul", "linear", "add")
ESTIMATORS: dict[str, tuple[Callable[[], Any], Any, str, tuple[str, ...] | None]] = {
    # Distributions.
    "GaussianNB": (GaussianNB, IRIS, "predict_proba", LINES),
    "GaussianNB, scaled": (lambda: scaled(GaussianNB()), CANCER, "predict_proba", LINES),
    "MultinomialNB": (MultinomialNB, IRIS, "predict_proba", ("linear",)),
    "MultinomialNB, two classes": (MultinomialNB, CANCER, "predict_proba", ("linear",)),
    "ComplementNB": (lambda: ComplementNB(norm=True), IRIS, "predict_proba", ("linear",)),
    "BernoulliNB": (lambda: scaled(BernoulliNB()), IRIS, "predict_proba", ("linear", "gt", "linear")),
    "BernoulliNB of bits": (
        lambda: make_pipeline(pre.Binarizer(threshold=2.0), BernoulliNB(binarize=None)), IRIS, "predict_proba",
        ("gt", "linear"),
    ),
    "quadratic discriminant": (
        QuadraticDiscriminantAnalysis, IRIS, "predict_proba", ("linear", "linear", "mul", "linear", "add"),
    ),
    "quadratic discriminant, two classes": (lambda: scaled(QuadraticDiscriminantAnalysis()), CANCER, "predict_proba", None),
    "mixture": (lambda: GaussianMixture(3, random_state=0), IRIS, "predict_proba", None),
    "mixture, diagonal": (lambda: GaussianMixture(3, covariance_type="diag", random_state=0), IRIS, "predict_proba", LINES),
    "mixture, spherical": (
        lambda: GaussianMixture(3, covariance_type="spherical", random_state=0), IRIS, "predict_proba", LINES,
    ),
    "mixture, tied": (
        lambda: GaussianMixture(3, covariance_type="tied", random_state=0), IRIS, "predict_proba", ("linear",),
    ),
    "variational mixture": (lambda: BayesianGaussianMixture(n_components=3, random_state=0), IRIS, "predict_proba", None),
    "variational mixture, Dirichlet": (
        lambda: BayesianGaussianMixture(
            n_components=3, covariance_type="diag", weight_concentration_prior_type="dirichlet_distribution", random_state=0
        ),
        IRIS, "predict_proba", LINES,
    ),
    "envelope": (lambda: EllipticEnvelope(random_state=0), IRIS, "decision_function", None),
    # Nearness.
    "centroids": (NearestCentroid, IRIS, "scores", ("linear",)),
    "centroids, Manhattan": (lambda: NearestCentroid(metric="manhattan"), WINE, "scores", ("sub", "abs", "sum", "neg")),
    "centroids, two classes": (NearestCentroid, CANCER, "scores", ("linear",)),
    "k-means": (lambda: KMeans(4, n_init=1, random_state=0), IRIS, "clusters", ("linear",)),
    "k-means of batches": (lambda: scaled(MiniBatchKMeans(3, n_init=1, random_state=0)), IRIS, "clusters", None),
    "mean shift": (lambda: MeanShift(bandwidth=1.0), IRIS, "clusters", ("linear",)),
    "affinity propagation": (lambda: AffinityPropagation(random_state=0), IRIS, "clusters", ("linear",)),
    "distances from centres": (
        lambda: make_pipeline(KMeans(3, n_init=1, random_state=0), LogisticRegression()), IRIS, "predict_proba",
        (*LINES, "sqrt", "linear"),
    ),
    "one neighbour": (lambda: KNeighborsClassifier(1), WINE, "predict_proba", ("linear", "argmax", "linear")),
    "neighbours": (
        lambda: KNeighborsClassifier(4), WINE, "predict_proba", ("linear", "gt", "linear", "lt", "linear"),
    ),
    "all are neighbours": (lambda: KNeighborsRegressor(100), DIABETES, "predict", ("linear",)),
    "neighbours, regression": (lambda: KNeighborsRegressor(3), DIABETES, "predict", None),
    "neighbours, targets": (lambda: KNeighborsRegressor(1), TARGETS, "predict", None),
    # Kernels.
    "SVC": (SVC, IRIS, "scores", (*LINES, "exp", "linear", "gt", "linear")),
    "SVC, two classes": (lambda: scaled(SVC()), CANCER, "scores", (*LINES, "exp", "linear")),
    "SVC, linear": (lambda: SVC(kernel="linear"), IRIS, "scores", ("linear", "gt", "linear")),
    "SVC, linear, two classes": (lambda: scaled(SVC(kernel="linear")), CANCER, "scores", ("linear", "linear")),
    "SVC, polynomial": (
        lambda: SVC(kernel="poly", coef0=1.0), IRIS, "scores", ("linear", "power", "linear", "gt", "linear"),
    ),
    "SVC, sigmoid": (lambda: scaled(SVC(kernel="sigmoid")), IRIS, "scores", None),
    "SVC, ties by confidence": (lambda: SVC(break_ties=True), WINE, "scores", None),
    "SVC, four classes": (SVC, (IRIS[0], IRIS[1] + (IRIS[0][:, 0] > 6.2)), "scores", None),
    "NuSVC": (NuSVC, WINE, "scores", None),
    "SVR": (SVR, DIABETES, "predict", (*LINES, "exp", "linear")),
    "NuSVR, polynomial": (lambda: NuSVR(kernel="poly"), DIABETES, "predict", ("linear", "power", "linear")),
    "one class": (lambda: OneClassSVM(nu=0.1), IRIS, "decision_function", (*LINES, "exp", "linear")),
    "one class, linear": (SGDOneClassSVM, IRIS, "decision_function", ("linear",)),
    "kernel ridge": (lambda: KernelRidge(kernel="rbf"), TARGETS, "predict", (*LINES, "exp", "linear")),
    "kernel ridge, polynomial": (
        lambda: KernelRidge(kernel="poly", degree=2), DIABETES, "predict", ("linear", "power", "linear"),
    ),
    "kernel ridge, linear": (KernelRidge, DIABETES, "predict", ("linear",)),
    "kernel PCA": (lambda: scaled(KernelPCA(3, kernel="rbf")), IRIS, "transform", None),
    "kernel PCA, polynomial": (
        lambda: make_pipeline(KernelPCA(3, kernel="poly"), LogisticRegression(max_iter=500)), WINE, "predict_proba", None,
    ),
    "Nystroem": (lambda: make_pipeline(Nystroem(n_components=20, random_state=0), Ridge()), DIABETES, "predict", None),
    "Nystroem of all columns": (
        lambda: make_pipeline(
            ColumnTransformer([("a", Nystroem(n_components=20, random_state=0), [0, 1, 2])]), LinearRegression()
        ),
        FEW, "predict", None,
    ),
    "random features": (
        lambda: make_pipeline(RBFSampler(n_components=20, random_state=0), Ridge()), DIABETES, "predict",
        ("linear", "cos", "linear", "linear"),
    ),
    # Features.
    "products": (lambda: make_pipeline(pre.PolynomialFeatures(2), Ridge()), DIABETES, "predict", None),
    "products of four": (lambda: pre.PolynomialFeatures(4, include_bias=False), FEW, "transform", None),
    "products of others": (lambda: pre.PolynomialFeatures((2, 3), interaction_only=True), DIABETES, "transform", None),
    "binarizer": (
        lambda: make_pipeline(pre.Binarizer(threshold=1.5), LogisticRegression()), IRIS, "predict_proba", ("gt", "linear"),
    ),
    "norm": (
        lambda: make_pipeline(pre.Normalizer(), LogisticRegression()), IRIS, "predict_proba",
        ("mul", "sum", "rsqrt", "mul", "linear"),
    ),
    "norm, l1": (lambda: pre.Normalizer("l1"), IRIS, "transform", ("abs", "sum", "div")),
    "norm, max": (lambda: pre.Normalizer("max"), IRIS, "transform", ("abs", "max", "div")),
    "clipped": (
        lambda: make_pipeline(pre.MinMaxScaler(clip=True), Ridge()), DIABETES, "predict", ("linear", "clamp", "linear"),
    ),
    "function": (
        lambda: make_pipeline(pre.FunctionTransformer(np.log1p), Ridge()), IRIS, "predict", ("add", "log", "linear"),
    ),
    "affine function": (
        lambda: make_pipeline(pre.FunctionTransformer(lambda x: 2 * x + 1), Ridge()), IRIS, "predict", ("linear", "linear"),
    ),
    "union": (
        lambda: make_pipeline(make_union(pre.StandardScaler(), pre.PolynomialFeatures(2)), Ridge()), FEW, "predict", None,
    ),
    "columns": (
        lambda: make_pipeline(
            ColumnTransformer(
                [("a", scaled(pre.PolynomialFeatures(2)), [0, 3]), ("b", "passthrough", [1]), ("c", "drop", [2])],
                remainder=pre.StandardScaler(),
                transformer_weights={"a": 0.5},
            ),
            Ridge(),
        ),
        DIABETES, "predict", None,
    ),
    # Others inside.
    "soft vote": (
        lambda: VotingClassifier(
            named(LogisticRegression(), GaussianNB(), scaled(KNeighborsClassifier(3))), voting="soft", weights=[1, 2, 1]
        ),
        WINE, "predict_proba", None,
    ),
    "soft vote, two classes": (
        lambda: VotingClassifier(named(scaled(LogisticRegression()), GaussianNB()), voting="soft"), CANCER, "predict_proba",
        None,
    ),
    "hard vote": (lambda: VotingClassifier(named(LogisticRegression(), GaussianNB(), SVC())), WINE, "scores", None),
    "hard vote, ties": (
        lambda: VotingClassifier(named(scaled(LogisticRegression()), GaussianNB())), CANCER, "scores", None,
    ),
    "mean of regressors": (lambda: VotingRegressor(named(Ridge(), SVR())), DIABETES, "predict", None),
    "mean of affine ones": (lambda: VotingRegressor(named(Ridge(), LinearRegression())), DIABETES, "predict", ("linear",)),
    "bagging": (
        lambda: BaggingClassifier(LogisticRegression(), 3, max_features=0.7, random_state=0), WINE, "predict_proba", None,
    ),
    "bagging by votes": (lambda: BaggingClassifier(LinearSVC(), 3, random_state=0), WINE, "predict_proba", None),
    "bagging, regression": (
        lambda: BaggingRegressor(SVR(), 2, max_features=0.5, random_state=0), DIABETES, "predict", None,
    ),
    "boosting": (lambda: AdaBoostClassifier(LogisticRegression(), n_estimators=3), WINE, "predict_proba", None),
    "boosting, two classes": (
        lambda: AdaBoostClassifier(LogisticRegression(), n_estimators=3), (CANCER[0] / 100, CANCER[1]), "predict_proba",
        None,
    ),
    "stack": (
        lambda: StackingClassifier(named(LogisticRegression(), SVC()), cv=2), (CANCER[0] / 100, CANCER[1]), "predict_proba",
        None,
    ),
    "stack, three classes": (
        lambda: StackingClassifier(named(LogisticRegression(), GaussianNB()), passthrough=True, cv=2), WINE,
        "predict_proba", None,
    ),
    "stack, regression": (lambda: StackingRegressor(named(SVR(), Ridge()), cv=2), DIABETES, "predict", None),
    "targets": (lambda: MultiOutputRegressor(SVR()), TARGETS, "predict", None),
    "affine targets": (lambda: MultiOutputRegressor(Ridge()), TARGETS, "predict", ("linear",)),
    "one against the rest": (lambda: OneVsRestClassifier(LogisticRegression()), IRIS, "predict_proba", None),
    "one against the rest, by decisions": (lambda: OneVsRestClassifier(SVC()), IRIS, "scores", None),
    "one against the rest, by probabilities": (lambda: OneVsRestClassifier(GaussianNB()), IRIS, "predict_proba", None),
    "one against the rest, two classes": (
        lambda: OneVsRestClassifier(scaled(LogisticRegression())), CANCER, "predict_proba", ("linear", "linear"),
    ),
    "pairs": (lambda: OneVsOneClassifier(SVC()), IRIS, "scores", None),
    "pairs, by probabilities": (lambda: OneVsOneClassifier(GaussianNB()), WINE, "scores", None),
    "pair": (lambda: OneVsOneClassifier(LinearSVC()), CANCER, "scores", None),
    "calibrated": (lambda: CalibratedClassifierCV(LinearSVC(), cv=2), WINE, "predict_proba", None),
    "calibrated once": (
        lambda: CalibratedClassifierCV(scaled(LinearSVC()), ensemble=False, cv=2), CANCER, "predict_proba",
        ("linear", "linear", "linear", "linear"),
    ),
    "calibrated probabilities": (lambda: CalibratedClassifierCV(GaussianNB(), cv=2), CANCER, "predict_proba", None),
    "target, scaled": (
        lambda: TransformedTargetRegressor(SVR(), transformer=pre.StandardScaler()), DIABETES, "predict", None,
    ),
    "target, logarithm": (
        lambda: TransformedTargetRegressor(Ridge(), func=np.log, inverse_func=np.exp), DIABETES, "predict",
        ("linear", "exp"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ESTIMATORS)
def test_programs_give_what_estimators_give(name: str) -> None:
    make, data, method, ops = ESTIMATORS[name]
    estimator, samples = fitted(make(), data), data[0]
    uncertain = method == "scores" and hasattr(estimator, "predict_proba")
    program = hg.from_sklearn(estimator, samples[::2], outputs="scores" if uncertain else "probabilities")
    if ops is not None:
        assert tuple(node.op for node in program.nodes if node.op not in ("input", "constant")) == ops
    # Half of them are new to the program.
    found = meant(program, samples)
    if method in ("scores", "clusters"):
        classes = estimator.classes_ if method == "scores" else np.arange(found.shape[1])
        assert (classes[found.argmax(axis=1)] == estimator.predict(samples)).all()
        return
    expected = np.asarray(getattr(estimator, method)(samples))
    expected = (expected.toarray() if hasattr(expected, "toarray") else expected).reshape(len(samples), -1)
    assert np.abs(found - expected).max() < 1e-7 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize(
    ("estimator", "data", "ops"),
    [
        (make_pipeline(pre.KBinsDiscretizer(3), LogisticRegression()), IRIS, ("linear", "ge", "linear", "linear")),
        (pre.KBinsDiscretizer(4, encode="ordinal"), WINE, ("linear", "ge", "linear")),
    ],
)
def test_bins_are_the_programs_where_a_range_is_declared(estimator: Any, data: Any, ops: tuple[str, ...]) -> None:
    model, samples = fitted(estimator, data), data[0]
    program = hg.from_sklearn(model, samples, input_range=(float(samples.min()), float(samples.max())))
    assert tuple(node.op for node in program.nodes if node.op not in ("input", "constant")) == ops
    expected = model.predict_proba(samples) if hasattr(model, "predict_proba") else model.transform(samples)
    np.testing.assert_allclose(meant(program, samples), expected, atol=1e-7)


def test_scores_of_classes_with_priors_are_those_of_deviations() -> None:
    centroids = pytest.importorskip("sklearn.neighbors").NearestCentroid()
    if "priors" not in centroids.get_params():
        pytest.skip("this release has no priors of centroids")
    model = fitted(centroids.set_params(priors="empirical"), LEFT)
    found = meant(hg.from_sklearn(model, LEFT[0]), LEFT[0])
    np.testing.assert_allclose(found, model.predict_proba(LEFT[0]), atol=1e-7)


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("GaussianNB, scaled", 2),
        ("quadratic discriminant", 3),
        ("envelope", 2),
        ("k-means", 1),
        ("kernel ridge, polynomial", 3),
        ("products", 3),
        ("products of four", 5),
    ],
)
def test_polynomials_take_few_levels(name: str, levels: int) -> None:
    make, data, _, _ = ESTIMATORS[name]
    model, samples = fitted(make(), data), data[0]
    program = hg.from_sklearn(model, samples)
    artifact = hg.compile(program, TOY)
    assert artifact.report.values["depth"] == levels
    (exact,) = interpret_many(program, [samples[:4]])
    found = np.array([hg.simulate(artifact, x, seed=place) for place, x in enumerate(samples[:4])])
    if program.interface.outputs:
        exact = program.interface.outputs[0].finished(exact)
    assert np.abs(found - exact).max() <= 1e-6 * max(1.0, np.abs(exact).max())


@pytest.mark.parametrize("name", ["binarizer", "one against the rest", "distances from centres", "bagging"])
def test_compiled_estimators_choose_what_estimators_choose(name: str) -> None:
    make, data, _, _ = ESTIMATORS[name]
    model, samples = fitted(make(), data), data[0][::12]
    artifact = hg.compile(hg.from_sklearn(model, data[0]), TOY)
    found = np.array([hg.simulate(artifact, x, seed=place) for place, x in enumerate(samples)])
    wanted = model.predict_proba(samples)
    assert np.abs(found - wanted).max() < 0.05
    clear = np.ptp(np.sort(wanted, axis=1)[:, -2:], axis=1) > 0.1
    assert (found.argmax(axis=1) == wanted.argmax(axis=1))[clear].all()


def test_compiled_kernels_regress() -> None:
    model = fitted(SVR(gamma=0.02), FEW)
    artifact = hg.compile(hg.from_sklearn(model, FEW[0]), TOY)
    found = np.array([hg.simulate(artifact, x, seed=place)[0] for place, x in enumerate(FEW[0][:8])])
    assert np.abs(found - model.predict(FEW[0][:8])).max() < 1e-3 * np.abs(FEW[1]).max()


def test_points_at_one_place_are_neighbours_one_after_the_other() -> None:
    points = np.repeat([[0.0, 0.0], [1.0, 3.0], [4.0, 1.0]], 2, axis=0)
    x = np.random.default_rng(0).uniform(0, 4, (40, 2))
    for k in (1, 2, 4):
        model = KNeighborsRegressor(k).fit(points, [1.0, 1.0, 2.0, 2.0, 5.0, 5.0])
        np.testing.assert_allclose(meant(hg.from_sklearn(model, x), x)[:, 0], model.predict(x), atol=1e-9)


def test_first_of_equal_votes_is_the_largest() -> None:
    """The client takes the largest score, and noise would choose among equal ones."""
    model = fitted(VotingClassifier(named(scaled(LogisticRegression()), GaussianNB())), CANCER)
    first, second = (one.predict(CANCER[0]) for one in model.estimators_)
    tied = first != second
    assert tied.any()
    found = meant(hg.from_sklearn(model, CANCER[0]), CANCER[0][tied])
    assert (found[:, 0] - found[:, 1] > 0.05).all()


def test_columns_of_data_frames_are_found_inside() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: data frames are not tried")
    frame = pandas.DataFrame(DIABETES[0][:, :3], columns=["a", "b", "c"])
    columns = ColumnTransformer([("p", pre.PolynomialFeatures(2), ["c", "a"])], remainder="passthrough")
    model = make_pipeline(columns, Ridge()).fit(frame, DIABETES[1])
    other = frame[["c", "b", "a"]]
    found = meant(hg.from_sklearn(model, other), other)
    np.testing.assert_allclose(found[:, 0], model.predict(frame), atol=1e-9)
    vote = VotingRegressor(named(make_pipeline(columns, Ridge()), SVR())).fit(frame, DIABETES[1])
    np.testing.assert_allclose(meant(hg.from_sklearn(vote, frame), frame)[:, 0], vote.predict(frame), atol=1e-9)


def test_layers_of_parts_have_their_names() -> None:
    model = fitted(VotingRegressor([("far", Ridge()), ("near", scaled(SVR()))]), DIABETES)
    layers = [node.loc.layer for node in hg.from_sklearn(model, DIABETES[0]).nodes]
    assert "votingregressor.far" in layers
    assert "votingregressor.near.svr.kernel" in layers


@pytest.mark.parametrize(
    ("estimator", "data", "words"),
    [
        (KNeighborsClassifier(3), IRIS, "of its 150 points, and 128 are the most(?s:.)*NearestCentroid"),
        (KNeighborsClassifier(3, weights="distance"), WINE, "without bound near a point(?s:.)*uniform"),
        (KNeighborsClassifier(3, metric="manhattan"), WINE, "its metric is manhattan"),
        (RadiusNeighborsRegressor(3.0), DIABETES, "not an affine function(?s:.)*KNeighborsRegressor"),
        (Birch(n_clusters=3), IRIS, "Birch cannot be compiled"),
        (KernelRidge(kernel="laplacian"), DIABETES, "its kernel is laplacian(?s:.)*rbf"),
        (SVC(kernel=lambda a, b: a @ b.T), IRIS, "its kernel is computed elsewhere"),
        (CategoricalNB(), (IRIS[0].round(), IRIS[1]), "BernoulliNB"),
        (make_pipeline(pre.PowerTransformer(), Ridge()), DIABETES, "PowerTransformer(?s:.)*on the client"),
        (make_pipeline(pre.QuantileTransformer(n_quantiles=9), Ridge()), DIABETES, "QuantileTransformer"),
        (make_pipeline(pre.SplineTransformer(), Ridge()), DIABETES, "SplineTransformer(?s:.)*PolynomialFeatures"),
        (make_pipeline(pre.FunctionTransformer(np.cbrt), Ridge()), DIABETES, "FunctionTransformer"),
        (CalibratedClassifierCV(LinearSVC(), method="isotonic", cv=2), WINE, "its method is isotonic"),
        (StackingClassifier(named(LogisticRegression(), SVC()), cv=2), WINE, "not those of its decision_function"),
        (MultiOutputClassifier(LogisticRegression()), (WINE[0], np.stack([WINE[1], WINE[1]], 1)), "several labels"),
        (make_pipeline(make_union(PCA(2), pre.SplineTransformer()), Ridge()), FEW, "SplineTransformer"),
    ],
)
def test_others_are_refused(estimator: Any, data: Any, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        hg.from_sklearn(fitted(estimator, data), data[0])


def test_imputers_inside_others_are_found() -> None:
    from sklearn.impute import SimpleImputer

    model = fitted(VotingRegressor(named(make_pipeline(SimpleImputer(missing_values=0), Ridge()), SVR())), DIABETES)
    with pytest.raises(UnsupportedError, match="it replaces the number 0 by others"):
        hg.from_sklearn(model, DIABETES[0])
