"""Functions of a user's own: in the language, in PyTorch models, and on the command line, from one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heliograph.approx import functions
from heliograph.errors import ProgramError, packages_named
from heliograph.ir.activation_ops import define_activation
from heliograph.ir.node import Array
from heliograph.ir.ops import OPS, Attrs


def register_function(
    name: str,
    evaluate: Callable[[Array], Array],
    *,
    low: float | None = None,
    high: float | None = None,
    method: str = "minimax",
    kinks: Sequence[float] = (),
    slope: float | None = None,
    torch_op: str | None = None,
) -> None:
    """Make a function of one variable an op of programs, approximated by a polynomial like every activation.

    `evaluate` maps an array of floats to one of the same shape. `low`, `high` is the range where nothing else bounds its
    input, `method` how its polynomial is fitted where nothing else says so; `kinks` and `slope` (a bound on |f'|) help the
    proof of its error, see `approx.functions.register_function`. In the language it is called by its name; `torch_op`, such
    as `aten.mish` or `mylib.bump`, is the op of a traced model that means it. Compiled artifacts hold polynomials only, and
    need no registration where they run.
    """
    if name in OPS:
        raise ProgramError(f"there is an op {name!r} already", hint="take another name")
    made = functions.register_function(name, evaluate, low=low, high=high, method=method, kinks=kinks, slope=slope)

    def meaning(x: Array, a: Attrs) -> Array:
        return functions.checked_values(made, np.asarray(x, dtype=np.float64))

    define_activation(name, meaning, f"The registered function {name}.")
    if torch_op is not None:
        _register_rule(torch_op, name)


def _register_rule(torch_op: str, name: str) -> None:
    with packages_named():
        from heliograph.frontends import torch_export  # noqa: F401  (its rules come first: a later registration wins)
        from heliograph.frontends.torch_values import Call, Value, rule

    @rule(torch_op)
    def registered(call: Call, x: Any, *arguments: Any, **keywords: Any) -> Value:
        return Value(call.emit(name, x.node), x.batch)
