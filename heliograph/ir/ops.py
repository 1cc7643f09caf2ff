"""The table of operations, full: every module that reads it imports it from here.

What a user's model says is in `tensor_ops.py`, `layer_ops.py`, `activation_ops.py` and `function_ops.py`, what costs
rotations only in `row_ops.py`, products of encrypted matrices in `matrix_ops.py`, what CKKS computes in `slot_ops.py` and
`stack_ops.py`. An op is one `OpSpec` in one of
these files; the verifier, the text format, the interpreter and the property tests read the table.
"""

from __future__ import annotations

# Each of these fills the table when it is loaded.
from heliograph.ir import (
    activation_ops,
    function_ops,
    layer_ops,
    matrix_ops,
    row_ops,
    slot_ops,
    stack_ops,
    tensor_ops,
)
from heliograph.ir.spec import (
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
    "check_call",
    "check_constant",
    "check_stacks",
    "check_stage",
    "check_type",
    "define",
    "flat_indices",
    "function_ops",
    "layer_ops",
    "matrix_ops",
    "role_of",
    "row_ops",
    "rules_of",
    "slot_ops",
    "spec_of",
    "stack_ops",
    "tensor_ops",
]
