"""Boosted trees of any library: the record that the readers of models give, and the limits of what they read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from heliograph.errors import ProgramError
from heliograph.files import open_file
from heliograph.frontends.trees.ensemble import Ensemble

# Models come from strangers. Encrypted, even a thousandth of this would take too long.
MOST_BYTES = 1 << 30
MOST_VALUES = 1 << 24
MOST_TREES = 1 << 16
MOST_OUTPUTS = 1 << 12
MOST_FEATURES = 1 << 24
# The numbers at all nodes of all trees, and the members of all sets of categories.
MOST_SUMMANDS = 1 << 25
MOST_CATEGORIES = 1 << 22

# identity: the sums are the prediction. logistic: 1 / (1 + exp(-z)) of the only sum. softmax: of the sums, one for each
# class. exp: the exponential of each sum.
Link = Literal["identity", "logistic", "softmax", "exp"]


@dataclass(frozen=True, slots=True)
class Boosted:
    """A model of boosted trees.

    ensemble: the raw margins: sums of trees that `link` turns into predictions.
    link: the function from margins to predictions.
    labels: the classes in the order of the scores (for "logistic": the class of small margins, then the other); None for
        models that do not classify, or whose file does not name the classes.
    features: the names of the features; None if they have none.
    """

    ensemble: Ensemble
    link: Link
    labels: tuple[object, ...] | None = None
    features: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        outputs = len(self.ensemble.bias)
        if self.link not in get_args(Link):
            raise ProgramError(f"{self.link!r} is not a link", hint=f"one of {', '.join(get_args(Link))}")
        if (self.link == "logistic" and outputs != 1) or (self.link == "softmax" and outputs < 2):
            raise ProgramError(f"the model has {outputs} outputs, which do not fit the link {self.link!r}")
        classes = {"logistic": 2, "softmax": outputs}.get(self.link, 0)
        if self.labels is not None and len(self.labels) != classes:
            raise ProgramError(f"the model has {len(self.labels)} labels for {classes} classes")
        if self.features is not None and len(self.features) != self.ensemble.features:
            raise ProgramError(f"the model names {len(self.features)} features of {self.ensemble.features}")


def read_model(path: str | Path) -> bytes:
    """The bytes of a model's file; a ProgramError if it cannot be read or is too large."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            # One more byte than allowed: the file may grow while it is read.
            data = file.read(MOST_BYTES + 1) if size <= MOST_BYTES else b""
    except OSError as error:
        raise ProgramError(f"{path} cannot be read", why=error.strerror or str(error)) from None
    if size > MOST_BYTES or len(data) > MOST_BYTES:
        raise ProgramError(f"{path} has more than {MOST_BYTES} bytes", why="no model of this size runs encrypted")
    return data


def check_size(*, trees: int = 0, nodes: int = 0, outputs: int = 0, categories: int = 0) -> None:
    """Raise a ProgramError if a model has more trees, numbers at nodes, or categories than any use needs."""
    for found, most, what in (
        (trees, MOST_TREES, "trees"),
        (outputs, MOST_OUTPUTS, "outputs"),
        (nodes * outputs, MOST_SUMMANDS, "numbers at the nodes of its trees"),
        (categories, MOST_CATEGORIES, "categories in the sets of its nodes"),
    ):
        if found > most:
            raise ProgramError(
                f"the model has {found} {what}, more than {most}",
                why="no model of this size runs encrypted",
                hint="train with fewer or smaller trees",
            )
