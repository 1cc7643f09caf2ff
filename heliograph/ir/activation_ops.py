"""Activations: functions of one variable, which a pass replaces by polynomials. Part of the table in `ir/ops.py`.

Shapes have no batch axis; `evaluate` sees arrays with a leading axis of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special

from heliograph.ir.node import Array
from heliograph.ir.ops import TENSOR, Attrs, OpSpec, define

ACTIVATION_ATTRS = {"degree": "int?", "low": "float?", "high": "float?", "method": "str?"}


def define_activation(
    name: str,
    function: Callable[[Array, Attrs], Array],
    doc: str,
    attrs: dict[str, str] | None = None,
    homogeneous: bool = False,
    increasing: bool = False,
) -> None:
    define(
        OpSpec(
            name,
            TENSOR,
            (1, 1),
            {**(attrs or {}), **ACTIVATION_ATTRS},
            lambda operands, a, context: operands[0],
            lambda values, a, context: function(values[0], a),
            doc + " `degree`, `low`, `high`, `method` fix its polynomial.",
            activation=function,
            homogeneous=homogeneous,
            increasing=increasing,
        )
    )


def _gelu(x: Array, a: Attrs) -> Array:
    if a.get("approximate", "none") == "tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return np.asarray(0.5 * x * (1.0 + special.erf(x / math.sqrt(2.0))))


def _softplus(x: Array, a: Attrs) -> Array:
    beta = a.get("beta", 1.0)
    return np.where(x * beta > a.get("threshold", 20.0), x, np.logaddexp(0.0, x * beta) / beta)


define_activation("relu", lambda x, a: np.maximum(x, 0.0), "max(x, 0).", homogeneous=True, increasing=True)
define_activation(
    "leaky_relu",
    lambda x, a: np.where(x >= 0, x, a.get("negative_slope", 0.01) * x),
    "x where x >= 0, negative_slope * x elsewhere.",
    {"negative_slope": "float?"},
    homogeneous=True,
)
define_activation("gelu", _gelu, "x times the normal distribution function.", {"approximate": "str?"})
define_activation("silu", lambda x, a: x * special.expit(x), "x * sigmoid(x).")
define_activation("sigmoid", lambda x, a: special.expit(x), "1 / (1 + exp(-x)).", increasing=True)
define_activation("tanh", lambda x, a: np.tanh(x), "The hyperbolic tangent.", increasing=True)
define_activation(
    "softplus",
    _softplus,
    "log(1 + exp(beta x)) / beta.",
    {"beta": "float?", "threshold": "float?"},
    increasing=True,
)
