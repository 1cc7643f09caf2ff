"""What `from heliograph import dp` gives: names without torch, and none that hides a parameter."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from heliograph import dp

SOURCES = sorted(Path(dp.__file__).parent.rglob("*.py"))


def test_a_first_program_needs_one_import_and_no_torch() -> None:
    code = (
        "import sys\n"
        "from heliograph import dp\n"
        "assert not {'numpy', 'scipy', 'torch'} & {each for each in sys.modules if each.count('.') == 0} - known\n"
        "print(dp.epsilon_at(dp.SampledGaussian(0.01, 1.0) * 10 + dp.Laplace(0.1), 1e-5).upper)\n"
        "print(dp.noise_multiplier(1.0, 1e-5).value, dp.FixedSizeSampler(4), dp.parse('gaussian(noise_multiplier=1)'))\n"
        "assert 'torch' not in sys.modules\n"
        "assert not any(each.startswith('heliograph.compiler') for each in sys.modules)\n"
    )
    code = "import sys, heliograph\nknown = {each for each in sys.modules if each.count('.') == 0}\n" + code
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_type_checkers_see_the_names_that_there_are() -> None:
    tree = ast.parse(Path(dp.__file__).read_text())
    branch = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {
        alias.asname: statement.module
        for statement in branch.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen == dp._MODULES
    with pytest.raises(AttributeError, match="no attribute 'epsilon'"):
        dp.epsilon  # noqa: B018


def test_every_name_is_there() -> None:
    pytest.importorskip("torch")
    assert all(getattr(dp, name).__name__ == name for name in dp.__all__)
    assert dp.samplers.FixedSizeSampler is dp.FixedSizeSampler


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_function_has_the_name_of_a_parameter(path: Path) -> None:
    tree = ast.parse(path.read_text())
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert not defined & {"epsilon", "delta", "noise"}
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert not {alias.asname for alias in imports} & {"epsilon_of", "delta_of", "bracket_of"}
