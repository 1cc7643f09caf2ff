"""What commands print: results on stdout as a table or as one JSON object, progress and remarks on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from heliograph.errors import ProgramError

F = TypeVar("F", bound=Callable[..., Any])


def output_options(command: F) -> F:
    """Add --json and --quiet, as parameters `as_json` and `quiet`."""
    command = click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")(command)
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")(command)


def force_option(command: F) -> F:
    """Add --force, as parameter `force`; `refuse_overwriting` reads it."""
    return click.option("--force", is_flag=True, help="Overwrite files that exist.")(command)


def full_option(command: F) -> F:
    """Add --full, as parameter `full`: the whole bill in place of ten lines."""
    return click.option("--full", is_flag=True, help="Print the whole bill in place of its ten lines.")(command)


def refuse_overwriting(*paths: str | Path | None, force: bool) -> None:
    """Refuse if a file that the command will write already exists; called before the work begins."""
    for path in paths:
        if path is not None and not force and Path(path).exists():
            raise ProgramError(f"{path} already exists", hint="choose another name, or pass --force to overwrite it")


def refuse_overwriting_folder(folder: str | Path | None, force: bool) -> None:
    """The same for a folder that a command is to fill: it is new, or has nothing in it."""
    if folder is not None and not force and Path(folder).is_dir() and any(Path(folder).iterdir()):
        raise ProgramError(
            f"the folder {folder} is not empty", hint="choose another one, or pass --force to overwrite it"
        )


def insecure_option(command: F) -> F:
    """Add --insecure, as parameter `insecure`."""
    text = "Accept an artifact without security: for tests only, never with real data."
    return click.option("--insecure", is_flag=True, help=text)(command)


def plaintexts_option(command: F) -> F:
    """Add --plaintexts, as parameter `plaintexts`."""
    text = "Keep encoded plaintexts in this folder, so that later servers need not encode them (native backend)."
    return click.option("--plaintexts", default=None, metavar="DIR", help=text)(command)


def emit(text: str, values: Mapping[str, Any], *, as_json: bool, quiet: bool) -> None:
    """Print a command's result: the object where JSON was asked for (even when quiet), else the text."""
    if as_json:
        click.echo(json.dumps(values, default=_plain))
    elif not quiet:
        click.echo(text)


def _plain(value: Any) -> Any:
    """A value of numpy as JSON has it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def remark(text: str, quiet: bool) -> None:
    """One line on stderr."""
    if not quiet:
        click.echo(text, err=True)
