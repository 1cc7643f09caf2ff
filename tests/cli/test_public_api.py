"""Every public name is what it says, however the package was entered; type checkers see it; what is missing is named."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import heliograph as hg

ROOT = Path(hg.__file__).resolve().parents[1]


def test_public_names_are_no_modules() -> None:
    code = (
        "import types, heliograph.interpret, heliograph.dsl.parse, heliograph.tools.debug\n"
        "import heliograph as hg\n"
        "bad = [n for n in hg.__all__ if isinstance(getattr(hg, n), types.ModuleType)]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# ------------------------------------------------------------------------------------------- types


def test_type_checkers_and_the_interpreter_find_each_name_in_the_same_module() -> None:
    tree = ast.parse(Path(hg.__file__).read_text())
    branch = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {
        alias.asname: statement.module
        for statement in branch.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if alias.asname == alias.name
    }
    assert seen == hg._PUBLIC


def test_every_error_of_ours_has_a_public_name() -> None:
    import heliograph.errors

    defined = {
        name
        for name, value in vars(heliograph.errors).items()
        if isinstance(value, type) and issubclass(value, hg.HeliographError)
    }
    assert defined <= set(hg.__all__)


USER = """
import heliograph as hg

program = hg.parse("program a")
artifact = hg.compile(program, hg.Options(degree=7))
reveal_type(artifact)
reveal_type(hg.trace)
try:
    client = hg.Client(artifact.public())
except hg.PlanningError as error:
    reveal_type(error.hint)
hg.Options(degre=7)
hg.compille(program)
"""

# The user's own settings: strict, and nothing of torch, which takes minutes.
SETTINGS = """
[mypy]
strict = True
[mypy-heliograph.*]
follow_imports = silent
[mypy-torch.*,openfhe.*,sklearn.*,scipy.*,networkx.*,matplotlib.*,mpmath.*]
follow_imports = skip
ignore_missing_imports = True
"""


def test_a_type_checker_sees_the_public_names(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="type checking needs mypy (the extra `dev`)")
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "user.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = done.stdout.splitlines()
    for number, words in (
        (6, 'Revealed type is "heliograph.artifact.artifact.Artifact"'),
        (7, "-> heliograph.ir.program.Program"),
        (11, 'Revealed type is "str"'),
        (12, 'Unexpected keyword argument "degre" for "Options"'),
        (13, 'Module has no attribute "compille"'),
    ):
        assert any(line.startswith(f"user.py:{number}: ") and words in line for line in lines), (
            done.stdout + done.stderr
        )
    assert "Found 2 errors in 1 file" in lines[-1]


# ------------------------------------------------------------------------------------------- packages that are missing

MISSING = [
    ("torch", "import heliograph as hg; hg.trace", "heliograph[torch]"),
    ("torch", "import heliograph as hg; hg.to_torch(hg.parse('program a\\ninput x: tensor[2]\\noutput x'))", "[torch]"),
    ("torch", "from heliograph.dp.training import DPTrainer", "heliograph[torch]"),
]


@pytest.mark.parametrize(("package", "code", "extra"), MISSING)
def test_a_missing_package_is_named_with_what_to_install(package: str, code: str, extra: str) -> None:
    whole = f"import sys; sys.modules[{package!r}] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=120)
    last = done.stderr[done.stderr.rindex("heliograph.errors.") :]
    assert "is not installed" in last
    assert f"try: pip install 'heliograph[{extra.partition('[')[2]}" in last


COMMANDS = [
    "compile model.py:net",
    "dp train task.py:make --delta 1e-5 --epsilon 1 --epochs 1 --batch-size 8 --lr 0.1 --clip 1 --out run",
]


@pytest.mark.parametrize("text", COMMANDS)
def test_commands_name_a_missing_package(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import torch\n")
    (tmp_path / "task.py").write_text("import torch\n")
    code = f"import sys; sys.modules['torch'] = None\nfrom heliograph.cli.main import main; main({text.split()!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: torch is not installed\n"), done.stderr
    assert "try: pip install 'heliograph[torch]'" in done.stderr
