"""The table of operations, full: every module that reads it imports it from here.

What a user's model says is in `tensors.py`, `layers.py`, `activations.py` and `functions.py`, what costs
rotations only in `rows.py`, products of encrypted matrices in `matrices.py`. What CKKS computes is in `slots/vectors.py`,
`slots/plain.py` (with plaintexts), `slots/transforms.py` (linear maps), `slots/levels.py`, `slots/bootstraps.py` and `slots/stacks.py`. An
op is one `OpSpec` in one of these files; the verifier, the text format, the interpreter and the property tests read the
table.
"""

from __future__ import annotations

from heliograph.ir.ops.spec import (
    ARITHMETIC,
    EVERYWHERE,
    LEVELED,
    MOST_STACKED,
    NO_KEYS,
    OPS,
    SLOTS,
    TENSOR,
    Attrs,
    Bounds,
    Context,
    Dependence,
    Evaluate,
    InferType,
    Keys,
    LinearMap,
    OpSpec,
    Role,
    SlotRules,
    attr_matches,
    check_call,
    check_constant,
    check_stacks,
    check_stage,
    check_type,
    define,
    flat_indices,
    role_of,
    rules_of,
    spec_of,
)

# Importing each of these modules adds its ops to the table.
from heliograph.ir.ops.table import activations as activation_ops
from heliograph.ir.ops.table import functions as function_ops
from heliograph.ir.ops.table import layers as layer_ops
from heliograph.ir.ops.table import matrices as matrix_ops
from heliograph.ir.ops.table import rows as row_ops
from heliograph.ir.ops.table import tensors as tensor_ops
from heliograph.ir.ops.table.slots import bootstraps as bootstrap_ops
from heliograph.ir.ops.table.slots import levels as level_ops
from heliograph.ir.ops.table.slots import plain as plain_ops
from heliograph.ir.ops.table.slots import stacks as stack_ops
from heliograph.ir.ops.table.slots import transforms as transform_ops
from heliograph.ir.ops.table.slots import vectors as slot_ops

__all__ = [
    "ARITHMETIC",
    "EVERYWHERE",
    "LEVELED",
    "MOST_STACKED",
    "NO_KEYS",
    "OPS",
    "SLOTS",
    "TENSOR",
    "Attrs",
    "Bounds",
    "Context",
    "Dependence",
    "Evaluate",
    "InferType",
    "Keys",
    "LinearMap",
    "OpSpec",
    "Role",
    "SlotRules",
    "activation_ops",
    "attr_matches",
    "bootstrap_ops",
    "check_call",
    "check_constant",
    "check_stacks",
    "check_stage",
    "check_type",
    "define",
    "flat_indices",
    "function_ops",
    "layer_ops",
    "level_ops",
    "matrix_ops",
    "plain_ops",
    "role_of",
    "row_ops",
    "rules_of",
    "slot_ops",
    "spec_of",
    "stack_ops",
    "tensor_ops",
    "transform_ops",
]
