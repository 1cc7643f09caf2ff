"""Checks of the arguments of the compiler's public functions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from heliograph.errors import ProgramError, said
from heliograph.ir import Program


def program_of(model: Any, what: str, example_input: Any, calibration: Any, input_range: Any) -> Program:
    """The program itself, or the program of a PyTorch module, an estimator or a model of trees, from the arguments of
    `trace`, `from_sklearn` and `from_trees`.

    These arguments are refused beside a program, which has its inputs. Raises ProgramError for any other model.
    """
    given = {"example_input": example_input, "calibration": calibration, "input_range": input_range}
    useless = [name for name, value in given.items() if value is not None]
    if isinstance(model, Program):
        if useless:
            raise ProgramError(
                f"{useless[0]} cannot be used here",
                where=what,
                why="the program has its inputs",
                hint="leave it out, or give the model itself",
            )
        return model
    if is_estimator(model) and not is_boosted(model):
        if calibration is None:
            raise ProgramError(
                "an estimator is compiled with samples",
                where=what,
                hint=said("give {calibration=samples}, or make its program first: hg.from_sklearn(estimator, samples)"),
            )
        from heliograph.frontends.sklearn.program import from_sklearn

        return from_sklearn(model, calibration, input_range=input_range)
    if is_boosted(model):
        if calibration is None:
            raise ProgramError(
                "a model of trees is compiled with samples", where=what, hint=said("{calibration=samples}")
            )
        from heliograph.frontends.trees.program import from_trees

        return from_trees(model, calibration, input_range=input_range)
    # A module is listed there only if its package has been imported.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module | torch.export.ExportedProgram):
        from heliograph.frontends.torch.export import trace

        return trace(model, example_input, input_range=input_range, calibration=calibration)
    if what == "Private":
        kind = type(model)
        raise ProgramError(
            f"Private takes a trained model, a program or an artifact, not {kind.__module__}.{kind.__qualname__}",
            hint="give the trained object, not its class"
            if isinstance(model, type)
            else "docs/private.md lists the models",
        )
    require_program(model, what)
    return model  # type: ignore[no-any-return]


def is_estimator(model: object) -> bool:
    """Whether an object has the interface of scikit-learn's estimators."""
    return hasattr(model, "get_params") and hasattr(model, "fit")


def is_boosted(model: object) -> bool:
    """Whether a model is one of XGBoost or LightGBM, or the path of a file of theirs."""
    return isinstance(model, str | Path) or type(model).__module__.partition(".")[0] in ("xgboost", "lightgbm")


def require_program(value: object, what: str) -> None:
    """Raise a ProgramError if `value` is not a program: the commonest mistake is to pass the model."""
    if not isinstance(value, Program):
        kind = type(value)
        raise ProgramError(
            f"{what} takes a program, not {kind.__module__}.{kind.__qualname__}",
            hint="make one of the estimator first: hg.from_sklearn(estimator, samples)"
            if is_estimator(value)
            else "trace a PyTorch module first: hg.trace(model, example_input, calibration=samples)",
        )
