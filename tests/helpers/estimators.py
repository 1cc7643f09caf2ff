"""Fitted estimators of scikit-learn, and what clients get from their programs."""

from __future__ import annotations

import warnings
from typing import Any

from heliograph.execution.interface import given_as
from heliograph.interpret import interpret_many
from heliograph.ir import Program
from heliograph.ir.interface import TensorSpec


def fitted(estimator: Any, data: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(*data)


def meant(program: Program, rows: Any) -> Any:
    """What clients get for rows of samples, encoded and finished as they do."""
    (spec,) = program.interface.inputs or (TensorSpec("x", tuple(rows.shape[1:])),)
    (found,) = interpret_many(program, [given_as(spec, rows)])
    return program.interface.outputs[0].finished(found) if program.interface.outputs else found
