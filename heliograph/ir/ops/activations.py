"""Activations: functions of one variable, which a pass replaces by polynomials. Part of `ir/ops/table.py`.

Each stands for a family of `functions.py`, where its meaning is. Shapes have no batch axis; `evaluate` sees arrays with a
leading axis of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from heliograph import functions
from heliograph.errors import ProgramError
from heliograph.functions import Family, Function, Polynomials
from heliograph.ir.node import Array, Node
from heliograph.ir.ops.bounds import widened
from heliograph.ir.ops.spec import OPS, TENSOR, Bounds, Context, OpSpec, define

ACTIVATION_ATTRS = {"degree": "int?", "low": "float?", "high": "float?", "method": "str?"}
# Attributes that control the approximation of a function that may become a composition of several polynomials.
# `moved` is the distance by which a comparison's threshold was moved away from equal values, `room` its distance to the
# nearest values that can occur (passes/ranges/ties.py).
_DECISIONS = {
    "sign": {"gap": "float?", "gap_source": "str?", "bits": "float?", "moved": "float?", "room": "float?"},
    "abs": {"gap": "float?"},
}


def define_activation(family: Family) -> None:
    """Define the op for a family of functions: its parameters are attributes."""
    proof = family.make().proof

    def bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds | None:
        if not family.of(node.attrs).increasing:
            return None
        low, high = (family(end, node.attrs) for end in operands[0])
        return widened(low, high)

    define(
        OpSpec(
            family.name,
            TENSOR,
            (1, 1),
            {**family.parameters, **_DECISIONS.get(family.name, {}), **ACTIVATION_ATTRS},
            lambda operands, a, context: operands[0],
            lambda values, a, context: family(values[0], a),
            family.doc + " `degree`, `low`, `high`, `method` fix its polynomial.",
            activation=family,
            steps=isinstance(proof, Polynomials) and all(len(piece) == 1 for piece in proof.pieces),
            bounds=bounds,
        )
    )


for _family in functions.families():
    define_activation(_family)


def register_function(
    name: str,
    evaluate: Callable[[Array], Array],
    *,
    low: float | None = None,
    high: float | None = None,
    method: str | None = None,
    kinks: Sequence[float] = (),
    slope: float | None = None,
    torch_op: str | None = None,
) -> Function:
    """Register a function of one variable by name, for programs, PyTorch models and `heliograph approx`.

    Like every activation it is approximated by a polynomial. `evaluate` maps an array of floats to one of the same
    shape, and must be finite on the inputs that occur. `low`, `high` is the range for the fit if nothing else bounds
    its input. `method` (minimax, gaussian, interpolation) is the method of the fit if neither the op nor
    `Options.method` sets one. `kinks` are points where its slope jumps; fits include them among their points. With
    `slope`, a bound on |f'| (on [low, high] if these are given), errors of its polynomials are proved; without it they
    are measured on a fine grid, and the report says so.

    In the language it is called by its name. `torch_op`, such as `aten.mish` or `mylib.bump`, is the op of a traced
    model that becomes this function. Compiled artifacts contain only polynomials, so nothing has to be registered where
    they run.
    """
    if not name.isidentifier():
        raise ProgramError(f"{name!r} is not a name for a function", hint="letters, digits and underscores")
    if functions.known(name) is not None:
        raise ProgramError(f"there is a function {name!r} already", hint="take another name")
    if name in OPS:
        raise ProgramError(f"there is an op {name!r} already", hint="take another name")
    if (low is None) != (high is None) or (low is not None and high is not None and not low < high):
        raise ProgramError(f"[{low}, {high}] is not an interval", where=name, hint="give low < high, or neither")
    if slope is not None and not (slope >= 0 and math.isfinite(slope)):
        raise ProgramError(f"slope {slope:g} is not a bound", where=name, hint="the largest |f'| on the range")
    if method is not None and method not in functions.METHODS:
        raise ProgramError(f"there is no method {method!r}", where=name, hint="one of " + ", ".join(functions.METHODS))
    corners = tuple(sorted({float(k) for k in kinks}))
    if not all(map(math.isfinite, corners)):
        raise ProgramError(f"kinks {list(corners)} are not all numbers", where=name, hint="where the slope jumps")
    made = Function(
        name, lambda x: functions.checked(name, evaluate, x), None, low, high, method, slope, corners=corners
    )
    if low is not None and high is not None:
        made.evaluate(np.linspace(low, high, 257, dtype=np.float64))
    family = Family(name, lambda: made, f"The registered function {name}.", torch_ops=(torch_op,) if torch_op else ())
    functions.add(family)
    define_activation(family)
    return made
