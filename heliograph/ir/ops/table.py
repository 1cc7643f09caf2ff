"""The complete table of operations: every module that reads it imports it from here.

Ops of a user's model are in `tensors.py`, `structure.py`, `polynomials.py`, `layers.py`, `activations.py` and
`functions.py`, ops that cost only rotations in `rows.py`, products of encrypted matrices in `matrices.py`. CKKS
operations are in `slots/`: `vectors.py`, `plain.py` (with plaintexts), `transforms.py` (linear maps), `levels.py`,
`bootstraps.py` and `stacks.py`. An op is one `OpSpec` in one of these files; the verifier, the text format, the
interpreter and the property tests read the table.
"""

from __future__ import annotations

# Importing each of these modules adds its ops to the table.
from heliograph.ir.ops import activations as activation_ops
from heliograph.ir.ops import functions as function_ops
from heliograph.ir.ops import layers as layer_ops
from heliograph.ir.ops import matrices as matrix_ops
from heliograph.ir.ops import polynomials as polynomial_ops
from heliograph.ir.ops import rows as row_ops
from heliograph.ir.ops import structure as structure_ops
from heliograph.ir.ops import tensors as tensor_ops
from heliograph.ir.ops import trees as tree_ops
from heliograph.ir.ops.slots import bootstraps as bootstrap_ops
from heliograph.ir.ops.slots import levels as level_ops
from heliograph.ir.ops.slots import plain as plain_ops
from heliograph.ir.ops.slots import stacks as stack_ops
from heliograph.ir.ops.slots import transforms as transform_ops
from heliograph.ir.ops.slots import vectors as slot_ops
from heliograph.ir.ops.spec import (
    ARITHMETIC,
    EVERYWHERE,
    LEVELED,
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

__all__ = [
    "ARITHMETIC",
    "EVERYWHERE",
    "LEVELED",
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
    "polynomial_ops",
    "role_of",
    "row_ops",
    "rules_of",
    "slot_ops",
    "spec_of",
    "stack_ops",
    "structure_ops",
    "tensor_ops",
    "transform_ops",
    "tree_ops",
]
