"""`heliograph check` and `heliograph fmt`: texts of the language, checked and formatted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from heliograph.cli.output import output_options, remark
from heliograph.errors import HeliographError
from heliograph.files import open_file, write_file


def _check_one(name: str) -> tuple[dict[str, Any], str]:
    """The JSON entry and the text for one file."""
    from heliograph.dsl.parse import parse
    from heliograph.errors import LanguageError

    entry: dict[str, Any] = {"file": name, "ok": False, "errors": []}
    try:
        program = parse(Path(name))
    except LanguageError as error:
        entry["errors"] = [diagnostic.to_json() for diagnostic in error.diagnostics]
        return entry, str(error)
    except HeliographError as error:
        entry["errors"] = [{"line": 0, "column": 0, "message": error.what, "note": error.why, "try": error.hint}]
        return entry, str(error)
    operations = sum(node.op not in ("input", "constant") for node in program.nodes)
    entry.update(
        ok=True,
        program=program.name,
        stage=program.stage.value,
        inputs=[str(node.attrs["name"]) for node in program.inputs],
        outputs=list(program.output_names),
        operations=operations,
    )
    counts = f"{len(program.inputs)} input(s), {operations} operation(s), {len(program.outputs)} output(s)"
    return entry, f"{name}: ok: program {program.name} ({program.stage.value}), {counts}"


@click.command()
@click.argument("files", nargs=-1, required=True)
@output_options
def check(files: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Check programs without compiling them. Exit code 2 if one has errors."""
    entries = []
    for name in files:
        entry, text = _check_one(name)
        entries.append(entry)
        if not as_json and not (quiet and entry["ok"]):
            click.echo(text, err=not entry["ok"])
    well = all(entry["ok"] for entry in entries)
    if as_json:
        click.echo(json.dumps({"ok": well, "files": entries}))
    if not well:
        sys.exit(2)


def _replace(path: Path, text: str) -> None:
    """Write the file whole or not at all, keeping its mode."""
    path = path.resolve()
    mode = path.stat().st_mode & 0o7777
    # Nobody else may read it before it has its mode again.
    write_file(path, text.encode(), private=True)
    os.chmod(path, mode)


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--check", "only_check", is_flag=True, help="Change nothing; exit code 1 if a file would change.")
@output_options
def fmt(files: tuple[str, ...], only_check: bool, as_json: bool, quiet: bool) -> None:
    """Format programs in place; `-` reads standard input and writes standard output."""
    from heliograph.dsl.diagnostics import MAX_SOURCE_BYTES, Source
    from heliograph.dsl.format import format_source
    from heliograph.dsl.parse import open_source
    from heliograph.errors import ProgramError

    states: dict[str, str] = {}
    if as_json and "-" in files and not only_check:
        raise ProgramError("the formatted text and the JSON object would both go to standard output", where="--json")
    for name in files:
        try:
            if name == "-":
                raw = sys.stdin.buffer.read(MAX_SOURCE_BYTES + 1)
                try:
                    source = Source(raw.decode("utf-8-sig"), "<stdin>")
                except UnicodeDecodeError as error:
                    raise ProgramError(f"byte {error.start} is not UTF-8", where="<stdin>") from None
                if len(raw) > MAX_SOURCE_BYTES:
                    raise ProgramError(f"the text has more than {MAX_SOURCE_BYTES} bytes", where="<stdin>")
                formatted = format_source(source)
                if not only_check:
                    sys.stdout.buffer.write(formatted.encode())
                    sys.stdout.flush()
                states[name] = "unchanged" if formatted.encode() == raw else "would change"
                continue
            path = Path(name)
            formatted = format_source(open_source(path))
            with open_file(path) as file:
                if formatted.encode() == file.read():
                    states[name] = "unchanged"
                    continue
            if not only_check:
                _replace(path, formatted)
            states[name] = "would change" if only_check else "formatted"
            remark(f"{name}: {states[name]}", quiet)
        except HeliographError as error:
            states[name] = "error"
            click.echo(f"error: {error}", err=True)
        except OSError as error:
            states[name] = "error"
            click.echo(f"error: {name}: {error.strerror}", err=True)
    if as_json:
        click.echo(json.dumps({"files": [{"file": name, "state": state} for name, state in states.items()]}))
    if "error" in states.values():
        sys.exit(2)
    if only_check and "would change" in states.values():
        sys.exit(1)
