"""`heliograph export`: an artifact's program for another system."""

from __future__ import annotations

from pathlib import Path

import click

from heliograph.cli.output import emit, force_option, output_options, refuse_overwriting


@click.command("export")
@click.argument("artifact")
@click.option(
    "--to",
    type=click.Choice(("openfhe-python", "mlir")),
    required=True,
    help="A program of OpenFHE for Python, or MLIR with an operation for each homomorphic call.",
)
@click.option("-o", "--out", required=True, metavar="FILE", help="Where the text goes; its arrays go beside it (.npz).")
@force_option
@output_options
def export_command(artifact: str, to: str, out: str, force: bool, as_json: bool, quiet: bool) -> None:
    """Write the program of ARTIFACT, call by call, for another system; it must not bootstrap.

    For example: heliograph export model.helio --to openfhe-python -o model.py && python model.py
    """
    from heliograph.artifact.artifact import Artifact
    from heliograph.tools.exports.export import FORMS, export

    refuse_overwriting(Path(out).with_suffix(FORMS[to][1]), Path(out).with_suffix(".npz"), force=force)
    text, arrays = map(str, export(Artifact.load(artifact), out, to))
    emit(f"wrote {text}\nwrote {arrays}", {"program": text, "arrays": arrays}, as_json=as_json, quiet=quiet)
