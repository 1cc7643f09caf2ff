"""Functions that are approximated by name, with what a proof needs to know of each; a user registers their own here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
from scipy import special

from heliograph.errors import ProgramError

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Polynomials:
    """A function that is a polynomial between its kinks: `pieces` are monomial coefficients, one more than `kinks`."""

    kinks: tuple[float, ...]
    pieces: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Analytic:
    """A function that is analytic in the strip |Im z| < `strip` (and, if `positive`, only for Re z > 0).

    `exact` is its value by mpmath; `bound(a, b, y)` bounds |f(z)| for a <= Re z <= b, |Im z| <= y < strip.
    """

    exact: Callable[[Any], Any]
    bound: Callable[[float, float, float], float]
    strip: float = 3.0
    positive: bool = False


@dataclass(frozen=True)
class Function:
    """A function of one variable: its meaning in numpy, where it is defined, and how it is fitted by default.

    `proof` is None where nothing is known beyond `slope`, a bound on |f'| (then errors are proved on a grid by it), or
    not even that (then they are measured, and said to be).
    """

    name: str
    evaluate: Callable[[Vector], Vector]
    proof: Polynomials | Analytic | None = None
    low: float | None = None
    high: float | None = None
    method: str = "minimax"
    slope: float | None = None

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.proof.kinks if isinstance(self.proof, Polynomials) else ()


def _sigmoid_bound(y: float) -> float:
    # |1 + exp(-z)| >= 1 where cos y >= 0, and >= sin y beyond.
    return 1.0 if y <= math.pi / 2 else 1.0 / math.sin(y)


def _erf_bound(y: float) -> float:
    # |erf(x + iy)| <= 1 + 2/sqrt(pi) * integral of exp(t^2) over [0, y]
    return 1.0 + 2.0 / math.sqrt(math.pi) * y * math.exp(y * y)


def _size(a: float, b: float, y: float) -> float:
    return max(abs(a), abs(b)) + y


_FUNCTIONS: dict[str, Function] = {}


def _builtin(name: str, evaluate: Callable[[Vector], Vector], proof: Polynomials | Analytic) -> None:
    _FUNCTIONS[name] = Function(name, evaluate, proof)


def _mp_sigmoid(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def _mp_normal(x: Any) -> Any:
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


_builtin("relu", lambda x: np.maximum(x, 0.0), Polynomials((0.0,), ((0.0,), (0.0, 1.0))))
_builtin("abs", np.abs, Polynomials((0.0,), ((0.0, -1.0), (0.0, 1.0))))
_builtin("leaky_relu", lambda x: np.where(x >= 0, x, 0.01 * x), Polynomials((0.0,), ((0.0, 0.01), (0.0, 1.0))))
_builtin("relu6", lambda x: np.clip(x, 0.0, 6.0), Polynomials((0.0, 6.0), ((0.0,), (0.0, 1.0), (6.0,))))
_builtin("hardtanh", lambda x: np.clip(x, -1.0, 1.0), Polynomials((-1.0, 1.0), ((-1.0,), (0.0, 1.0), (1.0,))))
_builtin("exp", np.exp, Analytic(mpmath.exp, lambda a, b, y: math.exp(b)))
_builtin(
    "sigmoid", lambda x: np.asarray(special.expit(x)), Analytic(_mp_sigmoid, lambda a, b, y: _sigmoid_bound(y), math.pi)
)
_builtin("tanh", np.tanh, Analytic(mpmath.tanh, lambda a, b, y: 1.0 + 2.0 * _sigmoid_bound(2 * y), math.pi / 2))
_builtin(
    "silu",
    lambda x: np.asarray(x * special.expit(x)),
    Analytic(lambda x: x * _mp_sigmoid(x), lambda a, b, y: _size(a, b, y) * _sigmoid_bound(y), math.pi),
)
_builtin(
    "gelu",
    lambda x: np.asarray(x * special.ndtr(x)),
    Analytic(
        lambda x: x * _mp_normal(x),
        lambda a, b, y: _size(a, b, y) * 0.5 * (1.0 + _erf_bound(y / math.sqrt(2.0))),
    ),
)
_builtin("erf", lambda x: np.asarray(special.erf(x)), Analytic(mpmath.erf, lambda a, b, y: _erf_bound(y)))
_builtin(
    "softplus",
    lambda x: np.logaddexp(0.0, x),
    Analytic(
        lambda x: mpmath.log1p(mpmath.exp(-abs(x))) + max(x, 0),
        lambda a, b, y: max(b, 0.0) + 0.7 + y * _sigmoid_bound(y),
        math.pi,
    ),
)
_builtin("sin", np.sin, Analytic(mpmath.sin, lambda a, b, y: math.cosh(y)))
_builtin("cos", np.cos, Analytic(mpmath.cos, lambda a, b, y: math.cosh(y)))
_builtin(
    "log", np.log, Analytic(mpmath.log, lambda a, b, y: max(abs(math.log(a)), abs(math.log(b + y))) + 4, positive=True)
)
_builtin("reciprocal", lambda x: 1.0 / x, Analytic(lambda x: 1 / x, lambda a, b, y: 1.0 / a, positive=True))
_builtin("sqrt", np.sqrt, Analytic(mpmath.sqrt, lambda a, b, y: math.sqrt(b + y), positive=True))
_builtin("rsqrt", lambda x: x**-0.5, Analytic(lambda x: 1 / mpmath.sqrt(x), lambda a, b, y: a**-0.5, positive=True))


def names() -> tuple[str, ...]:
    return tuple(sorted(_FUNCTIONS))


def function(name: str) -> Function:
    """The function of that name; `ProgramError` with the near ones where there is none."""
    if name not in _FUNCTIONS:
        raise ProgramError(f"there is no function {name!r} to approximate", hint="one of " + ", ".join(names()))
    return _FUNCTIONS[name]


def known(name: str) -> Function | None:
    """The function of that name, if there is one."""
    return _FUNCTIONS.get(name)


def register_function(
    name: str,
    evaluate: Callable[[Vector], Vector],
    *,
    low: float | None = None,
    high: float | None = None,
    method: str = "minimax",
    kinks: Sequence[float] = (),
    slope: float | None = None,
) -> Function:
    """The function as it was registered: from now on it can be approximated by name.

    `evaluate` maps an array of floats to an array of the same shape, finite on [low, high], the range it is fitted on
    where none is given. `method` is how it is fitted by default. `kinks` are points where its slope jumps. With `slope`, a
    bound on |f'|, errors of its polynomials are proved; without, they are measured on a grid and reported as such.
    """
    if not name.isidentifier():
        raise ProgramError(f"{name!r} is no name for a function", hint="letters, digits and underscores")
    if name in _FUNCTIONS:
        raise ProgramError(f"there is a function {name!r} already", hint="take another name")
    if (low is None) != (high is None) or (low is not None and high is not None and not low < high):
        raise ProgramError(f"[{low}, {high}] is not an interval", where=name, hint="give low < high, or neither")
    if slope is not None and not (slope >= 0 and math.isfinite(slope)):
        raise ProgramError(f"slope {slope:g} is not a bound", where=name, hint="the largest |f'| on the range")
    made = _Registered(name, evaluate, None, low, high, method, slope, tuple(sorted(float(k) for k in kinks)))
    if low is not None and high is not None:
        checked_values(made, np.asarray(np.linspace(low, high, 257), dtype=np.float64))
    _FUNCTIONS[name] = made
    return made


@dataclass(frozen=True)
class _Registered(Function):
    corners: tuple[float, ...] = ()

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.corners


def checked_values(of: Function, x: Vector) -> Vector:
    """f(x), float64 and finite, or a `ProgramError` that says where it is not."""
    with np.errstate(all="ignore"):
        values = np.asarray(of.evaluate(x), dtype=np.float64)
    if values.shape != x.shape:
        raise ProgramError(
            f"{of.name} made an array of shape {values.shape} from one of {x.shape}",
            hint="write it with numpy, by element",
        )
    if not np.isfinite(values).all():
        where = float(x[np.argmin(np.isfinite(values))])
        raise ProgramError(f"{of.name} is not finite at {where:g}", hint="narrow the range")
    return values
