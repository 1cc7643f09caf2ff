"""One table of functions: programs, fits, proofs and the report take everything from it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import own_functions

import heliograph as hg
import heliograph.approx
from heliograph import functions
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.errors import ProgramError
from heliograph.ir import Array, Builder, Program, Stage
from heliograph.ir.ops.table import OPS
from heliograph.passes.base import apply
from heliograph.passes.polynomials.approximate import Approximate
from heliograph.passes.ranges.calibrate import Calibrate
from heliograph.passes.tensors.expand import Expand
from heliograph.passes.tensors.fuse_linear import FuseLinear

TOY = Options(security_bits=None)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with own_functions.forgotten():
        yield


def program(op: str, low: float, high: float, shape: tuple[int, ...] = (8,), **attrs: Any) -> Program:
    builder = Builder("one", Stage.TENSOR)
    x = builder.input("x", shape=shape, low=low, high=high)
    return builder.finish({"y": builder.op(op, (x,), **attrs)})


def approximated(source: Program, **options: Any) -> Program:
    fused = apply(FuseLinear(), apply(Expand(), source))
    return apply(Approximate(observed=Calibrate().run(fused), **options), fused)


def error_of(made: Program, name: str, parameters: dict[str, Any]) -> float:
    """The error of the polynomial that stands in the program, on a fine grid."""
    (node,) = (node for node in made.nodes if node.op == "poly")
    low, high = node.attrs["low"], node.attrs["high"]
    of = functions.function(name, **parameters)
    x = np.concatenate((np.linspace(low, high, 1_000_001), [k for k in of.kinks if low <= k <= high]))
    t = (2 * x - low - high) / (high - low)
    values = np.polynomial.chebyshev.chebval(t, made.array(node.attrs["coefficients"]))
    return float(np.abs(values - of.evaluate(x)).max())


CASES: dict[str, tuple[str, dict[str, Any], float, float, int]] = {
    "relu6 over both kinks": ("relu6", {}, -9.0, 9.5, 31),
    "relu": ("relu", {}, -1.0, 7.0, 15),
    "steep leaky relu": ("leaky_relu", {"negative_slope": 0.3}, -2.0, 7.0, 15),
    "clamp": ("clamp", {"min": -0.4, "max": 1.7}, -3.0, 4.0, 31),
    "gelu": ("gelu", {}, -4.0, 6.0, 15),
    "gelu by tanh": ("gelu", {"approximate": "tanh"}, -4.0, 6.0, 15),
    "log": ("log", {}, 0.1, 4.0, 15),
    "erf": ("erf", {}, -3.0, 2.0, 15),
    "sin": ("sin", {}, -3.0, 3.0, 7),
    "softplus": ("softplus", {"beta": 2.0}, -3.0, 3.0, 7),
    "sqrt by one polynomial": ("sqrt", {}, 0.1, 4.0, 9),
}


@pytest.mark.parametrize("method", ["minimax", "interpolation"])
@pytest.mark.parametrize("case", CASES)
def test_the_report_bounds_the_error_of_what_is_compiled(case: str, method: str) -> None:
    name, parameters, low, high, degree = CASES[case]
    made = approximated(program(name, low, high, degree=degree, method=method, **parameters))
    (entry,) = made.ranges
    true = error_of(made, name, parameters)
    assert entry.proved_error == entry.max_error
    assert true <= entry.proved_error <= 1.05 * true


def test_printed_bounds_are_not_rounded_down() -> None:
    source = program("relu6", -9.0, 9.5, degree=31, method="minimax")
    made = approximated(source)
    artifact = compile(source, TOY)
    (line, shares) = artifact.report.range_lines()
    printed = re.search(r"error at most ([0-9.e-]+) \(proved\)", line)
    assert printed is not None
    true = error_of(made, "relu6", {})
    assert true <= float(printed.group(1)) <= 1.05 * true
    assert "1 of 1 errors" in shares


def test_errors_by_unit_are_proved() -> None:
    random = np.random.default_rng(0)
    builder = Builder("units", Stage.TENSOR)
    x = builder.input("x", shape=(6,), low=-1.0, high=1.0)
    sizes = np.array([0.1, 1.0, 5.0, 2.0])
    h = builder.op("linear", (x,), weight=builder.constant(random.normal(size=(4, 6)) * sizes[:, None], "w"))
    h = builder.op("relu", (h,), degree=7)
    y = builder.op("linear", (h,), weight=builder.constant(random.normal(size=(2, 4)), "v"))
    source = replace(builder.finish({"y": y}), calibration=(random.uniform(-1, 1, (100, 6)),))
    made = approximated(source)
    (entry,) = made.ranges
    assert entry.units == 4
    (node,) = (node for node in made.nodes if node.op == "poly")
    t = np.linspace(-1, 1, 200_001)
    reach = node.attrs["high"]
    values = np.polynomial.chebyshev.chebval(t, made.array(node.attrs["coefficients"]))
    true = float(np.abs(values - np.maximum(reach * t, 0)).max()) * max(made.ranges[0].unit_sizes) / reach
    assert true <= entry.proved_error * (1 + 1e-8)
    assert entry.proved_error <= 1.05 * true


def test_a_target_is_met_by_what_is_proved() -> None:
    made = approximated(program("gelu", -4.0, 4.0), target_error=1e-3)
    (entry,) = made.ranges
    assert error_of(made, "gelu", {}) <= entry.proved_error <= 1e-3


# ------------------------------------------------------------------------------------------ functions of a user's own


def steep(x: Array) -> Array:
    return np.abs(x - 1.0)


def test_method_and_kinks_of_a_registered_function_count() -> None:
    hg.register_function("steep", steep, low=-3, high=3, method="interpolation", kinks=(1.0,), slope=1.0)
    (entry,) = compile(program("steep", -3.0, 3.0, degree=15), TOY).report.values["ranges"]
    assert entry["method"] == "interpolation"
    # Options and the op come first.
    (entry,) = approximated(program("steep", -3.0, 3.0, degree=15), method="minimax").ranges
    assert entry.method == "minimax"
    told = entry.proved_error
    hg.register_function("untold", steep, slope=1.0)
    (entry,) = approximated(program("untold", -3.0, 3.0, degree=15, method="minimax")).ranges
    # The kink among the points makes the polynomial better.
    assert told < 0.995 * entry.proved_error


def test_without_a_slope_an_error_is_seen() -> None:
    hg.register_function("bump", lambda x: np.exp(-x * x))
    artifact = compile(program("bump", -2.0, 2.0, degree=7), TOY)
    (entry,) = artifact.report.values["ranges"]
    assert entry["proved_error"] is None
    line, shares = artifact.report.range_lines()
    assert "(seen)" in line
    assert "at most" not in line
    assert "0 of 1 errors" in shares
    true = error_of(approximated(program("bump", -2.0, 2.0, degree=7)), "bump", {})
    assert entry["max_error"] == pytest.approx(true, rel=1e-4)


def test_there_is_one_registration() -> None:
    assert hg.register_function is heliograph.approx.register_function
    made = heliograph.approx.register_function("bump", lambda x: np.exp(-x * x), slope=0.86)
    assert functions.function("bump") is made
    assert OPS["bump"].activation is functions.family("bump")
    with pytest.raises(ProgramError, match="no method 'spline'"):
        hg.register_function("other", np.abs, method="spline")
    assert functions.known("other") is None
    assert "other" not in OPS


def test_every_function_is_an_op_and_the_other_way_round() -> None:
    assert {name for name, spec in OPS.items() if spec.activation is not None} == set(functions.names())
    for name in functions.names():
        assert OPS[name].activation is functions.family(name)
        assert functions.family(name).parameters.items() <= OPS[name].attrs.items()


# ------------------------------------------------------------------------------------------ of several values


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("argmax", {"axis": 0, "gap": 0.1}),
        ("softmax", {"axis": 0}),
        ("max", {"axis": 0, "gap": 0.1}),
        ("sign", {"gap": 0.1}),
        ("abs", {"gap": 0.1}),
        ("exp", {}),
    ],
)
def test_compositions_say_that_they_are_proved(op: str, attrs: dict[str, Any]) -> None:
    entries = approximated(program(op, -1.0, 1.0, (4,), **attrs)).ranges
    assert all(entry.proved_error == entry.max_error > 0 for entry in entries)


def test_a_maximum_says_what_all_its_rounds_err_by() -> None:
    source = program("max", -1.0, 1.0, (8,), axis=0, gap=0.1)
    made = approximated(source)
    assert {entry.max_error for entry in made.ranges} == {made.ranges[0].max_error}
    assert made.ranges[0].max_error == pytest.approx(0.1, rel=1e-5)


def test_a_logarithm_of_what_was_seen_stays_above_zero() -> None:
    random = np.random.default_rng(1)
    builder = Builder("log", Stage.TENSOR)
    x = builder.input("x", shape=(4,), low=None, high=None)
    source = replace(
        builder.finish({"y": builder.op("log", (x,), degree=15)}), calibration=(random.uniform(0.05, 3, (100, 4)),)
    )
    (entry,) = approximated(source).ranges
    assert 0 < entry.low < 0.05
    assert math.isfinite(entry.proved_error)
