"""Samples for estimators of scikit-learn: arrays and data frames, and the methods of estimators on them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.errors import ProgramError, RangeError, said
from heliograph.execution.interface import real_numbers
from heliograph.ir import Array, Location


@dataclass(frozen=True)
class Frame:
    """The form of the samples' data frame: its class and its columns."""

    kind: Callable[..., Any]
    columns: tuple[Any, ...]


# Rows of numbers in the form that an estimator takes.
Named = Callable[[Array], Any]


def samples_of(samples: Any, missing: bool = False) -> tuple[Array, Frame | None]:
    """The samples as an array, and the form of their data frame; None where they are not in one. Values may be `missing`,
    NaN.
    """
    frame = None
    if hasattr(samples, "columns") and hasattr(samples, "iloc"):
        names = tuple(samples.columns)
        frame = Frame(type(samples), names)
        parts = [
            _numbers(samples.iloc[:, place], f"column {name!r} of the samples") for place, name in enumerate(names)
        ]
        given = np.stack(parts, axis=1) if parts else np.empty((len(samples), 0))
    else:
        given = _numbers(samples, "the samples")
    if given.ndim != 2 or not all(given.shape):
        raise ProgramError(f"the samples have shape {given.shape}, expected (samples, features)")
    bad = np.argwhere(np.isinf(given) if missing else ~np.isfinite(given))
    if len(bad):
        row, column = (int(place) for place in bad[0])
        where = f"column {frame.columns[column]!r}" if frame is not None else f"feature {column}"
        raise ProgramError(
            f"the samples hold NaN or infinity: {given[row, column]} in sample {row}, {where}",
            hint="missing values are filled in on the client, before encryption: begin the pipeline with a SimpleImputer, "
            "or give samples without them; decision trees take them as they are with binned=True",
        )
    return given, frame


def table_of(samples: Any) -> tuple[Array, Frame | None]:
    """The samples as an array of objects, texts and missing values among them, and the form of their data frame."""
    if hasattr(samples, "columns") and hasattr(samples, "iloc"):
        names = tuple(samples.columns)
        given: Array = np.empty((len(samples), len(names)), dtype=object)
        for place in range(len(names)):
            given[:, place] = np.asarray(samples.iloc[:, place], dtype=object)
        frame = Frame(type(samples), names)
    else:
        given, frame = np.asarray(samples, dtype=object), None
    if given.ndim != 2 or not all(given.shape):
        raise ProgramError(f"the samples have shape {given.shape}, expected (samples, features)")
    return given, frame


def are_numbers(samples: Any) -> bool:
    """Whether samples are numbers, and none is missing."""
    try:
        samples_of(samples)
    except ProgramError:
        return False
    return True


def _numbers(values: Any, what: str) -> Array:
    """The values as float64."""
    try:
        return real_numbers(values)
    except ValueError as error:
        column = what.startswith("column")
        raise ProgramError(
            f"{what} {'is' if column else 'are'} not an array of real numbers",
            why=f"its dtype is {values.dtype}" if column else str(error),
            hint="encode it on the client: begin the pipeline with a ColumnTransformer that has a OneHotEncoder or "
            "OrdinalEncoder for it, or leave it out",
        ) from None


def check_outputs(outputs: str) -> None:
    """Raise a ProgramError unless these are outputs that a classifier can have."""
    if outputs not in ("probabilities", "scores"):
        raise ProgramError(f"outputs is {outputs!r}", hint='outputs="probabilities" or outputs="scores"')


def interval_of(given: Array, declared: tuple[float, float] | None) -> tuple[float, float]:
    """The interval of the input: the declared one, or the interval of the samples."""
    smallest, largest = float(given.min()), float(given.max())
    if declared is None:
        if smallest == largest:
            raise ProgramError(
                f"all samples hold the one number {smallest:g}",
                why="the range of the input cannot be told from them",
                hint=said("give {input_range=(low, high)}"),
            )
        return smallest, largest
    low, high = (float(bound) for bound in declared)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ProgramError(said(f"{{input_range}} is ({low:g}, {high:g})"), why="low must be below high, both finite")
    if smallest < low or largest > high:
        raise RangeError(
            said(f"the samples reach from {smallest:g} to {largest:g}, outside of {{input_range}} ({low:g}, {high:g})"),
            hint=f"declare ({smallest:g}, {largest:g})",
        )
    return low, high


def named_rows(estimator: Any, frame: Frame | None, first: bool) -> Named:
    """A function that gives rows to an estimator in the form in which it was fitted: a data frame with names.

    Samples keep the names of their own columns, whatever their order: the estimator finds its own by name, or refuses
    them. The output of an earlier step gets the names that it had when the estimator was fitted.
    """
    fitted = getattr(estimator, "feature_names_in_", None)
    if frame is None or fitted is None:
        return lambda rows: rows
    kind, names = frame.kind, list(frame.columns if first else fitted)
    return lambda rows: kind(rows, columns=names) if rows.shape[1] == len(names) else rows


def as_given(rows: Any) -> Any:
    """The rows themselves."""
    return rows


def applied(
    method: Callable[[Any], Any], loc: Location, named: Named, *, any_values: bool = False
) -> Callable[[Array], Array]:
    """The method on samples in rows, as an array (samples, values); an error that it raises is the user's. With
    `any_values`, what it gives need not be numbers, and is left out.
    """

    def apply(rows: Array) -> Array:
        try:
            with warnings.catch_warnings():
                # Warnings about the feature names with which an estimator was fitted.
                warnings.simplefilter("ignore")
                found = method(named(rows))
            if any_values:
                return np.empty((len(rows), 0))
            dense = found.toarray() if hasattr(found, "toarray") else found
            return np.asarray(dense, dtype=np.float64).reshape(len(rows), -1)
        except Exception as error:
            raise ProgramError(
                f"the estimator does not take samples of shape {rows.shape}",
                where=loc,
                why=f"{type(error).__name__}: {error}"[:300],
                hint="give the data frame that it was fitted on" if "dataframe" in str(error) else "",
            ) from None

    return apply
