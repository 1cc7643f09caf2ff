"""Run the command line in this process: exit code, output, errors; and the object that `--json` prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heliograph.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    code = 0
    try:
        main(list(arguments))
    except SystemExit as error:
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The one object that the command prints with `--json`: strict JSON, without NaN."""
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    value = json.loads(out, parse_constant=refuse)
    assert isinstance(value, dict)
    return value
