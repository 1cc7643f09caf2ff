"""The table of the functions of one variable that are approximated by polynomials.

A `Family` is a name with its parameters, such as `leaky_relu` with its slope. A `Function` is a member with given
parameters: its meaning in numpy, its kinks, its default fit, and the facts for a proof of a polynomial's error. Ops of
programs, the compiler's fits and their proofs, and `heliograph approx` all read this table. `register_function` adds a
user's own functions (ir/ops/activations.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from heliograph.errors import ProgramError

Vector = npt.NDArray[np.float64]

# The methods that fit a polynomial to a function on an interval; see approx/fits/fit.py.
METHODS = ("minimax", "gaussian", "interpolation")


@dataclass(frozen=True)
class Polynomials:
    """A function that is a polynomial between its kinks: `pieces` are monomial coefficients, one more than `kinks`."""

    kinks: tuple[float, ...]
    pieces: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Analytic:
    """A function that is analytic where |Im z| < strip(|Re z|), which never grows (if `positive`: where Re z > 0).

    `exact(mp, x)` is its value computed with mpmath, passed as `mp`; `bound(a, b, y)` bounds |f(z)| for a <= Re z <= b,
    |Im z| <= y <= 0.93 strip. Above `beyond` the function equals the polynomial `after` (monomial coefficients), and
    `values` is the analytic function in numpy.
    """

    exact: Callable[[Any, Any], Any]
    bound: Callable[[float, float, float], float]
    strip: Callable[[float], float] = lambda x: 3.0
    positive: bool = False
    beyond: float = math.inf
    after: tuple[float, ...] = ()
    values: Callable[[Vector], Vector] | None = None


@dataclass(frozen=True)
class Function:
    """A function of one variable: its meaning in numpy, its domain, and its default fit.

    `proof`: the facts for proofs of errors. If it is None, proofs use `slope`; if that is None too, errors are measured
    on a grid and reported as such.
    `low`, `high`: the range for fits unless another one is given.
    `method`: the fit; None means least squares under the input's normal distribution if it was observed, else minimax.
    `slope`: a bound on |f'|, on [`low`, `high`] if these are given.
    `increasing`: f never falls.
    `odd`: f(-x) = -f(x), so that a proof above zero also holds below.
    """

    name: str
    evaluate: Callable[[Vector], Vector]
    proof: Polynomials | Analytic | None = None
    low: float | None = None
    high: float | None = None
    method: str | None = None
    slope: float | None = None
    corners: tuple[float, ...] = ()
    increasing: bool = False
    odd: bool = False

    @property
    def kinks(self) -> tuple[float, ...]:
        """The points where the slope jumps, which matter for a fit and for the search for its largest error."""
        return self.proof.kinks if isinstance(self.proof, Polynomials) else self.corners

    @property
    def positive(self) -> bool:
        """Whether the function is defined only above zero (an odd function: on either side of it)."""
        return isinstance(self.proof, Analytic) and self.proof.positive


@dataclass(frozen=True)
class Family:
    """An entry of the table: `make(**parameters)` is the function with these parameters, which are all optional.

    `parameters`: name to kind, as in an op's attributes (`float?`, `str?`).
    `homogeneous`: f(c x) = c f(x) for c > 0.
    `torch_ops`: the ops that represent it in a traced model, if these take nothing but the value.
    """

    name: str
    make: Callable[..., Function]
    doc: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    homogeneous: bool = False
    torch_ops: tuple[str, ...] = ()

    def of(self, attrs: Mapping[str, Any]) -> Function:
        """The function with the parameters in an op's attributes."""
        return self.make(**{name: attrs[name] for name in self.parameters if attrs.get(name) is not None})

    def __call__(self, x: Vector, attrs: Mapping[str, Any]) -> Vector:
        return np.asarray(self.of(attrs).evaluate(x))


_FAMILIES: dict[str, Family] = {}


def add(family: Family) -> Family:
    """Add a family to the table; each name can be used only once."""
    if family.name in _FAMILIES:
        raise ProgramError(f"there is a function {family.name!r} already", hint="take another name")
    _FAMILIES[family.name] = family
    return family


def names() -> tuple[str, ...]:
    return tuple(sorted(_FAMILIES))


def family(name: str) -> Family:
    """The family of that name; a `ProgramError` with the existing names if there is none."""
    if name not in _FAMILIES:
        raise ProgramError(f"there is no function {name!r} to approximate", hint="one of " + ", ".join(names()))
    return _FAMILIES[name]


def known(name: str) -> Family | None:
    """The family of that name, if there is one."""
    return _FAMILIES.get(name)


def families() -> tuple[Family, ...]:
    return tuple(_FAMILIES.values())


def registered() -> tuple[Family, ...]:
    """The families that were added to the built-in ones."""
    return tuple(family for name, family in _FAMILIES.items() if name not in _BUILT_IN)


def function(name: str, **parameters: Any) -> Function:
    """The function with this name and these parameters."""
    return family(name).of(parameters)


def checked_values(of: Function, x: Vector) -> Vector:
    """f(x), float64 and finite; a `ProgramError` names a point where it is not finite."""
    return checked(of.name, of.evaluate, x)


def checked(name: str, evaluate: Callable[[Vector], Vector], x: Vector) -> Vector:
    """The checked values of a function in numpy that has no `Function` record yet."""
    with np.errstate(all="ignore"):
        values = np.asarray(evaluate(x), dtype=np.float64)
    if values.shape != np.shape(x):
        raise ProgramError(
            f"{name} made an array of shape {values.shape} from one of {np.shape(x)}",
            hint="write it with numpy, by element",
        )
    if not np.isfinite(values).all():
        where = float(np.asarray(x).ravel()[np.argmin(np.isfinite(values.ravel()))])
        raise ProgramError(f"{name} is not finite at {where:g}", hint="narrow the range")
    return values


# ---------------------------------------------------------------------------------------------- the built-in ones


def _fixed(
    name: str,
    evaluate: Callable[[Vector], Vector],
    proof: Polynomials | Analytic,
    doc: str,
    *,
    homogeneous: bool = False,
    increasing: bool = False,
    odd: bool = False,
    torch_ops: tuple[str, ...] = (),
) -> None:
    """A function without parameters."""
    made = Function(name, evaluate, proof, increasing=increasing, odd=odd)
    add(Family(name, lambda: made, doc, homogeneous=homogeneous, torch_ops=torch_ops))


def _quiet(evaluate: Callable[[Vector], Vector]) -> Callable[[Vector], Vector]:
    """The function without numpy's warnings outside its domain; the caller reports values that are not finite."""

    def values(x: Vector) -> Vector:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(evaluate(x))

    return values


def _size(a: float, b: float, y: float) -> float:
    return max(abs(a), abs(b)) + y


def _sigmoid_bound(y: float) -> float:
    # |1 + exp(-z)| >= 1 where cos y >= 0, and >= sin y beyond.
    return 1.0 if y <= math.pi / 2 else 1.0 / math.sin(y)


def _erf_bound(y: float) -> float:
    # |erf(x + iy)| <= 1 + 2/sqrt(pi) * integral of exp(t^2) over [0, y]
    return 1.0 + 2.0 / math.sqrt(math.pi) * y * math.exp(y * y)


def _mp_sigmoid(mp: Any, x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def _line(slope: float) -> tuple[float, ...]:
    return (0.0, slope)


_fixed(
    "relu",
    lambda x: np.maximum(x, 0.0),
    Polynomials((0.0,), ((0.0,), _line(1.0))),
    "max(x, 0).",
    homogeneous=True,
    increasing=True,
    torch_ops=("aten.relu",),
)


def _leaky_relu(negative_slope: float = 0.01) -> Function:
    return Function(
        "leaky_relu",
        lambda x: np.where(np.asarray(x) >= 0, x, negative_slope * x),
        Polynomials((0.0,), (_line(negative_slope), _line(1.0))),
    )


add(
    Family(
        "leaky_relu",
        _leaky_relu,
        "x where x >= 0, negative_slope * x elsewhere.",
        {"negative_slope": "float?"},
        homogeneous=True,
    )
)


def _gelu(approximate: str = "none") -> Function:
    if approximate not in ("none", "tanh"):
        raise ProgramError(f"gelu has no approximation {approximate!r}", hint="none or tanh, as in torch")
    if approximate == "tanh":
        return Function("gelu", _gelu_by_tanh, _GELU_BY_TANH)
    return Function("gelu", lambda x: np.asarray(x * special.ndtr(x)), _GELU)


_ROOT, _CUBIC = math.sqrt(2.0 / math.pi), 0.044715


def _gelu_by_tanh(x: Vector) -> Vector:
    return np.asarray(0.5 * x * (1.0 + np.tanh(_ROOT * (x + _CUBIC * x**3))))


# The function is x sigmoid(w), w = 2 root (x + cubic x^3), and |Im w| <= 2 root y (1 + 3 cubic Re(z)^2) must stay below
# pi.
_GELU_BY_TANH = Analytic(
    lambda mp, x: x * _mp_sigmoid(mp, 2 * mp.mpf(_ROOT) * (x + mp.mpf(_CUBIC) * x**3)),
    lambda a, b, y: _size(a, b, y) * _sigmoid_bound(0.93 * math.pi),
    lambda x: math.pi / (2.0 * _ROOT * (1.0 + 3.0 * _CUBIC * x * x)),
)
_GELU = Analytic(
    lambda mp, x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    lambda a, b, y: _size(a, b, y) * 0.5 * (1.0 + _erf_bound(y / math.sqrt(2.0))),
)
add(Family("gelu", _gelu, "x times the normal distribution function.", {"approximate": "str?"}))
_fixed(
    "silu",
    lambda x: np.asarray(x * special.expit(x)),
    Analytic(
        lambda mp, x: x * _mp_sigmoid(mp, x), lambda a, b, y: _size(a, b, y) * _sigmoid_bound(y), lambda x: math.pi
    ),
    "x * sigmoid(x).",
    torch_ops=("aten.silu",),
)
_fixed(
    "sigmoid",
    lambda x: np.asarray(special.expit(x)),
    Analytic(_mp_sigmoid, lambda a, b, y: _sigmoid_bound(y), lambda x: math.pi),
    "1 / (1 + exp(-x)).",
    increasing=True,
    torch_ops=("aten.sigmoid", "aten.special_expit"),
)
_fixed(
    "tanh",
    np.tanh,
    Analytic(lambda mp, x: mp.tanh(x), lambda a, b, y: 1.0 + 2.0 * _sigmoid_bound(2 * y), lambda x: math.pi / 2),
    "The hyperbolic tangent.",
    increasing=True,
    torch_ops=("aten.tanh",),
)


def _softplus(beta: float = 1.0, threshold: float = 20.0) -> Function:
    def smooth(x: Vector) -> Vector:
        return np.asarray(np.logaddexp(0.0, x * beta) / beta)

    def evaluate(x: Vector) -> Vector:
        return np.where(x * beta > threshold, x, smooth(x))

    def exact(mp: Any, x: Any) -> Any:
        return (mp.log1p(mp.exp(-abs(beta * x))) + max(beta * x, 0)) / beta

    def bound(a: float, b: float, y: float) -> float:
        return (max(beta * b, 0.0) + 0.7 + beta * y * _sigmoid_bound(beta * y)) / beta

    if not beta > 0:
        return Function("softplus", evaluate, slope=1.0, corners=(threshold / beta,) if beta else ())
    # Above the threshold the function is x, as in torch.
    proof = Analytic(exact, bound, lambda x: math.pi / beta, beyond=threshold / beta, after=_line(1.0), values=smooth)
    return Function("softplus", evaluate, proof, increasing=True)


add(Family("softplus", _softplus, "log(1 + exp(beta x)) / beta.", {"beta": "float?", "threshold": "float?"}))
_fixed(
    "sign",
    np.sign,
    Polynomials((0.0,), ((-1.0,), (1.0,))),
    "-1, 0 or 1.",
    increasing=True,
    torch_ops=("aten.sign", "aten.sgn"),
)
_fixed(
    "abs",
    np.abs,
    Polynomials((0.0,), (_line(-1.0), _line(1.0))),
    "The absolute value.",
    homogeneous=True,
    torch_ops=("aten.abs", "aten.absolute"),
)
_fixed(
    "exp",
    lambda x: np.asarray(np.exp(np.minimum(x, 700.0))),
    # Far beyond any use the function stops growing, so that it stays finite.
    Analytic(lambda mp, x: mp.exp(x), lambda a, b, y: math.exp(min(b, 709.0)), beyond=700.0, after=(math.exp(700.0),)),
    "e to the power x.",
    increasing=True,
    torch_ops=("aten.exp",),
)
_fixed(
    "log",
    _quiet(np.log),
    Analytic(
        lambda mp, x: mp.log(x),
        lambda a, b, y: max(abs(math.log(a)), abs(math.log(b + y))) + 4,
        positive=True,
    ),
    "The natural logarithm, on a range above zero.",
    increasing=True,
    torch_ops=("aten.log",),
)
_fixed(
    "reciprocal",
    _quiet(lambda x: 1.0 / np.asarray(x)),
    Analytic(lambda mp, x: 1 / x, lambda a, b, y: 1.0 / a, positive=True),
    "1 / x, on a range that does not hold zero.",
    odd=True,
    torch_ops=("aten.reciprocal",),
)
_fixed(
    "sqrt",
    _quiet(np.sqrt),
    Analytic(lambda mp, x: mp.sqrt(x), lambda a, b, y: math.sqrt(b + y), positive=True),
    "The square root, on a range above zero.",
    increasing=True,
    torch_ops=("aten.sqrt",),
)
_fixed(
    "rsqrt",
    _quiet(lambda x: 1.0 / np.sqrt(x)),
    Analytic(lambda mp, x: 1 / mp.sqrt(x), lambda a, b, y: a**-0.5, positive=True),
    "1 / sqrt(x), on a range above zero.",
    torch_ops=("aten.rsqrt",),
)
_fixed(
    "sin",
    np.sin,
    Analytic(lambda mp, x: mp.sin(x), lambda a, b, y: math.cosh(y)),
    "The sine.",
    odd=True,
    torch_ops=("aten.sin",),
)
_fixed(
    "cos",
    np.cos,
    Analytic(lambda mp, x: mp.cos(x), lambda a, b, y: math.cosh(y)),
    "The cosine.",
    torch_ops=("aten.cos",),
)
_fixed(
    "erf",
    lambda x: np.asarray(special.erf(x)),
    Analytic(lambda mp, x: mp.erf(x), lambda a, b, y: _erf_bound(y)),
    "The error function.",
    increasing=True,
    odd=True,
    torch_ops=("aten.erf", "aten.special_erf"),
)


def _steps_between(name: str, low: float, high: float) -> Function:
    """The nearest value in [low, high]."""
    evaluate = partial(np.clip, a_min=low, a_max=high)
    if not low < high:
        return Function(name, evaluate, Polynomials((), ((float(high),),)), increasing=True)
    kinks = tuple(end for end in (low, high) if math.isfinite(end))
    flat = [(low,)] if math.isfinite(low) else []
    pieces = (*flat, _line(1.0), *([(high,)] if math.isfinite(high) else []))
    return Function(name, evaluate, Polynomials(kinks, pieces), increasing=True)


def _clamp(min: float = -math.inf, max: float = math.inf) -> Function:
    return _steps_between("clamp", min, max)


add(Family("relu6", partial(_steps_between, "relu6", 0.0, 6.0), "min(max(x, 0), 6).", torch_ops=("aten.relu6",)))
add(Family("hardtanh", partial(_steps_between, "hardtanh", -1.0, 1.0), "The nearest value in [-1, 1]."))
add(Family("clamp", _clamp, "The nearest value in [min, max].", {"min": "float?", "max": "float?"}))
_BUILT_IN = frozenset(_FAMILIES)
