"""The readers of estimators, by their class."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heliograph.frontends.sklearn import bayes, combined, features, kernels, neighbours
from heliograph.frontends.sklearn.affine import read_affine
from heliograph.frontends.sklearn.layer import Layer
from heliograph.frontends.sklearn.perceptron import read_perceptron
from heliograph.frontends.sklearn.trees import read_boosted, read_isolation_forest, read_trees
from heliograph.frontends.trees.lightgbm import is_lightgbm
from heliograph.frontends.trees.xgboost import is_xgboost
from heliograph.ir import Node

# By the name of a class of scikit-learn, or of the one that it is derived from. All others are read as affine maps.
READERS: Mapping[str, Callable[[Layer], Node]] = {
    "BaseMultilayerPerceptron": read_perceptron,
    # Trees.
    "AdaBoostRegressor": read_trees,
    "BaseDecisionTree": read_trees,
    "IsolationForest": read_isolation_forest,
    "BaseForest": read_trees,
    "BaseGradientBoosting": read_trees,
    "BaseHistGradientBoosting": read_trees,
    # Distributions.
    "GaussianNB": bayes.read_gaussian,
    "MultinomialNB": bayes.read_counts,
    "ComplementNB": bayes.read_counts,
    "BernoulliNB": bayes.read_bernoulli,
    "QuadraticDiscriminantAnalysis": bayes.read_discriminant,
    "BaseMixture": bayes.read_mixture,
    "EllipticEnvelope": bayes.read_envelope,
    # Nearness.
    "NearestCentroid": neighbours.read_centroids,
    "KNeighborsClassifier": neighbours.read_neighbours,
    "KNeighborsRegressor": neighbours.read_neighbours,
    "KMeans": neighbours.read_clusters,
    "MiniBatchKMeans": neighbours.read_clusters,
    "MeanShift": neighbours.read_clusters,
    "AffinityPropagation": neighbours.read_clusters,
    # Kernels.
    "BaseLibSVM": kernels.read_vectors,
    "KernelRidge": kernels.read_kernel_ridge,
    "KernelPCA": kernels.read_kernel_components,
    "Nystroem": kernels.read_nystroem,
    "RBFSampler": kernels.read_random_features,
    # Features.
    "Binarizer": features.read_binarizer,
    "ColumnTransformer": features.read_columns,
    "FeatureUnion": features.read_union,
    "FunctionTransformer": features.read_function,
    "KBinsDiscretizer": features.read_bins,
    "MinMaxScaler": features.read_scaler,
    "Normalizer": features.read_normalizer,
    "PolynomialFeatures": features.read_products,
    # Others inside.
    "AdaBoostClassifier": combined.read_boosting,
    "BaggingClassifier": combined.read_bagging,
    "BaggingRegressor": combined.read_bagging,
    "CalibratedClassifierCV": combined.read_calibration,
    "MultiOutputClassifier": combined.read_targets,
    "MultiOutputRegressor": combined.read_targets,
    "OneVsOneClassifier": combined.read_one_vs_one,
    "OneVsRestClassifier": combined.read_one_vs_rest,
    "StackingClassifier": combined.read_stack,
    "StackingRegressor": combined.read_stack,
    "TransformedTargetRegressor": combined.read_transformed_target,
    "VotingClassifier": combined.read_vote,
    "VotingRegressor": combined.read_vote,
}


def read(layer: Layer) -> Node:
    """The value of an estimator."""
    if is_xgboost(layer.step) or is_lightgbm(layer.step):
        return read_boosted(layer)
    for kind in type(layer.step).__mro__:
        reader = READERS.get(kind.__name__)
        if reader is not None and kind.__module__.startswith("sklearn."):
            return reader(layer)
    return read_affine(layer)
