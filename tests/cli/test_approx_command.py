"""`heliograph approx`: the fixed names, recomputed as a stranger would from the coefficients printed; refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import commands, own_functions

from heliograph import functions
from heliograph.approx.compositions.sampling import softmax_values
from heliograph.approx.fits.fit import fit


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HELIOGRAPH_CACHE", str(tmp_path / "cache"))
    with own_functions.forgotten():
        yield


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return commands.run(capsys, "approx", *arguments)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return commands.run_json(capsys, "approx", *arguments)


def evaluate(stage: dict[str, Any], x: np.ndarray) -> np.ndarray:
    assert stage["basis"] == "chebyshev"
    low, high = stage["interval"]
    return np.asarray(np.polynomial.chebyshev.chebval((2 * x - low - high) / (high - low), stage["coefficients"]))


def compose(stages: list[dict[str, Any]], x: np.ndarray) -> np.ndarray:
    for stage in stages:
        x = evaluate(stage, x)
    return x


def test_gaussian(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "relu", "--mu", "0", "--sigma", "1", "--degree", "7", "--method", "gaussian")
    assert found["mean_squared_error"] == pytest.approx(0.00264669, rel=1e-5)
    assert found["depth"] == 3
    x = np.linspace(-9, 9, 200_001)
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    again = float(np.sum(density * (evaluate(found, x) - np.maximum(x, 0)) ** 2) * (x[1] - x[0]))
    assert again == pytest.approx(found["mean_squared_error"], rel=1e-4)


@pytest.mark.parametrize(("name", "low", "high"), [("gelu", -8, 8), ("relu", -3, 5), ("exp", -2, 3), ("tanh", -20, 20)])
def test_minimax(capsys: pytest.CaptureFixture[str], name: str, low: int, high: int) -> None:
    found = run_json(capsys, name, "--range", str(low), str(high), "--degree", "15", "--method", "minimax")
    assert found["proved"]
    x = np.linspace(low, high, 300_001)
    error = np.abs(evaluate(found, x) - functions.function(name).evaluate(x)).max()
    assert error <= found["max_error"] * (1 + 1e-9)
    assert found["max_error"] <= 1.02 * error
    assert found["stages"][0]["coefficients"] == found["coefficients"]
    assert found["depth"] == 4


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gelu", {"approximate": "tanh"}),
        ("leaky_relu", {"negative_slope": 0.3}),
        ("clamp", {"min": -0.5, "max": 1.5}),
        ("softplus", {"beta": 2.0}),
        ("hardtanh", {}),
        ("erf", {}),
        ("sin", {}),
    ],
)
def test_parameters(capsys: pytest.CaptureFixture[str], name: str, parameters: dict[str, Any]) -> None:
    """Any function that a program may hold, by the same parameters."""
    given = [word for key, value in parameters.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    found = run_json(capsys, name, *given, "--range", "-3", "4", "--degree", "15")
    assert found["proved"]
    assert parameters.items() <= found.items()
    x = np.linspace(-3, 4, 300_001)
    error = np.abs(evaluate(found, x) - functions.function(name, **parameters).evaluate(x)).max()
    assert error <= found["max_error"] <= 1.05 * error


def test_gaussian_is_not_hermite(capsys: pytest.CaptureFixture[str]) -> None:
    """On the whole line, OLA's; on an interval, what a compilation does. Without an interval the old word still serves."""
    distribution = ["relu", "--mu", "0", "--sigma", "1", "--degree", "7"]
    whole = run_json(capsys, *distribution, "--method", "hermite")
    assert whole["method"] == "hermite"
    assert run_json(capsys, *distribution, "--method", "gaussian") == whole
    assert run_json(capsys, *distribution) == whole
    interval = run_json(capsys, *distribution, "--method", "gaussian", "--range", "-4", "4")
    assert interval["method"] == "gaussian"
    assert interval["proved"]
    assert interval["interval"] == [-4.0, 4.0]
    again = fit(functions.function("relu").evaluate, -4.0, 4.0, 7, "gaussian", 0.0, 1.0)
    assert interval["coefficients"] == list(again.coefficients)


@pytest.mark.parametrize("family", ["iterated", "minimax", "best"])
def test_sign(capsys: pytest.CaptureFixture[str], family: str) -> None:
    found = run_json(capsys, "sign", "--gap", "0.01", "--precision-bits", "8", "--family", family)
    wanted = {"degrees", "depth", "multiplications", "closeness_bits", "stages"}
    assert wanted <= found.keys()
    assert ("dq" in found) == (family == "iterated")
    x = np.geomspace(0.01, 1.0, 100_001)
    error = np.abs(compose(found["stages"], x) - 1).max()
    assert error <= 2.0 ** -found["closeness_bits"] + 1e-13
    assert found["closeness_bits"] >= 8
    assert found["depth"] == sum(d.bit_length() for d in found["degrees"])


@pytest.mark.parametrize(("family", "depth"), [("iterated", 37), ("best", 18)])
def test_argmax(capsys: pytest.CaptureFixture[str], family: str, depth: int) -> None:
    found = run_json(capsys, "argmax", "--classes", "10", "--gap", "1e-3", "--count", "128", "--family", family)
    names = {"dq1", "dp1", "dq2", "dp2"} if family == "iterated" else {"degrees1", "degrees2"}
    assert names | {"psi1", "phi2", "psi2", "depth", "max_count", "stages"} <= found.keys()
    assert found["depth"] == depth
    assert found["max_count"] >= 128
    assert found["phi2"] == pytest.approx((1 - 9 * 2 ** -found["psi1"]) / 18, rel=1e-6)
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 0.999, (500, 10))
    rows[:, 3] = rows.max(axis=1) + 1e-3
    first = [stage for stage in found["stages"] if stage["part"] == "sign1"]
    second = [stage for stage in found["stages"] if stage["part"] == "sign2"]
    total = sum(compose(first, rows - np.roll(rows, -k, axis=1)) for k in range(1, 10))
    made = (1 + compose(second, found["score_scale"] * total + found["score_shift"])) / 2
    assert np.abs(made - np.eye(10)[3]).max() <= 2.0 ** -found["psi2"] / 2 + 1e-12


def test_two_classes(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "argmax", "--classes", "2", "--gap", "0.05", "--family", "best")
    assert found["degrees2"] == []


def test_softmax(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--columns", "10", "--range", "32", "--samples", "3000", "--seed", "4"]
    found = run_json(capsys, "softmax", *arguments)
    assert found["boxes"] == [4.0, 8.0, 32.0]
    assert 0 < found["mean_error"] <= found["max_error"] <= 1e-5
    assert found["depth"] <= 26
    assert run_json(capsys, "softmax", *arguments) == found
    # The nodes printed, evaluated by a stranger.
    rng = np.random.default_rng(0)
    rows = rng.uniform(-32, 32, (300, 10))
    values: list[np.ndarray] = []
    for node in found["nodes"]:
        operands = [values[i] for i in node["operands"]]
        values.append(meaning(node, operands, rows))
    assert np.abs(values[-1][:, :, 0] - softmax_values(rows)).max() <= 1.5 * found["max_error"] + 1e-12


def meaning(node: dict[str, Any], operands: list[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Values have the axes (sample, place in the row, 1)."""
    made = {
        "input": lambda: rows[..., np.newaxis],
        "constant": lambda: np.array(node["value"])[np.newaxis],
        "pad_rows": lambda: np.pad(operands[0], ((0, 0), (0, node["rows"] - 10), (0, 0))),
        "poly": lambda: evaluate({**node, "basis": "chebyshev", "interval": [node["low"], node["high"]]}, operands[0]),
        "mul": lambda: operands[0] * operands[1],
        "add": lambda: operands[0] + operands[1],
        "sub": lambda: operands[0] - operands[1],
        "sum_rows": lambda: operands[0].sum(axis=1),
        "repeat_row": lambda: np.repeat(operands[0][:, np.newaxis], node["rows"], axis=1),
        "crop_rows": lambda: operands[0][:, : node["rows"]],
    }
    return np.asarray(made[node["op"]]())


def test_tables_and_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for number, arguments in enumerate(
        (
            ["gelu", "--range", "-4", "4", "--degree", "7"],
            ["relu", "--mu", "0", "--sigma", "1", "--degree", "7"],
            ["sign", "--gap", "0.1", "--precision-bits", "4"],
            ["argmax", "--classes", "3", "--gap", "0.1"],
            ["softmax", "--columns", "3", "--range", "4", "--samples", "100"],
        )
    ):
        picture = tmp_path / f"{number}.png"
        code, out, err = run(capsys, *arguments, "--png", str(picture))
        assert code == 0, err
        assert "depth" in out
        assert "coefficients" not in out
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_function_of_the_users_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tmp_path / "own.py"
    source.write_text(
        "import numpy as np\nfrom heliograph.approx import register_function\n"
        "register_function('wave', lambda x: np.sin(2 * x), low=-2.0, high=2.0, slope=2.0)\n"
    )
    found = run_json(capsys, "wave", "--from", str(source), "--degree", "9")
    assert found["proved"]
    assert found["interval"] == [-2.0, 2.0]
    # It may be called like a module, import what is beside it, and fails at a line.
    (tmp_path / "wave_beside.py").write_text("factor = 2.0\n")
    named = tmp_path / "types.py"
    named.write_text(
        source.read_text().replace("import numpy", "import wave_beside\nimport numpy").replace("wave'", "twice'")
    )
    assert run_json(capsys, "twice", "--from", str(named), "--degree", "9")["proved"]
    named.write_text("\n\nregister_function('thrice')\n")
    code, _, err = run(capsys, "thrice", "--from", str(named), "--degree", "9")
    assert code == 2
    assert f"{named}:3: NameError" in err
    code, _, err = run(capsys, "wave", "--from", str(tmp_path / "missing.py"), "--degree", "9")
    assert code == 2
    assert "missing.py" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["frobnicate", "--degree", "7"], "no function"),
        (["relu", "--degree", "7"], "needs an interval"),
        (["relu", "--degree", "7", "--range", "2", "1"], "low < high"),
        (["log", "--degree", "7", "--range", "-1", "1"], "not finite"),
        (["relu", "--degree", "7", "--method", "gaussian"], "--mu"),
        (["relu", "--degree", "7", "--mu", "0", "--sigma", "0"], "sigma"),
        (["relu", "--degree", "7", "--mu", "0", "--sigma", "1", "--method", "spline"], "spline"),
        (["relu", "--degree", "7", "--range", "-4", "4", "--method", "gaussian"], "--mu"),
        (["gelu", "--degree", "7", "--range", "-4", "4", "--approximate", "fast"], "none or tanh"),
        (["sign", "--gap", "0", "--precision-bits", "8"], "gap 0"),
        (["sign", "--gap", "nan", "--precision-bits", "8"], "gap nan"),
        (["argmax", "--classes", "1", "--gap", "0.1"], "two"),
        (["softmax", "--columns", "10", "--range", "inf"], "range"),
        (["softmax", "--columns", "10", "--range", "128", "--scale-bits", "40"], "nearest"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 2
    assert words in err
    assert "fault of Heliograph" not in err
    assert not out
