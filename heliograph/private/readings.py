"""What the values of an output mean, in the conventions of scikit-learn: classes, probabilities, scores, amounts.

Values have an axis of samples in front: (samples, *shape of the output).
"""

from __future__ import annotations

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.interface import DECISION, PROBABILITY, TensorSpec
from heliograph.ir.labels import read_labels
from heliograph.ir.node import Array


def classes_of(spec: TensorSpec) -> Array:
    """The class labels in the order of the scores; a ProgramError if the output has none."""
    labels = read_labels(spec)
    if labels is None:
        raise ProgramError(
            f"the output {spec.name!r} has no classes",
            hint="for a network that classifies, name them when it is compiled: hg.Private(model, classes=[...])",
        )
    return labels


def predicted(spec: TensorSpec, values: Array) -> Array:
    """The label of the largest score of each sample; 1 or -1 by the sign of a decision function; or else the values,
    without the axis of a single one.
    """
    if spec.labels is not None:
        return np.asarray(classes_of(spec)[values.argmax(axis=-1)])
    alone = values.reshape(len(values)) if spec.shape in ((), (1,)) else values
    return np.where(alone >= 0, 1, -1) if spec.unit == DECISION else alone


def probabilities(spec: TensorSpec, values: Array) -> Array:
    """The probabilities of the classes, which the client computed or the program gives."""
    classes_of(spec)
    if spec.finish == "log_softmax":
        return np.asarray(np.exp(values))
    if spec.finish != "softmax" and spec.unit != PROBABILITY:
        raise ProgramError(
            f"the output {spec.name!r} has scores, of which no probabilities are known",
            hint="take decision_function, or compile a model that ends in a softmax",
        )
    return values


def decisions(spec: TensorSpec, scores: Array) -> Array:
    """The scores of the classes before any softmax; of two classes the second less the first; or the values of a
    decision function.
    """
    if spec.unit == DECISION:
        return scores.reshape(len(scores))
    if spec.unit == PROBABILITY:
        raise ProgramError(f"the output {spec.name!r} has probabilities and no scores", hint="take predict_proba")
    count = len(classes_of(spec))
    return np.asarray(scores[..., 1] - scores[..., 0] if count == 2 else scores)


def score_of(spec: TensorSpec, found: Array, wanted: Array) -> float:
    """The share of right classes, or for amounts the coefficient of determination, 1 for no error at all."""
    if len(found) != len(wanted):
        raise ProgramError(f"there are {len(found)} samples and {len(wanted)} answers to compare them with")
    if spec.labels is not None or spec.unit == DECISION:
        known = np.array([1, -1]) if spec.labels is None else classes_of(spec)
        # In Python's sense: NumPy would turn numbers beside texts into texts.
        if len(wanted) and not set(wanted.ravel().tolist()) & set(known.tolist()):
            raise ProgramError(
                f"none of the answers to compare with is a class: the first is {wanted.ravel()[0]!s:.60}",
                why=f"the classes are {', '.join(str(label) for label in known[:8])}{', ...' if len(known) > 8 else ''}",
                hint="give true classes as the model names them (classes_)",
            )
        return float(np.mean(found == wanted))
    wanted = wanted.reshape(found.shape)
    rest = ((wanted - found) ** 2).sum(axis=0)
    spread = ((wanted - wanted.mean(axis=0)) ** 2).sum(axis=0)
    # As in scikit-learn where there is nothing to explain.
    shares = np.where(spread > 0, 1 - rest / np.where(spread > 0, spread, 1.0), np.where(rest > 0, 0.0, 1.0))
    return float(np.mean(shares))
