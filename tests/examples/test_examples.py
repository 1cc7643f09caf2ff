"""Every example runs, and the README's program is the example that is tested."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(path: Path) -> str:
    environment = {**os.environ, "HELIOGRAPH_COSTS": "built-in"}
    result = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=ROOT, timeout=540, env=environment
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_readme_shows_the_first_program() -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    assert block.group(1) in (ROOT / "examples/first_program.py").read_text()


def test_first_program_prints_what_the_readme_says() -> None:
    shown = re.search(r"prints\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    printed = run(ROOT / "examples/first_program.py")

    def steady(text: str) -> list[str]:
        # Times and memory are predicted from the machine's own cost table where it has one.
        text = re.sub(r"[0-9.]+ (ms|s|MB|GB)\b", "#", text)
        return [" ".join(line.split()) for line in text.splitlines() if not re.match(r"\s*Times:", line)]

    assert steady(printed) == steady(shown.group(1))
    assert printed.rstrip().endswith("True")


@pytest.mark.parametrize("name", ["cnn_from_pytorch"])
def test_example(name: str) -> None:
    printed = run(ROOT / f"examples/{name}.py")
    assert "same class, encrypted: True" in printed
