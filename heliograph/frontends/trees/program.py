"""Programs from models of XGBoost and LightGBM: objects and their files."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from heliograph.errors import InternalError, ProgramError, UnsupportedError
from heliograph.execution.interface import columns_of
from heliograph.frontends.sklearn.samples import check_outputs, interval_of, samples_of
from heliograph.frontends.trees.boosted import Boosted
from heliograph.frontends.trees.lightgbm import from_lightgbm, is_lightgbm, read_lightgbm
from heliograph.frontends.trees.nodes import Table, on_thresholds, tree_node
from heliograph.frontends.trees.xgboost import from_xgboost, is_xgboost, read_xgboost
from heliograph.interpret import interpret_many
from heliograph.ir import Builder, Location, Program, Stage
from heliograph.ir.interface import TensorSpec
from heliograph.ir.labels import with_labels
from heliograph.ir.program import Comparison

# The largest difference between the program and the model's trees, as a share of the largest value.
_AGREES = 1e-5


def from_trees(
    model: Any,
    samples: Any,
    *,
    binned: bool | Literal["shared"] = False,
    input_range: tuple[float, float] | None = None,
    name: str | None = None,
    outputs: Literal["probabilities", "scores"] = "probabilities",
) -> Program:
    """The program of the tensor stage that computes what a model of XGBoost or LightGBM computes for one sample.

    `model` is a booster or an estimator of either library, or the path of a saved model: XGBoost's JSON or UBJSON,
    LightGBM's text. The libraries need not be installed for files. `samples`, `binned`, `input_range`, `name` and
    `outputs` are those of `hg.from_sklearn`, and so are the program's input and output: a classifier has a score for
    each class, of which clients compute probabilities; for counts and amounts (Poisson, gamma, Tweedie), the program
    computes the exponential of the score, unless outputs="scores".

    Raises UnsupportedError for models that are no sums of trees, ProgramError for files that are damaged or samples that
    do not fit.
    """
    check_outputs(outputs)
    boosted, kind = boosted_model(model)
    given, _ = samples_of(samples, missing=bool(binned))
    ensemble = boosted.ensemble
    if given.shape[1] != ensemble.features:
        raise ProgramError(f"the samples have {given.shape[1]} features, and the model {ensemble.features}")
    builder, loc = Builder(name or kind, Stage.TENSOR), Location(f"{kind}()", layer=kind.lower())
    table = Table(builder, given, columns_of(samples), binned)
    source = table if binned or input_range is None else table.plain(*interval_of(given, input_range))
    scores = ensemble.of_two_classes() if boosted.link == "logistic" else ensemble
    value = tree_node(builder, source, scores, given, loc)
    exponential = boosted.link == "exp" and outputs == "probabilities"
    if exponential:
        value = builder.op("exp", (value,), Location(loc.file, layer=f"{loc.layer}.exp"))
    program = builder.finish([value])
    (found,) = interpret_many(program, program.calibration)
    wanted = scores.scores(given)
    if exponential:
        wanted = np.exp(wanted)
    # What is compared under encryption has no side where it equals a threshold.
    ties = np.zeros(len(given), dtype=bool) if binned else on_thresholds(ensemble, given)
    size = max(float(np.abs(wanted).max(initial=0.0)), 1e-300)
    difference = float(np.abs(found - wanted)[~ties].max(initial=0.0)) / size
    if difference > _AGREES:
        raise InternalError(f"the program differs from the trees by {difference:.1g} of the largest value")
    program = replace(program, comparison=Comparison.seen(len(given), difference, int(ties.sum())))
    if boosted.link not in ("logistic", "softmax"):
        return program
    spec = TensorSpec("y", found.shape[1:])
    if outputs == "probabilities":
        spec = replace(spec, finish="softmax", finish_axis=0)
    with contextlib.suppress(ProgramError):
        # Labels that no text holds are left out.
        spec = with_labels(spec, range(len(wanted[0])) if boosted.labels is None else boosted.labels)
    return replace(program, interface=replace(program.interface, outputs=(spec,)))


def boosted_model(model: Any) -> tuple[Boosted, str]:
    """The trees of a model or of its file, and the name of the library."""
    if isinstance(model, str | Path):
        path = Path(model)
        if path.suffix in (".json", ".ubj"):
            return read_xgboost(path), "XGBoost"
        if path.suffix == ".txt":
            return read_lightgbm(path), "LightGBM"
        raise UnsupportedError(
            f"{path.name} is not known as a model",
            hint="save XGBoost's with save_model('model.json'), LightGBM's with save_model('model.txt')",
        )
    if is_xgboost(model):
        return from_xgboost(model), "XGBoost"
    if is_lightgbm(model):
        return from_lightgbm(model), "LightGBM"
    raise ProgramError(
        f"from_trees takes a model of XGBoost or LightGBM, or its file, not {type(model).__name__}",
        hint="estimators of scikit-learn are read by hg.from_sklearn(estimator, samples)",
    )
