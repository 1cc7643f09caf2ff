"""Class labels of an output: texts, whole numbers, floats or booleans, as texts in its specification."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.interface import TensorSpec
from heliograph.ir.node import Array
from heliograph.records import MOST_NAME


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


# The types of labels: how one is read from its text, and the text that it has.
_READ: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "text": (str, str),
    "int": (int, str),
    "float": (_finite, repr),
    "bool": (lambda text: {"True": True, "False": False}[text], str),
}


def read_labels(spec: TensorSpec) -> Array | None:
    """The class labels of an output in order, (classes,); None if it has none, or texts that are not of their type."""
    if spec.labels is None or spec.columns is None:
        return None
    read, text_of = _READ[spec.labels]
    try:
        found = [read(text) for text in spec.columns]
        if [text_of(label) for label in found] != list(spec.columns):
            return None
        return np.array(found, dtype=object if spec.labels == "text" else None)
    except (ValueError, KeyError, OverflowError):
        return None


def with_labels(spec: TensorSpec, classes: Iterable[Any]) -> TensorSpec:
    """The output with these class labels, one for each element of its last axis.

    Raises ProgramError for labels that are not texts, numbers or booleans of one type, that repeat, or that are too many
    or too few.
    """
    given = [label.item() if isinstance(label, np.generic) else label for label in classes]
    named = spec.shape[-1:]
    if (len(given),) != named:
        raise ProgramError(
            f"there are {len(given)} classes, and the output {spec.name!r} has shape {spec.shape}",
            hint="give one label for each element of its last axis",
        )
    kind = _type_of(given)
    if kind is None:
        raise ProgramError(
            "the classes are not labels of one type",
            why=f"they are {', '.join(sorted({type(label).__name__ for label in given}))}",
            hint="texts, whole numbers, floats or booleans",
        )
    columns = tuple(_READ[kind][1](label) for label in given)
    bad = next((text for text in columns if not text or len(text) > MOST_NAME or not text.isprintable()), None)
    if bad is not None or (kind == "float" and not all(map(math.isfinite, given))):
        raise ProgramError(
            f"the class label {(bad or 'infinity')[:60]!r} is neither a short printable text nor a number"
        )
    if len(set(columns)) != len(columns):
        raise ProgramError("two classes have one label")
    return replace(spec, columns=columns, labels=kind)


def _type_of(labels: Sequence[Any]) -> str | None:
    """The type of all labels."""
    for name, kind in (("bool", bool), ("int", int), ("float", float), ("text", str)):
        if labels and all(type(label) is kind for label in labels):
            return name
    return None
