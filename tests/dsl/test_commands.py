"""`heliograph check` and `heliograph fmt` as a user calls them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD = "program p\n\ninput x: secret tensor[2] in [-1, 1]\n\noutput y = relu(x)\n"
BAD = "program p\ninput x: secret tensor[2]\noutput yy\nz = relu(xx)\n"


def heliograph(*arguments: str, stdin: bytes = b"", folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from heliograph.cli.main import main; main()", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, input=stdin, capture_output=True, cwd=folder, env=environment, timeout=60)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.hg").write_text(GOOD)
    (tmp_path / "bad.hg").write_text(BAD)
    return tmp_path


def test_check(folder: Path) -> None:
    done = heliograph("check", "good.hg", folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "good.hg: ok: program p (tensor), 1 input(s), 1 operation(s), 1 output(s)\n"
    done = heliograph("check", "good.hg", "bad.hg", "missing.hg", folder=folder)
    assert done.returncode == 2
    assert "bad.hg:3:8: there is no value called 'yy'" in done.stderr
    assert "bad.hg:4:10: there is no value called 'xx'" in done.stderr
    assert "missing.hg cannot be read" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("good.hg: ok")


def test_check_json(folder: Path) -> None:
    done = heliograph("check", "--json", "good.hg", "bad.hg", "none", folder=folder)
    assert done.returncode == 2
    result = json.loads(done.stdout)
    assert result["ok"] is False
    good, bad, none = result["files"]
    assert good == {
        "file": "good.hg",
        "ok": True,
        "errors": [],
        "program": "p",
        "stage": "tensor",
        "inputs": ["x"],
        "outputs": ["y"],
        "operations": 1,
    }
    assert [(error["line"], error["column"]) for error in bad["errors"]] == [(3, 8), (4, 10)]
    assert none["errors"][0]["message"] == "none cannot be read"


def test_fmt(folder: Path) -> None:
    ugly = GOOD.replace(" = ", "=") + "\n\n# end"
    (folder / "ugly.hg").write_text(ugly)
    (folder / "ugly.hg").chmod(0o640)
    done = heliograph("fmt", "--check", "good.hg", "ugly.hg", folder=folder)
    assert (done.returncode, done.stderr) == (1, "ugly.hg: would change\n")
    assert (folder / "ugly.hg").read_text() == ugly
    done = heliograph("fmt", "good.hg", "ugly.hg", folder=folder)
    assert (done.returncode, done.stderr) == (0, "ugly.hg: formatted\n")
    assert (folder / "ugly.hg").read_text() == GOOD + "\n# end\n"
    assert (folder / "ugly.hg").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in folder.iterdir()) == ["bad.hg", "good.hg", "ugly.hg"]
    assert heliograph("fmt", "--check", "good.hg", "ugly.hg", folder=folder).returncode == 0


def test_fmt_of_standard_input_and_of_wrong_text(folder: Path) -> None:
    done = heliograph("fmt", "-", stdin=b"program   p # c", folder=folder)
    assert (done.returncode, done.stdout) == (0, "program p  # c\n")
    done = heliograph("fmt", "-", stdin=b"program p\nx = (\xff", folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "not UTF-8" in done.stderr
    (folder / "wrong.hg").write_text("program p\nx = )\n")
    done = heliograph("fmt", "wrong.hg", folder=folder)
    assert done.returncode == 2
    assert "wrong.hg:2:5: ')' closes nothing" in done.stderr
    assert (folder / "wrong.hg").read_text() == "program p\nx = )\n"


def test_fmt_json_and_quiet(folder: Path) -> None:
    (folder / "ugly.hg").write_text("program   p # c")
    done = heliograph("fmt", "--check", "--json", "good.hg", "ugly.hg", folder=folder)
    assert done.returncode == 1
    states = {"good.hg": "unchanged", "ugly.hg": "would change"}
    assert json.loads(done.stdout) == {"files": [{"file": name, "state": state} for name, state in states.items()]}
    done = heliograph("fmt", "--quiet", "good.hg", "ugly.hg", folder=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (folder / "ugly.hg").read_text() != "program   p # c"
    assert heliograph("fmt", "-", "--json", stdin=b"program p", folder=folder).returncode == 2
    done = heliograph("check", "--quiet", "good.hg", "bad.hg", folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "bad.hg:3:8" in done.stderr
