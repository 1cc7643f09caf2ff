"""Checks of what a user gives to the public functions of the compiler."""

from __future__ import annotations

from heliograph.errors import ProgramError
from heliograph.ir import Program


def require_program(value: object, what: str) -> None:
    """Raise a ProgramError where `value` is not a program: the commonest mistake is to pass the model."""
    if not isinstance(value, Program):
        kind = type(value)
        raise ProgramError(
            f"{what} takes a program, not {kind.__module__}.{kind.__qualname__}",
            hint="make one of the estimator first: hg.from_sklearn(estimator, samples)"
            if hasattr(value, "get_params") and hasattr(value, "fit")
            else "trace a PyTorch module first: hg.trace(model, example_input, calibration=samples)",
        )
