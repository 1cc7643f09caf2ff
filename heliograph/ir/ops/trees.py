"""Ensembles of decision trees. Part of `ir/ops/table.py`.

`passes/tensors/trees.py` writes the op as linear maps and comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from heliograph.errors import ProgramError
from heliograph.ir.node import Array, Matrix
from heliograph.ir.ops.spec import TENSOR, Attrs, Context, OpSpec, Role, check_constant, define
from heliograph.ir.types import TensorType, Type


def _type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    (operand,) = operands
    if len(operand.shape) != 1:
        raise ProgramError(f"tree_ensemble takes a tensor (features,), not {operand.shape}")
    splits, leaves = context.shape(a["features"]), context.shape(a["offsets"])
    outputs = context.shape(a["values"])
    if len(splits) != 1 or len(leaves) != 1 or len(outputs) != 2:
        raise ProgramError("tree_ensemble takes features (splits,), offsets (leaves,) and values (outputs, leaves)")
    if ("branches" in a) != ("constants" in a):
        raise ProgramError("tree_ensemble takes branches and constants, or neither")
    nodes = context.shape(a["constants"]) if "constants" in a else splits
    for name, shape in (
        ("thresholds", splits),
        ("branches", nodes + splits),
        ("constants", nodes[:1]),
        ("paths", leaves + nodes),
        ("values", outputs[:1] + leaves),
        ("bias", outputs[:1]),
        ("binary", operand.shape),
        ("whole", operand.shape),
    ):
        check_constant("tree_ensemble", a, context, name, shape)
    return TensorType(outputs[:1], operand.secret)


def split_bits(x: Array, a: Attrs, context: Context) -> Array:
    """1 for each split that a sample (samples, features) fulfils, else 0: (samples, splits)."""
    features = context.array(a["features"]).astype(np.int64)
    if features.min(initial=0) < 0 or features.max(initial=0) >= x.shape[1]:
        raise ProgramError(f"tree_ensemble: a split reads feature {features.max()} of {x.shape[1]}")
    return np.asarray(x[:, features] <= context.array(a["thresholds"]), dtype=np.float64)


def entries(a: Attrs, context: Context, name: str) -> Any:
    """The constant of that attribute, a matrix, as a `scipy.sparse.csr_array`: programs of the language have arrays."""
    value = context.constants[str(a[name])]
    return value.csr() if isinstance(value, Matrix) else scipy.sparse.csr_array(context.array(a[name]))


def left_turns(bits: Array, a: Attrs, context: Context) -> Array:
    """1 for each node where the path goes left, else 0: (samples, nodes) from bits (samples, splits)."""
    if "branches" not in a:
        return bits
    return np.asarray(bits @ entries(a, context, "branches").T + context.array(a["constants"]))


def unfulfilled(bits: Array, a: Attrs, context: Context) -> Array:
    """The number of conditions that each leaf's path lacks: (samples, leaves). It is zero for the leaves reached."""
    turns = left_turns(bits, a, context)
    return np.asarray(turns @ entries(a, context, "paths").T + context.array(a["offsets"]))


def _evaluate(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    reached = unfulfilled(split_bits(values[0], a, context), a, context) < 0.5
    total = reached.astype(np.float64) @ context.array(a["values"]).T
    return np.asarray(total + context.array(a["bias"]) if "bias" in a else total)


define(
    OpSpec(
        "tree_ensemble",
        TENSOR,
        (1, 1),
        {
            "features": "constant",
            "thresholds": "constant",
            "branches": "constant?",
            "constants": "constant?",
            "paths": "constant",
            "offsets": "constant",
            "values": "constant",
            "bias": "constant?",
            "binary": "constant?",
            "whole": "constant?",
            "gap": "float?",
            "bits": "float?",
        },
        _type,
        _evaluate,
        "The sum of decision trees. Split i is 1 where feature `features[i]` is at most `thresholds[i]`, else 0. Paths go "
        "left at the nodes where `branches` (nodes, splits) times these numbers plus `constants` is 1, and right where it "
        "is 0; without these, node i is split i. `paths` (leaves, nodes) times these turns plus `offsets` counts the "
        "conditions that a leaf's path lacks. The result is the sum of the columns of `values` (outputs, leaves) of the "
        "leaves that lack none, plus `bias`. Features with 1 in `binary` are 0 or 1, so that no comparison is needed; those "
        "with 1 in `whole` are whole numbers, of which none is nearer to a threshold than the next one. "
        "`gap` is the smallest distance from a threshold that must be resolved, as a share of the feature's range; `bits` "
        "is how close a comparison comes to 0 or 1.",
        role=Role.JOINT,
        steps=True,
    )
)
