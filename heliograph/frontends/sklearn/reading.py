"""Reads estimators step by step: pipelines, and the estimators of which others are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from heliograph.errors import ProgramError
from heliograph.frontends.sklearn.layer import Layer
from heliograph.frontends.sklearn.readers import read
from heliograph.frontends.sklearn.samples import Frame, Named, named_rows
from heliograph.interpret import interpret_many
from heliograph.ir import Array, Builder, Location, Node


@dataclass(frozen=True, slots=True)
class Steps:
    """The reading of one program.

    builder: of the program.
    frame: the form of their data frame.
    """

    builder: Builder
    frame: Frame | None

    def read(self, layer: Layer) -> Node:
        """The value of a layer's estimator, which may be a pipeline."""
        source, seen = layer.source, layer.seen
        for place, (name, step, last) in enumerate(steps_of(layer.step, layer.loc.layer or "", layer.last)):
            loc, first = Location(f"{type(step).__name__}()", layer=name), layer.first and place == 0
            check_fitted(step, loc)
            one = replace(
                layer,
                source=source,
                seen=seen,
                step=step,
                loc=loc,
                last=last,
                first=first,
                named=self.named(step, first),
            )
            source = read(one)
            if not last:
                seen = one.method("transform")(seen)
        assert isinstance(source, Node)
        return source

    def values(self, node: Node) -> Array:
        """What a node means on the program's samples."""
        return interpret_many(self.builder.finish([node]), self.builder.calibration)[0]

    def named(self, step: Any, first: bool) -> Named:
        """What gives rows the form in which an estimator was fitted."""
        return named_rows(step, self.frame, first)


def check_fitted(step: Any, loc: Location) -> None:
    """Raise a ProgramError for an estimator that is not fitted."""
    try:
        check_is_fitted(step)
    except NotFittedError:
        raise ProgramError(f"{type(step).__name__} is not fitted", where=loc, hint="call fit first") from None


def first_step(estimator: Any) -> Any:
    """The estimator that reads the program's input."""
    for _, step, _ in steps_of(estimator, "", True):
        return step
    return estimator


def steps_of(estimator: Any, name: str, last: bool) -> Iterator[tuple[str, Any, bool]]:
    """The estimators of a pipeline, nested ones included, in order: name, estimator, and whether it is the last."""
    best = getattr(estimator, "best_estimator_", None)
    if best is not None:
        yield from steps_of(best, name, last)
    elif isinstance(estimator, Pipeline):
        steps = [(called, step) for called, step in estimator.steps if step not in (None, "passthrough")]
        for place, (called, step) in enumerate(steps):
            yield from steps_of(step, f"{name}.{called}" if name else called, last and place == len(steps) - 1)
    else:
        yield name or type(estimator).__name__.lower(), estimator, last
